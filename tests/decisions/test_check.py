"""The gate: which budgets are of which models, what they come to, and the exit codes.

CONVNET takes 21,416 B of weights, and for each sample 3,072 of input and 8,192 + 2,048 at its peak,
the MaxPool: 34,728 B at batch 1.
"""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from golden_text import assert_golden
from models_on_disk import CONVNET, MYSTERY, write_model

import onnxmem
from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.analysis.json_rows import Failure
from onnxmem.cli import main
from onnxmem.decisions.check.budgets import Budget, Growth, matches, read_growth, read_percent
from onnxmem.decisions.check.checking import Checkup, Gate
from onnxmem.errors import UsageError
from onnxmem.units import format_bytes

Capture = pytest.CaptureFixture[str]
PEAK = 34_728
WEIGHTS = 21_416
PER_SAMPLE = 13_312
UNBOUND = """agraph (float[N,S] x) => (float[N,S] y) { y = Exp(x) }"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with models that fit, that do not fit, and that are unknown."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edge").mkdir()
    write_model(tmp_path / "net.onnx")
    write_model(tmp_path / "edge" / "small.onnx")
    write_model(tmp_path / "mystery.onnx", MYSTERY)
    write_model(tmp_path / "seq.onnx", UNBOUND)
    (tmp_path / "page.onnx").write_text("<!DOCTYPE html>")
    return tmp_path


def configure(folder: Path, text: str, name: str = "onnxmem.toml") -> None:
    (folder / name).write_text(text)


def outcomes(capsys: Capture) -> dict[tuple[str, str, str], str]:
    document = json.loads(capsys.readouterr().out)
    return {
        (model["path"], check["budget"], check["figure"]): check["outcome"]
        for model in document["models"]
        for check in model["checks"]
    }


# What the data of a run decide.

LOOP = """agraph (float[8,7] x, bool c) => (s) <int64 most = {5}> {
    z, s = Loop(most, c, x) <body = iteration(int64 i, bool g, float[8,7] h) => (o, ho, so) {
        t = ReduceSum<keepdims = 0>(h)  o = Cast<to = 9>(t)  ho = Relu(h)  so = Identity(h)
    }>
}"""
"""Each of at most five iterations adds 8 x 7 floats to s."""


def checked_loop(folder: Path, capsys: Capture, *words: str) -> str:
    write_model(folder / "loop.onnx", LOOP)
    main(["check", "loop.onnx", *words])
    return " ".join(capsys.readouterr().out.split())


def test_a_check_names_what_settles_it(folder: Path, capsys: Capture) -> None:
    text = checked_loop(folder, capsys, "--budget-peak", "1KiB")
    assert "unknown: at least" in text
    assert "=N bounds it, --observed shows what runs took)" in text


def test_a_check_names_the_end_that_it_compared(folder: Path, capsys: Capture) -> None:
    accepted = ("--accept", "data_dependent")
    assert "(a lower bound)" in checked_loop(folder, capsys, "--budget-peak", "1KiB", *accepted)
    for words in ((), accepted):
        assert "(an upper bound)" in checked_loop(folder, capsys, "--budget-peak", "1MiB", *words)


@pytest.mark.usefixtures("without_children")
def test_a_check_names_the_iterations_of_an_observed_run(folder: Path, capsys: Capture) -> None:
    pytest.importorskip("onnxruntime")
    model = write_model(folder / "loop.onnx", LOOP)
    seen = onnxmem.observe(model)
    (folder / "seen.json").write_text(seen.to_json())
    text = checked_loop(folder, capsys, "--budget-peak", "1KiB", "--observed", "seen.json")
    assert "(an observed run of random inputs, iterations of Loop_0: " in text


@pytest.mark.usefixtures("without_children")
def test_a_check_says_what_other_inputs_than_those_observed_may_take(
    folder: Path, capsys: Capture
) -> None:
    """One of 13 rows of 28 bytes is kept, and read by Neg."""
    pytest.importorskip("onnxruntime")
    model = write_model(
        folder / "rows.onnx",
        "agraph (float[13,7] x, bool[13] c) => (float[k,7] y) {"
        " z = Compress<axis = 0>(x, c)  y = Neg(z) }",
    )
    np.savez(folder / "one.npz", x=np.ones((13, 7), np.float32), c=np.arange(13) == 5)
    (folder / "seen.json").write_text(onnxmem.observe(model, inputs=["one.npz"]).to_json())
    words = ["check", model, "--budget-peak", "500B", "--observed", "seen.json"]
    assert main([*words, "--accept", "data_dependent"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    inputs_bytes = 13 * 29
    most = format_bytes(inputs_bytes + 2 * 13 * 28)
    assert f"{inputs_bytes + 2 * 28} B fits: " in text
    assert f"(an observed run; other inputs may take {most} at most)" in text


# Limits.


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (f"net.onnx --budget-peak {PEAK}", 0),
        (f"net.onnx --budget-peak {PEAK - 1}", 1),
        (f"net.onnx --budget-weights {WEIGHTS}", 0),
        (f"net.onnx --budget-weights {WEIGHTS - 1}", 1),
        (f"net.onnx --batch 5 --budget-peak {WEIGHTS + 5 * PER_SAMPLE}", 0),
        (f"net.onnx --batch 5 --budget-peak {WEIGHTS + 5 * PER_SAMPLE - 1}", 1),
        (f"net.onnx --dim N=5 --budget-peak {WEIGHTS + 5 * PER_SAMPLE - 1}", 1),
        (f"net.onnx --shape image:5,3,16,16 --budget-peak {WEIGHTS + 5 * PER_SAMPLE - 1}", 1),
        ("net.onnx --budget-training 1GiB", 0),
        ("net.onnx --budget-training 1KiB", 1),
        (". --budget-peak 1GiB", 3),
        ("edge --budget-peak 1GiB", 0),
        ("ed*/*.onnx net.onnx --budget-peak 1KiB", 1),
        ("mystery.onnx --budget-peak 1GiB", 3),
        ("mystery.onnx --budget-peak 10B", 1),
        ("mystery.onnx --budget-weights 140B", 0),
        ("mystery.onnx net.onnx --budget-peak 1KiB --batch 100", 1),
        ("seq.onnx --budget-peak 1GiB", 3),
        ("seq.onnx --budget-peak 1GiB --dim S=5", 0),
        ("seq.onnx --budget-peak 1B --dim S=5", 1),
        ("seq.onnx --budget-peak 1B", 1),
        ("page.onnx --budget-peak 1GiB", 3),
        ("page.onnx net.onnx --budget-peak 1B", 3),
        ("gone.onnx net.onnx --budget-peak 1B", 2),
        ("net.onnx --budget-peak 1GiB --baseline edge", 2),
        ("net.onnx --max-growth 5%", 3),
        ("net.onnx", 2),
        ("", 2),
        ("--budget-peak 1GiB", 2),
        ("net.onnx --budget-peak 24G", 2),
        ("net.onnx --budget-peak 24", 2),
        ("net.onnx --max-growth five", 2),
        ("net.onnx --max-growth 5", 2),
        ("net.onnx --budget-peak 1KiB --format html", 2),
        ("net.onnx --budget-peak 1KiB --also html=page.html", 2),
        ("net.onnx --budget-peak 1GiB -o net.onnx", 2),
        ("net.onnx --budget-peak 1GiB --also json=net.onnx", 2),
        ("net.onnx --config gone.toml", 2),
        ("net.onnx --budget-peak 1GiB --baseline gone.json", 2),
        ("nowhere/*.onnx --budget-peak 1GiB", 2),
        ("net.onnx --batch 0 --budget-peak 1GiB", 2),
        ("net.onnx --dim N=4 --dim N=5 --budget-peak 1GiB", 2),
    ],
)
def test_each_outcome_of_check_has_its_exit_code(line: str, code: int) -> None:
    assert main(["check", *line.split()]) == code


def test_an_incomplete_figure_can_fail_but_never_pass(capsys: Capture) -> None:
    main("check mystery.onnx --budget-peak 1GiB --format json".split())
    main("check mystery.onnx --budget-peak 10B --format json".split())
    first, second = (
        json.loads(text)["models"][0]["checks"][0]
        for text in capsys.readouterr().out.replace("}\n{", "}\0{").split("\0")
    )
    assert (first["outcome"], second["outcome"]) == ("unknown", "does_not_fit")
    assert first["is_lower_bound"]
    assert "'y'" in first["reason"]


def test_a_fixed_batch_size_is_not_a_lower_bound(folder: Path) -> None:
    text = "agraph (float[2,3] x, float[5,7] z) => (float[2,3] y) { y = Exp(x) }"
    write_model(folder / "fixed.onnx", text)
    assert main("check fixed.onnx --batch 4 --budget-peak 1B".split()) == 3


def test_two_budgets_of_one_setting_share_an_analysis(folder: Path) -> None:
    requested: list[Budget] = []

    def analyse(path: str, budget: Budget) -> onnxmem.Analysis | Failure:
        requested.append(budget)
        return Failure(path, "model_file", "no model")

    budgets = (
        Budget(name="one", peak_bytes=1),
        Budget(name="two", weight_bytes=1, growth=Growth(size_bytes=0)),
        Budget(name="three", batch=2, training_bytes=1, growth=Growth(size_bytes=0)),
    )
    (model,) = Gate(budgets, folder, analyse).check(["net.onnx"])
    assert [budget.name for budget in requested] == ["one", "three"]
    assert [(check.budget, check.figure.value) for check in model.checks] == [
        ("one", "peak"),
        ("two", "weights"),
        ("two", "growth of peak"),
        ("three", "training peak"),
        ("three", "growth of peak"),
        ("three", "growth of training"),
    ]
    assert {check.outcome for check in model.checks} == {Verdict.UNKNOWN}


def test_no_checked_model_is_unknown() -> None:
    assert Checkup((), (Budget(name="edge", peak_bytes=1),)).outcome is Verdict.UNKNOWN


# Which models a budget is of.


@pytest.mark.parametrize(
    ("pattern", "path", "is_of"),
    [
        ("**", "a/b/net.onnx", True),
        ("*", "a/b/net.onnx", True),
        ("*.onnx", "a/b/net.onnx", True),
        ("net.onnx", "a/b/net.onnx", True),
        ("./net.onnx", "net.onnx", True),
        ("a/*.onnx", "a/net.onnx", True),
        ("a/*.onnx", "a/b/net.onnx", False),
        ("a/**/*.onnx", "a/net.onnx", True),
        ("a/**/*.onnx", "a/b/c/net.onnx", True),
        ("a/**", "a/b/net.onnx", True),
        ("a/**", "b/a/net.onnx", False),
        ("**/b/*.onnx", "a/b/net.onnx", True),
        ("net?.onnx", "net1.onnx", True),
        ("net?.onnx", "net.onnx", False),
        ("net[0-3].onnx", "net2.onnx", True),
        ("net[!0-3].onnx", "net2.onnx", False),
        ("net[!0-3].onnx", "net7.onnx", True),
        ("net[3-0].onnx", "net-.onnx", True),
        ("net[].onnx", "net[].onnx", True),
        ("net.onnx", "netXonnx", False),
        ("n(e+t.onnx", "n(e+t.onnx", True),
    ],
)
def test_a_pattern_matches_paths_by_their_parts(pattern: str, path: str, is_of: bool) -> None:
    assert matches(pattern, path) is is_of


CONFIG = f"""
baseline = "before.json"
[[budgets]]
name = "edge"
path = "edge/*.onnx"
batch = 2
weights = {WEIGHTS}
peak = "{WEIGHTS + 2 * PER_SAMPLE} B"
growth = "5%"
[[budgets]]
name = "step"
path = "net.onnx"
training = "1KiB"
recipe = {{ optimizer = "sgd", freeze = ["kernel"] }}
"""


def test_budgets_of_a_file_apply_to_their_models(folder: Path, capsys: Capture) -> None:
    configure(folder, CONFIG)
    main("edge/small.onnx --batch 2 --json -o before.json".split())
    assert main(["check", "--format", "json"]) == 1
    assert outcomes(capsys) == {
        ("edge/small.onnx", "edge", "peak"): "fits",
        ("edge/small.onnx", "edge", "weights"): "fits",
        ("edge/small.onnx", "edge", "growth_of_peak"): "fits",
        ("net.onnx", "step", "training_peak"): "does_not_fit",
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[[tool.onnxmem.budgets]]\nname = "own"\npeak = "1KiB"'),
        ("onnxmem.toml", '[[tool.onnxmem.budgets]]\nname = "own"\npeak = "1KiB"'),
        ("onnxmem.toml", '[[budgets]]\nname = "own"\npeak = "1KiB"'),
    ],
)
def test_the_nearest_parent_folder_with_settings_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, name: str, text: str
) -> None:
    configure(folder, text, name)
    configure(folder / "edge", "[project]\n", "pyproject.toml")
    monkeypatch.chdir(folder / "edge")
    assert main(["check", "small.onnx", "../net.onnx", "--format", "json"]) == 1
    assert outcomes(capsys) == {
        (path, "own", "peak"): "does_not_fit" for path in ("small.onnx", "../net.onnx")
    }


def test_onnxmem_toml_comes_before_pyproject(folder: Path, capsys: Capture) -> None:
    configure(folder, '[[tool.onnxmem.budgets]]\npeak = "1KiB"', "pyproject.toml")
    configure(folder, '[[budgets]]\npeak = "1GiB"\npath = "net.onnx"')
    assert main(["check"]) == 0
    assert "  budget 1, batch 1" in capsys.readouterr().out


def test_flags_replace_budgets_and_override_their_settings(folder: Path) -> None:
    configure(folder, f'[[budgets]]\npath = "net.onnx"\nbatch = 2\npeak = {PEAK}')
    assert main("check net.onnx".split()) == 1
    assert main("check net.onnx --batch 1".split()) == 0
    assert main("check net.onnx --budget-peak 1GiB".split()) == 0
    assert main("check net.onnx --budget-peak 1GiB --config onnxmem.toml".split()) == 1


def test_training_flags_override_each_field(folder: Path) -> None:
    analysis = onnxmem.analyze("net.onnx", train=True, optimizer="sgd", precision="bf16")
    assert analysis.training is not None
    limit = analysis.training.peak_bytes
    configure(
        folder,
        'recipe = { precision = "bf16" }\nbasis = "tensors"\n'
        f'[[budgets]]\npath = "net.onnx"\ntraining = {limit}',
    )
    assert main(["check"]) == 1
    assert main(["check", "--optimizer", "sgd"]) == 0


def test_a_model_without_a_budget_passes_only_if_allowed(folder: Path, capsys: Capture) -> None:
    configure(folder, '[[budgets]]\npath = "edge/*"\npeak = "1GiB"')
    assert main(["check", "net.onnx"]) == 3
    assert main(["check", "net.onnx", "--allow-uncovered"]) == 0
    out = capsys.readouterr().out
    assert "UNKNOWN  1 model, 0 checks: 1 unknown" in out
    assert "FITS  1 model, 0 checks: nothing was checked" in out


def test_an_unknown_budget_counts_more_than_a_failed_one_and_both_are_told(
    folder: Path, capsys: Capture
) -> None:
    configure(
        folder,
        '[[budgets]]\npath = "net.onnx"\npeak = "1B"\n'
        '[[budgets]]\npath = "mystery.onnx"\npeak = "1GiB"',
    )
    assert main(["check", "net.onnx", "mystery.onnx"]) == 3
    assert "UNKNOWN  2 models, 2 checks: 1 does not fit, 1 unknown" in capsys.readouterr().out


def test_a_missing_model_is_reported_without_a_budget_too(folder: Path, capsys: Capture) -> None:
    configure(folder, '[[budgets]]\npath = "edge/*"\npeak = "1GiB"')
    assert main(["check", "gone.onnx", "--allow-uncovered"]) == 2
    (reported,) = capsys.readouterr().err.splitlines()
    assert reported == "error: gone.onnx: missing_file: no such file; check the path"


def test_a_model_outside_the_folder_is_matched_by_its_full_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    configure(folder / "edge", '[[budgets]]\npath = "**/net.onnx"\npeak = "1GiB"')
    monkeypatch.chdir(folder / "edge")
    assert main(["check", "../net.onnx"]) == 0
    assert capsys.readouterr().out.startswith("../net.onnx\n")


def test_settings_of_a_file(folder: Path) -> None:
    """Shapes and dims of a budget stand beside those of the whole file; growth may be bytes."""
    main("net.onnx --batch 5 --json -o before.json".split())
    text = """
    dims = { N = 5, unused = 3 }
    train = false
    baseline = "before.json"
    [[budgets]]
    path = "net.onnx"
    dims = { unused = 7 }
    growth = 0
    [[budgets]]
    path = "net.onnx"
    shapes = { image = [5, 3, 16, 16] }
    train = true
    recipe = { weight_decay = true, lora_rank = 2, assume_batchnorm = false }
    peak = %d
    """
    configure(folder, text % (WEIGHTS + 5 * PER_SAMPLE))
    assert main(["check"]) == 0
    configure(folder, text % (WEIGHTS + 5 * PER_SAMPLE - 1))
    assert main(["check"]) == 1


def test_an_unknown_figure_has_an_unknown_verdict(folder: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "acme" : 1]>
    agraph (float[N,5] x) => (y) { y = acme.Mystery(x) }"""
    write_model(folder / "dark.onnx", text)
    analysis = onnxmem.analyze("dark.onnx")
    gate = Gate((Budget(name="b", peak_bytes=100),), folder, lambda *_: analysis)
    ((check,),) = (model.checks for model in gate.check(["dark.onnx"]))
    assert check.outcome is Verdict.UNKNOWN


def test_a_budget_without_a_model_is_unknown(folder: Path, capsys: Capture) -> None:
    configure(folder, '[[budgets]]\nname = "typo"\npath = "egde/*"\npeak = "1GiB"')
    assert main(["check"]) == 3
    assert "budget typo: unknown: no model matches the budget's path egde/*" in (
        capsys.readouterr().out
    )


# Growth.


def test_growth_is_parsed_from_percent_and_bytes() -> None:
    assert read_percent("2.5 %") == read_percent("2.5") == Fraction(5, 2)
    assert read_growth("5%").limit_bytes(999) == 1048
    assert read_growth("0.1%").limit_bytes(10**18) == 10**18 + 10**15
    assert read_growth("1 KiB").limit_bytes(999) == 2023
    assert [str(read_growth(text)) for text in ("5%", "2.5 %", "1KiB")] == [
        "5 %",
        "2.5 %",
        "1.00 KiB",
    ]
    for text in ("five", "5 % more", "-5%", "9" * 10 + "%", "9" * 5000):
        with pytest.raises(UsageError):
            read_growth(text)


def grown(folder: Path) -> None:
    """A kernel of 11 channels in place of 8."""
    text = CONVNET.replace("[8,3,3,3]", "[11,3,3,3]").replace("float[8]", "float[11]")
    write_model(folder / "net.onnx", text.replace("[10,512]", "[10,704]"))


@pytest.mark.parametrize(
    ("growth", "code"), [("100%", 0), ("34%", 1), ("1MiB", 0), ("1KiB", 1), ("0%", 1)]
)
def test_growth_is_compared_with_a_baseline(folder: Path, growth: str, code: int) -> None:
    """From 34,728 to 46,544 bytes: 34.02 %."""
    line = "check net.onnx --baseline before.json --max-growth"
    assert main("net.onnx --json -o before.json".split()) == 0
    assert main([*line.split(), "0%"]) == 0
    grown(folder)
    assert main([*line.split(), growth]) == code


@pytest.mark.parametrize("train", ["", "--train --optimizer sgd"])
def test_partial_figures_are_compared_as_they_are_where_that_is_accepted(
    folder: Path, capsys: Capture, train: str
) -> None:
    """S is 1 in both."""
    text = "agraph (float[N,S,5] x) => (float[N,S,7] y) <float[5,7] w> { y = MatMul(x, w) }"
    line = f"check net.onnx --baseline before.json --max-growth 5% {train}".split()
    write_model(folder / "net.onnx", text)
    assert main(f"net.onnx --json -o before.json {train}".split()) == 0
    assert main(line) == 3
    assert "--accept partial compares both as they are" in " ".join(capsys.readouterr().out.split())
    assert main([*line, "--accept", "partial"]) == 0
    assert "grew by 0 B (+0.0 %)" in capsys.readouterr().out
    write_model(folder / "net.onnx", text.replace("7", "11"))
    assert main([*line, "--accept", "partial"]) == 1


def test_growth_of_a_training_step_is_compared(folder: Path, capsys: Capture) -> None:
    assert main("net.onnx --train --optimizer sgd --json -o before.json".split()) == 0
    line = "check net.onnx --baseline before.json --max-growth 5% --train --format json"
    assert main([*line.split(), "--optimizer", "sgd"]) == 0
    assert main(line.split()) == 3
    grown(folder)
    assert main([*line.split(), "--optimizer", "sgd"]) == 1
    out = capsys.readouterr().out
    assert "another training configuration (optimizer sgd, not adam)" in out


@pytest.mark.parametrize(
    ("saved", "line", "reason"),
    [
        ("edge/small.onnx", "net.onnx", "does not contain this model"),
        ("net.onnx --batch 2", "net.onnx", "other settings (batch 2, not 1)"),
        ("seq.onnx --dim S=2", "seq.onnx --dim S=3", "other settings (S 2, not 3)"),
        ("net.onnx", "net.onnx --train", "has no training step"),
        ("mystery.onnx", "mystery.onnx", "is incomplete (status partial)"),
        ("page.onnx", "page.onnx", "model_file"),
    ],
)
def test_a_baseline_without_the_figure_is_unknown(
    capsys: Capture, saved: str, line: str, reason: str
) -> None:
    main([*saved.split(), "--json", "-o", "before.json"])
    command = f"check {line} --baseline before.json --max-growth 5%"
    assert main(command.split()) == 3
    assert reason in " ".join(capsys.readouterr().out.split())


def test_one_baseline_can_have_several_settings() -> None:
    main("net.onnx --batch 2 --json -o before.json".split())
    first = json.loads(Path("before.json").read_text())
    main("net.onnx --batch 3 --json -o before.json --force".split())
    both = json.loads(Path("before.json").read_text())
    both["models"] += first["models"]
    Path("before.json").write_text(json.dumps(both))
    line = "check net.onnx --baseline before.json --max-growth 0% --batch"
    assert [main([*line.split(), batch]) for batch in ("2", "3", "4")] == [0, 0, 3]


def test_each_budget_of_a_file_can_have_its_own_baseline(folder: Path) -> None:
    """A budget's own baseline wins over the file's, and ``--baseline`` over both."""
    main("net.onnx --json -o grown.json".split())
    main("edge/small.onnx --json -o edge/small.json".split())
    grown(folder)
    text = """
    baseline = "grown.json"
    [[budgets]]
    path = "net.onnx"
    growth = "%s"
    [[budgets]]
    path = "edge/*"
    growth = "0%%"
    baseline = "edge/small.json"
    """
    configure(folder, text % "34%")
    assert main(["check"]) == 1
    configure(folder, text % "35%")
    assert main(["check"]) == 0
    assert main(["check", "--baseline", "grown.json"]) == 3
    (folder / "edge" / "small.json").unlink()
    assert main(["check"]) == 2


def test_the_budget_in_the_help_is_valid(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit):
        main(["check", "--help-all"])
    shown = capsys.readouterr().out.partition("[[tool.onnxmem.budgets]]")[2]
    lines = shown.partition("exit codes")[0].splitlines()
    # The model has no dims that data decide.
    kept = [line for line in lines if not line.strip().startswith(("max =", "observed ="))]
    assert len(kept) == len(lines) - 2
    configure(folder, "\n".join(["[[budgets]]", *kept]))
    (folder / "models" / "edge").mkdir(parents=True)
    write_model(folder / "models" / "edge" / "net.onnx")
    line = "models/edge/net.onnx --batch 8 --train --json -o before.json"
    assert main(line.split()) == 0
    assert main(["check"]) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": "onnxmem.report"}',
        '{"schema": "onnxmem.report", "schema_version": "2.0", "models": []}',
        '{"schema": "onnxmem.report", "schema_version": "1.0", "models": 3}',
        '{"schema": "onnxmem.report", "schema_version": "1.0", "models": [3]}',
        '{"schema": "onnxmem.report", "schema_version": "1.0", "models": [{"path": 3}]}',
        "[" * 100_000,
        '{"schema": ' + "9" * 5000 + "}",
    ],
)
def test_an_invalid_baseline_is_one_clear_line(capsys: Capture, text: str) -> None:
    Path("before.json").write_text(text)
    line = "check net.onnx --baseline before.json --max-growth 5%"
    assert main(line.split()) == 2
    (reported,) = capsys.readouterr().err.splitlines()
    assert reported.startswith("error: saved_report: before.json: ")


# Configurations that make no sense.

FAULTS = (
    "budgets = 3",
    "budgets = [3]",
    "[[budgets]]",
    "[[budgets]]\nname = 3",
    '[[budgets]]\nname = ""',
    '[[budgets]]\npeek = "1GiB"',
    '[[budgets]]\npeak = "24G"',
    '[[budgets]]\npeak = "' + "9" * 5000 + 'B"',
    "[[budgets]]\npeak = -1",
    "[[budgets]]\npeak = 24",
    '[[budgets]]\nweights = "512"',
    "[[budgets]]\ngrowth = 5",
    '[[budgets]]\ngrowth = "5"',
    '[[budgets]]\npeak = 4096\nbaseline = "before.json"',
    "[[budgets]]\npeak = 1.5",
    "[[budgets]]\npeak = true",
    '[[budgets]]\ngrowth = "much"\n',
    '[[budgets]]\npeak = 4096\nbatch = "8"',
    "[[budgets]]\npeak = 4096\nbatch = 0",
    "[[budgets]]\npeak = 4096\ndims = 3",
    "[[budgets]]\npeak = 4096\ndims = { S = 0 }",
    "[[budgets]]\npeak = 4096\nshapes = { x = 3 }",
    "[[budgets]]\ngrowth = -1",
    '[[budgets]]\npeak = 4096\ntrain = "yes"',
    '[[budgets]]\npeak = 4096\nrecipe = { optimiser = "sgd" }',
    '[[budgets]]\npeak = 4096\nrecipe = { optimizer = "sdg" }',
    "[[budgets]]\npeak = 4096\nrecipe = { accumulate = true }",
    '[[budgets]]\npeak = 4096\nrecipe = { freeze = "all" }',
    '[[budgets]]\nname = "a"\npeak = 4096\n[[budgets]]\nname = "a"\npeak = 4096',
    'budget = "1GiB"',
    "tool.onnxmem = 3",
    "[[budgets]\n",
    "",
)


def test_the_message_of_every_error(folder: Path, capsys: Capture) -> None:
    for text in FAULTS:
        configure(folder, text)
        assert main(["check", "net.onnx"]) == 2, text
    reported = capsys.readouterr().err
    assert len(reported.splitlines()) == len(FAULTS)
    assert_golden(reported, "check_faults.txt")


def test_a_settings_file_that_is_not_text_is_an_error(folder: Path) -> None:
    (folder / "onnxmem.toml").write_bytes(b"\xff\xfe")
    assert main(["check"]) == 2
    (folder / "empty.toml").mkdir()
    assert main(["check", "--config", "empty.toml"]) == 2
    configure(folder, "[project]\n", "pyproject.toml")
    assert main(["check", "--config", "pyproject.toml"]) == 2


def test_an_inference_has_no_pytorch_process_to_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "net.onnx")
    words = ["check", str(tmp_path / "net.onnx"), "--basis", "process", "--budget-peak", "1GiB"]
    assert main(words) == 2
    assert "basis process is of a training step alone" in capsys.readouterr().err
    assert main([*words, "--budget-training", "2GiB"]) == 0


def test_growth_is_of_the_most_that_a_run_takes_where_data_decide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, baseline = tmp_path / "chosen.onnx", str(tmp_path / "baseline.json")
    chosen = "agraph (float[1, {n}] x) => (int64[a, b] y) {{ i = NonZero(x) y = Neg(i) }}"
    write_model(path, chosen.format(n=7))
    assert main([str(path), "--json", "-o", baseline]) == 0
    check = ["check", str(path), "--baseline", baseline, "--max-growth", "5%"]
    assert main(check) == 0
    assert "an upper bound" in " ".join(capsys.readouterr().out.split())
    # At least, both take the input alone.
    write_model(path, chosen.format(n=11))
    assert main(check) == 1
    assert "grew" in capsys.readouterr().out

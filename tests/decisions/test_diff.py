"""What changed: figures, layers, and blocks that sum to the change of each peak.

CONVNET takes 21,416 B of weights; for each sample 3,072 of input and 10,240 at its peak.
"""

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest
from golden_text import assert_golden
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from models_on_disk import CONVNET, MYSTERY, write_hostile_model, write_model

import onnxmem
from onnxmem.cli import main
from onnxmem.decisions.diff import LayerSize, PeakContents, Snapshot, diff, snapshot
from onnxmem.program.program import Allocation, Category
from onnxmem.report.text import percent

Capture = pytest.CaptureFixture[str]
SCHEMA = Draft202012Validator(
    json.loads((files("onnxmem.report") / "schema" / "diff-1.0.schema.json").read_text())
)
WIDER = (
    CONVNET.replace("[8,3,3,3]", "[11,3,3,3]")
    .replace("float[8]", "float[11]")
    .replace("[10,512]", "[10,704]")
    .replace("[relu] r = Relu(h)", "[relu] r = Relu(h) [extra] q = Exp(r)")
    .replace("(r)\n    [flat]", "(q)\n    [flat]")
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, one with a wider convolution and an additional layer, and a partly unknown one."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "a.onnx")
    write_model(tmp_path / "b.onnx", WIDER)
    write_model(tmp_path / "mystery.onnx", MYSTERY)
    (tmp_path / "page.onnx").write_text("<!DOCTYPE html>")
    return tmp_path


def test_both_sides_have_a_verdict_on_the_budget(capsys: Capture) -> None:
    words = "diff a.onnx b.onnx --batch 2 --budget"
    assert main([*words.split(), "50000"]) == 1
    reported = capsys.readouterr()
    assert "b.onnx: over-budget: does not fit the budget of 48.8 KiB" in reported.err
    output = re.findall(r"^  ([AB]) .*B   (\w[\w ]*):", reported.out, re.MULTILINE)
    assert output == [("A", "fits"), ("B", "does not fit")]
    assert main([*words.split(), "1GiB"]) == 0
    assert main("diff a.onnx mystery.onnx --budget 1GiB".split()) == 3
    assert "whether it fits 1.00 GiB is unknown" in capsys.readouterr().err
    assert main("diff a.onnx b.onnx --basis tensors".split()) == 2
    assert "--basis: no effect without a budget; add --budget SIZE" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_the_error_of_a_verdict_is_that_of_its_settings(capsys: Capture) -> None:
    """A side whose workspace of cuBLAS is set has the error of such settings, saved or not."""
    step = ["--train", "--batch", "2", "--budget", "1GiB"]
    given = [*step, "--cublas-workspace", "8MiB"]
    for name, options in (("plain", step), ("set", given)):
        assert main(["a.onnx", *options, "--json", "-o", f"{name}.json"]) == 0
    capsys.readouterr()
    main(["diff", "plain.json", "set.json", "--budget", "1GiB"])
    reported = capsys.readouterr().out
    assert "  accuracy of A             +-11 %" in reported
    assert "  accuracy of B             +-9 %" in reported
    main(["diff", "a.onnx", "set.json", *given])
    assert "  accuracy                  +-9 %" in capsys.readouterr().out
    row = json.loads(Path("set.json").read_text("utf-8"))
    del row["models"][0]["verdict"]["accuracy"]
    Path("old.json").write_text(json.dumps(row), "utf-8")
    main(["diff", "old.json", "old.json", "--budget", "1GiB"])
    assert "  accuracy                  +-11 %" in capsys.readouterr().out


def test_a_saved_verdict_applies_to_its_own_budget_only(folder: Path, capsys: Capture) -> None:
    assert main("a.onnx --batch 2 --budget 1GiB --json -o saved.json".split()) == 0
    assert main("diff a.onnx saved.json --batch 2 --budget 1GiB".split()) == 0
    assert main("diff a.onnx saved.json --batch 2 --budget 2GiB".split()) == 3
    assert "B                         unknown: the saved report is of another budget" in (
        capsys.readouterr().out
    )
    saved = json.loads((folder / "saved.json").read_text())
    saved["models"][0]["verdict"]["verdict"] = "perhaps"
    (folder / "saved.json").write_text(json.dumps(saved))
    assert main("diff a.onnx saved.json --budget 1GiB".split()) == 2
    assert "models[0].verdict.verdict: is not a verdict" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "text"), [(None, ""), (-5.25, "-5.2 %"), (999.9, "+999.9 %"), (46_396.3, "465 x")]
)
def test_a_change_of_ten_times_is_a_factor(change: float | None, text: str) -> None:
    assert percent(change) == text


def test_sides_compared_by_different_figures_are_marked(capsys: Capture) -> None:
    words = "--batch 2 --train --budget 2GiB"
    assert main(f"a.onnx {words} --basis tensors --json -o saved.json".split()) == 0
    assert main(f"diff saved.json a.onnx {words}".split()) == 0
    reported = capsys.readouterr().out
    assert re.search(r"^  A .*, by training-peak$", reported, re.MULTILINE)
    assert re.search(r"^  B .*, by pytorch-cuda$", reported, re.MULTILINE)
    assert "  accuracy (training-peak)  +-1 %" in reported
    assert "  accuracy (pytorch-cuda)   +-11 %" in reported


def test_sides_are_compared_in_a_runtime(folder: Path, capsys: Capture) -> None:
    flags = ["--batch", "2", "--b-batch", "4", "--runtime", "ort-cpu", "--emulate-optimizer"]
    assert main(["diff", str(folder / "a.onnx"), *flags, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = [
        onnxmem.analyze(
            folder / "a.onnx", batch=batch, runtimes=("ort-cpu",), asks_onnxruntime=False
        )
        for batch in (2, 4)
    ]
    peaks = [each.runtimes[0].arena.peak.size_bytes for each in found]
    figure = document["figures"]["ort-cpu_peak"]
    assert [figure["before_bytes"], figure["after_bytes"]] == peaks
    assert peaks[0] < peaks[1]
    processes = document["figures"]["ort-cpu_process"]
    assert [processes["before_bytes"], processes["after_bytes"]] == [
        each.runtimes[0].process_bytes for each in found
    ]
    parts = document["processes"]["ort-cpu"]
    then, now = (dict(each.runtimes[0].process_parts) for each in found)
    assert {each["part"] for each in parts} == {name for name in now if now[name] != then[name]}
    assert sum(each["change_bytes"] for each in parts) == processes["change_bytes"]
    assert all(each["after_bytes"] == now[each["part"]] for each in parts)
    assert main(["diff", str(folder / "a.onnx"), *flags]) == 0
    text = capsys.readouterr().out
    assert "Why the process changed, ort-cpu  +" in text
    assert re.search(r"^ +\+.* KiB  .* -> .*  inputs$", text, re.MULTILINE)


def test_notes_are_attributed_to_their_side(folder: Path, capsys: Capture) -> None:
    words = "diff a.onnx mystery.onnx --budget 1GiB".split()
    main([*words, "--html", "page.html"])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("note on A and B: unbound_dims: ") for line in lines) == 1
    assert sum(line.startswith("note on B: unknown_operator: ") for line in lines) == 1
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "<b>B</b> <code>unknown_operator</code>" in page
    assert '<section id="budget"' in page


def side(**changes: object) -> Snapshot:
    """An empty snapshot with the given fields."""
    values: dict[str, object] = {
        "path": "net.onnx",
        "is_saved": False,
        "status": "ok",
        "batch": 1,
        "dims": {},
        "weight_bytes": 7,
        "inputs_bytes": 3,
        "total_bytes": 10,
        "activations": None,
        "training": None,
        "layers": (),
    }
    return Snapshot(**{**values, **changes})  # type: ignore[arg-type]


def peak(blocks: dict[tuple[str, Category], int]) -> PeakContents:
    live = tuple(Allocation(*key, size_bytes=size) for key, size in blocks.items())
    return PeakContents(sum(blocks.values()), None, live)


# Peaks.

BLOCKS = st.dictionaries(
    st.tuples(st.sampled_from("abcdefgh"), st.sampled_from((Category.ACTIVATION, Category.WEIGHT))),
    st.integers(1, 10**15),
)


@given(BLOCKS, BLOCKS)
def test_changes_of_the_blocks_add_up_to_the_change_of_the_peak(
    before: dict[tuple[str, Category], int], after: dict[tuple[str, Category], int]
) -> None:
    difference = diff(side(training=peak(before)), side(training=peak(after)))
    change = difference.training
    assert change is not None
    assert sum(block.change_bytes or 0 for block in change.blocks) == change.change_bytes
    assert change.change_bytes == sum(after.values()) - sum(before.values())
    both = {key for key in before if before[key] == after.get(key)}
    assert change.unchanged_tensors == len(both)


@pytest.mark.parametrize("line", ["--batch 3", "--train --batch 3 --optimizer momentum"])
def test_changes_of_real_models_add_up_whether_saved_or_not(capsys: Capture, line: str) -> None:
    """A saved training peak lists the largest blocks only; the rest is summed by kind."""
    main([*f"a.onnx {line} --json --layers -o".split(), "saved.json"])
    for a in ("a.onnx", "saved.json"):
        assert main(["diff", a, "b.onnx", "--json", *line.split()]) == 0
        document = json.loads(capsys.readouterr().out)
        SCHEMA.validate(document)
        for name in ("activations", "training"):
            figure = document["figures"].get(f"{name}_peak")
            if document[name] is not None:
                changes = [tensor["change_bytes"] for tensor in document[name]["tensors"]]
                assert sum(changes) == document[name]["change_bytes"] == figure["change_bytes"]


def test_small_blocks_are_summed_by_kind_if_one_side_is_saved() -> None:
    few = {(f"t{n}", Category.ACTIVATION): 1000 + n for n in range(60)} | {
        ("w", Category.WEIGHT): 5
    }
    whole, other = (
        peak(few),
        peak({**few, ("t0", Category.ACTIVATION): 7, ("u", Category.WEIGHT): 11}),
    )
    saved = whole.abridged(())
    assert sum(block.size_bytes for block in saved.blocks) == whole.size_bytes
    assert len(saved.blocks) == 52
    change = diff(side(training=saved), side(training=other)).training
    assert change is not None
    assert (
        sum(block.change_bytes or 0 for block in change.blocks)
        == change.change_bytes
        == 7 - 1000 + 11
    )
    assert {(block.name, block.category) for block in change.blocks} <= {
        ("smaller blocks", Category.ACTIVATION),
        ("smaller blocks", Category.WEIGHT),
        ("u", Category.WEIGHT),
    }


def test_a_saved_peak_adds_up_whatever_its_file_contains(folder: Path) -> None:
    main("a.onnx --json --layers -o saved.json".split())
    document = json.loads((folder / "saved.json").read_text())
    document["models"][0]["activations"]["in_place_peak_bytes"] += 17
    (folder / "saved.json").write_text(json.dumps(document))
    assert main("diff saved.json a.onnx --json -o diff.json".split()) == 0
    change = json.loads((folder / "diff.json").read_text())["activations"]
    assert [(t["tensor"], t["change_bytes"]) for t in change["tensors"]] == [
        ("smaller blocks", -17)
    ]


# Layers.


def layers(*rows: tuple[str, str, int]) -> tuple[LayerSize, ...]:
    return tuple(LayerSize(node, op_type, size, 0) for node, op_type, size in rows)


def test_layers_are_paired_by_name_then_by_order_within_an_operator() -> None:
    before = layers(("c1", "Conv", 2), ("x", "Conv", 3), ("y", "Conv", 5), ("r", "Relu", 7))
    after = layers(("z", "Conv", 3), ("c1", "Conv", 11), ("r", "Exp", 7), ("w", "Conv", 4))
    difference = diff(side(layers=before), side(layers=after))
    assert difference.layers is not None
    reported = {
        (c.what, c.before and c.before.node, c.after and c.after.node, c.change_bytes)
        for c in difference.layers
    }
    assert reported == {
        ("grown", "c1", "c1", 9),
        ("shrunk", "y", "w", -1),
        ("removed", "r", None, -7),
        ("added", None, "r", 7),
    }
    assert difference.unchanged_layers == 1


def test_a_layer_of_unknown_size_changes_by_an_unknown_number() -> None:
    before, after = (LayerSize("n", "Exp", None, 0),), (LayerSize("n", "Exp", 5, 0),)
    (change,) = diff(side(layers=before), side(layers=after)).layers or ()
    assert (change.what, change.change_bytes) == ("changed", None)
    assert diff(side(layers=before), side(layers=before)).layers == ()
    (moved,) = (
        diff(
            side(layers=(LayerSize("n", "Exp", 5, 2),)), side(layers=(LayerSize("n", "Exp", 2, 5),))
        ).layers
        or ()
    )
    assert (moved.what, moved.change_bytes) == ("changed", 0)


# As a command.


def test_two_models_are_compared(capsys: Capture) -> None:
    assert main("diff a.onnx b.onnx --batch 2".split()) == 0
    assert_golden(capsys.readouterr().out, "diff_models.txt")


def test_two_settings_of_one_model_are_compared(capsys: Capture) -> None:
    line = "diff a.onnx --batch 2 --train --b-batch 3 --b-optimizer sgd"
    assert main(line.split()) == 0
    assert_golden(capsys.readouterr().out, "diff_settings.txt")


def test_a_saved_report_is_compared_with_the_current_model(folder: Path, capsys: Capture) -> None:
    main("a.onnx --batch 2 --train --optimizer sgd --json --layers -o saved.json".split())
    write_model(folder / "a.onnx", WIDER)
    assert main("diff saved.json a.onnx".split()) == 0
    assert_golden(capsys.readouterr().out, "diff_saved.txt")


def test_unknown_figures_of_a_side_are_marked(capsys: Capture) -> None:
    main("a.onnx --train --json -o saved.json".split())
    assert main("diff saved.json saved.json --fail-on-growth 0".split()) == 0
    document = json.loads(Path("saved.json").read_text())
    document["models"][0] |= {"training": None, "total_bytes": None, "activations": None}
    Path("less.json").write_text(json.dumps(document))
    capsys.readouterr()
    assert main("diff saved.json less.json --fail-on-growth 0".split()) == 3
    out, err = capsys.readouterr()
    assert "inference              33.91 KiB     unknown     unknown" in out
    assert "WHY" not in out
    assert "unknown: growth is unknown: run, training peak" in err


def test_the_same_request_twice_has_no_difference(capsys: Capture) -> None:
    """The setting is the saved one unless flags say otherwise; a batch wins over its symbol."""
    main("a.onnx --batch 5 --train --precision bf16 --json --layers -o saved.json".split())
    assert main("diff saved.json a.onnx --json".split()) == 0
    same = json.loads(capsys.readouterr().out)
    assert {figure["change_bytes"] for figure in same["figures"].values()} == {0}
    assert same["layers"] == same["activations"]["tensors"] == same["training"]["tensors"] == []
    assert main("diff saved.json a.onnx --json --batch 7".split()) == 0
    other = json.loads(capsys.readouterr().out)
    assert (other["after"]["batch"], other["figures"]["inputs"]["change_bytes"]) == (7, 2 * 3_072)
    assert main("diff a.onnx saved.json --json --precision fp32".split()) == 0
    wider = json.loads(capsys.readouterr().out)
    assert wider["figures"]["training_peak"]["change_bytes"] < 0
    main("a.onnx --shape image:5,3,16,16 --json -o shaped.json".split())
    assert main("diff shaped.json a.onnx --fail-on-growth 0%".split()) == 0


def test_layers_of_a_report_without_layers_are_unknown(capsys: Capture) -> None:
    main("a.onnx --json -o saved.json".split())
    assert main("diff saved.json b.onnx".split()) == 0
    assert "Layers  unknown: the saved report has none" in capsys.readouterr().out


def test_one_of_several_saved_models_is_found_by_its_path() -> None:
    main("a.onnx b.onnx --json -o saved.json".split())
    assert main("diff saved.json b.onnx --fail-on-growth 0".split()) == 0
    assert main("diff ./b.onnx saved.json --fail-on-growth 0".split()) == 0
    assert main("diff saved.json mystery.onnx".split()) == 2
    assert main("diff saved.json saved.json".split()) == 2


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("a.onnx b.onnx --fail-on-growth 100", 0),
        ("a.onnx b.onnx --fail-on-growth 100%", 0),
        ("a.onnx b.onnx --fail-on-growth 5", 1),
        ("b.onnx a.onnx --fail-on-growth 0", 0),
        ("a.onnx --b-dim N=2 --fail-on-growth 0", 1),
        ("a.onnx --b-shape image:2,3,16,16 --fail-on-growth 0", 1),
        ("a.onnx --train --b-precision bf16 --fail-on-growth 0", 0),
        ("a.onnx --b-checkpoint sqrt --fail-on-growth 0", 3),
        ("a.onnx mystery.onnx --fail-on-growth 1000", 3),
        ("a.onnx mystery.onnx", 0),
        ("a.onnx page.onnx", 3),
        ("page.onnx gone.onnx", 2),
        ("a.onnx", 2),
        ("a.onnx b.onnx a.onnx", 2),
        ("a.onnx b.onnx --fail-on-growth much", 2),
        ("a.onnx b.onnx -o a.onnx", 2),
        ("a.onnx b.onnx --b-optimizer sdg", 2),
        ("a.onnx --b-checkpoint all", 2),
        ("a.onnx gone.json", 2),
        ("a.onnx page.json", 2),
    ],
)
def test_each_outcome_of_diff_has_its_exit_code(folder: Path, line: str, code: int) -> None:
    (folder / "page.json").write_text("<!DOCTYPE html>")
    assert main(["diff", *line.split()]) == code


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("settings", 3),
        ("total_bytes", "much"),
        ("total_bytes", -1),
        ("path", 3),
        ("layers", [3]),
        ("training", {"peak_bytes": 5, "recipe": {"optimizer": ["sgd"]}}),
        ("training", {"peak_bytes": 5, "recipe": {"optimizer": "sdg"}}),
        ("training", {"peak_bytes": 5, "recipe": {"freeze": [3]}}),
        ("training", {"peak_bytes": 5, "recipe": {"freeze": "all"}}),
        ("training", {"peak_bytes": 5, "recipe": {"lora_rank": 2.5}}),
        ("training", {"peak_bytes": 5, "recipe": {"assume_batchnorm": 1}}),
        ("training", {"peak_bytes": 5, "live_at_peak": [{"bytes": True}]}),
        ("settings", {"shapes": {"x": 3}}),
        ("settings", {"dims": {"N": "two"}}),
    ],
)
def test_an_invalid_saved_report_is_one_clear_line(
    folder: Path, capsys: Capture, key: str, value: object
) -> None:
    main("a.onnx --json -o saved.json --quiet".split())
    document = json.loads((folder / "saved.json").read_text())
    document["models"][0][key] = value
    (folder / "saved.json").write_text(json.dumps(document))
    assert main("diff saved.json a.onnx".split()) == 2
    (reported,) = capsys.readouterr().err.splitlines()
    assert "internal" not in reported


def test_a_saved_failure_cannot_be_compared() -> None:
    main("page.onnx --json -o saved.json".split())
    assert main("diff saved.json a.onnx".split()) == 2


def test_a_report_is_recognized_by_its_first_bytes(folder: Path) -> None:
    main("a.onnx --json -o saved.json".split())
    (folder / "saved.json").rename(folder / "saved")
    assert main("diff saved a.onnx --fail-on-growth 0".split()) == 0


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_names_cannot_move_the_cursor_or_forge_a_line(
    folder: Path, capsys: Capture, flags: list[str]
) -> None:
    write_hostile_model(folder / "bad\x1b[2J.onnx")
    assert main(["diff", "a.onnx", "bad\x1b[2J.onnx", "--train", *flags]) == 0
    text = capsys.readouterr().out
    assert text.replace("\n", "").isprintable()
    assert text.count("\nRUN ") <= 1


def test_many_changes_are_counted_in_the_text_and_complete_in_json(
    folder: Path, capsys: Capture
) -> None:
    nodes = "\n".join(f"t{n} = Exp(x)" for n in range(30))
    joined = ", ".join(f"t{n}" for n in range(30))
    write_model(
        folder / "wide.onnx",
        f"agraph (float[N,7] x) => (float[N,210] y) {{ {nodes} y = Concat <axis = 1> ({joined}) }}",
    )
    assert main("diff wide.onnx --b-batch 2".split()) == 0
    out = capsys.readouterr().out
    assert "19 others" in out
    assert main("diff wide.onnx --b-batch 2 --json".split()) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["layers"]) == len(document["activations"]["tensors"]) == 31


def test_reports_are_compared_from_python() -> None:
    before = snapshot(onnxmem.analyze("a.onnx"))
    after = snapshot(onnxmem.analyze("a.onnx", batch=2))
    difference = diff(before, after)
    assert [change.change_bytes for change in difference.figures] == [0, 3_072, 10_240, 13_312]


def chosen(folder: Path, name: str, count: int) -> None:
    """A model that returns the indices of what it chooses of so many elements."""
    text = "agraph (float[1, {}] x) => (int64[a, b] y) {{ i = NonZero(x) y = Neg(i) }}"
    write_model(folder / name, text.format(count))


def test_both_ends_are_compared_where_data_decide(folder: Path, capsys: Capture) -> None:
    chosen(folder, "few.onnx", 7)
    chosen(folder, "many.onnx", 70)
    assert main("diff few.onnx many.onnx".split()) == 0
    text = capsys.readouterr().out
    # Two buffers of two indices for each element, and the float that is read.
    assert re.search(r"inference, at least +0.03 KiB +0.27 KiB +\+252 B +\+900.0 %", text)
    assert re.search(r"inference, at most +0.25 KiB +2.46 KiB +\+2.21 KiB +\+900.0 %", text)
    assert "Why the peak changed, activations at most  +1.97 KiB" in text
    assert "112 B -> 1.09 KiB  y" in text
    assert main("diff few.onnx many.onnx --json".split()) == 0
    document = json.loads(capsys.readouterr().out)
    SCHEMA.validate(document)
    run = document["figures"]["run"]
    assert (run["before_upper_bytes"], run["after_upper_bytes"]) == (252, 2_520)
    assert run["change_lower_bytes"] == 252
    assert document["activations_at_most"]["change_bytes"] == 2_016
    assert "before_upper_bytes" not in document["figures"]["inputs"]


def test_growth_is_of_the_upper_end(folder: Path, capsys: Capture) -> None:
    chosen(folder, "few.onnx", 70)
    write_model(
        folder / "wide.onnx",
        "agraph (float[1, 70] x) => (y) { i = NonZero(x) j = Neg(i) y = Concat<axis = 0>(j, i) }",
    )
    words = "diff few.onnx wide.onnx --fail-on-growth 5".split()
    assert main(words) == 1
    assert "grew by more than 5 %: run at most +" in capsys.readouterr().err
    limits = ["--max", "NonZero:1=9", "--b-max", "i:1=1"]
    assert main([*words, "--max", "i:1=9", "--b-max", "i:1=1"]) == 0
    assert main([*words, *limits[:2]]) == 2
    assert "NonZero" in capsys.readouterr().err
    main("few.onnx --json -o few.json".split())
    capsys.readouterr()
    assert main("diff few.json wide.onnx --fail-on-growth 5".split()) == 1


def test_growth_without_an_upper_end_is_unknown_unless_the_lower_end_proves_it(
    folder: Path, capsys: Capture
) -> None:
    chosen(folder, "few.onnx", 7)
    write_model(
        folder / "fed.onnx", "agraph (float[1, 7] x, int64[2] k) => (y) { y = Expand(x, k) }"
    )
    assert main("diff few.onnx fed.onnx --fail-on-growth 5".split()) == 3
    assert "growth is unknown: run" in capsys.readouterr().err
    write_model(
        folder / "fed.onnx", "agraph (float[1, 99] x, int64[2] k) => (y) { y = Expand(x, k) }"
    )
    assert main("diff few.onnx fed.onnx --fail-on-growth 5".split()) == 1
    assert "run at least +160 B" in capsys.readouterr().err

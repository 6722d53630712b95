"""``onnxmem diff MODEL --onnxruntime FROM TO``: what it prints and what it refuses."""

import json
from pathlib import Path

import pytest
from models_on_disk import write_model

from onnxmem.cli import main

Capture = pytest.CaptureFixture[str]
RELEASES = ["--onnxruntime", "1.29", "1.32", "--emulate-optimizer"]


@pytest.fixture(autouse=True)
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(Path("net.onnx"))


def figures(capture: Capture) -> dict[str, dict[str, int | None]]:
    found: dict[str, dict[str, int | None]] = json.loads(capture.readouterr().out)["figures"]
    return found


def test_an_upgrade_moves_the_process_and_not_the_arena(capsys: Capture) -> None:
    assert main(["diff", "net.onnx", *RELEASES, "--json"]) == 0
    found = figures(capsys)
    for name in ("requested_peak_bytes", "held_bytes", "held_steady_bytes"):
        assert found[name]["before_bytes"] == found[name]["after_bytes"]
        assert found[name]["change_bytes"] == 0
    # 46,200 - 44,344 KiB before the session, and 9,212 - 8,432 KiB of pages of the library.
    assert found["process_floor_bytes"]["change_bytes"] == 1_900_544
    assert found["process_bytes"]["change_bytes"] == 1_900_544 + 798_720


def test_a_downgrade_is_the_other_way_around(capsys: Capture) -> None:
    assert main("diff net.onnx --onnxruntime 1.32 1.29 --emulate-optimizer --json".split()) == 0
    assert figures(capsys)["process_floor_bytes"]["change_bytes"] == -1_900_544


def test_the_process_of_the_release_that_is_assumed_is_the_prediction(capsys: Capture) -> None:
    assert main(["net.onnx", "--runtime", "ort-cpu", "--emulate-optimizer", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["models"][0]
    assert main("diff net.onnx --onnxruntime 1.32.0 1.30 --emulate-optimizer --json".split()) == 0
    assert figures(capsys)["process_bytes"]["before_bytes"] == row["runtime"]["process_bytes"]


def test_what_a_release_treats_otherwise_makes_its_figures_unknown(capsys: Capture) -> None:
    text = "agraph (float16[5,7] x) => (float16[5,7] y) { y = Relu(x) }"
    write_model(Path("half.onnx"), text)
    assert main(["diff", "half.onnx", *RELEASES]) == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if line.startswith("arena reserved  "))
    assert row.split()[2] == row.split()[-1] == "unknown"
    (said,) = (n for n, line in enumerate(lines) if line.startswith("A  onnxruntime 1.29.0"))
    words = " ".join(" ".join(lines[said : said + 2]).split())
    assert words.endswith("what it treats otherwise than the rules: half precision")


def test_lower_bounds_are_not_shown_as_exact(capsys: Capture) -> None:
    text = "agraph (float[5,7] x) => (y) { n = NonZero(x) y = Cast<to = 1>(n) }"
    write_model(Path("open.onnx"), text)
    assert main(["diff", "open.onnx", *RELEASES]) == 0
    shown = capsys.readouterr().out
    rows = {line[:32].strip(): line[32:].split() for line in shown.splitlines()}
    assert rows["arena reserved"][:2] == rows["process"][:2] == ["at", "least"]
    assert rows["process floor"][0] != "at"
    assert shown.count("verified: nothing that is known in this model") == 2
    assert "note: unknown_runtime_tensors: tensors of unknown size, left out: 'n', 'y'" in shown


def test_an_undecided_branch_is_a_note(capsys: Capture) -> None:
    branches = "then_branch = a () => (y) { y = Neg(x) }, else_branch = b () => (y) { y = Abs(x) }"
    text = f"agraph (bool c, float[5,7] x) => (float[5,7] y) {{ y = If<{branches}>(c) }}"
    write_model(Path("branches.onnx"), text)
    assert main(["diff", "branches.onnx", *RELEASES, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert "unknown_branches" in [each["code"] for each in row["findings"]]
    assert main(["diff", "branches.onnx", *RELEASES]) == 0
    assert "note: unknown_branches: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("net.onnx net.onnx --onnxruntime 1.29 1.32", "2 models; name one"),
        ("net.onnx --b-batch 4 --onnxruntime 1.29 1.32", "--b-batch: no effect with --onnxruntime"),
        ("net.onnx --train --onnxruntime 1.29 1.32", "--train: no effect with --onnxruntime"),
        ("net.onnx --budget 1GiB --onnxruntime 1.29 1.32", "--budget: no effect"),
        ("net.onnx --runtime ort-cpu --onnxruntime 1.29 1.32", "--runtime: no effect"),
        ("net.onnx --onnxruntime 1.29 1.99", "onnxruntime '1.99' was not verified"),
        ("net.onnx --onnxruntime 1.29 1.29.0", "onnxruntime before and after are both 1.29"),
        ("net.onnx --onnxruntime 1.29", "2 arguments"),
        ("missing.onnx --onnxruntime 1.29 1.32", "no such file"),
    ],
)
def test_what_has_no_meaning_between_releases_is_refused(
    words: str, reason: str, capsys: Capture
) -> None:
    assert main(["diff", *words.split()]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1

"""What the answer says of a peak that the data of a run decide."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import model_of

from onnxmem.cli import main

CHOSEN = """agraph (float[3,5] x, int64[1] axis) => (float[a,b,c] y) {
    u = Unsqueeze(x, axis)  y = Exp(u)
}"""
ROWS = """agraph (float[3,5] x, bool[3] c) => (float[rows,5] y) {
    z = Compress<axis = 0>(x, c)  y = Neg(z)
}"""


def answer(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    path = str(tmp_path / "model.onnx")
    onnx.save(model_of(text), path)
    assert main([path, *flags]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_a_peak_without_a_known_size_is_at_least_and_at_most(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output has the 15 elements of x, wherever the axis goes; u is a view of x."""
    words = answer(CHOSEN, tmp_path, capsys)
    assert "Takes at least 68 B, at most 128 B" in words
    assert "peak activation memory unknown at most 60 B" in words


@pytest.mark.usefixtures("without_children")
def test_what_is_live_is_of_the_run_whose_figure_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    npz = str(tmp_path / "two.npz")
    np.savez(npz, x=np.ones((3, 5), np.float32), c=np.array([True, True, False]))
    words = answer(ROWS, tmp_path, capsys, "--observe", npz)
    assert "Live at the peak (an observed run) 2 tensors" in words
    assert "40 B z" in words


def test_simulate_says_where_runs_are_observed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "model.onnx")
    onnx.save(model_of(ROWS), path)
    assert main(["simulate", path, "--requests", "x=1", "--observe", "random"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--observe: runs are observed by onnxmem MODEL --dim NAME=N --observe FILE" in line


def test_percentiles_and_the_heaviest_say_of_which_end_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = "agraph (float[2] x) => (float[2] y) { y = Neg(x) }"
    for name, text in (("one", plain), ("other", ROWS)):
        onnx.save(model_of(text), tmp_path / f"{name}.onnx")
    said = "where data decide sizes: of known sizes, larger branches and one iteration of a Loop"
    for names, count in ((["one"], 0), (["one", "other"], 2)):
        paths = [str(tmp_path / f"{name}.onnx") for name in names]
        assert main([*paths, "--summary"]) == 0
        assert " ".join(capsys.readouterr().out.split()).count(said) == count


BRANCHES = """agraph (float[101] x, bool c, int64[1] stop) => (float z) {
    z = If (c) <
        then_branch = g1 () => (float t) {
            start = Constant<value_ints = [0]>()
            part = Slice(x, start, stop)
            t = ReduceMax<keepdims = 0>(part)
        },
        else_branch = g2 () => (float e) {
            other = Neg(x)
            e = ReduceMax<keepdims = 0>(other)
        }>
}"""


def test_a_branch_that_is_not_replayed_names_what_has_no_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other branch counts, for its 404 B are known."""
    words = answer(BRANCHES, tmp_path, capsys, "--runtime", "ort-cpu", "--emulate-optimizer", "-v")
    assert "tensors of unknown size, left out: 'If_0/then_branch/part'" in words
    assert "peak activation memory; larger branches, known sizes" in words
    assert "Activations, larger branches, known sizes" in words
    assert "share of the peak; larger branches, known sizes" in words


def test_known_sizes_need_no_remark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = "agraph (float[2] x) => (float[2] y) { y = Neg(x) }"
    assert "known sizes" not in answer(plain, tmp_path, capsys, "-v")


def test_what_is_partial_under_a_budget_is_at_least(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "model.onnx")
    onnx.save(
        model_of("agraph (string[4] s, float[3] y) => (z) { a = Identity(s) z = Neg(y) }"), path
    )
    assert main([path, "--budget", "1MB"]) == 3
    assert "Inference, at least 24 B" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("without_children")
def test_observed_dims_have_the_names_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    npz = str(tmp_path / "two.npz")
    np.savez(npz, x=np.ones((3, 5), np.float32), c=np.array([True, True, False]))
    words = answer(ROWS, tmp_path, capsys, "--observe", npz, "-v")
    _, _, observed = words.partition("Observed in 1 run")
    assert " rows 2 " in observed
    assert "z:0" not in observed


WHERE = "agraph (float[N, 7] x) => (int64[a, b] y) { i = NonZero(x) y = Neg(i) }"


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["explain", *words]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_explain_has_both_ends_where_one_is_proven_and_says_at_least_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "where.onnx")
    onnx.save(model_of(WHERE), path)
    at_one = (path, "--batch", "1", "--emulate-optimizer")
    text = explained(capsys, "requested peak", *at_one)
    assert "at least 0 B 0 B the data of a run decide at most 224 B 224 B" in text
    assert "at most 112 B 112 B" in explained(capsys, "outputs", *at_one)
    no_proof = "at most unknown no proof gives an allocator's figure an upper end; --observed FILE"
    assert no_proof in explained(capsys, "arena reserved", *at_one)
    process = explained(capsys, "process", *at_one)
    assert "at least, what the data of a run decide is left out;" in process
    assert no_proof in process
    assert main(["explain", "process", *at_one, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["explained"]
    assert row["ends"] == [row["value"], None]
    onnx.save(model_of("agraph (float[N, 7] x) => (y) { y = Neg(x) }"), path)
    assert "at least" not in explained(capsys, "process", *at_one)


def test_explain_names_the_limit_of_a_dim_without_a_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "fed.onnx")
    onnx.save(model_of("agraph (float[1,7] x, int64[2] k) => (y) { y = Expand(x, k) }"), path)
    text = explained(capsys, "inference", path)
    shows = "--observed FILE has what it was in runs"
    assert f"at most unknown --max y:0=100 bounds it; {shows}" in text
    assert "at most 744 B" in explained(capsys, "inference", path, "--max", "y:0=25")


def test_explain_and_advise_take_observed_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    path, seen = (str(tmp_path / name) for name in ("where.onnx", "seen.json"))
    onnx.save(model_of(WHERE), path)
    npz = str(tmp_path / "two.npz")
    np.savez(npz, x=np.array([[0, 1, 0, 0, 2, 0, 0]], np.float32))
    assert main([path, "--observe", npz, "--save-observed", seen]) == 0
    capsys.readouterr()
    # Two elements are found: two indices each, in two buffers, beside the 28 bytes of x.
    with_runs = (path, "--observed", seen)
    assert "observed 92 B 92 B in observed runs" in explained(capsys, "inference", *with_runs)
    assert "observed 64 B 64 B in" in explained(capsys, "requested peak", *with_runs)
    process = explained(capsys, "process", *with_runs)
    assert "no proof gives an allocator's figure an upper end observed 5" in process
    assert main(["advise", *with_runs, "--budget", "91B"]) == 3
    text = " ".join(capsys.readouterr().out.split())
    assert "at least 92 B (an observed run); advice is on what a run takes at most" in text
    assert "now 92 B does not fit: 1 B over" in text
    assert main(["advise", *with_runs, "--budget", "100B", "--accept", "data_dependent"]) == 0
    assert main(["advise", *with_runs, "--budget", "100B"]) == 3
    onnx.save(model_of(ROWS), path)
    assert main(["advise", *with_runs]) == 2

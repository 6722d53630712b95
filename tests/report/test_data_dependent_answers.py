"""What the answer says of a peak that the data of a run decide."""

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


@pytest.mark.parametrize("flag", ["--max", "--observe", "--observed"])
def test_simulate_says_why_one_run_is_no_option(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "model.onnx")
    onnx.save(model_of(ROWS), path)
    assert main(["simulate", path, "--requests", "x=1", flag, "z:0=2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{flag}: limits of dims and runs of one shape say nothing of an arena" in line


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

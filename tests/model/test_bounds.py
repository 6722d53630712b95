"""How far a model is followed, and what is told where it is not."""

import subprocess
import sys

import pytest
from graphs import graph_of, model_of

import onnxmem
from onnxmem.errors import UsageError
from onnxmem.model.bounds import Bounds, bounds_in, is_past_all


def test_environment_variables_set_bounds() -> None:
    found = bounds_in({"ONNXMEM_MAX_NODES": "7", "ONNXMEM_MAX_RANK": "11", "HOME": "/"})
    assert found == Bounds(nodes=7, rank=11, elements=4096)
    assert bounds_in({}) == Bounds()


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "1e3", "9" * 19, "9" * 99, "٣"])
def test_an_invalid_bound_is_rejected(text: str) -> None:
    with pytest.raises(
        UsageError, match=r"^ONNXMEM_MAX_NODES=.*: not a positive integer of up to 18 digits$"
    ):
        bounds_in({"ONNXMEM_MAX_NODES": text})


def test_a_wrong_bound_is_reported_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "onnxmem", "model.onnx"],
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "ONNXMEM_MAX_RANK": "none"},
        capture_output=True,
        text=True,
        check=False,
    )
    line = "error: usage: ONNXMEM_MAX_RANK=none: not a positive integer of up to 18 digits\n"
    assert (done.returncode, done.stderr) == (2, line)


@pytest.mark.parametrize(
    ("dims", "is_past"),
    [
        ((2**63 - 1,) * 4, False),
        ((2**63 - 1,) * 5, True),
        ((1,) * 64, False),
        ((1,) * 65, True),
        ((None,) * 64, False),
        ((), False),
    ],
)
def test_shapes_are_inferred_up_to_the_limits_of_numpy_and_floats(
    dims: tuple[int | None, ...], *, is_past: bool
) -> None:
    assert is_past_all(dims) is is_past


def codes(text: str) -> dict[str, str]:
    return {each.code: each.message for each in onnxmem.analyze(model_of(text)).findings}


def test_a_rank_above_the_bound_is_unknown_and_reported() -> None:
    dims = ",".join(["2"] * 65)
    text = f"agraph (float[{dims}] x) => (y) {{ y = Relu(x) }}"
    assert graph_of(text).tensors["y"].shape is None
    assert codes(text)["bound_reached"] == (
        "a tensor with 65 dims has an unknown size: the limit is 64 dims (ONNXMEM_MAX_RANK), and "
        "2^256 elements"
    )


def test_a_value_above_the_bound_is_reported_if_a_shape_stays_unknown() -> None:
    text = """agraph (float[2] x) => (y) <int64[1] s = {5000}> {
        v = ConstantOfShape(s)  h = Add(v, v)  y = Expand(x, h) }"""
    assert "(ONNXMEM_MAX_ELEMENTS)" in codes(text)["bound_reached"]
    whole = (
        "agraph (float[2] x) => (v, y) <int64[1] s = {5000}> { v = ConstantOfShape(s)  y = Neg(x) }"
    )
    assert "bound_reached" not in codes(whole)

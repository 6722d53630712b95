"""What sequences take in onnxruntime: the elements that they copy, and those that they share."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import pytest

import onnxmem

pytest.importorskip("onnxruntime")

from data_dependent import requested_peak_of_run

from onnxmem.model.observed import Observed

HEADER = '<ir_version: 9, opset_import: ["" : 18]>\n'
FILTER = """agraph (float[3,7] x, float stop) => (y) <
        int64 zero = {{0}}, int64 one = {{1}}, int64 most = {{{most}}}, bool on = {{1}},
        float half = {{0.5}}> {{
    e = SequenceEmpty()
    n, h, arr = Loop(most, on, zero, x, e) <
        body = w (int64 i, bool c, int64 k, float[3,7] hh, seq(float[3,7]) a) => (go, kn, hn, an) {{
            hn = Mul(hh, half)
            an = SequenceInsert(a, hn)
            kn = Add(k, one)
            t = ReduceMax <keepdims = 0> (hn)
            go = Greater(t, stop) }}>
    y = ConcatFromSequence <axis = 0> (arr)
}}"""
"""An array to which a loop adds while the data say so, as Paddle writes it."""


def model_of(body: str, name: str = "y") -> onnx.ModelProto:
    weights = "int64 one = {1}, int64 zero = {0}, int64 many = {71}, bool on = {1}, bool off = {0}"
    return onnx.parser.parse_model(
        f"{HEADER}agraph (float[3,7] x) => ({name}) <{weights}> {{ {body} }}"
    )


def feeds_of(model: onnx.ModelProto, **values: float) -> dict[str, npt.NDArray[Any]]:
    image = np.full((3, 7), 40, np.float32)
    scalars = {name: np.array(value, np.float32) for name, value in values.items()}
    return {value.name: scalars.get(value.name, image) for value in model.graph.input}


def of_observed_run(
    model: onnx.ModelProto, feeds: dict[str, npt.NDArray[Any]], folder: Path
) -> int | None:
    """The requested peak by the shapes that a run had."""
    np.savez(folder / "inputs.npz", allow_pickle=False, **feeds)
    observed = onnxmem.observe(model, inputs=[str(folder / "inputs.npz")])
    assert isinstance(observed, Observed)
    found = onnxmem.analyze(model, runtimes=["ort-cpu"], graph="raw", observed=observed).observed
    assert found is not None
    spread = found.runtimes.get("ort-cpu")
    return None if spread is None else spread.most


def requested_peak(model: onnx.ModelProto) -> int:
    """The requested peak of a model whose data decide nothing."""
    found = onnxmem.analyze(model, runtimes=["ort-cpu"], graph="raw").runtime
    assert found is not None
    assert not found.unknown.tensors
    return found.arena.requested_peak_bytes


STATIC = {
    "constructed": """a = Neg(x) b = Abs(x) s = SequenceConstruct(a, b, a)
        y = ConcatFromSequence <axis = 0> (s)""",
    "inserted": """e = SequenceEmpty() a = Neg(x) s = SequenceInsert(e, a) b = Abs(a)
        t = SequenceInsert(s, b) y = ConcatFromSequence <axis = 0> (t)""",
    "taken": """a = Neg(x) b = Abs(x) s = SequenceConstruct(a, b) c = SequenceAt(s, one)
        d = SequenceAt(s, zero) y = Add(c, d)""",
    "of two lives": """a = Neg(x) s = SequenceConstruct(a, a) t = SequenceInsert(s, x)
        b = ConcatFromSequence <axis = 0> (s) c = ConcatFromSequence <axis = 0> (t)
        y = Concat <axis = 0> (b, c)""",
}


@pytest.mark.parametrize("body", STATIC.values(), ids=STATIC)
def test_the_peak_of_known_sequences(body: str, tmp_path: Path) -> None:
    model = model_of(body)
    assert requested_peak(model) == requested_peak_of_run(model, feeds_of(model), tmp_path)


LOOP = """e = SequenceEmpty() b, arr = Loop({count}, , x, e) <
    body = w (int64 i, bool c, float[3,7] h, seq(float[3,7]) a) => (go, hn, an) {{
        hn = Neg(h) an = {kept} go = Identity(c) }}> """
PASSED = {
    "shared": (
        6,
        """a = Neg(x) s = SequenceConstruct(a, a) t = Identity(s)
        c = ConcatFromSequence <axis = 0> (s) d = Neg(c) z = Concat <axis = 0> (d, d, d)
        y = ConcatFromSequence <axis = 0> (t)""",
    ),
    "grown in a loop": (
        213,
        LOOP.format(count="many", kept="SequenceInsert(a, hn)")
        + "y = ConcatFromSequence <axis = 0> (arr)",
    ),
    "passed through a loop": (
        6,
        LOOP.format(count="many", kept="Identity(a)").replace(
            "e = SequenceEmpty()", "e = SequenceConstruct(x, x)"
        )
        + "y = ConcatFromSequence <axis = 0> (arr)",
    ),
    "of a loop that does not run": (
        6,
        LOOP.format(count="zero", kept="SequenceInsert(a, hn)").replace(
            "e = SequenceEmpty()", "e = SequenceConstruct(x, x)"
        )
        + "y = ConcatFromSequence <axis = 0> (arr)",
    ),
    "of a branch": (
        9,
        """z = Neg(x) s = SequenceConstruct(z, x) q = If(on) <
        then_branch = t () => (r) { n = Abs(z) r = SequenceInsert(s, n) },
        else_branch = u () => (v) { v = Identity(s) }>
        y = ConcatFromSequence <axis = 0> (q)""",
    ),
    "copied by a branch": (
        6,
        """z = Neg(x) s = SequenceConstruct(z, x) q = If(off) <
        then_branch = t () => (r) { n = Abs(z) r = SequenceInsert(s, n) },
        else_branch = u () => (v) { v = Identity(s) }>
        y = ConcatFromSequence <axis = 0> (q)""",
    ),
}


@pytest.mark.parametrize(("rows", "body"), PASSED.values(), ids=PASSED)
def test_the_peak_of_sequences_through_loops_and_branches(
    rows: int, body: str, tmp_path: Path
) -> None:
    model = model_of(body, f"float[{rows},7] y")
    assert requested_peak(model) == requested_peak_of_run(model, feeds_of(model), tmp_path)


@pytest.mark.parametrize("most", [5, pytest.param(71, marks=pytest.mark.slow)])
def test_an_array_that_the_data_let_grow(most: int, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(HEADER + FILTER.format(most=most))
    found = onnxmem.analyze(model, runtimes=["ort-cpu"], graph="raw").runtime
    assert found is not None
    grown, whole = (feeds_of(model, stop=stop) for stop in (15.0, -1.0))
    peaks = [requested_peak_of_run(model, feeds, tmp_path) for feeds in (grown, whole)]
    assert of_observed_run(model, grown, tmp_path) == peaks[0] < peaks[1]
    assert found.requested_peak_lower_bytes is not None
    assert found.requested_peak_lower_bytes <= peaks[0]
    assert found.requested_peak_upper_bytes == peaks[-1]


def test_pieces_of_unknown_size_have_no_observed_peak(tmp_path: Path) -> None:
    model = model_of("""n = NonZero(x) f = Cast <to = 1> (n)
        s = SplitToSequence <axis = 0> (f, one) y = SequenceAt(s, zero)""")
    assert of_observed_run(model, feeds_of(model), tmp_path) is None


def test_loops_in_a_loop_have_no_upper_end() -> None:
    model = onnx.parser.parse_model(
        HEADER
        + """agraph (float[3,7] x, float stop) => (y) <int64 most = {5}, bool on = {1}> {
        e = SequenceEmpty()
        arr = Loop(most, on, e) <body = w (int64 i, bool c, seq(float[3,7]) a) => (go, an) {
            an = Loop(i, on, a) <body = v (int64 j, bool d, seq(float[3,7]) b) => (on2, bn) {
                bn = SequenceInsert(b, x)  on2 = Identity(d) }>
            t = ReduceMax <keepdims = 0> (x)
            go = Greater(t, stop) }>
        y = ConcatFromSequence <axis = 0> (arr)
    }"""
    )
    found = onnxmem.analyze(model, runtimes=["ort-cpu"], graph="raw").runtime
    assert found is not None
    assert found.unknown.bounded_loops
    assert found.requested_peak_upper_bytes is None

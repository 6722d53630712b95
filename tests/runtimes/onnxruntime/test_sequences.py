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

pytestmark = pytest.mark.usefixtures("without_children")

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
    weights = "int64 one = {1}, int64 zero = {0}, int64 two = {2}, int64 many = {71}"
    weights += ", bool on = {1}, bool off = {0}"
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
    "split": """a = Neg(x) s = SplitToSequence <axis = 1> (a, two) b = SequenceAt(s, one)
        c = SequenceAt(s, zero) d = Concat <axis = 1> (b, c) e = ConcatFromSequence <axis = 1> (s)
        y = Concat <axis = 1> (d, e)""",
    "split into rows": """a = Neg(x) s = SplitToSequence <keepdims = 0> (a)
        y = ConcatFromSequence <axis = 0> (s)""",
    "erased": """a = Neg(x) b = Concat <axis = 0> (a, a, a) s = SequenceConstruct(b, a, x)
        t = SequenceErase(s, zero) c = ConcatFromSequence <axis = 0> (t) d = Neg(c)
        y = Concat <axis = 0> (c, d)""",
    "erased last": """a = Neg(x) b = Concat <axis = 0> (a, a, a) s = SequenceConstruct(a, b)
        t = SequenceErase(s) c = ConcatFromSequence <axis = 0> (t) d = Neg(c)
        y = Concat <axis = 0> (c, d)""",
    "put first, and erased": """a = Neg(x) b = Concat <axis = 0> (a, a, a)
        s = SequenceConstruct(a, a) t = SequenceInsert(s, b, zero) u = SequenceErase(t, zero)
        c = ConcatFromSequence <axis = 0> (u) y = Concat <axis = 0> (c, c, c)""",
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
    "copied by a loop that does not run": (
        3,
        LOOP.format(count="zero", kept="Identity(a)").replace(
            "e = SequenceEmpty()", "z = Neg(x) e = SequenceConstruct(z, z, z, z)"
        )
        + "y = SequenceAt(arr, one)",
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


def test_pieces_of_a_tensor_that_the_data_size(tmp_path: Path) -> None:
    model = model_of("""n = NonZero(x) f = Cast <to = 1> (n)
        s = SplitToSequence <axis = 0> (f, one) y = SequenceAt(s, zero)""")
    feeds = feeds_of(model)
    assert of_observed_run(model, feeds, tmp_path) == requested_peak_of_run(model, feeds, tmp_path)


def test_loops_in_a_loop_run_up_to_their_bounds(tmp_path: Path) -> None:
    """Each of five iterations inserts up to four tensors of 84 bytes: the Loop inside has i of
    them, which is bounded in all iterations alike.
    """
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
    assert found.requested_peak_upper_bytes == 2 * 5 * 4 * 84
    for stop in (15.0, -1.0):
        measured = requested_peak_of_run(model, feeds_of(model, stop=stop), tmp_path)
        assert measured <= found.requested_peak_upper_bytes


OBSERVED = {
    "split by data": """s = SplitToSequence(x, n) h = SequenceAt(s, zero) y = Exp(h)""",
    "a loop of no iteration": """k = Sub(n, n) e = SequenceConstruct(x, x, x)
        b, s = Loop(k, , x, e) <
        body = w (int64 i, bool c, float[3,7] h, seq(float[3,7]) a) => (go, hn, an) {
            hn = Neg(h) an = SequenceInsert(a, hn) go = Identity(c) }>
        y = SequenceAt(s, zero)""",
    "erased in a loop": """e = SequenceConstruct(x, x, x) b, s = Loop(n, , x, e) <
        body = w (int64 i, bool c, float[3,7] h, seq(float[3,7]) a) => (go, hn, an) {
            hn = Neg(h) an = SequenceErase(a) go = Identity(c) }>
        y = ConcatFromSequence <axis = 0> (s)""",
}


@pytest.mark.parametrize("body", OBSERVED.values(), ids=OBSERVED)
def test_the_peak_of_sequences_of_an_observed_run(body: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        f"{HEADER}agraph (float[3,7] x, int64 n) => (y) <int64 zero = {{0}}> {{ {body} }}"
    )
    feeds = {"x": np.ones((3, 7), np.float32), "n": np.array(2)}
    expected = requested_peak_of_run(model, feeds, tmp_path)
    assert of_observed_run(model, feeds, tmp_path) == expected

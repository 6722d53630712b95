"""Shapes by three engines, and the shapes that a file declares."""

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.shape_inference
import onnx_shape_inference
import pytest
from graphs import graph_of, model_of
from kv_cache_graphs import GROUPED
from onnx import TensorProto, helper
from paths import TESTS

import onnxmem
from onnxmem.errors import Finding
from onnxmem.measuring.memory import peak_resident_bytes
from onnxmem.model.binding import Request
from onnxmem.model.building import BoundModel, build, prepare
from onnxmem.model.files import load
from onnxmem.model.graph import DType
from onnxmem.model.shapes import inference
from onnxmem.model.value_types import dense_type, is_complete, merged, shape_of
from onnxmem.ops.spec import Shape

CONTRIB = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "own": 1]>'
FLOAT = onnx.TensorProto.FLOAT


def bound(text: str) -> BoundModel:
    return build(prepare(load(model_of(text))), Request())


def shapes(text: str, names: str) -> list[Shape | None]:
    tensors = graph_of(text).tensors
    return [tensors[name].shape for name in names.split()]


# The engines in turn


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The engines that run, in order."""
    ran: list[str] = []

    def watched(name: str, engine: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object) -> object:
            ran.append(name)
            return engine(*arguments)

        return run

    for name in ("propagate", "infer_symbolically"):
        monkeypatch.setattr(inference, name, watched(name, getattr(inference, name)))
    return ran


PLAIN = "agraph (float[2,3] x) => (z) <float[3,5] w> { y = MatMul(x, w)  z = Relu(y) }"
COMPUTED = """agraph (float[2,3,5] x) => (y) <int64[2] i = {0, 2}> {
    d = Shape(x)
    s = Gather(d, i)
    y = ConstantOfShape(s)
}"""
GROUP_NORM = (
    CONTRIB
    + """agraph (float[2,3] x) => (z) <float[3] b> {
    y = com.microsoft.GroupNorm(x, b)
    z = Relu(y)
}"""
)


def test_no_other_engine_runs_if_onnx_infers_every_shape(engines: list[str]) -> None:
    assert shapes(PLAIN, "y z") == [(2, 5), (2, 5)]
    assert engines == []


def test_shape_arithmetic_is_evaluated(engines: list[str]) -> None:
    assert shapes(COMPUTED, "d s y") == [(3,), (2,), (2, 5)]
    assert engines == ["propagate"]


def test_the_third_engine_infers_other_operators(engines: list[str]) -> None:
    assert shapes(GROUP_NORM, "y z") == [(2, 3), (2, 3)]
    assert engines == ["propagate", "infer_symbolically", "propagate"]


def test_each_engine_uses_shapes_found_by_the_others() -> None:
    text = (
        CONTRIB
        + """agraph (float[2,3,5] x) => (z) <float[5] b, int64[2] i = {0, 2}> {
        y = com.microsoft.GroupNorm(x, b)
        d = Shape(y)
        s = Gather(d, i)
        c = ConstantOfShape(s)
        e = com.microsoft.GroupNorm(c, b)
        f = Shape(e)
        z = ConstantOfShape(f)
    }"""
    )
    assert shapes(text, "y c e z") == [(2, 3, 5), (2, 5), (2, 5), (2, 5)]


def test_the_engines_stop_when_none_makes_progress(engines: list[str]) -> None:
    text = CONTRIB + "agraph (float[2,3] x) => (z) { y = own.Odd(x)  z = Relu(y) }"
    assert shapes(text, "y z") == [None, None]
    assert engines == ["propagate", "infer_symbolically"]


def test_a_model_that_onnx_infers_loads_no_other_engine() -> None:
    code = (
        "import sys, graphs\n"
        f"graphs.graph_of({PLAIN!r})\n"
        "late = {'onnx_shape_inference', 'onnx_ir', 'sympy', 'onnx.reference'}\n"
        "sys.exit(bool(late & {*sys.modules}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path()}, check=False)
    assert ran.returncode == 0


def path() -> str:
    folders = [str(Path(onnxmem.__file__).parent.parent), str(TESTS)]
    return ":".join([*folders, *filter(None, sys.path)])


# Faults of an engine


def fails(*_: object, **__: object) -> object:
    raise RuntimeError


@pytest.mark.parametrize("text", [PLAIN, COMPUTED, GROUP_NORM])
def test_each_node_is_inferred_if_the_whole_graph_is_rejected(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {name: tensor.shape for name, tensor in graph_of(text).tensors.items()}
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fails)
    assert {name: tensor.shape for name, tensor in graph_of(text).tensors.items()} == known


def test_an_error_of_the_third_engine_loses_only_its_shapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onnx_shape_inference, "infer_symbolic_shapes", fails)
    text = GROUP_NORM.replace("(z)", "(z, v)").replace("}", "  v = Relu(x) }")
    assert shapes(text, "y z v") == [None, None, (2, 3)]


def test_the_third_engine_is_silent_and_logging_is_unchanged(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    library = logging.getLogger("onnx_shape_inference")
    monkeypatch.setattr(library, "handlers", [])
    graph_of(CONTRIB + "agraph (float[2,3] x) => (y) { y = own.Odd(x) }")
    library.warning("of a node")
    assert (logging.root.manager.disable, logging.root.handlers) == (logging.NOTSET, [])
    assert capfd.readouterr() == ("", "")


def test_a_program_with_logging_sees_messages_of_the_third_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = logging.getLogger("onnx_shape_inference")
    monkeypatch.setattr(library, "handlers", [])
    graph_of(CONTRIB + "agraph (float[2,3] x) => (y) { y = own.Odd(x) }")
    assert library.handlers == []


def test_an_operator_of_no_version_is_unknown() -> None:
    text = "agraph (float[2,3] x) => (z) { y = Nonsense(x)  z = Relu(x) }"
    assert shapes(text, "y z") == [None, (2, 3)]


# Rules of the third engine that are wrong


def test_a_split_by_a_graph_input_is_unknown() -> None:
    text = """agraph (float[6,3] x, int64[2] n) => (y, z) {
        a, b = Split <axis = 0> (x, n)
        y = Relu(a)
        z = Relu(b)
    }"""
    assert all(shape in {None, (None, 3)} for shape in shapes(text, "a b y z"))


def test_a_squeeze_by_a_graph_input_is_unknown() -> None:
    text = "agraph (float[1,3,1] x, int64[1] a) => (z) { y = Squeeze(x, a)  z = Relu(y) }"
    for shape in shapes(text, "y z"):
        assert shape is None or None in shape


def test_a_split_by_computed_parts_is_known() -> None:
    text = """agraph (float[6,3] x, float[2,4] other) => (a, b) <int64[2] k = {0, 2}> {
        d = Shape(other)
        n = Add(d, k)
        m = Sub(n, k)
        a, b = Split <axis = 0> (x, m)
    }"""
    assert shapes(text, "a b") == [(2, 3), (4, 3)]


def test_an_if_with_one_known_branch_is_unknown() -> None:
    text = (
        CONTRIB
        + """agraph (float[2,3] x, bool c) => (z) {
        y = If (c) <
            then_branch = t () => (o) { o = Relu(x) },
            else_branch = e () => (p) { p = own.Odd(x) }>
        z = Relu(y)
    }"""
    )
    for shape in shapes(text, "y z"):
        assert shape is None or None in shape


# Contradictions


CLASH = """agraph (float[2,3] x, float[5,7] w) => (z, v) {
    y = MatMul(x, w)
    z = Relu(y)
    v = Exp(x)
}"""


def test_incompatible_inputs_are_reported() -> None:
    (finding,) = bound(CLASH).findings
    assert (finding.code, finding.node) == ("contradictory_inputs", None)
    assert finding.message.startswith("shapes contradict each other: 'y' cannot be computed; ")
    assert "\n" not in finding.message


def test_shapes_computed_from_incompatible_inputs_are_unknown() -> None:
    assert shapes(CLASH, "y z v") == [None, None, (2, 3)]
    analysis = onnxmem.analyze(model_of(CLASH))
    assert analysis.status == "partial"
    assert set(analysis.coverage.unknown_tensor_names) == {"y", "z"}
    assert "contradictory_inputs" in [finding.code for finding in analysis.findings]


def test_given_shapes_can_be_incompatible() -> None:
    text = CLASH.replace("float[5,7] w", "float[N,7] w")
    found = build(prepare(load(model_of(text))), Request(dims={"N": 3}))
    assert found.graph.tensors["y"].shape == (2, 7)
    assert found.findings == ()
    found = build(prepare(load(model_of(text))), Request(dims={"N": 4}))
    assert [finding.code for finding in found.findings] == ["contradictory_inputs"]


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(("length", "codes"), [(13, []), (17, ["contradictory_inputs"])])
def test_a_late_shape_is_compared_with_earlier_ones(
    batch: int, length: int, codes: list[str]
) -> None:
    """A table of 13 rows: onnx infers the sum's shape before it infers the operand's."""
    text = """agraph (float[N,S,7] x) => (y)
        <float[1,13,7] t, int64[1] zero = {0}, int64[1] one = {1}, int64[1] most = {13}> {
            n = Shape(x)  k = Gather(n, one)  m = Min(k, most)
            p = Slice(t, zero, m, one)
            s = Add(x, p)  v = Exp(x)  y = Mul(s, v) }"""
    found = onnxmem.analyze(model_of(text), dims={"N": batch, "S": length})
    assert found.graph.tensors["p"].shape == (1, 13, 7)
    assert [finding.code for finding in found.findings] == codes
    assert found.status == ("partial" if codes else "ok")
    assert set(found.coverage.unknown_tensor_names) == ({"s", "y"} if codes else set())


def test_a_contradicted_declaration_is_reported() -> None:
    text = PLAIN.replace("(z)", "(float[9] z)")
    names = "declared shapes differ from inferred ones: 'z'"
    assert bound(text).findings == (Finding("contradicted_shapes", names),)


# What stays unknown


def test_unknown_tensors_are_listed() -> None:
    text = (
        CONTRIB
        + """agraph (float[2,3] x) => (z) {
        a = own.Odd(x)
        b = Relu(a)
        z = NonZero(x)
    }"""
    )
    analysis = onnxmem.analyze(model_of(text))
    assert analysis.status == "partial"
    assert set(analysis.coverage.unknown_tensor_names) == {"a", "b", "z"}
    assert shapes(text, "a b z") == [None, None, (2, None)]


def test_a_slice_of_an_unknown_number_of_rows_is_unknown() -> None:
    """onnx-shape-inference says 5, as if there were at least as many rows."""
    text = """agraph (float[13,7] x, bool[13] c) => (y) <int64[1] zero = {0}, int64[1] five = {5}> {
        z = Compress<axis = 0>(x, c)
        w = Slice(z, zero, five, zero)
        y = Relu(w)
    }"""
    assert shapes(text, "z w y") == [(None, 7)] * 3


def test_a_sequence_has_no_shape_and_does_not_stop_inference() -> None:
    text = """agraph (float[2,3] x) => (y) <int64 i = {0}> {
        s = SequenceConstruct(x, x)
        y = SequenceAt(s, i)
    }"""
    assert shapes(text, "s y") == [None, (2, 3)]


def test_subgraphs_are_inferred_too() -> None:
    text = """agraph (float[2,3,5] x, bool c) => (y) {
        y = If (c) <
            then_branch = t () => (o) { d = Shape(x)  o = ConstantOfShape(d) },
            else_branch = e () => (p) { p = Relu(x) }>
    }"""
    tensors = graph_of(text).tensors
    found = {name.rpartition("/")[2]: tensor.shape for name, tensor in tensors.items()}
    assert found["d"] == (3,)
    assert found["o"] == found["p"] == found["y"] == (2, 3, 5)


BOMBS = [
    # The value of b: onnx's data propagation follows every element.
    """agraph (float[2] q) => (o, y) <int64[1] s = {100000000}> {
        o = NonZero(q)  a = ConstantOfShape(s)  b = Add(a, a)  y = Expand(q, b) }""",
    # The rank of y: a list as long as its operand.
    *(
        f"agraph (float[2] q, int64[100000000] s) => (y) {{ y = {op_type} }}"
        for op_type in ("ConstantOfShape(s)", "Expand(q, s)", "Reshape(q, s)", "Unsqueeze(q, s)")
    ),
]


def test_a_hostile_file_allocates_nothing_large() -> None:
    code = (
        "import graphs; from onnxmem.measuring.memory import peak_resident_bytes\n"
        f"for text in {BOMBS!r}: graphs.graph_of(text)\n"
        "print(peak_resident_bytes())"
    )
    resource = pytest.importorskip("resource")
    if peak_resident_bytes() is None:
        pytest.skip("the system does not say")
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": path()},
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33)),
    )
    assert int(ran.stdout) < 300 * 2**20


# Types


def sketch(*dims: int | str | None, elem_type: int = FLOAT) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(elem_type, dims)


RANKLESS = onnx.helper.make_tensor_type_proto(FLOAT, None)
SEQUENCE = onnx.helper.make_sequence_type_proto(sketch(2))


@pytest.mark.parametrize(
    ("proto", "shape", "complete"),
    [
        (sketch(2, 0), (2, 0), True),
        (sketch(), (), True),
        (sketch(2, "N"), (2, None), False),
        (sketch(2, None), (2, None), False),
        (sketch(2, -1), (2, None), False),
        (sketch(2, elem_type=0), (2,), False),
        (RANKLESS, None, False),
        (SEQUENCE, None, True),
        (onnx.TypeProto(), None, False),
    ],
)
def test_what_is_known_of_a_type(proto: onnx.TypeProto, shape: Shape, *, complete: bool) -> None:
    assert shape_of(proto) == shape
    assert is_complete(proto) is complete


def test_an_absent_type_is_not_complete() -> None:
    assert not is_complete(None)


@pytest.mark.parametrize(
    ("known", "derived", "both"),
    [
        (None, sketch(2), sketch(2)),
        (onnx.TypeProto(), sketch(2), sketch(2)),
        (sketch(2), SEQUENCE, sketch(2)),
        (SEQUENCE, sketch(2), SEQUENCE),
        (RANKLESS, sketch(2, None), sketch(2, None)),
        (sketch(2, None), RANKLESS, sketch(2, None)),
        (sketch(2, None), sketch(None, 3), sketch(2, 3)),
        (sketch(2, "N"), sketch(9, 3), sketch(2, 3)),
        (sketch(2, None), sketch(3), sketch(2, None)),
        (sketch(2, elem_type=0), sketch(3), sketch(2)),
        (sketch(2), sketch(3, elem_type=onnx.TensorProto.INT8), sketch(2)),
        (RANKLESS, RANKLESS, RANKLESS),
    ],
)
def test_types_from_two_sources_are_merged(
    known: onnx.TypeProto | None, derived: onnx.TypeProto, both: onnx.TypeProto
) -> None:
    assert merged(known, derived) == both


def test_a_dense_type_is_complete() -> None:
    assert dense_type(FLOAT, (2, 0)) == sketch(2, 0)
    assert is_complete(dense_type(FLOAT, ()))


HEADER = '<ir_version: 10, opset_import: ["": 21, "own": 1]>'
Dims = list[int | str | None]


def bound_to(text: str, *types: onnx.ValueInfoProto, request: Request | None = None) -> BoundModel:
    """Build a model in ONNX text to which ``types`` are added as its ``value_info``."""
    model = model_of(HEADER + text)
    model.graph.value_info.extend(types)
    return build(prepare(load(model)), request or Request())


def declared(
    name: str, dims: Dims | None, elem_type: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, dims)


def used(*names: str) -> tuple[Finding, ...]:
    listed = ", ".join(map(repr, names))
    text = f"shapes that cannot be inferred are taken from the file: {listed}"
    return (Finding("declared_shapes", text),)


def contradicted(names: str) -> tuple[Finding, ...]:
    text = f"declared shapes differ from inferred ones: {names}"
    return (Finding("contradicted_shapes", text),)


ODD = "agraph (float[2,3] x) => (z) { y = own.Odd(x)  z = Relu(y) }"
RELUS = "agraph (float[2,3] x) => (z) { y = Relu(x)  z = Relu(y) }"


def test_a_shape_that_cannot_be_inferred_is_the_declared_one() -> None:
    found = bound_to(ODD, declared("y", [5, 7], TensorProto.FLOAT16))
    tensor = found.graph.tensors["y"]
    assert (tensor.shape, tensor.dtype, tensor.is_assumed) == ((5, 7), DType.FLOAT16, True)
    assert found.findings == used("y")


def test_shapes_are_inferred_from_declared_ones() -> None:
    found = bound_to(ODD, declared("y", [5, 7]))
    tensor = found.graph.tensors["z"]
    assert (tensor.shape, tensor.dtype) == ((5, 7), DType.FLOAT32)


def test_present_keys_can_share_the_buffer_of_past_ones() -> None:
    model = onnx.parser.parse_model(GROUPED)
    found = build(prepare(load(model)), Request(dims={"max": 101, "seq": 1, "batch": 3}))
    for name in ("past_key_values.0.key", "present.0.key", "present.0.value"):
        assert found.graph.tensors[name].shape == (3, 2, 101, 11)
    assert found.findings == ()


def test_a_graph_output_declares_its_shape() -> None:
    found = bound_to("agraph (float[2,3] x) => (float[5,7] y) { y = own.Odd(x) }")
    assert found.graph.tensors["y"].shape == (5, 7)
    assert found.findings == used("y")


def test_a_scalar_is_a_shape() -> None:
    assert bound_to(ODD, declared("y", [])).graph.tensors["z"].shape == ()


@pytest.mark.parametrize(
    ("dims", "shape"), [(["N", 7], (4, 7)), (["2*N + L"], (13,)), (["L", "L // 2"], (5, 2))]
)
def test_declared_symbols_have_the_values_of_the_inputs(dims: Dims, shape: tuple[int, ...]) -> None:
    text = ODD.replace("[2,3]", "[N,L]")
    found = bound_to(text, declared("y", dims), request=Request(4, {"L": 5}))
    assert found.graph.tensors["y"].shape == shape
    assert found.findings == used("y")


@pytest.mark.parametrize(
    "value",
    [
        declared("y", ["M", 3]),
        declared("y", ["N - 9"]),
        declared("y", [None, 3]),
        declared("y", [-1, 3]),
        declared("y", None),
        declared("y", [2, 3], TensorProto.UNDEFINED),
        helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, [2, 3]),
        helper.make_sparse_tensor_value_info("y", TensorProto.FLOAT, [2, 3]),
        onnx.ValueInfoProto(name="y"),
        declared("nobody", [2, 3]),
        declared("x", [5, 7]),
    ],
)
def test_an_incomplete_declaration_is_ignored(value: onnx.ValueInfoProto) -> None:
    found = bound_to(ODD.replace("[2,3]", "[N,3]"), value, request=Request(2))
    assert found.graph.tensors["x"].shape == (2, 3)
    assert found.graph.tensors["y"].size_bytes is None
    assert found.graph.tensors["z"].size_bytes is None
    assert found.findings == ()


def test_a_consistent_declaration_is_not_reported() -> None:
    found = bound_to(RELUS, declared("y", [2, 3]), declared("z", [2, 3]))
    assert found.findings == ()
    assert not found.graph.tensors["y"].is_assumed


def test_an_inferred_shape_overrides_the_declared_one() -> None:
    found = bound_to(RELUS, declared("y", [5, 7]))
    tensors = found.graph.tensors
    assert (tensors["y"].shape, tensors["z"].shape) == ((2, 3), (2, 3))
    assert not tensors["y"].is_assumed
    assert found.findings == contradicted("'y'")


@pytest.mark.parametrize("dims", [[2, 3, 1], [3, 2], [6], []])
def test_any_other_shape_is_a_contradiction(dims: Dims) -> None:
    assert bound_to(RELUS, declared("y", dims)).findings == contradicted("'y'")


def test_a_graph_output_can_contradict() -> None:
    found = bound_to("agraph (float[2,3] x) => (float[5,7] y) { y = Relu(x) }")
    assert found.graph.tensors["y"].shape == (2, 3)
    assert found.findings == contradicted("'y'")


def test_a_shape_given_for_an_input_invalidates_declarations() -> None:
    found = bound_to(RELUS, declared("y", [2, 3]), request=Request(shapes={"x": (2, 9)}))
    assert found.graph.tensors["y"].shape == (2, 9)
    assert found.findings == ()


def test_declarations_are_ignored_if_an_input_has_another_shape() -> None:
    text = "agraph (float[2,3] x) => (z) { y = own.Odd(x)  z = Relu(y) }"
    requested = Request(shapes={"x": (2, 9)})
    assert bound_to(text, declared("y", [5])).graph.tensors["z"].shape == (5,)
    found = bound_to(text, declared("y", [5]), request=requested)
    assert found.graph.tensors["z"].shape is None
    assert found.findings == ()


def test_symbolic_declarations_are_valid_at_any_number() -> None:
    text = "agraph (float[N,3] x) => (z) { y = own.Odd(x)  z = Relu(y) }"
    found = bound_to(text, declared("y", ["N", 5]), request=Request(shapes={"x": (7, 3)}))
    assert found.graph.tensors["z"].shape == (7, 5)


def test_only_the_first_of_many_names_are_listed() -> None:
    names = "abcdefg"
    nodes = " ".join(
        f"{after} = Relu({name})" for name, after in zip("x" + names, names, strict=False)
    )
    types = [declared(name, [9]) for name in names]
    found = bound_to(f"agraph (float[2] x) => (g) {{ {nodes} }}", *types)
    assert found.findings == contradicted("'a', 'b', 'c', 'd', 'e' and 2 more")


def test_both_warnings_are_reported() -> None:
    text = "agraph (float[2,3] x) => (z) { a = Relu(x)  y = own.Odd(a)  z = Relu(y) }"
    found = bound_to(text, declared("a", [9]), declared("y", [5]))
    assert found.findings == (*used("y"), *contradicted("'a'"))


def test_declarations_inside_a_branch_are_used() -> None:
    text = """agraph (float[2,3] x, bool c) => (y) {
        [if] y = If (c) <
            then_branch = t () => (float[5] o) <float[7] i> { i = own.Odd(x)  o = own.Odd(i) },
            else_branch = e () => (float[5] p) { p = own.Odd(x) }>
    }"""
    tensors = bound_to(text).graph.tensors
    inside = {name.rpartition("/")[2]: tensor.shape for name, tensor in tensors.items()}
    assert inside == {"x": (2, 3), "c": (), "i": (7,), "o": (5,), "p": (5,), "y": (5,)}


def test_declarations_of_a_fixed_batch_are_invalid_at_another() -> None:
    text = ODD.replace("(z)", "(float[2,3] z)")
    assert bound_to(text, declared("y", [2, 3])).graph.tensors["y"].shape == (2, 3)
    found = bound_to(text, declared("y", [2, 3]), request=Request(4))
    assert found.graph.tensors["y"].shape is None


@pytest.mark.parametrize("dims", [[3, 4], [2], [4]])
def test_an_inferred_dim_overrides_the_declared_one(dims: Dims) -> None:
    text = "agraph (float[2,3] x) => (y) { y = NonZero(x) }"
    found = bound_to(text, declared("y", dims, TensorProto.INT64))
    assert found.graph.tensors["y"].shape == (2, None)
    assert found.findings == contradicted("'y'")


def test_an_unknown_dim_is_the_declared_one() -> None:
    text = "agraph (float[2,3] x) => (y) { y = NonZero(x) }"
    found = bound_to(text, declared("y", [2, 4], TensorProto.INT64))
    assert found.graph.tensors["y"].shape == (2, 4)
    assert found.findings == used("y")

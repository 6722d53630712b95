"""The shapes that a file declares: used where nothing derives one, and held against the rest."""

import onnx
import pytest
from graphs import model_of
from kv_cache_graphs import GROUPED
from onnx import TensorProto, helper

from onnxmem.errors import Finding
from onnxmem.model.binding import Request
from onnxmem.model.building import BoundModel, build, prepare
from onnxmem.model.files import load
from onnxmem.model.graph import DType

HEADER = '<ir_version: 10, opset_import: ["": 21, "own": 1]>'
Dims = list[int | str | None]


def bound(text: str, *types: onnx.ValueInfoProto, request: Request | None = None) -> BoundModel:
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
    text = f"shapes that the file declares and nothing derives: {listed}"
    return (Finding("declared_shapes", text),)


def contradicted(names: str) -> tuple[Finding, ...]:
    text = f"declared shapes that differ from the derived: {names}"
    return (Finding("contradicted_shapes", text),)


ODD = "agraph (float[2,3] x) => (z) { y = own.Odd(x)  z = Relu(y) }"
RELUS = "agraph (float[2,3] x) => (z) { y = Relu(x)  z = Relu(y) }"


def test_what_nothing_derives_is_the_word_of_the_file() -> None:
    found = bound(ODD, declared("y", [5, 7], TensorProto.FLOAT16))
    tensor = found.graph.tensors["y"]
    assert (tensor.shape, tensor.dtype, tensor.is_assumed) == ((5, 7), DType.FLOAT16, True)
    assert found.findings == used("y")


def test_what_follows_from_the_word_of_the_file_is_derived() -> None:
    found = bound(ODD, declared("y", [5, 7]))
    tensor = found.graph.tensors["z"]
    assert (tensor.shape, tensor.dtype) == ((5, 7), DType.FLOAT32)


def test_present_keys_may_be_the_buffer_of_the_past_ones() -> None:
    model = onnx.parser.parse_model(GROUPED)
    found = build(prepare(load(model)), Request(dims={"max": 101, "seq": 1, "batch": 3}))
    for name in ("past_key_values.0.key", "present.0.key", "present.0.value"):
        assert found.graph.tensors[name].shape == (3, 2, 101, 11)
    assert found.findings == ()


def test_a_graph_output_says_its_shape_too() -> None:
    found = bound("agraph (float[2,3] x) => (float[5,7] y) { y = own.Odd(x) }")
    assert found.graph.tensors["y"].shape == (5, 7)
    assert found.findings == used("y")


def test_a_scalar_is_a_shape() -> None:
    assert bound(ODD, declared("y", [])).graph.tensors["z"].shape == ()


@pytest.mark.parametrize(
    ("dims", "shape"), [(["N", 7], (4, 7)), (["2*N + L"], (13,)), (["L", "L // 2"], (5, 2))]
)
def test_symbols_are_those_of_the_inputs(dims: Dims, shape: tuple[int, ...]) -> None:
    text = ODD.replace("[2,3]", "[N,L]")
    found = bound(text, declared("y", dims), request=Request(4, {"L": 5}))
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
def test_a_word_that_leaves_something_open_is_no_use(value: onnx.ValueInfoProto) -> None:
    found = bound(ODD.replace("[2,3]", "[N,3]"), value, request=Request(2))
    assert found.graph.tensors["x"].shape == (2, 3)
    assert found.graph.tensors["y"].size_bytes is None
    assert found.graph.tensors["z"].size_bytes is None
    assert found.findings == ()


def test_a_word_that_agrees_says_nothing_new() -> None:
    found = bound(RELUS, declared("y", [2, 3]), declared("z", [2, 3]))
    assert found.findings == ()
    assert not found.graph.tensors["y"].is_assumed


def test_the_derived_shape_stands_against_the_word_of_the_file() -> None:
    found = bound(RELUS, declared("y", [5, 7]))
    tensors = found.graph.tensors
    assert (tensors["y"].shape, tensors["z"].shape) == ((2, 3), (2, 3))
    assert not tensors["y"].is_assumed
    assert found.findings == contradicted("'y'")


@pytest.mark.parametrize("dims", [[2, 3, 1], [3, 2], [6], []])
def test_any_other_shape_is_a_contradiction(dims: Dims) -> None:
    assert bound(RELUS, declared("y", dims)).findings == contradicted("'y'")


def test_a_graph_output_can_contradict() -> None:
    found = bound("agraph (float[2,3] x) => (float[5,7] y) { y = Relu(x) }")
    assert found.graph.tensors["y"].shape == (2, 3)
    assert found.findings == contradicted("'y'")


def test_a_shape_given_for_an_input_outdates_what_follows_from_it() -> None:
    found = bound(RELUS, declared("y", [2, 3]), request=Request(shapes={"x": (2, 9)}))
    assert found.graph.tensors["y"].shape == (2, 9)
    assert found.findings == ()


def test_what_the_file_says_of_other_inputs_is_no_help() -> None:
    text = "agraph (float[2,3] x) => (z) { y = own.Odd(x)  z = Relu(y) }"
    asked = Request(shapes={"x": (2, 9)})
    assert bound(text, declared("y", [5])).graph.tensors["z"].shape == (5,)
    found = bound(text, declared("y", [5]), request=asked)
    assert found.graph.tensors["z"].shape is None
    assert found.findings == ()


def test_what_the_file_says_by_symbols_stands_at_any_number() -> None:
    text = "agraph (float[N,3] x) => (z) { y = own.Odd(x)  z = Relu(y) }"
    found = bound(text, declared("y", ["N", 5]), request=Request(shapes={"x": (7, 3)}))
    assert found.graph.tensors["z"].shape == (7, 5)


def test_of_many_names_some_are_listed() -> None:
    names = "abcdefg"
    nodes = " ".join(
        f"{after} = Relu({name})" for name, after in zip("x" + names, names, strict=False)
    )
    types = [declared(name, [9]) for name in names]
    found = bound(f"agraph (float[2] x) => (g) {{ {nodes} }}", *types)
    assert found.findings == contradicted("'a', 'b', 'c', 'd', 'e' and 2 more")


def test_both_findings_stand_side_by_side() -> None:
    text = "agraph (float[2,3] x) => (z) { a = Relu(x)  y = own.Odd(a)  z = Relu(y) }"
    found = bound(text, declared("a", [9]), declared("y", [5]))
    assert found.findings == (*used("y"), *contradicted("'a'"))


def test_what_the_file_says_inside_a_branch_counts_there() -> None:
    text = """agraph (float[2,3] x, bool c) => (y) {
        [if] y = If (c) <
            then_branch = t () => (float[5] o) <float[7] i> { i = own.Odd(x)  o = own.Odd(i) },
            else_branch = e () => (float[5] p) { p = own.Odd(x) }>
    }"""
    tensors = bound(text).graph.tensors
    inside = {name.rpartition("/")[2]: tensor.shape for name, tensor in tensors.items()}
    assert inside == {"x": (2, 3), "c": (), "i": (7,), "o": (5,), "p": (5,), "y": (5,)}


def test_what_the_file_says_of_the_batch_it_fixes_is_no_use_at_another() -> None:
    text = ODD.replace("(z)", "(float[2,3] z)")
    assert bound(text, declared("y", [2, 3])).graph.tensors["y"].shape == (2, 3)
    found = bound(text, declared("y", [2, 3]), request=Request(4))
    assert found.graph.tensors["y"].shape is None


@pytest.mark.parametrize("dims", [[3, 4], [2], [4]])
def test_a_dim_that_is_derived_stands_against_the_word_of_the_file(dims: Dims) -> None:
    text = "agraph (float[2,3] x) => (y) { y = NonZero(x) }"
    found = bound(text, declared("y", dims, TensorProto.INT64))
    assert found.graph.tensors["y"].shape == (2, None)
    assert found.findings == contradicted("'y'")


def test_a_dim_that_is_open_is_the_word_of_the_file() -> None:
    text = "agraph (float[2,3] x) => (y) { y = NonZero(x) }"
    found = bound(text, declared("y", [2, 4], TensorProto.INT64))
    assert found.graph.tensors["y"].shape == (2, 4)
    assert found.findings == used("y")

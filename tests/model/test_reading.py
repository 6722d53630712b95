"""Records from a model: scopes, roles, constants; and the same records at other dims."""

import struct

import onnx
import onnx.parser
import pytest
from graphs import graph_of, model_of
from onnx import TensorProto
from onnx.helper import make_graph, make_node, make_sparse_tensor, make_tensor
from onnx.helper import make_tensor_value_info as value_info

import onnxmem
from onnxmem.errors import GraphError
from onnxmem.model.binding import Request
from onnxmem.model.building import Prepared, build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import DType, Graph, Role
from onnxmem.model.reading import read_graph

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def graph(proto: onnx.ModelProto) -> Graph:
    return build(prepare(ModelFile("<text>", proto, 0)), Request()).graph


def weights(read: Graph) -> dict[str, int | None]:
    return {tensor.name: tensor.size_bytes for tensor in read.weights}


def role(text: str, name: str) -> Role:
    return graph_of(text).tensors[name].role


def with_nodes(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    proto = model_of("agraph (float[2] x) => (float[2] y) { y = Relu(x) }")
    proto.graph.node.extend(nodes)
    return proto


# Weights


def test_an_initializer_that_a_node_reads_is_a_weight() -> None:
    text = "agraph (float[2, 3] x) => (float[2, 5] y) <float[3, 5] w> { y = MatMul(x, w) }"
    assert weights(graph_of(text)) == {"w": 3 * 5 * 4}


def test_an_initializer_that_is_a_graph_output_is_a_weight() -> None:
    text = "agraph (float[2] x) => (float[2] y, float[7] w) <float[7] w> { y = Relu(x) }"
    assert role(text, "w") is Role.WEIGHT


def test_an_unused_initializer_is_not_a_weight() -> None:
    text = "agraph (float[2] x) => (float[2] y) <float[7] w> { y = Relu(x) }"
    assert role(text, "w") is Role.UNREAD
    assert weights(graph_of(text)) == {}


def test_an_initializer_listed_as_an_input_is_a_weight_and_not_an_input() -> None:
    text = "agraph (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }"
    proto = model_of(text)
    proto.graph.initializer.append(make_tensor("w", FLOAT, [2], [3, 5]))
    read = graph(proto)
    assert read.inputs == ("x",)
    assert weights(read) == {"w": 2 * 4}


def test_a_tensor_computed_from_weights_is_an_activation() -> None:
    text = """agraph (float[3] x) => (float[3] y) <float[1, 3] w>
    { v = Cast <to = 10> (w)  u = Cast <to = 1> (v)  y = Add(x, u) }"""
    assert role(text, "v") is Role.ACTIVATION
    assert role(text, "u") is Role.ACTIVATION


@pytest.mark.parametrize(
    ("attribute", "dtype", "shape", "size_bytes", "values"),
    [
        ("value = int16[2, 3] {2, 3, 5, 7, 11, 13}", DType.INT16, (2, 3), 12, (2, 3, 5, 7, 11, 13)),
        ("value_int = 7", DType.INT64, (), 8, (7,)),
        ("value_ints = [2, 3, 5]", DType.INT64, (3,), 24, (2, 3, 5)),
        ("value_float = 0.5", DType.FLOAT32, (), 4, (0.5,)),
        ("value_floats = [0.5, 2.0]", DType.FLOAT32, (2,), 8, (0.5, 2.0)),
        ('value_string = "text"', DType.STRING, (), None, None),
        ('value_strings = ["a", "b", "c"]', DType.STRING, (3,), None, None),
    ],
)
def test_a_constant_is_a_weight_whatever_its_attribute(
    attribute: str,
    dtype: DType,
    shape: tuple[int, ...],
    size_bytes: int | None,
    values: tuple[float, ...] | None,
) -> None:
    read = graph_of(
        "agraph (float[2] x) => (float[2] y)"
        f"{{ c = Constant <{attribute}> ()  d = Identity(c)  y = Relu(x) }}"
    )
    tensor = read.tensors["c"]
    assert (tensor.role, tensor.dtype, tensor.shape) == (Role.WEIGHT, dtype, shape)
    assert tensor.size_bytes == size_bytes
    assert read.values.get("c") == values


def test_a_constant_of_another_domain_is_an_operator_like_any_other() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
    agraph (float[2] x) => (float[2] y) { c = own.Constant <value_int = 7> ()  y = Add(x, c) }"""
    assert role(text, "c") is Role.ACTIVATION


def test_a_constant_without_a_value_is_unknown() -> None:
    proto = with_nodes(make_node("Constant", [], ["c"]), make_node("Neg", ["c"], ["d"]))
    tensor = graph(proto).tensors["c"]
    assert (tensor.role, tensor.dtype, tensor.shape) == (Role.ACTIVATION, None, None)


def sparse(name: str) -> onnx.SparseTensorProto:
    values = make_tensor(name, FLOAT, [3], [2, 3, 5])
    return make_sparse_tensor(values, make_tensor("", INT64, [3], [1, 4, 6]), [7, 11])


def test_a_sparse_weight_has_dense_dims_and_its_stored_count() -> None:
    proto = with_nodes(
        make_node("Constant", [], ["c"], sparse_value=sparse("")),
        make_node("Add", ["c", "s"], ["d"]),
    )
    proto.graph.sparse_initializer.append(sparse("s"))
    for name in "cs":
        tensor = graph(proto).tensors[name]
        assert tensor.role is Role.WEIGHT
        assert (tensor.dtype, tensor.shape, tensor.num_stored) == (DType.FLOAT32, (7, 11), 3)


# ConstantOfShape

FILLED = """agraph (float[2, 3] x) => (float[2, 3] y)
{ s = Constant <value_ints = [2, 3]> ()  w = ConstantOfShape(s)  y = Add(x, w) }"""


def test_a_constant_of_shape_with_a_constant_input_is_a_weight() -> None:
    assert weights(graph_of(FILLED)) == {"w": 2 * 3 * 4}


def test_an_initializer_that_only_sizes_a_constant_of_shape_is_not_a_weight() -> None:
    assert role(FILLED, "s") is Role.UNREAD


def test_an_initializer_with_another_reader_than_constant_of_shape_is_a_weight() -> None:
    text = FILLED.replace("y = Add", "t = Neg(s)  y = Add")
    assert weights(graph_of(text)) == {"s": 2 * 8, "w": 2 * 3 * 4}


def test_a_constant_of_shape_sized_at_run_time_is_an_activation() -> None:
    text = """agraph (float[2, 3] x) => (float[2, 3] y)
    { s = Shape(x)  w = ConstantOfShape(s)  y = Add(x, w) }"""
    assert role(text, "w") is Role.ACTIVATION


def test_a_constant_of_shape_of_another_domain_reads_its_input() -> None:
    text = '<ir_version: 10, opset_import: ["": 21, "own": 1]>' + FILLED.replace(
        "w = C", "w = own.C"
    )
    assert role(text, "s") is Role.WEIGHT
    assert role(text, "w") is Role.ACTIVATION


# Storages


def external(*places: dict[str, str]) -> Graph:
    """Weights a, b, ... of two floats each, at the given offsets."""
    names = "abcdef"[: len(places)]
    proto = model_of(f"agraph (float[2] x) => (float[2] y) {{ y = Sum(x, {', '.join(names)}) }}")
    for name, place in zip(names, places, strict=True):
        weight = proto.graph.initializer.add(name=name, data_type=FLOAT, dims=[2])
        weight.data_location = TensorProto.EXTERNAL
        for key, value in place.items():
            weight.external_data.add(key=key, value=value)
    return graph(proto)


def test_weights_at_one_offset_of_one_file_count_once() -> None:
    place = {"location": "w.bin", "offset": "8", "length": "8"}
    read = external(place, place, {**place, "offset": "16"}, {**place, "location": "v.bin"})
    assert weights(read) == {"a": 8, "c": 8, "d": 8}
    assert all(read.tensors[name].is_external for name in "abcd")


def test_weights_without_an_exact_offset_count_separately() -> None:
    whole = {"location": "w.bin"}
    from_offset = {**whole, "offset": "8"}
    read = external(whole, whole, from_offset, from_offset, {**whole, "length": "8"})
    assert weights(read) == dict.fromkeys("abcde", 8)


def test_a_weight_inside_the_file_is_not_external() -> None:
    text = "agraph (float[2] x) => (float[2] y) <float[2] w = {3, 5}> { y = Add(x, w) }"
    tensor = graph_of(text).tensors["w"]
    assert (tensor.is_external, tensor.storage, tensor.storage_key) == (False, None, "w")


# Element types

WIDTHS = {
    "FLOAT": 5 * 7 * 4,
    "DOUBLE": 5 * 7 * 8,
    "COMPLEX64": 5 * 7 * 8,
    "COMPLEX128": 5 * 7 * 16,
    "BOOL": 5 * 7,
    "STRING": None,
    "UINT4": 18,
    "INT4": 18,
    "FLOAT4E2M1": 18,
    "UINT2": 9,
    "INT2": 9,
    "FLOAT6E2M3": 27,
    "FLOAT6E3M2": 27,
    **{f"{sign}INT{bits}": 5 * 7 * bits // 8 for sign in ("", "U") for bits in (8, 16, 32, 64)},
    **dict.fromkeys(["FLOAT16", "BFLOAT16"], 5 * 7 * 2),
    **{
        name: 5 * 7
        for name in TensorProto.DataType.keys()  # noqa: SIM118 - a wrapper, no mapping
        if name.startswith("FLOAT8")
    },
}


@pytest.mark.parametrize("name", sorted(set(TensorProto.DataType.keys()) - {"UNDEFINED"}))
def test_35_elements_of_each_type_take_their_exact_bytes(name: str) -> None:
    proto = with_nodes(make_node("Identity", ["w"], ["v"]))
    number = TensorProto.DataType.Value(name)
    weight = proto.graph.initializer.add(name="w", data_type=number, dims=[5, 7])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")
    assert weights(graph(proto)) == {"w": WIDTHS[name]}


@pytest.mark.parametrize("number", [TensorProto.UNDEFINED, 99])
def test_an_unknown_type_has_no_size(number: int) -> None:
    proto = with_nodes(make_node("Identity", ["w"], ["v"]))
    proto.graph.initializer.add(name="w", data_type=number, dims=[5, 7], raw_data=bytes(35))
    assert weights(graph(proto)) == {"w": None}


def test_a_scalar_takes_one_element_and_an_empty_tensor_none() -> None:
    text = """agraph (float x, float[0, 7] e) => (float y, float[0, 7] z)
    { y = Relu(x)  z = Relu(e) }"""
    tensors = graph_of(text).tensors
    assert [tensors[name].size_bytes for name in "xyez"] == [4, 4, 0, 0]


def test_a_value_other_than_a_dense_tensor_has_no_size() -> None:
    text = """agraph (seq(float[2]) s, optional(float[2]) o, string[3] t) => (float[2] y)
    { i = Constant <value_int = 0> ()  a = SequenceAt(s, i)  b = OptionalGetElement(o)
      y = Add(a, b) }"""
    tensors = graph_of(text).tensors
    assert [(tensors[name].dtype, tensors[name].shape) for name in "so"] == [(None, None)] * 2
    assert (tensors["t"].dtype, tensors["t"].shape) == (DType.STRING, (3,))
    assert [tensors[name].size_bytes for name in "sot"] == [None] * 3


def test_huge_dims_are_multiplied_exactly() -> None:
    proto = with_nodes(make_node("Identity", ["w"], ["v"]))
    weight = proto.graph.initializer.add(name="w", data_type=FLOAT, dims=[2**62, 2**62])
    weight.data_location = TensorProto.EXTERNAL
    assert weights(graph(proto)) == {"w": 4 * 2**124}


def test_a_negative_dim_of_a_weight_is_rejected() -> None:
    proto = with_nodes(make_node("Identity", ["w"], ["v"]))
    proto.graph.initializer.add(name="w", data_type=FLOAT, dims=[-1, 7])
    with pytest.raises(GraphError) as caught:
        graph(proto)
    assert str(caught.value) == ("weight 'w' has a negative dim: [-1, 7]; export the model again")


# Values


def test_small_constants_have_values() -> None:
    text = """agraph (float[2] x) => (float[2] y)
    <int64[2, 2] i = {2, 3, 5, 7}, bool[1] b = {1}, float[1] f = {0.5}>
    { y = own.F(x, i, b, f) }"""
    values = graph_of('<ir_version: 10, opset_import: ["": 21, "own": 1]>' + text).values
    assert values == {"i": (2, 3, 5, 7), "b": (True,), "f": (0.5,)}


@pytest.mark.parametrize(("count", "at_hand"), [(64, True), (65, False)])
def test_constants_over_64_elements_have_no_values(count: int, *, at_hand: bool) -> None:
    proto = with_nodes(make_node("Identity", ["w"], ["v"]))
    proto.graph.initializer.append(make_tensor("w", INT64, [count], range(count)))
    assert ("w" in graph(proto).values) is at_hand


def test_absent_or_truncated_values_are_unknown() -> None:
    proto = with_nodes(make_node("Concat", ["a", "b", "c"], ["v"], axis=0))
    proto.graph.initializer.add(name="a", data_type=FLOAT, dims=[3])
    short = struct.pack("<2f", 2, 3)
    proto.graph.initializer.add(name="b", data_type=FLOAT, dims=[3], raw_data=short)
    weight = proto.graph.initializer.add(name="c", data_type=FLOAT, dims=[3])
    weight.data_location = TensorProto.EXTERNAL
    read = graph(proto)
    assert read.values == {}
    assert weights(read) == dict.fromkeys("abc", 12)


# Subgraphs and names

BRANCHES = """agraph (bool k, float[2] x) => (float[2] z) <float[2] shared>
{ [pick] z = If (k) <
    then_branch = t () => (float[2] p) <float[2] w = {3, 5}> { u = Add(x, w)  p = Add(u, shared) },
    else_branch = e () => (float[2] w) <float[2] w = {7, 11}> { q = Relu(x) }
> }"""


def test_a_weight_of_a_subgraph_carries_its_scope() -> None:
    read = graph_of(BRANCHES)
    assert weights(read) == {
        "shared": 8,
        "pick/then_branch/w": 8,
        "pick/else_branch/w": 8,
    }
    assert read.values["pick/else_branch/w"] == (7, 11)


def test_all_graphs_of_a_model_share_one_mapping_of_tensors() -> None:
    read = graph_of(BRANCHES)
    for _, inner in read.nodes[0].subgraphs:
        assert inner.tensors is read.tensors
    assert read.tensors["pick/then_branch/w"].role is Role.WEIGHT


def test_reads_of_a_subgraph_have_the_scope_of_their_producer() -> None:
    (then_name, then_branch), (else_name, else_branch) = graph_of(BRANCHES).nodes[0].subgraphs
    assert (then_name, else_name) == ("then_branch", "else_branch")
    first, second = then_branch.nodes
    assert first.name == "pick/then_branch/Add_0"
    assert (first.inputs, first.outputs) == (
        ("x", "pick/then_branch/w"),
        ("pick/then_branch/u",),
    )
    assert second.inputs == ("pick/then_branch/u", "shared")
    assert (else_branch.inputs, else_branch.outputs) == ((), ("pick/else_branch/w",))


def test_outer_reads_are_tensors_of_the_enclosing_graph_only() -> None:
    (pick,) = graph_of(BRANCHES).nodes
    assert pick.outer_reads == ("x", "shared")
    assert pick.reads == ("k", "x", "shared")
    assert pick.writes == ("z",)


def test_a_branch_can_return_an_outer_tensor() -> None:
    text = """agraph (bool k, float[2] x) => (float[2] z)
    { a = Neg(x)  z = If (k) <then_branch = t () => (float[2] a) { },
                              else_branch = e () => (float[2] q) { q = Relu(x) }> }"""
    node = graph_of(text).nodes[1]
    assert node.outer_reads == ("a", "x")
    assert node.subgraphs[0][1].outputs == ("a",)


def test_reads_of_a_nested_subgraph_pass_through_both_nodes() -> None:
    text = """agraph (bool k, float[2] x) => (float[2] z)
    { a = Neg(x)  [outer] z = If (k) <
        then_branch = t () => (float[2] p) {
            b = Abs(a)
            [inner] p = If (k) <then_branch = t2 () => (float[2] r) { r = Add(a, b) },
                                else_branch = e2 () => (float[2] s) { s = Relu(b) }> },
        else_branch = e () => (float[2] q) { q = Relu(x) }> }"""
    outer = graph_of(text).nodes[1]
    inner = outer.subgraphs[0][1].nodes[1]
    assert outer.outer_reads == ("a", "k", "x")
    assert inner.outer_reads == ("a", "outer/then_branch/b")
    assert inner.outputs == ("outer/then_branch/p",)


def test_formal_inputs_of_a_body_belong_to_the_enclosing_node() -> None:
    text = """agraph (int64 n, bool k, float[2] x) => (float[2] y)
    { [loop] y = Loop (n, k, x) <body = b (int64 i, bool c, float[2] h) => (bool d, float[2] g)
        { d = Identity(c)  g = Neg(h) }> }"""
    read = graph_of(text)
    body = read.nodes[0].subgraphs[0][1]
    assert body.inputs == ("loop/body/i", "loop/body/c", "loop/body/h")
    assert {read.tensors[name].role for name in body.inputs} == {Role.BODY_INPUT}
    assert [read.tensors[name].role for name in "nkx"] == [Role.INPUT] * 3


def test_an_ambiguous_scope_is_numbered() -> None:
    proto = model_of(BRANCHES)
    proto.graph.node.append(make_node("Cast", ["x"], ["pick/then_branch/u"], to=INT64))
    read = graph(proto)
    assert read.tensors["pick/then_branch/u"].size_bytes == 2 * 8
    assert read.tensors["pick/then_branch#2/u"].size_bytes == 2 * 4


def test_graphs_in_a_list_are_numbered_in_their_scope() -> None:
    branch = make_graph([make_node("Relu", ["x"], ["p"])], "b", [], [value_info("p", FLOAT, [2])])
    proto = with_nodes(make_node("Pick", ["x"], ["z"], name="pick", cases=[branch, branch]))
    assert [name for name, _ in graph(proto).nodes[1].subgraphs] == ["cases0", "cases1"]


def test_unnamed_nodes_get_operator_and_index_and_duplicates_a_number() -> None:
    text = """agraph (float[2] x) => (float[2] e) { a = Relu(x)  [same] b = Relu(a)
    [same] c = Neg(b)  [same] d = Neg(c)  [Relu_0] e = Abs(d) }"""
    names = [node.name for node in graph_of(text).nodes]
    assert names == ["Relu_0", "same", "same#2", "same#3", "Relu_0#2"]


def test_omitted_operands_keep_their_index() -> None:
    text = """agraph (float[2] x, float hi) => (float[2] y)
    { y = Clip(x, "", hi)  a, "" = Dropout(x) }"""
    clip, dropout = graph_of(text).nodes
    assert clip.inputs == ("x", "", "hi")
    assert clip.reads == ("x", "hi")
    assert dropout.outputs == ("a", "")
    assert dropout.writes == ("a",)


# Attributes


def test_plain_attributes_are_values_and_others_are_omitted() -> None:
    node = make_node(
        "F",
        ["x"],
        ["z"],
        domain="own",
        an_int=7,
        a_float=0.5,
        text="word",
        ints=[2, 3],
        floats=[0.5, 2.0],
        texts=["a", b"\xff"],
        footprint=make_tensor("", FLOAT, [1], [1]),
    )
    proto = with_nodes(node)
    proto.opset_import.add(domain="own", version=1)
    assert graph(proto).nodes[1].attributes == {
        "an_int": 7,
        "a_float": 0.5,
        "text": "word",
        "ints": (2, 3),
        "floats": (0.5, 2.0),
        "texts": ("a", "\\xff"),
    }


# The whole way


def test_weight_bytes_of_an_analysis_are_those_of_its_weights() -> None:
    proto = model_of(BRANCHES)
    proto.graph.initializer.append(make_tensor("unread", FLOAT, [13], range(13)))
    assert onnxmem.analyze(proto).weight_bytes == 3 * 8


def test_a_graph_without_outer_names_is_read() -> None:
    body = onnx.parser.parse_graph("body (int64 i, bool c) => (bool c2) { c2 = Identity(c) }")
    loop = make_node("Loop", ["", ""], [], body=body)
    graph = read_graph(onnx.helper.make_model(make_graph([loop], "g", [], [])))
    assert [name for name, _ in graph.nodes[0].subgraphs] == ["body"]


CHAIN = """agraph (float[batch, 3] x) => (float[batch, 5] y) <float[3, 5] w> {
    a = Relu(x) y = MatMul(a, w) }"""
FILLED_BY_INPUT = """agraph (float[batch, 3] x) => (float[batch, 3] y) {
    n = Constant<value_ints = [3]>() k = ConstantOfShape(n) y = Add(x, k) }"""


def prepared_of(text: str) -> Prepared:
    return prepare(ModelFile("<text>", model_of(text), 0))


def test_nodes_and_weights_are_read_once() -> None:
    prepared = prepared_of(CHAIN)
    one, other = (build(prepared, Request(batch)).graph for batch in (2, 7))
    assert one.nodes is other.nodes
    assert one.tensors["w"] is other.tensors["w"]
    assert [graph.tensors["y"].shape for graph in (one, other)] == [(2, 5), (7, 5)]
    assert [graph.tensors["x"].shape for graph in (one, other)] == [(2, 3), (7, 3)]
    assert list(one.tensors) == list(other.tensors)


def test_a_second_batch_equals_a_first_one() -> None:
    for text in (CHAIN, FILLED_BY_INPUT):
        prepared = prepared_of(text)
        build(prepared, Request(2))
        again, fresh = (build(each, Request(7)).graph for each in (prepared, prepared_of(text)))
        assert [_facts(again), again.values] == [_facts(fresh), fresh.values]


def _facts(graph: Graph) -> list[tuple[object, ...]]:
    return [
        (each.name, each.dtype, each.shape, each.role, each.is_assumed)
        for each in graph.tensors.values()
    ]


def test_shapes_valid_at_one_batch_only_are_unknown_at_others() -> None:
    text = """agraph (float[batch, 3] x, float[2, 3] k) => (float[m, 3] y) {
        a = Relu(x) y = Add(a, k) }"""
    prepared = prepared_of(text)
    one, other = (build(prepared, Request(batch)).graph for batch in (2, 7))
    assert one.tensors["y"].shape == (2, 3)
    assert other.tensors["y"].size_bytes is None

"""The nouns of a model: tensors, nodes, graphs, element types."""

import networkx as nx
import pytest
from graphs import graph_of
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

from onnxmem.model.graph import DType, Graph, Node, Role, Tensor, dtype_of
from onnxmem.ops.registry import lookup
from onnxmem.ops.spec import Operand


def edges(text: str) -> dict[tuple[str, str], tuple[str, ...]]:
    dag = graph_of(text).to_networkx()
    return {(source, target): facts["tensors"] for source, target, facts in dag.edges(data=True)}


DIAMOND = """agraph (float[2] x) => (float[2] z) <float[2] w>
{ [first] a, b = Split <num_outputs = 2> (x)  [left] c = Add(a, b)  [right] d = Mul(b, w)
  [last] z = Sum(c, d, b) }"""

BRANCHES = """agraph (bool k, float[2] x) => (float[2] z)
{ [first] a = Neg(x)  [pick] z = If (k) <
    then_branch = t () => (float[2] p) { [inside] b = Abs(a)  [deep] p = If (k) <
        then_branch = t2 () => (float[2] r) { [deepest] r = Relu(b) },
        else_branch = e2 () => (float[2] s) { [other] s = Exp(b) }> },
    else_branch = e () => (float[2] q) { [beside] q = Relu(x) }>
  [last] y = Relu(z) }"""


# networkx


def test_an_edge_carries_the_tensors_that_flow_along_it() -> None:
    assert edges(DIAMOND) == {
        ("first", "left"): ("a", "b"),
        ("first", "right"): ("b",),
        ("left", "last"): ("c",),
        ("right", "last"): ("d",),
        ("first", "last"): ("b",),
    }


def test_every_node_is_listed_with_its_operator() -> None:
    dag = graph_of(DIAMOND).to_networkx()
    assert {name: facts["op_type"] for name, facts in dag.nodes(data=True)} == {
        "first": "Split",
        "left": "Add",
        "right": "Mul",
        "last": "Sum",
    }
    assert dag.name == "agraph"


def test_a_tensor_that_a_node_reads_twice_has_one_edge() -> None:
    text = "agraph (float[2] x) => (float[2] z) { [one] a = Neg(x)  [two] z = Add(a, a) }"
    assert edges(text) == {("one", "two"): ("a",)}


def test_reads_of_a_subgraph_are_edges_to_its_node() -> None:
    dag = graph_of(BRANCHES).to_networkx()
    assert set(dag.nodes) == {"first", "pick", "last"}
    assert edges(BRANCHES) == {("first", "pick"): ("a",), ("pick", "last"): ("z",)}


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=13))
def test_the_dag_is_acyclic_and_the_file_order_is_topological(
    reads: list[tuple[int, int]],
) -> None:
    lines = [
        f"[n{place}] t{place + 1} = Add(t{min(left, place)}, t{min(right, place)})"
        for place, (left, right) in enumerate(reads)
    ]
    text = f"agraph (float[2] t0) => (float[2] t{len(reads)}) {{ {'  '.join(lines)} }}"
    dag = graph_of(text).to_networkx()
    assert nx.is_directed_acyclic_graph(dag)
    assert list(nx.lexicographical_topological_sort(dag, key=lambda name: int(name[1:]))) == [
        f"n{place}" for place in range(len(reads))
    ]


# Graphs


def test_all_nodes_include_subgraphs_after_their_owner() -> None:
    names = [node.name.rpartition("/")[2] for node in graph_of(BRANCHES).all_nodes()]
    assert names == "first pick inside deep deepest other beside last".split()


def tensor(name: str, role: Role, storage: str | None = None) -> Tensor:
    return Tensor(name, DType.FLOAT32, (2,), role, storage)


def test_weights_are_listed_once_per_storage() -> None:
    tensors = [
        tensor("a", Role.WEIGHT, "place"),
        tensor("b", Role.INPUT),
        tensor("c", Role.WEIGHT, "place"),
        tensor("d", Role.UNREAD),
        tensor("e", Role.WEIGHT),
        tensor("f", Role.ACTIVATION),
        tensor("g", Role.BODY_INPUT),
    ]
    graph = Graph("g", (), (), (), {item.name: item for item in tensors})
    assert [item.name for item in graph.weights] == ["a", "e"]
    assert [item.storage_key for item in graph.weights] == ["place", "e"]


def test_a_call_has_shapes_bits_and_small_values() -> None:
    graph = graph_of("""agraph (float16[2, 3] x) => (float16[6] y) <int64[1] s = {6}>
    { y = Reshape <allowzero = 1> (x, s) }""")
    call = graph.call(graph.nodes[0])
    assert call.inputs == (Operand((2, 3), 16), Operand((1,), 64, (6,)))
    assert call.outputs == (Operand((6,), 16),)
    assert call.attributes == {"allowzero": 1}


def test_an_omitted_operand_is_none() -> None:
    graph = graph_of("""agraph (float[2] x, float hi) => (float[2] y)
    { y = Clip(x, "", hi)  a, "" = Dropout(x) }""")
    clip, dropout = (graph.call(node) for node in graph.nodes)
    assert clip.inputs == (Operand((2,), 32), None, Operand((), 32))
    assert dropout.outputs == (Operand((2,), 32), None)


# Tensors and nodes


@pytest.mark.parametrize(
    ("dtype", "shape", "num_elements", "size_bytes"),
    [
        (DType.FLOAT16, (3, 5), 15, 30),
        (DType.INT4, (3, 5), 15, 8),
        (DType.FLOAT6E2M3, (3,), 3, 3),
        (DType.UINT2, (3, 3), 9, 3),
        (DType.FLOAT32, (), 1, 4),
        (DType.FLOAT32, (0, 5), 0, 0),
        (DType.FLOAT32, (3, None), None, None),
        (DType.FLOAT32, None, None, None),
        (DType.STRING, (3,), 3, None),
        (None, (3,), 3, None),
    ],
)
def test_the_size_of_a_tensor_is_rounded_up_to_bytes_or_unknown(
    dtype: DType | None,
    shape: tuple[int | None, ...] | None,
    num_elements: int | None,
    size_bytes: int | None,
) -> None:
    item = Tensor("t", dtype, shape, Role.ACTIVATION)
    assert (item.num_elements, item.size_bytes) == (num_elements, size_bytes)


@pytest.mark.parametrize(("domain", "own"), [("", "Add"), ("own", "")])
def test_only_a_node_of_the_onnx_domain_is_an_onnx_operator(domain: str, own: str) -> None:
    node = Node("n", "Add", domain, ("a", "", "a"), ("", "b"), lookup("Add", domain, 21))
    assert node.onnx_op == own
    assert node.reads == ("a", "a")
    assert node.writes == ("b",)


NUMBERS = dict(TensorProto.DataType.items())
KNOWN = {name: number for name, number in NUMBERS.items() if name != "UNDEFINED"}
ONNX_NAMES = {DType.FLOAT32: "FLOAT", DType.FLOAT64: "DOUBLE"}
"""Where the two vocabularies differ."""

PACKED_BITS = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}
PACKED_BITS |= {"FLOAT6E2M3": 6, "FLOAT6E3M2": 6}
"""Types that numpy holds one to a byte and a file does not."""


def known(name: str) -> DType:
    dtype = dtype_of(KNOWN[name])
    assert dtype is not None
    return dtype


@pytest.mark.parametrize("name", KNOWN)
def test_every_number_of_the_installed_onnx_is_the_type_of_its_name(name: str) -> None:
    dtype = known(name)
    assert ONNX_NAMES.get(dtype, dtype.name) == name


def test_no_type_is_known_that_onnx_does_not_have() -> None:
    assert len(DType) == len(KNOWN)


@pytest.mark.parametrize("number", [TensorProto.UNDEFINED, max(KNOWN.values()) + 1, -1])
def test_undefined_and_future_type_numbers_are_unknown(number: int) -> None:
    assert dtype_of(number) is None


@pytest.mark.parametrize("name", sorted(KNOWN.keys() - PACKED_BITS.keys() - {"STRING"}))
def test_a_type_of_whole_bytes_is_as_wide_as_in_numpy(name: str) -> None:
    assert known(name).bits == 8 * tensor_dtype_to_np_dtype(KNOWN[name]).itemsize


@pytest.mark.parametrize(("name", "bits"), PACKED_BITS.items())
def test_a_packed_type_takes_less_than_a_byte(name: str, bits: int) -> None:
    assert known(name).bits == bits


def test_a_string_has_no_size() -> None:
    assert DType.STRING.bits is None


def test_only_floats_and_complex_numbers_have_gradients() -> None:
    floating = {dtype for dtype in DType if dtype.is_floating}
    integer = {dtype for dtype in DType if dtype.is_integer}
    assert set(DType) - floating - integer == {DType.BOOL, DType.STRING}
    assert not floating & integer
    assert {DType.BFLOAT16, DType.COMPLEX64, DType.FLOAT4E2M1, DType.FLOAT8E8M0} <= floating
    assert {DType.INT2, DType.UINT4, DType.INT64} <= integer

"""A graph at another batch: records that no batch changes are those of the first."""

from graphs import model_of

from onnxmem.model.binding import Request
from onnxmem.model.building import Prepared, build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import Graph

CHAIN = """agraph (float[batch, 3] x) => (float[batch, 5] y) <float[3, 5] w> {
    a = Relu(x) y = MatMul(a, w) }"""
FILLED = """agraph (float[batch, 3] x) => (float[batch, 3] y) {
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


def test_another_batch_is_as_if_it_were_the_first() -> None:
    for text in (CHAIN, FILLED):
        prepared = prepared_of(text)
        build(prepared, Request(2))
        again, fresh = (build(each, Request(7)).graph for each in (prepared, prepared_of(text)))
        assert [_facts(again), again.values] == [_facts(fresh), fresh.values]


def _facts(graph: Graph) -> list[tuple[object, ...]]:
    return [
        (each.name, each.dtype, each.shape, each.role, each.is_assumed)
        for each in graph.tensors.values()
    ]


def test_shapes_that_are_lost_are_unknown() -> None:
    text = """agraph (float[batch, 3] x, float[2, 3] k) => (float[m, 3] y) {
        a = Relu(x) y = Add(a, k) }"""
    prepared = prepared_of(text)
    one, other = (build(prepared, Request(batch)).graph for batch in (2, 7))
    assert one.tensors["y"].shape == (2, 3)
    assert other.tensors["y"].size_bytes is None

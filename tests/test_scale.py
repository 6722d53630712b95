"""Work grows with the model and not with its square."""

import time
from collections.abc import Callable

import onnx
import pytest
from onnx.helper import make_empty_tensor_value_info, make_graph, make_node

from onnxmem.model import Graph, ModelFile, Request, build, prepare

FLOAT = onnx.TensorProto.FLOAT
LIMIT_SECONDS = 10
"""Of processor time: some 1.5 s where all is well, over 20 s where anything is quadratic."""


def chain(num_nodes: int) -> onnx.ModelProto:
    nodes = [make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name="layer") for i in range(num_nodes)]
    x = onnx.helper.make_tensor_value_info("t0", FLOAT, [3])
    c = onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])
    graph = make_graph(nodes, "chain", [x, c], [make_empty_tensor_value_info(f"t{num_nodes}")])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])


def same_names() -> onnx.ModelProto:
    return chain(20_000)


def many_branches() -> onnx.ModelProto:
    model = chain(12_000)
    for i in range(1_200):
        neg = make_node("Neg", [f"t{i}"], ["o"])
        branch = make_graph([neg], "branch", [], [make_empty_tensor_value_info("o")])
        choice = make_node("If", ["c"], [f"y{i}"], then_branch=branch, else_branch=branch)
        model.graph.node.append(choice)
    return model


def built(model: onnx.ModelProto) -> Graph:
    return build(prepare(ModelFile("<proto>", model, 0)), Request()).graph


@pytest.mark.parametrize("make", [same_names, many_branches])
def test_a_large_graph_takes_seconds(make: Callable[[], onnx.ModelProto]) -> None:
    model = make()
    started = time.process_time()
    graph = built(model)
    assert time.process_time() - started < LIMIT_SECONDS
    assert len(graph.nodes) == len(model.graph.node)


def test_nodes_of_one_name_are_numbered() -> None:
    model = chain(5)
    model.graph.node[3].name = "layer#2"
    names = [node.name for node in built(model).nodes]
    assert names == ["layer", "layer#2", "layer#3", "layer#2#2", "layer#4"]

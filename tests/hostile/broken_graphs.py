"""Graphs without a meaning: each is refused, with the tensor and the node at fault."""

from collections.abc import Callable
from typing import Final

import onnx
from graphs import model_of
from onnx.helper import make_graph, make_node, make_tensor_value_info

from hostile.hostile_file import HostileFile, files_of


def cycle(num_nodes: int) -> Callable[[], onnx.ModelProto]:
    """Make nodes that read each other in a cycle."""

    def make() -> onnx.ModelProto:
        model = model_of("agraph (float[2] x) => (y) { y = Relu(x) }")
        for i in range(num_nodes):
            operands = [f"t{i}", f"t{i}"]
            node = make_node("Add", operands, [f"t{(i + 1) % num_nodes}"], name=f"n{i}")
            model.graph.node.append(node)
        return model

    return make


def cycle_inside() -> onnx.ModelProto:
    """Make a cycle in a branch."""
    nodes = [make_node("Neg", ["b"], ["a"]), make_node("Neg", ["a"], ["b"])]
    branch = make_graph(nodes, "branch", [], [make_tensor_value_info("b", 1, [2])])
    model = model_of("agraph (float[2] x, bool c) => (y) { y = Relu(x) }")
    choice = make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
    model.graph.node.append(choice)
    return model


def cycle_through_a_body() -> onnx.ModelProto:
    """Make an If with a branch that reads a tensor computed from its output."""
    branch = make_graph(
        [make_node("Neg", ["later"], ["o"])], "b", [], [make_tensor_value_info("o", 1, [2])]
    )
    model = model_of("agraph (float[2] x, bool c) => (y) { y = Relu(x) }")
    choice = make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
    model.graph.node.extend([choice, make_node("Relu", ["z"], ["later"])])
    return model


FILES: Final[tuple[HostileFile, ...]] = (
    *files_of("cycle", {
        "of one node": cycle(1),
        "of two": cycle(2),
        "of 50000": cycle(50_000),
        "in a branch": cycle_inside,
        "through a branch": cycle_through_a_body,
    }, "graph"),
    *files_of("defined twice", {
        "by two nodes": "agraph (float[2] x) => (y) { y = Relu(x)  y = Neg(x) }",
        "by one node": "agraph (float[4] x) => (y) { y, y = Split <num_outputs = 2> (x) }",
        "over an input": "agraph (float[2] x) => (x) { x = Relu(x) }",
        "over a weight": "agraph (float[2] x) => (w) <float[2] w = {1, 2}> { w = Relu(x) }",
    }, "graph"),
    *files_of("not defined", {
        "input of a node": "agraph (float[2] x) => (y) { y = Add(x, nowhere) }",
        "output of the graph": "agraph (float[2] x) => (nowhere) { y = Relu(x) }",
        "in a branch": """agraph (float[2] x, bool c) => (y) { y = If (c) <
            then_branch = t () => (o) { o = Relu(nowhere) },
            else_branch = e () => (p) { p = Relu(x) }> }""",
        "of another branch": """agraph (float[2] x, bool c) => (y) { y = If (c) <
            then_branch = t () => (o) { h = Relu(x)  o = Relu(h) },
            else_branch = e () => (p) { p = Relu(h) }> }""",
    }, "graph"),
)  # fmt: skip

"""Local functions that call themselves, or far too many others."""

from collections.abc import Callable
from typing import Final

import onnx
from graphs import model_of
from onnx.helper import make_function, make_graph, make_node, make_opsetid, make_tensor_value_info

from hostile.hostile_file import ANALYZED, EITHER, HostileFile, files_of

OPSETS: Final = (make_opsetid("", 21), make_opsetid("f", 1))


def calling(*bodies: tuple[str, list[onnx.NodeProto]]) -> onnx.ModelProto:
    """Make a model that calls the first of these functions."""
    model = model_of("agraph (float[2] x) => (y) { y = Relu(x) }")
    model.opset_import.add(domain="f", version=1)
    model.graph.node[0].CopyFrom(make_node(bodies[0][0], ["x"], ["y"], domain="f"))
    for name, nodes in bodies:
        model.functions.append(make_function("f", name, ["a"], ["b"], nodes, OPSETS))
    return model


def call(name: str, source: str = "a", target: str = "b") -> onnx.NodeProto:
    """Make a call."""
    return make_node(name, [source], [target], domain="f")


def through_a_branch() -> onnx.ModelProto:
    """Make a function call itself from a branch."""
    branch = make_graph([call("A", "a", "o")], "g", [], [make_tensor_value_info("o", 1, [2])])
    choice = make_node("If", ["a"], ["b"], then_branch=branch, else_branch=branch)
    return calling(("A", [choice]))


def chain(length: int) -> Callable[[], onnx.ModelProto]:
    """Make each function call the next."""

    def make() -> onnx.ModelProto:
        bodies = [(f"F{i}", [call(f"F{i + 1}")]) for i in range(length)]
        return calling(*bodies, (f"F{length}", [make_node("Relu", ["a"], ["b"])]))

    return make


def laughs(depth: int, width: int) -> Callable[[], onnx.ModelProto]:
    """Make each function call the next one several times."""

    def make() -> onnx.ModelProto:
        bodies = []
        for i in range(depth):
            names = ["a", *(f"t{k}" for k in range(width - 1)), "b"]
            nodes = [call(f"F{i + 1}", *names[k : k + 2]) for k in range(width)]
            bodies.append((f"F{i}", nodes))
        return calling(*bodies, (f"F{depth}", [make_node("Relu", ["a"], ["b"])]))

    return make


def without_leaf(depth: int, width: int) -> onnx.ModelProto:
    """Remove the last function, so that every tensor is unknown; found by fuzzing."""
    model = laughs(depth, width)()
    del model.functions[-1]
    return model


def too_many_operands() -> onnx.ModelProto:
    """Give a call more operands than its function has."""
    model = calling(("A", [make_node("Relu", ["a"], ["b"])]))
    model.graph.node[0].input.extend(["x"] * 5)
    return model


def too_few_operands() -> onnx.ModelProto:
    """Give a call fewer operands than its function has."""
    model = calling(("A", [make_node("Relu", ["a"], ["b"])]))
    del model.graph.node[0].input[:]
    return model


def twice() -> onnx.ModelProto:
    """Define a function twice."""
    relu = [make_node("Relu", ["a"], ["b"])]
    return calling(("A", relu), ("A", [make_node("Neg", ["a"], ["b"])]))


def posing() -> onnx.ModelProto:
    """Define a function with the name of a standard operator."""
    model = calling(("A", [make_node("Relu", ["a"], ["b"])]))
    model.functions[0].domain = ""
    model.functions[0].name = model.graph.node[0].op_type = "Relu"
    model.graph.node[0].domain = ""
    return model


def undefined_output_of_another_version() -> onnx.ModelProto:
    """A function of another version whose body lacks its output; found by fuzzing."""
    model = calling(("A", [make_node("Relu", ["a"], ["z"])]))
    model.opset_import[0].version = 19
    return model


def fatal(node: onnx.NodeProto, version: int) -> Callable[[], onnx.ModelProto]:
    """A function of another version that crashes onnx's own inference."""

    def make() -> onnx.ModelProto:
        model = calling(("A", [node]))
        model.functions[0].opset_import[0].version = version
        return model

    return make


def name_of_bytes() -> bytes:
    """Use a domain that is not a string in a function; found by fuzzing."""
    model = calling(("A", [make_node("Relu", ["a"], ["b"])]))
    model.functions[0].opset_import.add(domain="domain_of_bytes", version=1)
    return model.SerializeToString().replace(b"domain_of_bytes", b"\x89" * 15)


FILES: Final[tuple[HostileFile, ...]] = (
    *files_of("function cycle", {
        "itself": lambda: calling(("A", [call("A")])),
        "two": lambda: calling(("A", [call("B")]), ("B", [call("A")])),
        "through a branch": through_a_branch,
        "unused": lambda: calling(("A", [make_node("Relu", ["a"], ["b"])]), ("B", [call("B")])),
    }, "graph"),
    *files_of("function bomb", {
        "10^10": laughs(10, 10),
        "2^60": laughs(60, 2),
        "10^7": laughs(7, 10),
        "2^20000": laughs(20_000, 2),
        "10^6": laughs(6, 10),
        "10^4": laughs(4, 10),
    }, "graph"),
    *files_of("function bomb", {"8^4": laughs(4, 8)}, "ok"),
    *files_of("function bomb", {"8^4, without leaf": lambda: without_leaf(4, 8)}, "partial"),
    *files_of("function chain", {
        "100": chain(100),
    }, ANALYZED),
    *files_of("function chain", {
        "3000": chain(3_000),
        "20000": chain(20_000),
    }, EITHER),
    *files_of("function", {"name of bytes": name_of_bytes}, "model_file"),
    *files_of("function", {
        "too many operands": too_many_operands,
        "too few operands": too_few_operands,
        "defined twice": twice,
        "posing as Relu": posing,
        "loop of nothing": lambda: calling(("A", [make_node("Loop", ["a"], ["b"])])),
        "empty": lambda: calling(("A", [])),
        "undefined output": lambda: calling(("A", [make_node("Relu", ["a"], ["z"])])),
        "undefined output, another version": undefined_output_of_another_version,
        "of an old version, eye": fatal(make_node("EyeLike", ["nothing"], ["b"]), 12),
        "of an old version, parts": fatal(
            make_node("Split", ["a"], ["b", "c"], num_outputs=900_000_000), 18),
        "of an old version, rank": fatal(make_node("Expand", ["a", "a"], ["b"]), 12),
        "undefined input": lambda: calling(("A", [make_node("Relu", ["z"], ["b"])])),
        "cycle inside": lambda: calling(
            ("A", [make_node("Add", ["a", "b"], ["c"]), make_node("Neg", ["c"], ["b"])])),
    }, EITHER),
)  # fmt: skip

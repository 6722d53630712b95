"""Odd and harmless: each is analyzed, and what is odd is said or counted."""

from typing import Final

import onnx
from graphs import model_of
from onnx.helper import make_node, make_tensor_value_info

from hostile.hostile_file import ANALYZED, EITHER, HostileFile, files_of

RELU: Final = "agraph (float[2,3] x) => (y) { h = Relu(x)  y = Neg(h) }"


def unsorted() -> onnx.ModelProto:
    """Put a chain of a thousand nodes in the reverse order."""
    model = model_of("agraph (float[2] t0) => (t1000) { t1000 = Relu(t999) }")
    for i in reversed(range(999)):
        model.graph.node.append(make_node("Relu", [f"t{i}"], [f"t{i + 1}"]))
    return model


def without_opsets() -> onnx.ModelProto:
    """Import nothing."""
    model = model_of(RELU)
    del model.opset_import[:]
    return model


def with_opset(version: int, domain: str = "") -> onnx.ModelProto:
    """Import only a version, without a domain."""
    model = without_opsets()
    model.opset_import.add(domain=domain, version=version)
    return model


def opsets_at_odds() -> onnx.ModelProto:
    """Import one domain in two versions."""
    model = with_opset(7)
    model.opset_import.add(version=21)
    return model


def ir_version(version: int) -> onnx.ModelProto:
    """Claim a version of the format."""
    model = model_of(RELU)
    model.ir_version = version
    return model


def declared(*dims: int | str) -> onnx.ModelProto:
    """Declare another shape than the inferred one."""
    model = model_of(RELU)
    model.graph.value_info.append(make_tensor_value_info("h", 1, dims))
    return model


def declared_type() -> onnx.ModelProto:
    """Declare another element type than the inferred one."""
    model = model_of(RELU)
    model.graph.value_info.append(make_tensor_value_info("h", 7, [2, 3]))
    return model


def without_nodes() -> onnx.ModelProto:
    """Make an input an output."""
    model = model_of(RELU)
    del model.graph.node[:]
    model.graph.output[0].name = "x"
    return model


def without_outputs() -> onnx.ModelProto:
    """Have no outputs."""
    model = model_of(RELU)
    del model.graph.output[:]
    return model


def unnamed() -> onnx.ModelProto:
    """Give inputs, outputs and weights no names."""
    model = model_of(RELU)
    model.graph.input.add()
    model.graph.output.add()
    model.graph.initializer.add(data_type=1, dims=[3])
    return model


def many_names_alike() -> onnx.ModelProto:
    """Give a thousand nodes one name."""
    model = unsorted()
    for node in model.graph.node:
        node.name = "n"
    return model


def inputs_alike() -> onnx.ModelProto:
    """List an input twice, with two shapes."""
    model = model_of(RELU)
    model.graph.input.append(make_tensor_value_info("x", 1, [5]))
    return model


def weights_alike() -> onnx.ModelProto:
    """Give two weights one name."""
    model = model_of("agraph (float[2] x) => (y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    model.graph.initializer.add(name="w", data_type=1, dims=[5])
    return model


FILES: Final[tuple[HostileFile, ...]] = (
    *files_of("unsorted", {
        "chain": unsorted,
        "two nodes": "agraph (float[2] x) => (y) { y = Neg(h)  h = Relu(x) }",
        "in a branch": """agraph (float[2] x, bool c) => (y) { y = If (c) <
            then_branch = t () => (o) { o = Relu(h)  h = Neg(x) },
            else_branch = e () => (p) { p = Relu(x) }> }""",
    }, ANALYZED, "unsorted_nodes"),
    *files_of("unknown operator", {
        "of the standard domain": "agraph (float[2] x) => (y) { y = NoSuchThing(x) }",
        "of its own domain": "agraph (float[2] x) => (y) { y = evil.corp.Thing(x) }",
        "of microsoft": """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
            agraph (float[2] x) => (y) { y = com.microsoft.NoSuchThing(x) }""",
        "nameless": lambda: _renamed(""),
        "later than the opset": """<ir_version: 8, opset_import: ["": 7]>
            agraph (float[2,3] x, float[3] s) => (y) { y = LayerNormalization(x, s) }""",
    }, ANALYZED),
    *files_of("version", {
        "no opset": without_opsets,
        "opset 0": lambda: with_opset(0),
        "opset -1": lambda: with_opset(-1),
        "opset 9999": lambda: with_opset(9999),
        "opset 2^62": lambda: with_opset(2**62),
        "only another domain": lambda: with_opset(1, "com.microsoft"),
        "two opsets": opsets_at_odds,
        "ir 0": lambda: ir_version(0),
        "ir 9999": lambda: ir_version(9999),
        "ir -1": lambda: ir_version(-1),
    }, ANALYZED),
    *files_of("declared", {
        "another shape": lambda: declared(7, 11),
        "another rank": lambda: declared(6),
        "a negative dim": lambda: declared(-2, 3),
        "a huge dim": lambda: declared(2**62, 2**62),
        "a symbol": lambda: declared("N", "__import__('os')"),
        "another type": declared_type,
    }, ANALYZED),
    *files_of("sparse graph", {
        "no nodes": without_nodes,
        "no outputs": without_outputs,
        "names missing": unnamed,
        "nodes of one name": many_names_alike,
        "inputs of one name": inputs_alike,
        "weights of one name": weights_alike,
    }, EITHER),
)  # fmt: skip


def _renamed(op_type: str) -> onnx.ModelProto:
    model = model_of(RELU)
    model.graph.node[0].op_type = op_type
    return model

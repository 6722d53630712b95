"""Bodies in bodies, and bodies that do not fit their operator."""

from typing import Final

import onnx
from graphs import model_of
from onnx.helper import make_graph, make_node, make_tensor_value_info

from hostile.hostile_file import ANALYZED, EITHER, HostileFile, files_of
from hostile.not_models import nested_messages


def nested(depth: int, width: int = 1) -> onnx.ModelProto:
    """Nest Ifs in both branches to a depth, several side by side."""
    output = make_tensor_value_info("o", 1, [2])
    body = make_graph([make_node("Relu", ["x"], ["o"])], "b", [], [output])
    for _ in range(depth):
        nodes = [
            make_node("If", ["c"], [f"o{i}" if i else "o"], then_branch=body, else_branch=body)
            for i in range(width)
        ]
        body = make_graph(nodes, "b", [], [output])
    model = model_of("agraph (float[2] x, bool c) => (y) { y = Relu(x) }")
    model.graph.node.extend(body.node)
    return model


def chained(depth: int) -> onnx.ModelProto:
    """Nest Ifs in one branch to a depth."""
    output = make_tensor_value_info("o", 1, [2])
    leaf = make_graph([make_node("Relu", ["x"], ["o"])], "b", [], [output])
    body = leaf
    for _ in range(depth):
        node = make_node("If", ["c"], ["o"], then_branch=body, else_branch=leaf)
        body = make_graph([node], "b", [], [output])
    model = model_of("agraph (float[2] x, bool c) => (y) { y = Relu(x) }")
    model.graph.node.extend(body.node)
    return model


def without_bodies(op_type: str) -> onnx.ModelProto:
    """Remove the bodies of a control-flow operator."""
    model = model_of("agraph (float[2] x, bool c) => (y) { y = Relu(x) }")
    model.graph.node.append(make_node(op_type, ["c", "c", "x"], ["z"]))
    return model


def loop(trips: int, body: str) -> str:
    """Write a Loop with a constant trip count."""
    return f"""agraph (float[2] x) => (y) <int64 n = {{{trips}}}, bool c = {{1}}> {{
        y, s = Loop (n, c, x) <body = b {body}> }}"""


BODY: Final = "(int64 i, bool c, float[2] v) => (bool c, float[2] u, float[2] e)"

FILES: Final[tuple[HostileFile, ...]] = (
    *files_of("nested", {
        "5 twice": lambda: nested(5),
        "7 twice": lambda: nested(7),
        "20": lambda: chained(20),
        "30": lambda: chained(30),
    }, ANALYZED),
    *files_of("nested too deep", {
        "40": lambda: nested_messages(40),
        "300": lambda: nested_messages(300),
    }, "model_file"),
    *files_of("loop", {
        "no trips": loop(0, BODY + " { u = Relu(v)  e = Neg(v) }"),
        "negative trips": loop(-(2**63), BODY + " { u = Relu(v)  e = Neg(v) }"),
        "2^62 trips": loop(2**62, BODY + " { u = Relu(v)  e = Neg(v) }"),
        "growing": loop(2**62, "(int64 i, bool c, float[2] v) => (bool c, float[M] u, float[2] e)"
                        " { u = Concat <axis = 0> (v, v)  e = Neg(v) }"),
        "too few inputs": loop(3, "(int64 i) => (u) { u = Relu(i) }"),
        "too many outputs": loop(3, "(int64 i, bool c, float[2] v) => (c, u, e, g, h)"
                                 " { u = Relu(v)  e = Neg(v)  g = Abs(v)  h = Exp(v) }"),
        "nothing": loop(3, "() => () { }"),
    }, EITHER),
    *files_of("without bodies", {name: lambda name=name: without_bodies(name)  # type: ignore[misc]
                                 for name in ("If", "Loop", "Scan", "SequenceMap")}, EITHER),
    *files_of("branches", {
        "of two shapes": """agraph (float[2] x, bool c) => (y) { y = If (c) <
            then_branch = t () => (float[2] o) { o = Relu(x) },
            else_branch = e () => (float[4] p) { p = Concat <axis = 0> (x, x) }> }""",
        "of no outputs": """agraph (float[2] x, bool c) => (y) { y = If (c) <
            then_branch = t () => () { o = Relu(x) }, else_branch = e () => () { p = Neg(x) }> }""",
        "shadowing": """agraph (float[2] x, bool c) => (y) { y = If (c) <
            then_branch = t () => (x) { x = Relu(x) },
            else_branch = e () => (p) { p = Neg(x) }> }""",
    }, EITHER),
    *files_of("scan", {
        "no inputs": """agraph (float[3,2] x) => (y) { y = Scan <num_scan_inputs = 0,
            body = b (float[2] s) => (float[2] t) { t = Relu(s) }> (x) }""",
        "minus one": """agraph (float[3,2] x) => (y) { y = Scan <num_scan_inputs = -1,
            body = b (float[2] s) => (float[2] t) { t = Relu(s) }> (x) }""",
        "2^62": f"""agraph (float[3,2] x) => (y) {{ y = Scan <num_scan_inputs = {2**62},
            body = b (float[2] s) => (float[2] t) {{ t = Relu(s) }}> (x) }}""",
        "axes": """agraph (float[3,2] x) => (y) { y = Scan <num_scan_inputs = 1,
            scan_input_axes = [99], scan_output_axes = [-99],
            body = b (float[2] s) => (float[2] t) { t = Relu(s) }> (x) }""",
    }, EITHER),
)  # fmt: skip

"""Exports of small models, for tests."""

from pathlib import Path
from typing import Any

import onnx
from graphs import model_of
from models_on_disk import CONVNET

import onnxmem
from onnxmem.export.exporters import EXPORTERS

HOSTILE_NAMES = (
    "</script><img src=x onerror=alert(1)>",
    "\x1b[2J\x9b31m\x00bell\x07",
    "\u202etxt\u2066.exe",
    "a\"b'c\\N\\",
    "line\r\nforged,1,2\n</data>]]>",
    "=cmd|' /C calc'!A0",
    "| a | `b` | [x](javascript:alert(1)) **",
    "@SUM(1,2)" + "x" * 1_000_000,
)

IF_MODEL = """agraph (float[3,7] x, bool c) => (float[3,7] y) {
    [root] s = Sqrt(x)
    [fork] z = If(c) <
        then_branch = t () => (float[3,7] a) { [left] q = Exp(s) [sum] a = Add(q, s) },
        else_branch = e () => (float[3,7] b) { [right] b = Exp(s) }>
    [end] y = Add(z, s)
}"""


def analysis_of(text: str = CONVNET, **settings: Any) -> onnxmem.Analysis:  # noqa: ANN401
    return onnxmem.analyze(model_of(text), **settings)


def exported(analysis: onnxmem.Analysis, name: str) -> str:
    pieces = list(EXPORTERS[name](analysis))
    assert all(isinstance(piece, str) for piece in pieces)
    return "".join(piece for piece in pieces if isinstance(piece, str))


def hostile_model() -> onnx.ModelProto:
    """A chain whose nodes, tensors, graph and symbol have hostile names."""
    count = len(HOSTILE_NAMES)
    model = model_of(
        "agraph (float[N,3] t0) => (float[N,3] t8) { "
        + " ".join(f"[n{n}] t{n + 1} = Softmax(t{n})" for n in range(count))
        + " }"
    )
    graph = model.graph
    graph.name = HOSTILE_NAMES[0]
    for node, name in zip(graph.node, HOSTILE_NAMES, strict=True):
        node.name = name
    for node, name in zip(graph.node[:-1], HOSTILE_NAMES, strict=False):
        node.output[0] += name
    for before, after in zip(graph.node[:-1], graph.node[1:], strict=True):
        after.input[0] = before.output[0]
    for value in (graph.input[0], graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "batch</td>|`\x1b[0m"
    return model


def hostile_analysis(**settings: Any) -> onnxmem.Analysis:  # noqa: ANN401
    return onnxmem.analyze(hostile_model(), **settings)


def saved(model: onnx.ModelProto, path: Path) -> str:
    onnx.save(model, path)
    return str(path)

"""Shared by all tests: graphs from ONNX text."""

import onnx.parser

from onnxmem.model import Graph, ModelFile, Request, build, prepare


def graph_of(text: str, request: Request | None = None) -> Graph:
    """Build a graph from ONNX's text format (``onnx.parser``); a header is put before it."""
    if not text.lstrip().startswith("<"):
        text = '<ir_version: 10, opset_import: ["" : 21]>\n' + text
    model = ModelFile("<text>", onnx.parser.parse_model(text), 0)
    return build(prepare(model), request or Request()).graph

"""Pages of models for tests: how they are read without a browser."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import onnx
import onnx.parser

VOID = {"meta", "br", "input", "rect", "path", "circle", "img", "hr", "link"}
"""Elements without an end, or written without one in SVG (``<rect/>``)."""


class Reader(HTMLParser):
    """What a page holds: elements with their attributes, text, and whether all ends fit."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.faults: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if len(dict(attrs)) < len(attrs):
            self.faults.append(f"an attribute of {tag} is given twice")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> ends nothing")

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="onnxmem-data">(.*?)</script>', page)
    assert found is not None
    held: dict[str, Any] = json.loads(found[1])
    return held


def figures(page: str) -> Iterator[tuple[str, str]]:
    """Each figure's key and its exact number as it stands in the page."""
    for key, inside in re.findall(r'data-figure="([^"]+)" data-as="\w+">(.*?</span>)</span>', page):
        exact = re.search(r'class="exact">([\d,]+)', inside)
        yield key, "" if exact is None else exact[1].replace(",", "")


def chain(path: Path, num_nodes: int) -> Path:
    """A model of many nodes: sigmoids one after another, each seventh added to an earlier one."""
    nodes, before, retained = [], "x", "x"
    for number in range(num_nodes):
        if number % 7 == 6:
            inputs, op_type = [before, retained], "Add"
        else:
            inputs, op_type = [before], "Sigmoid" if number % 2 else "Tanh"
        before = f"t{number}"
        retained = before if number % 7 == 2 else retained
        nodes.append(onnx.helper.make_node(op_type, inputs, [before], name=f"block/{number}"))
    value = onnx.helper.make_tensor_value_info
    shape: list[str | int | None] = ["batch", 61]
    graph = onnx.helper.make_graph(
        nodes,
        "chain",
        [value("x", onnx.TensorProto.FLOAT, shape)],
        [value(before, onnx.TensorProto.FLOAT, shape)],
    )
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def section(text: str, name: str) -> str:
    """The part of a page with that id."""
    found = re.search(rf'<section id="{name}".*?</section>', text, re.DOTALL)
    assert found is not None, name
    return found[0]

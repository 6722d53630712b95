"""The uses of operators on which onnxruntime's kernels are measured: one small model each.

Those of ``kernel_cases.txt``, whose head says how it is written, and the node tests of onnx's
backend suite.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx.helper
import onnx.numpy_helper
from onnx.backend.test.loader import load_model_tests

TEMPLATES = Path(__file__).with_suffix(".txt")
MAX_OPSET = 26
"""The newest version that onnxruntime 1.31 has kernels for."""
_OPSET = 21
_IR_VERSION = 10
_DOMAINS = {"ms": "com.microsoft", "ml": "ai.onnx.ml", "": ""}
_VERSIONS = {"com.microsoft": 1, "ai.onnx.ml": 3}
_TYPES = {
    "f": onnx.TensorProto.FLOAT,
    "h": onnx.TensorProto.FLOAT16,
    "bf": onnx.TensorProto.BFLOAT16,
    "d": onnx.TensorProto.DOUBLE,
    "b": onnx.TensorProto.BOOL,
    "u1": onnx.TensorProto.UINT8,
    "i1": onnx.TensorProto.INT8,
    "i2": onnx.TensorProto.INT16,
    "i4": onnx.TensorProto.INT32,
    "i8": onnx.TensorProto.INT64,
}
_ARROW = "\N{RIGHTWARDS ARROW}"
"""Stands for ``->``, so that ``>`` closes alternatives alone."""
_ALTERNATIVES = re.compile("<([^<>]*)>")

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Case:
    """One model and what is fed to it."""

    name: str
    model: onnx.ModelProto
    feeds: Mapping[str, Array]


def cases() -> Iterator[Case]:
    """Every case, in an order that does not change."""
    for text in dict.fromkeys(_lines(TEMPLATES.read_text("utf-8"))):
        yield _case(text)
    yield from _node_tests()


def _lines(text: str) -> Iterator[str]:
    """The templates written out: every section's sizes, every alternative."""
    sections = text.split("\n## ")[1:]
    for section in sections:
        head, *templates = section.splitlines()
        names, _, rows = head.partition(" : ")
        for row in rows.split(","):
            sizes = dict(zip(names.split(), map(int, row.split()), strict=True))
            for template in filter(None, templates):
                yield from _written_out(template.replace("->", _ARROW), sizes)


def _written_out(template: str, sizes: Mapping[str, int]) -> Iterator[str]:
    """Equal alternatives of one line are one choice."""
    found = _ALTERNATIVES.search(template)
    if found is None:
        filled = re.sub("{(.*?)}", lambda match: str(_size(match[1], sizes)), template)
        yield " ".join(filled.replace(_ARROW, "->").split())
        return
    for choice in found[1].split("/"):
        yield from _written_out(template.replace(found[0], choice), sizes)


def _size(text: str, sizes: Mapping[str, int]) -> int:
    text, _, halved = text.partition(":")
    text, _, rounded = text.partition("%")
    total = sum(
        math.prod(sizes.get(part.strip("-")) or int(part.strip("-")) for part in term.split("*"))
        * (-1 if term.startswith("-") else 1)
        for term in text.replace("-", "+-").split("+")
    )
    if rounded:
        return -(-total // int(rounded))
    return total // int(halved) if halved else total


def _case(text: str) -> Case:
    use, _, given = text.partition("|")
    given, _, made = given.partition(" > ")
    name, *attributes = use.split()
    op_type, _, opset = name.partition("@")
    domain, _, op_type = op_type.rpartition(":")
    outputs = ["y" + str(place) * (each != "-") for place, each in enumerate(_outputs(made))]
    names, graph = [], onnx.GraphProto(name="case")
    feeds: dict[str, Array] = {}
    rng = np.random.default_rng(0)
    for place, item in enumerate(each.strip() for each in given.split(";")):
        names.append("" if item == "-" else f"x{place}")
        if item != "-":
            _add_input(graph, feeds, names[-1], item, rng)
    node = onnx.helper.make_node(
        op_type,
        names,
        ["" if output == "y" else output for output in outputs],
        name="case",
        domain=_DOMAINS[domain],
        **dict(_attribute(each) for each in attributes),
    )
    graph.node.append(node)
    graph.output.extend(onnx.ValueInfoProto(name=output) for output in node.output if output)
    opsets = {"": int(opset or _OPSET), **{d: v for d, v in _VERSIONS.items() if d == node.domain}}
    imports = [onnx.helper.make_opsetid(*entry) for entry in opsets.items()]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    return Case(text, model, feeds)


def _outputs(text: str) -> str:
    text = text.strip() or "1"
    return "y" * int(text) if text.isdigit() else text


def _attribute(text: str) -> tuple[str, int | float | str | list[int]]:
    name, _, value = text.partition("=")
    for read in (int, float, lambda text: [int(each) for each in text.split(",") if each]):
        try:
            return name, read(value)
        except ValueError:
            continue
    return name, value


def _add_input(
    graph: onnx.GraphProto,
    feeds: dict[str, Array],
    name: str,
    text: str,
    rng: np.random.Generator,
) -> None:
    code, elements = re.match("([a-z0-9]+)([:=].*)", text).groups()  # type: ignore[union-attr]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(_TYPES[code])
    if elements.startswith("="):
        value = _elements(elements[1:]).astype(dtype)
    else:
        dims = [int(dim) for dim in elements.strip(":!").split("x") if dim]
        value = _made_up(dims, dtype, rng)
    if elements.startswith("=") or elements.endswith("!"):
        graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    else:
        feeds[name] = value
        shape = onnx.helper.make_tensor_value_info(name, _TYPES[code], value.shape)
        graph.input.append(shape)


def _elements(text: str) -> Array:
    if "*" in text:
        value, _, count = text.partition("*")
        return np.full(int(count), float(value))
    parts = [float(part) for part in text.split(",") if part]
    return np.array(parts if "," in text else parts[0])


def _made_up(dims: list[int], dtype: np.dtype[np.generic], rng: np.random.Generator) -> Array:
    """Small bytes, zeros for what may be an index, floats from 0 to 1."""
    if dtype.kind == "b":
        return np.asarray(rng.random(dims) < 1 / 2)
    if dtype.kind in "iu":
        return rng.integers(0, 7 if dtype.itemsize == 1 else 1, dims).astype(dtype)
    return rng.random(dims).astype(dtype)


def _node_tests() -> Iterator[Case]:
    for test in load_model_tests(kind="node"):
        if test.model is None or not test.data_sets:
            continue
        model = onnx.ModelProto()
        model.CopyFrom(test.model)
        fed = list(itertools.islice(test.data_sets[0][0], len(model.graph.input)))
        if all(value.type.HasField("tensor_type") for value in model.graph.input):
            feeds = {
                value.name: np.asarray(_array(item))
                for value, item in zip(model.graph.input, fed, strict=False)
            }
            yield Case(f"node/{test.name}", _within_reach(model), feeds)


def _array(item: object) -> object:
    return onnx.numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item


def _within_reach(model: onnx.ModelProto) -> onnx.ModelProto:
    model.ir_version = min(model.ir_version, _IR_VERSION)
    for entry in model.opset_import:
        if not entry.domain:
            entry.version = min(entry.version, MAX_OPSET)
    return model

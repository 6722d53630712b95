"""Comparison of the emulated optimizer with onnxruntime's own: both graphs as lines of text.

A line is one node as a C-like expression. The values that it reads are constants (type and dims),
graph inputs, or outputs of earlier lines (``%LINE``), so that the names of values do not matter.
"""

import difflib
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest
from graphs import model_of
from installed_runtime import cpu_of_onnxruntime, require_verified

from onnxmem.model.building import prepare
from onnxmem.model.files import ModelFile
from onnxmem.runtimes.onnxruntime.optimizer.pipeline import optimized
from onnxmem.runtimes.onnxruntime.optimizer.reading import read_model, write_model
from onnxmem.runtimes.onnxruntime.session_graph.loaded import drop_doubled_constants


def compare_with_onnxruntime(
    model: str | onnx.ModelProto,
    level: str = "all",
    *,
    opset: int = 21,
    dims: Mapping[str, int] | None = None,
    has_order: bool = True,
) -> list[str]:
    """Assert that the emulation and onnxruntime optimize a model equally; return the operators.

    :param model: text as ``graphs.model_of`` takes it, also with weights without elements
        (random numbers are added for onnxruntime only), or a model with its weights.
    :param opset: ONNX's version for a text without a header; ``com.microsoft`` is always imported.
    :param dims: free-dimension overrides.
    :param has_order: whether to compare the order of execution, which sometimes differs between
        processes.
    :raises AssertionError: the graphs differ; the message is a diff, ``-`` onnxruntime's.
    """
    proto = parsed(model, opset) if isinstance(model, str) else model
    prepared = prepare(ModelFile("<text>", _copy(proto), 0))
    real = by_onnxruntime(filled(proto), level, dims or {})
    ours = optimized(
        prepared.with_calls or prepared.proto, level, dims=dims, cpu=cpu_of_onnxruntime()
    )
    assert_same_graph(real, ours, has_order=has_order)
    return [node.op_type for node in ours.graph.node]


def optimized_ops(
    template: str, body: str, level: str = "basic", *, opset: int, without: str | None = None
) -> str:
    """The operators after optimization, which onnxruntime must agree with.

    :param template: text with ``{outputs}``, those of y and z that the body writes, and ``{body}``.
    :param without: an operator of the template that is omitted once.
    """
    outputs = ", ".join(name for name in ("y", "z") if f"{name} =" in body)
    ops = compare_with_onnxruntime(template.format(outputs=outputs, body=body), level, opset=opset)
    if without is not None:
        ops.remove(without)
    return " ".join(ops)


def assert_same_graph(
    real: onnx.ModelProto, ours: onnx.ModelProto, *, has_order: bool = True
) -> None:
    """Compare the graph of onnxruntime with that of the emulation."""
    saved, expected, got = lines_of(real.graph), lines_of(real.graph), lines_of(ours.graph)
    if expected != got:
        # onnxruntime saves a graph that no pass changed in the order of the file.
        expected = lines_of(write_model(read_model(real), real).graph)
    if expected != got and not has_order:
        expected, got = sorted(expressions(real.graph)), sorted(expressions(ours.graph))
    diff = difflib.unified_diff(saved, got, "onnxruntime", "onnxmem", lineterm="", n=99)
    assert expected == got, "\n" + "\n".join(diff)


def parsed(text: str, opset: int) -> onnx.ModelProto:
    """Parse a graph; a header is added if it has none."""
    header = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>\n'
    return model_of(text if text.lstrip().startswith("<") else header + text)


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def filled(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with random numbers for the weights without elements."""
    model = _copy(model)
    numbers = np.random.default_rng(7)
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            values = numbers.integers(1, 100, tuple(tensor.dims)).astype(dtype)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    return model


def by_onnxruntime(model: onnx.ModelProto, level: str, dims: Mapping[str, int]) -> onnx.ModelProto:
    """The model as onnxruntime optimizes it."""
    ort = pytest.importorskip("onnxruntime")
    require_verified()
    levels = {"off": "DISABLE_ALL", "basic": "ENABLE_BASIC", "extended": "ENABLE_EXTENDED"}
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(
        ort.GraphOptimizationLevel, f"ORT_{levels.get(level, 'ENABLE_ALL')}"
    )
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    for symbol, number in dims.items():
        options.add_free_dimension_override_by_name(symbol, number)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "optimized.onnx")
        options.optimized_model_filepath = str(path)
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        real = onnx.load(path)
    drop_doubled_constants(real)
    return real


# Graphs as text.


def lines_of(graph: onnx.GraphProto, outer: Mapping[str, str] | None = None) -> list[str]:
    """One line for each node in the order of the file, and one for the graph outputs."""
    values = _first_values(graph, outer)
    lines = []
    for number, node in enumerate(graph.node):
        lines.append(f"%{number} = {_expression(node, values)}")
        for index, name in enumerate(node.output):
            values[name] = f"%{number}" + (f".{index}" if index else "")
    return [*lines, _outputs(graph, values, outer is not None)]


def expressions(graph: onnx.GraphProto) -> list[str]:
    """Each node with the whole expression that computes it, and the graph outputs."""
    values = _first_values(graph, None)
    lines = []
    for node in graph.node:
        lines.append(_expression(node, values))
        for index, name in enumerate(node.output):
            values[name] = lines[-1] + (f".{index}" if index else "")
    return [*lines, _outputs(graph, values, is_inner=False)]


def _outputs(graph: onnx.GraphProto, values: Mapping[str, str], is_inner: bool) -> str:
    outputs = [values.get(value.name, "?") for value in graph.output]
    named = [f"{value.name} = {text}" for value, text in zip(graph.output, outputs, strict=True)]
    return ", ".join(outputs if is_inner else named)


def _first_values(graph: onnx.GraphProto, outer: Mapping[str, str] | None) -> dict[str, str]:
    """The values before the first node; inputs of a subgraph are numbered, outer values quoted."""
    values = {"": "-"} | {name: f"^{text}" for name, text in (outer or {}).items() if name}
    for index, value in enumerate(graph.input):
        values[value.name] = value.name if outer is None else f"#{index}"
    return values | {tensor.name: _tensor(tensor) for tensor in graph.initializer}


def _tensor(tensor: onnx.TensorProto) -> str:
    name = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
    return f"{name}{list(tensor.dims)}"


def _expression(node: onnx.NodeProto, values: Mapping[str, str]) -> str:
    inputs = list(node.input)
    while inputs and not inputs[-1]:
        inputs.pop()
    reads = ", ".join(values.get(name, f"?{name}") for name in inputs)
    all_attributes = _defaults(node.domain, node.op_type) | {a.name: a for a in node.attribute}
    attributes = " ".join(
        f"{name}={_plain(value, values)}" for name, value in sorted(all_attributes.items())
    )
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"{operator}({reads}) {attributes}".rstrip()


def _plain(attribute: onnx.AttributeProto, values: Mapping[str, str]) -> str:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.GraphProto):
        return "{" + "; ".join(lines_of(value, values)) + "}"
    if isinstance(value, onnx.TensorProto):
        return _tensor(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bytes):
        return value.decode()
    return str(list(value) if hasattr(value, "__iter__") else value)


@cache
def _defaults(domain: str, op_type: str) -> dict[str, onnx.AttributeProto]:
    """Defaults of all versions, which either side may have written or omitted."""
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    found: dict[str, onnx.AttributeProto] = {}
    for schema in state.get_all_operator_schema():
        if (schema.domain, schema.name) == (domain, op_type):
            for name, attribute in schema.attributes.items():
                default = onnx.AttributeProto.FromString(attribute._default_value)  # noqa: SLF001
                if default.name:
                    found[name] = default
    return found


# Tables of cases.


def cases(table: str) -> list[tuple[str, ...]]:
    """The parameters of a test, from lines such as ``NODES -> OPERATORS``.

    A backslash at the end of a line continues it.
    """
    lines = table.replace("\\\n", " ").strip().splitlines()
    return [tuple(" ".join(cell.split()) for cell in line.split(" ->")) for line in lines]

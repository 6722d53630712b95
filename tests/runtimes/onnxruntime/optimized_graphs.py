"""The emulated optimizer beside onnxruntime's own: both graphs as lines of text, compared.

A line is one node as a C-like expression: the values that it reads are constants (type and dims),
graph inputs, or outputs of earlier lines (``%LINE``), so that names that passes give don't matter.
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


def agrees(
    model: str | onnx.ModelProto,
    level: str = "all",
    *,
    opset: int = 21,
    dims: Mapping[str, int] | None = None,
    has_order: bool = True,
) -> list[str]:
    """Hold the emulation against onnxruntime, and give the types of the nodes that are left.

    :param model: text as ``graphs.model_of`` takes it, weights without elements included (real
        onnxruntime is given numbers for them, the emulation is not), or a model with its weights.
    :param opset: ONNX's version for a text without a header; ``com.microsoft`` is always there.
    :param dims: free-dimension overrides.
    :param has_order: compare the order of execution too; not where it differs between processes.
    :raises AssertionError: the graphs differ; the message is a diff, ``-`` onnxruntime's.
    """
    proto = parsed(model, opset) if isinstance(model, str) else model
    prepared = prepare(ModelFile("<text>", _copy(proto), 0))
    real = by_onnxruntime(filled(proto), level, dims or {})
    given = prepared.with_calls or prepared.proto
    ours = optimized(given, level, dims=dims, cpu=cpu_of_onnxruntime())
    assert_alike(real, ours, has_order=has_order)
    return [node.op_type for node in ours.graph.node]


def assert_alike(real: onnx.ModelProto, ours: onnx.ModelProto, *, has_order: bool = True) -> None:
    """Compare what onnxruntime wrote with what the emulation wrote."""
    saved, wanted, got = lines_of(real.graph), lines_of(real.graph), lines_of(ours.graph)
    if wanted != got:
        # A graph that no pass changed is saved in the order of the file.
        wanted = lines_of(write_model(read_model(real), real).graph)
    if wanted != got and not has_order:
        wanted, got = sorted(expressions(real.graph)), sorted(expressions(ours.graph))
    diff = difflib.unified_diff(saved, got, "onnxruntime", "onnxmem", lineterm="", n=99)
    assert wanted == got, "\n" + "\n".join(diff)


def parsed(text: str, opset: int) -> onnx.ModelProto:
    """Parse a graph, with a header where it has none."""
    header = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>\n'
    return model_of(text if text.lstrip().startswith("<") else header + text)


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def filled(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with numbers for the weights that have none."""
    model = _copy(model)
    numbers = np.random.default_rng(7)
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            values = numbers.integers(1, 100, tuple(tensor.dims)).astype(dtype)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    return model


def by_onnxruntime(model: onnx.ModelProto, level: str, dims: Mapping[str, int]) -> onnx.ModelProto:
    """The graph that onnxruntime itself makes of a model."""
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
        path = Path(folder, "optimised.onnx")
        options.optimized_model_filepath = str(path)
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        real = onnx.load(path)
    drop_doubled_constants(real)
    return real


# Graphs as text.


def lines_of(graph: onnx.GraphProto, outer: Mapping[str, str] | None = None) -> list[str]:
    """One line for each node in the order of the file, and one for the graph outputs."""
    values = _given(graph, outer)
    lines = []
    for number, node in enumerate(graph.node):
        lines.append(f"%{number} = {_expression(node, values)}")
        for place, name in enumerate(node.output):
            values[name] = f"%{number}" + (f".{place}" if place else "")
    return [*lines, _outputs(graph, values, outer is not None)]


def expressions(graph: onnx.GraphProto) -> list[str]:
    """Each node with all that it is computed from written out, and the graph outputs."""
    values = _given(graph, None)
    lines = []
    for node in graph.node:
        lines.append(_expression(node, values))
        for place, name in enumerate(node.output):
            values[name] = lines[-1] + (f".{place}" if place else "")
    return [*lines, _outputs(graph, values, is_inner=False)]


def _outputs(graph: onnx.GraphProto, values: Mapping[str, str], is_inner: bool) -> str:  # noqa: FBT001
    made = [values.get(value.name, "?") for value in graph.output]
    named = [f"{value.name} = {text}" for value, text in zip(graph.output, made, strict=True)]
    return ", ".join(made if is_inner else named)


def _given(graph: onnx.GraphProto, outer: Mapping[str, str] | None) -> dict[str, str]:
    """What is there before the first node; a body's inputs are counted, its outer values quoted."""
    values = {"": "-"} | {name: f"^{text}" for name, text in (outer or {}).items() if name}
    for place, value in enumerate(graph.input):
        values[value.name] = value.name if outer is None else f"#{place}"
    return values | {tensor.name: _tensor(tensor) for tensor in graph.initializer}


def _tensor(tensor: onnx.TensorProto) -> str:
    name = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
    return f"{name}{list(tensor.dims)}"


def _expression(node: onnx.NodeProto, values: Mapping[str, str]) -> str:
    inputs = list(node.input)
    while inputs and not inputs[-1]:
        inputs.pop()
    reads = ", ".join(values.get(name, f"?{name}") for name in inputs)
    given = {attribute.name: attribute for attribute in node.attribute}
    stated = {**_defaults(node.domain, node.op_type), **given}
    attributes = " ".join(f"{name}={_plain(stated[name], values)}" for name in sorted(stated))
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
    """Defaults that either side may have written down or left out, of any version."""
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


def cases(table: str) -> list[tuple[str, str]]:
    """The nodes of a graph and the types that are left of them, from lines ``NODES -> TYPES``.

    A line that ends in a backslash goes on in the next one.
    """
    lines = table.replace("\\\n", " ").strip().splitlines()
    pairs = (line.split(" ->") for line in lines)
    return [(" ".join(nodes.split()), left.strip()) for nodes, left in pairs]

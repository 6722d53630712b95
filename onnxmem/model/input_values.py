"""Values of inputs, and the shapes and branches that depend on them.

The target of a Reshape or the k of a TopK may be an input. If some shapes are unknown, they are
inferred again with the values. A condition that depends on values decides which branch of an If
runs.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, Final

import numpy as np
import onnx

from onnxmem.errors import Finding, ShapeError, UsageError, listed, nearest, shortened
from onnxmem.model.binding import input_dims, input_symbols, required_inputs
from onnxmem.model.building import BoundModel, Prepared
from onnxmem.model.constants import Array
from onnxmem.model.control_flow import without_idle_branches
from onnxmem.model.graph import DType, Graph, Node, Tensor
from onnxmem.model.reading import read_graph
from onnxmem.model.shapes.folding import MAX_ELEMENTS
from onnxmem.model.shapes.inference import with_shapes
from onnxmem.model.shapes.propagation import propagate
from onnxmem.ops.spec import known_dims
from onnxmem.settings import Values

_MOST_FIXED: Final = 3
"""Inputs with fixed dims that a message names."""
_MAX_SETTING_ELEMENTS: Final = 1024
"""The most elements of an input that may be a setting; larger inputs are data."""
_NUMPY_TYPES: Final = frozenset(
    {
        *(DType.BOOL, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64),
        *(DType.INT8, DType.INT16, DType.INT32, DType.INT64),
        *(DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64),
    }
)
"""Element types that numpy has without extensions."""
_MAX_SHOWN: Final = 3
"""Elements in a message."""


class InputValueError(UsageError):
    """A value that does not fit its input."""

    code: ClassVar[str] = "value"


def may_be_setting(tensor: Tensor) -> bool:
    """Whether an input may be a setting: a few integers or booleans."""
    is_discrete = tensor.dtype in _NUMPY_TYPES and not tensor.dtype.is_floating
    return is_discrete and 0 < (tensor.num_elements or 0) <= _MAX_SETTING_ELEMENTS


def unused_values(graph: Graph, values: Iterable[str]) -> Iterator[Finding]:
    """A finding for each name that is not the name of an input."""
    for name in values:
        if name not in graph.inputs:
            yield Finding("unused_value", f"--value {name}: the model has no input of that name")


def input_arrays(graph: Graph, values: Mapping[str, Values]) -> dict[str, Array]:
    """The values of inputs as arrays; other names are ignored.

    :raises InputValueError: an input is not a small tensor of numbers, or a value has the wrong
        number of elements or elements of another type.
    """
    return {
        name: fitted(graph.tensors[name], values[name]) for name in graph.inputs if name in values
    }


def fitted(tensor: Tensor, elements: Values) -> Array:
    """A value as the array of an input; a single element is broadcast.

    :raises InputValueError: as ``input_arrays`` does.
    """
    dims, count = known_dims(tensor.shape), tensor.num_elements
    if dims is None or count is None or count > MAX_ELEMENTS:
        message = f"input {tensor.name!r} is too large for a value: over {MAX_ELEMENTS:,} elements"
        raise InputValueError(message)
    if len(elements) not in {1, count}:
        message = f"input {tensor.name!r} has {count:,} elements, but its value {len(elements):,}"
        raise InputValueError(message)
    numbers = _numbers(tensor, elements)
    return (np.full(count, numbers[0]) if len(elements) == 1 else numbers).reshape(dims)


def _numbers(tensor: Tensor, elements: Values) -> Array:
    dtype = tensor.dtype
    if dtype in _NUMPY_TYPES:
        try:
            numbers = np.array(elements, np.dtype(dtype.value))
        except OverflowError:
            numbers = np.array(())
        # numpy cuts 1.5 to an integer and makes any number a bool without an error: only what comes
        # back as it was is a value of such a type.
        if (dtype.is_floating and len(numbers)) or tuple(numbers.tolist()) == elements:
            return numbers
    kind = "not numeric" if dtype is None else dtype.value
    message = f"input {tensor.name!r} is {kind}; {_shown(elements)} is not a value of it"
    raise InputValueError(message)


def _shown(elements: Values) -> str:
    first = ", ".join(str(element) for element in elements[:_MAX_SHOWN])
    return first if len(elements) <= _MAX_SHOWN else f"{first}, ..."


def refuse_unknown_names(
    model: onnx.ModelProto, dims: Iterable[str], values: Iterable[str] = ()
) -> None:
    """Check that all dims and values are names of this model, which is the only one.

    :raises ShapeError: no input has a dim of that name.
    :raises InputValueError: there is no input of that name.
    """
    required = required_inputs(model.graph)
    symbols = input_symbols(required)
    for name in dims:
        if name not in symbols:
            known = f"{nearest(name, symbols)}{_known_dims(required, symbols)}"
            message = f"--dim {name}: no input has a dim of that name; {known}"
            raise ShapeError(message)
    inputs = [value.name for value in required]
    for name in values:
        if name not in inputs:
            known = f"{nearest(name, inputs)}the inputs are {listed(inputs)}"
            message = f"--value {name}: the model has no input of that name; {known}"
            raise InputValueError(message)


def _known_dims(inputs: Iterable[onnx.ValueInfoProto], symbols: list[str]) -> str:
    """The dims that ``--dim`` sets, and the inputs whose others are numbers, which it does not."""
    shapes = {value.name: input_dims(value) or () for value in inputs}
    fixed = [
        f"{shortened(name)} [{', '.join(map(str, dims))}]"
        for name, dims in shapes.items()
        if any(isinstance(dim, int) for dim in dims)
    ]
    known = f"the dims are {listed(symbols)}" if symbols else "all dims are numbers"
    if not fixed:
        return known
    more = len(fixed) - _MOST_FIXED
    # The first of them, as it stands in the file.
    name, dims = next((name, dims) for name, dims in shapes.items() if set(map(type, dims)) - {str})
    example = shlex.quote(shortened(f"{name}:{','.join(map(str, dims))}"))
    shown = ", ".join(fixed[:_MOST_FIXED]) + (f" and {more} more" if more > 0 else "")
    return (
        f"{known}; the numbers are fixed in the file: {shown}; --shape {example} with other "
        "numbers computes them; to run them, export the model with a dynamic axis there "
        "(dynamic_axes, dynamic_shapes)"
    )


def with_input_values(
    prepared: Prepared, bound: BoundModel, values: Mapping[str, Values]
) -> BoundModel:
    """Infer unknown shapes of a model with the values of its inputs, and remove idle branches.

    A value that does not fit its input, perhaps because of another batch, is ignored with a
    finding. All values are ignored if a Reshape would change its number of elements: its target is
    then that of another batch.
    """
    has_branches = any(node.onnx_op == "If" for node in bound.graph.all_nodes())
    is_open = _has_open_shapes(bound.graph)
    if not values or not (is_open or has_branches):
        return bound
    known: dict[str, Array] = {}
    findings = tuple(_fit(bound.graph, values, known))
    shaped = with_shapes(prepared.proto, bound.binding, known)
    graph = read_graph(shaped.proto, shaped.assumed)
    unfit = next(_unfit(bound.graph, graph), None)
    if unfit is not None:
        return replace(bound, findings=(*bound.findings, *findings, unfit))
    if has_branches:
        graph = without_idle_branches(graph, propagate(shaped.proto, known).values)
    return replace(
        bound,
        graph=graph,
        follows_batch=bound.follows_batch and shaped.follows_batch,
        findings=(*prepared.findings, *bound.binding.findings, *shaped.findings, *findings),
    )


def _has_open_shapes(graph: Graph) -> bool:
    """Whether a shape is unknown or only declared."""
    return any(each.num_elements is None or each.is_assumed for each in graph.tensors.values())


def _unfit(bound: Graph, valued: Graph) -> Iterator[Finding]:
    """A finding for each Reshape that would change its number of elements because of values."""
    for node in valued.nodes:
        if node.onnx_op == "Reshape" and node.writes:
            source, output = _counts(valued, node)
            is_unfit = source is not None and output is not None and source != output
            if is_unfit and _counts(bound, node) != (source, output):
                message = f"Reshape {node.name!r} cannot turn {source:,} elements into {output:,}"
                yield Finding("unused_value", f"{message}: the values are ignored")


def _counts(graph: Graph, node: Node) -> tuple[int | None, int | None]:
    """The numbers of elements of the first input and the first output."""
    source, output = graph.tensors[node.inputs[0]], graph.tensors[node.outputs[0]]
    return source.num_elements, output.num_elements


def _fit(graph: Graph, values: Mapping[str, Values], known: dict[str, Array]) -> Iterator[Finding]:
    """Add the arrays of inputs to ``known``; a finding for each value that does not fit."""
    for name in graph.inputs:
        if name in values:
            try:
                known[name] = fitted(graph.tensors[name], values[name])
            except InputValueError as fault:
                yield Finding("unused_value", str(fault))

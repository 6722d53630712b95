"""Values that a user gives for inputs, and the shapes that follow from them.

A Reshape's target or the k of a TopK may be an input. Without its value such shapes are open; they
are inferred anew with it, and only where there is something open to find. A condition that follows
from the values decides which branch of an If runs.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, Final

import numpy as np
import onnx

from onnxmem.errors import Finding, ShapeError, UsageError, listed, nearest
from onnxmem.model.binding import input_symbols, required_inputs
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

_MAX_SETTING_ELEMENTS: Final = 1024
"""Of an input that may hold a setting of the run; larger ones are its data."""
_HELD: Final = frozenset(
    {
        *(DType.BOOL, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64),
        *(DType.INT8, DType.INT16, DType.INT32, DType.INT64),
        *(DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64),
    }
)
"""Types that numpy has itself."""
_MAX_SHOWN: Final = 3
"""Elements in a message."""


class InputValueError(UsageError):
    """A value that does not fit its input."""

    code: ClassVar[str] = "value"


def may_be_setting(tensor: Tensor) -> bool:
    """Whether an input's values are worth knowing: whole numbers or conditions, and few."""
    is_told = tensor.dtype in _HELD and not tensor.dtype.is_floating
    return is_told and 0 < (tensor.num_elements or 0) <= _MAX_SETTING_ELEMENTS


def unused_values(graph: Graph, values: Iterable[str]) -> Iterator[Finding]:
    """A finding for each name that is none of an input."""
    for name in values:
        if name not in graph.inputs:
            yield Finding("unused_value", f"--value {name}: the model has no input of that name")


def input_arrays(graph: Graph, values: Mapping[str, Values]) -> dict[str, Array]:
    """The arrays of the inputs whose values are given; names that are no inputs are left out.

    :raises InputValueError: an input that is no small tensor of numbers, too few or too many
        elements, or one that its type does not hold.
    """
    return {
        name: fitted(graph.tensors[name], values[name]) for name in graph.inputs if name in values
    }


def fitted(tensor: Tensor, elements: Values) -> Array:
    """The array of an input: one element is all of them.

    :raises InputValueError: as ``input_arrays`` does.
    """
    dims, count = known_dims(tensor.shape), tensor.num_elements
    if dims is None or count is None or count > MAX_ELEMENTS:
        message = f"input {tensor.name!r} has no value: only up to {MAX_ELEMENTS:,} elements do"
        raise InputValueError(message)
    if len(elements) not in {1, count}:
        message = f"input {tensor.name!r} has {count:,} elements, its value {len(elements):,}"
        raise InputValueError(message)
    numbers = _numbers(tensor, elements)
    return (np.full(count, numbers[0]) if len(elements) == 1 else numbers).reshape(dims)


def _numbers(tensor: Tensor, elements: Values) -> Array:
    dtype = tensor.dtype
    if dtype in _HELD:
        try:
            numbers = np.array(elements, np.dtype(dtype.value))
        except OverflowError:
            numbers = np.array(())
        if (dtype.is_floating and len(numbers)) or tuple(numbers.tolist()) == elements:
            return numbers
    kind = "no numbers" if dtype is None else dtype.value
    message = f"input {tensor.name!r} is {kind}, which {_shown(elements)} is not"
    raise InputValueError(message)


def _shown(elements: Values) -> str:
    first = ", ".join(str(element) for element in elements[:_MAX_SHOWN])
    return first if len(elements) <= _MAX_SHOWN else f"{first}, ..."


def refuse_unknown_names(
    model: onnx.ModelProto, dims: Iterable[str], values: Iterable[str] = ()
) -> None:
    """Refuse a dim and a value that change nothing, where they are given for this model alone.

    :raises ShapeError: no input has a dim of that name.
    :raises InputValueError: there is no input of that name.
    """
    given = required_inputs(model.graph)
    symbols = input_symbols(given)
    for name in dims:
        if name not in symbols:
            there = f"the dims are {listed(symbols)}" if symbols else "all dims are numbers"
            hint = nearest(name, symbols)
            message = f"--dim {name}: no input has a dim of that name; {hint}{there}"
            raise ShapeError(message)
    inputs = [value.name for value in given]
    for name in values:
        if name not in inputs:
            there = f"{nearest(name, inputs)}the inputs are {listed(inputs)}"
            message = f"--value {name}: the model has no input of that name; {there}"
            raise InputValueError(message)


def with_input_values(
    prepared: Prepared, bound: BoundModel, values: Mapping[str, Values]
) -> BoundModel:
    """Infer the open shapes of a model with the values of its inputs, and leave idle branches out.

    A value that does not fit its input, as at another batch, is left out with a finding; and all
    are where a Reshape would make more elements of fewer, or the reverse: a target is of one batch.
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
    """Whether a shape is not known, or only what the file declares."""
    return any(each.num_elements is None or each.is_assumed for each in graph.tensors.values())


def _unfit(bound: Graph, given: Graph) -> Iterator[Finding]:
    """A finding for each Reshape whose elements are not its input's, where values say so."""
    for node in given.nodes:
        if node.onnx_op == "Reshape" and node.writes:
            source, made = _counts(given, node)
            is_unfit = source is not None and made is not None and source != made
            if is_unfit and _counts(bound, node) != (source, made):
                message = f"Reshape {node.name!r} cannot make {made:,} elements of {source:,}"
                yield Finding("unused_value", f"{message}: the values given are left out")


def _counts(graph: Graph, node: Node) -> tuple[int | None, int | None]:
    """Elements of what a node is given first and of what it makes first."""
    source, made = graph.tensors[node.inputs[0]], graph.tensors[node.outputs[0]]
    return source.num_elements, made.num_elements


def _fit(graph: Graph, values: Mapping[str, Values], known: dict[str, Array]) -> Iterator[Finding]:
    """Enter the arrays of the inputs; a finding for each value that is none of its input."""
    for name in graph.inputs:
        if name in values:
            try:
                known[name] = fitted(graph.tensors[name], values[name])
            except InputValueError as fault:
                yield Finding("unused_value", str(fault))

"""What a user knows of the dims that data decide."""

from collections.abc import Iterable, Iterator, Mapping

import onnx

from onnxmem.errors import listed, nearest, shortened
from onnxmem.model.binding import input_symbols, names_in, required_inputs
from onnxmem.model.control_flow import trip_count
from onnxmem.model.graph import Graph

Limits = Mapping[str, tuple[int, int]]
"""By ``TENSOR:AXIS``, or the name of the dim: its least and its largest number. By the name of a
tensor: of its elements."""


def limits_of(graph: Graph, model: onnx.ModelProto, most: Mapping[str, int]) -> Limits:
    """The upper ends that a user set, by ``TENSOR:AXIS``.

    A name that the file declares for dims of outputs or activations holds for all of them.
    """
    found = {name: (0, number) for name, number in most.items()}
    for name, number in most.items():
        found |= dict.fromkeys(_declared(model, name), (0, number))
    return {name: ends for name, ends in found.items() if _is_named(graph, name)}


def requested_names(model: onnx.ModelProto, names: Iterable[str]) -> Mapping[str, str]:
    """The names of limits as the user wrote them, by the names of the dims that they limit."""
    return {dim: name for name in names for dim in (*_declared(model, name), name)}


def declared_names(graph: Graph, model: onnx.ModelProto) -> Mapping[str, str]:
    """The names that the file declares for dims of outputs, by ``TENSOR:AXIS`` of the dims that
    data decide.

    ``graph`` has upper ends. A name of other dims too is left out: a limit of it would not be one
    of that dim alone.
    """
    named: dict[str, set[str]] = {
        dim.dim_param: set()
        for value in model.graph.output
        for dim in value.type.tensor_type.shape.dim
        if dim.dim_param
    }
    for value in (*model.graph.output, *model.graph.value_info) if named else ():
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param in named:
                named[dim.dim_param].add(_name_of(graph, value.name, axis))
    found: dict[str, str] = {}
    for symbol, names in named.items():
        if len(names) == 1:
            found.setdefault(names.pop(), symbol)
    return {name: symbol for name, symbol in found.items() if name}


def _name_of(graph: Graph, tensor: str, axis: int) -> str:
    """The name of a dim; "" if data do not decide it."""
    names = graph.tensors[tensor].dynamic if tensor in graph.tensors else ()
    return names[axis] if axis < len(names) else ""


def unknown_limits(graph: Graph, model: onnx.ModelProto, names: Iterable[str]) -> Iterator[str]:
    """What is wrong with each name that is not one of a dim or a Loop of this model, or is one of
    a dim that no data decide.
    """
    for name in names:
        # A name is a symbol of the file, or else TENSOR:AXIS.
        declared = list(_declared(model, name))
        numbers = [_decided(graph, each) for each in (declared or (name,))]
        known = [number for number in numbers if number is not None]
        if len(known) == len(numbers):
            text = f"the data of a run do not decide it, it is {known[0]:,}"
            yield f"--max {name}: {text}; omit --max, or set dims of inputs with --dim"
        elif not (declared or _is_named(graph, name)):
            names = _shown(graph, model)
            hint = _parts_hint(graph, model, name)
            hint = hint or nearest(name, [*names, *filter(None, graph.tensors)])
            decided = f"the data of a run decide {listed(names) if names else 'no dim'}"
            yield f"--max {name}: no dim of that name; {hint}{decided}"


def _shown(graph: Graph, model: onnx.ModelProto) -> list[str]:
    """The dims that data decide, as warnings name them: by what ``--max`` takes."""
    declared = declared_names(graph, model)
    found = (name for tensor in graph.tensors.values() for name in tensor.dynamic if name)
    return [declared.get(name, name) for name in dict.fromkeys(found)]


def _parts_hint(graph: Graph, model: onnx.ModelProto, name: str) -> str:
    """What to give in place of a dim of the inputs, or of a sum or a product; "": it is neither."""
    if name in input_symbols(required_inputs(model.graph)):
        return f"inputs have it: --dim {name}=N; "
    known = set(declared_names(graph, model).values())
    named = name.rpartition(":")[0]
    if named in known:
        return f"{shortened(named)} is the name of a dim: --max {shortened(named)}=N; "
    flags = [f"--max {each}=N" for each in sorted(names_in(name) & known)]
    return f"limit what it is computed from, {' and '.join(flags)}; " if flags else ""


def _declared(model: onnx.ModelProto, symbol: str) -> Iterator[str]:
    """The dims of the main graph's tensors for which the file declares a name."""
    for value in (*model.graph.output, *model.graph.value_info):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if symbol and dim.dim_param == symbol:
                yield f"{value.name}:{axis}"


def _decided(graph: Graph, name: str) -> int | None:
    """The number that ``name`` has in every run; ``None``: data may decide it.

    A dim of a graph with upper ends (``UpperGraph``) is decided if it has no name.
    """
    tensor, _, axis = name.rpartition(":")
    if axis == "iterations":
        loops = (each for each in graph.all_nodes() if each.name == tensor)
        return next((trip_count(graph, each) for each in loops), None)
    if name in graph.tensors:
        found = graph.tensors[name]
        return None if any(found.dynamic) else found.num_elements
    if tensor not in graph.tensors or not axis.isdecimal():
        return None
    index, found = int(axis), graph.tensors[tensor]
    is_open = any(found.dynamic[index : index + 1])
    is_known = found.shape is not None and index < len(found.shape) and not is_open
    return found.shape[index] if is_known and found.shape is not None else None


def _is_named(graph: Graph, name: str) -> bool:
    """Whether a name is ``TENSOR:AXIS``, a tensor, or ``LOOP:iterations``."""
    tensor, _, axis = name.rpartition(":")
    if axis == "iterations":
        return any(node.name == tensor and node.onnx_op == "Loop" for node in graph.all_nodes())
    if name in graph.tensors:
        return True
    if tensor not in graph.tensors or not axis.isdecimal():
        return False
    shape = graph.tensors[tensor].shape
    return shape is None or int(axis) < len(shape)

"""onnx-shape-inference, for the operators that onnx itself has no shape function for.

The library follows the elements of every integer vector and gives a Reshape as many dims as its
target has elements, without a bound: a file of 1 kB that doubles a vector thirty times would take
all memory there is. So it is handed the nodes whose outputs are open and no others, with what is
known of their inputs, and of those no Reshape or Expand whose target is longer than any rank, and
no Concat whose output may be a list of so many elements.

Its word on Split and Squeeze with a second input that is no constant is wrong, and so is its word
on an If of which it knows one branch alone: it is not asked about them. Importing it takes a
quarter of a second, so it is imported when it is needed.
"""

import importlib
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

import onnx
import onnx.numpy_helper

from onnxmem.model.constants import Array
from onnxmem.model.shapes.native_faults import has_long_target, has_odd_parts, may_be_long_list
from onnxmem.model.traversal import onnx_op
from onnxmem.model.value_types import dense_type, is_complete, merged

_MAX_DIM = 2**63 - 1
_RANK_IS_A_LENGTH = frozenset({"Expand", "Reshape"})
"""Operators whose output has as many dims as their second input has elements."""
_WRONG_WITHOUT_CONSTANTS = frozenset({"Split", "Squeeze"})
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})

_Types = Mapping[str, onnx.TypeProto]


def infer_symbolically(
    model: onnx.ModelProto, values: Mapping[str, Array], refused: AbstractSet[str]
) -> bool:
    """Complete open types of the top-level graph in place; true if any was completed.

    ``values`` holds the elements of small constants. ``refused`` names outputs of nodes whose
    inputs do not fit: nothing is derived from those.
    """
    graph = model.graph
    entries = {value.name: value for value in (*graph.value_info, *graph.output)}
    types = {value.name: value.type for value in (*graph.input, *entries.values())}
    types |= {t.name: dense_type(t.data_type, t.dims) for t in graph.initializer}
    nodes = list(_open_nodes(graph, types, values, refused))
    derived = _derived(_part(model, nodes, types, values)) if nodes else {}
    for name, found in derived.items():
        if name not in entries:
            entries[name] = graph.value_info.add(name=name)
        entries[name].type.CopyFrom(merged(entries[name].type, found))
    return bool(derived)


def _open_nodes(
    graph: onnx.GraphProto, types: _Types, values: Mapping[str, Array], refused: AbstractSet[str]
) -> Iterator[onnx.NodeProto]:
    """Nodes with an output to complete, and nothing behind it that the library gets wrong."""
    left_out = set(refused)
    for node in graph.node:
        made = {name for name in node.output if name and not is_complete(types.get(name))}
        if not made:
            continue
        if left_out.isdisjoint((*node.input, *made)) and _is_sound(node, types, values):
            yield node
        else:
            left_out |= made


_WRONG_TYPES = frozenset({"QGemm"})
"""onnxruntime's operators of which the library takes the type of the scale for the result's."""


def _is_sound(node: onnx.NodeProto, types: _Types, values: Mapping[str, Array]) -> bool:
    """Whether the library can be asked about an operator and its operands."""
    if node.op_type in _WRONG_TYPES:
        return False
    operator, operands = onnx_op(node), node.input[1:]
    if operator in _WRONG_WITHOUT_CONSTANTS:
        return values.keys() >= {*operands} and not has_odd_parts(node)
    if operator in _RANK_IS_A_LENGTH:
        return not has_long_target(node, types)
    if operator == "Concat":
        return not may_be_long_list(node, types)
    return operator not in _CONTROL_FLOW


def _part(
    model: onnx.ModelProto,
    nodes: list[onnx.NodeProto],
    types: _Types,
    values: Mapping[str, Array],
) -> onnx.ModelProto:
    """A model of some nodes alone; what they read of others is constant where it is known."""
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in node.input if name and name not in made)
    for name in read:
        if name in values:
            part.graph.initializer.append(onnx.numpy_helper.from_array(values[name], name))
        else:
            part.graph.input.add(name=name, type=types.get(name))
    for name in sorted(made & types.keys()):
        part.graph.value_info.add(name=name, type=types[name])
    part.graph.node.extend(nodes)
    return part


def _keep_off_stderr(*names: str) -> None:
    """Give loggers a handler that writes nothing, unless the program has set up logging.

    Python writes the warnings of a logger without any handler to stderr.
    """
    logging = importlib.import_module("logging")
    for logger in map(logging.getLogger, names):
        if not logger.hasHandlers():
            logger.addHandler(logging.NullHandler())


def _derived(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Every open tensor whose dims the library finds to be numbers."""
    ir = importlib.import_module("onnx_ir")
    library = importlib.import_module("onnx_shape_inference")
    _keep_off_stderr("onnx_ir", "onnx_shape_inference")
    try:
        graph = library.infer_symbolic_shapes(
            ir.from_proto(model), warn_on_missing=False, adopt_declared_symbols=False
        ).graph
    except Exception:  # noqa: BLE001 - a fault of its own costs its results alone
        return {}
    found = {}
    known = {value.name for value in model.graph.value_info if is_complete(value.type)}
    for value in (output for node in graph for output in node.outputs):
        if value.shape is None or value.dtype is None or not value.name or value.name in known:
            continue
        dims = [dim for dim in value.shape.dims if isinstance(dim, int) and 0 <= dim <= _MAX_DIM]
        if len(dims) == len(value.shape.dims):
            found[value.name] = dense_type(value.dtype.value, dims)
    return found

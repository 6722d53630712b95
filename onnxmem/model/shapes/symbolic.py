"""onnx-shape-inference, for the operators that onnx itself has no shape function for.

Its word on Split and Squeeze with a second input that is no constant is wrong, and so is its word
on an If of which it knows one branch alone; both are discarded, with all that follows from them.
Importing it takes a quarter of a second, so it is imported when it is needed.
"""

import importlib
import logging
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

import onnx

from onnxmem.model.traversal import initializer_names, onnx_op
from onnxmem.model.value_types import dense_type, is_complete, merged

_WRONG_WITHOUT_CONSTANTS = frozenset({"Split", "Squeeze"})
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})


def infer_symbolically(model: onnx.ModelProto, refused: AbstractSet[str]) -> bool:
    """Complete open types of the top-level graph in place; true if any was completed.

    ``refused`` names outputs of nodes whose inputs do not fit: nothing is derived from those.
    """
    types = {v.name: v for v in (*model.graph.value_info, *model.graph.output)}
    complete = {name for name, value in types.items() if is_complete(value.type)}
    derived = _derived(model)
    trusted = [name for name in _trusted(model.graph, complete, refused) if name in derived]
    for name in trusted:
        if name not in types:
            types[name] = model.graph.value_info.add(name=name)
        types[name].type.CopyFrom(merged(types[name].type, derived[name]))
    return bool(trusted)


def _trusted(
    graph: onnx.GraphProto, complete: AbstractSet[str], refused: AbstractSet[str]
) -> Iterator[str]:
    """Open tensors that no wrong rule stands behind: no untrusted node on any path to them."""
    constants = initializer_names(graph)
    constants |= {node.output[0] for node in graph.node if onnx_op(node) == "Constant"}
    tainted: set[str] = set(refused)
    for node in graph.node:
        is_wrong = onnx_op(node) in _CONTROL_FLOW or (
            onnx_op(node) in _WRONG_WITHOUT_CONSTANTS and not constants.issuperset(node.input[1:])
        )
        if is_wrong or not tainted.isdisjoint((*node.input, *node.output)):
            tainted.update(name for name in node.output if name not in complete)
        else:
            yield from (name for name in node.output if name and name not in complete)


def _derived(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Every tensor whose dims the library finds to be numbers."""
    ir = importlib.import_module("onnx_ir")
    library = importlib.import_module("onnx_shape_inference")
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        graph = library.infer_symbolic_shapes(ir.from_proto(model), warn_on_missing=False).graph
    except Exception:  # noqa: BLE001 - a fault of its own costs its results alone
        return {}
    finally:
        logging.disable(level)
    found = {}
    for value in (output for node in graph for output in node.outputs):
        if value.shape is None or value.dtype is None or not value.name:
            continue
        dims = [dim for dim in value.shape.dims if isinstance(dim, int)]
        if len(dims) == len(value.shape.dims):
            found[value.name] = dense_type(value.dtype.value, dims)
    return found

"""onnx-shape-inference, for the operators that onnx itself has no shape function for.

Its word on Split and Squeeze with a second input that is no constant is wrong and is discarded.
Importing it takes a quarter of a second, so it is imported when it is needed.
"""

import importlib
import logging

import onnx

from onnxmem.model.types import dense_type, is_complete, merged

_UNTRUSTED = frozenset({"Split", "Squeeze"})


def infer_symbolically(model: onnx.ModelProto) -> bool:
    """Complete open types of the top-level graph in place; true if any was completed."""
    constants = {tensor.name for tensor in model.graph.initializer}
    constants |= {n.output[0] for n in model.graph.node if n.op_type == "Constant"}
    types = {v.name: v for v in (*model.graph.value_info, *model.graph.output)}
    derived = _derived(model)
    progress = False
    for node in model.graph.node:
        if node.op_type in _UNTRUSTED and not constants.issuperset(node.input[1:]):
            continue
        for name in node.output:
            known = types.get(name)
            if name not in derived or (known is not None and is_complete(known.type)):
                continue
            if known is None:
                known = types[name] = model.graph.value_info.add(name=name)
            known.type.CopyFrom(merged(known.type, derived[name]))
            progress = True
    return progress


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

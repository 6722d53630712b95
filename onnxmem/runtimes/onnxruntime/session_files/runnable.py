"""The child's side: a model file that a runtime can open, where the one at hand will not do.

Absent weights are filled, nodes get names of their own, and a batch that the file fixes is moved.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from onnxmem.children.wire import JSON
from onnxmem.errors import ShapeError, listed
from onnxmem.model import ModelFile, prepare
from onnxmem.model.binding import given_inputs
from onnxmem.model.filling import is_hollow, stored_tensors, write_filled
from onnxmem.model.shapes.inference import inferred
from onnxmem.model.shapes.rebatching import rebatch
from onnxmem.model.traversal import graphs_in
from onnxmem.model.value_types import dense_type, forget_shapes
from onnxmem.runtimes.onnxruntime.session_files.node_names import name_nodes


def write_runnable(
    source: str, folder: str, shapes: Mapping[str, Sequence[int]], batches: Sequence[int]
) -> dict[str, JSON]:
    """Write the model of ``source`` into ``folder`` so that it runs there.

    ``batches`` is empty, or the batch that the file fixes and the one that takes its place in the
    inputs, whose ``shapes`` are given. Comes back: ``path``, and ``num_filled`` weights that were
    made up: all that lie outside the file, for what is next to a model is not next to its copy.

    :raises ShapeError: constants keep the graph at the batch that the file fixes.
    """
    model = onnx.ModelProto.FromString(Path(source).read_bytes())
    if batches:
        old, new = batches
        model = _at_batch(model, shapes, old, new)
    name_nodes(model)
    elsewhere = [tensor for tensor in stored_tensors(model) if _is_elsewhere(tensor)]
    written = write_filled(model, elsewhere, Path(folder))
    return {"path": str(written.path), "num_filled": written.num_filled}


def _is_elsewhere(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL or is_hollow(tensor)


def _at_batch(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], old: int, new: int
) -> onnx.ModelProto:
    """The model with another batch in its inputs and in the constants that carry it.

    Weights that are as long as the batch grow, and are made up.
    """
    prepared = prepare(ModelFile("", model, 0)).proto
    at_new = _bound(prepared, shapes)
    old_shapes = {name: [old, *dims[1:]] if dims else [] for name, dims in shapes.items()}
    at_old, _ = inferred(_bound(prepared, old_shapes))
    failures = rebatch(at_new, at_old, old, new).failures
    if failures:
        message = f"constants keep the graph at batch {old}, at {listed(failures)}"
        raise ShapeError(message)
    _free_symbols(at_new, prepared)
    return at_new


def _bound(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """Copy a model with these shapes for its inputs, without the shapes that it declares."""
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    for graph in graphs_in(bound.graph):
        forget_shapes(graph)
    for value in given_inputs(bound.graph):
        if value.name in shapes:
            value.type.CopyFrom(dense_type(value.type.tensor_type.elem_type, shapes[value.name]))
    return bound


def _free_symbols(model: onnx.ModelProto, before: onnx.ModelProto) -> None:
    """Let the dims that were symbols be symbols again: a runtime plans with what it knows."""
    pairs = zip(given_inputs(model.graph), given_inputs(before.graph), strict=True)
    for value, declared in pairs:
        dims = declared.type.tensor_type.shape.dim
        for dim, was in zip(value.type.tensor_type.shape.dim, dims, strict=True):
            if not was.HasField("dim_value"):
                dim.CopyFrom(was)

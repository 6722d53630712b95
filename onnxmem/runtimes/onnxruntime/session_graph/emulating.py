"""A session's graph where onnxruntime is not at hand: its optimiser emulated."""

from collections.abc import Mapping

import onnx

from onnxmem.model.building import Prepared
from onnxmem.runtimes.onnxruntime.allocation.planning import LoadShape
from onnxmem.runtimes.onnxruntime.cpu import Cpu
from onnxmem.runtimes.onnxruntime.optimizer.constants import content_of
from onnxmem.runtimes.onnxruntime.optimizer.pipeline import optimised
from onnxmem.runtimes.onnxruntime.optimizer.reading import INDEX
from onnxmem.runtimes.onnxruntime.session_graph.loaded import (
    OptimisedModel,
    PlacedContents,
    PlacedIndices,
    PlacedShapes,
)
from onnxmem.runtimes.onnxruntime.session_graph.placing import placed_graphs


def emulated(prepared: Prepared, level: str, dims: Mapping[str, int], cpu: Cpu) -> OptimisedModel:
    """What onnxruntime's optimiser would make of a model, as far as the emulation goes.

    ``dims`` are numbers for symbols, as free-dimension overrides give them.
    """
    given = prepared.with_calls or prepared.proto
    return optimised_of(optimised(given, level, dims=dims, cpu=cpu), level, cpu)


def optimised_of(model: onnx.ModelProto, level: str, cpu: Cpu) -> OptimisedModel:
    """A model that the passes left, with what else they say of it."""
    return OptimisedModel(
        proto=model,
        shapes=_placed_shapes(model.graph),
        is_in_running_order=True,
        level=level,
        optimiser="onnxmem",
        cpu=cpu,
        contents=_placed_contents(model.graph),
        indices=_placed_indices(model.graph),
    )


def unoptimised(prepared: Prepared, level: str, cpu: Cpu) -> OptimisedModel:
    """The file's own graph, with the shapes that it declares."""
    shapes = _placed_shapes(prepared.proto.graph)
    proto = onnx.ModelProto()
    proto.CopyFrom(prepared.proto)  # who reads it takes doubled constants out
    return OptimisedModel(proto, shapes, False, level, "nobody", cpu)  # noqa: FBT003 - a field


def _placed_shapes(main: onnx.GraphProto) -> PlacedShapes:
    """The shapes that the optimised model carries, by the place of their graph."""
    return {
        place: {
            value.name: _load_shape(value.type)
            for value in (*graph.value_info, *graph.output, *graph.input)
        }
        for place, graph in placed_graphs(main)
    }


def _placed_contents(main: onnx.GraphProto) -> PlacedContents:
    """What constants of equal elements have in common, by the place of their graph."""
    return {
        place: {
            tensor.name: content
            for tensor in graph.initializer
            if (content := content_of(tensor)) is not None
        }
        for place, graph in placed_graphs(main)
    }


def _placed_indices(main: onnx.GraphProto) -> PlacedIndices:
    """The numbers of the nodes, by the place of their graph and their first output."""
    return {
        place: {
            next(filter(None, node.output), ""): int(entry.value)
            for node in graph.node
            for entry in node.metadata_props
            if entry.key == INDEX
        }
        for place, graph in placed_graphs(main)
    }


def _load_shape(proto: onnx.TypeProto) -> LoadShape | None:
    if proto.WhichOneof("value") != "tensor_type" or not proto.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in proto.tensor_type.shape.dim
    )

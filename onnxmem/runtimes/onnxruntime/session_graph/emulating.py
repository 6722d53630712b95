"""A session's graph where onnxruntime is not at hand: its optimiser emulated."""

from collections.abc import Iterator, Mapping

import onnx

from onnxmem.model import Prepared
from onnxmem.model.traversal import subgraphs
from onnxmem.runtimes.onnxruntime.allocation.planning import LoadShape
from onnxmem.runtimes.onnxruntime.optimiser import optimised
from onnxmem.runtimes.onnxruntime.session_graph.loaded import OptimisedModel


def emulated(
    prepared: Prepared, level: str, dims: Mapping[str, int], channel_block: int
) -> OptimisedModel:
    """What onnxruntime's optimiser would make of a model, as far as the emulation goes.

    ``dims`` are numbers for symbols, as free-dimension overrides give them.
    """
    model = optimised(prepared.proto, level, dims=dims, channel_block=channel_block)
    shapes = dict(_placed(model.graph, ""))
    return OptimisedModel(model, shapes, level != "off", level, "onnxmem")


def unoptimised(prepared: Prepared, level: str) -> OptimisedModel:
    """The file's own graph, with the shapes that it declares."""
    shapes = dict(_placed(prepared.proto.graph, ""))
    proto = onnx.ModelProto()
    proto.CopyFrom(prepared.proto)  # who reads it takes doubled constants out
    return OptimisedModel(proto, shapes, False, level, "nobody")  # noqa: FBT003 - a field


def _placed(
    graph: onnx.GraphProto, place: str
) -> Iterator[tuple[str, Mapping[str, LoadShape | None]]]:
    """The shapes that the optimised model carries, by the place of their graph."""
    values = (*graph.value_info, *graph.output, *graph.input)
    yield place, {value.name: _load_shape(value.type) for value in values}
    for node in graph.node:
        for attribute, body in subgraphs(node):
            here = f"{node.output[0]}/{attribute}"
            yield from _placed(body, f"{place}/{here}" if place else here)


def _load_shape(proto: onnx.TypeProto) -> LoadShape | None:
    if proto.WhichOneof("value") != "tensor_type" or not proto.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in proto.tensor_type.shape.dim
    )

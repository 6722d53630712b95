"""Resize of values in blocks: whole scales along height and width.

Source: onnxruntime/core/optimizer/nchwc_transformer.cc, ``TransformResize``.
"""

import numpy as np

from onnxmem.runtimes.onnxruntime.optimizer.attributes import put, text
from onnxmem.runtimes.onnxruntime.optimizer.graph import Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import NCHWC, integers_of
from onnxmem.runtimes.onnxruntime.optimizer.nchwc.layout import NUM_DIMS, Layout
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node

_SCALES, _SIZES = 2, 3
_RESIZE_READS_REGION = 11


def transform_resize(layout: Layout, node: Node) -> None:
    """Repeat or interpolate pixels a whole number of times."""
    found = layout.values.get(node.inputs[0])
    scales = None if found is None else _whole_scales(layout, node)
    if found is None or scales is None:
        return
    graph = layout.graph
    name = graph.fresh_node_name(f"{node.outputs[0]}_nchwc")
    made = add_node(graph, NewNode("Upsample", [found.name], (), NCHWC, name))
    put(made, "scales", scales)
    if text(node, "mode") == "linear":
        put(made, "mode", "linear")
        mode = text(node, "coordinate_transformation_mode", "asymmetric")
        put(made, "coordinate_transformation_mode", mode)
    layout.take(node.inputs[0])
    layout.record(node, made, found.channels, layout.plain(node.outputs[0]))


def _whole_scales(layout: Layout, node: Node) -> list[int] | None:
    place = 1
    if node.op_type == "Resize" and node.since_version >= _RESIZE_READS_REGION:
        if not _is_supported_mode(node):
            return None
        if node.input_at(_SIZES):
            return _scales_to(layout, node)
        place = _SCALES
    values = layout.graph.array(node.input_at(place)) if node.input_at(place) else None
    if values is None or values.dtype != np.float32 or values.shape != (NUM_DIMS,):
        return None
    return _whole([float(value) for value in values])


def _scales_to(layout: Layout, node: Node) -> list[int] | None:
    """Scales from the sizes asked for, where the input's are known."""
    sizes = integers_of(layout.graph, node.inputs[_SIZES])
    dims = layout.graph.dims_of(node.inputs[0])
    if sizes is None or dims is None or len(sizes) != len(dims) or len(dims) != NUM_DIMS:
        return None
    known = [dim for dim in dims if isinstance(dim, int) and dim > 0]
    if len(known) != NUM_DIMS:
        return None
    return _whole([size / dim for size, dim in zip(sizes, known, strict=True)])


def _whole(scales: list[float]) -> list[int] | None:
    whole = [int(scale) for scale in scales]
    is_whole = all(s > 0 and float(s) == scale for s, scale in zip(whole, scales, strict=True))
    return whole if is_whole and whole[:2] == [1, 1] else None


def _is_supported_mode(node: Node) -> bool:
    mode, transformation = text(node, "mode"), text(node, "coordinate_transformation_mode")
    if mode == "nearest":
        return transformation == "asymmetric" and text(node, "nearest_mode") == "floor"
    is_known = transformation in {"asymmetric", "align_corners", "half_pixel"}
    return mode == "linear" and is_known

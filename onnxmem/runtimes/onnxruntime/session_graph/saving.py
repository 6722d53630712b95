"""The child's side: let onnxruntime optimise a model and write down what came of it.

Two sessions save the same graph. The file in ONNX's format stands in running order and has no
shapes; the one in onnxruntime's own format has the shapes at load. The weights of the first go to
the null device, and the second is removed as soon as it is read.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import onnx
import onnxruntime as ort

from onnxmem.children.running import JSON
from onnxmem.model.traversal import onnx_op
from onnxmem.runtimes.onnxruntime.session_graph.load_shapes import (
    contents_at_load,
    indices_at_load,
    shapes_at_load,
)
from onnxmem.runtimes.onnxruntime.session_graph.placing import placed_graphs

_LEVELS: Final = {
    "off": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_READ: Final[tuple[tuple[str, Callable[[bytes], Mapping[str, object]]], ...]] = (
    ("shapes", shapes_at_load),
    ("contents", contents_at_load),
    ("indices", indices_at_load),
)
"""What comes of the graph in onnxruntime's own format, as files of these names."""
_WEIGHTS: Final = "weights"
_INLINE_BYTES: Final = "8192"
"""Smaller constants stay in the file: sizes follow from sizes of parts, targets and axes.

Integers of more bytes are left out as the file is read, too (``onnxmem.model.wire``).
"""
_QUIET: Final = 4
_MOST_IN_OWN_FORMAT: Final = 1_500_000_000
"""Of weights in bytes: a file in onnxruntime's own format ends at 2 GiB."""


def save_optimised(
    model: str, folder: str, level: str, overrides: Mapping[str, int], weight_bytes: int
) -> dict[str, JSON]:
    """Write ``optimised.onnx`` and the files of ``_READ`` into ``folder``.

    Comes back: ``version`` of onnxruntime, ``changed``: whether any node differs from the file's,
    and ``in_file_order``: the places of the graphs in which none does. A graph in which nothing was
    changed is saved in the file's order, and any other in the running order; Constants do not
    count, for they become initializers either way.
    """
    Path(folder, _WEIGHTS).symlink_to(os.devnull)
    target = Path(folder, "optimised.onnx")
    options = _options(level, overrides)
    options.optimized_model_filepath = str(target)
    for key, value in (("file_name", _WEIGHTS), ("min_size_in_bytes", _INLINE_BYTES)):
        options.add_session_config_entry(
            f"session.optimized_model_external_initializers_{key}", value
        )
    ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    saved = None
    if weight_bytes < _MOST_IN_OWN_FORMAT:
        saved = _in_own_format(model, Path(folder, "own.ort"), _options(level, overrides))
    for name, read in _READ:
        plain = {} if saved is None else read(saved)
        Path(folder, f"{name}.json").write_text(json.dumps(plain), encoding="utf-8")
    before, after = _nodes(model), _nodes(str(target))
    kept: list[JSON] = [place for place, nodes in after.items() if before.get(place) == nodes]
    changed = len(kept) < len(after)
    return {"version": ort.__version__, "changed": changed, "in_file_order": kept}


def _options(level: str, overrides: Mapping[str, int]) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.graph_optimization_level = _LEVELS[level]
    options.intra_op_num_threads = 1
    options.log_severity_level = _QUIET
    # What kernels pack comes after the graph, and would read every weight.
    options.add_session_config_entry("session.disable_prepacking", "1")
    for symbol, number in overrides.items():
        options.add_free_dimension_override_by_name(symbol, number)
    return options


def _in_own_format(model: str, target: Path, options: ort.SessionOptions) -> bytes:
    options.optimized_model_filepath = str(target)
    options.add_session_config_entry("session.save_model_format", "ORT")
    try:
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return target.read_bytes()
    finally:
        target.unlink(missing_ok=True)


def _nodes(path: str) -> dict[str, list[tuple[str, list[str], list[str]]]]:
    """What each graph of a file runs, by the place of the graph."""
    main = onnx.load(path, load_external_data=False).graph
    return {
        place: [
            (node.op_type, list(node.input), list(node.output))
            for node in graph.node
            if onnx_op(node) != "Constant"
        ]
        for place, graph in placed_graphs(main)
    }

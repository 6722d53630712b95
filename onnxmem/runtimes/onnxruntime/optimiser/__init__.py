"""onnxruntime's graph optimiser, emulated: no onnxruntime needed, no weights read.

Each module holds one of its passes and names its source. ``pipeline`` says which run when.
"""

from collections.abc import Mapping
from typing import Literal

import onnx

from onnxmem.runtimes.onnxruntime.cpu import AVX512, Cpu
from onnxmem.runtimes.onnxruntime.optimiser.pipeline import optimise
from onnxmem.runtimes.onnxruntime.optimiser.reading import read_model, write_model
from onnxmem.runtimes.onnxruntime.optimiser.shapes.inference import resolve
from onnxmem.runtimes.onnxruntime.optimiser.value_types import Dims, TensorType

__all__ = ["Level", "optimised", "planner_shapes"]

Level = Literal["off", "basic", "extended", "all"]
"""``GraphOptimizationLevel``: how much is optimised, as sessions name it."""


def optimised(
    model: onnx.ModelProto,
    level: str,
    *,
    dims: Mapping[str, int] | None = None,
    cpu: Cpu = AVX512,
) -> onnx.ModelProto:
    """The graph that a session on the CPU would run, in the order in which it runs it.

    :param model: as ``prepare`` leaves it: the functions inlined, or as its ``with_calls`` holds
        them, the payloads of large tensors absent. A constant that is computed from absent ones is
        written with dims and type alone.
    :param level: ``off``, ``basic``, ``extended`` or ``all``; see ``Level``.
    :param dims: numbers for symbolic dims of the inputs, as free-dimension overrides give them.
    :param cpu: the CPU that the session runs on: passes and the blocks of images follow it.
    :returns: a new model with the shapes that the session knows at load as ``value_info``. It may
        hold operators of the domains ``com.microsoft`` and ``com.microsoft.nchwc``.
    """
    graph = read_model(model)
    functions = {(function.domain, function.name): function for function in model.functions}
    optimise(graph, level, dims or {}, cpu, functions)
    return write_model(graph, model)


def planner_shapes(model: onnx.ModelProto, *, cpu: Cpu = AVX512) -> dict[str, Dims | None]:
    """The shapes that a session knows at load, by name; ``None`` where the rank is unknown.

    A dim is a number, a symbol of the file's, or ``None``. What a file states of a value is kept
    and filled up: the symbol that it states for an inner value outlives an override of the input's.
    Values of subgraphs stand beside the outer ones, which win where a name is taken twice.

    :param model: a model, optimised or not; its own shape statements count.
    :param cpu: the CPU whose blocks of channels the image operators have, if there are any.
    """
    graph = read_model(model)
    for inner in graph.graphs():
        inner.cpu = cpu
    resolve(graph)
    shapes: dict[str, Dims | None] = {}
    for inner in graph.graphs():
        for name, known in inner.types.items():
            shapes.setdefault(name, known.dims if isinstance(known, TensorType) else None)
    return shapes

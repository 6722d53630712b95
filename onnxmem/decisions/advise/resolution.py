"""Images of half the side: a quarter of what convolutions make of them.

An image is a floating or byte input of rank 4 or 5 with 1 to 4 channels, behind the batch (as
ONNX's convolutions have them) or last. What tells whether the model takes another size is the
analysis: a classifier behind a fixed flatten has no shapes then, and there is no such advice.
"""

from collections.abc import Iterator

from onnxmem.analysis.compute import compute
from onnxmem.decisions.advise.changes import with_shapes
from onnxmem.decisions.advise.figures import Subject
from onnxmem.decisions.advise.proposals import Idea, Price
from onnxmem.errors import OnnxmemError
from onnxmem.model import DType, Graph
from onnxmem.model.binding import input_dims

_RANKS = (4, 5)
_MOST_CHANNELS = 4
_LEAST_SIDE = 16
"""Half of a smaller side is no image."""


def resolution_ideas(subject: Subject) -> Iterator[Idea]:
    """Every image of half the side, where the model can be worked out so."""
    terms = subject.terms()
    before = terms.bound
    shapes = dict(_halved(before.graph))
    if not shapes:
        return
    change = with_shapes(shapes, _symbols(subject, shapes))
    try:
        after = change(subject).terms()
    except OnnxmemError:
        return
    known = {finding.code for finding in before.findings}
    if not after.is_whole or any(f.code not in known for f in after.bound.findings):
        return
    flops = _flops(before.graph, after.bound.graph)
    yield Idea(
        id="resolution",
        group="resolution",
        what="half the side: " + ", ".join(_flag(name, dims) for name, dims in shapes.items()),
        price=Price.ACCURACY,
        cost=f"details are lost, to be trained or checked so{flops}",
        change=change,
        settings={"shapes": {name: list(dims) for name, dims in shapes.items()}},
    )


def _halved(graph: Graph) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in graph.inputs:
        tensor = graph.tensors[name]
        shape = tensor.shape
        is_image = tensor.dtype in {DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.UINT8}
        if not is_image or shape is None or None in shape or len(shape) not in _RANKS:
            continue
        dims = tuple(dim for dim in shape if dim is not None)
        channels_first = dims[1] <= _MOST_CHANNELS
        if not channels_first and dims[-1] > _MOST_CHANNELS:
            continue
        first, last = (2, len(dims)) if channels_first else (1, len(dims) - 1)
        if min(dims[first:last]) >= _LEAST_SIDE:
            yield name, (*dims[:first], *(dim // 2 for dim in dims[first:last]), *dims[last:])


def _symbols(subject: Subject, shapes: dict[str, tuple[int, ...]]) -> frozenset[str]:
    values = subject.question.prepared.given
    dims = (dim for value in values if value.name in shapes for dim in input_dims(value) or ())
    return frozenset(dim for dim in dims if isinstance(dim, str))


def _flag(name: str, dims: tuple[int, ...]) -> str:
    return f"--shape {name}:{','.join(map(str, dims))}"


def _flops(before: Graph, after: Graph) -> str:
    now, then = compute(before).forward_flops, compute(after).forward_flops
    if not now or then is None:
        return ""
    return f"; FLOPs {100 * (then / now - 1):+.0f} %"

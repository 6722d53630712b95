"""Dropout that an exporter writes out as a product with random numbers."""

from collections.abc import Iterator

from onnxmem.model.graph import Node
from onnxmem.ops.registry import lookup
from onnxmem.runtimes.torch.composites.rewriting import Match, Sight
from onnxmem.runtimes.torch.constants import data_reads

_RANDOM = ("RandomUniformLike", "RandomUniform", "Bernoulli")
_STEPS = ("Cast", "CastLike", "Div", "Mul", "Less", "LessOrEqual", "Greater", "Not")


def dropouts(sight: Sight) -> Iterator[Match]:
    """Find ``x * Cast(RandomUniformLike(x) < keep) / keep``: a mask as large as ``x``."""
    for node in sight.graph.nodes:
        if node.onnx_op != "Mul":
            continue
        for data, mask in sight.operands(node):
            steps = _mask(sight, mask)
            if steps and sight.dims(mask) == sight.dims(data) is not None:
                dropout = lookup("Dropout", opset=1)
                yield Match((*steps, node), dropout, (data,), (), {"ratio": 0.5, "is_test": 0})


def _mask(sight: Sight, name: str) -> tuple[Node, ...]:
    """The nodes from random numbers to a mask, read by nothing else; none if there are none."""
    nodes: list[Node] = []
    while (maker := sight.maker(name, *_STEPS, *_RANDOM)) is not None:
        nodes.insert(0, maker)
        if maker.onnx_op in _RANDOM:
            return tuple(nodes)
        data = [text for text in data_reads(maker) if sight.number(text) is None]
        if len(data) != 1:
            return ()
        name = data[0]
    return ()

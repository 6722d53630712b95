"""The filters of a model's convolutions, and the nodes that went into them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from onnxmem.model import Graph, Node
from onnxmem.runtimes.onnxruntime.process.folding import Folding
from onnxmem.runtimes.onnxruntime.process.terms import MadeWeight, Making

CONVOLUTIONS: Final = ("Conv", "FusedConv")
_CHANGES_FILTER: Final = ("BatchNormalization", "Mul")
"""``core/optimizer/conv_bn_fusion.cc``, ``conv_mul_fusion.cc``."""
_CHANGES_BIAS: Final = "Add"
"""``core/optimizer/conv_add_fusion.cc``."""
_MAX_ROUNDS: Final = 10
"""A level is repeated until nothing changes, but no more often (``inference_session.cc``)."""


@dataclass(slots=True)
class _Filter:
    """A constant filter, as far as fusions have come."""

    name: str
    size_bytes: int
    output: str
    """What its convolution puts out by now."""


class Filters:
    """The constant filters of a model, under their latest names."""

    def __init__(
        self, model: Graph, session: Graph, folding: Folding, at_hand: Mapping[str, int]
    ) -> None:
        self._folding, self._at_hand = folding, at_hand
        self._remaining = {
            (node.op_type, name) for node in session.all_nodes() for name in node.writes
        }
        self._readers: dict[str, list[Node]] = {}
        self._filters: list[_Filter] = []
        for node in model.all_nodes():
            for name in node.reads:
                self._readers.setdefault(name, []).append(node)
            if node.op_type in CONVOLUTIONS and len(node.inputs) > 1 and node.writes:
                name = folding.latest(node.inputs[1])
                if name in at_hand:
                    self._filters.append(_Filter(name, at_hand[name], node.outputs[0]))

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each, by name."""
        return {each.name: each.size_bytes for each in self._filters}

    def fused(self) -> tuple[tuple[MadeWeight, ...], ...]:
        """Filters into which the node behind their convolution went, one node in each round."""
        rounds = []
        for _ in range(_MAX_ROUNDS):
            made = tuple(self._round())
            if not made:
                break
            rounds.append(made)
        return tuple(rounds)

    def _round(self) -> Iterator[MadeWeight]:
        for each in self._filters:
            behind = self._behind(each.output)
            while behind is not None and behind.op_type == _CHANGES_BIAS:
                each.output = behind.outputs[0]
                behind = self._behind(each.output)
            if behind is not None:
                source, each.output = each.name, behind.outputs[0]
                each.name = f"{source} with {each.output}"
                yield MadeWeight(each.name, each.size_bytes, Making.FUSED, source, each.size_bytes)

    def _behind(self, output: str) -> Node | None:
        """The only reader of an output, where it reads constants beside and is gone."""
        readers = self._readers.get(output, [])
        if len(readers) != 1 or readers[0].op_type not in (*_CHANGES_FILTER, _CHANGES_BIAS):
            return None
        node = readers[0]
        others = (self._folding.latest(name) for name in node.reads if name != output)
        is_gone = (node.op_type, node.outputs[0]) not in self._remaining
        return node if is_gone and all(name in self._at_hand for name in others) else None

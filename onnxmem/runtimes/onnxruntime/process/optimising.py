"""Which weights the optimiser made, of which others and in which order.

The two graphs tell it: a node of constants that the optimised graph has not was folded, a node behind
a convolution may have gone into its filter, and a weight that the file has not is new. Names tell
what a new weight was made of, and where they don't, sizes do.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from onnxmem.model import Graph, Node, Tensor
from onnxmem.runtimes.onnxruntime.prepacking import initializers
from onnxmem.runtimes.onnxruntime.process.folding import Folding
from onnxmem.runtimes.onnxruntime.process.terms import MadeWeight, Making

_NCHWC: Final = "com.microsoft.nchwc"
_CONVOLUTIONS: Final = ("Conv", "FusedConv")
_CHANGES_FILTER: Final = ("BatchNormalization", "Mul")
"""``conv_bn_fusion.cc``, ``conv_mul_fusion.cc``."""
_CHANGES_BIAS: Final = "Add"
"""``conv_add_fusion.cc``."""
_MAX_ROUNDS: Final = 10
"""``kMaxGraphTransformationSteps``'s order: a level is repeated until nothing changes."""

Sizes = dict[str, int]


@dataclass(frozen=True, slots=True)
class Made:
    """The weights that an optimiser made."""

    levels: tuple[tuple[MadeWeight, ...], ...]
    """In rounds: what nothing reads when a round ends is freed."""
    kept: frozenset[str]
    """The weights that are left in the end."""


def made_weights(model: Graph, session: Graph) -> Made:
    """What became of a model's weights, ``session`` being the optimised graph."""
    folding = Folding(model, session)
    at_hand = {name: tensor.size_bytes or 0 for name, tensor in initializers(model).items()}
    folded = tuple(folding.made())
    stored = dict(at_hand)
    at_hand |= {each.name: each.size_bytes for each in folded}
    filters = _Filters(model, session, folding, at_hand)
    fused = filters.fused()
    left = initializers(session)
    new = {
        name: making
        for name, making in _readings(session)
        if name in left and at_hand.get(name) != (left[name].size_bytes or 0)
    }
    layout = tuple(_reordered(new, left, dict(filters.sizes)))
    used = {each.source for each in layout}
    final = {n: size for n, size in filters.sizes.items() if n not in used and n not in at_hand}
    others = tuple(_others(new, left, initializers(model), _Pool(dict(final))))
    first, later = (fused[0], fused[1:]) if fused else ((), ())
    levels = ((*folded, *others, *first), *later, layout)
    return Made(tuple(filter(None, levels)), frozenset({*left, *final}))


@dataclass(slots=True)
class _Pool:
    """Weights, each of which is the source of one other."""

    sizes: Sizes

    def take(self, size_bytes: int) -> str | None:
        """The first of a size, or else the largest smaller one: channels may be padded."""
        fitting = [name for name, size in self.sizes.items() if size <= size_bytes]
        return self._without(max(fitting, key=self.sizes.__getitem__, default=None))

    def take_equal(self, size_bytes: int) -> str | None:
        """The first of a size."""
        equal = (name for name, size in self.sizes.items() if size == size_bytes)
        return self._without(next(equal, None))

    def _without(self, name: str | None) -> str | None:
        if name is not None:
            del self.sizes[name]
        return name


class _Filters:
    """The filters of a model's convolutions, as far as they are constants."""

    def __init__(self, model: Graph, session: Graph, folding: Folding, at_hand: Sizes) -> None:
        self._remaining = {
            (node.op_type, name) for node in session.all_nodes() for name in node.writes
        }
        self._readers: dict[str, list[Node]] = {}
        for node in model.all_nodes():
            for name in node.reads:
                self._readers.setdefault(name, []).append(node)
        self._folding, self._at_hand = folding, at_hand
        self._ends: list[tuple[str, str, int]] = []
        """Each filter's latest name, what its convolution puts out by now, and its bytes."""
        for node in model.all_nodes():
            name = folding.latest(node.inputs[1]) if node.op_type in _CONVOLUTIONS else ""
            if name in at_hand:
                self._ends.append((name, node.outputs[0], at_hand[name]))

    @property
    def sizes(self) -> Sizes:
        """The filters that the layout's level finds."""
        return {name: size for name, _, size in self._ends}

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
        for place, (name, output, size) in enumerate(self._ends):
            behind = self._behind(output)
            while behind is not None and behind.op_type == _CHANGES_BIAS:
                output = behind.outputs[0]
                behind = self._behind(output)
            if behind is not None:
                result = f"{name} with {behind.outputs[0]}"
                self._ends[place] = (result, behind.outputs[0], size)
                yield MadeWeight(result, size, Making.FUSED, name, size)

    def _behind(self, output: str) -> Node | None:
        """The only reader of an output, where it reads constants beside and is gone."""
        readers = self._readers.get(output, [])
        if len(readers) != 1 or readers[0].op_type not in (*_CHANGES_FILTER, _CHANGES_BIAS):
            return None
        node = readers[0]
        others = (self._folding.latest(name) for name in node.reads if name != output)
        is_constant = all(name in self._at_hand for name in others)
        is_gone = (node.op_type, node.outputs[0]) not in self._remaining
        return node if is_constant and is_gone else None


def _readings(session: Graph) -> Iterator[tuple[str, Making]]:
    """What nodes read, and how that was made where it is new."""
    for node in session.all_nodes():
        for place, name in enumerate(node.inputs):
            is_filter = node.op_type in _CONVOLUTIONS and place == 1
            layout = Making.REORDERED if node.domain == _NCHWC else Making.FUSED
            yield name, layout if is_filter else Making.FOLDED


def _reordered(
    new: Mapping[str, Making], left: Mapping[str, Tensor], filters: Sizes
) -> Iterator[MadeWeight]:
    pool = _Pool(dict(filters))
    for name, making in new.items():
        if making is Making.REORDERED:
            size = left[name].size_bytes or 0
            source = pool.take(size)
            yield MadeWeight(
                name, size, making, source, size if source is None else filters[source]
            )


def _others(
    new: Mapping[str, Making],
    left: Mapping[str, Tensor],
    stored: Mapping[str, Tensor],
    fused: _Pool,
) -> Iterator[MadeWeight]:
    """New weights of no known maker; a filter that a fusion made is not made again."""
    gone = _Pool({n: t.size_bytes or 0 for n, t in stored.items() if n not in left})
    for name, making in new.items():
        size = left[name].size_bytes or 0
        if making is Making.REORDERED or (making is Making.FUSED and fused.take_equal(size)):
            continue
        source = gone.take_equal(size)
        yield MadeWeight(name, size, Making.FOLDED, source, 0 if source is None else size)

"""Which weights the optimiser made, of which others and in which order.

The two graphs tell it: a node of constants that the optimised graph has not was folded, a node
behind a convolution may have gone into its filter, and a weight that the file has not is new. Names
tell what a new weight was made of, and where they don't, sizes do.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from onnxmem.model import Graph, Tensor
from onnxmem.runtimes.onnxruntime.prepacking import initializers
from onnxmem.runtimes.onnxruntime.process.filters import CONVOLUTIONS, Filters
from onnxmem.runtimes.onnxruntime.process.folding import Folding
from onnxmem.runtimes.onnxruntime.process.terms import MadeWeight, Making

_NCHWC: Final = "com.microsoft.nchwc"

Sizes = Mapping[str, int]
Weights = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Made:
    """The weights that an optimiser made."""

    rounds: tuple[tuple[MadeWeight, ...], ...]
    """What nothing reads when a round ends is freed."""
    kept: frozenset[str]
    """The weights that are left in the end."""


def made_weights(model: Graph, session: Graph) -> Made:
    """What became of a model's weights, ``session`` being the optimised graph."""
    stored, left = initializers(model), initializers(session)
    folding = Folding(model, session)
    folded = tuple(folding.made())
    at_hand = {name: _bytes(tensor) for name, tensor in stored.items()}
    at_hand |= {each.name: each.size_bytes for each in folded}
    filters = Filters(model, session, folding, at_hand)
    first, *later = (*filters.fused(), ())
    new = {
        name: making
        for name, making in _readings(session)
        if name in left and at_hand.get(name) != _bytes(left[name])
    }
    layout = tuple(_reordered(new, left, filters.sizes))
    used = {each.source for each in layout}
    final = {n: size for n, size in filters.sizes.items() if n not in used and n not in at_hand}
    others = tuple(_others(new, left, stored, final))
    rounds = ((*folded, *others, *first), *later, layout)
    return Made(tuple(filter(None, rounds)), frozenset({*left, *final}))


class _Pool:
    """Weights, each of which is the source of one other."""

    def __init__(self, sizes: Sizes) -> None:
        self._rows = sorted((size, place, name) for place, (name, size) in enumerate(sizes.items()))

    def take(self, size_bytes: int) -> str | None:
        """The first of a size, or else the largest smaller one: channels may be padded."""
        end = bisect_right(self._rows, (size_bytes, inf, ""))
        return self.take_equal(self._rows[end - 1][0]) if end else None

    def take_equal(self, size_bytes: int) -> str | None:
        """The first of a size."""
        place = bisect_left(self._rows, (size_bytes, -1, ""))
        if place == len(self._rows) or self._rows[place][0] != size_bytes:
            return None
        return self._rows.pop(place)[2]


def _readings(session: Graph) -> Iterator[tuple[str, Making]]:
    """What nodes read, and how that was made where it is new."""
    for node in session.all_nodes():
        for place, name in enumerate(node.inputs):
            is_filter = node.op_type in CONVOLUTIONS and place == 1
            layout = Making.REORDERED if node.domain == _NCHWC else Making.FUSED
            yield name, layout if is_filter else Making.FOLDED


def _reordered(new: Mapping[str, Making], left: Weights, filters: Sizes) -> Iterator[MadeWeight]:
    pool = _Pool(filters)
    for name, making in new.items():
        if making is Making.REORDERED:
            size = _bytes(left[name])
            source = pool.take(size)
            known = size if source is None else filters[source]
            yield MadeWeight(name, size, making, source, known)


def _others(
    new: Mapping[str, Making], left: Weights, stored: Weights, fused: Sizes
) -> Iterator[MadeWeight]:
    """New weights of no known maker; a filter that a fusion made is not made again."""
    made = _Pool(fused)
    gone = _Pool({name: _bytes(tensor) for name, tensor in stored.items() if name not in left})
    for name, making in new.items():
        size = _bytes(left[name])
        if making is Making.REORDERED or (making is Making.FUSED and made.take_equal(size)):
            continue
        source = gone.take_equal(size)
        yield MadeWeight(name, size, Making.FOLDED, source, 0 if source is None else size)


def _bytes(tensor: Tensor) -> int:
    return tensor.size_bytes or 0

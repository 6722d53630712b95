"""Activation checkpointing: what is kept is less, and is computed again in the backward pass.

A segment of the forward pass keeps its inputs alone (and, selectively, what its products make);
before its backward pass it runs again, as ``torch.utils.checkpoint`` does (Chen et al. 2016, arXiv
1604.06174; selective: Korthikanti et al. 2022, arXiv 2205.05198). The last segment is not computed
again: its backward pass comes at once.

The units of which segments are made are the stretches between points at which one tensor alone
goes on, such as a residual block, each with a convolution or a matrix product at least; where long
skips leave few such points, points with more tensors count.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isqrt

from onnxmem.model.graph import Node
from onnxmem.runtimes.torch.constants import data_reads
from onnxmem.runtimes.torch.matmul import PRODUCTS
from onnxmem.runtimes.torch.recurrent_layer import RECURRENT
from onnxmem.runtimes.torch.tape import Tape
from onnxmem.units import sum_known

_FEW_UNITS = 4
_PRODUCTS = frozenset({*PRODUCTS, *RECURRENT})

Units = Sequence[tuple[Node, ...]]
"""Stretches of the forward pass, in order."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the forward pass."""

    nodes: tuple[Node, ...]
    is_recomputed: bool = False
    stored: frozenset[str] = frozenset()
    """What is kept nevertheless, of the outputs of its nodes."""

    def extra_flops(self, tape: Tape) -> int:
        """FLOPs of computing it again; nodes of unknown arithmetic count 0."""
        if not self.is_recomputed:
            return 0
        again = (node for node in self.nodes if self.stored.isdisjoint(node.writes))
        return sum_known(node.operator.flops(tape.graph.call(node)) for node in again) or 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """The segments of a forward pass, in order, under the name of the way that made them."""

    name: str
    segments: tuple[Segment, ...]

    def extra_flops(self, tape: Tape) -> int:
        """FLOPs beyond those of a step without checkpoints."""
        return sum(segment.extra_flops(tape) for segment in self.segments)


def keep_all(tape: Tape) -> Schedule:
    """No checkpoints: one segment."""
    return Schedule("none", (Segment(tape.graph.nodes),))


def schedules(tape: Tape, named: str) -> Iterator[Schedule]:
    """The schedules that a recipe's ``checkpoint`` names: all candidates to choose the best of."""
    if named == "none":
        yield keep_all(tape)
        return
    stretches = units(tape)
    if named == "best":
        yield from _candidates(tape, stretches)
    else:
        yield sqrt(stretches) if named == "sqrt" else every(stretches, int(named.split("=")[1]))


def every(stretches: Units, count: int, *, selective: bool = False) -> Schedule:
    """A checkpoint behind so many units; selectively, what products make is kept too."""
    groups = [
        tuple(node for unit in stretches[start : start + count] for node in unit)
        for start in range(0, len(stretches), count)
    ]
    stored = _product_outputs(stretches) if selective else frozenset()
    segments = [
        Segment(group, True, stored & {name for node in group for name in node.writes})  # noqa: FBT003
        for group in groups[:-1]
    ]
    name = f"every={count}, products kept" if selective else f"every={count}"
    return Schedule(name, (*segments, Segment(groups[-1])))


def sqrt(stretches: Units) -> Schedule:
    """As many segments as the root of the number of units."""
    num_segments = max(isqrt(len(stretches)), 1)
    return Schedule("sqrt", every(stretches, -(-len(stretches) // num_segments)).segments)


def _candidates(tape: Tape, stretches: Units) -> Iterator[Schedule]:
    """No checkpoints, the root, and powers of 2 of units: these selectively too."""
    yield keep_all(tape)
    yield sqrt(stretches)
    count = 1
    while count < len(stretches):
        yield every(stretches, count)
        yield every(stretches, count, selective=True)
        count *= 2


def units(tape: Tape) -> Units:
    """The stretches between points at which few tensors go on."""
    crossing = _crossing_counts(tape)
    for few in range(1, max(crossing, default=1) + 1):
        cuts = [place + 1 for place, count in enumerate(crossing) if 0 < count <= few]
        if len(cuts) >= _FEW_UNITS:
            break
    else:
        cuts = []
    nodes = tape.graph.nodes
    ends = [end for end in cuts if end < len(nodes)]
    stretches = zip([0, *ends], [*ends, len(nodes)], strict=True)
    return _joined(nodes[start:end] for start, end in stretches)


def _joined(stretches: Iterable[tuple[Node, ...]]) -> list[tuple[Node, ...]]:
    """Join each stretch without a product to the one before, the first ones to the one behind."""
    found: list[tuple[Node, ...]] = []
    for stretch in stretches:
        has_product = any(node.op_type in _PRODUCTS for node in stretch)
        is_begun = bool(found) and any(node.op_type in _PRODUCTS for node in found[-1])
        if found and not (has_product and is_begun):
            found[-1] += stretch
        else:
            found.append(stretch)
    return found


def _crossing_counts(tape: Tape) -> list[int]:
    """How many storages are written up to each node and read behind it."""
    nodes = tape.graph.nodes
    last_read: dict[str, int] = {}
    for place, node in enumerate(nodes):
        for name in data_reads(node):
            last_read[tape.views[name].storage] = place
    for name in tape.graph.outputs:
        last_read[tape.views[name].storage] = len(nodes)
    begin = [0] * (len(nodes) + 1)
    for place, node in enumerate(nodes):
        for name in node.writes:
            if tape.makes_storage(name) and last_read.get(name, place) > place:
                begin[place] += 1
                begin[last_read[name]] -= 1
    counts: list[int] = []
    for change in begin[:-1]:
        counts.append(change + (counts[-1] if counts else 0))
    return counts


def _product_outputs(stretches: Units) -> frozenset[str]:
    nodes = (node for unit in stretches for node in unit)
    return frozenset(name for node in nodes if node.op_type in _PRODUCTS for name in node.writes)

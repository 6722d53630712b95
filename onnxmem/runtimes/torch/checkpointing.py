"""Activation checkpointing: less is saved, and is computed again in the backward pass.

A segment of the forward pass saves its inputs alone (and, selectively, what its products make);
before its backward pass it runs again, as ``torch.utils.checkpoint`` does (Chen et al. 2016, arXiv
1604.06174; selective: Korthikanti et al. 2022, arXiv 2205.05198). The last segment is not computed
again: its backward pass comes at once. ``schedules`` lists the segments to try; ``Passes`` runs the
forward and the backward pass of a step by one of them.

The units of which segments are made are the stretches between points at which one tensor alone
goes on, such as a residual block, each with a convolution or a matrix product at least; where long
skips leave few such points, points with more tensors count.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isqrt

from onnxmem.model.graph import Node
from onnxmem.runtimes.torch.backward import Backward
from onnxmem.runtimes.torch.forward import Storages, run_forward
from onnxmem.runtimes.torch.framework import data_reads
from onnxmem.runtimes.torch.memory import Heap
from onnxmem.runtimes.torch.recurrent import RECURRENT
from onnxmem.runtimes.torch.strides import MATMUL_LIKE
from onnxmem.runtimes.torch.tape import Tape
from onnxmem.units import sum_known

_FEW_UNITS = 4
_MATMUL_LIKE = frozenset({*MATMUL_LIKE, *RECURRENT})

Units = Sequence[tuple[Node, ...]]
"""Stretches of the forward pass, in order."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the forward pass."""

    nodes: tuple[Node, ...]
    is_recomputed: bool = False
    stored: frozenset[str] = frozenset()
    """What is saved nevertheless, of the outputs of its nodes."""

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
    """The schedules that ``checkpoint`` names: all candidates to choose the best of."""
    if named == "none":
        yield keep_all(tape)
        return
    stretches = units(tape)
    if named == "best":
        yield from _candidates(tape, stretches)
    else:
        yield sqrt(stretches) if named == "sqrt" else every(stretches, int(named.split("=")[1]))


def every(stretches: Units, count: int, *, selective: bool = False) -> Schedule:
    """A checkpoint behind so many units; selectively, what products make is saved too."""
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
        cuts = [index + 1 for index, count in enumerate(crossing) if 0 < count <= few]
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
        has_product = any(node.op_type in _MATMUL_LIKE for node in stretch)
        is_begun = bool(found) and any(node.op_type in _MATMUL_LIKE for node in found[-1])
        if found and not (has_product and is_begun):
            found[-1] += stretch
        else:
            found.append(stretch)
    return found


def _crossing_counts(tape: Tape) -> list[int]:
    """How many storages are written up to each node and read behind it."""
    nodes = tape.graph.nodes
    last_read: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in data_reads(node):
            last_read[tape.views[name].storage] = index
    for name in tape.graph.outputs:
        last_read[tape.views[name].storage] = len(nodes)
    begin = [0] * (len(nodes) + 1)
    for index, node in enumerate(nodes):
        for name in node.writes:
            if tape.allocates_storage(name) and last_read.get(name, index) > index:
                begin[index] += 1
                begin[last_read[name]] -= 1
    counts: list[int] = []
    for change in begin[:-1]:
        counts.append(change + (counts[-1] if counts else 0))
    return counts


def _product_outputs(stretches: Units) -> frozenset[str]:
    nodes = (node for unit in stretches for node in unit)
    return frozenset(name for node in nodes if node.op_type in _MATMUL_LIKE for name in node.writes)


@dataclass(slots=True)
class Passes:
    """A step's two passes under way."""

    tape: Tape
    heap: Heap
    schedule: Schedule
    storages: Storages = field(init=False)
    retained: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Storages that a segment keeps to be computed again, by its index."""

    def __post_init__(self) -> None:
        graph = self.tape.graph
        self.storages = Storages.before(self.tape, self.heap, graph.nodes, graph.outputs)

    def run_forward(self) -> None:
        """Run every segment."""
        for index, segment in enumerate(self.schedule.segments):
            if segment.is_recomputed:
                self._run_checkpointed(index, segment)
            else:
                run_forward(self.storages, segment.nodes)

    def run_backward(self, backward: Backward) -> None:
        """Go back through every segment, computing again what was not saved."""
        backward_nodes = {node.name for node in self.tape.backward_nodes}
        for index, segment in reversed(tuple(enumerate(self.schedule.segments))):
            backward.storages = self.storages
            if segment.is_recomputed:
                backward.storages = self._recompute(index, segment)
            backward.run(node for node in segment.nodes if node.name in backward_nodes)
            for storage in self.retained.pop(index, ()):
                self.storages.drop(storage)

    def _run_checkpointed(self, index: int, segment: Segment) -> None:
        inputs = self._storages_of(_outside_reads(segment.nodes))
        for storage in inputs:
            self.storages.retain(storage)
        stored: list[str] = []
        for node in segment.nodes:
            run_forward(self.storages, (node,), saves=False)
            for storage in self._storages_of(segment.stored.intersection(node.writes)):
                if storage not in inputs and storage in self.storages.blocks:
                    self.storages.retain(storage)
                    stored.append(storage)
        self.retained[index] = (*inputs, *stored)

    def _recompute(self, index: int, segment: Segment) -> Storages:
        """Run a segment again on what it saved."""
        inner = Storages.before(self.tape, self.heap, segment.nodes)
        for storage in self.retained[index]:
            inner.blocks[storage] = self.storages.blocks[storage]
        for name in _outside_reads(segment.nodes):
            inner.write(name)
        run_forward(inner, segment.nodes)
        return inner

    def _storages_of(self, names: Iterable[str]) -> tuple[str, ...]:
        storages = self.tape.storages
        return tuple(dict.fromkeys(storages[name] for name in names if name in storages))


def _outside_reads(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Name what nodes read and do not write, each once."""
    written: set[str] = set()
    found: dict[str, None] = {}
    for node in nodes:
        found.update(dict.fromkeys(name for name in data_reads(node) if name not in written))
        written.update(node.writes)
    return tuple(found)

"""Activation checkpointing: save less in the forward pass, and recompute it in the backward pass.

A segment of the forward pass saves only its inputs (and, selectively, its matmul and conv outputs);
before its backward pass it runs again, as ``torch.utils.checkpoint`` does (Chen et al. 2016, arXiv
1604.06174; selective: Korthikanti et al. 2022, arXiv 2205.05198). The last segment is not
recomputed: its backward pass follows at once. ``schedules`` lists the segmentations to try;
``Passes`` runs the forward and the backward pass of a step with one of them.

Segments consist of units: the stretches between points that only one tensor crosses, such as a
residual block, each with a convolution or a matmul at least; where long skips leave few such
points, points that more tensors cross count.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
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

_MIN_UNITS = 4
_COMPUTE_INTENSIVE = frozenset({*MATMUL_LIKE, *RECURRENT})
"""Operators whose outputs selective checkpointing saves, and of which every unit has one."""

Units = Sequence[tuple[Node, ...]]
"""Stretches of the forward pass, in order."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the forward pass."""

    nodes: tuple[Node, ...]
    is_recomputed: bool = False
    stored: frozenset[str] = frozenset()
    """Outputs of its nodes that are saved although it is recomputed."""

    def extra_flops(self, tape: Tape) -> int:
        """FLOPs of recomputing it; nodes of unknown FLOPs count 0."""
        if not self.is_recomputed:
            return 0
        recomputed = (node for node in self.nodes if self.stored.isdisjoint(node.writes))
        return sum_known(node.operator.flops(tape.graph.call(node)) for node in recomputed) or 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """The segments of a forward pass, in order, and the name of the rule that chose them."""

    name: str
    segments: tuple[Segment, ...]

    def extra_flops(self, tape: Tape) -> int:
        """FLOPs beyond those of a step without checkpoints."""
        return sum(segment.extra_flops(tape) for segment in self.segments)


def save_all(tape: Tape) -> Schedule:
    """No checkpoints: one segment."""
    return Schedule("none", (Segment(tape.graph.nodes),))


def schedules(tape: Tape, named: str) -> Iterator[Schedule]:
    """The schedules that ``checkpoint`` names; for ``best`` all candidates."""
    if named == "none":
        yield save_all(tape)
        return
    stretches = units(tape)
    if named == "best":
        yield from _candidates(tape, stretches)
    else:
        yield sqrt(stretches) if named == "sqrt" else every(stretches, int(named.split("=")[1]))


def every(stretches: Units, count: int, *, selective: bool = False) -> Schedule:
    """A checkpoint after every ``count`` units; selectively, matmul and conv outputs are saved too.

    PyTorch has that as ``create_selective_checkpoint_contexts`` (torch/utils/checkpoint.py).
    """
    groups = [
        tuple(node for unit in stretches[start : start + count] for node in unit)
        for start in range(0, len(stretches), count)
    ]
    stored = _matmul_outputs(stretches) if selective else frozenset()
    segments = [
        Segment(
            group,
            is_recomputed=True,
            stored=stored & {name for node in group for name in node.writes},
        )
        for group in groups[:-1]
    ]
    name = f"every={count}, matmul and conv outputs saved" if selective else f"every={count}"
    return Schedule(name, (*segments, Segment(groups[-1])))


def sqrt(stretches: Units) -> Schedule:
    """As many segments as the square root of the number of units."""
    num_segments = max(isqrt(len(stretches)), 1)
    return Schedule("sqrt", every(stretches, -(-len(stretches) // num_segments)).segments)


def _candidates(tape: Tape, stretches: Units) -> Iterator[Schedule]:
    """No checkpoints, the square root, and powers of 2 of units, these selectively too."""
    # The peak is not convex in the segment's length, so that no search replaces trying them; powers
    # of 2 keep the number of simulated steps logarithmic.
    yield save_all(tape)
    yield sqrt(stretches)
    count = 1
    while count < len(stretches):
        yield every(stretches, count)
        yield every(stretches, count, selective=True)
        count *= 2


def units(tape: Tape) -> Units:
    """The stretches between points that few storages cross."""
    # A checkpoint saves what crosses its boundary: cuts are where that is least. The threshold is
    # raised until there are enough of them, for a U-Net's skips cross nearly every point.
    crossing = _crossing_counts(tape)
    for most in range(1, max(crossing, default=1) + 1):
        cuts = [index + 1 for index, count in enumerate(crossing) if 0 < count <= most]
        if len(cuts) >= _MIN_UNITS:
            break
    else:
        cuts = []
    nodes = tape.graph.nodes
    ends = [end for end in cuts if end < len(nodes)]
    stretches = zip([0, *ends], [*ends, len(nodes)], strict=True)
    return _joined(nodes[start:end] for start, end in stretches)


def _joined(stretches: Iterable[tuple[Node, ...]]) -> list[tuple[Node, ...]]:
    """Join each stretch without a matmul to the one before; at the start to the one after."""
    # Invariant: every unit in `found` but the last has a matmul. Units that only activations fill
    # would count as segments and save nothing.
    found: list[tuple[Node, ...]] = []
    for stretch in stretches:
        has_matmul = any(node.op_type in _COMPUTE_INTENSIVE for node in stretch)
        is_complete = bool(found) and any(n.op_type in _COMPUTE_INTENSIVE for n in found[-1])
        if found and not (has_matmul and is_complete):
            found[-1] += stretch
        else:
            found.append(stretch)
    return found


def _crossing_counts(tape: Tape) -> list[int]:
    """How many storages cross the point after each node: written before it and read after it."""
    # A difference array over the points: +1 where a storage is written, -1 at its last read.
    nodes = tape.graph.nodes
    last_read: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in data_reads(node):
            last_read[tape.views[name].storage] = index
    for name in tape.graph.outputs:
        last_read[tape.views[name].storage] = len(nodes)
    changes = [0] * (len(nodes) + 1)
    for index, node in enumerate(nodes):
        for name in node.writes:
            if tape.allocates_storage(name) and last_read.get(name, index) > index:
                changes[index] += 1
                changes[last_read[name]] -= 1
    return list(accumulate(changes[:-1]))


def _matmul_outputs(stretches: Units) -> frozenset[str]:
    nodes = (node for unit in stretches for node in unit if node.op_type in _COMPUTE_INTENSIVE)
    return frozenset(name for node in nodes for name in node.writes)


@dataclass(slots=True)
class Passes:
    """A step's two passes in progress."""

    tape: Tape
    heap: Heap
    schedule: Schedule
    storages: Storages = field(init=False)
    retained: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Storages that a segment saves in order to be recomputed, by its index."""

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
        """Run the backward pass of every segment, recomputing what was not saved."""
        # A recomputed segment has storages of its own for what it allocates again; its inputs and
        # stored outputs are the outer pass's blocks, which are released after its backward pass.
        backward_nodes = {node.name for node in self.tape.backward_nodes}
        for index, segment in reversed(tuple(enumerate(self.schedule.segments))):
            backward.storages = self.storages
            if segment.is_recomputed:
                backward.storages = self._recompute(index, segment)
            backward.run(node for node in segment.nodes if node.name in backward_nodes)
            for storage in self.retained.pop(index, ()):
                self.storages.drop(storage)

    def _run_checkpointed(self, index: int, segment: Segment) -> None:
        """Run a segment without saving, as under ``no_grad``; retain its inputs and ``stored``."""
        inputs = self._storages_of(_outside_reads(segment.nodes))
        for storage in inputs:
            self.storages.retain(storage)
        stored: list[str] = []
        for node in segment.nodes:
            # Node by node: a stored output must be retained before its last reader frees it.
            run_forward(self.storages, (node,), saves=False)
            for storage in self._storages_of(segment.stored.intersection(node.writes)):
                if storage not in inputs and storage in self.storages.blocks:
                    self.storages.retain(storage)
                    stored.append(storage)
        self.retained[index] = (*inputs, *stored)

    def _recompute(self, index: int, segment: Segment) -> Storages:
        """Run a segment again from what it saved, this time saving for backward."""
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
    """Name the tensors that nodes read and none of them writes, each once."""
    written: set[str] = set()
    found: dict[str, None] = {}
    for node in nodes:
        found.update(dict.fromkeys(name for name in data_reads(node) if name not in written))
        written.update(node.writes)
    return tuple(found)

"""Activation checkpointing: save less in the forward pass, and recompute it in the backward pass.

A segment of the forward pass saves only its inputs (and, selectively, its matmul and conv outputs);
before its backward pass it runs again, as ``torch.utils.checkpoint`` does (Chen et al. 2016, arXiv
1604.06174; selective: Korthikanti et al. 2022, arXiv 2205.05198). ``schedules`` lists the
segmentations to try; ``Passes`` runs the forward and the backward pass of a step with one of them.

Where the file names the modules of the network, segments consist of the blocks that it repeats, as
where a network calls ``checkpoint`` in a loop over its layers; what lies between them is not
recomputed. Elsewhere they consist of units: the stretches between points that only one tensor
crosses, such as a residual block, each with a convolution or a matmul at least; where long skips
leave few such points, points that more tensors cross count. As in ``checkpoint_sequential``, the
last segment of units is not recomputed, because its backward pass follows at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from math import isqrt

from onnxmem.model.graph import Node
from onnxmem.program.program import Category
from onnxmem.program.replay import Replay
from onnxmem.runtimes.torch.backward import Backward
from onnxmem.runtimes.torch.blocks import (
    COMPUTE_INTENSIVE,
    Block,
    blocks_named,
    repeated_blocks,
)
from onnxmem.runtimes.torch.forward import Storages, run_forward
from onnxmem.runtimes.torch.framework import data_reads
from onnxmem.runtimes.torch.hooks import hooked_weights
from onnxmem.runtimes.torch.memory import CheckpointedBlocks, Heap
from onnxmem.runtimes.torch.tape import SavedTensors, Tape
from onnxmem.units import sum_known

_MIN_UNITS = 4
_SELECTIVE = ", matmul and conv outputs saved"
Units = Sequence[tuple[Node, ...]]
"""Stretches of the forward pass, in order."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the forward pass."""

    nodes: tuple[Node, ...]
    is_recomputed: bool = False
    stored: frozenset[str] = frozenset()
    """Outputs of its nodes that are saved although it is recomputed."""
    blocks: tuple[str, ...] = ()
    """The repeated modules that it consists of, where the file names them."""

    def extra_flops(self, tape: Tape) -> int:
        """FLOPs of recomputing it; nodes of unknown FLOPs count 0."""
        if not self.is_recomputed:
            return 0
        # PyTorch stops early: what comes after the last saved tensor is not computed again.
        again, _ = _until_all_saved(tape, self.nodes)
        recomputed = (node for node in again if self.stored.isdisjoint(node.writes))
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
    rule, _, value = named.partition("=")
    if rule == "none":
        yield save_all(tape)
        return
    if rule == "blocks" and value:
        yield groups_of_blocks(blocks_named(tape.graph, value), 1, tape)
        return
    blocks = repeated_blocks(tape.graph)
    stretches = () if blocks and rule != "best" else units(tape)
    in_blocks, in_units = partial(groups_of_blocks, blocks, tape=tape), partial(every, stretches)
    grouped, total = (in_blocks, len(blocks)) if blocks else (in_units, len(stretches))
    if rule == "best":
        yield save_all(tape)
        yield from _candidates(grouped, total)
        if blocks:
            # Cuts inside of blocks, for which a network has to be rewritten, may save more.
            for schedule in _candidates(in_units, len(stretches)):
                yield replace(schedule, name=f"{schedule.name}, of units")
    elif rule == "sqrt":
        yield _sqrt(grouped, total)
    else:
        yield grouped(int(value) if value else 1)


def _candidates(grouped: Callable[..., Schedule], total: int) -> Iterator[Schedule]:
    """The square root, and powers of 2, these selectively too; ``grouped`` joins so many parts."""
    # The peak is not convex in the segment's length, so that no search replaces trying them; powers
    # of 2 keep the number of simulated steps logarithmic.
    yield _sqrt(grouped, total)
    count = 1
    while count < total:
        yield grouped(count)
        yield grouped(count, selective=True)
        count *= 2


def _sqrt(grouped: Callable[..., Schedule], total: int) -> Schedule:
    """As many segments as the square root of the number of parts."""
    return replace(grouped(-(-total // max(isqrt(total), 1))), name="sqrt")


def groups_of_blocks(
    blocks: Sequence[Block], count: int, tape: Tape, *, selective: bool = False
) -> Schedule:
    """A checkpoint of every ``count`` blocks together; the nodes between them save as ever.

    That is ``checkpoint(layer, x)`` in a loop over the layers for a count of 1, and what Megatron
    calls uniform recomputation for others (megatron/core/transformer/transformer_block.py).
    Selectively, matmul and conv outputs are saved too.
    """
    groups = {
        node.name: index // count for index, block in enumerate(blocks) for node in block.nodes
    }
    names = [block.name for block in blocks]
    nodes = tape.graph.nodes
    last = {groups[node.name]: i for i, node in enumerate(nodes) if node.name in groups}
    segments: list[Segment] = []
    # Nodes between the groups, which run before the next group as they are.
    outside: list[Node] = []
    start = 0
    while start < len(nodes):
        group = groups.get(nodes[start].name)
        if group is None:
            outside.append(nodes[start])
            start += 1
            continue
        end = last[group] + 1
        before, inside, after = _split(nodes[start:end], groups, group)
        segments += (
            Segment((*outside, *before)),
            Segment(
                inside,
                is_recomputed=True,
                stored=_matmul_outputs((inside,)) if selective else frozenset(),
                blocks=tuple(names[group * count : (group + 1) * count]),
            ),
        )
        outside = [*after]
        start = end
    segments.append(Segment(tuple(outside)))
    name = "blocks" if count == 1 else f"every={count}"
    return Schedule(
        f"{name}{_SELECTIVE}" if selective else name,
        tuple(each for each in segments if each.nodes),
    )


def _split(
    nodes: Sequence[Node], groups: Mapping[str, int], group: int
) -> tuple[tuple[Node, ...], tuple[Node, ...], tuple[Node, ...]]:
    """The nodes from the first to the last of a group: before it, in it, and after it.

    Exporters write nodes in the order in which they ran, and sometimes one of another module
    between them: it is in the group where it reads of the group and the group reads of it.
    """
    # Forward: what depends on the group. Backward: what of that the group needs, which has to be
    # computed within it.
    dependent: set[str] = set()
    for node in nodes:
        if groups.get(node.name) == group or not dependent.isdisjoint(node.reads):
            dependent.update(node.writes)
    needed: set[str] = set()
    before: list[Node] = []
    inside: list[Node] = []
    after: list[Node] = []
    for node in reversed(nodes):
        is_dependent = not dependent.isdisjoint(node.writes)
        if groups.get(node.name) == group or (is_dependent and not needed.isdisjoint(node.writes)):
            inside.append(node)
            needed.update(node.reads)
        else:
            (after if is_dependent else before).append(node)
    return tuple(reversed(before)), tuple(reversed(inside)), tuple(reversed(after))


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
        # The last group runs backward at once: to compute it again would save nothing.
        for group in groups[:-1]
    ]
    name = f"every={count}{_SELECTIVE}" if selective else f"every={count}"
    return Schedule(name, (*segments, Segment(groups[-1])))


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
        has_matmul = any(node.op_type in COMPUTE_INTENSIVE for node in stretch)
        is_complete = bool(found) and any(n.op_type in COMPUTE_INTENSIVE for n in found[-1])
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
    nodes = (node for unit in stretches for node in unit if node.op_type in COMPUTE_INTENSIVE)
    return frozenset(name for node in nodes for name in node.writes)


@dataclass(slots=True)
class Passes:
    """A step's two passes in progress."""

    tape: Tape
    heap: Heap
    schedule: Schedule
    holds_all: bool = False
    """Whether variables hold all that they may."""
    storages: Storages = field(init=False)
    hooked: tuple[str, ...] = field(init=False)
    """The weights that hooks assign to modules."""
    retained: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Storages that a segment saves in order to be recomputed, by its index."""
    recomputations: dict[int, tuple[int, int]] = field(default_factory=dict)
    """How many events the heap had before and after a segment was recomputed, by its index."""

    def __post_init__(self) -> None:
        graph = self.tape.graph
        self.hooked = hooked_weights(graph)
        retained = (*graph.outputs, *self.hooked)
        self.storages = Storages.before(
            self.tape, self.heap, graph.nodes, retained, holds_all=self.holds_all
        )

    def run_forward(self) -> None:
        """Run every segment."""
        for name in self.hooked:
            size_bytes = self.tape.size_bytes(name) or 0
            label = f"{name} of the last step"
            block = self.heap.allocate(label, Category.ACTIVATION, size_bytes)
            self.storages.assigned[name] = block
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
        # Last segment first: at most one recomputed segment has its tensors at a time.
        for index, segment in reversed(tuple(enumerate(self.schedule.segments))):
            backward.storages = self.storages
            if segment.is_recomputed:
                before = self.heap.num_events
                backward.storages = self._recompute(index, segment)
                self.recomputations[index] = before, self.heap.num_events
            backward.run(node for node in segment.nodes if node.name in backward_nodes)
            for storage in self.retained.pop(index, ()):
                self.storages.drop(storage)

    def checkpointed(self, replay: Replay) -> tuple[CheckpointedBlocks, ...]:
        """What the checkpoints of repeated modules keep and save again, of a finished step."""
        segments = self.schedule.segments
        return tuple(
            CheckpointedBlocks(
                segments[index].blocks,
                sum(self.tape.size_bytes(name) or 0 for name in self._inputs(segments[index])),
                replay.bytes_after(after) - replay.bytes_after(before),
            )
            for index, (before, after) in sorted(self.recomputations.items())
            if segments[index].blocks
        )

    def _inputs(self, segment: Segment) -> tuple[str, ...]:
        return self._storages_of(_outside_reads(segment.nodes))

    def _run_checkpointed(self, index: int, segment: Segment) -> None:
        """Run a segment without saving, as under ``no_grad``; retain its inputs and ``stored``."""
        inputs = self._inputs(segment)
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
        again, last = _until_all_saved(self.tape, segment.nodes)
        inner = Storages.before(
            self.tape, self.heap, again, unfinished=last, holds_all=self.holds_all
        )
        # The outer pass's blocks are shared, so nothing is allocated for what the checkpoint kept.
        for storage in self.retained[index]:
            inner.blocks[storage] = self.storages.blocks[storage]
        for name in _outside_reads((*again, *last)):
            inner.write(name)
        # What the block returns is referenced until it ends.
        returned = [n for node in again for n in node.writes if not inner.reads_left[n]]
        inner.reads_left.update(returned)
        run_forward(inner, again)
        for node in last:
            inner.save(node, self.tape.saved[node.name])
            inner.end_reads(node)
        for name in returned:
            inner.release(name)
        return inner

    def _storages_of(self, names: Iterable[str]) -> tuple[str, ...]:
        storages = self.tape.storages
        return tuple(dict.fromkeys(storages[name] for name in names if name in storages))


def _until_all_saved(
    tape: Tape, nodes: tuple[Node, ...]
) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The nodes of a segment that run again, and then at most one that only saves its inputs.

    ``_recomputation_hook`` of torch/utils/checkpoint.py raises ``_StopRecomputationError`` as soon
    as the last tensor is saved, which an operator does with its inputs before it runs.
    """
    saving = [index for index, node in enumerate(nodes) if _saves(tape.saved.get(node.name))]
    if not saving:
        return (), ()
    last = nodes[saving[-1]]
    saved = tape.saved[last.name]
    results = {tape.storages.get(name) for name in last.writes}
    if saved.extra_bytes != 0 or saved.inner or not results.isdisjoint(saved.storages):
        return nodes[: saving[-1] + 1], ()
    return nodes[: saving[-1]], (last,)


def _saves(saved: SavedTensors | None) -> bool:
    return saved is not None and bool(
        saved.storages or saved.copies or saved.inner or saved.extra_bytes != 0
    )


def _outside_reads(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Name the tensors that nodes read and none of them writes, each once."""
    # In running order, so that a name is from outside only if no node before its reader writes it.
    written: set[str] = set()
    found: dict[str, None] = {}
    for node in nodes:
        found.update(dict.fromkeys(name for name in data_reads(node) if name not in written))
        written.update(node.writes)
    return tuple(found)

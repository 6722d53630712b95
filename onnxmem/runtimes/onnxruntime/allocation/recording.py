"""Records one run of a session: its requests and releases, and where its nodes end.

Every figure of a session comes from replays of these records, with an arena or without one.
Requests of 0 bytes are recorded too, because they may have bytes at another batch.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from onnxmem.model.graph import Node
from onnxmem.program.program import Category, IntColumn, Program, ProgramBuilder, int_column
from onnxmem.program.replay import Peak, Replay
from onnxmem.program.sizes import ByteColumn, Sizes


class Sample(NamedTuple):
    """The arena at the end of a node: its outputs and inputs are live, its scratch is released."""

    node: Node
    requested_bytes: int
    scratch_bytes: int
    """Sum of the node's temporary requests."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a session."""

    program: Program
    sizes: Sizes
    nodes: tuple[Node, ...]
    """In the order in which they end."""
    node_ends: IntColumn
    """By node: the number of events up to its end."""
    scratch_bytes: tuple[int, ...]
    """By node: the sum of its temporary requests."""
    traced: tuple[int, ...] = ()
    """The allocations of the main graph's memory pattern, if this run traced it."""
    halves: frozenset[int] = frozenset()
    """The allocations that follow half of the work of their node."""

    @property
    def returned(self) -> Program:
        """The program until the session returns: the caller has the outputs, and releases them
        later.
        """
        # ``ended`` appends one release for each output, and nothing after those.
        events = self.program.events[: len(self.program.events) - len(self.outputs)]
        event_steps = self.program.event_steps[: len(events)]
        return replace(self.program, events=events, event_steps=event_steps)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The allocations of outputs, in the order in which the caller releases them."""
        released = self.program.events[self.program.event_steps == len(self.program.steps) - 1]
        return tuple(int(~event) for event in released)

    @cached_property
    def replay(self) -> Replay:
        """The replay without an arena."""
        return Replay(self.program, self.sizes)

    @cached_property
    def requested_bytes(self) -> ByteColumn:
        """Requested bytes at the end of each node."""
        # A node that ends before the first event has no live bytes; ``live_bytes`` begins after it.
        return np.concatenate(([0], self.replay.live_bytes))[self.node_ends]

    @property
    def peak_node(self) -> Node | None:
        """The first node with the most requested bytes at its end; ``None``: no node runs."""
        return self.nodes[int(self.requested_bytes.argmax())] if self.nodes else None

    @property
    def requested_peak(self) -> Peak:
        """The peak requested by kernels: the largest at the end of any node."""
        if not self.nodes:
            return Peak(0, 0, "")
        # `argmax` finds the first of equal maxima, as a reader of the profile would.
        at = int(self.requested_bytes.argmax())
        end = int(self.node_ends[at])
        return Peak(int(self.requested_bytes[at]), end, self.nodes[at].name)

    def samples(self, base_bytes: int) -> Iterator[Sample]:
        """The arena at the end of each node, with ``base_bytes`` of arena initializers."""
        requested = (base_bytes + size for size in self.requested_bytes.tolist())
        return map(Sample, self.nodes, requested, self.scratch_bytes)


@dataclass(slots=True)
class Recorder:
    """Records a run while its plan is simulated."""

    name: str
    """Of the program's one phase."""
    traced: list[int] = field(default_factory=list)
    _builder: ProgramBuilder = field(default_factory=ProgramBuilder)
    _sizes_bytes: list[int] = field(default_factory=list)
    _alive: set[int] = field(default_factory=set)
    _shared: Counter[int] = field(default_factory=Counter)
    """By request: the releases that only end a share in it."""
    _nodes: list[Node] = field(default_factory=list)
    _node_ends: list[int] = field(default_factory=list)
    _scratch_bytes: list[int] = field(default_factory=list)
    _halves: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._builder.enter_phase(self.name)

    def begin(self, node: Node) -> None:
        """Begin a node, or continue it after a node of its body."""
        self._builder.enter_step(node.name)

    def end(self, node: Node, scratch_bytes: int) -> None:
        """End a node; its releases follow."""
        self._nodes.append(node)
        self._node_ends.append(len(self._builder.events))
        self._scratch_bytes.append(scratch_bytes)

    def half(self) -> None:
        """Half of a node's work is done before its next request."""
        self._halves.add(len(self._sizes_bytes))

    def malloc(
        self, label: str, category: Category, size_bytes: int, tensors: Sequence[str] = ()
    ) -> int:
        """Record a request; returns its number."""
        number = self._builder.malloc(label, category, tensors)
        self._sizes_bytes.append(size_bytes)
        self._alive.add(number)
        return number

    def size_bytes(self, number: int) -> int:
        """The bytes of a request."""
        return self._sizes_bytes[number]

    def share(self, number: int) -> int:
        """Let a request live until one release more; returns its number."""
        self._shared[number] += 1
        return number

    def free(self, number: int | None) -> None:
        """Record a release, unless the request is ``None``, shared or was released before."""
        # A request has one release more than shares: the last one frees it, whoever makes it.
        if number is not None and self._shared[number]:
            self._shared[number] -= 1
        elif number in self._alive:
            self._alive.remove(number)
            self._builder.free(number)

    def ended(self) -> Run:
        """Release everything that is still live, and return the run."""
        # The caller releases the outputs after the run: no node's step includes that.
        self._builder.enter_step("")
        for number in sorted(self._alive):
            self._builder.free(number)
        return Run(
            program=self._builder.program(),
            sizes=Sizes.of(self._sizes_bytes),
            nodes=tuple(self._nodes),
            node_ends=int_column(self._node_ends),
            scratch_bytes=tuple(self._scratch_bytes),
            traced=tuple(self.traced),
            halves=frozenset(self._halves),
        )

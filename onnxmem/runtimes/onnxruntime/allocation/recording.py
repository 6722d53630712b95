"""One run of a session, written down: what it requests and releases, and where its nodes end.

Every figure of a session is read from replays of these, on an arena or without one. A request for
nothing is written down too: it may be for something at another batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from onnxmem.model.graph import Node
from onnxmem.program.program import Category, IntColumn, Program, ProgramBuilder, int_column
from onnxmem.program.replay import Peak, Replay
from onnxmem.program.sizes import ByteColumn, Sizes


class Sample(NamedTuple):
    """The arena when a node has ended: its outputs and inputs alive, its scratch gone."""

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
    """How many events of the program have happened when each of them ends."""
    scratch_bytes: tuple[int, ...]
    """Sum of the temporary requests of each of them."""
    traced: tuple[int, ...] = ()
    """The allocations that the main graph's memory pattern is made of, where it is learned."""

    @cached_property
    def replay(self) -> Replay:
        """What is alive when, without an arena."""
        return Replay(self.program, self.sizes)

    @cached_property
    def requested_bytes(self) -> ByteColumn:
        """What is requested when each node ends."""
        return np.concatenate(([0], self.replay.live_bytes))[self.node_ends]

    @property
    def peak_node(self) -> Node | None:
        """The first node at whose end the most is requested; ``None``: no node runs."""
        return self.nodes[int(self.requested_bytes.argmax())] if self.nodes else None

    @property
    def requested_peak(self) -> Peak:
        """The first end of a node at which the most is requested."""
        if not self.nodes:
            return Peak(0, 0, "")
        at = int(self.requested_bytes.argmax())
        end = int(self.node_ends[at])
        return Peak(int(self.requested_bytes[at]), end, self.nodes[at].name)

    def samples(self, base_bytes: int) -> Iterator[Sample]:
        """The arena at the end of each node, above what it had before the run."""
        requested = (base_bytes + size for size in self.requested_bytes.tolist())
        return map(Sample, self.nodes, requested, self.scratch_bytes)


@dataclass(slots=True)
class Recorder:
    """Writes a run down while its plan is simulated."""

    name: str
    """Of the program's one phase."""
    traced: list[int] = field(default_factory=list)
    _builder: ProgramBuilder = field(default_factory=ProgramBuilder)
    _sizes_bytes: list[int] = field(default_factory=list)
    _alive: set[int] = field(default_factory=set)
    _nodes: list[Node] = field(default_factory=list)
    _node_ends: list[int] = field(default_factory=list)
    _scratch_bytes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._builder.enter_phase(self.name)

    def begin(self, node: Node) -> None:
        """Say that a node runs from here on, or runs on after one of a body of its own."""
        self._builder.enter_step(node.name)

    def end(self, node: Node, scratch_bytes: int) -> None:
        """Say that a node has ended; what it releases comes after that."""
        self._nodes.append(node)
        self._node_ends.append(len(self._builder.events))
        self._scratch_bytes.append(scratch_bytes)

    def malloc(
        self, label: str, category: Category, size_bytes: int, tensors: Sequence[str] = ()
    ) -> int:
        """Write a request down; its number comes out."""
        number = self._builder.malloc(label, category, tensors)
        self._sizes_bytes.append(size_bytes)
        self._alive.add(number)
        return number

    def free(self, number: int | None) -> None:
        """Write a release down; what is released already, or was never requested, stays so."""
        if number in self._alive:
            self._alive.remove(number)
            self._builder.free(number)

    def ended(self) -> Run:
        """The run; what it has left is released."""
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
        )

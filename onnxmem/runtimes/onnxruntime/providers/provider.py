"""An execution provider, as far as memory depends on it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from onnxmem.allocators.bfc_arena import BfcArena
from onnxmem.model import Graph, Node
from onnxmem.runtimes.onnxruntime.prepacking import SessionFacts
from onnxmem.runtimes.onnxruntime.session_options import Level, SessionOptions

Pairs = tuple[tuple[int, int], ...]
"""Indices of an input and of an output of a node."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Bytes of weights in the arena of a session that is loaded."""

    reserved_bytes: tuple[int, ...]
    """Held beside the regions, each byte for byte."""
    allocated_bytes: tuple[int, ...]
    """Requested like any buffer, in this order: their regions stay."""
    passing_bytes: int = 0
    """By how much more is reserved while a kernel packs what an earlier one has packed."""
    turned: tuple[tuple[int, int], ...] = ()
    """Requests that are freed at once: how many of the allocated ones precede, and bytes."""

    @property
    def requested_bytes(self) -> int:
        """What the arena holds before the first run."""
        return sum(self.reserved_bytes) + sum(self.allocated_bytes)


class ExecutionProvider(Protocol):
    """One execution provider."""

    @property
    def device(self) -> str:
        """As the keys of run options have it."""
        ...

    @property
    def is_host(self) -> bool:
        """Whether the arena is the process's own memory.

        Then kernels pack weights and take scratch of the arena, and the figures of the process are
        known; else there are a context and workspaces beside it, and the arena has a limit.
        """
        ...

    @property
    def mapped_from_bytes(self) -> int | None:
        """Regions from this size on have pages of their own."""
        ...

    def aliases(self, node: Node) -> Pairs:
        """The outputs of a node that are an input's buffer."""
        ...

    def may_overwrite(self, node: Node) -> Pairs:
        """The outputs of a node that may overwrite a dead input."""
        ...

    def has_rule(self, node: Node) -> bool:
        """Whether a rule says what the node's kernel takes of the arena or packs."""
        ...

    def level(self, level: Level) -> Level:
        """How far the graph is optimized where a session asks for a level."""
        ...

    def packing(self, graph: Graph, options: SessionOptions, facts: SessionFacts) -> Packing:
        """What the arena holds of the weights once a session is loaded."""
        ...

    def packing_of(self, sizes_bytes: Sequence[int], options: SessionOptions) -> Packing | None:
        """The same from the bytes of the weights; ``None``: more than those decides."""
        ...

    def resident_bytes(self, arena: BfcArena, packed: Packing) -> int:
        """What the arena takes of the device's memory, weights aside."""
        ...

    def growth_lines(self, options: SessionOptions) -> tuple[str, ...]:
        """Python that sets how the arena grows."""
        ...


def index_pairs(node: Node, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[int, int]]:
    """Pairs of an operator's parameters as indices."""
    for source, target in pairs:
        yield node.operator.input_index(source), node.operator.output_index(target)

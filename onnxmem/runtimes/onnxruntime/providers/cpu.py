"""The CPU: kernels pack weights and take scratch, and the arena is memory of the process."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from onnxmem.allocators.bfc_arena import BfcArena
from onnxmem.model import Graph, Node
from onnxmem.runtimes.onnxruntime.prepacking import RULES as PREPACKING
from onnxmem.runtimes.onnxruntime.prepacking import (
    Prepacked,
    SessionFacts,
    initializer_reserves,
    prepacked,
)
from onnxmem.runtimes.onnxruntime.process.loading import MEASURED
from onnxmem.runtimes.onnxruntime.providers.provider import (
    ExecutionProvider,
    Packing,
    Pairs,
    index_pairs,
)
from onnxmem.runtimes.onnxruntime.scratch import RULES as SCRATCH
from onnxmem.runtimes.onnxruntime.scratch import nothing
from onnxmem.runtimes.onnxruntime.session_options import GROWTHS, Level, SessionOptions

_ALIAS: Final = {
    "BatchNormalization": ((3, 1), (4, 2)),
    "ExpandDims": ((0, 0),),
    "Optional": ((0, 0),),
    "OptionalGetElement": ((0, 0),),
}
"""Beside the views: running statistics are updated where they are."""
_NO_SCRATCH: Final = frozenset((rule.domain, rule.op_type) for rule in nothing.RULES)


@dataclass(frozen=True, slots=True)
class _Cpu:
    """The pairs are those of the operators' own records.

    Source: ``KernelDefBuilder::Alias`` and ``MayInplace`` of the registrations, probed on
    onnxruntime 1.31.1.
    """

    device: str = "cpu"
    is_host: bool = True
    mapped_from_bytes: int | None = MEASURED.mmap_threshold_bytes

    def aliases(self, node: Node) -> Pairs:
        """The outputs that are an input's buffer."""
        return (*index_pairs(node, node.operator.alias), *_ALIAS.get(node.op_type, ()))

    def may_overwrite(self, node: Node) -> Pairs:
        """The outputs that may overwrite a dead input."""
        return tuple(index_pairs(node, node.operator.may_inplace))

    def has_rule(self, node: Node) -> bool:
        """Whether the kernel takes scratch or packs weights."""
        operator = (node.domain, node.op_type)
        return (operator in SCRATCH and operator not in _NO_SCRATCH) or operator in PREPACKING

    def level(self, level: Level) -> Level:
        """Every level."""
        return level

    def packing(self, graph: Graph, options: SessionOptions, facts: SessionFacts) -> Packing:
        """What the kernels pack, and small weights that are copied."""
        packed = () if options.disable_prepacking else prepacked(graph, facts)
        small = initializer_reserves(graph, packed)
        reserved = tuple(each for each in packed if each.is_reserved)
        sizes = tuple(each.size_bytes for each in reserved)
        held = accumulate(sizes)
        most = max(
            (now + each.passing_bytes for now, each in zip(held, reserved, strict=True)), default=0
        )
        return Packing(
            reserved_bytes=(*sizes, *(each.size_bytes for each in small)),
            allocated_bytes=tuple(each.size_bytes for each in packed if not each.is_reserved),
            passing_bytes=max(most - sum(sizes), 0),
            turned=tuple(_turned(packed)),
        )

    def packing_of(self, _sizes_bytes: Sequence[int], _options: SessionOptions) -> None:
        """Each kernel packs in its own way."""
        return

    def resident_bytes(self, arena: BfcArena, packed: Packing) -> int:
        """A process's own memory is taken page by page when it is touched."""
        return arena.touched_bytes - sum(packed.allocated_bytes)

    def growth_lines(self, options: SessionOptions) -> tuple[str, ...]:
        """The arena of the whole process is set."""
        number = GROWTHS.index(options.arena_extend_strategy)
        return (
            "arena = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR",
            'memory = onnxruntime.OrtMemoryInfo("Cpu", arena, 0, onnxruntime.OrtMemType.DEFAULT)',
            f'growth = onnxruntime.OrtArenaCfg({{"arena_extend_strategy": {number}}})',
            "onnxruntime.create_and_register_allocator(memory, growth)  # before any session",
            'options.add_session_config_entry("session.use_env_allocators", "1")',
        )


CPU: Final[ExecutionProvider] = _Cpu()


def _turned(packed: Iterable[Prepacked]) -> Iterator[tuple[int, int]]:
    num_allocated = 0
    for each in packed:
        if each.turned_bytes:
            yield num_allocated, each.turned_bytes
        num_allocated += not each.is_reserved

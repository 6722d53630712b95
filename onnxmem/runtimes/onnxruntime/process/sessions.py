"""The memory of a process with several sessions of one model.

They are created one after another on one heap, so that a later load fills what an earlier one
freed, and then the regions of their arenas are added: one arena for each session, or one for all.
Python, the pages of the library and the registries of kernels and schemas are there once. Mapped
weights count in each session, as in RSS; PSS and cgroups count their pages once.

A program in C, C++ or C# may share more: ``OrtApi::AddInitializer`` gives each session the weights
that the program holds, and sessions that are created with one ``PrepackedWeightsContainer`` keep
one packed copy of those (``SessionState::PrepackConstantInitializedTensors``). A container alone
shares nothing, nor is a weight shared that the optimizer made, as those of convolutions in blocks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Final

from onnxmem.runtimes.onnxruntime.process.baselines import NEWEST
from onnxmem.runtimes.onnxruntime.process.figures import HostProcess, ReadPages
from onnxmem.runtimes.onnxruntime.process.heap import PAGE_BYTES
from onnxmem.runtimes.onnxruntime.process.loading import (
    Loading,
    LoadSpec,
    Parts,
    Region,
    process_parts,
)

SHARED_BYTES: Final = NEWEST.shared_bytes
"""What the models of a process have in common."""
CALLERS: Final = "threads of callers"
"""The part of threads that run at once."""
HELD: Final = "weights that the program holds"
"""The part of weights that the program gives to all sessions."""
_MOST_LOADED: Final = 8
"""Loads that are simulated; each further session adds what the last one did."""

FORKED_BYTES: Final = 2_600 << 10
"""What a worker that was forked after the load writes beside its arenas and inputs: pages of Python
and of the sessions. The median of five models (2.3 to 4.3 MB; ``tools/onnxruntime/forked.py``)."""
Arenas = tuple[tuple[Region, ...], ...]
"""The regions of each arena, in the order in which they were added."""


@dataclass(slots=True, kw_only=True)
class SessionsMemory:
    """A process with so many sessions, without inputs; mutable, for it keeps what it computed."""

    host: HostProcess
    """With one session."""
    pages: ReadPages
    """Of mapped external weights, by the runs of a session."""
    num_sessions: int = 1
    shares_arena: bool = False
    shares_weights: bool = False
    """Whether the program gives its weights to all sessions, with one container of packed ones."""
    num_callers: int = 0
    """Threads beside the main one that run the sessions."""
    _totals: dict[Arenas, int] = field(init=False, default_factory=dict)

    @property
    def load_peak_bytes(self) -> int:
        """The peak while the sessions are created one after another."""
        loads = self._loads(self.host.loaded[1])
        # A load has the blocks of earlier ones on its own heap; what is not on the heap adds up
        # here.
        peaks, earlier_bytes = [], 0
        for load in loads:
            peaks.append(load.peak_bytes + earlier_bytes)
            earlier_bytes += load.records_bytes + load.file_pages_bytes
        further = self.num_sessions - len(loads)
        # From some session on each adds the same, so the last difference stands for all further
        # ones.
        growth = peaks[-1] - peaks[-2] if further else 0
        held_bytes = self.held_bytes + self.host.baseline.process_bytes
        return held_bytes + max(peaks) + further * max(growth, 0)

    def total_bytes(self, arenas: Arenas) -> int:
        """All of it."""
        if arenas not in self._totals:
            self._totals[arenas] = _total(self.parts(arenas))
        return self._totals[arenas]

    def spread_bytes(self, arenas: Arenas) -> int:
        """How much more it takes in the larger outcome of the heap."""
        totals = (_total(self._parts(each, arenas)) for each in self.host.outcomes)
        return max(totals) - self.total_bytes(arenas)

    @property
    def rows_bytes(self) -> tuple[int, int]:
        """How much less and how much more it takes by which rows of mapped weights runs read."""
        scale, pages = PAGE_BYTES * self.num_sessions, self.pages
        return scale * (pages.pages - pages.least), scale * (pages.most - pages.pages)

    def parts(self, arenas: Arenas) -> Parts:
        """The same by part; the parts add up to the total."""
        return self._parts(self.host.loaded[1], arenas)

    def _parts(self, first: Loading, arenas: Arenas) -> Parts:
        loads = self._loads(first)
        found = self._parts_of(loads, arenas)
        further = self.num_sessions - len(loads)
        if further:
            before = dict(self._parts_of(loads[:-1], arenas))
            # As for the load: the difference that the last session makes, for each further one.
            found = tuple((name, size + further * (size - before[name])) for name, size in found)
        others = {CALLERS: self.callers_bytes, HELD: self.held_bytes}
        return (*found, *((name, size) for name, size in others.items() if size))

    @property
    def shared_packed_bytes(self) -> int:
        """Packed copies that a container keeps, which else each session reserves in its arena."""
        spec = self.host.loaded[0]
        stored = {weight.name for weight in spec.stored}
        packed = (each for each in spec.packed if each.is_reserved and each.is_retained)
        return sum(each.packed_bytes for each in packed if each.weight in stored)

    @property
    def held_bytes(self) -> int:
        """The weights of the file that the program holds for all sessions."""
        if not self.shares_weights:
            return 0
        return sum(weight.size_bytes for weight in self.host.loaded[0].stored)

    @property
    def callers_bytes(self) -> int:
        """What the threads that run the sessions take beside tensors."""
        known, graph = self.host.baseline, self.host.session.recorded.graph.graph
        num_nodes = sum(1 for _ in graph.all_nodes())
        return self.num_callers * (known.thread_bytes + known.thread_node_bytes * num_nodes)

    def _parts_of(self, loads: Sequence[Loading], arenas: Arenas) -> Parts:
        heap = loads[-1].heap.copied()
        pairs = zip_longest(loads, arenas[: len(loads)], fillvalue=())
        grown = [load.with_regions(regions, heap) for load, regions in pairs if load]
        return process_parts(grown, heap, PAGE_BYTES * self.pages.pages * len(grown))

    def _loads(self, first: Loading) -> list[Loading]:
        """The loads of the sessions, each on the heap that the one before left."""
        spec = first.spec
        if self.shares_weights:
            spec = replace(spec, shared=frozenset(weight.name for weight in spec.stored))
            first = Loading(spec).run()
            # The first session packs, and the container keeps its copies for the others.
            spec = _further(spec)
        if self.shares_arena:
            # The one arena has its regions from the first session.
            spec = replace(spec, regions=())
        loads = [first]
        for _ in range(min(self.num_sessions, _MOST_LOADED) - 1):
            loads.append(loads[-1].another(spec))
        return loads


def _further(spec: LoadSpec) -> LoadSpec:
    """The load of a further session: it packs a shared weight to compare, and frees its copy."""
    packed = tuple(
        replace(each, is_retained=each.is_retained and each.weight not in spec.shared)
        for each in spec.packed
    )
    return replace(spec, packed=packed)


def _total(parts: Iterable[tuple[str, int]]) -> int:
    return sum(size_bytes for _, size_bytes in parts)

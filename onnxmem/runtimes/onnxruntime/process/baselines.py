"""What a process of onnxruntime takes beside weights and arenas, by release; measured.

Python with numpy and onnxruntime imported, and the pages of the library, were read in new processes
with each release, in environments that differ in nothing else (Linux, x86-64 with AVX-512, Python
3.11.7, numpy 2.4.6; ``tools/onnxruntime/floors.py``, ``tests/data/onnxruntime/floors.csv``). The
mmap threshold was read in a new process (``tools/onnxruntime/process_truth.py constants``). What a
node and a weight take, and the number of unmerged ends, are fits over half of 66 exported networks
and ``models/`` in 1.32.0, verified on the other half (``tests/data/onnxruntime/processes.csv``);
1.31.1 was looked at for the ends.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

_KIB: Final = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Memory of a process besides weights and arena, in bytes, and the state of its heap.

    All values were measured and can be replaced.
    """

    process_bytes: int
    """Resident before the session: Python with numpy and onnxruntime imported."""
    library_bytes: int
    """Pages of onnxruntime's library that a load reads."""
    running_bytes: int = 768 * _KIB
    """Further pages of the library that runs read."""
    registry_bytes: int = 1_236 * _KIB
    """The registries of kernels and schemas, and the library's data: once in a process."""
    session_bytes: int = 64 * _KIB
    """A session without nodes: what each further session of a model of one node adds."""
    node_bytes: int = 5_000
    """Per node of the optimized graph: its record, its kernel, its part of the plan."""
    weight_bytes: int = 10_000
    """Per weight of the optimized graph: its records and names, and the data of a small one."""
    kernel_bytes: int = 6_000
    """Pages of the library that a load reads for each of the first ``num_kernels`` nodes of the
    optimized graph, and a run once more."""
    num_kernels: int = 64
    """Of further nodes, the pages were read by earlier ones."""
    thread_bytes: int = 46 * _KIB
    """Per thread of the caller that runs a session, with the arena that the C library gives it."""
    thread_node_bytes: int = 300
    """Per node that it runs: what a run holds in that arena beside tensors. Both are fits over four
    models that six threads ran one after another; without those that a kernel of integers keeps."""
    unmerged_ends: int = 40
    """Per size, ends of aligned blocks that small blocks of the program occupy (``heap.py``)."""
    mmap_threshold_bytes: int = 217_088
    """The C library's threshold when the session is created: the largest block up to 32 MiB that
    was freed before; by default that is a file that numpy's import reads. A caller who freed a
    larger array raises it."""

    @property
    def shared_bytes(self) -> int:
        """What all sessions of a process have in common: Python, the pages of onnxruntime's
        library, and its registries.
        """
        own_bytes = self.library_bytes + self.running_bytes + self.registry_bytes
        return self.process_bytes + own_bytes


BASELINES: Final[Mapping[str, Baseline]] = MappingProxyType(
    {
        "1.29": Baseline(process_bytes=44_344 * _KIB, library_bytes=7_664 * _KIB),
        "1.30": Baseline(process_bytes=44_708 * _KIB, library_bytes=7_528 * _KIB),
        "1.31": Baseline(process_bytes=45_080 * _KIB, library_bytes=7_756 * _KIB),
        "1.32": Baseline(process_bytes=46_200 * _KIB, library_bytes=8_444 * _KIB),
    }
)
"""By minor release."""
NEWEST: Final = BASELINES["1.32"]
"""Of the release whose rules these are."""


def baseline_of(graph_optimizer: str) -> Baseline:
    """The baseline of the release that optimized the graph; the newest one where that is emulated,
    or by a release that was not measured.

    >>> baseline_of("onnxruntime 1.29.0") is BASELINES["1.29"]
    True
    """
    _, _, version = graph_optimizer.partition("onnxruntime ")
    return BASELINES.get(".".join(version.split(".")[:2]), NEWEST)

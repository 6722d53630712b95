"""The options of a session of onnxruntime that affect its memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from onnxmem.errors import UsageError

Level: TypeAlias = Literal["off", "basic", "extended", "all"]
Strategy: TypeAlias = Literal["kNextPowerOfTwo", "kSameAsRequested"]
Search: TypeAlias = Literal["EXHAUSTIVE", "HEURISTIC", "DEFAULT"]
Provider: TypeAlias = Literal["cpu", "cuda"]
Storage: TypeAlias = Literal["inline", "external"]

GROWTHS: Final[tuple[Strategy, ...]] = ("kNextPowerOfTwo", "kSameAsRequested")
"""In the order of their numbers in ``OrtArenaCfg``."""
LEVELS: Final[Mapping[str, Level]] = MappingProxyType(
    {"raw": "off", "ort-basic": "basic", "ort-extended": "extended", "ort-all": "all"}
)
"""By the name of the graph that the session then runs."""
LEVEL_NAMES: Final[Mapping[Level, str]] = MappingProxyType(
    {
        "off": "ORT_DISABLE_ALL",
        "basic": "ORT_ENABLE_BASIC",
        "extended": "ORT_ENABLE_EXTENDED",
        "all": "ORT_ENABLE_ALL",
    }
)
"""The same as onnxruntime's Python names them."""
MOST_THREADS: Final = 1024
"""onnxruntime makes all threads of a session when it is created, and takes any number."""
LEAST_THRESHOLD_BYTES: Final = 4096
"""A page. Below it the imports of Python are mapped block by block, which is not predicted: with 0
a process was measured at 351 MB in place of 93, with 4096 and above at 93."""
LOAD_OPTIONS: Final = ("weights", "trims_heap", "malloc_threshold_bytes")
"""The options of the process, which leave the session's plan and its arena as they are."""
MALLOC_VARIABLES: Final = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
"""Of glibc: blocks of that size are mapped, and freed memory of that size is returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """The options of a session; the defaults are onnxruntime's own, except for the threads."""

    level: Level = "all"
    """``GraphOptimizationLevel``."""
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_cpu_mem_arena: bool = True
    """False: the arena's figures are unknown, for the profile has no memory fields."""
    fixed_dims: bool = False
    """Whether symbols of the inputs are set to their numbers by free-dimension overrides."""
    disable_prepacking: bool = False
    shrinks_arena: bool = False
    """Whether every run ends with ``memory.enable_memory_arena_shrinkage``."""
    arena_extend_strategy: Strategy = "kNextPowerOfTwo"
    shares_arena: bool = False
    """Whether all sessions of the process have one arena, that of the environment
    (``session.use_env_allocators``); on the CPU."""
    num_threads: int = 1
    """``intra_op_num_threads``; with 1, figures and times are reproducible."""
    gpu_mem_limit_bytes: int | None = None
    cudnn_conv_algo_search: Search = "EXHAUSTIVE"
    cudnn_conv_use_max_workspace: bool = True
    weights: Storage | None = None
    """Where the weights are when the session loads them: all in the model file, or those of at
    least 1 KiB in a file beside it; ``None``: where they are now."""
    trims_heap: bool = False
    """Whether the process calls ``malloc_trim(0)`` when the session is created."""
    malloc_threshold_bytes: int | None = None
    """Both of ``MALLOC_MMAP_THRESHOLD_`` and ``MALLOC_TRIM_THRESHOLD_`` in the environment of the
    process; ``None``: neither, so that the C library adapts them."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Further config entries, such as ``session.use_device_allocator_for_initializers``."""

    def __post_init__(self) -> None:
        """Refuse what no process can run with.

        :raises UsageError: with the option and its range.
        """
        if not 1 <= self.num_threads <= MOST_THREADS:
            message = f"{self.num_threads:,} threads; a session has 1 to {MOST_THREADS:,}"
            raise UsageError(message)
        size_bytes = self.malloc_threshold_bytes
        if size_bytes is not None and size_bytes < LEAST_THRESHOLD_BYTES:
            message = (
                f"a malloc threshold of {size_bytes:,} B maps each small block by pages of its "
                f"own; it is at least {LEAST_THRESHOLD_BYTES:,} B"
            )
            raise UsageError(message)

    @property
    def variables(self) -> dict[str, str]:
        """Variables in the environment of its process."""
        size_bytes = self.malloc_threshold_bytes
        return {} if size_bytes is None else dict.fromkeys(MALLOC_VARIABLES, str(size_bytes))

"""The settings of an onnxruntime session that change what it takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

Level: TypeAlias = Literal["off", "basic", "extended", "all"]
Strategy: TypeAlias = Literal["kNextPowerOfTwo", "kSameAsRequested"]
Search: TypeAlias = Literal["EXHAUSTIVE", "HEURISTIC", "DEFAULT"]
Provider: TypeAlias = Literal["cpu", "cuda"]

GROWTHS: Final[tuple[Strategy, ...]] = ("kNextPowerOfTwo", "kSameAsRequested")
"""In the order of the numbers that ``OrtArenaCfg`` takes."""
LEVELS: Final[Mapping[str, Level]] = MappingProxyType(
    {"raw": "off", "ort-basic": "basic", "ort-extended": "extended", "ort-all": "all"}
)
"""By the name of the graph that a session then runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How a session is opened; the defaults are onnxruntime's own, but for the threads."""

    level: Level = "all"
    """Of graph optimisation: ``GraphOptimizationLevel``."""
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_cpu_mem_arena: bool = True
    """Without the arena its figures are unknown: the profile has no memory fields."""
    fixed_dims: bool = False
    """Whether the symbols of the inputs are overridden with their numbers when it is opened."""
    disable_prepacking: bool = False
    shrinks_arena: bool = False
    """Whether every run ends with ``memory.enable_memory_arena_shrinkage``."""
    arena_extend_strategy: Strategy = "kNextPowerOfTwo"
    num_threads: int = 1
    """``intra_op_num_threads``; one makes figures and times repeatable."""
    gpu_mem_limit_bytes: int | None = None
    cudnn_conv_algo_search: Search = "EXHAUSTIVE"
    cudnn_conv_use_max_workspace: bool = True
    config: Mapping[str, str] = field(default_factory=dict)
    """Further entries by their keys, as ``session.use_device_allocator_for_initializers``."""

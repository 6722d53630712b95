"""What differs between onnxruntime's execution providers: all that is CUDA's is in ``cuda``.

An ``ExecutionProvider`` decides which outputs share an input's buffer, which weights lie in the
arena before the first run, and what of the arena is resident; the plan, the runs and the arena
itself are the same for all. Begin reading with ``provider``.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from onnxmem.runtimes.onnxruntime.providers.cpu import CPU
from onnxmem.runtimes.onnxruntime.providers.cuda import CUDA, CudaTerms
from onnxmem.runtimes.onnxruntime.providers.provider import ExecutionProvider, Packing, Pairs

__all__ = ["CPU", "CUDA", "PROVIDERS", "CudaTerms", "ExecutionProvider", "Packing", "Pairs"]

PROVIDERS: Final[Mapping[str, ExecutionProvider]] = MappingProxyType(
    {"ort-cpu": CPU, "ort-cuda": CUDA}
)
"""By the name of the runtime."""

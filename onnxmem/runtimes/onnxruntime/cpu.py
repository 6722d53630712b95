"""The CPU of a session, as far as onnxruntime's graph and memory depend on it.

MLAS, onnxruntime's library of CPU kernels, selects its kernels by the features of the CPU when it
is loaded. The layout of blocked images, packed weights and some scratch depend on that choice.
"""

import platform
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Final

from onnxmem.errors import UsageError

_FEATURES: Final = ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath")
"""Modules of numpy that list the features of the CPU; the name changed in numpy 2."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """The properties of a CPU that the rules depend on."""

    name: str
    channel_block: int
    """Channels per block of the NCHWc image operators; 0: images are not blocked.

    core/mlas/lib/platform.cpp: ``NchwcBlockSize``, 16 with AVX-512 and 8 on other x86-64;
    ``MlasNchwcGetBlockSize`` is 1 on ARM, for which releases up to 1.32 are built without.
    """
    is_arm: bool = False
    is_verified: bool = True
    """Whether the rules were verified with onnxruntime on such a CPU."""


AVX512: Final = Cpu("avx512", 16)
AVX2: Final = Cpu("avx2", 8)
ARM64: Final = Cpu("arm64", 0, is_arm=True, is_verified=False)
CPUS: Final = MappingProxyType({cpu.name: cpu for cpu in (AVX512, AVX2, ARM64)})
ASSUMED: Final = AVX512
"""Used if this machine's CPU is requested and unknown."""


def cpu_named(name: str) -> Cpu:
    """The CPU with a name; ``native`` is this machine's.

    :raises UsageError: the name is unknown.
    """
    if name == "native":
        return native_cpu() or ASSUMED
    if name not in CPUS:
        message = f"cpu {name!r} is not known; choose one of native, {', '.join(CPUS)}"
        raise UsageError(message)
    return CPUS[name]


@cache
def native_cpu() -> Cpu | None:
    """The CPU of this machine; ``None``: none of those above."""
    if platform.machine().lower() in {"aarch64", "arm64"}:
        return ARM64
    features = _features()
    if features.get("AVX512_SKX"):
        return AVX512
    return AVX2 if features.get("AVX2") and features.get("FMA3") else None


def _features() -> dict[str, bool]:
    """The CPU's features by name, as detected by numpy; empty if numpy does not list them."""
    for name in _FEATURES:
        try:
            found: dict[str, bool] = import_module(name).__cpu_features__
        except (ImportError, AttributeError):
            continue
        return found
    return {}

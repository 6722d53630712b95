"""One device; ``None`` is unknown."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from onnxmem.errors import UsageError

KINDS: Final = ("cuda", "gpu", "cpu", "mcu")
"""An NVIDIA GPU, another GPU, the RAM of a machine, the RAM of a microcontroller."""


class DeviceError(UsageError):
    """A device that is not known, or a file of devices that makes no sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What is known of a device; figures of arithmetic and of bandwidth are peaks, a second."""

    name: str
    kind: str
    memory_bytes: int
    """As it is sold."""
    aliases: tuple[str, ...] = ()
    usable_bytes: int | None = None
    """What the driver or the system offers of it, where that is known; on CUDA what it reports."""
    flash_bytes: int | None = None
    """Where a microcontroller keeps weights."""
    shares_memory: bool = False
    """The system and its programs take of the same memory."""
    cpu: str | None = None
    """What onnxruntime's CPU kernels run on, as ``--cpu`` names it; ``None``: unknown."""
    bandwidth_bytes: int | None = None
    """Of its memory, a second."""
    fp32_flops: int | None = None
    """Without tensor cores, a second."""
    fp16_flops: int | None = None
    """Dense, with tensor cores where it has any, a second."""
    year: int | None = None
    price_usd: int | None = None
    """At launch, where a source gives it."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each figure that is known is from, by the name of its field."""

    @property
    def limit_bytes(self) -> int:
        """What there is to hold bytes against: what is usable, or else all."""
        return self.memory_bytes if self.usable_bytes is None else self.usable_bytes

    @property
    def gflops_per_usd(self) -> float | None:
        """Arithmetic for the money, in 10^9 float32 FLOPs a second; ``None`` without a price."""
        if self.fp32_flops is None or not self.price_usd:
            return None
        return self.fp32_flops / 1e9 / self.price_usd

    @property
    def bytes_per_usd(self) -> int | None:
        """Memory for the money; ``None`` without a price."""
        return self.memory_bytes // self.price_usd if self.price_usd else None

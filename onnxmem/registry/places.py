"""What a registry is held against: devices by name, sizes, or the sizes that GPUs come in."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from onnxmem.devices import Catalogue, Device
from onnxmem.escaping import shortened
from onnxmem.fitting import Basis, basis_for

_NUM_COMMON: Final = 8
"""Sizes of GPUs, those that the most devices of the catalogue have."""


@dataclass(frozen=True, slots=True)
class Place:
    """Memory that models are held against one by one."""

    name: str
    limit_bytes: int
    kind: str | None = None
    """``None``: a bare size."""
    flash_bytes: int | None = None

    def basis(self, *, train: bool) -> Basis:
        """The figure that is held against it: the one of ``onnxmem fit`` where a row has it.

        A run is held as weights + inputs + in-place peak: no runtime is asked of a registry.
        """
        runtime = None if self.kind == "mcu" else "none"
        return basis_for(self.kind, train=train, runtime=runtime)


def places_of(names: Iterable[str], devices: Catalogue) -> tuple[Place, ...]:
    """The devices and sizes that are named, each once; none named: the common sizes of GPUs.

    :raises DeviceError: a name that is neither.
    """
    named = tuple(dict.fromkeys(names))
    return tuple(_place(name, devices) for name in named) if named else common_sizes(devices)


def common_sizes(devices: Catalogue) -> tuple[Place, ...]:
    """The memory sizes that most NVIDIA GPUs of a catalogue have, the smallest first.

    What counts is the least that is usable of such a GPU: it holds on every one of that size.
    """
    gpus = sorted(
        (device for device in devices.devices if device.kind == "cuda"), key=_memory_bytes
    )
    groups = [(size, list(group)) for size, group in groupby(gpus, key=_memory_bytes)]
    groups.sort(key=lambda each: (-len(each[1]), each[0]))
    return tuple(
        Place(f"{size / 2**30:g} GiB GPU", min(each.limit_bytes for each in group), "cuda")
        for size, group in sorted(groups[:_NUM_COMMON], key=lambda each: each[0])
    )


def _memory_bytes(device: Device) -> int:
    return device.memory_bytes


def _place(name: str, devices: Catalogue) -> Place:
    found = devices.device_or_size(name)
    if isinstance(found, Device):
        return Place(found.name, found.limit_bytes, found.kind, found.flash_bytes)
    return Place(shortened(name), found)

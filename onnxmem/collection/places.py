"""What models are compared with: devices by name, sizes, or the sizes that GPUs come in."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from onnxmem.analysis.fitting.verdicts import AnyBasis, Verdict, basis_for
from onnxmem.decisions.devices import Catalogue, Device
from onnxmem.errors import OnnxmemError, shortened
from onnxmem.settings import Settings

if TYPE_CHECKING:
    from onnxmem.analysis.fitting.answering import Assessment
    from onnxmem.analysis.request import AnalysisRequest

_NUM_COMMON: Final = 8
"""Sizes of GPUs, those that the most devices of the catalogue have."""


@dataclass(frozen=True, slots=True)
class Place:
    """Memory that models are compared with one by one."""

    name: str
    limit_bytes: int
    kind: str | None = None
    """``None``: a bare size."""
    flash_bytes: int | None = None
    cpu: str | None = None
    """The device's CPU; ``None``: the one that is asked about."""

    def basis(self, settings: Settings) -> AnyBasis:
        """The figure that is compared with it: the one of ``onnxmem fit``."""
        runtime = next(iter(settings.runtimes), None)
        return basis_for(self.kind, train=settings.train, runtime=runtime, basis=settings.basis)


@dataclass(frozen=True, slots=True)
class Placed:
    """A model on a device."""

    place: Place
    basis: AnyBasis
    verdict: Verdict
    num_bytes: int | None
    """What is compared; ``None`` where it cannot be had."""


def verdicts_on(question: "AnalysisRequest", places: Iterable[Place]) -> Iterator[Placed]:
    """What becomes of a model on each of some devices, as ``onnxmem fit`` says."""
    accepted = frozenset(question.settings.accepted)
    found: dict[tuple[AnyBasis, str | None], Assessment | None] = {}
    for place in places:
        basis = place.basis(question.settings)
        key = basis, place.cpu
        if key not in found:
            from onnxmem.analysis.fitting.answering import FitRequest, assess

            setup = FitRequest(memory_bytes=place.limit_bytes, basis=basis, accepted=accepted)
            try:
                from onnxmem.analysis.fitting.holding import on_device

                there = on_device(question, place.cpu, basis)
                found[key] = assess((there,), setup)
            except OnnxmemError:
                found[key] = None
        standing = found[key]
        if standing is None:
            yield Placed(place, basis, Verdict.UNKNOWN, None)
            continue
        verdict = standing.verdict(place.limit_bytes, place.flash_bytes)
        yield Placed(place, basis, verdict, standing.held.total_bytes)


def places_of(names: Iterable[str], devices: Catalogue) -> tuple[Place, ...]:
    """The devices and sizes that are named, each once; none named: the common sizes of GPUs.

    :raises DeviceError: a name that is neither.
    """
    named = tuple(dict.fromkeys(names))
    return tuple(_place(name, devices) for name in named) if named else common_sizes(devices)


def common_sizes(devices: Catalogue) -> tuple[Place, ...]:
    """The memory sizes that most NVIDIA GPUs of a catalogue have, the smallest first.

    A size is what a program may have, as everywhere; a card may offer less of what it is sold with.
    """
    gpus = sorted(
        (device for device in devices.devices if device.kind == "cuda"), key=_memory_bytes
    )
    groups = [(size, len(list(group))) for size, group in groupby(gpus, key=_memory_bytes)]
    groups.sort(key=lambda each: (-each[1], each[0]))
    sizes = sorted(size for size, _ in groups[:_NUM_COMMON])
    return tuple(Place(f"{size / 2**30:g} GiB", size) for size in sizes)


def _memory_bytes(device: Device) -> int:
    return device.memory_bytes


def _place(name: str, devices: Catalogue) -> Place:
    found = devices.device_or_size(name)
    if isinstance(found, Device):
        return Place(found.name, found.limit_bytes, found.kind, found.flash_bytes, found.cpu)
    return Place(shortened(name), found)

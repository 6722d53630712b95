"""Which devices of a catalogue a model fits, the smallest first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from onnxmem.analysis.fitting.answering import Assessment, FitRequest, assess
from onnxmem.analysis.fitting.bases import AnyBasis, Basis, basis_for
from onnxmem.analysis.fitting.holding import on_device
from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.decisions.devices.device import Device
from onnxmem.decisions.roofline import Bound, bound, work_of

_ORDER: Final = (Verdict.FITS, Verdict.TIGHT, Verdict.UNKNOWN, Verdict.OVER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One device, and what a model does on it."""

    device: Device
    standing: Assessment
    limit_bytes: int
    verdict: Verdict
    bound: Bound
    """Of one instance of the first model."""
    cpu: str | None = None
    """The device's CPU, where the figure is of it."""

    @property
    def basis(self) -> AnyBasis:
        """The figure that is compared."""
        return self.standing.basis

    @property
    def num_bytes(self) -> int:
        """What is wanted."""
        return self.standing.held.total_bytes

    @property
    def margin_bytes(self) -> int:
        """What is left; below 0, what is missing."""
        return self.limit_bytes - self.num_bytes


def rank(
    questions: Sequence[AnalysisRequest],
    devices: Iterable[Device],
    setup: FitRequest,
    runtime: str | None,
) -> tuple[Ranked, ...]:
    """Compare models with every device, at the batch asked for: what fits first, then by size.

    Microcontrollers are left out of training.

    :raises OnnxmemError: a model cannot be worked out.
    """
    asked = questions[0].settings
    work = work_of(questions[0].results)
    found: dict[tuple[AnyBasis, str | None], Assessment] = {}
    ranked = []
    for device in devices:
        if asked.train and device.kind == "mcu":
            continue
        basis = basis_for(device.kind, train=asked.train, runtime=runtime, basis=asked.basis)
        cpu = device.cpu if basis is Basis.ORT_CPU else None
        if (basis, cpu) not in found:
            there = [on_device(question, cpu, basis) for question in questions]
            found[basis, cpu] = assess(there, replace(setup, basis=basis))
        standing = found[basis, cpu]
        limit_bytes = max(device.limit_bytes - setup.reserve_bytes, 0)
        ranked.append(
            Ranked(
                device=device,
                standing=standing,
                limit_bytes=limit_bytes,
                verdict=standing.verdict(limit_bytes, device.flash_bytes),
                bound=bound(work, device),
                cpu=cpu,
            )
        )
    return tuple(sorted(ranked, key=lambda each: (_ORDER.index(each.verdict), each.limit_bytes)))

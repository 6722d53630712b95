"""Which devices of a catalogue a model fits, the smallest first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from onnxmem.devices import Device
from onnxmem.fitting.answering import Holdings, Row, Setup
from onnxmem.fitting.bases import Basis, basis_for
from onnxmem.fitting.holding import Held, NoFigureError
from onnxmem.question import Question
from onnxmem.roofline import Bound, bound, work_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One device, and what a model does on it."""

    device: Device
    basis: Basis
    num_bytes: int
    limit_bytes: int
    verdict: bool | None
    bound: Bound
    """Of one instance of the first model."""

    @property
    def margin_bytes(self) -> int:
        """What is left; below 0, what is missing."""
        return self.limit_bytes - self.num_bytes


def rank(
    questions: Sequence[Question], devices: Iterable[Device], setup: Setup, runtime: str | None
) -> tuple[Ranked, ...]:
    """Hold models against every device, at the batch asked for: those that fit first, then by size.

    Microcontrollers are left out of training.

    :raises OnnxmemError: a model cannot be worked out.
    """
    train = questions[0].settings.train
    work = work_of(questions[0].terms())
    found: dict[Basis, tuple[Basis, Held]] = {}
    ranked = []
    for device in devices:
        if train and device.kind == "mcu":
            continue
        basis = basis_for(device.kind, train=train, runtime=runtime)
        if basis not in found:
            found[basis] = _held(questions, replace(setup, basis=basis))
        taken, held = found[basis]
        limit_bytes = max(device.limit_bytes - setup.reserve_bytes, 0)
        verdict = Row(1, held.total_bytes, held.is_whole).fits(limit_bytes)
        if device.flash_bytes is not None and (held.weight_bytes or 0) > device.flash_bytes:
            verdict = False
        ranked.append(
            Ranked(
                device=device,
                basis=taken,
                num_bytes=held.total_bytes,
                limit_bytes=limit_bytes,
                verdict=verdict,
                bound=bound(work, device),
            )
        )
    order = {True: 0, None: 1, False: 2}
    return tuple(sorted(ranked, key=lambda each: (order[each.verdict], each.limit_bytes)))


def _held(questions: Sequence[Question], setup: Setup) -> tuple[Basis, Held]:
    try:
        return setup.basis, Holdings(tuple(questions), setup).worked_out(questions)
    except NoFigureError:
        if setup.is_asked or setup.basis not in {Basis.ORT_CPU, Basis.ORT_CUDA}:
            raise
        return _held(questions, replace(setup, basis=Basis.TOTAL))

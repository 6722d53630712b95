"""A collection in a few figures: totals, percentiles, the heaviest, what fits where, failures.

Of each model only a few numbers are kept, so a summary of 100,000 takes some 40 MB. Models are
compared with ``Target``s: devices by name, sizes, or the sizes that GPUs come in. A reader's own
table may add the accuracy of each model.
"""

import csv
import io
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TextIO, cast

from onnxmem.analysis.fitting.verdicts import AnyBasis, Verdict, basis_for, basis_named
from onnxmem.analysis.json_rows import JsonDict, bytes_at
from onnxmem.decisions.devices import Catalog, Device
from onnxmem.errors import OnnxmemError, UsageError, shortened
from onnxmem.files import read_text, reason_of
from onnxmem.settings import Settings

if TYPE_CHECKING:
    from onnxmem.analysis.fitting.assessing import Assessment
    from onnxmem.analysis.request import AnalysisRequest

_NUM_COMMON: Final = 8
"""Sizes of GPUs, those that the most devices of the catalogue have."""
PERCENTILES: Final = (50, 90, 99)
NUM_HEAVIEST: Final = 5
_FIGURES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "weights": ("weights", "bytes"),
        "peak": ("activations", "in_place_peak_bytes"),
        "total": ("total_bytes",),
        "training": ("training", "peak_bytes"),
    }
)
"""What is summed up, and its keys in a row."""
_NAMES: Final = tuple(_FIGURES)


@dataclass(frozen=True, slots=True)
class Target:
    """A device or a size of memory that models are compared with one by one."""

    name: str
    limit_bytes: int
    kind: str | None = None
    """``None``: a bare size."""
    flash_bytes: int | None = None
    cpu: str | None = None
    """The device's CPU; ``None``: the one in the settings."""

    def basis(self, settings: Settings) -> AnyBasis:
        """The figure that is compared with it: the one of ``onnxmem fit``."""
        runtime = next(iter(settings.runtimes), None)
        return basis_for(self.kind, train=settings.train, runtime=runtime, basis=settings.basis)


@dataclass(frozen=True, slots=True)
class TargetVerdict:
    """A model on a device."""

    target: Target
    basis: AnyBasis
    verdict: Verdict
    assessment: "Assessment | None"
    """What the verdict is made of; ``None`` where it cannot be had."""

    @property
    def num_bytes(self) -> int | None:
        """The figure that is compared with the device."""
        return None if self.assessment is None else self.assessment.footprint.total_bytes


def verdicts_on(request: "AnalysisRequest", targets: Iterable[Target]) -> Iterator[TargetVerdict]:
    """The verdict on a model for each of some devices, as ``onnxmem fit`` gives it."""
    accepted = frozenset(request.settings.accepted)
    found: dict[tuple[AnyBasis, str | None], Assessment | None] = {}
    for target in targets:
        basis = target.basis(request.settings)
        key = basis, target.cpu
        if key not in found:
            from onnxmem.analysis.fitting.assessing import FitRequest, assess

            setup = FitRequest(memory_bytes=target.limit_bytes, basis=basis, accepted=accepted)
            try:
                from onnxmem.analysis.fitting.footprints import on_device

                there = on_device(request, target.cpu, basis)
                found[key] = assess((there,), setup)
            except OnnxmemError:
                found[key] = None
        assessment = found[key]
        if assessment is None:
            yield TargetVerdict(target, basis, Verdict.UNKNOWN, None)
            continue
        verdict = assessment.verdict(target.limit_bytes, target.flash_bytes)
        yield TargetVerdict(target, basis, verdict, assessment)


def targets_of(names: Iterable[str], devices: Catalog) -> tuple[Target, ...]:
    """The devices and sizes that are named, each once; none named: the common sizes of GPUs.

    :raises DeviceError: a name that is neither.
    """
    named = tuple(dict.fromkeys(names))
    return tuple(_target(name, devices) for name in named) if named else common_sizes(devices)


def common_sizes(devices: Catalog) -> tuple[Target, ...]:
    """The memory sizes that most NVIDIA GPUs of a catalogue have, the smallest first.

    A size is what a program may have, as everywhere; a card may offer less of what it is sold with.
    """
    gpus = sorted(
        (device for device in devices.devices if device.kind == "cuda"), key=_memory_bytes
    )
    groups = [(size, len(list(group))) for size, group in groupby(gpus, key=_memory_bytes)]
    groups.sort(key=lambda each: (-each[1], each[0]))
    sizes = sorted(size for size, _ in groups[:_NUM_COMMON])
    return tuple(Target(f"{size / 2**30:g} GiB", size) for size in sizes)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure over all models that have it; bytes, ``None`` where none has."""

    name: str
    num_known: int
    num_partial: int
    """Of those: lower bounds."""
    sum_bytes: int | None
    percentiles: tuple[tuple[int, int], ...]
    """Percent, and the least figure that at least so many of the models do not exceed."""
    max_bytes: int | None


@dataclass(frozen=True, slots=True)
class Fitting:
    """How many models fit one device or size, one at a time."""

    target: Target
    basis: AnyBasis | None
    """What is compared; ``None`` where no model came so far."""
    fits: int
    tight: int
    does_not_fit: int
    unknown: int
    """Failed, or known in part alone."""


@dataclass(frozen=True, slots=True)
class Note:
    """A finding that some of the models have."""

    code: str
    num_models: int
    path: str
    """The first of them."""
    message: str
    """Of that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Many models in a few figures."""

    num_models: int
    statuses: Mapping[str, int]
    faults: Mapping[str, int]
    """Models that could not be analyzed, by the code of the fault."""
    figures: tuple[Figure, ...]
    heaviest_by: str
    """Name of the figure."""
    heaviest: tuple[tuple[str, int], ...]
    """Paths and bytes, the heaviest first."""
    fittings: tuple[Fitting, ...]
    notes: tuple[Note, ...]
    """Of the models that were analyzed, the most frequent first."""


@dataclass(frozen=True, slots=True)
class _Model:
    path: str
    status: str
    figures: tuple[int | None, ...]
    """In the order of ``_FIGURES``."""
    verdicts: Mapping[str, Verdict]
    """By the name of a device."""

    def bytes_of(self, name: str) -> int | None:
        return self.figures[_NAMES.index(name)]


@dataclass(slots=True)
class Tally:
    """Mutable: rows as they come, until they are summed up."""

    _models: list[_Model] = field(default_factory=list)
    _faults: Counter[str] = field(default_factory=Counter)
    _train: bool = False
    _notes: dict[str, Note] = field(default_factory=dict)
    """By code."""
    _bases: dict[str, AnyBasis] = field(default_factory=dict)
    """What is compared with each device."""

    def add(self, row: JsonDict) -> None:
        """Count a row in."""
        status = cast("str", row["status"])
        if status == "error":
            self._faults[cast("Mapping[str, str]", row["error"])["code"]] += 1
        self._train = self._train or row["training"] is not None
        self._note(row)
        devices = cast("Sequence[Mapping[str, str]]", row.get("devices") or ())
        self._bases |= {each["name"]: basis_named(each["basis"]) for each in devices}
        self._models.append(
            _Model(
                path=cast("str", row["path"]),
                status=status,
                figures=tuple(bytes_at(row, keys) for keys in _FIGURES.values()),
                verdicts={sys.intern(e["name"]): Verdict(e["verdict"]) for e in devices},
            )
        )

    def _note(self, row: JsonDict) -> None:
        findings = cast("Sequence[Mapping[str, str]]", row["findings"] or ())
        for code, message in {each["code"]: each["message"] for each in reversed(findings)}.items():
            first = self._notes.get(code) or Note(code, 0, cast("str", row["path"]), message)
            self._notes[code] = replace(first, num_models=first.num_models + 1)

    def summary(self, targets: Iterable[Target] = ()) -> Summary:
        """What the rows so far come to."""
        by = "training" if self._train else "total"
        names = _NAMES if self._train else _NAMES[:-1]
        heaviest = [(each.path, size) for each in self._models if (size := each.bytes_of(by))]
        heaviest.sort(key=lambda each: -each[1])
        statuses = Counter(each.status for each in self._models)
        return Summary(
            num_models=len(self._models),
            statuses={name: statuses[name] for name in ("ok", "partial", "error")},
            faults=dict(sorted(self._faults.items())),
            figures=tuple(_figure(name, self._models) for name in names),
            heaviest_by=by,
            heaviest=tuple(heaviest[:NUM_HEAVIEST]),
            fittings=tuple(
                _fitting(target, self._bases.get(target.name), self._models) for target in targets
            ),
            notes=tuple(sorted(self._notes.values(), key=lambda each: -each.num_models)),
        )


def percentile(ordered: Sequence[int], percent: int) -> int:
    """The nearest rank: the least number that at least ``percent`` percent do not exceed.

    Always one of the numbers, so bytes stay whole (NIST/SEMATECH e-Handbook, 7.2.6.2, leaves the
    choice between ranks open; this is R's ``type = 1``).
    """
    return ordered[max(-(-percent * len(ordered) // 100), 1) - 1]


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Numbers by how a table names its models, in whatever unit it has."""

    by_name: Mapping[str, float]

    def of(self, path: str) -> float | None:
        """That of a model: by its path, else its file's name, else that without its suffix."""
        file = PurePosixPath(path.replace("\\", "/"))
        names = (path, file.name, file.stem)
        return next((self.by_name[name] for name in names if name in self.by_name), None)


def read_accuracies(path: str) -> Accuracies:
    """Read a CSV with a head; columns other than ``model`` and ``accuracy`` are left alone.

    :raises UsageError: it is no such table; the message says in which line.
    """
    try:
        lines = io.StringIO(read_text(path, "utf-8-sig"), newline="")
        return Accuracies(_read(lines, shortened(path)))
    except (OSError, UnicodeDecodeError) as fault:
        message = f"{shortened(path)}: cannot be read as CSV: {reason_of(fault)}"
        raise UsageError(message) from fault
    except csv.Error as fault:
        message = f"{shortened(path)}: cannot be read as CSV: {fault}"
        raise UsageError(message) from fault


def _memory_bytes(device: Device) -> int:
    return device.memory_bytes


def _target(name: str, devices: Catalog) -> Target:
    found = devices.device_or_size(name)
    if isinstance(found, Device):
        return Target(found.name, found.limit_bytes, found.kind, found.flash_bytes, found.cpu)
    return Target(shortened(name), found)


def _figure(name: str, models: Sequence[_Model]) -> Figure:
    known = [(size, each.status) for each in models if (size := each.bytes_of(name)) is not None]
    ordered = sorted(size for size, _ in known)
    return Figure(
        name=name,
        num_known=len(known),
        num_partial=sum(status == "partial" for _, status in known),
        sum_bytes=sum(ordered) if ordered else None,
        percentiles=tuple((each, percentile(ordered, each)) for each in PERCENTILES if ordered),
        max_bytes=ordered[-1] if ordered else None,
    )


def _fitting(target: Target, basis: AnyBasis | None, models: Sequence[_Model]) -> Fitting:
    verdicts = Counter(model.verdicts.get(target.name, Verdict.UNKNOWN) for model in models)
    return Fitting(
        target,
        basis,
        verdicts[Verdict.FITS],
        verdicts[Verdict.TIGHT],
        verdicts[Verdict.OVER],
        verdicts[Verdict.UNKNOWN],
    )


def _read(file: TextIO, name: str) -> dict[str, float]:
    rows = csv.DictReader(file)
    missing = [name for name in ("model", "accuracy") if name not in (rows.fieldnames or ())]
    if missing:
        message = (
            f"{name}: has no column {' and no '.join(missing)}; its first line names the columns, "
            "as in model,accuracy"
        )
        raise UsageError(message)
    found: dict[str, float] = {}
    for row in rows:
        where = f"{name}, line {rows.line_num}"
        model = row["model"] or ""
        if model in found:
            message = f"{where}: names {shortened(model)} again; keep one of the two lines"
            raise UsageError(message)
        found[model] = _number(row["accuracy"], where)
    return found


def _number(text: str | None, where: str) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        message = f"{where}: accuracy {shortened(text or '')!r} is no number; write it as in 76.13"
        raise UsageError(message)
    return number

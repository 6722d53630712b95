"""Summarize many models: totals, percentiles, the largest, which devices they fit, failures.

Only a few numbers of each model are stored: 100,000 models take about 40 MB. Models are compared
with ``Target``s: devices, sizes, or the common memory sizes of GPUs. A CSV file may add the
accuracy of each model.
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
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from onnxmem.analysis.fitting.verdicts import (
    Accuracy,
    AnyBasis,
    Comparison,
    Verdict,
    basis_for,
    basis_named,
    compared_bytes,
)
from onnxmem.analysis.json_rows import JsonDict, bytes_at, ends_of, session_bytes
from onnxmem.decisions.devices import Catalog, Device
from onnxmem.errors import OnnxmemError, UsageError, shortened
from onnxmem.files import read_text, reason_of
from onnxmem.settings import Settings
from onnxmem.units import sum_if_known, sum_known

if TYPE_CHECKING:
    from onnxmem.analysis.fitting.assessing import Assessment
    from onnxmem.analysis.request import AnalysisRequest

_NUM_COMMON: Final = 8
"""How many memory sizes of GPUs are compared by default."""
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
"""The summarized figures, and their keys in the JSON of a model."""
SESSION_FIGURES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {"process": ("ort-cpu", "process_bytes"), "arena": ("ort-cuda", "held_steady_bytes")}
)
"""Those of a runtime that is requested, and the key in the JSON of its session."""
_NAMES: Final = (*_FIGURES, *SESSION_FIGURES)
_ENDS: Final = {"peak": "in_place_peak", "total": "total", "training": "training_peak"}
"""The figures that the data of a run may decide, and what they are called there."""


@dataclass(frozen=True, slots=True)
class Target:
    """A device or a memory size that each model is compared with."""

    name: str
    limit_bytes: int
    kind: str | None = None
    """``None``: a size without a device."""
    flash_bytes: int | None = None
    cpu: str | None = None
    """The device's CPU; ``None``: the one in the settings."""
    compute_capability: str | None = None
    gpu_threads: int | None = None
    """Of an NVIDIA GPU, as its capability."""

    def basis(self, settings: Settings) -> AnyBasis:
        """The figure that is compared with it, as in ``onnxmem fit``."""
        runtime = next(iter(settings.runtimes), None)
        return basis_for(self.kind, train=settings.train, runtime=runtime, basis=settings.basis)


@dataclass(frozen=True, slots=True)
class TargetVerdict:
    """A model on a device."""

    target: Target
    basis: AnyBasis
    compared: Comparison
    assessment: "Assessment | None"
    """The assessment that gives the verdict; ``None`` if it cannot be computed."""


def verdicts_on(request: "AnalysisRequest", targets: Iterable[Target]) -> Iterator[TargetVerdict]:
    """The verdict on a model for each target, as in ``onnxmem fit``."""
    from onnxmem.analysis.fitting.assessing import DeviceAssessments, FitRequest

    # The memory is that of each target, with which the assessment is compared below.
    setup = FitRequest(memory_bytes=0, accepted=frozenset(request.settings.accepted))
    assessments = DeviceAssessments((request,), setup)
    for target in targets:
        basis = target.basis(request.settings)
        try:
            assessment = assessments.on(basis, target)
        except OnnxmemError:
            yield TargetVerdict(target, basis, compared_bytes(None, target.limit_bytes), None)
            continue
        compared = assessment.compared(target.limit_bytes, target.flash_bytes)
        yield TargetVerdict(target, basis, compared, assessment)


def targets_of(names: Iterable[str], devices: Catalog) -> tuple[Target, ...]:
    """Devices and sizes by name, each once; without names, the common sizes of GPUs.

    :raises DeviceError: a name is neither a device nor a size.
    """
    named = tuple(dict.fromkeys(names))
    return tuple(_target(name, devices) for name in named) if named else common_sizes(devices)


def common_sizes(devices: Catalog) -> tuple[Target, ...]:
    """The most common memory sizes of the NVIDIA GPUs of a catalog, the smallest first.

    They are the sizes that GPUs are sold with; a device may leave less to programs.
    """
    gpus = sorted(
        (device for device in devices.devices if device.kind == "cuda"), key=_memory_bytes
    )
    groups = [(size, len(list(group))) for size, group in groupby(gpus, key=_memory_bytes)]
    # The sizes that most cards have; of equally many, the smaller one.
    groups.sort(key=lambda each: (-each[1], each[0]))
    sizes = sorted(size for size, _ in groups[:_NUM_COMMON])
    return tuple(Target(f"{size / 2**30:g} GiB", size) for size in sizes)


@dataclass(frozen=True, slots=True)
class FigureSummary:
    """One figure over all models that have it; bytes, ``None`` if no model has it."""

    name: str
    num_known: int
    num_partial: int
    """How many of these are of models that are only analyzed in part."""
    num_incomplete: int
    """How many are lower bounds because something is left out."""
    num_data: int
    """How many the data of a run decide."""
    sum_bytes: int | None
    sum_lower_bytes: int | None
    """The sum of what the data of a run lead to at least."""
    sum_upper_bytes: int | None
    """At most; ``None``: one of the models has no upper end."""
    percentiles: tuple[tuple[int, int], ...]
    """Percentages, each with its percentile (``percentile``)."""
    max_bytes: int | None


@dataclass(frozen=True, slots=True)
class Fitting:
    """How many models fit a device or size, each by itself."""

    target: Target
    basis: AnyBasis | None
    """The compared figure; ``None`` if no model was compared."""
    fits: int
    tight: int
    does_not_fit: int
    unknown_paths: tuple[str, ...]
    """The models that failed, or whose verdict is unknown."""
    accuracy: Accuracy | None
    """Of the compared figure, with the settings of the models."""

    @property
    def unknown(self) -> int:
        """How many models failed or have an unknown verdict."""
        return len(self.unknown_paths)


@dataclass(frozen=True, slots=True)
class Note:
    """A finding of at least one model."""

    code: str
    num_models: int
    path: str
    """The first model that has it."""
    message: str
    """The message for that model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of many models."""

    num_models: int
    statuses: Mapping[str, int]
    faults: Mapping[str, int]
    """How many models could not be analyzed, by the code of the error."""
    figures: tuple[FigureSummary, ...]
    heaviest_by: str
    """The name of the figure by which models are ranked."""
    heaviest: tuple[tuple[str, int], ...]
    """Paths and bytes of the largest models, the largest first."""
    fittings: tuple[Fitting, ...]
    verdicts: Mapping[Verdict, int]
    """How many models have which verdict on the budget; empty: there is none."""
    notes: tuple[Note, ...]
    """The findings on models that were analyzed, the most frequent first."""
    findings: Mapping[str, int]
    """How many models have a finding, by its code."""


@dataclass(frozen=True, slots=True)
class _Model:
    path: str
    status: str
    figures: tuple[int | None, ...]
    """In the order of ``_NAMES``."""
    is_left_to_data: bool
    """Whether the data of a run decide sizes."""
    ends: Mapping[str, tuple[int | None, int | None]]
    """Of the figures that they decide."""
    verdicts: Mapping[str, Verdict]
    """Verdicts by the name of the target."""
    on_budget: Verdict | None

    def bytes_of(self, name: str) -> int | None:
        return self.figures[_NAMES.index(name)]


@dataclass(slots=True)
class Tally:
    """Collects the results of models one by one; mutable."""

    _models: list[_Model] = field(default_factory=list)
    _faults: Counter[str] = field(default_factory=Counter)
    _train: bool = False
    _notes: dict[str, Note] = field(default_factory=dict)
    """Notes by code; those on a flag by the flag too, for a model may lack one of several dims."""
    _codes: Counter[str] = field(default_factory=Counter)
    """How many models have a finding, by its code."""
    _bases: dict[str, AnyBasis] = field(default_factory=dict)
    """The compared figure by the name of the target."""
    _accuracies: dict[str, Accuracy] = field(default_factory=dict)
    """That of the figure, likewise."""

    def add(self, row: JsonDict) -> None:
        """Add the JSON object of a model."""
        status = cast("str", row["status"])
        if status == "error":
            self._faults[cast("Mapping[str, str]", row["error"])["code"]] += 1
        self._train = self._train or row["training"] is not None
        self._note(row)
        devices = cast("Sequence[Mapping[str, str]]", row.get("devices") or ())
        self._bases |= {each["name"]: basis_named(each["basis"]) for each in devices}
        self._accuracies |= {
            each["name"]: Accuracy(**found)
            for each in devices
            if (found := cast("dict[str, Any] | None", each.get("accuracy"))) is not None
        }
        self._models.append(
            _Model(
                path=cast("str", row["path"]),
                status=status,
                figures=(
                    *(bytes_at(row, keys) for keys in _FIGURES.values()),
                    *(session_bytes(row, *keys) for keys in SESSION_FIGURES.values()),
                ),
                is_left_to_data="data_dependent" in row,
                ends={
                    name: ends
                    for name, key in _ENDS.items()
                    if (ends := ends_of(row, key)) is not None
                },
                # Interned: 100,000 models have the same few names.
                verdicts={sys.intern(e["name"]): Verdict(e["verdict"]) for e in devices},
                on_budget=_on_budget(row),
            )
        )

    def _note(self, row: JsonDict) -> None:
        findings = cast("Sequence[Mapping[str, str]]", row["findings"] or ())
        # A set would have an order of its own in each process.
        self._codes.update([*dict.fromkeys(each["code"] for each in findings)])
        # Of several findings with one key the first counts: a dict keeps the last.
        found = {_key(each): each for each in reversed(findings)}
        for key, each in found.items():
            first = self._notes.get(key)
            first = first or Note(each["code"], 0, cast("str", row["path"]), each["message"])
            self._notes[key] = replace(first, num_models=first.num_models + 1)

    def summary(self, targets: Iterable[Target] = ()) -> Summary:
        """The summary of all models added so far."""
        sessions = [
            name
            for name in SESSION_FIGURES
            if any(each.bytes_of(name) is not None for each in self._models)
        ]
        names = [*_FIGURES, *sessions]
        # One model with a training step decides: all were analyzed with the same settings.
        by = "training" if self._train else (sessions or ["total"])[0]
        if not self._train:
            names.remove("training")
        heaviest = [(each.path, size) for each in self._models if (size := each.bytes_of(by))]
        heaviest.sort(key=lambda each: -each[1])
        statuses = Counter(each.status for each in self._models)
        verdicts = Counter(each.on_budget for each in self._models if each.on_budget)
        return Summary(
            num_models=len(self._models),
            statuses={name: statuses[name] for name in ("ok", "partial", "error")},
            faults=dict(sorted(self._faults.items())),
            figures=tuple(_figure(name, self._models) for name in names),
            heaviest_by=by,
            heaviest=tuple(heaviest[:NUM_HEAVIEST]),
            fittings=tuple(
                _fitting(
                    target,
                    self._bases.get(target.name),
                    self._accuracies.get(target.name),
                    self._models,
                )
                for target in targets
            ),
            verdicts={each: verdicts[each] for each in Verdict if verdicts[each]},
            notes=tuple(sorted(self._notes.values(), key=lambda each: -each.num_models)),
            findings=dict(self._codes.most_common()),
        )


def _on_budget(row: JsonDict) -> Verdict | None:
    verdict = cast("Mapping[str, str] | None", row.get("verdict"))
    return None if verdict is None else Verdict(verdict["verdict"])


def percentile(ordered: Sequence[int], percent: int) -> int:
    """The smallest number that at least ``percent`` percent of the numbers do not exceed.

    The nearest-rank definition, R's ``type = 1``: the result is one of the numbers, so bytes stay
    whole. NIST/SEMATECH e-Handbook, 7.2.6.2, leaves the choice between definitions open.
    """
    return ordered[max(-(-percent * len(ordered) // 100), 1) - 1]


@dataclass(frozen=True, slots=True)
class Accuracies:
    """The accuracy of models by name, in the unit of their table."""

    by_name: Mapping[str, float]

    def of(self, path: str) -> float | None:
        """The accuracy of a model: by its path, else its file name, else without the suffix."""
        file = PurePosixPath(path.replace("\\", "/"))
        # From the most to the least certain.
        names = (path, file.name, file.stem)
        return next((self.by_name[name] for name in names if name in self.by_name), None)


def read_accuracies(path: str) -> Accuracies:
    """Read a CSV file with the columns ``model`` and ``accuracy``; other columns are ignored.

    :raises UsageError: it is not such a file; the message names the line.
    """
    try:
        # A table saved by Excel begins with a byte order mark.
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
        own = found.cpu, found.compute_capability, found.gpu_threads
        return Target(found.name, found.limit_bytes, found.kind, found.flash_bytes, *own)
    return Target(shortened(name), found)


def _figure(name: str, models: Sequence[_Model]) -> FigureSummary:
    known = [(size, each.status) for each in models if (size := each.bytes_of(name)) is not None]
    ordered = sorted(size for size, _ in known)
    # A file has its weights whole, whatever else of it is unknown.
    left_out = [
        each.status == "partial" and not each.is_left_to_data and name != "weights"
        for each in models
    ]
    # An incomplete figure has no upper end; one that the data do not decide is the same at both.
    ends = [
        each.ends.get(name, (size, None if is_least else size))
        for each, is_least in zip(models, left_out, strict=True)
        if (size := each.bytes_of(name)) is not None or name in each.ends
    ]
    return FigureSummary(
        name=name,
        num_known=len(known),
        num_partial=sum(status == "partial" for _, status in known),
        num_incomplete=sum(
            is_least and each.bytes_of(name) is not None
            for each, is_least in zip(models, left_out, strict=True)
        ),
        num_data=sum(name in each.ends for each in models),
        sum_bytes=sum(ordered) if ordered else None,
        sum_lower_bytes=sum_known(least for least, _ in ends),
        sum_upper_bytes=sum_if_known(most for _, most in ends),
        percentiles=tuple((each, percentile(ordered, each)) for each in PERCENTILES if ordered),
        max_bytes=ordered[-1] if ordered else None,
    )


def _key(finding: Mapping[str, str]) -> str:
    """What findings of several models have in common: their code, and the flag they are on."""
    flag = finding["message"].partition(": ")[0]
    return f"{finding['code']} {flag}" if flag.startswith("--") else finding["code"]


def _fitting(
    target: Target, basis: AnyBasis | None, accuracy: Accuracy | None, models: Sequence[_Model]
) -> Fitting:
    each = [(model, model.verdicts.get(target.name, Verdict.UNKNOWN)) for model in models]
    verdicts = Counter(verdict for _, verdict in each)
    return Fitting(
        target,
        basis,
        verdicts[Verdict.FITS],
        verdicts[Verdict.TIGHT],
        verdicts[Verdict.OVER],
        tuple(model.path for model, verdict in each if verdict is Verdict.UNKNOWN),
        accuracy,
    )


def _read(file: TextIO, name: str) -> dict[str, float]:
    rows = csv.DictReader(file)
    missing = [name for name in ("model", "accuracy") if name not in (rows.fieldnames or ())]
    if missing:
        message = (
            f"{name}: has no column {' and no '.join(missing)}; the first line must name the "
            "columns, as in model,accuracy"
        )
        raise UsageError(message)
    found: dict[str, float] = {}
    for row in rows:
        where = f"{name}, line {rows.line_num}"
        model = row["model"] or ""
        if model in found:
            message = f"{where}: {shortened(model)} occurs twice; delete one of the lines"
            raise UsageError(message)
        found[model] = _number(row["accuracy"], where)
    return found


def _number(text: str | None, where: str) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        message = f"{where}: accuracy {shortened(text or '')!r} is not a number such as 76.13"
        raise UsageError(message)
    return number

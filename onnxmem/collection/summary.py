"""A registry in a few figures: totals, percentiles, the heaviest, what fits where, what failed.

Of each model only a few numbers are kept, so a summary of 100,000 takes some 40 MB.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, cast

from onnxmem.analysis.fitting.verdicts import AnyBasis, Verdict, basis_named
from onnxmem.analysis.json_rows import Row, bytes_at
from onnxmem.collection.places import Place

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
"""What is summed up, and where it stands in a row."""


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
    """How many models one place holds, one at a time."""

    place: Place
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
    """Models that could not be analysed, by the code of the fault."""
    figures: tuple[Figure, ...]
    heaviest_by: str
    """Name of the figure."""
    heaviest: tuple[tuple[str, int], ...]
    """Paths and bytes, the heaviest first."""
    fittings: tuple[Fitting, ...]
    notes: tuple[Note, ...]
    """Of the models that were analysed, the most frequent first."""


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


_NAMES: Final = tuple(_FIGURES)


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

    def add(self, row: Row) -> None:
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

    def _note(self, row: Row) -> None:
        findings = cast("Sequence[Mapping[str, str]]", row["findings"] or ())
        for code, message in {each["code"]: each["message"] for each in reversed(findings)}.items():
            first = self._notes.get(code) or Note(code, 0, cast("str", row["path"]), message)
            self._notes[code] = replace(first, num_models=first.num_models + 1)

    def summary(self, places: Iterable[Place] = ()) -> Summary:
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
                _fitting(place, self._bases.get(place.name), self._models) for place in places
            ),
            notes=tuple(sorted(self._notes.values(), key=lambda each: -each.num_models)),
        )


def percentile(ordered: Sequence[int], percent: int) -> int:
    """The nearest rank: the least number that at least ``percent`` percent do not exceed.

    Always one of the numbers, so bytes stay whole (NIST/SEMATECH e-Handbook, 7.2.6.2, leaves the
    choice between ranks open; this is R's ``type = 1``).
    """
    return ordered[max(-(-percent * len(ordered) // 100), 1) - 1]


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


def _fitting(place: Place, basis: AnyBasis | None, models: Sequence[_Model]) -> Fitting:
    verdicts = Counter(model.verdicts.get(place.name, Verdict.UNKNOWN) for model in models)
    return Fitting(
        place,
        basis,
        verdicts[Verdict.FITS],
        verdicts[Verdict.TIGHT],
        verdicts[Verdict.OVER],
        verdicts[Verdict.UNKNOWN],
    )

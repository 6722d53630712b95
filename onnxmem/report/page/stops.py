"""The batches at which a page's figures are worked out, so that a slider can show them.

At a stop every figure is what the command line prints there; between stops those are shown that
are proven (``laws``).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from onnxmem.analysis.analysis import Analysis, analysis_of
from onnxmem.analysis.fitting.searching import MaxBatch
from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.analysis.scaling.capacity import LARGEST_BATCH
from onnxmem.collection.summary import Target, common_sizes, verdicts_on
from onnxmem.decisions.devices import catalogue
from onnxmem.errors import OnnxmemError
from onnxmem.program import Affine
from onnxmem.report.page.figures import Figures, figures_of
from onnxmem.report.page.laws import is_convex, laws, parent_of
from onnxmem.report.verdict import verdict_text

VERDICT: Final = "verdict"
"""Verdicts, by the name of what is compared with."""
BUDGET: Final = "budget"
_MOST: Final = 9
"""Stops, the batch asked for among them."""
_SECONDS: Final = 5.0
_LARGEST: Final = 256
"""The last power of two, where neither the batch asked for nor the largest that fits is larger."""
_MOST_NODES: Final = 20_000
"""A model of more takes longer than anyone waits for, at each batch anew."""
_FARTHEST: Final = 100_000
"""A largest batch beyond this is no stop: a slider to there could not be set to small batches."""


@dataclass(frozen=True, slots=True)
class Stop:
    """One batch."""

    batch: int
    analysis: Analysis
    figures: Figures


@dataclass(frozen=True, slots=True)
class Stops:
    """All of them, in order; the one that was asked for alone where the batch cannot be moved."""

    asked: Stop
    all: tuple[Stop, ...]
    proven: Mapping[str, tuple[Affine, ...]] = field(default_factory=dict)
    """Laws that are known otherwise than from the stops."""
    is_free: bool = True
    """False: the model has no batch that can be moved."""

    @property
    def batches(self) -> tuple[int, ...]:
        """The batches, in order."""
        return tuple(stop.batch for stop in self.all)

    @property
    def last(self) -> int:
        """The largest batch of which anything is known."""
        found = (self._given(key) for key in ("total_bytes", "training.peak_bytes"))
        return max(*self.batches, *(law.last for laws in found for law in laws), 1)

    @property
    def can_move(self) -> bool:
        """Whether there is another batch than the one asked for."""
        return self.is_free and self.last > 1

    def values(self, key: str) -> list[int | None]:
        """A figure at each stop."""
        return [stop.figures.numbers.get(key) for stop in self.all]

    def texts(self, key: str) -> list[str]:
        """A text at each stop."""
        return [stop.figures.texts.get(key, "") for stop in self.all]

    def told(self, key: str) -> tuple[tuple[int, int, str], ...]:
        """What holds of a text from one batch to another, whether worked out there or not."""
        answer = self.asked.analysis.fit
        if key != f"{VERDICT}.{BUDGET}" or answer is None or answer.doubts or not self.is_free:
            return ()
        return tuple(_verdicts_known(answer.reach)) if answer.reach is not None else ()

    def laws(self, key: str) -> tuple[Affine, ...]:
        """How a figure moves between stops, where that is proven."""
        parent = parent_of(key)
        if parent is None:
            found = laws(self.batches, self.values(key)) if is_convex(key) else ()
            return found + self._given(key) + tuple(self.proven.get(key, ()))
        return tuple(
            law
            for stretch in self.laws(parent[0])
            for law in self._part_laws(key, parent[1], stretch)
        )

    def agrees(self, key: str, known: Sequence[Affine]) -> bool:
        """Whether laws give what was worked out at every stop that they speak of."""
        return all(
            law.at(batch) == value
            for batch, value in zip(self.batches, self.values(key), strict=True)
            for law in known
            if law.first <= batch <= law.last
        )

    def _given(self, key: str) -> tuple[Affine, ...]:
        """The law that the analysis has proven itself, of the two figures that it has one of."""
        analysis = self.asked.analysis
        given = {"total_bytes": analysis.batch_law, "training.peak_bytes": analysis.training_law}
        law = given.get(key)
        return (law,) if law is not None and self.is_free else ()

    def _part_laws(self, key: str, place: str, stretch: Affine) -> tuple[Affine, ...]:
        """Those of a part of a peak, where that is a line and stays at one place."""
        rows = zip(self.batches, self.values(key), self.texts(place), strict=True)
        inside = [row for row in rows if stretch.first <= row[0] <= stretch.last]
        if len({text for _, _, text in inside}) != 1:
            return ()
        batches, values, _ = zip(*inside, strict=True)
        return laws(batches, values)


def _verdicts_known(reach: MaxBatch) -> Iterator[tuple[int, int, str]]:
    """The words for the batches between two stops: by how much is known at a stop alone."""
    largest = reach.number
    if largest is None or reach.method == "replays":
        return
    comfortable = largest if reach.comfortable is None else reach.comfortable
    if comfortable:
        yield 1, comfortable, Verdict.FITS.value
    if comfortable < largest:
        yield comfortable + 1, largest, f"{Verdict.FITS.value} or {Verdict.TIGHT.value}"
    if not reach.is_stopped and not reach.above:
        yield largest + 1, LARGEST_BATCH, Verdict.OVER.value


def evaluated(analysis: Analysis) -> Stops:
    """Ask the same at other batches, as long as there is time.

    The model is not run again, and a budget's largest batch does not change.
    """
    batch = analysis.settings.batch
    asked = Stop(batch or 0, analysis, _figures(analysis, analysis.settings.budget_bytes))
    if batch is None or not analysis.follows_batch:
        return Stops(asked, (asked,), is_free=False)
    if len(analysis.graph.nodes) > _MOST_NODES:
        return Stops(asked, (asked,))
    found = {batch: asked}
    end = time.monotonic() + _SECONDS
    for other in _batches(analysis, batch):
        if time.monotonic() > end:
            break
        stop = _stop(analysis, other)
        if stop is not None:
            found[other] = stop
    return Stops(asked, tuple(found[each] for each in sorted(found)))


def _batches(analysis: Analysis, asked: int) -> Sequence[int]:
    """Other batches, the most telling first: the ends, then those around the one asked for."""
    powers = [2**power for power in range(_LARGEST.bit_length())]
    limit = analysis.max_batch
    fits = limit.number if limit is not None and limit.number else 1
    largest = max(asked, _LARGEST, fits if fits <= _FARTHEST else 1)
    first = dict.fromkeys((1, largest, max(1, asked // 2), max(1, largest // 2)))
    by_distance = sorted(powers, key=lambda each: abs(each.bit_length() - asked.bit_length()))
    ends = [fits] if 1 < fits <= largest else []
    others = [*ends, *first, *by_distance]
    return [each for each in dict.fromkeys(others) if each != asked][: _MOST - 1]


def _stop(analysis: Analysis, batch: int) -> Stop | None:
    """The figures at a batch; ``None`` where the model cannot have it."""
    question = analysis.request.at(batch)
    settings = replace(question.settings, measure=None, budget_bytes=None)
    if analysis.measurement is not None:
        # What was fed to the run decides what a runtime is taken to do: elsewhere it is not known.
        settings = replace(settings, runtimes=())
    try:
        found = analysis_of(replace(question, settings=settings))
    except OnnxmemError:
        return None
    if not found.follows_batch or found.settings.batch != batch:
        return None
    return Stop(batch, found, _figures(found, analysis.settings.budget_bytes))


def _figures(analysis: Analysis, budget_bytes: int | None) -> Figures:
    """The figures of the page, and the verdicts on the budget or on the sizes of GPUs."""
    found = figures_of(analysis)
    words = {
        f"{VERDICT}.{placed.target.name}": verdict_text(
            placed.verdict, placed.num_bytes, placed.target.limit_bytes
        )
        for placed in verdicts_on(analysis.request, places_shown(budget_bytes))
    }
    return replace(found, texts={**found.texts, **words})


def places_shown(budget_bytes: int | None) -> tuple[Target, ...]:
    """What a page compares a model with: a budget, or else the sizes of GPUs."""
    if budget_bytes is not None:
        return (Target(BUDGET, budget_bytes),)
    return common_sizes(catalogue(None))


def moves(stops: Stops, keys: Sequence[str]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """What a page's script needs to know of each figure."""
    for key in keys:
        known = [_safe(value) for value in stops.values(key)]
        proven = [
            [law.first, law.last, _safe(law.fixed_bytes), _safe(law.slope_bytes)]
            for law in stops.laws(key)
        ]
        yield key, {"at": known, "laws": proven}


def _safe(value: int | None) -> int | str | None:
    """An integer that a script reads exactly: beyond 2^53 as text."""
    return value if value is None or abs(value) < 2**53 else str(value)

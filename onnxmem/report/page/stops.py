"""The batches at which a page's figures are computed, and what is proven of the batches between.

At a stop of the slider every figure is what the command line prints there. Figures are looked up by
a key, the path in the JSON report (``activations.peak_bytes``), and come from the sections, so that
no figure of a page has a second source.

Between stops a figure is shown where it is proven to be linear in the batch:

(1) A peak is the largest of several sums of buffers, and a sum is the largest of one. Each buffer's
    bytes being affine in the batch (``onnxmem.analysis.scaling``), both are convex; and a convex
    function that meets a line at three points is that line everywhere between them.
(2) Of a peak's parts (live bytes by category) each is affine as long as the peak is at the same
    node. Where the peak is a line from one batch to a third, what is alive at the middle one makes
    the peak everywhere between; so a part that is a line there is one between the stops too.

Nothing is claimed of other figures, and nothing beyond the outermost stops.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from onnxmem.analysis.analysis import Analysis, analysis_of
from onnxmem.analysis.fitting.assessing import Assessment
from onnxmem.analysis.fitting.searching import MaxBatch
from onnxmem.analysis.fitting.verdicts import Basis, Comparison, Verdict
from onnxmem.analysis.scaling import LARGEST_BATCH
from onnxmem.collection.summary import Target, common_sizes, verdicts_on
from onnxmem.decisions.devices import catalog
from onnxmem.errors import OnnxmemError
from onnxmem.program.sizes import Affine
from onnxmem.report.sections.listing import batch_sections
from onnxmem.report.sections.section import Line, Note
from onnxmem.report.verdict import assessment_lines, verdict_text

VERDICT: Final = "verdict"
"""Verdicts, by the name of what is compared with."""
BUDGET: Final = "budget"
TERMS: Final = "terms."
"""How the keys of the budget's terms start: what the model takes there, and what is assumed."""
_MOST: Final = 9
"""Stops, the requested batch among them."""
_SECONDS: Final = 5.0
"""No further stop is begun after these."""
_LARGEST: Final = 256
"""The last power of two, where neither the requested batch nor the largest that fits is larger."""
_MOST_NODES: Final = 20_000
"""A model of more takes too long to be analyzed at several batches."""
_FARTHEST: Final = 100_000
"""A largest batch beyond this is not a stop: such a slider could not be set to small batches."""
ELEMENTS: Final = ("elements.activations", "elements.inputs", "weights.parameters")
"""A script computes from these the rules of thumb that round up the elements of a sample."""
TAKES: Final = f"{TERMS}takes.1"
_PARTS: Final[Mapping[str, tuple[str, str]]] = {
    "training.live_by_kind.": ("training.peak_bytes", "training.peak_node"),
}
"""By the start of a key: the peak that such a figure is a part of, and the key of its node."""

_CONVEX: Final = (
    *("weights.", "inputs_bytes", "outputs_bytes", "total_bytes", "compute.", "kv_cache."),
    *("activations.naive", "activations.peak_bytes", "activations.in_place_peak_bytes"),
    *("activations.arena_lower_bound_bytes", "elements.", "file_bytes"),
    *("training.weight_", "training.buffer_", "training.gradient_", "training.optimizer_"),
    *("training.saved_", "training.input_", "training.forward_", "training.backward_"),
    *("training.peak_bytes", "training.cuda.context_bytes", f"{TERMS}context"),
    *("rules_of_thumb.twice_", "rules_of_thumb.three_weights", "rules_of_thumb.four_"),
    "rules_of_thumb.inputs_",
)
"""How the keys of sums and peaks of buffers start. A packed block is neither, nor is what an
allocator reserves; nor is a rule of thumb that rounds up the elements of a sample."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures and texts at one batch, by their keys; ``None`` is unknown."""

    numbers: Mapping[str, int | None]
    texts: Mapping[str, str]


def figures_of(analysis: Analysis) -> Figures:
    """Every number, and every text that may change with the batch."""
    sections = batch_sections(analysis)
    lines = [line for section in sections for line in section.all_lines()]
    worded: list[Line | Note] = [*lines, *(note for each in sections for note in each.notes)]
    numbers = {line.key: line.number for line in lines if line.key}
    texts = {each.words_key: each.words for each in worded if each.words_key}
    return Figures({**numbers, "weights.parameters": analysis.num_parameters}, texts)


@dataclass(frozen=True, slots=True)
class Stop:
    """One batch."""

    batch: int
    analysis: Analysis
    figures: Figures


@dataclass(frozen=True, slots=True)
class Stops:
    """All stops, in order; the requested batch alone where the batch is fixed."""

    requested: Stop
    all: tuple[Stop, ...]
    proven: Mapping[str, tuple[Affine, ...]] = field(default_factory=dict)
    """Lines that are known otherwise than from the stops."""
    is_free: bool = True
    """False: the batch size is fixed in this model."""

    @property
    def batches(self) -> tuple[int, ...]:
        """The batches, in order."""
        return tuple(stop.batch for stop in self.all)

    @property
    def last(self) -> int:
        """The largest batch at which anything is known."""
        found = (self._given(key) for key in ("total_bytes", "training.peak_bytes"))
        return max(*self.batches, *(line.last for lines in found for line in lines), 1)

    @property
    def can_move(self) -> bool:
        """Whether there is another batch than the requested one."""
        return self.is_free and self.last > 1

    def values(self, key: str) -> list[int | None]:
        """A figure at each stop."""
        return [stop.figures.numbers.get(key) for stop in self.all]

    def texts(self, key: str) -> list[str]:
        """A text at each stop."""
        return [stop.figures.texts.get(key, "") for stop in self.all]

    def known_texts(self, key: str) -> tuple[tuple[int, int, str], ...]:
        """First batch, last batch and the text that holds between them."""
        if key.startswith(TERMS) and len(set(self.texts(key))) == 1:
            # What a term means does not depend on where the peak is.
            return ((self.batches[0], self.batches[-1], self.texts(key)[0]),)
        answer = self.requested.analysis.fit
        if key != f"{VERDICT}.{BUDGET}" or answer is None or answer.doubts or not self.is_free:
            return ()
        return tuple(_verdicts_known(answer.max_batch)) if answer.max_batch is not None else ()

    def lines(self, key: str) -> tuple[Affine, ...]:
        """The lines on which a figure is proven to lie, each between two stops."""
        if key == TAKES and self._compared_key is not None:
            return self.lines(self._compared_key)
        parent = _parent_of(key)
        if parent is None:
            found = convex_lines(self.batches, self.values(key)) if _is_convex(key) else ()
            return found + self._given(key) + tuple(self.proven.get(key, ()))
        return tuple(
            line
            for stretch in self.lines(parent[0])
            for line in self._part_lines(key, parent[1], stretch)
        )

    @property
    def _compared_key(self) -> str | None:
        """The figure that the budget is compared with, where nothing is added to it."""
        fit = self.requested.analysis.fit
        if fit is None or fit.assessment.footprint.range_bytes:
            return None
        is_step = fit.assessment.basis is Basis.STEP
        key = "training.peak_bytes" if is_step else "total_bytes"
        is_tensors = is_step or fit.assessment.basis is Basis.TOTAL
        return key if is_tensors and self.values(key) == self.values(TAKES) else None

    def agrees(self, key: str, known: Sequence[Affine]) -> bool:
        """Whether lines give what was computed at every stop within them."""
        return all(
            line.at(batch) == value
            for batch, value in zip(self.batches, self.values(key), strict=True)
            for line in known
            if line.first <= batch <= line.last
        )

    def _given(self, key: str) -> tuple[Affine, ...]:
        """The line that the analysis has proven itself, of the two figures that have one."""
        analysis = self.requested.analysis
        given = {"total_bytes": analysis.batch_law, "training.peak_bytes": analysis.training_law}
        line = given.get(key)
        return (line,) if line is not None and self.is_free else ()

    def _part_lines(self, key: str, node_key: str, stretch: Affine) -> tuple[Affine, ...]:
        """Those of a part of a peak between stops at which the peak is a line and at one node."""
        rows = zip(self.batches, self.values(key), self.texts(node_key), strict=True)
        inside = [row for row in rows if stretch.first <= row[0] <= stretch.last]
        # A part is a line only while the peak stays at one node.
        if len({text for _, _, text in inside}) != 1:
            return ()
        batches, values, _ = zip(*inside, strict=True)
        return convex_lines(batches, values)


def _verdicts_known(reach: MaxBatch) -> Iterator[tuple[int, int, str]]:
    """The verdict from one batch to another, as the report says it: fits, tight from, largest.

    The margin is known at a stop alone.
    """
    largest = reach.number
    if largest is None:
        return
    comfortable = largest if reach.comfortable is None else reach.comfortable
    if comfortable:
        yield 1, comfortable, Verdict.FITS.value
    if comfortable < largest:
        yield comfortable + 1, largest, f"{Verdict.FITS.value} or {Verdict.TIGHT.value}"
    if not reach.is_stopped and reach.method == "replays":
        # Above it a number that was not replayed may fit.
        yield largest + 1, largest + 1, Verdict.OVER.value
    elif not reach.is_stopped and not reach.above:
        yield largest + 1, LARGEST_BATCH, Verdict.OVER.value


def evaluated(analysis: Analysis) -> Stops:
    """Analyze the model at other batches, as long as there is time.

    The model is not run again, and a budget's largest batch does not change.
    """
    batch = analysis.settings.batch
    requested = Stop(batch or 0, analysis, _figures(analysis, analysis.settings.budget_bytes))
    if batch is None or not analysis.follows_batch:
        return Stops(requested, (requested,), is_free=False)
    if len(analysis.graph.nodes) > _MOST_NODES:
        return Stops(requested, (requested,))
    found = {batch: requested}
    end = time.monotonic() + _SECONDS
    for other in _batches(analysis, batch):
        if time.monotonic() > end:
            break
        stop = _stop(analysis, other)
        if stop is not None:
            found[other] = stop
    return Stops(requested, tuple(found[each] for each in sorted(found)))


def _batches(analysis: Analysis, requested: int) -> Sequence[int]:
    """Other batches, the most useful first: the ends, then those around the requested one.

    The last is twice the largest that fits, so that a page also shows what does not fit.
    """
    powers = [2**power for power in range(_LARGEST.bit_length())]
    limit = analysis.max_batch
    fits = limit.number if limit is not None and limit.number else 1
    largest = max(requested, _LARGEST, 2 * fits if fits <= _FARTHEST else 1)
    # The ends and their halves first: time may end before all of them are computed.
    first = dict.fromkeys((1, largest, max(1, requested // 2), max(1, largest // 2)))
    by_distance = sorted(powers, key=lambda each: abs(each.bit_length() - requested.bit_length()))
    ends = [fits] if 1 < fits <= largest else []
    others = [*ends, *first, *by_distance]
    return [each for each in dict.fromkeys(others) if each != requested][: _MOST - 1]


def _stop(analysis: Analysis, batch: int) -> Stop | None:
    """The figures at a batch; ``None`` where the model cannot have it."""
    request = analysis.request.at(batch)
    settings = replace(request.settings, measure=None, budget_bytes=None)
    if analysis.measurement is not None:
        # A session is predicted for the inputs that were measured: at other batches there are none.
        settings = replace(settings, runtimes=())
    try:
        found = analysis_of(replace(request, settings=settings))
    except OnnxmemError:
        return None
    if not found.follows_batch or found.settings.batch != batch:
        return None
    return Stop(batch, found, _figures(found, analysis.settings.budget_bytes))


def _figures(analysis: Analysis, budget_bytes: int | None) -> Figures:
    """The figures of the page, and the verdicts on the budget or on the sizes of GPUs."""
    found = figures_of(analysis)
    numbers, texts = dict(found.numbers), dict(found.texts)
    for each in verdicts_on(analysis.request, devices_shown(budget_bytes)):
        name = each.target.name
        text = verdict_text(each.compared, each.target.limit_bytes)
        texts[f"{VERDICT}.{name}"] = text
        if name == BUDGET and each.assessment is not None:
            terms = budget_terms(each.assessment, each.compared)
            numbers.update((line.key, line.number) for line in terms if line.key)
            texts.update((line.words_key, line.words) for line in terms)
    return Figures(numbers, texts)


def budget_terms(assessment: Assessment, compared: Comparison) -> tuple[Line, ...]:
    """What is compared with the budget, each line with the key by which a script moves it."""
    counts: Counter[str] = Counter()
    found = []
    for line in assessment_lines(assessment, compared):
        # Several terms may have one label, as those of instances: numbered, each has a key of its
        # own.
        counts[line.label] += 1
        key = f"{TERMS}{line.label}.{counts[line.label]}"
        number_key = key if line.text is None else ""
        found.append(replace(line, key=number_key, words_key=key))
    return tuple(found)


def devices_shown(budget_bytes: int | None) -> tuple[Target, ...]:
    """What a page compares a model with: a budget, or else the sizes of GPUs."""
    if budget_bytes is not None:
        return (Target(BUDGET, budget_bytes),)
    return common_sizes(catalog(None))


def figure_data(stops: Stops, keys: Sequence[str]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """A figure at the stops and its lines, as the page's script reads them."""
    for key in keys:
        known = [_safe(value) for value in stops.values(key)]
        proven = [
            [line.first, line.last, _safe(line.fixed_bytes), _safe(line.slope_bytes)]
            for line in stops.lines(key)
        ]
        yield key, {"at": known, "lines": proven}


def _safe(value: int | None) -> int | str | None:
    """An integer that a script reads exactly: beyond 2^53 as text."""
    return value if value is None or abs(value) < 2**53 else str(value)


def line_through(batches: Sequence[int], values: Sequence[int | None]) -> Affine | None:
    """The line through all points, three at least; ``None`` where there is none."""
    known = [
        (batch, value) for batch, value in zip(batches, values, strict=True) if value is not None
    ]
    # Two points prove nothing: any two are on a line.
    return Affine.through(known) if len(known) == len(batches) > 2 else None  # noqa: PLR2004 - see above


def convex_lines(batches: Sequence[int], values: Sequence[int | None]) -> tuple[Affine, ...]:
    """The lines of a convex figure: one for every three neighbors that are on one, joined."""
    found: list[Affine] = []
    for start in range(len(batches) - 2):
        three = slice(start, start + 3)
        line = line_through(batches[three], values[three])
        if line is None:
            continue
        # Lines through overlapping threes are one line if they agree.
        if found and replace(line, first=found[-1].first) == replace(found[-1], last=line.last):
            found[-1] = replace(found[-1], last=line.last)
        else:
            found.append(line)
    return tuple(found)


def _is_convex(key: str) -> bool:
    """Whether a figure is a sum or a peak of buffers."""
    return key.startswith(_CONVEX)


def _parent_of(key: str) -> tuple[str, str] | None:
    """The peak that a figure is a part of, and the key of that peak's node."""
    return next((parent for start, parent in _PARTS.items() if key.startswith(start)), None)

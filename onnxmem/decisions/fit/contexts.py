"""How far a language model goes at a context: the largest batch, context by context.

Each figure is that of ``fit`` at the dims of a decode step or of a prefill: found by the same
search, and evaluated at the number and at the next one. A prefill's bytes are a square of its
context, which the search solves like any other polynomial.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from onnxmem.analysis.fitting.answering import FitRequest, FitResult, Footprints, fit, max_batch_of
from onnxmem.analysis.fitting.bases import Basis
from onnxmem.analysis.fitting.searching import MaxBatch, Search
from onnxmem.analysis.fitting.sessions import Sessions
from onnxmem.analysis.fitting.verdicts import ACCURACIES, Demand
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.errors import OnnxmemError
from onnxmem.kv_cache.steps import NoContextError, Step, numbers_at, refuse_bound

_FIRST: Final = 512
_ROWS: Final = 8
"""Contexts that are tried where one is asked for: 512 and its doubles."""
_APART: Final = (
    "past and present are held apart; in one buffer they take less: see onnxmem MODEL --context N"
)
_SLOW: Final = frozenset({Basis.ORT_CPU, Basis.ORT_CUDA})
"""A session is replayed for each figure: then only the contexts asked for are tried."""


@dataclass(frozen=True, slots=True)
class ContextRow:
    """The largest batch at one context; ``None`` where a step or its bytes are unknown."""

    context: int
    reaches: Mapping[Step, MaxBatch | None]


@dataclass(frozen=True, slots=True)
class Contexts:
    """The table, and the longest context at the batch asked for."""

    rows: tuple[ContextRow, ...]
    batch: int | None
    """``None``: the model has none."""
    longest: Mapping[Step, MaxBatch | None]
    remarks: tuple[str, ...] = ()


def at_context(
    questions: Sequence[AnalysisRequest], context: int, step: Step
) -> list[AnalysisRequest]:
    """Questions at a context; a model without a cache is asked as it was.

    :raises NoContextError: no model has a cache, or one has no such step.
    """
    if all(question.cache is None for question in questions):
        message = "no key-value cache is recognised among the inputs"
        raise NoContextError(message)
    return [
        question if question.cache is None else question.at_context(context, step)
        for question in questions
    ]


def fit_at(
    questions: Sequence[AnalysisRequest], setup: FitRequest, asked: Sequence[int]
) -> tuple[FitResult, Contexts | None]:
    """The answer for a decode step at the first context, and the table over contexts.

    Without a cache, or such a step, the answer is that of the model as it is, with a remark.

    :raises OnnxmemError: a model cannot be worked out at what is asked.
    """
    try:
        at = at_context(questions, asked[0], Step.DECODE)
    except NoContextError as fault:
        answer = fit(questions, setup)
        remark = f"--context has no effect: {fault}"
        return replace(answer, remarks=(*answer.remarks, remark)), None
    if setup.dim is not None:
        caches = (question.cache for question in questions if question.cache is not None)
        for cache in caches:
            refuse_bound([setup.dim], numbers_at(cache, Step.DECODE, asked[0])[1])
    answer = fit(at, setup)
    return answer, contexts_of(questions, answer.setup, asked)


def contexts_of(
    questions: Sequence[AnalysisRequest], setup: FitRequest, asked: Sequence[int]
) -> Contexts:
    """The largest batch at each context, and the longest context; a dim is not sought here."""
    setup, search = replace(setup, dim=None), _Search(Sessions())
    bases: dict[Step, Sequence[AnalysisRequest]] = {}
    remarks = []
    for step in Step:
        try:
            at_context(questions, asked[0], step)
            bases[step] = _emptied(questions) if step is Step.PREFILL else questions
        except NoContextError as fault:
            remarks.append(f"no {step.value} figures: {fault}")
    if any(question.cache and question.cache.shared for question in questions):
        remarks.append(_APART)
    longest = {step: search.longest(base, setup, step) for step, base in bases.items()}
    batch = questions[0].results.bound.binding.batch
    rows = (
        ContextRow(
            context,
            {step: search.largest(base, setup, step, context) for step, base in bases.items()},
        )
        for context in (_tried(setup, asked, longest) if batch is not None else ())
    )
    return Contexts(tuple(rows), batch, MappingProxyType(longest), tuple(remarks))


def _emptied(questions: Sequence[AnalysisRequest]) -> list[AnalysisRequest]:
    """Once for all contexts, so that what is made of the file is made once too."""
    return [
        question
        if question.cache is None
        else question.without(numbers_at(question.cache, Step.PREFILL, _shortest(question))[1])
        for question in questions
    ]


def _shortest(question: AnalysisRequest) -> int:
    """A context that has a prefill."""
    symbols = question.cache.symbols if question.cache else None
    return (symbols.fixed_sequence if symbols else None) or 1


def _tried(
    setup: FitRequest, asked: Sequence[int], longest: Mapping[Step, MaxBatch | None]
) -> list[int]:
    """Contexts as asked; one alone, among 512 and its doubles as far as they fit."""
    if len(asked) > 1 or setup.basis in _SLOW:
        return sorted({*asked})
    ends = [reach.number for reach in longest.values() if reach is not None]
    doubles = [_FIRST << power for power in range(_ROWS)]
    fitting = [context for context in doubles if any(end is None or context <= end for end in ends)]
    return sorted({*asked, *fitting})


@dataclass(frozen=True, slots=True)
class _Search:
    """Searches that share what is made of a model's file."""

    sessions: Sessions

    def largest(
        self, questions: Sequence[AnalysisRequest], setup: FitRequest, step: Step, context: int
    ) -> MaxBatch | None:
        """The largest batch at a context."""
        try:
            at = at_context(questions, context, step)
        except OnnxmemError:
            return None
        search = Footprints(tuple(at), setup, sessions=self.sessions).search()
        return max_batch_of(search, setup.basis)

    def longest(
        self, questions: Sequence[AnalysisRequest], setup: FitRequest, step: Step
    ) -> MaxBatch | None:
        """The longest context at the batch asked for."""

        def demand(context: int) -> Demand | None:
            try:
                at = at_context(questions, context, step)
                held = Footprints(tuple(at), setup, sessions=self.sessions).worked_out(at)
            except OnnxmemError:
                return None
            return held.demand if held.is_whole else None

        search = Search(setup.limit_bytes, ACCURACIES[setup.basis], demand)
        return max_batch_of(search, setup.basis)

"""Why a process takes more than the file: its sum, and the two settings that lower it most."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.fitting.verdicts import ACCURACIES, Accuracy, Basis
from onnxmem.decisions.advise.proposals import (
    Objective,
    Proposal,
    Subject,
    Suggestion,
    bytes_of,
    evaluated,
    ranked,
)
from onnxmem.decisions.advise.settings import (
    SESSION_GROUP,
    batch_suggestions,
    level_suggestions,
    load_proposals,
    session_suggestions,
)
from onnxmem.runtimes.onnxruntime.session_options import LEVELS, SessionOptions

_RUNTIME: Final = "ort-cpu"
_NAMED: Final = 2
_LEAST_PERCENT: Final = 1
"""A setting that saves less is not worth its cost."""


@dataclass(frozen=True, slots=True)
class ExplainedProcess:
    """The resident memory of a process of onnxruntime on the CPU, and what lowers it."""

    file_bytes: int
    """The model file and the weights outside it."""
    has_external_weights: bool
    parts: tuple[tuple[str, int], ...]
    """They add up to the total; none is 0."""
    total_bytes: int
    range_bytes: tuple[int, int] | None
    """The least and the most of it, by the state that the C library's heap ends in; ``None``: they
    differ by no more than the figure's error."""
    measured_bytes: int | None
    """Measured after the last run; ``None``: not requested, or the platform does not report it."""
    accuracy: Accuracy
    guessed_dims: tuple[str, ...]
    """Dims without a value, which count as 1."""
    settings: tuple[Proposal, ...]
    """At most two, the largest saving first; each was replayed alone."""


def explained_process(analysis: Analysis) -> ExplainedProcess | None:
    """The sum of the first runtime's process; ``None`` if it is not known."""
    memory = next(iter(analysis.runtimes), None)
    if memory is None or memory.process_bytes is None:
        return None
    measured = analysis.measurement
    return ExplainedProcess(
        file_bytes=stored_bytes(analysis),
        has_external_weights=any(weight.is_external for weight in analysis.graph.weights),
        parts=tuple(part for part in memory.process_parts if part[1]),
        total_bytes=memory.process_bytes,
        range_bytes=memory.process_range,
        measured_bytes=None if measured is None else measured.process_steady_bytes,
        accuracy=ACCURACIES[Basis.ORT_CPU],
        guessed_dims=analysis.guessed_dims,
        settings=tuple(_lowering(analysis)),
    )


def stored_bytes(analysis: Analysis) -> int:
    """The model file and the weights outside it."""
    external = (weight for weight in analysis.graph.weights if weight.is_external)
    return analysis.request.source.file_bytes + sum(each.size_bytes or 0 for each in external)


def _lowering(analysis: Analysis) -> Iterator[Proposal]:
    """The settings that save most; of those that exclude or contain each other, the best."""
    settings = analysis.request.settings
    options = SessionOptions(
        level=LEVELS[settings.graph or "ort-all"], fixed_dims=settings.fixed_dims
    )
    subject = Subject(analysis.request, options)
    before_bytes = bytes_of(Objective.PROCESS, subject)
    if before_bytes is None:
        return
    found = evaluated(_suggestions(subject), subject, Objective.PROCESS, before_bytes)
    named: list[frozenset[str]] = []
    for proposal in ranked(chain(load_proposals(subject), found)):
        changed = _changed(proposal.suggestion)
        is_small = 100 * proposal.saved_bytes < _LEAST_PERCENT * before_bytes
        if len(named) < _NAMED and not is_small and all(map(changed.isdisjoint, named)):
            named.append(changed)
            yield proposal


def _changed(suggestion: Suggestion) -> frozenset[str]:
    """What a suggestion sets: the options of a session, or the one setting of its group."""
    words = suggestion.settings.get("session")
    if suggestion.group != SESSION_GROUP or not isinstance(words, list):
        return frozenset({suggestion.group})
    return frozenset(words)


def _suggestions(subject: Subject) -> Iterator[Suggestion]:
    yield from batch_suggestions(subject, Objective.PROCESS, None)
    yield from session_suggestions(_RUNTIME)
    yield from level_suggestions(subject.options.level)

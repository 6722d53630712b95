"""What is settled once advice is followed: everything that a form of it may have to say."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from onnxmem.decisions.advise.advising import Advised
from onnxmem.decisions.advise.figures import Figure, bytes_of
from onnxmem.decisions.advise.meeting import followed
from onnxmem.decisions.advise.proposals import Proposal
from onnxmem.errors import UsageError
from onnxmem.model.binding import input_dims
from onnxmem.runtimes.asking import Advice
from onnxmem.runtimes.onnxruntime.advice import Choice
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.settings import Recipe

_SESSION_FIELDS = (
    *("level", "enable_mem_pattern", "enable_mem_reuse", "fixed_dims"),
    *("disable_prepacking", "shrinks_arena", "arena_extend_strategy"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Settings to be written out, and what they save."""

    path: str
    figure: Figure
    before_bytes: int | None
    after_bytes: int | None
    budget_bytes: int | None
    followed: tuple[Proposal, ...]
    runtime: str | None
    """``None``: training."""
    session: Choice | None
    others: tuple[Choice, ...]
    """Combinations of a session's settings, the least memory first."""
    batch: int | None
    has_batch_dim: bool
    """Whether every input starts with the batch, and as a symbol."""
    dims: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    recipe: Recipe | None


def settled(advice: Advised, session: Advice | None) -> Settled:
    """Follow what meets the budget; without one, the best settings of a session, or of training.

    :raises UsageError: there is a budget, and nothing that was found meets it.
    """
    chosen = _chosen(advice, session)
    subject = followed(advice.subject, chosen)
    settings, binding = subject.question.settings, subject.terms().bound.binding
    meeting = advice.meeting
    return Settled(
        path=subject.question.source.path,
        figure=advice.figure,
        before_bytes=advice.before_bytes,
        after_bytes=bytes_of(advice.figure, subject),
        budget_bytes=None if meeting is None else meeting.budget_bytes,
        followed=chosen,
        runtime=None if session is None else session.runtime.name,
        session=None if session is None else _choice(session, chosen, subject.options),
        others=() if session is None else session.runtime.advice,
        batch=binding.batch,
        has_batch_dim=_has_batch_dim(advice),
        dims=binding.dims,
        shapes=settings.shapes,
        recipe=settings.recipe if settings.train else None,
    )


def _chosen(advice: Advised, session: Advice | None) -> tuple[Proposal, ...]:
    meeting = advice.meeting
    if meeting is not None:
        if not meeting.is_met:
            message = (
                f"--emit: nothing that was found meets the budget of {meeting.budget_bytes:,} B"
            )
            raise UsageError(message)
        return meeting.chosen
    if session is not None:
        return ()
    usable = (each for each in advice.proposals if each.idea.change is not None)
    return tuple(usable)[:1]


def _choice(session: Advice, chosen: Iterable[Proposal], options: SessionOptions) -> Choice:
    """The settings that were chosen for a session; the best where none were."""
    known = (*session.runtime.advice, *session.singles)
    if not any(each.idea.group == "session" for each in chosen):
        return known[0]
    wanted = [getattr(options, name) for name in _SESSION_FIELDS]
    found = (
        each
        for each in known
        if [getattr(each.options, name) for name in _SESSION_FIELDS] == wanted
    )
    return next(found, known[0])


def _has_batch_dim(advice: Advised) -> bool:
    prepared = advice.subject.question.prepared
    dims = [input_dims(value) for value in prepared.given]
    return bool(dims) and all(each and each[0] in prepared.batch_symbols for each in dims)


def recipe_settings(recipe: Recipe) -> dict[str, object]:
    """A recipe field by field."""
    values = {field.name: getattr(recipe, field.name) for field in fields(recipe)}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def remarks(settled_one: Settled) -> list[str]:
    """What the settings save, and what else is to be done, a line each."""
    lines = []
    if settled_one.session is not None:
        own = next(each for each in settled_one.others if not each.changes)
        lines.append(
            f"arena resident: {settled_one.session.resident_bytes:,} B instead of "
            f"{own.resident_bytes:,} B, batch {settled_one.batch}"
        )
    if settled_one.budget_bytes is not None:
        lines.append(
            f"{settled_one.figure.value}: {settled_one.after_bytes:,} B within "
            f"{settled_one.budget_bytes:,} B"
        )
    lines += [
        f"to do as well: {each.idea.what}"
        for each in settled_one.followed
        if each.idea.group != "session"
    ]
    return lines

"""Fewer samples at once."""

from collections.abc import Iterator

from onnxmem.analysis.fitting.searching import crossing
from onnxmem.decisions.advise.changes import with_recipe
from onnxmem.decisions.advise.figures import Change, Figure, Subject, bytes_of
from onnxmem.decisions.advise.proposals import Idea, Price

_GROUP = "batch"
_PASSES = (2, 4, 8)
"""In which a batch is split where gradients are added up: divisors that batches have."""


def batch_ideas(subject: Subject, figure: Figure, budget_bytes: int | None) -> Iterator[Idea]:
    """Half the batch, and the largest that a budget holds where that is less than asked."""
    batch = subject.terms().bound.binding.batch
    if batch is None or batch == 1:
        return
    yield _of(batch, batch // 2, "batch")
    if budget_bytes is None:
        return
    reach = crossing(lambda number: bytes_of(figure, subject.with_batch(number)), budget_bytes)
    if reach is not None and reach.number and reach.number < batch and reach.number != batch // 2:
        yield _of(batch, reach.number, "largest_batch")


def accumulation_ideas(subject: Subject) -> Iterator[Idea]:
    """The same samples in several passes, whose gradients add up before one step."""
    batch = subject.terms().bound.binding.batch
    recipe = subject.question.settings.recipe
    for count in _PASSES if batch and recipe.accumulate == 1 else ():
        if batch is None or batch % count:
            continue
        micro = batch // count
        yield Idea(
            id=f"accumulate_{count}",
            group=_GROUP,
            what=f"--accumulate {count} --batch {micro}: {count} passes of {micro} for one step",
            price=Price.TIME,
            cost="smaller kernels in each pass; a BatchNormalization sees fewer samples",
            change=_accumulated(micro, count),
            settings={"batch": micro, "accumulate": count},
        )


def _of(batch: int, number: int, word: str) -> Idea:
    return Idea(
        id=word,
        group=_GROUP,
        what=f"--batch {number} instead of {batch}",
        price=Price.SAMPLES,
        cost=f"{-(-batch // number)} passes for as many samples",
        change=lambda subject: subject.with_batch(number),
        settings={"batch": number},
    )


def _accumulated(micro: int, count: int) -> Change:
    return lambda subject: with_recipe(accumulate=count)(subject.with_batch(micro))

"""Another order of execution: the same nodes, fewer bytes live at once."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from onnxmem.decisions.advise.figures import Subject
from onnxmem.decisions.advise.proposals import Idea, Price

_COST: Final = (
    "onnxmem reorder writes it, once; for runtimes that run the file's order, as onnxruntime does "
    "with ExecutionOrder.PRIORITY_BASED and its optimiser off"
)


def order_ideas(subject: Subject) -> Iterator[Idea]:
    """The best order that is found, where the file's was asked for."""
    if subject.question.settings.order == "file":
        yield Idea(
            id="order",
            group="order",
            what="run the nodes in a better order",
            price=Price.NOTHING,
            cost=_COST,
            change=_in_best_order,
            settings={"order": "best"},
        )


def _in_best_order(subject: Subject) -> Subject:
    settings = replace(subject.question.settings, order="best")
    return replace(subject, question=replace(subject.question, settings=settings))

"""The forms of many models' results, piece by piece as the models come."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from onnxmem.registry.summary import Summary
from onnxmem.registry.task import Outcome
from onnxmem.report.registry import (
    json_head,
    json_row,
    json_tail,
    render_summary,
    table_head,
    table_row,
)
from onnxmem.report.table import csv_head, csv_row, jsonl_row


@dataclass(frozen=True, slots=True)
class Look:
    """What a form needs to know beside the models."""

    paint: Callable[[str], str]
    """Colours text, or leaves it."""
    train: bool
    summed: Callable[[], Summary] | None
    """What the models so far come to; ``None``: there is one model."""


def _nothing(found: Iterator[Outcome], look: Look) -> Iterator[str]:  # noqa: ARG001 - as others
    """Only the work: what comes of it is written elsewhere."""
    for _ in found:
        yield ""


def _text(found: Iterator[Outcome], look: Look) -> Iterator[str]:
    """The reports one after another; failures have been told on stderr."""
    gap = ""
    for outcome in found:
        if outcome["text"] is not None:
            yield gap + look.paint(outcome["text"])
            gap = "\n\n"


def _table(found: Iterator[Outcome], look: Look) -> Iterator[str]:
    """A line a model, and what they come to."""
    yield look.paint(table_head(train=look.train))
    for outcome in found:
        yield look.paint(table_row(outcome["row"], train=look.train))
    if look.summed is not None:
        yield "\n" + look.paint(render_summary(look.summed()))


def _json(found: Iterator[Outcome], look: Look) -> Iterator[str]:
    yield json_head()
    is_first = True
    for outcome in found:
        yield json_row(outcome["row"], is_first=is_first)
        is_first = False
    yield json_tail(None if look.summed is None else look.summed())


def _jsonl(found: Iterator[Outcome], look: Look) -> Iterator[str]:  # noqa: ARG001 - as others
    return (jsonl_row(outcome["row"]) for outcome in found)


def _csv(found: Iterator[Outcome], look: Look) -> Iterator[str]:  # noqa: ARG001 - as others
    yield csv_head()
    for outcome in found:
        yield csv_row(outcome["row"])


FORMS: Final[Mapping[str, Callable[[Iterator[Outcome], Look], Iterator[str]]]] = MappingProxyType(
    {
        "text": _text,
        "table": _table,
        "json": _json,
        "jsonl": _jsonl,
        "csv": _csv,
        "nothing": _nothing,
    }
)
"""``table`` is the text of many models, ``nothing`` is for a command that only shows a page."""
SUMMED: Final = frozenset({"table", "json"})
"""Those that end with a summary."""
WITH_LAYERS: Final = frozenset({"json", "jsonl"})
"""Those whose rows hold a row for every node, where that is asked for; text has its own."""

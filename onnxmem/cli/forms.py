"""The forms of many models' results, piece by piece as the models come."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from onnxmem import report
from onnxmem.collection.task import Outcome

if TYPE_CHECKING:
    from onnxmem.collection import Summary


@dataclass(frozen=True, slots=True)
class Look:
    """What a form needs to know beside the models."""

    paint: Callable[[str], str]
    """Colours text, or leaves it."""
    train: bool
    summed: "Callable[[], Summary] | None"
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
    yield look.paint(report.table_head(train=look.train))
    row = None
    for outcome in found:
        row = outcome["row"]
        yield look.paint(report.table_row(row, train=look.train))
    if row is not None:
        yield report.table_end(row, is_only=look.summed is None)
    if look.summed is not None:
        yield "\n" + look.paint(report.render_summary(look.summed()))


def _json(found: Iterator[Outcome], look: Look) -> Iterator[str]:
    yield report.json_head()
    is_first = True
    for outcome in found:
        yield report.json_row(outcome["row"], is_first=is_first)
        is_first = False
    yield report.json_tail(None if look.summed is None else look.summed())


def _jsonl(found: Iterator[Outcome], look: Look) -> Iterator[str]:  # noqa: ARG001 - as others
    return (report.jsonl_row(outcome["row"]) for outcome in found)


def _csv(found: Iterator[Outcome], look: Look) -> Iterator[str]:  # noqa: ARG001 - as others
    yield report.csv_head()
    for outcome in found:
        yield report.csv_row(outcome["row"])


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
WHOLE: Final = frozenset({"json", "jsonl"})
"""Those whose rows hold all of the contract, and a row for every node where that is asked for."""

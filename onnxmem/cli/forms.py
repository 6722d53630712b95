"""The forms of many models' results, piece by piece as the models come."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from onnxmem import report
from onnxmem.analysis.json_row import Row
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


class Form:
    """A form of a result: what is written before, for and after the models.

    This one is for a command that only shows a page: nothing is written.
    """

    def __init__(self, look: Look) -> None:
        self.look = look

    def head(self) -> str:
        """What comes before the first model."""
        return ""

    def of_model(self, outcome: Outcome) -> str:  # noqa: ARG002 - of the other forms
        """What is written of one model."""
        return ""

    def tail(self) -> str:
        """What comes after the last model."""
        return ""


class _Text(Form):
    """The reports one after another; failures have been told on stderr."""

    gap = ""

    def of_model(self, outcome: Outcome) -> str:
        if outcome["text"] is None:
            return ""
        gap, self.gap = self.gap, "\n\n"
        return gap + self.look.paint(outcome["text"])


class _Table(Form):
    """A line a model, and what they come to."""

    row: Row | None = None

    def head(self) -> str:
        return self.look.paint(report.table_head(train=self.look.train))

    def of_model(self, outcome: Outcome) -> str:
        self.row = outcome["row"]
        return self.look.paint(report.table_row(self.row, train=self.look.train))

    def tail(self) -> str:
        look, row = self.look, self.row
        end = "" if row is None else report.table_end(row, is_only=look.summed is None)
        if look.summed is None:
            return end
        return f"{end}\n{look.paint(report.render_summary(look.summed()))}"


class _Json(Form):
    is_first = True

    def head(self) -> str:
        return report.json_head()

    def of_model(self, outcome: Outcome) -> str:
        is_first, self.is_first = self.is_first, False
        return report.json_row(outcome["row"], is_first=is_first)

    def tail(self) -> str:
        return report.json_tail(None if self.look.summed is None else self.look.summed())


class _Jsonl(Form):
    def of_model(self, outcome: Outcome) -> str:
        return report.jsonl_row(outcome["row"])


class _Csv(Form):
    def head(self) -> str:
        return report.csv_head()

    def of_model(self, outcome: Outcome) -> str:
        return report.csv_row(outcome["row"])


FORMS: Final[Mapping[str, type[Form]]] = MappingProxyType(
    {
        "text": _Text,
        "table": _Table,
        "json": _Json,
        "jsonl": _Jsonl,
        "csv": _Csv,
        "nothing": Form,
    }
)
"""``table`` is the text of many models, ``nothing`` is for a command that only shows a page."""
SUMMED: Final = frozenset({"table", "json"})
"""Those that end with a summary."""
WHOLE: Final = frozenset({"json", "jsonl"})
"""Those whose rows hold all of the contract, and a row for every node where that is asked for."""

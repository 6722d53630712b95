"""The forms of many models' results, piece by piece as the models come."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from onnxmem.analysis.json_rows import Row
from onnxmem.collection.task import Outcome

if TYPE_CHECKING:
    from onnxmem.collection.summary import Summary


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
        from onnxmem.report.registry import table_head

        return self.look.paint(table_head(train=self.look.train))

    def of_model(self, outcome: Outcome) -> str:
        self.row = outcome["row"]
        from onnxmem.report.registry import table_row

        return self.look.paint(table_row(self.row, train=self.look.train))

    def tail(self) -> str:
        look, row = self.look, self.row
        from onnxmem.report.registry import render_summary, table_end

        end = "" if row is None else table_end(row, is_only=look.summed is None)
        if look.summed is None:
            return end
        return f"{end}\n{look.paint(render_summary(look.summed()))}"


class _Json(Form):
    is_first = True

    def head(self) -> str:
        from onnxmem.report.registry import json_head

        return json_head()

    def of_model(self, outcome: Outcome) -> str:
        is_first, self.is_first = self.is_first, False
        from onnxmem.report.registry import json_row

        return json_row(outcome["row"], is_first=is_first)

    def tail(self) -> str:
        from onnxmem.report.registry import json_tail

        return json_tail(None if self.look.summed is None else self.look.summed())


class _Jsonl(Form):
    def of_model(self, outcome: Outcome) -> str:
        from onnxmem.report.registry import jsonl_row

        return jsonl_row(outcome["row"])


class _Csv(Form):
    def head(self) -> str:
        from onnxmem.report.registry import csv_head

        return csv_head()

    def of_model(self, outcome: Outcome) -> str:
        from onnxmem.report.registry import csv_row

        return csv_row(outcome["row"])


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

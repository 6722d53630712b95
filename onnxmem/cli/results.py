"""The results of models as they come: written piece by piece, counted, summed up, and as a page.

Imported when ``onnxmem MODEL`` runs and not for its help, so that what it needs may be at the top.
"""

from __future__ import annotations

import os
import re
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from onnxmem.analysis.coverage import unbound_dims_text
from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.analysis.json_rows import JsonDict, bytes_at, guessed_dims
from onnxmem.cli.output import (
    check_output,
    is_watched,
    notify,
    refuse_same_output,
    report_fault,
    write_file,
)
from onnxmem.collection.task import FaultRow, Outcome, Render
from onnxmem.errors import EXIT_GATE_FAILED, EXIT_UNANALYZED, Fault, UsageError, shortened
from onnxmem.files import reason_of
from onnxmem.units import format_bytes, format_limit, plural

if TYPE_CHECKING:
    from onnxmem.collection.summary import Accuracies, Summary, Tally, Target

_LACKING: Final = frozenset({"unused_dim", "unused_limit", "unused_value"})
_REFRESH_SECONDS: Final = 0.1
"""Between two counts: a terminal is slower than small models."""
_RATED_SECONDS: Final = 2.0
"""Before this time the number of models a second says little."""


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """What a form needs beside the models."""

    paint: Callable[[str], str]
    """Colors text, or leaves it."""
    train: bool
    runtimes: Sequence[str]
    summary: Callable[[], Summary] | None
    """Of the models so far; ``None``: there is one model."""


class Form:
    """A form of a result: what is written before, for and after the models.

    This one is for a command that only shows a page: nothing is written.
    """

    def __init__(self, options: RenderOptions) -> None:
        self.options = options

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
    """The reports one after another; failures were reported on stderr."""

    gap = ""

    def of_model(self, outcome: Outcome) -> str:
        if outcome["text"] is None:
            return ""
        # Reports of several lines have blank lines between them, one-line reports none.
        gap, self.gap = self.gap, "\n\n" if outcome["text"].count("\n") > 1 else ""
        return gap + self.options.paint(outcome["text"])


class _Table(Form):
    """A line a model, and their summary."""

    row: JsonDict | None = None

    def head(self) -> str:
        from onnxmem.report.registry import table_head

        options = self.options
        return options.paint(table_head(train=options.train, runtimes=options.runtimes))

    def of_model(self, outcome: Outcome) -> str:
        self.row = outcome["row"]
        from onnxmem.report.registry import table_row

        options = self.options
        text = table_row(self.row, train=options.train, runtimes=options.runtimes)
        return options.paint(text)

    def tail(self) -> str:
        options, row = self.options, self.row
        from onnxmem.report.registry import render_summary, table_end

        end = "" if row is None else table_end(row, is_only=options.summary is None)
        if options.summary is None:
            return end
        return f"{end}\n{options.paint(render_summary(options.summary()))}"


class _Line(Form):
    """The summary in one line."""

    def tail(self) -> str:
        from onnxmem.report.registry import summary_line

        summary = self.options.summary
        return "" if summary is None else self.options.paint(summary_line(summary()))


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

        return json_tail(None if self.options.summary is None else self.options.summary())


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
        "line": _Line,
        "json": _Json,
        "jsonl": _Jsonl,
        "csv": _Csv,
        "nothing": Form,
    }
)
"""``table`` is the text of many models, ``line`` that with ``-q``, ``nothing`` is for a command
that only shows a page."""


SUMMED: Final = frozenset({"table", "line", "json"})
"""Those that end with a summary."""


BY_ROW: Final = frozenset({"text", "jsonl", "csv"})
"""Those of which the rows so far are of use, should the run end early."""


WHOLE: Final = frozenset({"json", "jsonl"})
"""Those whose rows hold all of the contract, and a row for every node where that is requested."""


@dataclass(slots=True)
class Progress:
    """Mutable: counts models on one line of a terminal, which is written over."""

    num_models: int
    is_shown: bool
    num_done: int = 0
    num_failed: int = 0
    _is_on_screen: bool = field(default=False, init=False)
    _last_seconds: float = field(default=0.0, init=False)
    _began_seconds: float = field(default_factory=time.monotonic, init=False)

    @classmethod
    def for_terminal(cls, num_models: int, *, declined: bool) -> Progress:
        """Shown to a person who waits: on a terminal, for more than one model."""
        return cls(num_models, is_watched() and num_models > 1 and not declined)

    def count(self, *, failed: bool) -> None:
        """Count one more model."""
        self.num_done += 1
        self.num_failed += failed
        now = time.monotonic()
        if self.is_shown and now - self._last_seconds >= _REFRESH_SECONDS:
            self._last_seconds = now
            failures = f", {self.num_failed:,} failed" if self.num_failed else ""
            rate = self._rate(now)
            self._write(f"{self.num_done:,} of {self.num_models:,} models{failures}{rate}")
            self._is_on_screen = True

    def _rate(self, now: float) -> str:
        """Models a second, once they are known."""
        elapsed = now - self._began_seconds
        return "" if elapsed < _RATED_SECONDS else f", {self.num_done / elapsed:,.0f}/s"

    def finish(self) -> None:
        """Leave the number of models, and how many a second, if it took long."""
        self.clear()
        if self.is_shown and (rate := self._rate(time.monotonic())):
            notify(f"{self.num_done:,} models{rate}")

    def clear(self) -> None:
        """Leave the line to what is written next."""
        if self._is_on_screen:
            self._write("")
            self._is_on_screen = False

    @staticmethod
    def _write(text: str) -> None:
        notify(f"\r\x1b[K{text}", end="")


@dataclass(slots=True)
class Page:
    """Mutable: what the page needs of the models so far; nothing where none is requested."""

    path: str | None
    is_of_one: bool
    accuracies: Accuracies | None = None
    folder: str | None = None
    """Where each of several models has a page of its own, beside the page of all."""
    _page: str | None = field(default=None, init=False)
    _rows: list[JsonDict] = field(default_factory=list, init=False)
    _pages: dict[str, str] = field(default_factory=dict, init=False)
    """The file of each model's page, by the model's path."""

    @property
    def render(self) -> Render | None:
        """The function by which a worker makes a model's own page."""
        if self.path is None or not (self.is_of_one or self.folder):
            return None
        from onnxmem.report.page.model_page import render_page

        return render_page

    def add(self, outcome: Outcome) -> None:
        """Add an outcome to the page."""
        if self.path is not None:
            self._page = outcome["page"] if self.is_of_one else None
            if self.folder is not None and outcome["page"] is not None:
                file = self._file_of(outcome["row"]["path"])
                write_file(outcome["page"], os.path.join(self.folder, file), quiet=True)
            # One page cannot show the nodes of thousands of models.
            self._rows.append({**outcome["row"], "layers": None})

    def _file_of(self, path: object) -> str:
        """A name for a model's page, in letters that every file system and address has."""
        stem = re.split(r"[\\/]", str(path))[-1].removesuffix(".onnx")[:100]
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip(".-") or "model"
        # Models of two folders may have one name.
        taken = {"index.html", *self._pages.values()}
        numbers = ("", *(f"-{number}" for number in range(2, len(taken) + 3)))
        names = (f"{stem}{number}.html" for number in numbers)
        file = next(name for name in names if name not in taken)
        self._pages[str(path)] = file
        return file

    def write(
        self, summary: Callable[[], Summary], targets: Sequence[Target], *, quiet: bool
    ) -> None:
        """Write the page; that of a model that failed says why.

        :raises UsageError: the file cannot be written.
        """
        if self.path is None:
            return
        page = self._page
        if page is None:
            from onnxmem.report.page.collection_page import render_collection_page

            page = render_collection_page(
                self._rows, summary, targets, self.accuracies, self._pages
            )
        write_file(page, self.path, quiet=quiet)


def page_of(arguments: Namespace, names: Sequence[str]) -> Page:
    """The page that ``--html`` requests.

    :raises UsageError: the file is requested twice, exists or is a model; a table cannot be read.
    """
    path: str | None = arguments.html
    folder = None
    if path is not None and len(names) > 1 and (path[-1:] == "/" or os.path.isdir(path)):
        folder, path = path, os.path.join(path, "index.html")
        _make_folder(folder, force=arguments.force)
    check_output(path, names, force=arguments.force)
    refuse_same_output(path, arguments.output)
    if arguments.accuracy is not None and path is None:
        message = "--accuracy is for the page of several models; see --html"
        raise UsageError(message)
    table = None
    if arguments.accuracy is not None:
        from onnxmem.collection.summary import read_accuracies

        table = read_accuracies(arguments.accuracy)
    return Page(path, len(names) == 1, table, folder)


def _make_folder(path: str, *, force: bool) -> None:
    """A folder for pages.

    :raises UsageError: it has files and ``force`` is not given, or it cannot be made.
    """
    folder = Path(path)
    try:
        folder.mkdir(exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as fault:
        message = f"{shortened(path)}: no folder can be made there: {reason_of(fault)}"
        raise UsageError(message) from fault
    if not is_empty and not force:
        message = f"{shortened(path)}: has files; pass --force to overwrite pages in it"
        raise UsageError(message)


class RunStatus:
    """Mutable: exit codes, the summary and the warnings of the models so far."""

    def __init__(
        self,
        progress: Progress,
        *,
        strict: bool,
        targets: Sequence[Target],
        is_summed: bool,
        says_verdict: bool,
    ) -> None:
        self.progress = progress
        self.codes: list[int] = []
        self.tally: Tally | None = None
        self._strict = strict
        self._says_verdict = says_verdict
        """Whether the report says beside the faults that a budget is not met."""
        self._targets = targets
        self._fetched: Counter[str] = Counter()
        """What was fetched of models at URLs: bytes and requests, and the size of the files."""
        self._lacking: Counter[str] = Counter()
        """Models that have no dim, or no input, of a name that is given."""
        if is_summed:
            from onnxmem.collection.summary import Tally

            self.tally = Tally()

    def summary(self) -> Summary:
        """The models so far in a few figures, where they are summed up."""
        assert self.tally is not None  # noqa: S101 - for mypy
        return self.tally.summary(self._targets)

    def report(self, name: str, outcome: Outcome) -> None:
        """Count an outcome, and report its faults on stderr."""
        row = outcome["row"]
        if self.tally is not None:
            self.tally.add(row)
        self._lacking.update(_lacking(row))
        if "fetched" in row:
            self._fetched.update(cast("dict[str, int]", row["fetched"]))
            self._fetched["of"] += cast("int", row["file_bytes"])
        self.progress.count(failed=row["status"] == "error")
        faults = [
            *outcome["faults"],
            *(_left_out(row) if self._strict else ()),
        ]
        over = [*_budget_fault(row)]
        if self._says_verdict:
            self.codes += (each["exit_code"] for each in over)
        else:
            faults += over
        if faults:
            self.progress.clear()
        for each in faults:
            fault = Fault(each["code"], each["message"], each["exit_code"])
            self.codes.append(report_fault(fault, path=name))
            if each["trace"]:
                notify(each["trace"])

    def report_fetched(self) -> None:
        """Report how much crossed the network, if anything did."""
        fetched = self._fetched
        if fetched:
            size, whole = format_bytes(fetched["bytes"]), format_bytes(fetched["of"])
            notify(f"Fetched {size} of {whole} in {plural(fetched['requests'], 'request')}")

    def warn_of_names(self, num_models: int) -> None:
        """Warn of names that some of the models lack; one model alone refuses them."""
        for flag, count in self._lacking.items():
            what = "dim" if flag.startswith("--dim ") else "input"
            which = plural(num_models, "model")
            text = f"warning: {flag}: {count:,} of {which} have no {what} of that name"
            notify(text)


def write_results(
    found: Iterable[tuple[str, Outcome]],
    form: Form,
    status: RunStatus,
    page: Page,
    write: Callable[[str], bool],
) -> None:
    """Write each outcome as it comes, until the reader of stdout goes away."""
    # `write` is false once nobody reads the output: the models that are left are not analyzed.
    is_read = write(form.head())
    for name, outcome in found if is_read else ():
        status.report(name, outcome)
        page.add(outcome)
        piece = form.of_model(outcome)
        # The line of progress is on the same screen.
        status.progress.clear()
        if piece and not write(piece):
            return
    if is_read:
        write(form.tail())


def _left_out(row: JsonDict) -> Iterator[FaultRow]:
    """With ``--strict`` a figure that leaves something out is a fault."""
    if row["status"] != "partial":
        return
    unknown = bytes_at(row, ("coverage", "unknown_tensors"))
    guessed = guessed_dims(row)
    if unknown or not guessed:
        tensors = plural(unknown or 0, "tensor")
        message = f"{tensors} of unknown size: figures are lower bounds"
        message += "; see Coverage" if unknown else ", or those of a runtime; see Notes"
    else:
        message = unbound_dims_text(guessed)
    yield FaultRow(code="partial", message=message, exit_code=EXIT_UNANALYZED, trace=None)


def _lacking(row: JsonDict) -> Iterator[str]:
    """The flags of a row's findings on names that the model lacks."""
    for finding in cast("list[dict[str, str]]", row["findings"] or ()):
        flag, colon, _ = finding["message"].rpartition(": ")
        if finding["code"] in _LACKING and colon and flag.startswith("--"):
            yield shortened(flag)


def _budget_fault(row: JsonDict) -> Iterator[FaultRow]:
    """A budget that is not met at the requested batch, or of which that is not known."""
    found = cast("dict[str, Any] | None", row["verdict"])
    if found is None or found["verdict"] in {Verdict.FITS, Verdict.TIGHT}:
        return
    if found["verdict"] == Verdict.UNKNOWN:
        message = "whether it fits is unknown: " + "; ".join(found["doubts"])
        yield FaultRow(code="unknown", message=message, exit_code=EXIT_UNANALYZED, trace=None)
        return
    over, budget = format_bytes(-found["margin_bytes"]), format_limit(found["limit_bytes"])
    message = f"takes {format_bytes(found['bytes'])}, {over} over the budget of {budget}"
    yield FaultRow(code="over-budget", message=message, exit_code=EXIT_GATE_FAILED, trace=None)

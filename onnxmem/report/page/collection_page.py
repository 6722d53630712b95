"""The page of a model collection: what models compute, take and hold, and what fits where."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from itertools import islice
from pathlib import PurePosixPath
from typing import Final, cast

from onnxmem.analysis.fitting.verdicts import BASES
from onnxmem.analysis.json_rows import JsonDict, bytes_at
from onnxmem.collection.summary import Accuracies, Summary, Target
from onnxmem.errors import shortened
from onnxmem.report.charts.drawing import Frame
from onnxmem.report.charts.sizes import Axes, Bubble, bubbles_svg
from onnxmem.report.page.markup import (
    Cell,
    bytes_cell,
    document,
    exact,
    filter_box,
    name,
    on_both,
    prose,
    section,
    table,
)
from onnxmem.report.registry import LABELS, errors_of
from onnxmem.units import format_bytes, format_count, plural

_MOST_ROWS: Final = 5000
"""Models in the table, the heaviest; a page of more is slow to open."""
_MOST_BUBBLES: Final = 1000
_PROSE: Final = {"class": "prose"}
"""A cell of sentences, which has a line of its own on a phone."""
_GROUPS: Final = {"ok": "c-saved", "partial": "c-activations"}
_STATUS_TEXTS: Final = {"ok": "complete", "partial": "lower bound"}


@dataclass(frozen=True, slots=True)
class _Model:
    """What the page shows of a row; the rows themselves may be too many to hold."""

    path: str
    status: str
    fault: tuple[str, str] | None
    parameters: int | None
    weight_bytes: int | None
    total_bytes: int | None
    training_bytes: int | None
    flops: int | None
    accuracy: float | None
    page: str
    """Of the model alone, as an address relative to this page; empty without one."""

    @property
    def memory_bytes(self) -> int | None:
        """What a training step takes if there is one, else inference."""
        return self.total_bytes if self.training_bytes is None else self.training_bytes


def render_collection_page(
    rows: Iterable[JsonDict],
    summary: Callable[[], Summary],
    targets: Sequence[Target] = (),
    accuracies: Accuracies | None = None,
    pages: Mapping[str, str] | None = None,
) -> str:
    """A whole page of many models; ``summary`` is called when all rows have come.

    ``pages`` are addresses of the models' own pages by their paths: a click on a model opens its
    page, or else shows its row.
    ``targets`` and the budget that the rows name are lines of the chart. With ``accuracies`` models
    lie by their accuracy; those that the table has not are in the table of models alone.
    """
    models: list[_Model] = []
    budgets: dict[int, None] = {}
    for row in rows:
        models.append(_model(row, accuracies, pages or {}))
        budget_bytes = bytes_at(row, ("max_batch", "budget_bytes"))
        if budget_bytes is not None:
            budgets[budget_bytes] = None
    summed = summary()
    lines = [(each.name, each.limit_bytes) for each in targets]
    lines += [(f"budget {format_bytes(each)}", each) for each in budgets]
    sections = [
        section("totals", "Totals", _totals(summed)),
        _chart(models, lines, has_accuracy=accuracies is not None),
        *_fits(summed),
        _models(models, has_accuracy=accuracies is not None),
        *_failures(models),
        *_notes(summed),
    ]
    return document(plural(summed.num_models, "model"), sections)


def _model(row: JsonDict, accuracies: Accuracies | None, pages: Mapping[str, str]) -> _Model:
    error = cast("dict[str, str] | None", row["error"])
    path = cast("str", row["path"])
    return _Model(
        path=path,
        status=cast("str", row["status"]),
        fault=None if error is None else (error["code"], error["message"]),
        parameters=bytes_at(row, ("weights", "parameters")),
        weight_bytes=bytes_at(row, ("weights", "bytes")),
        total_bytes=bytes_at(row, ("total_bytes",)),
        training_bytes=bytes_at(row, ("training", "peak_bytes")),
        flops=bytes_at(row, ("compute", "forward_flops")),
        accuracy=None if accuracies is None else accuracies.of(path),
        page=pages.get(path, ""),
    )


def _notes(summary: Summary) -> Iterator[str]:
    """What figures assume or leave out: of many models alike the first one's words."""
    heads = (("note", False), ("models", True), ("first", False), ("message", False))
    rows = [
        (
            Cell(f"<code>{escape(each.code)}</code>"),
            Cell(f"{each.num_models:,}", each.num_models, is_number=True),
            Cell(name(shortened(each.path))),
            Cell(prose(each.message), attributes=_PROSE),
        )
        for each in summary.notes
    ]
    if rows:
        yield section("notes", "Notes", table("notes-table", heads, rows))


def _totals(summary: Summary) -> str:
    """Sums, percentiles and the largest."""
    counts = ", ".join(f"{number:,} {status}" for status, number in summary.statuses.items())
    figures = [each for each in summary.figures if each.percentiles]
    if not figures:
        return f"<p>{counts}</p>"
    percents = [percent for percent, _ in figures[0].percentiles]
    heads = [("figure", False), ("models", True), ("sum", True)]
    heads += [(f"p{percent}", True) for percent in percents] + [("largest", True)]
    cells = [
        (
            Cell(LABELS[each.name]),
            Cell(f"{each.num_known:,}", each.num_known, is_number=True),
            *map(
                _rounded_cell,
                (each.sum_bytes, *(number for _, number in each.percentiles), each.max_bytes),
            ),
        )
        for each in figures
    ]
    return f"<p>{counts}</p>{table('totals-table', heads, cells)}"


def _chart(
    models: Sequence[_Model], lines: Sequence[tuple[str, int]], *, has_accuracy: bool
) -> str:
    """Bubbles of the models of which both numbers are known, the heaviest where there are many."""
    bubbles = [each for each in (_bubble(each, has_accuracy) for each in _sorted(models)) if each]
    shown = bubbles[:_MOST_BUBBLES]
    is_training = any(each.training_bytes is not None for each in models)
    axes = Axes(
        "accuracy" if has_accuracy else "forward FLOPs",
        "memory of a training step" if is_training else "memory of inference",
        is_log=not has_accuracy,
    )
    does = "opens its page" if any(each.page for each in models) else "shows its row in the table"
    remark = f"A click on a model {does}."
    if len(shown) < len(models):
        remark += f" {len(models) - len(shown):,} of {plural(len(models), 'model')} are not in it."
    statuses = {each.status for each in models}

    def draw(width: int, suffix: str) -> str:
        return bubbles_svg(
            shown,
            Frame(
                f"onnxmem-bubbles{suffix}",
                f"Memory of models by {axes.x}",
                f"{remark} The table of models has the same numbers.",
                width,
            ),
            lines=lines,
            axes=axes,
            groups=[
                (_STATUS_TEXTS[status], _GROUPS[status]) for status in _GROUPS if status in statuses
            ],
        )

    figure = f"<figure>{on_both(draw, 'chart of models')}</figure>"
    return section("chart", "Chart", figure, remark)


def _sorted(models: Sequence[_Model]) -> list[_Model]:
    """Those that were analyzed, the heaviest first: the order of the table's rows."""
    known = [each for each in models if each.fault is None]
    return sorted(known, key=lambda each: -(each.memory_bytes or 0))


def _row_id(model: _Model) -> str:
    """The address of a model's row in the page, by its path."""
    return f"model-{sha256(model.path.encode(errors='replace')).hexdigest()[:12]}"


def _bubble(model: _Model, has_accuracy: bool) -> Bubble | None:  # noqa: FBT001 - which number
    across = model.accuracy if has_accuracy else model.flops
    if across is None or model.memory_bytes is None:
        return None
    short = PurePosixPath(model.path).stem
    return Bubble(
        short,
        across,
        model.memory_bytes,
        model.parameters or 0,
        _GROUPS[model.status],
        model.page or f"#{_row_id(model)}",
    )


def _fits(summary: Summary) -> Iterator[str]:
    """How many models fit each device, one at a time."""
    if not summary.fittings:
        return
    is_size = all(each.target.kind is None for each in summary.fittings)
    heads = [("memory" if is_size else "device", False), *([] if is_size else [("memory", True)])]
    heads += [(each, True) for each in ("fit", "tight", "too large", "unknown")]
    rows = [
        (
            Cell(name(each.target.name), attributes={"title": exact(each.target.limit_bytes)}),
            *([] if is_size else [bytes_cell(each.target.limit_bytes)]),
            *(
                Cell(f"{count:,}", count, is_number=True)
                for count in (each.fits, each.tight, each.does_not_fit, each.unknown)
            ),
        )
        for each in summary.fittings
    ]
    bases = dict.fromkeys(each.basis for each in summary.fittings if each.basis)
    remark = f"Each model alone. Compared: {'; '.join(BASES[basis] for basis in bases)}."
    errors = (f"{which}: {error}" for basis in bases for which, error in errors_of(summary, basis))
    remark += "".join(f" Accuracy{each}." for each in dict.fromkeys(errors))
    yield section("fits", "What fits", table("fits-table", heads, rows, is_narrow=True), remark)


def _models(models: Sequence[_Model], *, has_accuracy: bool) -> str:
    """A row for each analyzed model, the heaviest first."""
    known = _sorted(models)
    is_training = any(each.training_bytes is not None for each in known)
    heads = [("model", False), *((each, True) for each in ("parameters", "weights"))]
    heads += [(LABELS["total"], True), *([(LABELS["training"], True)] if is_training else [])]
    heads += [("forward FLOPs", True), *([("accuracy", True)] if has_accuracy else [])]
    heads += [("status", False)]
    rows = (
        (
            _name_cell(each),
            _count_cell(each.parameters),
            bytes_cell(each.weight_bytes),
            bytes_cell(each.total_bytes),
            *([bytes_cell(each.training_bytes)] if is_training else []),
            _count_cell(each.flops),
            *([_number_cell(each.accuracy)] if has_accuracy else []),
            Cell(each.status),
        )
        for each in known[:_MOST_ROWS]
    )
    remark = ""
    if len(known) > _MOST_ROWS:
        remark = f"The {_MOST_ROWS:,} heaviest of {plural(len(known), 'model')}."
    body = filter_box("models-table", "filter") + table("models-table", heads, rows)
    return section("models", "Models", body, remark)


def _name_cell(model: _Model) -> Cell:
    """The path, which opens the model's page if there is one."""
    text = name(model.path)
    opened = f'<a href="{escape(model.page)}">{text}</a>' if model.page else text
    return Cell(opened, attributes={"class": "name", "id": _row_id(model)})


def _failures(models: Sequence[_Model]) -> Iterator[str]:
    """Models that could not be analyzed, and why."""
    failed = [(each.path, each.fault) for each in models if each.fault is not None]
    if not failed:
        return
    heads = [("model", False), ("code", False), ("why", False)]
    rows = (
        (Cell(name(path)), Cell(name(code)), Cell(prose(why), attributes=_PROSE))
        for path, (code, why) in failed
    )
    body = table("failures-table", heads, islice(rows, _MOST_ROWS))
    yield section("failures", "Failures", body, f"{plural(len(failed), 'model')} failed.")


def _rounded_cell(size_bytes: int | None) -> Cell:
    title = {"title": exact(size_bytes)}
    return Cell(format_bytes(size_bytes), size_bytes, is_number=True, attributes=title)


def _count_cell(count: int | None) -> Cell:
    return Cell(format_count(count), count, is_number=True)


def _number_cell(number: float | None) -> Cell:
    return Cell("unknown" if number is None else f"{number:g}", number, is_number=True)

"""The page of a batch curve: the answers, charts of memory and of a sample's cost, the table."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Final

from onnxmem.decisions.batch_curve import BatchCurve, BatchPoint
from onnxmem.report.batch_curve import HEADINGS, answers, cells, largest_lines, mark, rows_of
from onnxmem.report.charts.curves import curve_svg
from onnxmem.report.charts.drawing import Frame, byte_label, byte_ticks, round_ticks
from onnxmem.report.devices import seconds_text
from onnxmem.report.fit import ComparedMemory
from onnxmem.report.page.markup import Cell, document, name, on_both, section, table
from onnxmem.units import format_bytes

_FEWEST: Final = 2
"""Points of a curve."""
_FARTHEST: Final = 4
"""How many times the largest value a limit may be to be drawn."""


def curve_page(path: str, curve: BatchCurve, memory: ComparedMemory | None) -> str:
    """A whole page."""
    where = "" if memory is None else f" on {memory.name}"
    pairs = "".join(
        f"<dt>{escape(question)}</dt><dd>{escape(answer)}</dd>"
        for question, answer in (*answers(curve), *largest_lines(curve))
    )
    sections = [
        section("answers", "Answers", f"<dl>{pairs}</dl>"),
        *_charts(curve, memory),
        section("batches", "Batches", _table(curve)),
    ]
    title = f"Batches of {path}{where}"
    return document(title, sections, heading=f"Batches of {name(path)}{escape(where)}")


def _charts(curve: BatchCurve, memory: ComparedMemory | None) -> Iterator[str]:
    points = rows_of(curve)
    if len(points) < _FEWEST:
        return
    marks = {} if curve.knee is None else {curve.knee.batch: f"knee {curve.knee.batch:,}"}
    sizes = [(point.batch, float(point.num_bytes)) for point in points]
    limit = _limit(memory, max(size for _, size in sizes))
    chart = _chart("memory", sizes, _bytes_ticks, _bytes_text, marks, limit)
    yield section("memory", "Memory", chart)
    costs = [(point.batch, point.cost) for point in points]
    known = [(batch, cost) for batch, cost in costs if cost is not None]
    if len(known) < len(costs):
        return
    is_time = points[0].bound is not None
    title = "Time per sample, at least" if is_time else "Bytes moved per sample"
    ticks, text = (_seconds_ticks, seconds_text) if is_time else (_bytes_ticks, _bytes_text)
    yield section("cost", title, _chart("cost", known, ticks, text, marks))


def _chart(
    chart_id: str,
    points: Sequence[tuple[int, float]],
    ticks: Callable[[float], Sequence[tuple[float, str]]],
    text: Callable[[float], str],
    marks: Mapping[int, str],
    limit: tuple[float, str] | None = None,
) -> str:
    first, last = points[0], points[-1]
    described = (
        f"{text(first[1])} at batch {first[0]:,}, {text(last[1])} at batch {last[0]:,}, over a "
        "scale of powers of two"
    )
    top = max(*(value for _, value in points), 0 if limit is None else limit[0])

    def draw(width: int, suffix: str) -> str:
        frame = Frame(f"onnxmem-{chart_id}{suffix}", f"{chart_id} by batch", described, width)
        return curve_svg(points, ticks(top), text, marks, frame, limit)

    return f"<figure>{on_both(draw, f'{chart_id} by batch')}</figure>"


def _limit(memory: ComparedMemory | None, top: float) -> tuple[float, str] | None:
    """The memory of the device, where the curve is not flat below it."""
    if memory is None or memory.memory_bytes > _FARTHEST * top:
        return None
    return float(memory.memory_bytes), f"{memory.name}: {format_bytes(memory.memory_bytes)}"


def _bytes_ticks(top: float) -> Sequence[tuple[float, str]]:
    return [(each, byte_label(each, int(top))) for each in byte_ticks(int(top))]


def _bytes_text(num_bytes: float) -> str:
    return format_bytes(round(num_bytes))


def _seconds_ticks(top: float) -> Sequence[tuple[float, str]]:
    return [(each, seconds_text(each) if each else "0") for each in round_ticks(0, top)]


def _table(curve: BatchCurve) -> str:
    heads = [(escape(head), True) for head in HEADINGS]
    pairs = zip(rows_of(curve), cells(curve), strict=True)
    rows = [_row(point, texts, curve) for point, texts in pairs]
    return table("batches-table", [*heads, ("verdict", False)], rows)


def _row(point: BatchPoint, texts: Sequence[str], curve: BatchCurve) -> list[Cell]:
    values = (
        point.batch,
        point.num_bytes,
        point.work.flops,
        point.work.bytes_moved,
        point.work.flops_per_byte,
        point.seconds_per_sample,
        None,
    )
    return [
        *(
            Cell(escape(text), value, is_number=True)
            for text, value in zip(texts, values, strict=True)
        ),
        Cell(escape(mark(point, curve))),
    ]

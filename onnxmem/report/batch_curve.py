"""A batch curve as text, CSV and JSON: the answers first, then the table and its bars."""

from collections.abc import Iterator, Sequence
from typing import Final

from onnxmem.analysis.fitting.verdicts import BASES
from onnxmem.analysis.json_rows import JsonDict, affine_row
from onnxmem.decisions.batch_curve import BatchCurve, BatchPoint, share_of_line
from onnxmem.errors import shortened
from onnxmem.report.devices import seconds_text, work_row
from onnxmem.report.fit import ComparedMemory
from onnxmem.report.registry import csv_cell
from onnxmem.report.text import aligned, bar, csv_line, fact, finding_lines, joined
from onnxmem.report.verdict import alone_text, largest_text
from onnxmem.units import format_bytes, format_count, in_unit, unit_power

_UNKNOWN: Final = "-"
_BAR: Final = 30
_FASTER: Final = 1.1
"""As a multiple: less is called the same."""
_ONE_BATCH: Final = "name more than one batch: --batch 1..256"
_PROPORTIONAL: Final = 0.95
_FEWEST: Final = 3
"""Points that can show a line, or that there is none."""
HEADINGS: Final = ("batch", "memory", "FLOPs", "moved", "FLOPs/B", "per sample", "limited by")
COLUMNS: Final = (
    *("batch", "bytes", "verdict", "flops", "bytes_moved", "flops_per_byte"),
    *("seconds", "seconds_per_sample", "limited_by", "is_knee"),
)
"""Of the CSV table, and the keys of a point in JSON."""


def render_curve(path: str, curve: BatchCurve, memory: ComparedMemory | None) -> str:
    """Write the whole curve; it ends with a newline."""
    where = "" if memory is None else f"  on {shortened(memory.name)}"
    head = [
        f"{shortened(path)}{where}",
        fact("Memory", BASES[curve.setup.basis]),
        fact("Time", _roofline_text(curve)),
    ]
    if not all(point.is_whole for point in curve.points):
        head.append(fact("warning", "lower bounds: what is of unknown size is left out"))
    asked = [fact(question, answer) for question, answer in answers(curve)]
    assessment = None if curve.result is None else curve.result.assessment
    findings = () if assessment is None else assessment.findings
    blocks = [
        head,
        asked,
        _table(curve),
        _plot(curve),
        [fact(label, text) for label, text in largest_lines(curve)],
        list(finding_lines(findings)),
    ]
    return joined(blocks)


def _roofline_text(curve: BatchCurve) -> str:
    """What times are a bound of, with the rates of the device where it has them."""
    point, rates = curve.points[0], []
    if point.bound is not None and point.bound.peak_flops:
        kind = "" if point.work.is_half else " without TF32"
        rates.append(f"{point.bound.peak_flops / 1e12:.3g} TFLOP/s{kind}")
    if point.bound is not None and point.bound.bandwidth_bytes:
        rates.append(f"{point.bound.bandwidth_bytes / 1e9:,.4g} GB/s")
    at = f" at {' and '.join(rates)}" if rates else ""
    return f"by the roofline{at}: real runs are slower, small batches most of all"


def answers(curve: BatchCurve) -> tuple[tuple[str, str], ...]:
    """The two questions, and what the figures say to them."""
    return (
        ("Is memory proportional?", _proportional(curve)),
        ("Is a larger batch faster?", _faster(curve)),
    )


def _proportional(curve: BatchCurve) -> str:
    """Whether memory is proportional to the batch, with figures."""
    first, last = curve.points[0], curve.points[-1]
    if first is last:
        return _ONE_BATCH
    if curve.memory_growth is None:
        return f"unknown: batch {first.batch:,} takes 0 B"
    grown = _times(curve.memory_growth)
    takes = f"batch {last.batch:,} takes {grown} x what batch {first.batch:,} takes"
    times = f"{takes}, for {_times(curve.sample_growth)} x the samples"
    answer = "yes" if curve.memory_growth >= _PROPORTIONAL * curve.sample_growth else "no"
    line = curve.memory_line
    if line is None and len(curve.points) < _FEWEST:
        return f"{answer}: {times}"
    if line is None:
        least, most = (format_bytes(round(each)) for each in _ends(curve.added_bytes))
        added = f"one more sample takes {least} to {most}"
        return f"{answer}, and not linear at these batches ({added}): {times}"
    terms = f"{format_bytes(line.fixed_bytes)} + {format_bytes(line.slope_bytes)} x batch"
    share = 100 * float(share_of_line(line, first.batch))
    how = "nearly" if answer == "yes" else "but linear"
    fixed = f"{share:.0f} % fixed at batch {first.batch:,}"
    return f"{answer}, {how}: {terms} ({fixed}); {times}"


def _times(multiple: float) -> str:
    return f"{multiple:.3g}" if multiple < 1000 else f"{multiple:,.0f}"  # noqa: PLR2004 - three digits


def _ends(numbers: Sequence[float]) -> tuple[float, float]:
    return min(numbers), max(numbers)


def _faster(curve: BatchCurve) -> str:
    """Whether a larger batch is faster, with figures."""
    knee, speedup = curve.knee, curve.cost_ratio
    first, last = curve.points[0], curve.points[-1]
    if first is last:
        return _ONE_BATCH
    if speedup is None:
        return "unknown: FLOPs or bytes moved are not known"
    costs = f"{_cost(first)} at batch {first.batch:,}, {_cost(last)} at {last.batch:,}"
    hint = "" if last.bound is not None else "; name a --device for times"
    if speedup < _FASTER:
        return f"no by the roofline, a sample takes the same: {costs}{hint}"
    if knee is None:
        return f"yes, beyond batch {last.batch:,} too; a sample: {costs}{hint}"
    until = f"up to batch {knee.batch:,}, {_cost(knee)}; beyond it by less than a tenth"
    return f"yes, {until}; a sample: {costs}{hint}"


def _cost(point: BatchPoint) -> str:
    if point.bound is None:
        moved = point.moved_per_sample
        return "unknown" if moved is None else f"{format_bytes(round(moved))} moved"
    limit = point.bound.limited_by
    return seconds_text(point.seconds_per_sample) + (f" (limited by {limit})" if limit else "")


def rows_of(curve: BatchCurve) -> list[BatchPoint]:
    """The points, and the knee where it is between two of them."""
    knee = curve.knee
    extra = () if knee is None or knee in curve.points else (knee,)
    return sorted((*curve.points, *extra), key=lambda point: point.batch)


def _table(curve: BatchCurve) -> list[str]:
    rows = cells(curve)
    columns = len(HEADINGS) if any(point.bound for point in curve.points) else 5
    lines = aligned([HEADINGS[:columns], *(row[:columns] for row in rows)], 0).splitlines()
    marks = ["", *(mark(point, curve) for point in rows_of(curve))]
    return [f"{line}  {mark}".rstrip() for line, mark in zip(lines, marks, strict=True)]


def cells(curve: BatchCurve) -> list[tuple[str, ...]]:
    """The rows below ``HEADINGS``, each column of sizes in the unit of its largest."""
    taken = unit_power(max(each.num_bytes for each in curve.points))
    moved = unit_power(max(each.work.bytes_moved or 0 for each in curve.points))
    return [_cells(point, taken, moved) for point in rows_of(curve)]


def _cells(point: BatchPoint, taken: int, moved: int) -> tuple[str, ...]:
    work, found = point.work, point.bound
    intensity = work.flops_per_byte
    return (
        f"{point.batch:,}",
        in_unit(point.num_bytes, taken),
        _UNKNOWN if work.flops is None else format_count(work.flops),
        _UNKNOWN if work.bytes_moved is None else in_unit(work.bytes_moved, moved),
        _UNKNOWN if intensity is None else f"{intensity:.3g}",
        seconds_text(point.seconds_per_sample),
        (found.limited_by if found is not None else None) or _UNKNOWN,
    )


def mark(point: BatchPoint, curve: BatchCurve) -> str:
    """The verdict on a batch, whether it is the knee, and what a run takes at most if memory is
    what it takes at least.
    """
    words = [] if point.verdict is None else [point.verdict.value]
    words += ["knee"] if point is curve.knee else []
    if point.upper_bytes is not None and point.upper_bytes != point.unlimited_bytes:
        words.append(f"at most {format_bytes(point.upper_bytes)}")
    return ", ".join(words)


def _plot(curve: BatchCurve) -> list[str]:
    """Two bars a batch: the cost of a sample, and memory, each as a share of its largest."""
    points = rows_of(curve)
    costs = [point.cost for point in points]
    most, most_bytes = max(filter(None, costs), default=None), max(p.num_bytes for p in points)
    if most is None or len(points) < 2:  # noqa: PLR2004 - one bar shows nothing
        return []
    what = "time per sample" if points[0].bound is not None else "bytes moved per sample"
    lines = [f"{'':>10}{what:<{_BAR + 3}}memory"]
    for point, cost in zip(points, costs, strict=True):
        left = bar(round(10**6 * (cost or 0) / most), 10**6, _BAR)
        right = bar(point.num_bytes, most_bytes, _BAR)
        lines.append(f"{point.batch:>8,}  {left:<{_BAR}}   {right}".rstrip())
    return lines


def largest_lines(curve: BatchCurve) -> Iterator[tuple[str, str]]:
    """The true largest batch, and the batches of heuristics beside it."""
    result = curve.result
    if result is not None:
        alone = alone_text(result.setup.basis)
        alone += "; --runtime ort-cuda, ort-cpu" if alone else ""
        yield "Largest batch that fits", f"{largest_text(result)}{alone}"
        power = result.power_of_two
        yield "  power of two", "unknown" if power is None else f"{power.number:,}"
        by_memory = curve.by_free_memory
        text = "unknown" if by_memory is None else f"{by_memory:,}"
        yield "  by free memory", f"{text} = memory / 4 / (tensor elements + parameters)"
    else:
        yield "Largest batch that fits", "name a --device"
    yield (
        "  by parameters",
        f"{curve.by_parameters:,} = FindBatchSize, a copied rule that ignores the device",
    )


def curve_csv(curve: BatchCurve) -> str:
    """A table of the points, with a head."""
    rows = (_point_row(point, curve) for point in rows_of(curve))
    return "".join(
        (
            csv_line(list(COLUMNS)),
            *(csv_line([csv_cell(row[key]) for key in COLUMNS]) for row in rows),
        )
    )


def curve_row(curve: BatchCurve, memory: ComparedMemory | None) -> JsonDict:
    """The curve in JSON; unknown is null."""
    return {
        "status": curve.status,
        "basis": curve.basis,
        "device": None if memory is None or memory.device is None else memory.device.name,
        "limit_bytes": curve.limit_bytes,
        "peak": work_row(curve.points[0].work)["peak"],
        "points": [_point_row(point, curve) for point in rows_of(curve)],
        "knee": None if curve.knee is None else curve.knee.batch,
        "memory_line": affine_row(curve.memory_line),
        "memory_growth": curve.memory_growth,
        "sample_growth": curve.sample_growth,
        "cost_ratio": curve.cost_ratio,
        "largest": curve.largest,
        "power_of_two": curve.power_of_two,
        "by_free_memory": curve.by_free_memory,
        "by_parameters": curve.by_parameters,
    }


def _point_row(point: BatchPoint, curve: BatchCurve) -> JsonDict:
    found = point.bound
    return {
        "batch": point.batch,
        "bytes": point.num_bytes,
        **(
            {}
            if point.upper_bytes == point.unlimited_bytes
            else {"lower_bytes": point.unlimited_bytes, "upper_bytes": point.upper_bytes}
        ),
        "verdict": None if point.verdict is None else point.verdict.value,
        "flops": point.work.flops,
        "bytes_moved": point.work.bytes_moved,
        "flops_per_byte": point.work.flops_per_byte,
        "seconds": None if found is None else found.seconds,
        "seconds_per_sample": point.seconds_per_sample,
        "limited_by": None if found is None else found.limited_by,
        "is_knee": point is curve.knee,
    }

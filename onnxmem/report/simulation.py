"""A simulated process as text and as JSON: whether the arena stops growing, then the figures."""

from collections.abc import Iterator, Mapping
from typing import Final

from onnxmem.analysis.json_rows import JsonDict
from onnxmem.decisions.serving_advice import ServingAdvice, ServingChange
from onnxmem.decisions.simulate import DataEnd, Interval, Order, ServedRequest, Simulation
from onnxmem.errors import printable, shortened
from onnxmem.model.requests import Requests
from onnxmem.report.text import (
    aligned,
    bar,
    buckets,
    fact,
    finding_lines,
    finding_rows,
    joined,
    prose,
    rounded,
)
from onnxmem.runtimes.onnxruntime.process.loading import INPUTS, Parts
from onnxmem.runtimes.onnxruntime.session_options import LEVELS
from onnxmem.units import format_bytes, plural

_UNBOUND: Final = "unbound_dims"
"""The finding that stands beside the verdict, for the verdict holds for those numbers alone."""
_ROWS: Final = 8
"""Of the timeline."""
_BAR: Final = 30
_MOST_ADVISED: Final = 6
_SHRINKAGE: Final = (
    "each run returns what it does not keep, and the next one reserves it again, which takes time; "
    "holes in the heap may cost more than it saves: memory.enable_memory_arena_shrinkage"
)
_ADVISED: Final = ("advice", "process", "arena", "at the end", "FLOPs")
_HEADINGS: Final = ("request", "arena reserved", "allocated", "process")


def render_simulation(path: str, found: Simulation, advice: ServingAdvice | None) -> str:
    """Write the whole result, with the timeline or the advice; it ends with a newline."""
    serving = found.serving
    load = load_text(found.requests, serving.concurrency, serving.sessions)
    if serving.concurrency > 1:
        load += f", on {plural(serving.cores, 'core')}"
    doubts = [each for each in found.findings if each.code == _UNBOUND]
    notes = [each for each in found.findings if each.code != _UNBOUND]
    return joined(
        [
            [f"{shortened(path)}  {found.runtime}, {load}"],
            [*prose("", verdict(found)), *finding_lines(doubts)],
            list(_figures(found)),
            _timeline(found) if advice is None else _advice(advice),
            list(finding_lines(notes)),
        ]
    )


def load_text(requests: Requests, concurrency: int, sessions: int) -> str:
    """How many requests are served, of how many shapes, and how many at once."""
    shapes = plural(len(requests.shapes), "shape")
    at_once = "" if concurrency == 1 else f", {concurrency:,} at once"
    where = "" if sessions == 1 else f" in {sessions:,} sessions"
    return f"{plural(len(requests.rows), 'request')} of {shapes}{at_once}{where}"


def verdict(found: Simulation) -> str:
    """Whether the arena stops growing, in a sentence."""
    reserved = format_bytes(found.arena_reserved_peak_bytes)
    if not found.is_complete:
        least = f"the arena reserves at least {reserved}, without the tensors of unknown size"
        return f"It is unknown whether it stops growing: {least}"
    if found.ends:
        most, seen = DataEnd.AT_MOST in found.ends, DataEnd.OBSERVED in found.ends
        parts = [*(["at its upper end"] * most), *(["as it was observed"] * seen)]
        runs = f"the arena reserves {reserved} if each run is {' or '.join(parts)}"
        return f"It is unknown whether it stops growing: {runs}; runs of other data may need more"
    # "At most" would contradict an order that reserves more.
    is_worst = found.worst.reserved_peak_bytes <= found.arena_reserved_peak_bytes
    takes = f"the arena reserves {reserved} {'at most' if is_worst else 'in this order'}"
    last = found.last_maximum
    since = "the load" if last is None else f"request {last + 1:,}"
    checked, whole = found.num_replayed, found.requests.num_in_range
    if found.is_bounded:
        every = "the only shape" if whole == 1 else f"all {whole:,} shapes"
        then = f"from then on {every}, in any order, need no more"
        return f"It stops growing: {takes}, since {since}; {then}"
    of = plural(checked, "shape") if checked == whole else f"{checked:,} of {whole:,} shapes"
    if found.is_bounded is None:
        others = "others may" if checked < whole else "another order may"
        if found.serving.concurrency > 1:
            others = "runs that allocate in another order may"
        of = plural(whole, "shape")
        of = f"{checked:,} of the {of} that requests may have" if checked < whole else of
        then = f"{of} were replayed after them and need no more, {others}"
        return f"It has not grown since {since}: {takes}; {then}"
    return f"It still grows: {takes} for these requests; of {of} replayed, some need more"


def _figures(found: Simulation) -> Iterator[str]:
    first, last = found.timeline[0], found.timeline[-1]
    times = ""
    if first.reserved_bytes:
        multiple = last.reserved_bytes / first.reserved_bytes
        times = f"{multiple:.3g} x the {format_bytes(first.reserved_bytes)} of the first request"
    yield rounded("Arena reserved", last.reserved_bytes, times)
    if found.interval is not None:
        low, high = (
            format_bytes(each) for each in (found.interval.low_bytes, found.interval.high_bytes)
        )
        draws = f"{found.interval.num_draws} draws of how runs take turns"
        peaks = f"{low} in all of" if low == high else f"{low} to {high} in"
        yield fact("  depends on chance", f"its peak is {peaks} {draws}")
    yield rounded("Allocated chunks, peak", found.allocated_peak_bytes)
    load = found.load_peak_bytes
    is_gpu = load is None
    loading = "" if load is None else f"{format_bytes(load)} while it is loaded; no outputs"
    what = "GPU, with context" if is_gpu else "Process, peak"
    yield rounded(what, found.process_peak_bytes, loading)
    yield from _parts(found)
    yield fact("Last new maximum", _last_maximum(found))
    yield fact("Worst order found", _worst(found))
    yield fact("Requests", _source(found))


def _parts(found: Simulation) -> Iterator[str]:
    """What the process after the last request consists of."""
    parts = [part for part in process_parts(found) if part[1]]
    if parts:
        text = ", ".join(f"{name} {format_bytes(size_bytes)}" for name, size_bytes in parts)
        total_bytes = sum(size_bytes for _, size_bytes in parts)
        yield fact("Process at the end", f"{format_bytes(total_bytes)}: {text}")
    if found.process_interval is not None:
        input_bytes, interval = found.timeline[-1].input_bytes, found.process_interval
        low, high = (
            format_bytes(each + input_bytes) for each in (interval.low_bytes, interval.high_bytes)
        )
        if interval.num_draws > 1:
            why = "in the same draws; this is the median"
        else:
            why = "by which rows of mapped weights requests read"
        yield fact("  depends on chance", f"{low} to {high} {why}")


def process_parts(found: Simulation) -> Parts:
    """The parts of the process after the last request, with its inputs; empty on a GPU."""
    if not found.parts:
        return ()
    return (*found.parts, (INPUTS, found.timeline[-1].input_bytes))


def _last_maximum(found: Simulation) -> str:
    last = found.last_maximum
    if last is None:
        return "none: what the load reserved serves all requests"
    before = max(
        [found.loaded_bytes, *(each.reserved_peak_bytes for each in found.timeline[:last])]
    )
    served = found.timeline[last]
    added = format_bytes(served.reserved_peak_bytes - before)
    maxima = f"of {len(found.maxima):,}"
    dims = f" ({_dims_text(served.dims)})" if served.dims else ""
    return f"request {last + 1:,}{dims}, {maxima}: {added} more"


def _dims_text(dims: Mapping[str, int]) -> str:
    return ", ".join(f"{shortened(name)}={number:,}" for name, number in dims.items())


def _worst(found: Simulation) -> str:
    worst, tried = found.worst, len(found.orders)
    text = f"{format_bytes(worst.reserved_peak_bytes)}, {worst.name}"
    best = min(found.orders, key=lambda order: order.reserved_peak_bytes)
    if best.reserved_peak_bytes == worst.reserved_peak_bytes:
        return f"none of {tried} orders tried reserves more; that is not a bound"
    least = f"least {format_bytes(best.reserved_peak_bytes)}, {best.name}"
    return f"{text}; {least}; of {tried} orders tried, so it is not a bound"


def _source(found: Simulation) -> str:
    requests = found.requests
    source = shortened(requests.source)
    return source if requests.seed is None else f"drawn from {source} with --seed {requests.seed}"


def _timeline(found: Simulation) -> list[str]:
    """The requests in equal groups, each with what the process takes at its end."""
    whole = found.arena_reserved_peak_bytes
    ends = [stop - 1 for _, stop in buckets(len(found.timeline), _ROWS)]
    indices = sorted({0, *ends})
    rows = [_cells(index, found.timeline[index]) for index in indices]
    lines = aligned([_HEADINGS, *rows], 0).splitlines()
    bars = ["", *(bar(found.timeline[index].reserved_bytes, whole, _BAR) for index in indices)]
    return [f"{line}  {drawn}".rstrip() for line, drawn in zip(lines, bars, strict=True)]


def _cells(index: int, served: ServedRequest) -> tuple[str, ...]:
    sizes = (served.reserved_bytes, served.allocated_peak_bytes, served.process_bytes)
    return (f"{index + 1:,}", *map(format_bytes, sizes))


def _advice(advice: ServingAdvice) -> list[str]:
    """The changes with the least process; the server as it is, and the best that shrinks its arena.

    Shrinkage is what people expect to help, so they read here what it does.
    """
    ranked = advice.ranked
    shrinking = [each for each in ranked if each.options.shrinks_arena]
    kept = (advice.own, *shrinking[:1])
    listed = [each for at, each in enumerate(ranked) if at < _MOST_ADVISED or each in kept]
    cost = [fact("arena shrinkage", _SHRINKAGE)] if shrinking else []
    rows = [
        (
            each.name,
            *map(
                format_bytes,
                (each.process_peak_bytes, each.reserved_peak_bytes, each.reserved_bytes),
            ),
            f"{100 * each.more_flops:+.0f} %" if each.padded else "",
        )
        for each in listed
    ]
    return [*aligned([_ADVISED, *rows], 1).splitlines(), *cost]


def simulation_row(path: str, found: Simulation, advice: ServingAdvice | None) -> JsonDict:
    """The result as a JSON object."""
    serving, options = found.serving, found.serving.options
    return {
        "path": printable(path),
        "status": "ok" if found.is_complete else "partial",
        "error": None,
        "settings": {
            "runtime": found.runtime,
            "graph": next(name for name, level in LEVELS.items() if level == options.level),
            "concurrency": serving.concurrency,
            "sessions": serving.sessions,
            "cores": serving.cores,
            "num_threads": options.num_threads,
            "enable_mem_pattern": options.enable_mem_pattern,
            "enable_mem_reuse": options.enable_mem_reuse,
            "arena_extend_strategy": options.arena_extend_strategy,
            "shares_arena": options.shares_arena,
            "shrinks_arena": options.shrinks_arena,
            "weights": options.weights,
            "malloc_trim": options.trims_heap,
            "malloc_threshold_bytes": options.malloc_threshold_bytes,
            "gpu_mem_limit_bytes": options.gpu_mem_limit_bytes,
        },
        "simulation": _simulation(found),
        "advice": None if advice is None else list(map(_change_row, advice.ranked)),
        "findings": finding_rows(found.findings),
    }


def failed_row(path: str, code: str, message: str) -> JsonDict:
    """The JSON object of a model that could not be simulated."""
    return {
        "path": printable(path),
        "status": "error",
        "error": {"code": code, "message": printable(message)},
        "settings": None,
        "simulation": None,
        "advice": None,
        "findings": [],
    }


def _interval(interval: Interval | None, input_bytes: int = 0) -> JsonDict | None:
    if interval is None:
        return None
    return {
        "low_bytes": interval.low_bytes + input_bytes,
        "median_bytes": interval.median_bytes + input_bytes,
        "high_bytes": interval.high_bytes + input_bytes,
        "num_draws": interval.num_draws,
    }


def _simulation(found: Simulation) -> JsonDict:
    requests, last = found.requests, found.last_maximum
    return {
        "source": printable(requests.source),
        "seed": requests.seed,
        "num_requests": len(requests.rows),
        "num_shapes": len(requests.shapes),
        "arena_loaded_bytes": found.loaded_bytes,
        "arena_reserved_bytes": found.arena_reserved_bytes,
        "arena_reserved_peak_bytes": found.arena_reserved_peak_bytes,
        "arena_reserved_interval": _interval(found.interval),
        "process_interval": _interval(found.process_interval, found.timeline[-1].input_bytes),
        "allocated_peak_bytes": found.allocated_peak_bytes,
        "process_peak_bytes": found.process_peak_bytes,
        "process_most_bytes": found.process_most_bytes,
        "load_peak_bytes": found.load_peak_bytes,
        "process_own_bytes": found.own_bytes,
        "process_parts": [
            {"part": name, "bytes": size_bytes} for name, size_bytes in process_parts(found)
        ],
        "is_bounded": found.is_bounded,
        "num_shapes_in_range": requests.num_in_range,
        "num_shapes_replayed": found.num_replayed,
        "last_maximum": None if last is None else _request_row(last, found.timeline[last]),
        "num_maxima": len(found.maxima),
        **({"ends": {end.value: count for end, count in found.ends.items()}} if found.ends else {}),
        "worst_found_bytes": found.worst.reserved_peak_bytes,
        "worst_order": found.worst.name,
        "orders": list(map(_order_row, found.orders)),
        "timeline": [_request_row(index, each) for index, each in enumerate(found.timeline)],
    }


def _change_row(change: ServingChange) -> JsonDict:
    return {
        "change": printable(change.name),
        "arena_reserved_peak_bytes": change.reserved_peak_bytes,
        "arena_reserved_bytes": change.reserved_bytes,
        "process_peak_bytes": change.process_peak_bytes,
        "more_flops": change.more_flops,
        "python": list(map(printable, change.lines)),
    }


def _order_row(order: Order) -> JsonDict:
    return {"order": order.name, "reserved_peak_bytes": order.reserved_peak_bytes}


def _request_row(index: int, served: ServedRequest) -> JsonDict:
    return {
        "request": index + 1,
        "dims": {printable(name): number for name, number in served.dims.items()},
        "arena_reserved_bytes": served.reserved_bytes,
        "allocated_peak_bytes": served.allocated_peak_bytes,
        "process_bytes": served.process_bytes,
    }

"""A trace for Perfetto and chrome://tracing: nodes are slices, bytes are counters.

Format: "Trace Event Format", Google: complete events (``X``), counters (``C``) and metadata
(``M``). A prediction has no times, so each step takes one microsecond.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.errors import shortened
from onnxmem.export.figures import live_bytes
from onnxmem.program.program import Category
from onnxmem.program.replay import Replay
from onnxmem.runtimes.torch.memory import Phase

_PID: Final = 1
_RUN_TID: Final = 1
_TIDS: Final = {phase: tid for tid, phase in enumerate(Phase, start=1)}

TraceEvent = dict[str, object]


def chrome_trace(analysis: Analysis) -> Iterator[str]:
    """Write the trace of an inference, or of the training step if there is one, as JSON.

    A slice is a node of the main graph at its step; the counter ``memory`` has the bytes that are
    live at that step by category. In a training step each phase is a thread, a slice is the
    consecutive work of one node, and the counter is that of its highest point, so that the peak is
    one of them.
    """
    events = (
        _inference(analysis) if analysis.training is None else _training(analysis.training.replay)
    )
    yield '{"displayTimeUnit": "ms", "traceEvents": [\n'
    separator = ""
    for event in chain([_named("process_name", 0, f"onnxmem {analysis.path}")], events):
        yield separator + _json(event)
        separator = ",\n"
    yield "\n]}\n"


def _inference(analysis: Analysis) -> Iterator[TraceEvent]:
    yield _named("thread_name", _RUN_TID, "run")
    fixed = {"weights": analysis.weight_bytes, "inputs": analysis.inputs_bytes}
    steps = zip(analysis.graph.nodes, live_bytes(analysis), strict=True)
    for step, (node, live) in enumerate(steps):
        yield _slice(node.name, node.op_type, step, _RUN_TID)
        yield from _counter({**fixed, "activations": live}, step)


def _training(replay: Replay) -> Iterator[TraceEvent]:
    for phase, tid in _TIDS.items():
        yield _named("thread_name", tid, phase.value)
    order = {category: number for number, category in enumerate(Category)}
    names = [category.value for category in Category]
    moments = list(replay.moments())
    groups = [order[category] for category in replay.program.categories]
    by_category = replay.live_bytes_by_group(
        groups, [moment.num_events for moment in moments], len(order)
    )
    for step, (moment, *sizes) in enumerate(zip(moments, *by_category, strict=True)):
        yield _slice(moment.node or moment.phase, moment.phase, step, _TIDS[Phase(moment.phase)])
        yield from _counter(dict(zip(names, sizes, strict=True)), step)


def _named(what: str, tid: int, name: str) -> TraceEvent:
    args = {"name": shortened(name)}
    return {"ph": "M", "name": what, "pid": _PID, "tid": tid, "ts": 0, "args": args}


def _slice(name: str, category: str, step: int, tid: int) -> TraceEvent:
    # Commas separate the categories of an event.
    cat = shortened(category).replace(",", "_")
    where = {"pid": _PID, "tid": tid, "ts": step, "dur": 1}
    return {"ph": "X", "name": shortened(name), "cat": cat, **where, "args": {"step": step}}


def _counter(series: Mapping[str, int | None], step: int) -> Iterator[TraceEvent]:
    known = {name: size for name, size in series.items() if size is not None}
    if known:
        yield {"ph": "C", "name": "memory", "pid": _PID, "tid": 0, "ts": step, "args": known}


def _json(event: TraceEvent) -> str:
    """One event; ``<`` is escaped, so that it can be embedded in an HTML page."""
    return json.dumps(event).replace("<", r"\u003c")

"""A trace that Perfetto and chrome://tracing open: bytes as counters, nodes as slices.

Source of the events: "Trace Event Format", Google: complete events (``X``), counters (``C``) and
metadata (``M``). A file has no times: a step takes one microsecond.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.errors import shortened
from onnxmem.export.steps import live_bytes
from onnxmem.runtimes.torch import TrainingMemory
from onnxmem.runtimes.torch.heap import Kind, Phase, StepTrace

_PID: Final = 1
_RUN_TID: Final = 1
_TIDS: Final = {phase: tid for tid, phase in enumerate(Phase, start=1)}

TraceEvent = dict[str, object]


def chrome_trace(analysis: Analysis) -> Iterator[str]:
    """Write a run's trace, or that of a training step where there is one, as JSON.

    A slice is a node of the main graph at its step; the counter ``memory`` has the bytes live at
    that step by kind. In a training step each phase is a thread, a slice is what one node does on
    end, and the counter is of the moment in it when most was alive: the peak is among them.
    """
    events = _run(analysis) if analysis.training is None else _training(analysis.training)
    yield '{"displayTimeUnit": "ms", "traceEvents": [\n'
    separator = ""
    for event in chain([_named("process_name", 0, f"onnxmem {analysis.path}")], events):
        yield separator + _json(event)
        separator = ",\n"
    yield "\n]}\n"


def _run(analysis: Analysis) -> Iterator[TraceEvent]:
    yield _named("thread_name", _RUN_TID, "run")
    held = {"weights": analysis.weight_bytes, "inputs": analysis.inputs_bytes}
    steps = zip(analysis.graph.nodes, live_bytes(analysis), strict=True)
    for step, (node, live) in enumerate(steps):
        yield _slice(node.name, node.op_type, step, _RUN_TID)
        yield from _counter({**held, "activations": live}, step)


def _training(training: TrainingMemory) -> Iterator[TraceEvent]:
    for phase, tid in _TIDS.items():
        yield _named("thread_name", tid, phase.value)
    for step, (phase, node, alive) in enumerate(_slices(training.trace)):
        yield _slice(node or phase.value, phase.value, step, _TIDS[phase])
        yield from _counter(alive, step)


def _slices(trace: StepTrace) -> Iterator[tuple[Phase, str, Mapping[str, int]]]:
    """Each run of events of one node: the most that is alive in it, by kind in bytes."""
    alive = dict.fromkeys(Kind, 0)
    ends = (*tuple(trace.starts.values())[1:], len(trace.log))
    for (phase, start), end in zip(trace.starts.items(), ends, strict=True):
        events = zip(trace.log[start:end], trace.nodes[start:end], strict=True)
        for node, happened in groupby(events, key=lambda event: event[1]):
            most = _most_alive(trace, (each for each, _ in happened), alive)
            yield phase, node, {kind.value: size for kind, size in most.items()}


def _most_alive(trace: StepTrace, log: Iterable[int], alive: dict[Kind, int]) -> Mapping[Kind, int]:
    """Follow events in ``alive``; what it was when its sum was largest, the start included."""
    most, most_bytes = dict(alive), sum(alive.values())
    live_bytes = most_bytes
    for each in log:
        block = trace.blocks[max(each, ~each)]
        change = block.size_bytes if each >= 0 else -block.size_bytes
        alive[block.kind] += change
        live_bytes += change
        if live_bytes > most_bytes:
            most, most_bytes = dict(alive), live_bytes
    return most


def _named(what: str, tid: int, name: str) -> TraceEvent:
    args = {"name": shortened(name)}
    return {"ph": "M", "name": what, "pid": _PID, "tid": tid, "ts": 0, "args": args}


def _slice(name: str, category: str, step: int, tid: int) -> TraceEvent:
    # Commas part the categories of an event.
    cat = shortened(category).replace(",", "_")
    where = {"pid": _PID, "tid": tid, "ts": step, "dur": 1}
    return {"ph": "X", "name": shortened(name), "cat": cat, **where, "args": {"step": step}}


def _counter(series: Mapping[str, int | None], step: int) -> Iterator[TraceEvent]:
    known = {name: size for name, size in series.items() if size is not None}
    if known:
        yield {"ph": "C", "name": "memory", "pid": _PID, "tid": 0, "ts": step, "args": known}


def _json(event: TraceEvent) -> str:
    """One event; no text in it ends an HTML element that it may be pasted into."""
    return json.dumps(event).replace("<", r"\u003c")

"""Traces: Chrome's events held against their format, PyTorch's against its reader."""

import json
import pickle
from itertools import accumulate
from typing import Any

import jsonschema
import pytest
from export.small_exports import analysis_of, exported, hostile_analysis
from models_on_disk import MYSTERY

import onnxmem
from onnxmem.export.torch_snapshot import torch_snapshot
from onnxmem.runtimes.torch.memory import Phase

_INTEGER = {"type": "integer", "minimum": 0}
_COMMON: dict[str, Any] = {
    "name": {"type": "string", "maxLength": 300},
    "ts": _INTEGER,
    "pid": _INTEGER,
    "tid": _INTEGER,
}
EVENT = {
    "type": "object",
    "oneOf": [
        {  # complete events: "Complete Events" of the Trace Event Format
            "properties": {
                **_COMMON,
                "ph": {"const": "X"},
                "cat": {"type": "string", "pattern": "^[^,]+$"},
                "dur": {"type": "integer", "minimum": 1},
                "args": {"type": "object"},
            },
            "required": ["name", "cat", "ph", "ts", "dur", "pid", "tid"],
            "additionalProperties": False,
        },
        {  # "Counter Events": every argument is a series
            "properties": {
                **_COMMON,
                "ph": {"const": "C"},
                "args": {
                    "type": "object",
                    "additionalProperties": {"type": "number"},
                    "minProperties": 1,
                },
            },
            "required": ["name", "ph", "ts", "pid", "args"],
            "additionalProperties": False,
        },
        {  # "Metadata Events"
            "properties": {
                **_COMMON,
                "ph": {"const": "M"},
                "name": {"enum": ["process_name", "thread_name"]},
                "args": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}},
                    "required": ["name"],
                },
            },
            "required": ["name", "ph", "pid", "args"],
            "additionalProperties": False,
        },
    ],
}
TRACE = {
    "type": "object",
    "properties": {
        "traceEvents": {"type": "array", "items": EVENT},
        "displayTimeUnit": {"enum": ["ms", "ns"]},
    },
    "required": ["traceEvents"],
    "additionalProperties": False,
}


def events_of(analysis: onnxmem.Analysis) -> list[dict[str, Any]]:
    document = json.loads(exported(analysis, "chrome"))
    jsonschema.validate(document, TRACE)
    events: list[dict[str, Any]] = document["traceEvents"]
    times = [event["ts"] for event in events]
    assert times == sorted(times)
    return events


def counted(events: list[dict[str, Any]]) -> list[dict[str, int]]:
    return [event["args"] for event in events if event["ph"] == "C"]


def test_the_trace_of_an_inference_has_its_timeline() -> None:
    analysis = analysis_of(batch=5)
    events = events_of(analysis)
    slices = [(event["name"], event["ts"]) for event in events if event["ph"] == "X"]
    assert slices == [(node.name, step) for step, node in enumerate(analysis.graph.nodes)]
    counters = counted(events)
    live = tuple(each["activations"] for each in counters)
    assert live == analysis.activations.live_bytes
    assert max(sum(each.values()) for each in counters) == analysis.total_bytes


def test_the_trace_of_a_step_has_phases_as_threads_and_the_peaks_of_all() -> None:
    analysis = analysis_of(batch=5, train=True)
    training = analysis.training
    assert training is not None
    events = events_of(analysis)
    threads = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    assert list(threads.values()) == [phase.value for phase in Phase]
    peaks = dict.fromkeys(Phase, 0)
    for here, there in zip(events[4::2], events[5::2], strict=True):
        assert (here["ph"], there["ph"], here["ts"]) == ("X", "C", there["ts"])
        phase = Phase(threads[here["tid"]])
        peaks[phase] = max(peaks[phase], sum(there["args"].values()))
    assert peaks == {
        Phase.FORWARD: training.forward_peak_bytes,
        Phase.BACKWARD: training.backward_peak_bytes,
        Phase.OPTIMIZER: training.optimizer_peak_bytes,
    }


def test_unknown_bytes_have_no_series() -> None:
    mystery = '<ir_version: 10, opset_import: ["" : 21, "acme" : 1]> g (x) => (y) {y=acme.M(x)}'
    assert all("activations" not in each for each in counted(events_of(analysis_of(mystery))))
    assert "activations" in counted(events_of(analysis_of(MYSTERY)))[0]


def test_hostile_names_cannot_end_the_script() -> None:
    analysis = hostile_analysis(batch=2, train=True)
    events_of(analysis)
    assert "<" not in exported(analysis, "chrome")
    assert "<" not in exported(hostile_analysis(), "chrome")


def snapshot_of(analysis: onnxmem.Analysis) -> dict[str, Any]:
    found: dict[str, Any] = pickle.loads(b"".join(torch_snapshot(analysis)))  # noqa: S301 - ours
    check(found)
    return found


def check(snapshot: dict[str, Any]) -> None:
    """The layout of torch.cuda._memory_viz, and that blocks do not overlap."""
    for segment in snapshot["segments"]:
        top = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == top
            assert block["size"] >= block["requested_size"]
            assert block["state"] in {"active_allocated", "inactive"}
            top += block["size"]
        assert top == segment["address"] + segment["total_size"]
        active = [b["size"] for b in segment["blocks"] if b["state"] == "active_allocated"]
        assert segment["allocated_size"] == segment["active_size"] == sum(active)
    (trace,) = snapshot["device_traces"]
    assert [event["time_us"] for event in trace] == list(range(len(trace)))
    live: dict[int, int] = {}
    for event in trace:
        assert set(event) == {"action", "addr", "size", "stream", "time_us", "frames"}
        if event["action"] == "alloc":
            assert event["addr"] not in live
            live[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            assert live.pop(event["addr"]) == event["size"]
        for frame in event["frames"]:
            assert set(frame) == {"name", "filename", "line"}
    held = {
        block["address"]: block["requested_size"]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    assert held == live


def peak_bytes(snapshot: dict[str, Any]) -> int:
    signs = {"alloc": 1, "free_completed": -1}
    (trace,) = snapshot["device_traces"]
    changes = [signs.get(event["action"], 0) * int(event["size"]) for event in trace]
    return max(accumulate(changes))


def test_the_snapshot_of_an_inference_is_its_arena() -> None:
    analysis = analysis_of(batch=5)
    snapshot = snapshot_of(analysis)
    assert peak_bytes(snapshot) == analysis.total_bytes
    sizes = [segment["total_size"] for segment in snapshot["segments"]]
    arena = analysis.activations.arena_bytes
    assert sizes == [analysis.weight_bytes, analysis.inputs_bytes, arena]
    names = [
        event["frames"][0]["name"] for event in snapshot["device_traces"][0] if event["frames"]
    ]
    assert "kernel" in names
    assert "image" in names


@pytest.mark.parametrize("expandable_segments", [False, True])
def test_the_snapshot_of_a_step_is_that_of_the_caching_allocator(expandable_segments: bool) -> None:
    analysis = analysis_of(batch=501, train=True, expandable_segments=expandable_segments)
    snapshot = snapshot_of(analysis)
    training, torch = analysis.training, analysis.torch
    assert training is not None
    assert torch is not None
    assert peak_bytes(snapshot) == torch.requested_peak_bytes
    assert peak_bytes(snapshot) >= training.peak_bytes + torch.cublas_workspace_bytes
    # The convolution's workspace is there while it runs.
    sizes = [event["size"] for event in snapshot["device_traces"][0]]
    assert torch.cudnn_workspace_bytes in sizes
    reserved = sum(segment["total_size"] for segment in snapshot["segments"])
    assert 0 < reserved <= torch.reserved_bytes


def test_a_snapshot_omits_unknown_sizes() -> None:
    mystery = '<ir_version: 10, opset_import: ["" : 21, "acme" : 1]> g (x) => (y) {y=acme.M(x)}'
    assert snapshot_of(analysis_of(mystery))["segments"] == []
    hostile = snapshot_of(hostile_analysis())
    names = [frame["name"] for event in hostile["device_traces"][0] for frame in event["frames"]]
    assert all(name.isprintable() and len(name) < 300 for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("train", [False, True])
def test_pytorch_reads_a_snapshot(train: bool) -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    analysis = analysis_of(batch=501, train=train)
    snapshot = snapshot_of(analysis)
    assert f"{len(snapshot['device_traces'][0])} entries" in viz.trace(snapshot)
    assert f"segments: {len(snapshot['segments'])}" in viz.segsum(snapshot)
    assert "MemoryViz.js" in viz.trace_plot(snapshot)
    assert "MemoryViz.js" in viz.segment_plot(snapshot)
    for written in (viz.segments, viz.memory):
        assert "active_allocated" in written(snapshot, format_flamegraph=str)
    segments = snapshot["segments"]
    assert viz.compare(segments, segments, format_flamegraph=str) == ""

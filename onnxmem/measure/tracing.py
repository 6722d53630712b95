"""The child's side: runs under the profiler, which tells what the arena had at each node."""

import gc
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort

from onnxmem.children.running import JSON
from onnxmem.measure.profile import Step, first, of_provider, runs, scratch_by_node
from onnxmem.measure.run_request import RunRequest, read_request
from onnxmem.measure.session import (
    mapped_feeds,
    native_options,
    open_session,
    provider_name,
    run_options,
)
from onnxmem.units import sum_if_known

_MAX_ROWS: Final = 100_000
"""Nodes that are told one by one; a long loop runs more."""
_STATISTICS: Final = "statistics.csv"


def trace_first_run(request: Mapping[str, Any]) -> dict[str, JSON]:
    """The figures of one run with the memory pattern off: every buffer is asked for by itself.

    Keys are fields of ``Measurement``; ``num_steps`` counts the nodes that ran, where it is known,
    and ``first_order`` tells one order of them from another.
    """
    asked = read_request(request)
    native = native_options(asked)
    native.enable_mem_pattern = False
    # A path that is not absolute would be taken from the model's folder.
    statistics = Path(_STATISTICS).absolute()
    native.add_session_config_entry("session.collect_node_memory_stats_to_file", str(statistics))
    every = _profiled(asked, native, num_runs=1)
    steps = every[0] if every else []  # the profile of a very long loop breaks off
    scratch = _scratch(statistics, steps)
    sizes = [step.requested_bytes for step in steps]
    with_scratch = [sum_if_known((step.requested_bytes, scratch(step))) for step in steps]
    base = first(steps).requested_before_bytes if steps else None
    return {
        "onnxruntime_version": ort.__version__,
        "base_bytes": base,
        "requested_peak_bytes": _above(base, sizes),
        "with_scratch_peak_bytes": _above(base, with_scratch),
        "in_use_peak_bytes": _largest(step.in_use_peak_bytes for step in steps),
        "held_bytes": steps[-1].held_bytes if steps else None,
        "nodes": [_row(step, scratch(step)) for step in steps[:_MAX_ROWS]],
        "num_steps": len(steps) if every else None,
        "first_order": _digest(steps),
    }


def trace_steady_runs(request: Mapping[str, Any]) -> dict[str, JSON]:
    """What the arena comes to with the session's own settings, and the block of its pattern."""
    asked = read_request(request)
    # One run more: an arena that shrinks does so after the last node of its run.
    every = _profiled(asked, native_options(asked), num_runs=asked.runs + 1)
    starts = [first(steps) for steps in every if steps]
    if len(starts) != asked.runs + 1:
        return {}
    before, after = (start.requested_before_bytes for start in starts[:2])
    return {
        "held_steady_bytes": starts[-1].held_before_bytes,
        "pattern_block_bytes": None if before is None or after is None else after - before,
        "steady_order": _digest(every[0]),
    }


def _profiled(request: RunRequest, native: ort.SessionOptions, num_runs: int) -> list[list[Step]]:
    """The steps of each run, those of the provider asked for where it ran any."""
    native.enable_profiling = True
    native.profile_file_prefix = "profile"
    feeds = mapped_feeds(request)
    session = open_session(request, native)
    for _ in range(num_runs):
        session.run(None, feeds, run_options(request))
    profile = Path(session.end_profiling())
    del session
    gc.collect()  # the statistics are written at the latest when the session ends
    wanted = provider_name(request.provider)
    return [of_provider(steps, wanted) for steps in runs(profile)]


def _scratch(statistics: Path, steps: Sequence[Step]) -> Callable[[Step], int | None]:
    """Scratch bytes of a step; unknown where onnxruntime wrote no statistics."""
    if not statistics.exists():
        return lambda _: None
    sizes = scratch_by_node(statistics.read_text(encoding="utf-8", errors="replace"), steps)
    return lambda step: sizes.get(step.node, 0)


def _digest(steps: Iterable[Step]) -> str:
    names = "\0".join(step.node for step in steps)
    return hashlib.sha256(names.encode(errors="replace")).hexdigest()


def _above(base: int | None, sizes: Iterable[int | None]) -> int | None:
    largest = _largest(sizes)
    return None if base is None or largest is None else largest - base


def _largest(sizes: Iterable[int | None]) -> int | None:
    """The largest of sizes of which every one is known."""
    every = list(sizes)
    known = [size for size in every if size is not None]
    return max(known, default=None) if len(known) == len(every) else None


def _row(step: Step, scratch_bytes: int | None) -> list[JSON]:
    """A node as ``Measurement`` reads it."""
    return [
        *(step.node, step.op_type, step.provider, step.output_shapes),
        *(step.requested_bytes, step.in_use_bytes, step.in_use_peak_bytes, step.held_bytes),
        scratch_bytes,
    ]

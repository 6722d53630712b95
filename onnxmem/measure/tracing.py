"""The child's side: runs under onnxruntime's profiler, and what its records say of each node.

The profile (``enable_profiling``) has an event per node when its kernel ends: outputs and inputs
are live then, and the kernel's scratch is gone. Nodes of a subgraph have events of their own, ahead
of that of the node that runs it, again at every iteration of a loop. The scratch is in the
statistics (``session.collect_node_memory_stats_to_file``): the largest sum of a node's blocks over
its runs (``onnxruntime/core/framework/resource_accountant.cc``, ``NodeStatsRecorder``).

The events have memory fields since onnxruntime 1.28, where a session has an arena. onnxruntime is
imported where a run begins: reading its records needs none.
"""

import gc
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onnxmem.children.running import JSON
from onnxmem.measure.run_request import RunRequest, read_request
from onnxmem.units import sum_if_known

if TYPE_CHECKING:
    import onnxruntime as ort

_EVENT: Final = "_kernel_time"
_RUN: Final = "model_run"
_MAX_ROWS: Final = 100_000
"""Nodes that are reported one by one; a long loop runs more."""
_STATISTICS: Final = "statistics.csv"


def trace_first_run(request: Mapping[str, Any]) -> dict[str, JSON]:
    """The figures of one run with the memory pattern off: every buffer is requested by itself.

    Keys are fields of ``Measurement``; ``num_steps`` counts the nodes that ran, where it is known,
    and ``first_order`` tells one order of them from another.
    """
    import onnxruntime as ort

    from onnxmem.measure.process_run import native_options

    parsed = read_request(request)
    native = native_options(parsed)
    native.enable_mem_pattern = False
    # A path that is not absolute would be taken from the model's folder.
    statistics = Path(_STATISTICS).absolute()
    native.add_session_config_entry("session.collect_node_memory_stats_to_file", str(statistics))
    every = _profiled(parsed, native, num_runs=1)
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
    """Steady bytes of the arena with the session's own settings, and its memory-pattern buffer."""
    from onnxmem.measure.process_run import native_options

    parsed = read_request(request)
    # One run more: an arena that shrinks does so after the last node of its run.
    every = _profiled(parsed, native_options(parsed), num_runs=parsed.runs + 1)
    starts = [first(steps) for steps in every if steps]
    if len(starts) != parsed.runs + 1:
        return {}
    before, after = (start.requested_before_bytes for start in starts[:2])
    return {
        "held_steady_bytes": starts[-1].held_before_bytes,
        "pattern_block_bytes": None if before is None or after is None else after - before,
        "steady_order": _digest(every[0]),
    }


@dataclass(frozen=True, slots=True)
class Step:
    """A node when it ended, once for each time that it ran; sizes are those of the arena."""

    node: str
    op_type: str
    provider: str
    started: int
    """Microseconds since the profile began."""
    output_shapes: tuple[tuple[int, ...], ...]
    requested_bytes: int | None
    requested_change_bytes: int | None
    in_use_bytes: int | None
    in_use_peak_bytes: int | None
    held_bytes: int | None
    held_change_bytes: int | None

    @property
    def requested_before_bytes(self) -> int | None:
        """Requested when the node began."""
        return _difference(self.requested_bytes, self.requested_change_bytes)

    @property
    def held_before_bytes(self) -> int | None:
        """Reserved by the arena when the node began."""
        return _difference(self.held_bytes, self.held_change_bytes)


def runs(path: Path) -> list[list[Step]]:
    """The steps of each whole run of a profile, in the order in which they ended."""
    found: list[list[Step]] = [[]]
    for event in _events(path):
        name = str(event.get("name"))
        if name == _RUN:  # written when the run ended
            found.append([])
        elif event.get("cat") == "Node" and name.endswith(_EVENT):
            found[-1].append(_step(name.removesuffix(_EVENT), event))
    return found[:-1]


def first(steps: Iterable[Step]) -> Step:
    """The step that began first: a node with a body begins ahead of the body and ends after it."""
    return min(reversed(list(steps)), key=lambda step: step.started)


def of_provider(steps: list[Step], provider: str) -> list[Step]:
    """The steps that ran on one provider, whose arena they describe; all where it ran none."""
    return [step for step in steps if step.provider == provider] or steps


def scratch_by_node(statistics: str, steps: Iterable[Step]) -> Mapping[str, int]:
    """Scratch bytes by the node's name in the profile.

    A row's key is the node's name, or its operator where it has none, an underscore and a hash of
    the names that it reads and writes (``IResourceAccountant::MakeUniqueNodeName``). A node without
    a name is ``Conv_7`` in the profile, where 7 is its index: such nodes, and those that share a
    name, get the largest figure of their key, an upper bound.
    """
    largest: dict[str, int] = {}
    for line in statistics.splitlines()[1:]:
        key, *sizes = line.rsplit(",", 4)  # a name may hold commas
        if len(sizes) == 4 and sizes[-1].isdigit():  # noqa: PLR2004 - the columns after the key
            name = key.rpartition("_")[0]
            largest[name] = max(largest.get(name, 0), int(sizes[-1]))
    keys = {
        step.node: step.op_type if step.node not in largest and is_nameless(step) else step.node
        for step in steps
    }
    return {node: largest[key] for node, key in keys.items() if key in largest}


def is_nameless(step: Step) -> bool:
    """Whether a node may have no name, so that the profile calls it by operator and index."""
    kind, _, index = step.node.rpartition("_")
    return kind == step.op_type and index.isdigit()


def _events(path: Path) -> Iterator[Mapping[str, object]]:
    """Read the trace line by line, an event a line: the profile of a long loop is large."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            text = line.strip().removesuffix(",")
            if text.startswith("{"):
                event = json.loads(text)
                if isinstance(event, dict):
                    yield event


def _step(node: str, event: Mapping[str, object]) -> Step:
    fields = event.get("args")
    args: Mapping[str, object] = fields if isinstance(fields, dict) else {}
    return Step(
        node=node,
        op_type=str(args.get("op_name")),
        provider=str(args.get("provider")),
        started=int(str(event["ts"])),
        output_shapes=_shapes(args.get("output_type_shape")),
        requested_bytes=_size(args, "mem_bytes_requested_in_use"),
        requested_change_bytes=_size(args, "mem_requested_in_use_delta"),
        in_use_bytes=_size(args, "mem_bytes_in_use"),
        in_use_peak_bytes=_size(args, "mem_in_use_peak"),
        held_bytes=_size(args, "mem_arena_held"),
        held_change_bytes=_size(args, "mem_arena_held_delta"),
    )


def _size(args: Mapping[str, object], key: str) -> int | None:
    return int(str(args[key])) if key in args else None


def _shapes(typed: object) -> tuple[tuple[int, ...], ...]:
    """Read ``[{"float": [1, 64]}, ...]``."""
    entries: Sequence[object] = typed if isinstance(typed, list) else []
    shapes = [shape for entry in entries if isinstance(entry, dict) for shape in entry.values()]
    return tuple(tuple(int(dim) for dim in shape) for shape in shapes if isinstance(shape, list))


def _difference(whole: int | None, part: int | None) -> int | None:
    return None if whole is None or part is None else whole - part


def _profiled(request: RunRequest, native: "ort.SessionOptions", num_runs: int) -> list[list[Step]]:
    """The steps of each run, those of the requested provider where it ran any."""
    from onnxmem.measure.process_run import (
        mapped_feeds,
        open_session,
        provider_name,
        run_options,
    )

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

"""Runs in the child: inferences under onnxruntime's profiler, and its records of each node.

The profile (``enable_profiling``) has one event per node, at the end of its kernel: outputs and
inputs are live then, and the kernel's scratch is freed. Nodes of a subgraph have their own events,
before that of the node that runs the subgraph, and once per iteration of a loop. The scratch is in
the statistics file (``session.collect_node_memory_stats_to_file``): the largest sum of a node's
blocks over its runs (``onnxruntime/core/framework/resource_accountant.cc``, ``NodeStatsRecorder``).

The events have memory fields since onnxruntime 1.28, if the session has an arena. onnxruntime is
imported only by the functions that run a session, for reading its records does not need it.
"""

import gc
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onnxmem.children.running import JSON
from onnxmem.measuring.run_request import RunRequest, read_request
from onnxmem.units import sum_if_known

if TYPE_CHECKING:
    import onnxruntime as ort

_EVENT: Final = "_kernel_time"
_RUN: Final = "model_run"
_MAX_ROWS: Final = 100_000
"""Nodes reported individually; a long loop runs more."""
_STATISTICS: Final = "statistics.csv"


def trace_first_run(request: Mapping[str, Any]) -> dict[str, JSON]:
    """The figures of one run with the memory pattern off, so that each buffer is a request.

    The keys are fields of ``Measurement``, and ``num_steps``, the number of nodes that ran, if it
    is known, and ``first_order``, a digest of their order.
    """
    import onnxruntime as ort

    from onnxmem.measuring.process_run import native_options

    parsed = read_request(request)
    native = native_options(parsed)
    native.enable_mem_pattern = False
    # onnxruntime resolves a relative path against the model's folder.
    statistics = Path(_STATISTICS).absolute()
    native.add_session_config_entry("session.collect_node_memory_stats_to_file", str(statistics))
    # One run: with the pattern off, any later one would be the same.
    every = _profiled(parsed, native, num_runs=1)
    steps = every[0] if every else []  # the profile of a very long loop is truncated
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
        "held_bytes": steps[-1].reserved_bytes if steps else None,
        "nodes": [_row(step, scratch(step)) for step in steps[:_MAX_ROWS]],
        "num_steps": len(steps) if every else None,
        "first_order": _digest(steps),
    }


def trace_steady_runs(request: Mapping[str, Any]) -> dict[str, JSON]:
    """Arena reserved in steady state with the session's own settings, and the pattern buffer."""
    import onnxruntime as ort

    from onnxmem.measuring.process_run import native_options
    from onnxmem.measuring.served_run import VERBOSE, arena_log

    parsed = read_request(request)
    num_runs = parsed.runs + 1
    logged: list[int] = []
    if parsed.options.shrinks_arena and parsed.provider == "cpu":
        # An arena shrinks after the last node of a run, and takes the memory-pattern buffer of the
        # next run before its first node: no event of the profile lies between. The log does.
        ort.set_default_logger_severity(VERBOSE)
        with arena_log(1) as arenas:

            def read() -> None:
                arenas.read()
                logged.append(arenas.reserved_bytes)

            every = _profiled(parsed, native_options(parsed), num_runs, read)
    else:
        every = _profiled(parsed, native_options(parsed), num_runs)
    starts = [first(steps) for steps in every if steps]
    if len(starts) != num_runs:
        return {}
    before, after = (start.requested_before_bytes for start in starts[:2])
    steady_bytes = logged[-2] if logged else starts[-1].reserved_before_bytes
    return {
        "held_steady_bytes": steady_bytes,
        "pattern_block_bytes": None if before is None or after is None else after - before,
        "steady_order": _digest(every[0]),
    }


@dataclass(frozen=True, slots=True)
class Step:
    """One execution of a node, with the arena's bytes at its end."""

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
    reserved_bytes: int | None
    reserved_change_bytes: int | None

    @property
    def requested_before_bytes(self) -> int | None:
        """Requested bytes when the node began."""
        return _difference(self.requested_bytes, self.requested_change_bytes)

    @property
    def reserved_before_bytes(self) -> int | None:
        """Arena reserved when the node began."""
        return _difference(self.reserved_bytes, self.reserved_change_bytes)


def runs(path: Path) -> list[list[Step]]:
    """The steps of each complete run of a profile, in the order in which they ended."""
    found: list[list[Step]] = [[]]
    for event in _events(path):
        name = str(event.get("name"))
        if name == _RUN:  # written at the end of the run
            found.append([])
        elif event.get("cat") == "Node" and name.endswith(_EVENT):
            found[-1].append(_step(name.removesuffix(_EVENT), event))
    return found[:-1]


def first(steps: Iterable[Step]) -> Step:
    """The step that began first: a node with a body begins before the body and ends after it."""
    return min(reversed(list(steps)), key=lambda step: step.started)


def of_provider(steps: list[Step], provider: str) -> list[Step]:
    """The steps that ran on one provider, whose arena they describe; all if there are none."""
    return [step for step in steps if step.provider == provider] or steps


def scratch_by_node(statistics: str, steps: Iterable[Step]) -> Mapping[str, int]:
    """Scratch bytes by the node's name in the profile.

    The key of a row is the node's name, or its operator if it has none, an underscore and a hash of
    its input and output names (``IResourceAccountant::MakeUniqueNodeName``). The profile calls a
    node without a name ``Conv_7``, with its index: such nodes, and those of equal names, get the
    largest figure of their key, an upper bound.
    """
    largest: dict[str, int] = {}
    for line in statistics.splitlines()[1:]:
        key, *sizes = line.rsplit(",", 4)  # a name may contain commas
        if len(sizes) == 4 and sizes[-1].isdigit():  # noqa: PLR2004 - the columns after the key
            name = key.rpartition("_")[0]
            largest[name] = max(largest.get(name, 0), int(sizes[-1]))
    keys = {
        step.node: step.op_type if step.node not in largest and is_nameless(step) else step.node
        for step in steps
    }
    return {node: largest[key] for node, key in keys.items() if key in largest}


def is_nameless(step: Step) -> bool:
    """Whether a node may have no name: the profile then shows its operator and index."""
    kind, _, index = step.node.rpartition("_")
    return kind == step.op_type and index.isdigit()


def _events(path: Path) -> Iterator[Mapping[str, object]]:
    """Read the profile line by line, one event per line: that of a long loop is large."""
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
        reserved_bytes=_size(args, "mem_arena_held"),
        reserved_change_bytes=_size(args, "mem_arena_held_delta"),
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


def _profiled(
    request: RunRequest,
    native: "ort.SessionOptions",
    num_runs: int,
    ended: Callable[[], None] = lambda: None,
) -> list[list[Step]]:
    """The steps of each run on the requested provider, or all if it ran none.

    ``ended`` is called at the end of each run, when its outputs are released.
    """
    from onnxmem.measuring.process_run import (
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
        ended()
    profile = Path(session.end_profiling())
    del session
    gc.collect()  # the end of the session writes the statistics
    wanted = provider_name(request.provider)
    return [of_provider(steps, wanted) for steps in runs(profile)]


def _scratch(statistics: Path, steps: Sequence[Step]) -> Callable[[Step], int | None]:
    """Scratch bytes by step; unknown if onnxruntime wrote no statistics."""
    if not statistics.exists():
        return lambda _: None
    sizes = scratch_by_node(statistics.read_text(encoding="utf-8", errors="replace"), steps)
    return lambda step: sizes.get(step.node, 0)


def _digest(steps: Iterable[Step]) -> str:
    # A digest, because the names of all steps of a long loop would be a large reply.
    names = "\0".join(step.node for step in steps)
    return hashlib.sha256(names.encode(errors="replace")).hexdigest()


def _above(base: int | None, sizes: Iterable[int | None]) -> int | None:
    largest = _largest(sizes)
    return None if base is None or largest is None else largest - base


def _largest(sizes: Iterable[int | None]) -> int | None:
    """The largest size; ``None`` if any is unknown."""
    every = list(sizes)
    known = [size for size in every if size is not None]
    return max(known, default=None) if len(known) == len(every) else None


def _row(step: Step, scratch_bytes: int | None) -> list[JSON]:
    """A node as a JSON row for ``read_measurement``."""
    return [
        *(step.node, step.op_type, step.provider, step.output_shapes),
        *(step.requested_bytes, step.in_use_bytes, step.in_use_peak_bytes, step.reserved_bytes),
        scratch_bytes,
    ]

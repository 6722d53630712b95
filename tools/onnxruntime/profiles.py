"""What onnxruntime's own records say of a run: the profile's memory fields and the statistics file.

The profile has one event per node, when its kernel ends: outputs and inputs are live then, and the
kernel's scratch is gone. Nodes of a subgraph have events of their own, ahead of the event of the
node that runs it, again at every trip of a loop. The scratch comes from the statistics file, which
has the largest sum of a node's scratch blocks over its runs.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_EVENT = "_kernel_time"
_RUN = "model_run"
Event = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Step:
    """A node when it ended: bytes of onnxruntime's arena."""

    node: str
    op_type: str
    started: int
    requested_bytes: int
    requested_change_bytes: int
    in_use_bytes: int
    in_use_peak_bytes: int
    held_bytes: int

    @property
    def before_bytes(self) -> int:
        """Requested when the node began."""
        return self.requested_bytes - self.requested_change_bytes


@dataclass(frozen=True, slots=True)
class Traced:
    """Figures of one setting, in bytes; the peaks and the block are above the base."""

    base_bytes: int
    requested_peak_bytes: int
    with_scratch_peak_bytes: int
    pattern_block_bytes: int
    in_use_peak_bytes: int
    held_bytes: int
    held_steady_bytes: int
    nodes: tuple[tuple[str, str], ...]
    """Name and operator of each step."""
    requested: tuple[int, ...]
    """Requested at the end of each step, base included."""
    in_use: tuple[int, ...]
    held: tuple[tuple[int, int], ...]
    """(step, held from there on), where it changes."""
    scratch: tuple[tuple[int, int], ...]
    """(step, sum of its scratch blocks), where there is any."""


def traced(folder: Path) -> Traced:
    """The figures of the records in a setting's folder."""
    off, on = (runs(folder / f"profile_{tag}.json") for tag in ("off", "on"))
    steps = off[0]
    base = _first(steps).before_bytes
    scratch = scratch_by_node(folder / "stats.csv", {step.node for step in steps})
    taken = [(index, scratch.get(step.node, 0)) for index, step in enumerate(steps)]
    with_scratch = (steps[index].requested_bytes + size for index, size in taken)
    held = [(index, step.held_bytes) for index, step in enumerate(steps)]
    return Traced(
        base_bytes=base,
        requested_peak_bytes=max(step.requested_bytes for step in steps) - base,
        with_scratch_peak_bytes=max(with_scratch) - base,
        pattern_block_bytes=_first(on[1]).before_bytes - _first(on[0]).before_bytes,
        in_use_peak_bytes=max(step.in_use_peak_bytes for step in steps),
        held_bytes=steps[-1].held_bytes,
        held_steady_bytes=on[-1][-1].held_bytes,
        nodes=tuple((step.node, step.op_type) for step in steps),
        requested=tuple(step.requested_bytes for step in steps),
        in_use=tuple(step.in_use_bytes for step in steps),
        footprint=(held[0], *(new for old, new in pairwise(held) if old[1] != new[1])),
        scratch=tuple((index, size) for index, size in taken if size),
    )


def runs(path: Path) -> list[list[Step]]:
    """The steps of each run of a profiled session, in the order in which they ended."""
    return [[_step(event) for event in run if _is_step(event)] for run in _events_by_run(path)]


def first_run(path: Path) -> list[Event]:
    """The events of the steps of a profile's first run, and the run's own."""
    events = _events_by_run(path)[0]
    return [event for event in events if _is_step(event) or event["name"] == _RUN]


def _events_by_run(path: Path) -> list[list[Event]]:
    found: list[list[Event]] = [[]]
    for event in json.loads(path.read_text()):
        found[-1].append(event)
        if event["name"] == _RUN:  # written when the run ended
            found.append([])
    return found[:-1]


def _is_step(event: Event) -> bool:
    return event["cat"] == "Node" and str(event["name"]).endswith(_EVENT)


def scratch_by_node(path: Path, nodes: Iterable[str]) -> Mapping[str, int]:
    """Scratch bytes by node name; of nodes that share a name, the largest.

    A row's key is the node's name, an underscore and a hash.
    """
    known = set(nodes)
    found: dict[str, int] = defaultdict(int)
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            name = row["#name"].rpartition("_")[0]
            if name in known:
                found[name] = max(found[name], int(row["total_temp_allocations"]))
    return found


def _step(event: Event) -> Step:
    fields = event["args"]
    assert isinstance(fields, dict)  # noqa: S101 - the format of a trace event
    return Step(
        node=str(event["name"]).removesuffix(_EVENT),
        op_type=fields["op_name"],
        started=int(str(event["ts"])),
        requested_bytes=int(fields["mem_bytes_requested_in_use"]),
        requested_change_bytes=int(fields["mem_requested_in_use_delta"]),
        in_use_bytes=int(fields["mem_bytes_in_use"]),
        in_use_peak_bytes=int(fields["mem_in_use_peak"]),
        held_bytes=int(fields["mem_arena_held"]),
    )


def _first(steps: Iterable[Step]) -> Step:
    """The step that began first: a node with a body begins ahead of the body and ends after it."""
    return min(reversed(list(steps)), key=lambda step: step.started)

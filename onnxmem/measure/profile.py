"""What onnxruntime's own records say of a run: the profile's memory fields, and the statistics.

The profile (``enable_profiling``) has an event per node when its kernel ends: outputs and inputs
are live then, and the kernel's scratch is gone. Nodes of a subgraph have events of their own, ahead
of that of the node that runs it, again at every trip of a loop. The scratch is in the statistics
(``session.collect_node_memory_stats_to_file``): the largest sum of a node's blocks over its runs
(``onnxruntime/core/framework/resource_accountant.cc``, ``NodeStatsRecorder``).

The events have memory fields since onnxruntime 1.28, where a session has an arena.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_EVENT: Final = "_kernel_time"
_RUN: Final = "model_run"


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
        """Held when the node began."""
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
    """The steps that ran on one provider, whose arena they tell of; all where it ran none."""
    return [step for step in steps if step.provider == provider] or steps


def scratch_by_node(statistics: str, steps: Iterable[Step]) -> Mapping[str, int]:
    """Scratch bytes by the node's name in the profile.

    A row's key is the node's name, or its operator where it has none, an underscore and a hash of
    the names that it reads and writes (``IResourceAccountant::MakeUniqueNodeName``). A node without
    a name is ``Conv_7`` in the profile, where 7 is its place: such nodes, and those that share a
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
    """Whether a node may have no name, so that the profile calls it by operator and place."""
    kind, _, place = step.node.rpartition("_")
    return kind == step.op_type and place.isdigit()


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

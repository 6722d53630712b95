"""What any runtime takes, read from the replay of its program."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from onnxmem.errors import shortened
from onnxmem.report.sections.section import Line, Section

if TYPE_CHECKING:
    from onnxmem.program import Peak, Replay
    from onnxmem.runtimes.base import RuntimeReplay

MOST_LIVE: Final = 5
"""Allocations alive at a peak that are listed, the largest."""


def replay_sections(replays: "Sequence[RuntimeReplay]") -> Iterator[Section]:
    """A section for each runtime that was given as an object."""
    for number, each in enumerate(replays):
        path, peak = f"replays.{number}", each.replay.peak
        at = f", at {shortened(peak.node)}" if peak.node else ""
        yield Section(
            key=f"replay-{number}",
            title=shortened(each.name).upper(),
            lines=(
                Line(
                    "total",
                    each.total_bytes,
                    "with overheads",
                    key=f"{path}.total_bytes",
                    is_total=True,
                ),
                *_reserved(each, path),
                Line(
                    "peak",
                    peak.size_bytes,
                    f"allocations alive at once{at}",
                    key=f"{path}.peak_bytes",
                ),
                Line(
                    "overheads",
                    each.run.overheads.outside_bytes,
                    "context and process",
                    key=f"{path}.outside_bytes",
                ),
                *live_at(each.replay, peak),
            ),
        )


def _reserved(each: "RuntimeReplay", path: str) -> Iterator[Line]:
    """What the allocator reserves, or what its workspaces take where it has none."""
    reserved, workspaces = each.replay.reserved, each.run.overheads.served_bytes
    if reserved is not None:
        key = f"{path}.reserved_bytes"
        yield Line("reserved", reserved.peak_bytes, "by its allocator", key=key)
    elif any(workspaces):
        yield Line("workspaces", sum(workspaces), "of libraries")


def live_at(replay: "Replay", peak: "Peak") -> Iterator[Line]:
    """The largest allocations that are alive at a peak."""
    live = [each for each in replay.live_set(peak) if each.size_bytes]
    if live:
        yield Line("alive at the peak", text=f"{len(live):,} allocations, the largest:")
    for each in live[:MOST_LIVE]:
        yield Line(f"{shortened(each.label)}", each.size_bytes, each.category.value, depth=2)

"""A recorded run beside its prediction: text, JSON (schema ``onnxmem.recorded_run`` 1.0)."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from onnxmem.analysis.json_rows import JsonDict, document, document_text
from onnxmem.decisions.recorded_run import (
    AllocatorReplay,
    Parting,
    RecordedAllocation,
    RecordedRun,
)
from onnxmem.errors import printable, shortened
from onnxmem.program.program import Allocation
from onnxmem.report.text import fact, finding_rows, finding_text, percent, prose
from onnxmem.units import format_bytes, plural

_SCHEMA: Final = "onnxmem.recorded_run"
_SCHEMA_VERSION: Final = "1.0"
_MOST_ROWS: Final = 8
"""Allocations that the text lists; JSON has all."""
_LABEL: Final = 20
_NOT_RECORDED: Final = "no call stack"


def render_recorded(run: RecordedRun) -> str:
    """Peaks, where the two part, what has no counterpart, the allocator; ends with a newline."""
    lines = [
        *_sides(run),
        "",
        *_figures(run),
        "",
        *_peaks(run),
        *_parting(run),
        "",
        *_counterparts(run),
        "",
        *_allocator(run.allocator),
        *(
            line
            for each in run.analysis.findings
            for line in prose("note on the prediction: ", finding_text(each))
        ),
    ]
    return "\n".join(lines) + "\n"


def recorded_as_json(run: RecordedRun) -> str:
    """Everything, in ASCII: no name can reach a terminal as a command."""
    recorded, predicted, pairs = run.recorded, run.predicted, run.counterparts
    content: JsonDict = {
        "model": printable(run.analysis.path),
        "status": run.analysis.status,
        "snapshot": {
            "path": printable(run.snapshot.path),
            "device": run.snapshot.device,
            "num_devices": run.snapshot.num_devices,
            "num_events": len(run.snapshot.events),
            "num_allocations": run.num_allocations,
        },
        "predicted": {
            "requested_peak_bytes": predicted.requested_bytes,
            "allocated_peak_bytes": predicted.allocated_bytes,
            "reserved_peak_bytes": predicted.reserved_bytes,
            "peak_phase": predicted.phase or None,
            "peak_node": predicted.node and printable(predicted.node),
        },
        "recorded": {
            "requested_peak_bytes": recorded.requested_bytes,
            "allocated_peak_bytes": recorded.allocated_bytes,
            "reserved_peak_bytes": recorded.reserved_bytes,
            "peak_allocation": recorded.num_allocations,
            "peak_place": recorded.place,
        },
        "parting": None if run.parting is None else _parting_row(run.parting),
        "categories": [
            {
                "kind": each.category.value,
                "bytes": each.size_bytes,
                "matched_bytes": each.matched_bytes,
            }
            for each in pairs.categories
        ],
        "only_predicted": [_predicted_row(each) for each in pairs.only_predicted],
        "only_recorded": [_recorded_row(each) for each in pairs.only_recorded],
        "allocator": None if run.allocator is None else _allocator_row(run.allocator),
        "findings": finding_rows(run.analysis.findings),
    }
    return document_text(document(_SCHEMA, _SCHEMA_VERSION, content))


def _sides(run: RecordedRun) -> Iterator[str]:
    settings, step = run.analysis.settings, run.analysis.training
    batch = "" if settings.batch is None else f"  batch {settings.batch:,}"
    recipe = "  inference"
    if step is not None:
        recipe = f"  training step, {step.recipe.optimizer} {step.recipe.precision}"
    yield f"prediction  {shortened(run.analysis.path)}{batch}{recipe}"
    snapshot = run.snapshot
    device = f", device {snapshot.device} of {snapshot.num_devices}"
    what = f"{plural(run.num_allocations, 'allocation')} recorded"
    if not run.num_allocations:
        what = "no events: blocks at the end only; record with _record_memory_history()"
    of_several = device if snapshot.num_devices > 1 else ""
    yield from prose(f"run         {shortened(snapshot.path)}  ", what + of_several)


def _figures(run: RecordedRun) -> Iterator[str]:
    predicted, recorded = run.predicted, run.recorded
    yield f"{'':<{_LABEL}}{'prediction':>12}{'run':>12}{'prediction - run':>25}"
    for label, ours, theirs in (
        ("requested, peak", predicted.requested_bytes, recorded.requested_bytes),
        ("allocated, peak", predicted.allocated_bytes, recorded.allocated_bytes),
        ("reserved, peak", predicted.reserved_bytes, recorded.reserved_bytes),
    ):
        sizes = f"{format_bytes(ours):>12}{format_bytes(theirs):>12}"
        if ours is None:
            yield f"{label:<{_LABEL}}{sizes}"
            continue
        share = percent(100 * (ours / theirs - 1)) if theirs else ""
        yield f"{label:<{_LABEL}}{sizes}{f'{ours - theirs:+,} B':>25}{share:>11}".rstrip()


def _peaks(run: RecordedRun) -> Iterator[str]:
    predicted, recorded = run.predicted, run.recorded
    where = ", ".join(filter(None, (predicted.phase, predicted.node and shortened(predicted.node))))
    yield fact("peak of the prediction", where or "no node", label_width=_LABEL + 4)
    at = f"allocation {recorded.num_allocations:,} of {run.num_allocations:,}"
    if not recorded.num_allocations:
        at = "before the first recorded allocation" if run.num_allocations else "not recorded"
    place = f", {recorded.place}" if recorded.place else ""
    yield fact("peak of the run", at + place, label_width=_LABEL + 4)


def _parting(run: RecordedRun) -> Iterator[str]:
    parting = run.parting
    if parting is None:
        return
    text = f"{parting.num_same:,} of {parting.num_predicted:,} predicted allocations in order"
    if parting.num_same:
        text += f", from allocation {parting.begins_at + 1:,} of the run on"
    if parting.predicted is not None:
        ours = f"{format_bytes(parting.predicted.size_bytes)} {shortened(parting.predicted.label)}"
        ours += f" at {shortened(parting.node)}" if parting.node else ""
        theirs = "makes no more"
        if parting.recorded is not None:
            theirs = f"allocates {_recorded_text(parting.recorded)}"
        text += (
            f"; then {ours} is predicted, and the run {theirs}"
            if parting.num_same
            else f": the run has none of the size of the first, {ours}"
        )
    yield fact("the same", text, label_width=_LABEL + 4)


def _counterparts(run: RecordedRun) -> Iterator[str]:
    pairs = run.counterparts
    yield f"At the peaks, by size{'prediction':>23}{'in the run too':>18}{'without':>13}"
    for each in pairs.categories:
        sizes = (each.size_bytes, each.matched_bytes, each.size_bytes - each.matched_bytes)
        texts = [format_bytes(size) if size else "0 B" for size in sizes]
        yield f"  {each.category.value:<30}{texts[0]:>12}{texts[1]:>18}{texts[2]:>13}"
    only_run = sum(each.size_bytes for each in pairs.only_recorded)
    yield f"  {'only in the run':<30}{'':>12}{'':>18}{format_bytes(only_run):>13}"
    ours = Counter(
        (x.size_bytes, f"{shortened(x.label)} ({x.category})") for x in pairs.only_predicted
    )
    theirs = Counter((x.size_bytes, x.place or _NOT_RECORDED) for x in pairs.only_recorded)
    yield from _largest("Only in the prediction", ours)
    yield from _largest("Only in the run", theirs)


def _largest(title: str, counts: Counter[tuple[int, str]]) -> Iterator[str]:
    """Allocations of equal size and name together, the largest sum first."""
    if not counts:
        return
    yield title
    ordered = sorted(counts.items(), key=lambda pair: -pair[0][0] * pair[1])
    for (size_bytes, name), count in ordered[:_MOST_ROWS]:
        times = f"{count:,} x " if count > 1 else ""
        yield from prose(f"{f'{times}{format_bytes(size_bytes)}':>22}  ", name)
    rest = ordered[_MOST_ROWS:]
    if rest:
        rest_bytes = sum(size_bytes * count for (size_bytes, _), count in rest)
        num_others = sum(count for _, count in rest)
        yield f"{format_bytes(rest_bytes):>22}  in {plural(num_others, 'other')}"


def _allocator(replay: AllocatorReplay | None) -> Iterator[str]:
    start = "Allocator of onnxmem, fed with the run's requests  "
    if replay is None:
        yield from prose(start, "not replayed: the snapshot has no events")
        return
    yield start.rstrip()
    same = (
        f"{replay.num_same:,} of {replay.num_allocations:,} requests reserve as much as in the run"
    )
    yield fact("  requests", same)
    first = replay.first_difference
    if first is not None:
        yield fact(
            "  first difference",
            f"allocation {first.num_allocations + 1:,}, {_recorded_text(first.allocation)}: "
            f"the run reserves {first.recorded_bytes:,} B, the replay {first.replayed_bytes:,} B",
        )
    peaks = (replay.reserved_peak_bytes, replay.recorded_peak_bytes)
    yield fact("  reserved, peak", "{} replayed, {} in the run".format(*map(format_bytes, peaks)))
    is_same = replay.segments == replay.recorded_segments
    segments = "the same" if is_same else "not the same"
    yield fact("  segments at the end", f"{segments}: {_segments(replay)}")
    if not replay.is_exact:
        reason = "the run was not recorded from its first allocation on"
        if replay.left_out:
            reason = f"not emulated: {', '.join(replay.left_out)}"
        yield fact("  no proof", f"{reason}, so that the two may differ")


def _segments(replay: AllocatorReplay) -> str:
    ours, theirs = replay.segments, replay.recorded_segments
    if ours == theirs:
        return f"{plural(len(ours), 'segment')} of {format_bytes(sum(ours))}"
    texts = (
        f"{plural(len(each), 'segment')} of {format_bytes(sum(each))}" for each in (ours, theirs)
    )
    return "{} replayed, {} in the run".format(*texts)


def _recorded_text(allocation: RecordedAllocation) -> str:
    place = f" in {allocation.place}" if allocation.place else ""
    return f"{format_bytes(allocation.size_bytes)}{place}"


def _parting_row(parting: Parting) -> JsonDict:
    return {
        "same_allocations": parting.num_same,
        "predicted_allocations": parting.num_predicted,
        "begins_at": parting.begins_at,
        "predicted": None if parting.predicted is None else _predicted_row(parting.predicted),
        "node": printable(parting.node) or None,
        "recorded": None if parting.recorded is None else _recorded_row(parting.recorded),
    }


def _predicted_row(allocation: Allocation) -> JsonDict:
    return {
        "tensor": printable(allocation.label),
        "kind": allocation.category.value,
        "bytes": allocation.size_bytes,
    }


def _recorded_row(allocation: RecordedAllocation) -> JsonDict:
    return {"bytes": allocation.size_bytes, "place": printable(allocation.place) or None}


def _allocator_row(replay: AllocatorReplay) -> JsonDict:
    first = replay.first_difference
    return {
        "is_exact": replay.is_exact,
        "is_same": replay.is_same,
        "allocations": replay.num_allocations,
        "same_allocations": replay.num_same,
        "first_difference": None
        if first is None
        else {
            "allocation": first.num_allocations,
            **_recorded_row(first.allocation),
            "recorded_bytes": first.recorded_bytes,
            "replayed_bytes": first.replayed_bytes,
        },
        "reserved_peak_bytes": replay.reserved_peak_bytes,
        "recorded_reserved_peak_bytes": replay.recorded_peak_bytes,
        "segments": list(replay.segments),
        "recorded_segments": list(replay.recorded_segments),
        "not_emulated": list(replay.left_out),
    }

"""What an allocator reserves beside what is alive: a chart for each runtime with an allocator."""

from collections.abc import Iterator
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.errors import shortened
from onnxmem.program.replay import Replay
from onnxmem.report.charts.steps import Mark, Series, area_svg
from onnxmem.report.page.markup import section
from onnxmem.runtimes.base import RuntimeRun
from onnxmem.units import format_bytes

_MOST_EVENTS: Final = 200_000
"""Of a program that is replayed for a picture."""


def reserved_sections(analysis: Analysis) -> Iterator[str]:
    """PyTorch's allocator on a training step, and those of runtimes given as objects."""
    run = analysis.request.torch_run() if analysis.torch is not None else None
    if run is not None and analysis.training is not None:
        yield _section("pytorch", "PyTorch's allocator", run, analysis.training.replay)
    for number, each in enumerate(analysis.replays):
        yield _section(f"replay-{number}", f"the allocator of {each.name}", each.run, each.replay)


def _section(key: str, whose: str, run: RuntimeRun, replay: Replay) -> str:
    """Live bytes and what is reserved beyond them, over the steps of the first iteration."""
    program = replay.program
    if not 0 < len(program.events) <= _MOST_EVENTS:
        return ""
    reserved = run.reserved_by_step()
    if not reserved:
        return ""
    live = replay.step_bytes.tolist()
    beyond = [max(most - size, 0) for most, size in zip(reserved, live, strict=True)]
    peak_bytes = max(reserved)
    starts = [
        (program.event_steps[min(start, len(program.events) - 1)], phase)
        for phase, start in program.phase_starts.items()
    ]
    whose = shortened(whose)
    svg = area_svg(
        (
            Series("alive", tuple(live), "c-activations"),
            Series("reserved beyond that", tuple(beyond), "c-temporary"),
        ),
        chart_id=f"onnxmem-reserved-{key}",
        title=f"What {whose} reserves",
        description=f"At most {format_bytes(peak_bytes)} in the first iteration.",
        peak_step=reserved.index(peak_bytes),
        labels=None,
        marks=[Mark(name=phase, start=int(step)) for step, phase in starts],
    )
    body = (
        f'<figure><div class="wide" tabindex="0" role="group" aria-label="reserved">{svg}</div>'
        "<figcaption>The first iteration, from an empty device: what is alive, and what the"
        " allocator has taken from the device beyond that: free blocks, rounding, workspaces. At"
        f" most {format_bytes(peak_bytes)}.</figcaption></figure>"
    )
    return section(f"reserved-{key}", f"What {whose} reserves", body)

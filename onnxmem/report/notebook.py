"""An analysis in a notebook: its main figures and the timeline, in a few kilobytes."""

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING
from zlib import crc32

from onnxmem.analysis.json_rows import data_rows, ends_of
from onnxmem.errors import shortened
from onnxmem.report.charts.drawing import Frame
from onnxmem.report.charts.steps import area_svg
from onnxmem.report.timelines import run_timeline, step_timeline
from onnxmem.report.verdict import verdict_text
from onnxmem.units import format_bytes, format_count, format_ends, format_limit, plural

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis

_LONGEST_LABEL = 40
"""Characters of a node's name where a pointer rests: there may be 200 of them."""


def notebook_html(analysis: "Analysis") -> str:
    """A table and an SVG, without a script and without a request to a network."""
    name = escape(shortened(analysis.path))
    rows = "".join(
        f'<tr><th scope="row">{label}</th><td>{format_bytes(size)}</td>'
        f"<td>{'' if size is None else f'{size:,} B'}</td><td>{escape(remark)}</td></tr>"
        for label, size, remark in _figures(analysis)
    )
    ends = ends_of(data_rows(analysis.results))
    partial = "" if analysis.status == "ok" else "<p>Figures are lower bounds.</p>"
    partial = partial if ends is None else f"<p>Inference takes {format_ends(*ends)}.</p>"
    return (
        f'<div class="onnxmem" style="max-width:50em"><p><b>{name}</b> {_facts(analysis)}</p>'
        f"{_verdict(analysis)}{partial}<table><tbody>{rows}</tbody></table>{_picture(analysis)}</div>"
    )


def _verdict(analysis: "Analysis") -> str:
    """What was asked first: whether it fits the budget, and the largest batch that does."""
    result, budget_bytes = analysis.fit, analysis.settings.budget_bytes
    if result is None or budget_bytes is None:
        return ""
    text = verdict_text(result.requested, budget_bytes, result.doubts)
    largest = None if result.max_batch is None else result.max_batch.number
    batch = f"; largest batch that fits: {largest:,}" if largest else ""
    return f"<p><b>{format_limit(budget_bytes)}: {escape(text)}</b>{batch}</p>"


def _facts(analysis: "Analysis") -> str:
    batch = analysis.settings.batch
    parts = [
        plural(analysis.coverage.nodes, "node"),
        f"{format_count(analysis.num_parameters)} parameters",
        *([] if batch is None else [f"batch {batch:,}"]),
    ]
    return ", ".join(parts)


def _figures(analysis: "Analysis") -> Iterator[tuple[str, int | None, str]]:
    """Label, bytes, remark."""
    memory, step = analysis.activations, analysis.training
    node = memory.peak_node
    yield "inference", analysis.total_bytes, "weights + inputs + peak activation memory"
    yield "weights", analysis.weight_bytes, ""
    yield "inputs", analysis.inputs_bytes, ""
    yield (
        "peak activation memory",
        memory.in_place_peak_bytes,
        f"at {shortened(node)}" if node else "",
    )
    if step is not None:
        recipe = step.recipe
        yield (
            "training step",
            step.peak_bytes,
            f"{recipe.optimizer}, {recipe.precision}, a step's peak",
        )
    for runtime in analysis.runtimes:
        yield runtime.name, runtime.arena.held_bytes, "arena reserved after a run"


def _picture(analysis: "Analysis") -> str:
    """The training step if there is one, else inference; nothing where there are no steps."""
    step = analysis.training
    timeline = run_timeline(analysis) if step is None else step_timeline(step.replay)
    if not timeline.labels:
        return ""
    what = "run" if step is None else "training step"
    # A notebook has several outputs in one document, where an id may occur once.
    content = crc32(f"{analysis.path} {timeline.sums}".encode(errors="replace"))
    peak = format_bytes(max(timeline.sums))
    return area_svg(
        timeline.series,
        Frame(
            f"onnxmem-{content:08x}",
            f"Live bytes over the steps of the {what}",
            f"{plural(len(timeline.labels), 'step')}, peak {peak}.",
        ),
        peak_step=timeline.peak_step,
        labels=[shortened(label, _LONGEST_LABEL) for label in timeline.labels],
        marks=timeline.marks,
    )

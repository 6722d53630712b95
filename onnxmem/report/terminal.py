"""The text report of one analysis: what was assumed, then what it takes, then what fits.

Sums are printed as lines that add up to the byte, and every name from the model is escaped.
"""

from typing import TYPE_CHECKING

from onnxmem.errors import shortened
from onnxmem.report.assumptions import assumptions, model_facts, partial_texts
from onnxmem.report.budget import budget_section
from onnxmem.report.charts import bar
from onnxmem.report.lines import fact, figure, law_text, paragraph, prose
from onnxmem.report.order import order_lines
from onnxmem.report.peak_rows import rows_section
from onnxmem.report.rules_of_thumb import rules_section
from onnxmem.report.sparklines import timeline_section
from onnxmem.units import format_bytes, format_count, plural

if TYPE_CHECKING:
    from onnxmem.analysis import Analysis
    from onnxmem.analysis.compute import Compute
    from onnxmem.runtimes.ideal import ActivationMemory

_LIVE_SHOWN = 8
"""Tensors of the peak that are listed; the others are one line."""

_LONGEST = 2000
"""Characters of a finding, which may name a few long names."""


def render(analysis: "Analysis") -> str:
    """Write the whole report; it ends with a newline."""
    sections = [
        _head(analysis),
        _run_section(analysis),
        _activations_section(analysis),
        _live_section(analysis.activations),
        rows_section(analysis),
        timeline_section(analysis),
        *_asked_sections(analysis),
        budget_section(analysis),
        rules_section(analysis),
        _compute_section(analysis.compute),
        _findings_section(analysis),
        _coverage_section(analysis),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _asked_sections(analysis: "Analysis") -> list[list[str]]:
    """What most models do not have, or most requests leave out: imported where it is written."""
    sections = []
    if analysis.kv_cache is not None:
        from onnxmem.report.kv_cache import cache_sections  # noqa: PLC0415

        sections += cache_sections(analysis.kv_cache)
    if analysis.runtimes or analysis.measured is not None:
        from onnxmem.report.runtime import runtime_sections  # noqa: PLC0415

        sections += runtime_sections(analysis)
    if analysis.training is not None:
        from onnxmem.report.training import training_sections  # noqa: PLC0415

        sections += training_sections(analysis)
    return sections


def _head(analysis: "Analysis") -> list[str]:
    """Name the model and say what was assumed, before any figure."""
    lines = paragraph(f"{shortened(analysis.path)}  ", model_facts(analysis))
    lines += paragraph("assumes: ", assumptions(analysis))
    for text in partial_texts(analysis):
        lines += prose("", text)
    return lines


def _run_section(analysis: "Analysis") -> list[str]:
    """What inference needs, as a sum."""
    memory = analysis.activations
    lines = [
        figure("RUN", analysis.total_bytes, "weights + inputs + in-place peak"),
        figure("  weights", analysis.weight_bytes),
        figure("  inputs", analysis.inputs_bytes),
        figure("  in-place peak", memory.in_place_peak_bytes, _peak_place(analysis)),
        *order_lines(analysis.schedule, analysis.settings.order),
    ]
    if analysis.batch_law is not None:
        lines.append(fact("  formula", law_text(analysis.batch_law)))
    return lines


def _peak_place(analysis: "Analysis") -> str:
    memory, graph = analysis.activations, analysis.graph
    if memory.peak_node is None or memory.peak_step is None:
        return ""
    node = graph.nodes[memory.peak_step]
    step = f"step {memory.peak_step + 1:,} of {len(graph.nodes):,}"
    return f"at {shortened(memory.peak_node)} ({shortened(node.op_type)}), {step}"


def _activations_section(analysis: "Analysis") -> list[str]:
    """The same tensors under each rule of sharing, the least first."""
    memory, arena = analysis.activations, analysis.activations.arena
    gap = f"one block, gap {format_bytes(arena.gap_bytes)}"
    proof = "proven least" if arena.is_proven else "not proven least"
    has_arena = memory.in_place_peak_bytes is not None
    return [
        "ACTIVATIONS",
        figure("  in-place peak", memory.in_place_peak_bytes, "live at once, buffers shared"),
        figure("  liveness peak", memory.peak_bytes, "live at once, nothing shared"),
        figure("  arena", arena.size_bytes if has_arena else None, f"{gap}, {proof}"),
        figure("  naive in-place", memory.naive_in_place_bytes, "all kept, buffers shared"),
        figure("  naive", memory.naive_bytes, "all kept"),
        figure("  outputs", analysis.outputs_bytes, "of the model"),
    ]


def _live_section(memory: "ActivationMemory") -> list[str]:
    """The in-place peak as a sum of tensors."""
    shown, others = memory.live_at_peak[:_LIVE_SHOWN], memory.live_at_peak[_LIVE_SHOWN:]
    if not shown:
        return []
    named = [(shortened(live.tensor), live.size_bytes) for live in shown]
    if others:
        named.append((f"{len(others):,} more", sum(live.size_bytes for live in others)))
    peak_bytes = memory.in_place_peak_bytes
    lines = [figure("LIVE AT PEAK", peak_bytes)]
    return lines + [figure(f"  {bar(size, peak_bytes)}", size, name) for name, size in named]


def _compute_section(compute: "Compute") -> list[str]:
    """MACs and FLOPs, and what is meant by them."""
    lines = [
        "COMPUTE, one multiply-add being 1 MAC and 2 FLOPs",
        fact("  forward MACs", _count(compute.forward_macs)),
        fact("  forward FLOPs", _count(compute.forward_flops)),
        fact("  backward FLOPs", _count(compute.backward_flops)),
        fact("", "by a rule: 2 x forward where weights are read, 1 x elsewhere"),
    ]
    if compute.unknown_nodes:
        left_out = f"{plural(len(compute.unknown_nodes), 'node')} of unknown arithmetic left out"
        lines.append(fact("", f"lower bounds: {left_out}"))
    return lines


def _count(count: int | None) -> str:
    return "unknown" if count is None else f"{format_count(count):<8}  {count:,}"


def _findings_section(analysis: "Analysis") -> list[str]:
    lines = []
    for finding in analysis.findings:
        place = f" ({finding.node})" if finding.node else ""
        lines += prose(f"  {finding.code}: ", shortened(finding.message + place, _LONGEST))
    return ["FINDINGS", *lines] if lines else []


def _coverage_section(analysis: "Analysis") -> list[str]:
    """How far the figures can be relied on."""
    known = analysis.coverage
    nodes = plural(known.num_nodes, "node")
    text = f"{len(known.assumed_nodes):,} of {nodes} assumed"
    if known.unknown_tensors:
        unknown = plural(len(known.unknown_tensors), "tensor")
        text += f"; {unknown} of unknown size: figures are lower bounds"
    lines = [f"COVERAGE  {text}"]
    lines += _names("  assumed nodes: ", known.assumed_nodes)
    return lines + _names("  unknown tensors: ", known.unknown_tensors)


def _names(start: str, names: tuple[str, ...]) -> list[str]:
    if not names:
        return []
    shown = [shortened(name) for name in names[:_LIVE_SHOWN]]
    more = len(names) - len(shown)
    return paragraph(start, [*shown, *([f"{more:,} more"] if more else [])])

"""Inference, and what holds of every analysis: rules of thumb, compute, findings, coverage."""

from dataclasses import fields
from typing import TYPE_CHECKING

from onnxmem.analysis.rules_of_thumb import FORMULAS, RulesOfThumb
from onnxmem.errors import shortened
from onnxmem.report.order import standing
from onnxmem.report.sections.section import Layout, Line, Note, Section, formula_lines
from onnxmem.units import format_bytes, plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onnxmem.analysis.analysis import Analysis

_LONGEST = 2000
"""Characters of a finding, which may name a few long names."""
_IN_PLACE_PEAK = "activations.in_place_peak_bytes"
RUN = "RUN"
TRAIN = "TRAIN"


def inference(analysis: "Analysis") -> Section:
    """What inference needs, as a sum."""
    memory = analysis.activations
    peak = Line(
        "in-place peak",
        memory.in_place_peak_bytes,
        _peak_at(analysis),
        key=_IN_PLACE_PEAK,
        words_key="activations.peak_at",
    )
    total = Line(RUN, analysis.total_bytes, "weights + inputs + in-place peak", key="total_bytes")
    return Section(
        key="run",
        title=RUN,
        total=total,
        lines=(
            Line("weights", analysis.weight_bytes, key="weights.bytes"),
            Line("inputs", analysis.inputs_bytes, key="inputs_bytes"),
            peak,
            *_order_lines(analysis),
            *formula_lines(analysis.batch_law),
        ),
    )


def _order_lines(analysis: "Analysis") -> "Iterator[Line]":
    """What another order of execution than the file's gains."""
    schedule = analysis.schedule
    if schedule is not None:
        key = "activations.order"
        file_bytes = schedule.file_peak_bytes
        yield Line("in file's order", file_bytes, key=f"{key}.file_in_place_peak_bytes", depth=2)
        text = f"{analysis.settings.order}: {standing(schedule)}"
        yield Line("order", text=text, words_key=f"{key}.standing", depth=2)


def _peak_at(analysis: "Analysis") -> str:
    memory, graph = analysis.activations, analysis.graph
    if memory.peak_node is None or memory.peak_step is None:
        return ""
    node = graph.nodes[memory.peak_step]
    step = f"step {memory.peak_step + 1:,} of {len(graph.nodes):,}"
    return f"at {shortened(memory.peak_node)} ({shortened(node.op_type)}), {step}"


def activations(analysis: "Analysis") -> Section:
    """The same tensors under each rule of sharing, the least first."""
    memory, packing = analysis.activations, analysis.activations.packing
    in_place_peak_bytes = memory.in_place_peak_bytes
    packed = Line(
        "arena",
        None if in_place_peak_bytes is None else packing.size_bytes,
        f"one block, gap {format_bytes(packing.gap_bytes)}, "
        + ("proven least" if packing.is_proven else "not proven least"),
        key="activations.arena_bytes",
        words_key="activations.arena",
    )
    return Section(
        key="activations",
        title="ACTIVATIONS",
        lines=(
            Line(
                "in-place peak",
                in_place_peak_bytes,
                "live at once, with buffer reuse",
                key=_IN_PLACE_PEAK,
            ),
            Line(
                "liveness peak",
                memory.peak_bytes,
                "live at once, without buffer reuse",
                key="activations.peak_bytes",
            ),
            packed,
            Line(
                "naive in-place",
                memory.naive_in_place_bytes,
                "sum of all buffers",
                key="activations.naive_in_place_bytes",
            ),
            Line(
                "naive", memory.naive_bytes, "sum of all activations", key="activations.naive_bytes"
            ),
            Line("outputs", analysis.outputs_bytes, "of the model", key="outputs_bytes"),
        ),
    )


def live_set(analysis: "Analysis") -> Section | None:
    """The in-place peak as a sum of tensors, the largest first."""
    memory = analysis.activations
    if not memory.live_at_peak:
        return None
    return Section(
        key="live",
        title="LIVE AT PEAK",
        total=Line("", memory.in_place_peak_bytes, key=_IN_PLACE_PEAK),
        lines=tuple(Line(shortened(each.label), each.size_bytes) for each in memory.live_at_peak),
        layout=Layout.BARS,
    )


def rules_of_thumb(analysis: "Analysis") -> Section:
    """What the rules of the field would have said, and how far from the answer."""
    training = analysis.training
    answer = (
        Line(RUN, analysis.total_bytes, key="total_bytes")
        if training is None
        else Line(TRAIN, training.peak_bytes, key="training.peak_bytes")
    )
    rules = analysis.rules_of_thumb
    return Section(
        key="rules",
        title="RULES OF THUMB",
        remark=f"as multiples of {answer.label}",
        lines=tuple(
            Line(FORMULAS[rule.name], getattr(rules, rule.name), key=f"rules_of_thumb.{rule.name}")
            for rule in fields(RulesOfThumb)
        ),
        layout=Layout.MULTIPLES,
        reference=answer,
    )


def compute(analysis: "Analysis") -> Section:
    """MACs and FLOPs, and what is meant by them."""
    found = analysis.compute
    rule = "by a rule: 2 x forward where weights are read, 1 x elsewhere"
    counts = (
        Line("forward MACs", found.forward_macs, key="compute.forward_macs", unit="count"),
        Line("forward FLOPs", found.forward_flops, key="compute.forward_flops", unit="count"),
        Line(
            "backward FLOPs", found.backward_flops, rule, key="compute.backward_flops", unit="count"
        ),
    )
    left_out = plural(len(found.unknown_nodes), "node")
    bounds = Line("", text=f"lower bounds: {left_out} of unknown arithmetic left out")
    return Section(
        key="compute",
        title="COMPUTE",
        remark="one multiply-add being 1 MAC and 2 FLOPs",
        lines=(*counts, *((bounds,) if found.unknown_nodes else ())),
    )


def findings(analysis: "Analysis") -> Section | None:
    """What the figures assume or leave out."""
    notes = tuple(
        Note(each.code, shortened(each.message + _at(each.node), _LONGEST))
        for each in analysis.findings
    )
    return Section(key="findings", title="FINDINGS", notes=notes) if notes else None


def _at(node: str | None) -> str:
    return f" ({node})" if node else ""


def coverage(analysis: "Analysis") -> Section:
    """How far the figures can be relied on."""
    known = analysis.coverage
    nodes = plural(known.num_nodes, "node")
    text = f"{len(known.assumed_nodes):,} of {nodes} assumed"
    if known.unknown_tensors:
        unknown = plural(len(known.unknown_tensors), "tensor")
        text += f"; {unknown} of unknown size: figures are lower bounds"
    named = (("assumed nodes", known.assumed_nodes), ("unknown tensors", known.unknown_tensors))
    return Section(
        key="coverage",
        title="COVERAGE",
        summary=text,
        notes=tuple(Note(label, parts=_names(names)) for label, names in named if names),
    )


_MOST_NAMED = 8


def _names(names: tuple[str, ...]) -> tuple[str, ...]:
    more = len(names) - _MOST_NAMED
    shown = tuple(shortened(name) for name in names[:_MOST_NAMED])
    return (*shown, f"{more:,} more") if more > 0 else shown

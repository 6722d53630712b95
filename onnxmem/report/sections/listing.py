"""The sections of every analysis, and all of an analysis in the order of the text report.

A section is written once and shown twice: the text report and the page lay out the same lines. Of
the sections that most models or requests do without, the modules are imported when there is one.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np

from onnxmem.analysis.json_rows import data_rows
from onnxmem.errors import listed, shortened
from onnxmem.model.binding import fixed_batch, fixed_sequence, required_inputs
from onnxmem.report.sections.section import (
    INFERENCE,
    PEAK,
    TRAINING_STEP,
    Layout,
    Line,
    Note,
    Section,
    formula_lines,
)
from onnxmem.report.text import count_text, shape_text
from onnxmem.report.verdict import budget
from onnxmem.settings import TrainingConfig
from onnxmem.units import format_bytes, format_count, plural

if TYPE_CHECKING:
    from onnxmem.allocators.packed import Packing
    from onnxmem.analysis.analysis import Analysis
    from onnxmem.analysis.data_control_flow import BranchBytes, DataLoop
    from onnxmem.analysis.observed_memory import ObservedMemory, Spread
    from onnxmem.analysis.request import StageResults
    from onnxmem.analysis.scaling import ClosedForm
    from onnxmem.program.polynomials import Polynomial
    from onnxmem.runtimes.ideal.schedules import Schedule
    from onnxmem.runtimes.onnxruntime.memory import RuntimeMemory

_LONGEST: Final = 2000
"""Characters of a finding, which may name a few long names."""
_MOST_NAMED: Final = 8
"""Nodes or tensors that are named as assumed or unknown."""
_PARTS: Final = "weights + inputs + peak activation memory"
_BARS: Final = "a bar is the tensor's share of the peak"
_IN_PLACE_PEAK: Final = "activations.in_place_peak_bytes"
_MOST_PIECES: Final = 8
"""Pieces of the peak's formula that are listed; the JSON has all."""
_LARGEST_DIM: Final = 10_000
"""For a dim that may be larger, the range in which each piece is the largest is not computed."""


def sections(analysis: "Analysis") -> tuple[Section, ...]:
    """Everything that is reported of an analysis; no section is empty."""
    found = (
        inference(analysis),
        activations(analysis),
        data_dependent(analysis),
        observed(analysis),
        control_flow(analysis),
        live_set(analysis),
        peak_pieces(analysis),
        *_optional(analysis),
        budget(analysis),
        rules_of_thumb(analysis),
        compute(analysis),
        elements(analysis),
        findings(analysis),
        coverage(analysis),
    )
    return tuple(section for section in found if section is not None)


def batch_sections(analysis: "Analysis") -> tuple[Section, ...]:
    """The sections whose lines have keys: a page shows them at other batches."""
    return (
        inference(analysis),
        activations(analysis),
        *_optional(analysis),
        rules_of_thumb(analysis),
        compute(analysis),
        elements(analysis),
    )


def _optional(analysis: "Analysis") -> tuple[Section, ...]:
    """Sections that most models do not have, or most requests leave out."""
    found: list[Section] = []
    if analysis.kv_cache is not None:
        from onnxmem.report.sections.cache import cache_sections

        found += cache_sections(analysis.kv_cache)
    if analysis.runtimes or analysis.measured is not None:
        from onnxmem.report.sections.runtimes import runtime_sections

        found += runtime_sections(analysis)
    if analysis.replays:
        from onnxmem.report.sections.runtimes import replay_sections

        found += replay_sections(analysis.replays)
    if analysis.training is not None:
        from onnxmem.report.sections.training import training_sections

        found += training_sections(analysis)
    return tuple(found)


def model_facts(analysis: "Analysis") -> list[str]:
    """Nodes, parameters, the element type of most weights, the file's size."""
    return [
        plural(analysis.coverage.nodes, "node"),
        f"{format_count(analysis.num_parameters)} parameters",
        *_weight_dtype(analysis),
        f"file {format_bytes(analysis.file_bytes)}",
    ]


def batch_text(analysis: "Analysis") -> str:
    """The batch that the figures are of, and what the file fixes; empty: the model has none.

    `` at batch 1, sequence 128 (both fixed in the file)``
    """
    batch, requested = analysis.settings.batch, analysis.request.settings
    inputs = required_inputs(analysis.request.source.proto.graph)
    sequence = None if requested.shapes else fixed_sequence(inputs)
    is_fixed = batch is not None and not requested.shapes and fixed_batch(inputs) == batch
    parts = [] if batch is None else [f"batch {batch:,}"]
    parts += [] if sequence is None else [f"sequence {sequence:,}"]
    if not parts:
        return ""
    both = "both " if is_fixed and sequence is not None else ""
    fixed = f" ({both}fixed in the file)" if is_fixed or sequence is not None else ""
    return f" at {', '.join(parts)}{fixed}"


def assumptions(analysis: "Analysis") -> list[str]:
    """The settings that all figures hold for."""
    settings = analysis.settings
    symbols = analysis.request.prepared.batch_symbols
    training = ("training", *_training(settings.recipe))
    names = f" ({', '.join(map(shortened, sorted(symbols)))})" if symbols else ""
    return [
        *(training if settings.train else ("inference",)),
        *_batchnorms(analysis),
        "no batch" if settings.batch is None else f"batch {settings.batch:,}{names}",
        *(
            f"{shortened(name)} = {number:,}"
            for name, number in settings.dims.items()
            if name not in symbols
        ),
        *(
            f"input {shortened(name)} of {shape_text(dims)}"
            for name, dims in settings.shapes.items()
        ),
        f"graph {settings.graph or 'raw'}",
        *((f"order {settings.order}",) if settings.order != "file" else ()),
        *(("sessions opened with fixed dims",) if settings.fixed_dims else ()),
    ]


def partial_texts(analysis: "Analysis") -> Iterator[str]:
    """Which figures are lower bounds or unknown; nothing where the status is ``ok``."""
    if analysis.doubts:
        yield f"warning: {shortened('; '.join(analysis.doubts), 2000)}"
    left_to_data = []
    for runtime in analysis.runtimes:
        if not runtime.is_every_run and analysis.results.data_text():
            left_to_data.append(runtime.name)
            yield f"warning: {_without_end(runtime, analysis.observed)}"
    for name in analysis.partial_runtimes:
        if name in left_to_data:
            continue
        is_known = any(runtime.name == name for runtime in analysis.runtimes)
        left_out = "lower bounds: tensors or scratch of unknown size are left out"
        yield f"warning: the figures of {name} are {left_out if is_known else 'unknown'}"


def _without_end(runtime: "RuntimeMemory", seen: "ObservedMemory | None") -> str:
    """Which figures of a session have an upper end where the data of a run decide sizes."""
    peak_bytes = runtime.requested_peak_upper_bytes
    text = f"the arena and the process of {runtime.name} have no proven upper end"
    if peak_bytes is not None:
        text += f", kernels request at most {format_bytes(peak_bytes)}"
    process = None if seen is None else seen.processes.get(runtime.name)
    if seen is None or process is None:
        return f"{text}: --observe N shows what runs take"
    least, most = format_bytes(process.least), format_bytes(process.most)
    ends = most if least == most else f"{least} to {most}"
    return f"{text}: in {plural(len(seen.sources), 'observed run')} the process took {ends}"


def _batchnorms(analysis: "Analysis") -> list[str]:
    """The BatchNormalizations that the export folded away, by how they are treated."""
    if analysis.training is None:
        return []
    found = analysis.training.batchnorms
    return [
        f"{len(names):,} BatchNormalization {what}"
        for names, what in (
            (found.put_back, "put back that the export folded"),
            (found.left_out, "left out that the export folded"),
            (found.unknown, "possibly folded, not put back"),
        )
        if names
    ]


def _training(recipe: TrainingConfig) -> list[str]:
    """The three settings that every step has, and what else is not the default."""
    defaults = TrainingConfig()
    named = ("optimizer", "precision", "loss")
    others = [field.name for field in fields(TrainingConfig) if field.name not in named]
    changed = [name for name in others if getattr(recipe, name) != getattr(defaults, name)]
    return [_setting_text(name, getattr(recipe, name)) for name in (*named, *changed)]


def _setting_text(name: str, value: object) -> str:
    label = name.replace("_", " ")
    if isinstance(value, bool):
        return label if value else f"no {label}"
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"{label} {shortened(text)}"


def _weight_dtype(analysis: "Analysis") -> list[str]:
    """The element type that most bytes of weights have."""
    sizes: Counter[str] = Counter()
    for weight in analysis.graph.weights:
        sizes[weight.dtype or "unknown"] += weight.size_bytes or 0
    return [dtype for dtype, _ in sizes.most_common(1)]


def of_no_run(results: "StageResults") -> str:
    """How the plain figures are not of one run; empty: they are of every run."""
    least_bytes = results.at_least.activations.in_place_peak_bytes or 0
    is_less = least_bytes < (results.activations.in_place_peak_bytes or 0)
    words = ["larger branches"] if is_less else []
    names = set(results.data_nodes)
    if any(node.name in names and node.onnx_op == "Loop" for node in results.graph.all_nodes()):
        words.append("one iteration of a Loop")
    if results.activations.unknown_tensors:
        words.append("known sizes")
    return ", ".join(words)


def inference(analysis: "Analysis") -> Section:
    """What inference needs, as a sum."""
    memory = analysis.activations
    peak = Line(
        PEAK,
        memory.in_place_peak_bytes,
        _peak_at(analysis),
        key=_IN_PLACE_PEAK,
        words_key="activations.peak_at",
    )
    total = Line(
        INFERENCE,
        analysis.total_bytes,
        "; ".join(filter(None, (_PARTS, of_no_run(analysis.results)))),
        key="total_bytes",
    )
    return Section(
        key="run",
        title=INFERENCE,
        total=total,
        lines=(
            Line("weights", analysis.weight_bytes, key="weights.bytes"),
            Line("inputs", analysis.inputs_bytes, key="inputs_bytes"),
            peak,
            *_order_lines(analysis),
            *formula_lines(analysis.batch_law),
        ),
    )


def _order_lines(analysis: "Analysis") -> Iterator[Line]:
    """The peak in the file's order, where another order was searched."""
    schedule = analysis.schedule
    if schedule is not None:
        key = "activations.order"
        file_bytes = schedule.file_in_place_peak_bytes
        yield Line("in file's order", file_bytes, key=f"{key}.file_in_place_peak_bytes", depth=2)
        text = f"{analysis.settings.order}: {order_text(schedule)}"
        yield Line("order", text=text, words_key=f"{key}.standing", depth=2)


def order_text(schedule: "Schedule") -> str:
    """Whether any order takes less."""
    proof = proof_text(is_proven=schedule.is_proven)
    return f"the file's, {proof}" if schedule.is_file_order else proof


def packing_text(packing: "Packing") -> str:
    """Whether a packing is optimal, or the share of its block that is never used at its peak."""
    if packing.is_optimal:
        return "optimal"
    text = f"fragmentation {100 * packing.gap_bytes / packing.size_bytes:.1f} %"
    return f"{text}; --pack best searches further" if packing.effort.is_quick else text


def proof_text(*, is_proven: bool) -> str:
    """Whether a figure is proven to be the least possible."""
    return "optimal" if is_proven else "not proven optimal"


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
        "packed in one block",
        None if in_place_peak_bytes is None else packing.size_bytes,
        packing_text(packing),
        key="activations.arena_bytes",
        words_key="activations.arena",
    )
    return Section(
        key="activations",
        title="Activations",
        remark=of_no_run(analysis.results),
        lines=(
            Line(
                PEAK,
                in_place_peak_bytes,
                "live at once, with buffer reuse",
                key=_IN_PLACE_PEAK,
            ),
            Line(
                "without buffer reuse",
                memory.peak_bytes,
                "live at once, each tensor in a buffer of its own",
                key="activations.peak_bytes",
            ),
            packed,
            Line(
                "sum of all buffers",
                memory.naive_in_place_bytes,
                "with buffer reuse, nothing released",
                key="activations.naive_in_place_bytes",
            ),
            Line(
                "sum of all activations",
                memory.naive_bytes,
                "without buffer reuse, nothing released",
                key="activations.naive_bytes",
            ),
            Line("outputs", analysis.outputs_bytes, "of the model", key="outputs_bytes"),
        ),
    )


def data_dependent(analysis: "Analysis") -> Section | None:
    """The figures at both ends of what the data of a run decide."""
    row = data_rows(analysis.results).get("data_dependent")
    if not isinstance(row, dict):
        return None
    results, upper = analysis.results, analysis.results.upper
    dims = () if upper is None else upper.unbounded or upper.data_dims
    names = listed(analysis.results.shown(dims))
    is_unbounded = upper is not None and upper.unbounded
    lines = [Line("without a bound" if is_unbounded else "decided by the data", text=names)]
    if not names:
        lines = [Line("decided by the data", text=f"what {listed(results.data_nodes)} runs")]
    for label, key in (
        (INFERENCE, "total"),
        (PEAK, "in_place_peak"),
        ("without buffer reuse", "peak"),
        ("packed in one block", "arena"),
        ("sum of all buffers", "naive_in_place"),
        ("sum of all activations", "naive"),
        (TRAINING_STEP, "training_peak"),
    ):
        ends = [("at most", f"{key}_upper_bytes")]
        if results.data_nodes:
            ends = [("at least", f"{key}_lower_bytes"), *ends]
        lines += [
            Line(label, size_bytes, detail, key=f"data_dependent.{name}")
            for detail, name in ends
            if isinstance(size_bytes := row[name], int)
        ]
    if analysis.at_most is None and (flags := results.data_flags()):
        lines.append(Line("next", text=f"{flags} bounds it"))
    elif analysis.at_most is None:
        lines.append(Line("of any size", text=listed(results.without_size)))
    return Section(key="data-dependent", title="Depends on the data", lines=tuple(lines))


def observed(analysis: "Analysis") -> Section | None:
    """The figures of observed runs, each beside its upper end."""
    return observed_section(analysis.observed)


def observed_section(seen: "ObservedMemory | None") -> Section | None:
    """The figures of observed runs."""
    if seen is None:
        return None
    num_runs, dims = len(seen.sources), list(seen.dims.items())[:_MOST_NAMED]
    lines = [
        Line(
            label,
            seen.figures[name].most,
            _spread_text(seen.figures[name], num_runs),
            key=f"observed.{name}.max",
        )
        for label, name in (
            (INFERENCE, "total_bytes"),
            (PEAK, "in_place_peak_bytes"),
            ("without buffer reuse", "peak_bytes"),
            ("packed in one block", "arena_bytes"),
            (TRAINING_STEP, "training_peak_bytes"),
        )
        if name in seen.figures
    ]
    lines += [
        Line(f"{name}, peak requested by kernels", spread.most, _spread_text(spread, num_runs))
        for name, spread in seen.runtimes.items()
    ]
    lines += [
        Line(f"{name}, process", spread.most, _spread_text(spread, num_runs))
        for name, spread in seen.processes.items()
    ]
    lines += [
        Line(
            shortened(name),
            text=f"{spread.least:,}" if spread.least == spread.most else _counts_text(spread),
        )
        for name, spread in (
            *((seen.declared.get(dim, dim), each) for dim, each in dims),
            *((f"iterations of {name}", each) for name, each in seen.iterations.items()),
        )
    ]
    return Section(
        key="observed",
        title=f"Observed in {plural(num_runs, 'run')}",
        remark="of these inputs; others may take more or less",
        lines=tuple(lines),
    )


def control_flow(analysis: "Analysis") -> Section | None:
    """What inference takes by branch and by iterations, where the data of a run decide them."""
    lines = [
        *(
            Line(
                shortened(each.node),
                text="; ".join(f"{one.branch} {_pair_text(one)}" for one in each.branches),
            )
            for each in analysis.data_branches
        ),
        *(Line(shortened(each.node), text=_loop_text(each)) for each in analysis.data_loops),
    ]
    if not lines:
        return None
    return Section(
        key="control-flow",
        title="Branches and loops",
        remark="of inference, at most four of each kind",
        lines=tuple(lines),
    )


def _pair_text(branch: "BranchBytes") -> str:
    least, most = branch.total_bytes, branch.total_upper_bytes
    if most is None:
        return f"at least {format_bytes(least)}"
    if least == most:
        return format_bytes(most)
    return f"{format_bytes(least)} to {format_bytes(most)}"


def _loop_text(loop: "DataLoop") -> str:
    line, counts = loop.output_line, [f"{each:,}" for each in loop.counts]
    through = f"{', '.join(counts[:-1])} and {counts[-1]} iterations"
    parts = ["the bytes of its outputs are no line in its iterations"]
    if line is not None and not line.slope_bytes:
        parts = [f"its outputs have {line.fixed_bytes:,} B at {through}"]
    elif line is not None:
        formula = f"{line.fixed_bytes:,} B + {line.slope_bytes:,} B x iterations"
        parts = [f"its outputs have {formula}: a line through {through}, not a proof"]
    # 2 and 3 iterations are only there to show the line.
    shown = {min(loop.totals, default=0), max(loop.totals, default=0), *loop.totals} - {2, 3}
    parts += [
        f"at {count:,} at most {format_bytes(loop.totals[count])}"
        for count in sorted(shown)
        if loop.totals.get(count) is not None
    ]
    bound = "no bound of its iterations" if loop.most is None else f"{loop.most:,} at most"
    return "; ".join((bound, *parts))


def _spread_text(spread: "Spread", num_runs: int) -> str:
    if num_runs == 1:
        return "in this run"
    least, median, p99 = map(format_bytes, (spread.least, spread.median, spread.p99))
    return f"at most in these runs; at least {least}, median {median}, p99 {p99}"


def _counts_text(spread: "Spread") -> str:
    return f"{spread.least:,} to {spread.most:,}, median {spread.median:,}, p99 {spread.p99:,}"


def live_set(analysis: "Analysis") -> Section | None:
    """The in-place peak as a sum of tensors, the largest first."""
    memory = analysis.activations
    if not memory.live_at_peak:
        return None
    return Section(
        key="live",
        title="Live at the peak",
        total=Line(
            "",
            memory.in_place_peak_bytes,
            "; ".join(filter(None, (_BARS, of_no_run(analysis.results)))),
            key=_IN_PLACE_PEAK,
        ),
        lines=tuple(Line(shortened(each.label), each.size_bytes) for each in memory.live_at_peak),
        layout=Layout.BARS,
    )


def rules_of_thumb(analysis: "Analysis") -> Section:
    """The rules of thumb, as multiples of the computed figure."""
    training = analysis.training
    reference = (
        Line(INFERENCE, analysis.total_bytes, key="total_bytes")
        if training is None
        else Line(TRAINING_STEP, training.peak_bytes, key="training.peak_bytes")
    )
    from onnxmem.analysis.rules_of_thumb import FORMULAS, RulesOfThumb

    rules = analysis.rules_of_thumb
    return Section(
        key="rules",
        title="Rules of thumb",
        remark=f"as multiples of {reference.label.lower()}",
        lines=tuple(
            Line(FORMULAS[rule.name], getattr(rules, rule.name), key=f"rules_of_thumb.{rule.name}")
            for rule in fields(RulesOfThumb)
        ),
        layout=Layout.MULTIPLES,
        reference=reference,
    )


def per_sample_text(analysis: "Analysis", count: int | None) -> str:
    """The batch that operations are counted at, and how many of them a sample of it has."""
    batch = analysis.settings.batch
    if count is None or not batch:
        return ""
    at = f"at batch {batch:,}"
    return at if batch == 1 else f"{at}, {format_count(count // batch)} per sample"


def compute(analysis: "Analysis") -> Section:
    """MACs and FLOPs, forward and backward."""
    found = analysis.compute
    rule = "by a rule: 2 x forward where weights are read, 1 x elsewhere"
    counts = (
        Line("forward MACs", found.forward_macs, key="compute.forward_macs", unit="count"),
        Line(
            "forward FLOPs",
            found.forward_flops,
            per_sample_text(analysis, found.forward_flops),
            key="compute.forward_flops",
            words_key="compute.forward_flops.words",
            unit="count",
        ),
        Line(
            "backward FLOPs", found.backward_flops, rule, key="compute.backward_flops", unit="count"
        ),
    )
    left_out = plural(found.unknown_nodes, "node")
    bounds = Line("", text=f"lower bounds: {left_out} of unknown arithmetic left out")
    return Section(
        key="compute",
        title="Compute",
        remark="one multiply-add is 1 MAC and 2 FLOPs",
        lines=(*counts, *((bounds,) if found.unknown_nodes else ())),
    )


def elements(analysis: "Analysis") -> Section:
    """Elements of inputs and activations, and of one sample."""
    found = analysis.elements
    names = ("inputs", "activations", "forward", "with_gradients")
    remarks = {
        "forward": f"{count_text(found.forward_per_sample)} per sample",
        "with_gradients": f"{count_text(found.with_gradients_per_sample)} per sample, activations "
        f"twice; {format_bytes(found.with_gradients_bytes)} in float32",
    }
    lines = (
        Line(
            name.replace("_", " "),
            getattr(found, name),
            remarks.get(name, ""),
            key=f"elements.{name}",
            words_key=f"elements.{name}.words" if name in remarks else "",
            unit="count",
        )
        for name in names
    )
    return Section(
        key="elements",
        title="Elements",
        remark="inputs and activations with buffer reuse, nothing released",
        lines=tuple(lines),
    )


def findings(analysis: "Analysis") -> Section | None:
    """What the figures assume or leave out."""
    notes = tuple(
        Note(
            each.code, shortened(each.message + (f" ({each.node})" if each.node else ""), _LONGEST)
        )
        for each in analysis.findings
    )
    return Section(key="findings", title="Notes", notes=notes) if notes else None


def coverage(analysis: "Analysis") -> Section:
    """How far the figures can be relied on."""
    known = analysis.coverage
    nodes = plural(known.nodes, "node")
    text = f"{known.assumed_nodes:,} of {nodes} assumed"
    if known.unknown_tensors:
        unknown = plural(known.unknown_tensors, "tensor")
        text += f"; {unknown} of unknown size: figures are lower bounds"
    named = (
        ("assumed nodes", known.assumed_node_names),
        ("unknown tensors", known.unknown_tensor_names),
    )
    return Section(
        key="coverage",
        title="Coverage",
        summary=text,
        notes=tuple(Note(label, parts=_names(names)) for label, names in named if names),
    )


def _names(names: tuple[str, ...]) -> tuple[str, ...]:
    more = len(names) - _MOST_NAMED
    shown = tuple(shortened(name) for name in names[:_MOST_NAMED])
    return (*shown, f"{more:,} more") if more > 0 else shown


def peak_pieces(analysis: "Analysis") -> Section | None:
    """The peak's formula, piecewise, unless it is one line in the batch, which ``formula`` shows.

    Where there is none the section gives the reason, if a dim besides the batch is dynamic or set.
    """
    from onnxmem.analysis.scaling import NoClosedForm

    symbolic = analysis.symbolic
    if isinstance(symbolic, NoClosedForm):
        has_dims = analysis.settings.dims.keys() - analysis.request.prepared.batch_symbols
        reason = f"none: {shortened(symbolic.reason)}"
        return Section(key="peak-rows", title="Peak formula", summary=reason) if has_dims else None
    pieces = symbolic.peaks.in_place_peak_pieces
    if not pieces or len(pieces) == len(symbolic.symbols) == 1:
        return None
    ranges = _ranges(symbolic)
    ordered = sorted(ranges, key=lambda at: ranges[at])
    lines = [
        Line(ranges[at][1], text=_polynomial_text(symbolic, pieces[at]))
        for at in ordered[:_MOST_PIECES]
    ]
    if len(ordered) > _MOST_PIECES:
        lines.append(Line("", text=f"{len(ordered) - _MOST_PIECES:,} more: --json"))
    return Section(
        key="peak-rows", title="Peak formula", summary=_pieces_summary(symbolic), lines=tuple(lines)
    )


def _pieces_summary(symbolic: "ClosedForm") -> str:
    """The numbers at which the pieces hold, and those of the dims that stay fixed below."""
    axis = _axis(symbolic)
    named = zip(symbolic.symbols, symbolic.requested, strict=True)
    others = [
        f"{shortened(symbol)} {number:,}" for at, (symbol, number) in enumerate(named) if at != axis
    ]
    text = f"piecewise: the peak is the largest piece, for {_domain(symbolic)}"
    if not others or symbolic.last[axis] > _LARGEST_DIM:
        return text
    return f"{text}; the range in which each is the largest at {', '.join(others)}"


def _domain(symbolic: "ClosedForm") -> str:
    names = [shortened(symbol) for symbol in symbolic.symbols]
    parts = [f"{name} 1 to {last:,}" for name, last in zip(names, symbolic.last, strict=True)]
    parts += [f"{shortened(name)} {number:,}" for name, number in symbolic.fixed.items()]
    parts += [
        "not " + " with ".join(f"{names[at]} {n:,}" for at, n in each.items())
        for each in symbolic.peaks.excluded_points
        if all(n <= symbolic.last[at] for at, n in each.items())
    ]
    return ", ".join(parts)


def _axis(symbolic: "ClosedForm") -> int:
    """The symbol along which ranges are computed: the first that is not the batch, if any."""
    return min(int(symbolic.has_batch), len(symbolic.symbols) - 1)


def _ranges(symbolic: "ClosedForm") -> dict[int, tuple[int, str]]:
    """The range in which each piece is the largest, the other dims as requested, and its start.

    Of several symbols a piece that is nowhere the largest may be so at other dims, or at none; of
    one symbol it is so at no number, and is left out.
    """
    axis, pieces = _axis(symbolic), symbolic.peaks.in_place_peak_pieces
    last = symbolic.last[axis]
    if last > _LARGEST_DIM:
        return dict.fromkeys(range(len(pieces)), (0, ""))
    name = shortened(symbolic.symbols[axis])
    found: dict[int, tuple[int, str]] = {}
    along_axis = [piece.along(axis, symbolic.requested) for piece in pieces]
    # One piece may lead in several ranges.
    for piece, first, until in _leaders(along_axis, last):
        numbers = f"{first:,}" if first == until else f"{first:,} to {until:,}"
        start, text = found.get(piece, (first, f"{name} "))
        found[piece] = (start, f"{text}, {numbers}" if piece in found else f"{text}{numbers}")
    if len(symbolic.symbols) > 1:
        found = dict.fromkeys(range(len(pieces)), (last + 1, "elsewhere, if anywhere")) | found
    return found


def _leaders(lines: list["Polynomial"], last: int) -> Iterator[tuple[int, int, int]]:
    """Piece, first and last number of each range of numbers in which one piece is the largest."""
    # Python's integers: those of a hostile file do not fit into 64 bits.
    numbers = np.arange(1, last + 1).astype(object)
    values = [
        sum((n * numbers**power for (power,), n in line.terms), 0 * numbers) for line in lines
    ]
    leaders = np.argmax(np.stack(values), axis=0)
    for piece, pairs in groupby(enumerate(leaders.tolist(), 1), key=lambda pair: pair[1]):
        led = [number for number, _ in pairs]
        yield piece, led[0], led[-1]


def _polynomial_text(symbolic: "ClosedForm", piece: "Polynomial") -> str:
    """``4 B x batch x sequence^2 - 32 B``, the highest power first."""
    text = ""
    for powers, number in sorted(piece.terms, key=lambda term: (-sum(term[0]), term[0])):
        product = symbolic.monomial(powers, " x ")
        sign = " - " if number < 0 else " + "
        text += f"{sign}{abs(number):,} B" + (f" x {product}" if product else "")
    return text.removeprefix(" + ").strip() or "0 B"

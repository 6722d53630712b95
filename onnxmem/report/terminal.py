"""The text of one model: its report, its table of nodes, and what another order of execution saves.

The report names what was assumed before any figure. Sums are printed as lines that add up to the
byte, and every name from the model is escaped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from onnxmem.errors import shortened
from onnxmem.report.sections.listing import (
    assumptions,
    model_facts,
    order_text,
    partial_texts,
    sections,
)
from onnxmem.report.sections.section import Line, Note, Section
from onnxmem.report.sections.summary import (
    MOST_TENSORS,
    largest_tensors,
    one_line,
    requested_session,
    summary,
)
from onnxmem.report.text import (
    aligned,
    count_text,
    fact,
    figure,
    joined,
    paragraph,
    prose,
    rounded,
    section_lines,
    shape_text,
    spark,
    width,
)
from onnxmem.units import format_bytes, plural

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis
    from onnxmem.analysis.compute import Layer
    from onnxmem.model.graph import Graph
    from onnxmem.runtimes.ideal.schedules import Schedule


_BEFORE_TIMELINE: Final = frozenset({"run", "activations", "live", "peak-rows"})
_MOST_LINES: Final = 25
"""Of a report that is not requested in full."""
_FEWEST_TERMS: Final = 3
_MOST_LARGEST: Final = 50
"""Tensors of a training step's peak that are listed with all figures, as in JSON."""
_TIMELINE_LABEL: Final = 16
_FEWEST: Final = 8
"""Steps of a timeline: the shape of fewer shows nothing that the figures do not."""
_HEADINGS: Final = (
    *("node", "op_type", "output shape", "dtype", "output bytes"),
    *("parameters", "weight bytes", "MACs", "FLOPs"),
)
_NUM_TEXTS: Final = 4
"""Columns of text among them, aligned left; numbers are aligned right."""
_SPARE: Final = ("dtype", "weight bytes", "MACs", "op_type", "output shape", "FLOPs")
"""What a narrow table does without, the first ones first."""


def render_answer(analysis: "Analysis") -> str:
    """Write what was requested, the verdict first; it ends with a newline."""
    found = {each.key: each for each in summary(analysis)}
    written = {key: section_lines(each) for key, each in found.items()}
    rows_of = session_rows if analysis.runtimes else activation_rows
    rows = (rows_of if analysis.training is None else step_rows)(analysis)
    names = paragraph(f"{shortened(analysis.path)}  ", model_facts(analysis))
    answer = [*names, *written.pop("answer")]

    def text_of() -> str:
        others = (lines for key, lines in written.items() if key not in {"largest", "notes"})
        return joined([answer, *others, [*written.get("largest", ()), *rows]])

    notes = found["notes"].notes if "notes" in found else ()
    all_notes, fewest_notes = (len([*_note_lines(notes, at)]) for at in (-_MOST_LINES, _MOST_LINES))
    # Tensors of the peak less, then terms, are better than a report that leaves the screen; the
    # first tensors are better than notes, more of them are not.
    for shorter in _shorter(analysis, found):
        has_more = "largest" in found and len(found["largest"].lines) > MOST_TENSORS
        if text_of().count("\n") + (all_notes if has_more else fewest_notes) <= _MOST_LINES:
            break
        found[shorter.key] = shorter
        written[shorter.key] = section_lines(shorter)
    text = text_of()
    return text + "".join(f"{line}\n" for line in _note_lines(notes, text.count("\n")))


def _shorter(analysis: "Analysis", found: Mapping[str, Section]) -> Iterator[Section]:
    """Sections that a report can have instead, the least loss first."""
    if "largest" in found:
        for most in reversed(range(1, len(found["largest"].lines))):
            shorter = largest_tensors(analysis, most)
            if shorter is not None:
                yield shorter
    terms = found.get("terms")
    while terms is not None and len(terms.lines) > _FEWEST_TERMS:
        terms = _with_others(terms)
        yield terms


def _with_others(section: Section) -> Section:
    """The last two terms as one."""
    *shown, one, two = section.lines
    rest = Line("others", (one.number or 0) + (two.number or 0), "smaller ones: -v")
    return replace(section, lines=(*shown, rest))


def _note_lines(notes: Sequence[Note], num_lines: int) -> Iterator[str]:
    """The notes that a report of so many lines has place for."""
    for place, note in enumerate(notes):
        lines = prose("note: ", f"{note.label}: {note.words}")
        num_after = len(notes) - place - 1
        if num_lines + len(lines) + bool(num_after) > _MOST_LINES:
            yield f"note: {num_after + 1:,} {'more' if place else 'not shown'}: -v"
            return
        num_lines += len(lines)
        yield from lines


def render_line(analysis: "Analysis") -> str:
    """Write the answer in one line."""
    return f"{one_line(analysis)}\n"


def render(analysis: "Analysis") -> str:
    """Write every figure; it ends with a newline."""
    written = [(each.key, section_lines(each)) for each in sections(analysis)]
    blocks = [
        _head(analysis),
        *(lines for key, lines in written if key in _BEFORE_TIMELINE),
        timeline_lines(analysis),
        *(
            [*lines, *_largest(analysis)] if key == "train" else lines
            for key, lines in written
            if key not in _BEFORE_TIMELINE
        ),
    ]
    return joined(blocks)


def _head(analysis: "Analysis") -> list[str]:
    """Name the model and say what was assumed, before any figure."""
    lines = paragraph(f"{shortened(analysis.path)}  ", model_facts(analysis))
    lines += paragraph("assumes: ", assumptions(analysis))
    for text in partial_texts(analysis):
        lines += prose("", text)
    return lines


def _largest(analysis: "Analysis") -> Iterator[str]:
    """The largest tensors alive at the peak of a training step."""
    # It imports the training step, which a report of inference does without.
    from onnxmem.report.sections.training import live_lines

    if analysis.training is not None:
        yield "  largest tensors"
        lines = [*live_lines(analysis.training)]
        for line in lines[:_MOST_LARGEST]:
            yield figure("", line.number, line.label)
        if len(lines) > _MOST_LARGEST:
            more = (
                f"and {len(lines) - _MOST_LARGEST:,} more: onnxmem export --format torch-snapshot"
            )
            yield fact("", more)


def timeline_lines(analysis: "Analysis") -> list[str]:
    """Activations over the nodes, and live bytes of a training step, phase by phase."""
    rows = [*activation_rows(analysis), *step_rows(analysis)]
    head = "Timeline, live bytes from the first step to the last, the tallest at the peak"
    return [*prose("", head), *rows] if rows else []


def activation_rows(analysis: "Analysis") -> list[str]:
    """Live activations of inference over the nodes."""
    return _live_row("activations", analysis.activations.live_bytes)


def session_rows(analysis: "Analysis") -> list[str]:
    """What the kernels of a session have requested, over the nodes that it runs."""
    runtime = requested_session(analysis)
    return [] if runtime is None else _live_row("session", runtime.arena.replay.step_bytes.tolist())


def _live_row(label: str, live_bytes: Sequence[int]) -> list[str]:
    if len(live_bytes) < _FEWEST or not any(live_bytes):
        return []
    return [_timeline_row(label, spark(live_bytes, width() - _TIMELINE_LABEL))]


def step_rows(analysis: "Analysis") -> list[str]:
    """A row of blocks on one scale, and under each phase its name, cut to the phase's width."""
    training = analysis.training
    if training is None:
        return []
    # It imports the training step, which a report of inference does without.
    from onnxmem.report.timelines import step_timeline

    timeline = step_timeline(training.replay)
    sums = timeline.sums
    if len(sums) < _FEWEST:
        return []
    starts = [*(mark.start for mark in timeline.marks), len(sums)]
    # Every phase gets a column, however few its steps: as many are reserved for that.
    columns = width() - _TIMELINE_LABEL - 2 * len(timeline.marks)
    bars, names = [], []
    for mark, stop in zip(timeline.marks, starts[1:], strict=True):
        part = sums[mark.start : stop]
        room = max(len(part) * columns // max(len(sums), columns), 1)
        bars.append(spark(part, room, top=max(sums)))
        names.append(mark.name[:room].ljust(room))
    return [_timeline_row("training step", "|".join(bars)), _timeline_row("", "|".join(names))]


def _timeline_row(label: str, text: str) -> str:
    return f"{'  ' + label:<{_TIMELINE_LABEL}}{text}".rstrip()


def render_layers(analysis: "Analysis") -> str:
    """Write a line per node, in running order; it ends with a newline."""
    # A report without --layers does not need it.
    from onnxmem.analysis.compute import layers

    nodes = layers(analysis.graph, analysis.parameters, analysis.compute)
    return aligned([_HEADINGS, *map(_layer_cells, nodes)], _NUM_TEXTS, _SPARE)


def _layer_cells(layer: "Layer") -> tuple[str, ...]:
    counts = (
        *(layer.output_bytes, layer.num_parameters, layer.weight_bytes),
        *(layer.macs, layer.flops),
    )
    return (
        *(shortened(layer.node), shortened(layer.op_type)),
        *(shape_text(layer.output_shape), layer.dtype or "?"),
        *map(count_text, counts),
    )


def render_gain(name: str, graph: "Graph", schedule: "Schedule", own: tuple[int, int]) -> str:
    """What a copy in the new order saves; ``own``: peaks in onnxruntime's order, old and new."""
    file_bytes, best_bytes = schedule.file_in_place_peak_bytes, schedule.peak_bytes
    unknown = sum(graph.tensors[x].size_bytes is None for n in graph.nodes for x in n.writes)
    return "\n".join(
        (
            f"{shortened(name)}  {plural(len(graph.nodes), 'node')}",
            rounded("Peak activation memory", best_bytes, order_text(schedule)),
            rounded("  in file's order", file_bytes),
            fact("  saved", _saved(file_bytes, best_bytes)),
            rounded("onnxruntime by default", own[0], "of the file: it runs an order of its own"),
            *((rounded("", own[1], "of the copy"),) if best_bytes < file_bytes else ()),
            *(
                (f"warning: {plural(unknown, 'tensor')} of unknown size left out",)
                if unknown
                else ()
            ),
            "",
        )
    )


def _saved(file_bytes: int, best_bytes: int) -> str:
    if best_bytes == file_bytes:
        return "nothing"
    saved = file_bytes - best_bytes
    return f"{format_bytes(saved)}, {100 * saved / file_bytes:.1f} %"

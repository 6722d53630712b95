"""The top of the page: what it takes, what that assumes, what it fits, and the slider."""

from collections.abc import Iterator
from html import escape

from onnxmem.analysis import Analysis
from onnxmem.analysis.fitting import BASES, basis_for
from onnxmem.errors import shortened
from onnxmem.report.assumptions import assumptions, model_facts, partial_texts
from onnxmem.report.page import markup
from onnxmem.report.page.figure import figure, verdict
from onnxmem.report.page.markup import Cell, section
from onnxmem.report.page.stops import BUDGET, Stops, places_shown
from onnxmem.report.page.terms import NAMES
from onnxmem.report.verdict import reach_lines, terms_lines
from onnxmem.units import format_bytes


def head_section(analysis: Analysis, stops: Stops) -> str:
    """The answers as cards, the assumptions before them."""
    facts = escape(", ".join(model_facts(analysis)))
    assumed = escape(", ".join(assumptions(analysis)))
    partial = "".join(f'<p class="warning">{escape(t)}</p>' for t in partial_texts(analysis))
    cards = "".join(
        f'<div class="card"><h3>{escape(label)}</h3>{figure(key, stops.asked.figures)}'
        f"<p>{escape(remark)}</p></div>"
        for label, key, remark in _answers(analysis)
    )
    return (
        f'<section id="head" aria-label="the model"><p class="facts">{facts}</p>'
        f'<p class="assumes"><b>assumes:</b> {assumed}</p>{partial}</section>{_slider(stops)}'
        f'<section id="answers" aria-label="in short"><div class="cards">{cards}</div></section>'
    )


def _answers(analysis: Analysis) -> Iterator[tuple[str, str, str]]:
    """What it takes: label, figure and what it is."""
    yield "RUN", "total_bytes", "weights + inputs + in-place peak"
    if analysis.training is not None:
        yield "TRAIN", "training.peak_bytes", "peak of one training step"
    if analysis.torch is not None:
        yield "ON CUDA", "training.cuda.total_bytes", "reserved by PyTorch, and the context"
    for number, runtime in enumerate(analysis.runtimes):
        if runtime.name == "ort-cuda":
            yield NAMES[runtime.name], f"runtimes.{number}.held_steady_bytes", "held by its arena"
        else:
            yield NAMES[runtime.name], f"runtimes.{number}.process_bytes", "the whole process"
    if analysis.kv_cache is not None and analysis.kv_cache.context is not None:
        yield "KV CACHE", "kv_cache.bytes", f"at {analysis.kv_cache.context:,} tokens"


def _slider(stops: Stops) -> str:
    """The control of the batch; hidden without a script, which could not move a figure."""
    if not stops.can_move:
        return ""
    batch, last = stops.asked.batch, stops.last
    buttons = "".join(
        f'<button type="button" data-batch="{each}">{each:,}</button>' for each in stops.batches
    )
    return (
        '<form class="slider" id="onnxmem-batch" hidden>'
        '<label for="onnxmem-batch-range">batch</label>'
        f'<input type="range" id="onnxmem-batch-range" min="1" max="{last}" value="{batch}">'
        f'<input type="number" id="onnxmem-batch-number" min="1" max="{last}" value="{batch}"'
        ' aria-label="batch, as a number">'
        f'<span class="stops" role="group" aria-label="batches at which every figure is known">'
        f"{buttons}</span>"
        '<p id="onnxmem-batch-note" role="status"></p></form>'
    )


def fits_section(analysis: Analysis, stops: Stops) -> str:
    """What it fits: the budget, or the sizes that GPUs come in."""
    if analysis.settings.budget_bytes is not None:
        return _budget_section(analysis, stops, analysis.settings.budget_bytes)
    rows = [
        (
            Cell(escape(place.name)),
            Cell(markup.size(place.limit_bytes), place.limit_bytes, is_number=True),
            Cell(verdict(place.name, stops.asked.figures)),
        )
        for place in places_shown(None)
    ]
    asked = analysis.settings
    runtime = next(iter(asked.runtimes), None)
    basis = basis_for(None, train=asked.train, runtime=runtime, basis=asked.basis)
    remark = f"Compared: {BASES[basis]}. A card may offer a program less than it is sold with."
    heads = (("memory", False), ("size", True), ("verdict", False))
    return section("fits", "What it fits", markup.table("fits-table", heads, rows), remark)


def _budget_section(analysis: Analysis, stops: Stops, budget_bytes: int) -> str:
    batch = analysis.settings.batch
    this = "this model" if batch is None else f"batch <span data-batch-number>{batch:,}</span>"
    said = verdict(BUDGET, stops.asked.figures)
    lines = [("budget", markup.size(budget_bytes), f"{this} {said}")]
    if analysis.fit is not None:
        # The lines of the text report, at the batch that was asked for.
        told = (*terms_lines(analysis.fit.standing), *reach_lines(analysis.fit))
        words = escape("\n".join(told))
        after = f'<pre class="verdict-terms">{words}</pre>'
    else:
        after = ""
    if analysis.rule_max_batch is not None:
        rule = "= budget / 4 / (tensor elements + parameters)"
        lines.append(("rule of thumb", f"batch {analysis.rule_max_batch:,}", rule))
    rows = "".join(
        f'<tr><th scope="row">{label}</th><td class="num">{size}</td><td>{remark}</td></tr>'
        for label, size, remark in lines
    )
    table = (
        '<div class="scroll" tabindex="0" role="region" aria-label="What it fits">'
        f'<table class="terms"><tbody>{rows}</tbody></table>{after}</div>'
    )
    return section("fits", "What it fits", table)


def coverage_section(analysis: Analysis) -> str:
    """How far the figures can be relied on, and what was found."""
    known = analysis.coverage
    lines = [f"{len(known.assumed_nodes):,} of {known.num_nodes:,} nodes assumed."]
    if known.unknown_tensors:
        count = len(known.unknown_tensors)
        lines.append(f"{count:,} tensors of unknown size: figures are lower bounds.")
    body = "".join(f"<p>{line}</p>" for line in lines)
    body += _names("assumed nodes", known.assumed_nodes)
    body += _names("unknown tensors", known.unknown_tensors)
    found = "".join(
        f"<li><code>{escape(each.code)}</code> {markup.prose(each.message)}"
        f"{f' ({markup.name(each.node)})' if each.node else ''}</li>"
        for each in analysis.findings
    )
    if found:
        body += f'<h3>Findings</h3><ul class="findings">{found}</ul>'
    return section("coverage", "Coverage and findings", body)


_MOST_NAMED = 50


def _names(label: str, names: tuple[str, ...]) -> str:
    if not names:
        return ""
    shown = ", ".join(markup.name(shortened(name)) for name in names[:_MOST_NAMED])
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return f'<p class="remark">{label}: <span class="name">{shown}</span>{more}</p>'


def title_of(analysis: Analysis) -> str:
    """The model's name and what it takes, as a window's title has room for."""
    training = analysis.training
    ours = analysis.total_bytes if training is None else training.peak_bytes
    return f"{shortened(analysis.path)}: {format_bytes(ours)}"

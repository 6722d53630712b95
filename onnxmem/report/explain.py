"""What a figure, a code or an out-of-memory message means, as text and as JSON."""

from collections.abc import Iterator, Sequence
from typing import Final

from onnxmem.analysis.fitting.verdicts import BASES
from onnxmem.analysis.json_rows import JsonDict
from onnxmem.decisions.explain.glossary import Code, Metric, MetricValue, codes, metrics
from onnxmem.decisions.explain.out_of_memory import Candidate, OomReport, OutOfMemory, is_shape
from onnxmem.errors import printable, shortened
from onnxmem.report.text import fact, figure, finding_lines, finding_rows, laid_out, prose
from onnxmem.report.verdict import reach_lines, terms_lines, verdict_text
from onnxmem.units import format_count, plural

_INDENT: Final = f"{'':<26}"
_MOST: Final = 6
"""Tensors that a text lists; JSON has more."""


def render_list() -> str:
    """Every figure and every code, a line each."""
    lines = ["FIGURES"]
    lines += [fact(f"  {_name(each)}", each.key) for each in metrics()]
    lines += ["", "CODES"]
    lines += [fact(f"  {each.id} {each.word}", each.title) for each in codes()]
    return "\n".join(lines) + "\n"


def render_code(code: Code) -> str:
    """One code."""
    lines = [fact(f"{code.id} {code.word}", code.title)]
    lines += prose(f"{'  why it matters':<26}", code.why)
    lines += prose(f"{'  what to do':<26}", code.act)
    return "\n".join(lines) + "\n"


def code_row(code: Code) -> JsonDict:
    """The same in JSON."""
    return {
        "kind": "code",
        "id": code.id,
        "code": code.word,
        "title": code.title,
        "why": code.why,
        "act": code.act,
    }


def render_metric(metric: Metric, path: str | None, value: MetricValue | None) -> str:
    """One figure, and what it is on a model."""
    lines = [fact(_name(metric), metric.key)]
    where = "" if metric.definition is None else f" (definition {metric.definition})"
    lines += prose(f"{'  is':<26}", metric.text + where)
    lines += prose(f"{'  formula':<26}", metric.formula)
    if path is not None and value is not None:
        lines += ["", *_value(metric, path, value)]
    return "\n".join(lines) + "\n"


def metric_row(metric: Metric, value: MetricValue | None) -> JsonDict:
    """The same in JSON; without a model ``value`` is null and there are no parts."""
    return {
        "kind": "metric",
        "key": metric.key,
        "labels": list(metric.labels),
        "definition": metric.definition,
        "text": metric.text,
        "formula": metric.formula,
        "value": None if value is None else value.number,
        "parts": [
            {"name": printable(name), "bytes": size}
            for name, size in (() if value is None else value.parts)
        ],
    }


def _name(metric: Metric) -> str:
    return metric.labels[0] if metric.labels else metric.key.rpartition(".")[2]


def _value(metric: Metric, path: str, value: MetricValue) -> Iterator[str]:
    if not metric.is_bytes:
        yield fact(_name(metric), f"{format_count(value.number)}   {shortened(path)}")
        return
    yield figure(_name(metric), value.number, shortened(path))
    for name, size_bytes in value.parts:
        yield figure("", size_bytes, shortened(name))


def render_message(message: OutOfMemory, path: str | None, inquest: OomReport | None) -> str:
    """A message, and what a model says to it."""
    lines = [fact("MESSAGE", f"of {message.program}")]
    lines += prose(f"{'  means':<26}", message.meaning)
    lines += _asked(message)
    if message.node is not None or message.op_type is not None:
        words = [word for word in (message.node, message.op_type) if word]
        lines.append(fact("  at", shortened(", ".join(words))))
    for label, num_bytes in (
        ("  capacity", message.capacity_bytes),
        ("  free", message.free_bytes),
        ("  the process had", message.held_bytes),
    ):
        if num_bytes is not None:
            lines.append(figure(label, num_bytes))
    if path is not None and inquest is not None:
        lines += ["", *_inquest(message, path, inquest)]
    elif message.sizes is not None:
        lines += [
            "",
            fact("NEXT", "name a model, and --batch, to see which tensors have that size"),
        ]
    return "\n".join(lines) + "\n"


def _asked(message: OutOfMemory) -> list[str]:
    sizes = message.sizes
    if message.shape is not None:
        shape = fact("  shape", "x".join(map(str, message.shape)) or "a scalar")
        return [shape, *([] if sizes is None else [figure("  asked for", sizes.most_bytes)])]
    if sizes is None:
        return []
    if sizes.least_bytes == sizes.most_bytes:
        return [figure("  asked for", sizes.most_bytes)]
    return [
        figure("  asked for at most", sizes.most_bytes),
        figure("  and at least", sizes.least_bytes, "it is rounded before it is printed"),
    ]


def _inquest(message: OutOfMemory, path: str, inquest: OomReport) -> Iterator[str]:
    batch = "no batch" if inquest.batch is None else f"batch {inquest.batch:,}"
    yield fact("MODEL", f"{shortened(path)}, {batch}")
    if message.sizes is not None:
        yield from _found(message, inquest, batch)
    yield from _fits(inquest)


def _found(message: OutOfMemory, inquest: OomReport, batch: str) -> Iterator[str]:
    if inquest.at_batch:
        yield fact(f"  at {batch}", f"{plural(inquest.num_at_batch, 'tensor')} of that size")
        yield from _candidates(inquest.at_batch, inquest.num_at_batch, message)
    else:
        yield fact(f"  at {batch}", "no tensor has that size")
    if inquest.is_pattern_block:
        yield figure(
            "  pattern block",
            inquest.pattern_block_bytes,
            "the one piece of run 2: it has that size",
        )
    elif inquest.pattern_block_bytes is not None and not inquest.at_batch:
        yield figure("  pattern block", inquest.pattern_block_bytes, "not it, as predicted")
    if inquest.at_others and not (inquest.at_batch or inquest.is_pattern_block):
        count = plural(inquest.num_at_others, "tensor")
        yield fact("  at other batches", f"{count} would have it")
        yield from _candidates(inquest.at_others, inquest.num_at_others, message)
    if not (inquest.at_batch or inquest.at_others or inquest.is_pattern_block):
        text = (
            "a kernel's workspace, several tensors in one piece, dims other than these (--dim, "
            "--shape), a training step (--train), or another model of the process"
        )
        yield from prose(f"{'  it can be':<26}", text)


def _candidates(candidates: Sequence[Candidate], count: int, message: OutOfMemory) -> Iterator[str]:
    for candidate in candidates[:_MOST]:
        yield from _suspect(candidate, message)
    more = count - min(len(candidates), _MOST)
    if more:
        yield f"{_INDENT}and {more:,} more"


def _suspect(candidate: Candidate, message: OutOfMemory) -> Iterator[str]:
    batch = "" if candidate.batch is None else f"batch {candidate.batch:,}"
    maker = candidate.role if candidate.node is None else f"{candidate.op_type} {candidate.node}"
    marks = [
        *(("the node of the message",) if candidate.is_named else ()),
        *(("its shape",) if is_shape(candidate, message.shape) else ()),
        *((candidate.graph,) if candidate.graph != "file" else ()),
    ]
    told = f"{candidate.tensor}  by {maker}" + (f"  ({', '.join(marks)})" if marks else "")
    yield figure(f"    {batch}", candidate.size_bytes, shortened(told, 2000))


def _fits(inquest: OomReport) -> Iterator[str]:
    assessment, answer = inquest.assessment, inquest.answer
    if assessment is None:
        yield fact("  takes", f"unknown: {BASES[inquest.basis]}")
        return
    yield from laid_out(terms_lines(assessment))
    if answer is not None:
        capacity_bytes = answer.setup.memory_bytes
        told = verdict_text(answer.verdict, answer.footprint.total_bytes, capacity_bytes)
        yield figure("  capacity", capacity_bytes, f"{told}, were it free altogether", wraps=True)
        yield from laid_out(reach_lines(answer))
    yield from finding_lines(assessment.findings, "  ")


def message_row(message: OutOfMemory, inquest: OomReport | None) -> JsonDict:
    """The same in JSON; unknown is null."""
    sizes = message.sizes
    return {
        "kind": "message",
        "program": message.program,
        "meaning": message.meaning,
        "least_bytes": None if sizes is None else sizes.least_bytes,
        "most_bytes": None if sizes is None else sizes.most_bytes,
        "shape": None if message.shape is None else list(message.shape),
        "node": None if message.node is None else printable(message.node),
        "op_type": message.op_type,
        "capacity_bytes": message.capacity_bytes,
        "free_bytes": message.free_bytes,
        "held_bytes": message.held_bytes,
        "model": None if inquest is None else _inquest_row(inquest),
    }


def _inquest_row(inquest: OomReport) -> JsonDict:
    assessment, answer = inquest.assessment, inquest.answer
    max_batch = None if answer is None else answer.max_batch
    is_whole = assessment is not None and assessment.footprint.is_whole
    return {
        "batch": inquest.batch,
        "at_batch": _suspect_rows(inquest.at_batch),
        "num_at_batch": inquest.num_at_batch,
        "at_others": _suspect_rows(inquest.at_others),
        "num_at_others": inquest.num_at_others,
        "pattern_block_bytes": inquest.pattern_block_bytes,
        "is_pattern_block": inquest.is_pattern_block,
        "basis": inquest.basis.value,
        "predicted_bytes": assessment.footprint.total_bytes if assessment and is_whole else None,
        "largest_batch": None if max_batch is None else max_batch.number,
        "verdict": None if answer is None else answer.to_dict(),
        "findings": [] if assessment is None else finding_rows(assessment.findings),
    }


def _suspect_rows(candidates: Sequence[Candidate]) -> list[JsonDict]:
    return [
        {
            "tensor": printable(each.tensor),
            "node": None if each.node is None else printable(each.node),
            "op_type": each.op_type,
            "role": each.role,
            "bytes": each.size_bytes,
            "batch": each.batch,
            "shape": None if each.shape is None else list(each.shape),
            "is_named": each.is_named,
            "graph": each.graph,
        }
        for each in candidates
    ]

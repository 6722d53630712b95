"""What a figure, a code or an out-of-memory message means, as text and as JSON.

A message is compared with the tensors of a model: an ``OomReport`` has the candidates.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.coverage import unbound_dims_text
from onnxmem.analysis.fitting.verdicts import BASES, AnyBasis, Basis, Verdict
from onnxmem.analysis.json_rows import JsonDict, spread_row
from onnxmem.analysis.observed_memory import Spread
from onnxmem.decisions.explain.glossary import Code, Metric, MetricValue, codes, metrics
from onnxmem.decisions.explain.messages import OutOfMemory
from onnxmem.decisions.explain.out_of_memory import Candidate, OomReport, is_shape
from onnxmem.decisions.explain.rules import RULES
from onnxmem.decisions.explain.tensors import TensorSize
from onnxmem.decisions.explain.topics import Topic, topics
from onnxmem.errors import printable, shell_words, shortened
from onnxmem.model.graph import DType
from onnxmem.report.rules import rule_lines
from onnxmem.report.text import fact, factor, figure, finding_lines, finding_rows, laid_out, rounded
from onnxmem.report.verdict import assessment_lines, max_batch_lines, verdict_text
from onnxmem.units import format_bytes, format_count, plural

_MOST: Final = 6
"""Tensors that a text lists; JSON has more."""
_FLAGS: Final[Mapping[AnyBasis, str]] = MappingProxyType(
    {
        Basis.TORCH: " --train",
        Basis.STEP: " --train --basis tensors",
        Basis.ORT_CPU: " --runtime ort-cpu",
        Basis.ORT_CUDA: " --runtime ort-cuda",
    }
)
"""Of ``fit``, for the figure that is compared."""
_COMPARED_TYPES: Final = (DType.FLOAT32, DType.FLOAT16, DType.INT8, DType.INT4)
"""Types that people choose from when they want a tensor smaller."""


def render_list() -> str:
    """Every figure and every code, a line each."""
    lines = ["Figures"]
    lines += [fact(f"  {_name(each)}", each.key) for each in metrics()]
    lines += ["", "Codes"]
    lines += [fact(f"  {each.id} {each.word}", each.title) for each in codes()]
    lines += ["", "Questions"]
    lines += [fact(f"  {each.name}", each.commands[0]) for each in topics()]
    return "\n".join(lines) + "\n"


def render_questions(question: str, near: Sequence[Topic]) -> str:
    """The nearest questions that have an answer, the most similar first."""
    lines = [fact("No one answer", f"to {shortened(' '.join(question.split()))}; the nearest:")]
    lines += [fact("  onnxmem explain", f'"{each.name}"') for each in near]
    lines.append(fact("  or", "onnxmem explain, which lists all questions, figures and codes"))
    return "\n".join(lines) + "\n"


def questions_row(near: Sequence[Topic]) -> JsonDict:
    """The nearest questions that have an answer in JSON."""
    return {"kind": "questions", "topics": [each.name for each in near]}


def where_text(path: str, analysis: Analysis) -> str:
    """The model that a figure is of, the batch if it has one, and dims that count as 1."""
    batch, guessed = analysis.settings.batch, analysis.guessed_dims
    parts = [] if batch is None else [f"batch {batch:,}"]
    parts += [shortened(unbound_dims_text(guessed))] if guessed else []
    return ", ".join((shortened(path), *parts))


def render_topic(
    topic: Topic,
    near: Sequence[str],
    where: str = "",
    values: Sequence[tuple[Metric, MetricValue]] = (),
    notes: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> str:
    """The answer to a question, its figures on a model, and what is near it.

    ``notes`` are lines under a figure, by its key.
    """
    lines = [fact(topic.name[0].upper() + topic.name[1:], topic.text)]
    if values:
        lines += ["", fact("Model", where)]
        for metric, value in values:
            lines += _value(metric, "", value, rounded)
            lines += notes.get(metric.key, ())
        lines.append("")
    lines += [fact("" if at else "  try", each) for at, each in enumerate(topic.commands)]
    other = [*topic.see, *(name for name in near if name not in topic.see)]
    if other:
        lines.append(fact("  onnxmem explain", ", ".join(other)))
    return "\n".join(lines) + "\n"


def topic_row(topic: Topic) -> JsonDict:
    """The answer to a question in JSON."""
    return {
        "kind": "topic",
        "topic": topic.name,
        "text": topic.text,
        "commands": list(topic.commands),
        "see": list(topic.see),
    }


def render_code(code: Code) -> str:
    """One code."""
    lines = [fact(f"{code.id} {code.word}", code.title)]
    lines.append(fact("  why it matters", code.why))
    lines.append(fact("  what to do", code.act))
    return "\n".join(lines) + "\n"


def render_tensor(tensor: TensorSize) -> str:
    """The size of a tensor, and of as many elements of other types; or of an element type."""
    name = f"{tensor.dtype}{' (assumed)' if tensor.is_assumed else ''}"
    bits = tensor.dtype.bits
    if bits is None:
        each = "as long as their texts"
    else:
        each = f"{bits // 8} B" if bits % 8 == 0 else f"{bits} bits, packed"
    if tensor.shape is None:
        return "\n".join([fact("Element type", name), fact("  per element", each)]) + "\n"
    lines = [fact("Tensor", f"{'x'.join(map(str, tensor.shape))} {name}")]
    lines.append(fact("  elements", f"{tensor.num_elements:,}"))
    lines.append(figure("  size", tensor.size_bytes, f"per element: {each}"))
    lines += [
        figure(f"  in {dtype}", tensor.bytes_in(dtype))
        for dtype in _COMPARED_TYPES
        if dtype is not tensor.dtype
    ]
    return "\n".join(lines) + "\n"


def tensor_row(tensor: TensorSize) -> JsonDict:
    """A tensor or an element type in JSON; unknown is null."""
    return {
        "kind": "tensor",
        "element_type": tensor.dtype.value,
        "element_type_assumed": tensor.is_assumed,
        "element_bits": tensor.dtype.bits,
        "shape": None if tensor.shape is None else list(tensor.shape),
        "elements": None if tensor.shape is None else tensor.num_elements,
        "bytes": None if tensor.shape is None else tensor.size_bytes,
    }


def code_row(code: Code) -> JsonDict:
    """A code in JSON."""
    return {
        "kind": "code",
        "id": code.id,
        "code": code.word,
        "title": code.title,
        "why": code.why,
        "act": code.act,
    }


def render_metric(
    metric: Metric, where: str | None, value: MetricValue | None, more: Iterable[str] = ()
) -> str:
    """One figure: what it is on a model, with ``more`` lines about that, and what it means.

    ``where`` is the model and its batch.
    """
    lines = []
    if where is not None and value is not None:
        lines += [*_value(metric, where, value), *more, ""]
    lines.append(fact(_name(metric), metric.key))
    lines.append(fact("  is", metric.text))
    lines.append(fact("  formula", metric.formula))
    rule = next((each for each in RULES if metric.key == f"rules_of_thumb.{each.key}"), None)
    if rule is not None:
        lines += rule_lines(rule)
        terms = "the terms of each rule, a worked example, and why Keras users see 4.5 x"
        lines.append(fact("  see", f"onnxmem explain rules MODEL: {terms}"))
    return "\n".join(lines) + "\n"


def metric_row(metric: Metric, value: MetricValue | None) -> JsonDict:
    """A figure in JSON; without a model ``value`` is null and there are no parts."""
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
        "assumed": None if value is None or value.assumed is None else value.assumed.to_dict(),
        "ends": None if value is None or value.ends is None else list(value.ends),
        **(
            {}
            if value is None or value.observed is None
            else {"observed": spread_row(value.observed)}
        ),
    }


def _name(metric: Metric) -> str:
    return metric.labels[0] if metric.labels else metric.key.rpartition(".")[2]


def _value(
    metric: Metric, where: str, value: MetricValue, sized: Callable[..., str] = figure
) -> Iterator[str]:
    if not metric.is_bytes:
        short = format_count(value.number)
        exact = "" if value.number is None else f"{value.number:,}"
        number = short if exact in {"", short} else f"{short}   {exact}"
        yield fact(_name(metric), f"{number}   {where}".rstrip())
        return
    yield sized(_name(metric), value.number, where)
    assumed = value.assumed
    if assumed is not None:
        yield sized("  assumed, at least", assumed.low_bytes)
        yield sized("  and at most", assumed.high_bytes, assumed.source)
    if value.ends is not None:
        least_bytes, most_bytes = value.ends
        yield sized("  at least", least_bytes, "the data of a run decide")
        yield sized("  at most", most_bytes, value.ways)
    if value.observed is not None:
        yield sized("  observed", value.observed.most, spread_text(value.observed))
    for name, size_bytes in value.parts:
        yield sized("", size_bytes, shortened(name))


def beside_lines(metric: Metric, value: MetricValue) -> Iterator[str]:
    """A figure beside the one that is explained, without its parts."""
    return _value(metric, "", replace(value, parts=()), rounded)


def spread_text(spread: Spread) -> str:
    """What a figure was in observed runs, beside the most."""
    if spread.least == spread.most:
        return "in observed runs; other inputs may take more"
    least, median = format_bytes(spread.least), format_bytes(spread.median)
    return f"in the largest observed run, {least} at least, {median} median; others may take more"


_MOST_UNNAMED: Final = 6
_BEFORE_EXPANDABLE: Final = (
    " (PyTorch 2.1 or later; before, max_split_size_mb:128 keeps larger blocks from being split)"
)


def render_message(
    message: OutOfMemory, path: str | None, report: OomReport | None, flags: Sequence[str] = ()
) -> str:
    """A message, and the tensors of a model that can be what it requests; ``flags`` chose its other
    dims and its training.
    """
    lines = list[str]()
    if path is not None and report is not None:
        lines += [*_answer(path, report, flags), *_where_it_ran(message, report), ""]
    lines.append(fact("Message", f"of {message.program}"))
    lines.append(fact("  means", message.meaning))
    lines += _request(message)
    if message.node is not None or message.op_type is not None:
        words = [word for word in (message.node, message.op_type) if word]
        lines.append(fact("  at", shortened(", ".join(words))))
    if message.device is not None:
        lines.append(fact("  device", message.device))
    lines += _device_memory(message)
    why = _why(message)
    if why is not None:
        lines.append(fact("  why", why))
    if message.unnamed:
        named = ", ".join(message.unnamed[:_MOST_UNNAMED])
        more = len(message.unnamed) - _MOST_UNNAMED
        text = f"{named}{f' and {more} more' if more > 0 else ''}: the message does not say of what"
        lines.append(fact("  other sizes", text))
    if report is not None and message.sizes is not None:
        lines += _found(message, report)
    elif message.sizes is not None:
        lines += [
            "",
            fact("Next", "name a model, and --batch, to see which tensors have that size"),
        ]
    return "\n".join(lines) + "\n"


def _device_memory(message: OutOfMemory) -> Iterator[str]:
    """The memory of the device as the message gives it."""
    is_split = message.allocated_bytes not in {None, message.used_bytes}
    is_of_torch = message.allocator_variable is not None and message.allocated_bytes is not None
    used = "  allocated" if is_of_torch and not is_split else "  in use"
    for label, num_bytes, note in (
        ("  capacity", message.capacity_bytes, ""),
        ("  free", message.free_bytes, ""),
        (used, message.used_bytes, "by this process" if is_split else ""),
        ("  allocated", message.allocated_bytes if is_split else None, "of that, by tensors"),
        ("  reserved", message.reserved_bytes, "by the allocator, allocated or not"),
        ("  not allocated", message.unallocated_bytes, "reserved, and in no tensor"),
        ("  other processes", message.others_bytes, "the rest of the capacity"),
        ("  not PyTorch's", message.outside_bytes, "the context, and other processes"),
        ("  peak", message.peak_bytes, ""),
    ):
        if num_bytes is not None:
            yield rounded(label, num_bytes, note)


def _why(message: OutOfMemory) -> str | None:
    """What the sizes of PyTorch's caching allocator say about the cause."""
    variable, free_bytes = message.allocator_variable, message.free_bytes
    if message.sizes is None or variable is None:
        return None
    if free_bytes is not None and free_bytes > message.sizes.most_bytes:
        return (
            "more is free than was requested: a limit of the process (a fraction that the program "
            "set), or another process that took it and gave it back"
        )
    spare = f"{format_bytes(message.spare_bytes)} is reserved and in no tensor"
    if message.is_fragmented:
        before = _BEFORE_EXPANDABLE if message.program == "PyTorch on CUDA" else ""
        return (
            f"fragmentation: {spare}, but in pieces too small for the request: {_sum_of(message)}. "
            f"{variable}=expandable_segments:True lets segments grow in place of new ones{before}"
        )
    if message.is_fragmented is False:
        return (
            f"not fragmentation: {spare}, which is less than the request, with what is free too: "
            f"{_sum_of(message)}"
        )
    return None


def _sum_of(message: OutOfMemory) -> str:
    """What is free or spare beside the request, as the message gives it."""
    free_bytes, spare_bytes = message.free_bytes or 0, message.spare_bytes or 0
    spare = f"{format_bytes(spare_bytes)} not allocated"
    if message.unallocated_bytes is None:
        reserved, allocated = message.reserved_bytes, message.allocated_bytes
        spare = f"{format_bytes(reserved)} reserved - {format_bytes(allocated)} allocated"
    most_bytes = None if message.sizes is None else message.sizes.most_bytes
    return (
        f"{spare} + {format_bytes(free_bytes)} free = {format_bytes(free_bytes + spare_bytes)} "
        f"{'>=' if message.is_fragmented else '<'} {format_bytes(most_bytes)} requested"
    )


def _request(message: OutOfMemory) -> list[str]:
    sizes = message.sizes
    if message.shape is not None:
        shape = fact("  shape", "x".join(map(str, message.shape)) or "a scalar")
        of_type = f"elements of {message.element_type}"
        if message.element_type is None:
            of_type = "float32 is assumed: the message does not name a type"
        return [
            shape,
            *([] if sizes is None else [figure("  requested", sizes.most_bytes, of_type)]),
        ]
    if message.rivals:
        either = " or ".join(f"{each:,} B" for each in message.rivals)
        return [fact("  requested", f"{either}: the message does not say which")]
    if sizes is None:
        return []
    if sizes.least_bytes == sizes.most_bytes:
        return [figure("  requested", sizes.most_bytes)]
    return [
        figure("  requested at most", sizes.most_bytes),
        figure("  and at least", sizes.least_bytes, "it is rounded before it is printed"),
    ]


def _answer(path: str, report: OomReport, flags: Sequence[str]) -> Iterator[str]:
    """What the model takes of the device, the largest batch, and what follows."""
    yield fact("Model", f"{shortened(path)}, {_batch_text(report)}")
    yield from _fits(report)
    yield from _next(path, report, flags)


def _where_it_ran(message: OutOfMemory, report: OomReport) -> Iterator[str]:
    """What to add for a GPU, where neither the message nor the user names the device."""
    is_open = message.program == "onnxruntime" and message.device is None
    if is_open and report.basis is Basis.ORT_CPU:
        yield fact("  on a GPU", "add --runtime ort-cuda: its kernels and sizes are others")


def _batch_text(report: OomReport) -> str:
    return "no batch" if report.batch is None else f"batch {report.batch:,}"


def _next(path: str, report: OomReport, flags: Sequence[str]) -> Iterator[str]:
    """The command that goes on from a message, unless the model fits."""
    result = report.fit_result
    if report.assessment is None or (result is not None and result.verdict is not Verdict.OVER):
        return
    size = "CAPACITY"
    if result is not None:
        mebibytes = result.setup.memory_bytes // 2**20
        is_round = mebibytes % 2**10 == 0
        size = f"{mebibytes // 2**10}GiB" if is_round else f"{mebibytes}MiB"
    batch = "" if report.batch in {None, 1} else f" --batch {report.batch}"
    batch += _as_it_was(report)
    command = f"fit {shortened(path)} --device {size}{batch}{_FLAGS.get(report.basis, '')}"
    yield fact("  next", f"onnxmem {command} {shell_words(flags)}".rstrip())


def _as_it_was(report: OomReport) -> str:
    """The options by which ``fit`` has the context and the other processes of the message."""
    if not report.has_own_context or report.assessment is None:
        return ""
    size_bytes = report.assessment.footprint.context.size_bytes
    reserve_bytes = 0 if report.fit_result is None else report.fit_result.setup.reserve_bytes
    reserved = f" --reserve {-(-reserve_bytes // 2**20)}MiB" if reserve_bytes else ""
    return f" --cuda-context {-(-size_bytes // 2**20)}MiB{reserved}"


def _found(message: OutOfMemory, report: OomReport) -> Iterator[str]:
    found = "no tensor has that size"
    if report.at_batch:
        found = f"{plural(report.num_at_batch, 'tensor')} of that size"
    # The batch of the run is in no message: it is the one of the command.
    unsaid = "" if report.batch is None else "; the message names no batch"
    yield fact(f"  at {_batch_text(report)}", found + unsaid)
    yield from _candidates(report.at_batch, report.num_at_batch, message, {report.batch})
    if report.is_pattern_block:
        yield rounded(
            "  memory-pattern buffer",
            report.pattern_block_bytes,
            "the one piece of run 2: it has that size",
        )
    elif report.pattern_block_bytes is not None and not report.at_batch:
        yield rounded(
            "  memory-pattern buffer", report.pattern_block_bytes, "predicted not to have it"
        )
    if report.at_others and not (report.at_batch or report.is_pattern_block):
        count = plural(report.num_at_others, "tensor")
        batch = report.at_others[0].batch
        compares = f"--batch {batch} compares the message with that run"
        yield fact("  at other batches", f"{count} of that size; {compares}")
        yield from _candidates(report.at_others, report.num_at_others, message, set())
    if not (report.at_batch or report.at_others or report.is_pattern_block):
        text = (
            "a kernel's workspace, several tensors in one piece, dims other than these (--dim, "
            "--shape), a training step (--train), or another model of the process"
        )
        yield fact("  it can be", text)


def _candidates(
    candidates: Sequence[Candidate], count: int, message: OutOfMemory, said: set[int | None]
) -> Iterator[str]:
    """The tensors, each batch that was not ``said`` beside the first of its tensors."""
    shown = candidates[:_MOST]
    for batch in dict.fromkeys(each.batch for each in shown):
        label = "" if batch is None or batch in said else f"    at batch {batch:,}"
        for candidate in (each for each in shown if each.batch == batch):
            yield fact(label, _candidate(candidate, message))
            label = ""
    more = count - min(len(candidates), _MOST)
    if more:
        yield fact("", f"and {more:,} more")


def _candidate(candidate: Candidate, message: OutOfMemory) -> str:
    producer = candidate.role if candidate.node is None else f"{candidate.op_type} {candidate.node}"
    marks = [
        *(("the node of the message",) if candidate.is_named else ()),
        *(("its shape",) if is_shape(candidate, message.shape) else ()),
        *(("live at the peak",) if candidate.is_live_at_peak else ()),
        *(("not live at the peak",) if candidate.is_live_at_peak is False else ()),
        *((candidate.graph,) if candidate.graph != "file" else ()),
    ]
    text = f"{candidate.tensor}  by {producer}" + (f"  ({', '.join(marks)})" if marks else "")
    return shortened(text, 2000)


def _fits(report: OomReport) -> Iterator[str]:
    assessment, result = report.assessment, report.fit_result
    if assessment is None:
        yield fact("  takes", f"unknown: {BASES[report.basis]}")
        return
    if result is not None:
        setup = result.setup
        text = verdict_text(result.requested, setup.limit_bytes, result.doubts)
        state = "if the device were empty"
        if report.has_own_context:
            others = format_bytes(setup.reserve_bytes) if setup.reserve_bytes else ""
            state = "as the device was" + (f", with {others} of other processes" if others else "")
        yield rounded("  capacity", setup.memory_bytes, f"{text}, {state}")
        yield from laid_out(max_batch_lines(result))
    compared = None if result is None else result.requested
    yield from laid_out(assessment_lines(assessment, compared))
    yield from _distance(report)
    yield from finding_lines(assessment.findings, "  ")


def _distance(report: OomReport) -> Iterator[str]:
    """In one line: what the run needed, how far that is from the prediction, what it means."""
    distance = report.distance
    if distance is None:
        text = "the message does not say what the run needed in all: nothing to compare with"
        yield fact("  conclusion", text)
        return
    percent, side = distance.percent, "above" if distance.percent > 0 else "below"
    far = factor(percent) or f"{abs(percent):.0f} % {side}"
    needed, predicted = format_bytes(distance.needed_bytes), format_bytes(distance.predicted_bytes)
    means = distance.meaning
    result = report.fit_result
    if result is not None and result.verdict.is_met and not distance.is_above:
        means += (
            "; but that fits the device as it was: fragmentation, or tensors beside this step's"
            if report.has_own_context
            else "; but that fits an empty device: something else held its memory"
        )
    text = f"{needed} ({distance.needed_text}) is {far} the predicted {predicted}: {means}"
    yield fact("  conclusion", text)


def message_row(message: OutOfMemory, report: OomReport | None) -> JsonDict:
    """A message in JSON; unknown is null."""
    sizes = message.sizes
    return {
        "kind": "message",
        "program": message.program,
        "meaning": message.meaning,
        "least_bytes": None if sizes is None else sizes.least_bytes,
        "most_bytes": None if sizes is None else sizes.most_bytes,
        "shape": None if message.shape is None else list(message.shape),
        "element_type": message.element_type,
        "node": None if message.node is None else printable(message.node),
        "op_type": message.op_type,
        "capacity_bytes": message.capacity_bytes,
        "free_bytes": message.free_bytes,
        "held_bytes": message.used_bytes,
        "allocated_bytes": message.allocated_bytes,
        "reserved_bytes": message.reserved_bytes,
        "unallocated_bytes": message.unallocated_bytes,
        "others_bytes": message.others_bytes,
        "is_fragmented": message.is_fragmented,
        "peak_bytes": message.peak_bytes,
        "device": message.device,
        "requested_either": list(message.rivals),
        "unnamed": list(message.unnamed),
        "model": None if report is None else _report_row(report),
    }


def _report_row(report: OomReport) -> JsonDict:
    assessment, result = report.assessment, report.fit_result
    max_batch = None if result is None else result.max_batch
    is_whole = assessment is not None and assessment.footprint.is_whole
    return {
        "batch": report.batch,
        "at_batch": _candidate_rows(report.at_batch),
        "num_at_batch": report.num_at_batch,
        "at_others": _candidate_rows(report.at_others),
        "num_at_others": report.num_at_others,
        "pattern_block_bytes": report.pattern_block_bytes,
        "is_pattern_block": report.is_pattern_block,
        "basis": report.basis.value,
        "distance": None
        if report.distance is None
        else {
            "needed_bytes": report.distance.needed_bytes,
            "needed_of": report.distance.needed_text,
            "predicted_bytes": report.distance.predicted_bytes,
            "percent": round(report.distance.percent, 2),
            "meaning": report.distance.meaning,
        },
        "predicted_bytes": assessment.footprint.total_bytes if assessment and is_whole else None,
        "largest_batch": None if max_batch is None else max_batch.number,
        "verdict": None if result is None else result.to_dict(),
        "findings": [] if assessment is None else finding_rows(assessment.findings),
    }


def _candidate_rows(candidates: Sequence[Candidate]) -> list[JsonDict]:
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
            "is_live_at_peak": each.is_live_at_peak,
            "graph": each.graph,
        }
        for each in candidates
    ]

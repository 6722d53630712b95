"""Answer ``explain WHAT [MODEL]``: a code, figures, a name in the model, a message, a question.

``explanation`` decides what the words are, in that order, and asks for an analysis of the model
only if the answer has figures of it.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from onnxmem.analysis.analysis import Analysis, analysis_of
from onnxmem.analysis.fitting.footprints import in_integers
from onnxmem.analysis.json_rows import JsonDict
from onnxmem.decisions.explain.glossary import (
    Metric,
    MetricValue,
    code_named,
    codes,
    metrics,
    metrics_named,
    value_of,
)
from onnxmem.decisions.explain.messages import OutOfMemory, read_message
from onnxmem.decisions.explain.names import explained_name
from onnxmem.decisions.explain.out_of_memory import oom_report
from onnxmem.decisions.explain.process import explained_process
from onnxmem.decisions.explain.rules import WORKED_EXAMPLE, explained_rules
from onnxmem.decisions.explain.tensors import read_tensor
from onnxmem.decisions.explain.topics import (
    Topic,
    asks_for_a_rule,
    batch_in,
    commands_for,
    is_word,
    name_of,
    search,
    similar,
    topic_named,
    topics,
)
from onnxmem.errors import OnnxmemError, UsageError, printable, shortened
from onnxmem.report.explain import (
    beside_lines,
    code_row,
    message_row,
    metric_row,
    questions_row,
    render_code,
    render_list,
    render_message,
    render_metric,
    render_questions,
    render_tensor,
    render_topic,
    tensor_row,
    topic_row,
    where_text,
)
from onnxmem.report.names import name_row, render_name
from onnxmem.report.process import (
    file_lines,
    load_lines,
    multiple_lines,
    process_row,
    render_process,
)
from onnxmem.report.rules import render_rules, rule_rows
from onnxmem.report.sections.listing import per_sample_text
from onnxmem.report.text import fact
from onnxmem.settings import Settings

_RULES: Final = frozenset({"rules", "rules of thumb"})
_OF_RULES: Final = re.compile(
    r"(?i)\brules? of thumb\b|\brule\b.{0,60}?\b\d(?:\.\d)? ?(?:x\b|times\b)"
    r"|\b\d(?:\.\d)? ?(?:x\b|times\b).{0,60}?\brule\b"
)
_PRINTED: Final = re.compile(
    r"[:_\d]|\w\.\w|[a-z][A-Z]|OOMKilled|^(?:Killed|SIGKILL)$|bad allocation"
)
"""What names of errors have that programs print, and words of people have not."""
_PROCESS: Final = "runtime.process_bytes"
_LOAD: Final = "runtime.load_peak_bytes"
_OF_A_PROCESS: Final = frozenset({_PROCESS, _LOAD, "runtime.process_first_run_bytes"})
_FILE: Final = "file_bytes"
_ELEMENTS: Final = "elements."
_OPERATIONS: Final = "compute."
_IN_TRAINING: Final = MappingProxyType(
    {"batch_law.bytes_per_sample": "training_law.bytes_per_sample"}
)
_MESSAGES: Final = "an out-of-memory message"
"""The topic of those who have no message to quote."""
_LEAST_LIKENESS: Final = 0.8
_LEAST_OF_A_WORD: Final = 0.6
"""A sentence has letters in common with most others, a word that is mistyped only with a few."""
_OF_SESSION: Final = MappingProxyType(
    {"activations.in_place_peak_bytes": "runtime.requested_peak_bytes"}
)
"""What answers for a figure of the file's graph, where a runtime is requested."""
_ON_CUDA: Final = frozenset({"runtime.context_bytes", "runtime.workspace_bytes"})


@dataclass(frozen=True, slots=True)
class Needs:
    """What an analysis must have for an answer."""

    training: bool = False
    runtime: str | None = None
    """The runtime that is analyzed if none is requested."""
    measurement: bool = False
    """Whether a requested measurement is shown."""
    session: bool = False
    """Whether the answer replays a session of its own, so that its settings have an effect."""


@dataclass(frozen=True, slots=True)
class Model:
    """The model that an answer is about."""

    path: str
    analyze: Callable[[Needs], Analysis]


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer; ``str`` of it is what ``onnxmem explain`` prints."""

    text: str
    explained: tuple[JsonDict, ...]
    """The same in JSON, a row for each thing that is explained."""

    def __str__(self) -> str:
        """The answer as text."""
        return self.text.rstrip("\n")

    def __repr__(self) -> str:
        """The answer itself: it is a few lines."""
        return str(self)


def explanation(
    what: str | None, model: Model | None = None, settings: Settings | None = None
) -> Explanation:
    """Answer a name, a message or a question; ``None`` lists all names.

    ``settings`` are what the commands that are suggested have.

    :raises UsageError: nothing is known about it.
    :raises OnnxmemError: the model cannot be analyzed.
    """
    if what is None:
        rows = [metric_row(each, None) for each in metrics()]
        return Explanation(
            render_list(), (*rows, *map(code_row, codes()), *map(topic_row, topics()))
        )
    given = settings or Settings()
    return (
        _named(what, model, given)
        or _in_model(what, model)
        or _read(what, model, given)
        or _asked(what, model, given)
    )


def figures_of(what: str | None, runtime: str | None = None) -> tuple[Metric, ...]:
    """The figures whose values are in the answer with a model, as its analysis must have them.

    ``runtime`` is the one that is requested.
    """
    if what is None or code_named(what):
        return ()
    meant = _meant(what)
    topic = meant if isinstance(meant, Topic) else None
    if not isinstance(meant, Topic) and meant:
        return meant
    if topic is None and read_tensor(what) is None and read_message(what) is None:
        found = search(what)
        first = found[0] if found else None
        if isinstance(first, Metric):
            return _of_one_name(first, found)
        topic = first if isinstance(first, Topic) else None
    return () if topic is None else _of_topic(topic, runtime)


def batch_of(what: str | None) -> int | None:
    """The batch that a question names; ``None``: it names none, or is a message."""
    return None if what is None or read_message(what) is not None else batch_in(what)


def is_rules(what: str) -> bool:
    """Whether the rules of thumb are asked for, one by its factor, or a number of the example."""
    if what.strip().casefold() in _RULES:
        return True
    numbers = {word.strip("?,;:()") for word in what.split()}
    is_printed = any(each.printed in numbers for each in WORKED_EXAMPLE)
    # A tensor's name such as block_2x_weight is no question.
    is_asked = " " in what.strip() and (asks_for_a_rule(what) or _is_rules_topic(what))
    is_rule = is_printed or _OF_RULES.search(what) or is_asked
    return bool(is_rule) and read_tensor(what) is None and read_message(what) is None


def _is_rules_topic(what: str) -> bool:
    found = next(iter(search(what)), None)
    return isinstance(found, Topic) and found.name in _RULES


def _named(what: str, model: Model | None, given: Settings) -> Explanation | None:
    if is_rules(what):
        analysis = None if model is None else model.analyze(Needs(training=True))
        found = None if analysis is None else explained_rules(analysis)
        path = None if model is None else model.path
        return Explanation(render_rules(path, found), tuple(rule_rows(found)))
    code = None if _is_cue(read_message(what)) else code_named(what)
    # An error without a code of its own has the word "error", and its code says nothing.
    if code is not None and code.word != OnnxmemError.code:
        return Explanation(render_code(code), (code_row(code),))
    meant = _meant(what)
    if isinstance(meant, Topic):
        return _topic(meant, (), model, (what, given))
    return _figures(meant, model, given) if meant else None


def _meant(what: str) -> Topic | tuple[Metric, ...]:
    """The figures or the topic of a name; a topic's wins over the last word of a figure's key.

    A question about a type is none: how many bytes is a long?
    """
    if " " in what.strip() and read_tensor(what) is not None:
        return ()
    return metrics_named(what, is_whole=True) or topic_named(what) or metrics_named(what)


def _in_model(what: str, model: Model | None) -> Explanation | None:
    """A tensor or a node of the model; a question that has an answer is not searched for there."""
    if model is None or read_message(what) is not None or (" " in what.strip() and search(what)):
        return None
    analysis = model.analyze(needs_of(figures_of(what)))
    found = explained_name(what.strip(), analysis)
    if found is None:
        return None
    return Explanation(render_name(found, where_text(model.path, analysis)), (name_row(found),))


def _read(what: str, model: Model | None, given: Settings) -> Explanation | None:
    """A tensor, or a message of a program that was out of memory."""
    tensor = read_tensor(what)
    if tensor is not None:
        return Explanation(render_tensor(tensor), (tensor_row(tensor),))
    message = read_message(what)
    if message is None:
        return None
    is_said = model is None and _is_cue(message) and not _PRINTED.search(what)
    topic = topic_named(_MESSAGES) if is_said else None
    return _message(message, model) if topic is None else _topic(topic, (), None, (what, given))


def _is_cue(message: OutOfMemory | None) -> bool:
    """Whether words such as ``OOM`` are all there is of a message."""
    if message is None:
        return False
    program, meaning, device = message.program, message.meaning, message.device
    return message == OutOfMemory(program=program, meaning=meaning, device=device)


def _asked(what: str, model: Model | None, given: Settings) -> Explanation:
    """The answer to a question; where none is likely enough, the questions that have one."""
    for word in what.split():
        if _is_path(word):
            if model is None and os.path.isfile(word):
                message = f"what of {shortened(word)}? onnxmem explain rules {shortened(word)}"
                raise UsageError(message)
            where = "file" if model is None else f"file, and no tensor or node of {model.path}"
            message = f"{shortened(word)}: no such {where}"
            raise UsageError(message)
    found = search(what)
    if not found:
        near = similar(what)
        if not near or _close(what):
            raise UsageError(_unknown(what))
        return Explanation(render_questions(what, near), (questions_row(near),))
    first, names = found[0], tuple(name_of(each) for each in found[1:])
    if isinstance(first, Topic):
        return _topic(first, names, model, (what, given))
    if isinstance(first, Metric):
        return _figures(_of_one_name(first, found), model, given)
    return Explanation(render_code(first), (code_row(first),))


def _of_one_name(first: Metric, found: Sequence[object]) -> tuple[Metric, ...]:
    """The figures that share a name with the first, as TensorFlow's and PyTorch's memory do."""
    return tuple(
        each
        for each in found
        if isinstance(each, Metric) and not {*each.labels}.isdisjoint(first.labels)
    )


def _is_path(word: str) -> bool:
    """Whether a word is meant as a path: questions have only words like ``CPU/GPU``."""
    plain = word.strip("\"'(),?!")
    is_rooted = plain.startswith(("/", "./", "../", "~/"))
    return plain.endswith(".onnx") or ("/" in plain and (is_rooted or not is_word(plain)))


def _topic(
    topic: Topic, near: tuple[str, ...], model: Model | None, asked: tuple[str, Settings]
) -> Explanation:
    topic = replace(topic, commands=commands_for(topic, *asked))
    figures, row = _of_topic(topic, asked[1].runtime), topic_row(topic)
    if model is None:
        return Explanation(render_topic(topic, near), (row,))
    if shortened(model.path) == model.path:
        named = (each.replace("MODEL", shlex.quote(model.path), 1) for each in topic.commands)
        topic = replace(topic, commands=tuple(named))
    if not figures:
        return Explanation(render_topic(topic, near), (row,))
    analysis = model.analyze(needs_of(figures))
    if topic.in_integers:
        analysis = analysis_of(in_integers(analysis.request))
    values = _values(figures, analysis)
    notes = {
        _FILE: tuple(file_lines(analysis)),
        _LOAD: tuple(load_lines(analysis)),
        _PROCESS: tuple(multiple_lines(analysis)),
    }
    for metric, value in values:
        notes[metric.key] = (*notes.get(metric.key, ()), *_sample_lines(metric, value, analysis))
    notes[figures[-1].key] = (
        *notes.get(figures[-1].key, ()),
        *_element_lines(figures, analysis),
        *_inference_lines(figures, model, asked[1]),
    )
    text = render_topic(topic, near, where_text(model.path, analysis), values, notes)
    return Explanation(text, (row, *(metric_row(*each) for each in values)))


def _values(
    figures: tuple[Metric, ...], analysis: Analysis
) -> tuple[tuple[Metric, MetricValue], ...]:
    """The figures of a model; of a training step, where one is analyzed and it has them."""
    if analysis.training is None:
        found = [(each, value_of(each, analysis)) for each in figures]
        # On CUDA no figure is of the process: the memory is the device's.
        is_on_cuda = any(each.name == "ort-cuda" for each in analysis.runtimes[:1])
        return tuple(pair for pair in found if not (is_on_cuda and pair[0].key in _OF_A_PROCESS))
    pairs = [
        (other, value_of(other, analysis))
        for each in figures
        for other in metrics_named(_IN_TRAINING.get(each.key, each.key))[:1]
    ]
    # A step that is no line in the batch has no bytes for each sample.
    lines = _IN_TRAINING.values()
    return tuple(pair for pair in pairs if pair[0].key not in lines or pair[1].number is not None)


def _of_topic(topic: Topic, runtime: str | None) -> tuple[Metric, ...]:
    """The figures of a topic; of a runtime that is requested, its own."""
    instead = {} if runtime is None else _OF_SESSION
    keys = dict.fromkeys(instead.get(key, key) for key in topic.figures)
    return tuple(metric for key in keys for metric in metrics_named(key))


def _close(what: str) -> list[str]:
    """The names that a word may be a slip of."""
    names = [
        *(each.word for each in codes()),
        *(label for each in metrics() for label in each.labels),
        *(each.key.rpartition(".")[2] for each in metrics()),
        *(each.name for each in topics()),
    ]
    least = _LEAST_LIKENESS if " " in what.strip() else _LEAST_OF_A_WORD
    return get_close_matches(what.strip(), names, n=3, cutoff=least)


def _unknown(what: str) -> str:
    close = _close(what)
    hint = f"did you mean {', '.join(close)}" if close else "onnxmem explain lists what is known"
    return f"{shortened(' '.join(what.split()))}: no figure, code or message that is known; {hint}"


def needs_of(figures: tuple[Metric, ...]) -> Needs:
    """What the figures are of."""
    of_runtime = {each.key for each in figures if each.needs_runtime}
    runtime = "ort-cuda" if of_runtime <= _ON_CUDA else "ort-cpu"
    return Needs(
        training=any(each.needs_training for each in figures),
        runtime=runtime if of_runtime else None,
        measurement=any(each.key == _PROCESS for each in figures),
    )


def _of_the_run(figures: tuple[Metric, ...], given: Settings) -> tuple[Metric, ...]:
    """Of figures with one label, as a workspace of both, those of the step or of the inference."""
    if not figures or not frozenset[str].intersection(*(frozenset(x.labels) for x in figures)):
        return figures
    return tuple(each for each in figures if each.needs_training == given.train) or figures


def _figures(figures: tuple[Metric, ...], model: Model | None, given: Settings) -> Explanation:
    if model is None:
        texts = [render_metric(each, None, None) for each in figures]
        return Explanation("\n".join(texts), tuple(metric_row(each, None) for each in figures))
    figures = _of_the_run(figures, given)
    analysis = model.analyze(needs_of(figures))
    answers = [_figure(each, figures, model.path, analysis) for each in figures]
    notes = (*_element_lines(figures, analysis), *_inference_lines(figures, model, given))
    lines = "".join(f"{line}\n" for line in notes)
    text = "\n".join(text for text, _ in answers)
    return Explanation(text + lines, tuple(row for _, rows in answers for row in rows))


def _element_lines(figures: Sequence[Metric], analysis: Analysis) -> Iterator[str]:
    """What numbers of elements leave out, and the rule of thumb that they are of."""
    if any(each.key.startswith(_ELEMENTS) for each in figures):
        count = analysis.num_parameters
        weights = "weights" if count is None else f"weights ({count:,} parameters)"
        yield fact(
            "  not counted",
            f"{weights}; outputs in place of their input, as ReLU's (see explain rules: "
            "inputs and activations twice)",
        )


def _sample_lines(metric: Metric, value: MetricValue, analysis: Analysis) -> Iterator[str]:
    """How many operations each sample of a batch needs."""
    batch = analysis.settings.batch
    if metric.key.startswith(_OPERATIONS) and batch is not None and batch > 1:
        yield fact("", per_sample_text(analysis, value.number))


def _inference_lines(figures: Sequence[Metric], model: Model, given: Settings) -> Iterator[str]:
    """Where a training step is requested of figures that a runtime has, what answers for it."""
    of_runtime = given.train and any(each.needs_runtime for each in figures)
    if of_runtime and not any(each.needs_training for each in figures):
        words = (*(word for flag in given.model_flags for word in flag), *given.recipe.flags)
        command = shlex.join(("onnxmem", model.path, "--train", *words))
        note = f"no effect: it is of onnxruntime's inference; of a training step: {command}"
        yield fact("  --train", shortened(note, 2000))


def _figure(
    metric: Metric, figures: Sequence[Metric], path: str, analysis: Analysis
) -> tuple[str, list[JsonDict]]:
    """A figure and those beside it that are not explained themselves."""
    value = value_of(metric, analysis)
    process = explained_process(analysis) if metric.key == _PROCESS else None
    if process is None:
        keys = (key for key in metric.beside if key not in {each.key for each in figures})
        beside = _values(tuple(each for key in keys for each in metrics_named(key)), analysis)
        lines = (
            *(file_lines(analysis) if metric.key == _FILE else ()),
            *(load_lines(analysis) if metric.key == _LOAD else ()),
            *_sample_lines(metric, value, analysis),
            *(line for pair in beside for line in beside_lines(*pair)),
        )
        text = render_metric(metric, where_text(path, analysis), value, lines)
        return text, [metric_row(metric, value), *(metric_row(*pair) for pair in beside)]
    parts = [{"name": printable(name), "bytes": size} for name, size in process.parts]
    row = metric_row(metric, value) | {"parts": parts} | process_row(process)
    flags = [word for flag in analysis.request.settings.model_flags for word in flag]
    text = render_process(path, process, value, flags)
    return f"{text}\n{render_metric(metric, None, None)}", [row]


def _message(message: OutOfMemory, model: Model | None) -> Explanation:
    if model is None:
        return Explanation(render_message(message, None, None), (message_row(message, None),))
    request = model.analyze(Needs(session=True)).request
    report = oom_report(message, request)
    dims = (flag for flag in request.settings.model_flags if flag[0] != "--batch")
    flags = (*(word for flag in dims for word in flag), *request.settings.recipe.flags)
    text = render_message(message, model.path, report, flags)
    return Explanation(text, (message_row(message, report),))

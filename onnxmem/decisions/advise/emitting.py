"""Advised settings written out: as Python, as a file of settings, for a model server.

``settled`` follows the advice, and says everything that a form of it may have to say; ``EMITTERS``
has the forms. Keys and values of Triton's ``config.pbtxt`` are those of the backend's README
(triton-inference-server/onnxruntime_backend, "Model Config Options" and "ONNX Runtime with CUDA
Execution Provider optimization"): a session's option that it does not name cannot be set, and the
best combination that can be said is taken.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from onnxmem.analysis.json_rows import JsonDict, document, document_text, recipe_row
from onnxmem.decisions.advise.advising import Advised, followed
from onnxmem.decisions.advise.proposals import Figure, Proposal, bytes_of
from onnxmem.errors import UsageError, printable, shortened
from onnxmem.model.binding import input_dims
from onnxmem.runtimes.asking import Advice
from onnxmem.runtimes.onnxruntime.advice import Choice
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.settings import TrainingConfig
from onnxmem.version import __version__

SCHEMA = "onnxmem.settings"
SCHEMA_VERSION = "1.0"
_SESSION_FIELDS = (
    *("level", "enable_mem_pattern", "enable_mem_reuse", "fixed_dims"),
    *("disable_prepacking", "shrinks_arena", "arena_extend_strategy"),
)
_PROVIDERS = {
    "ort-cpu": 'providers = ["CPUExecutionProvider"]',
    "ort-cuda": 'providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]',
}
_LEVELS: Final = {"basic": -1, "extended": 1, "off": 2}
"""Of ``optimization.graph.level``; all optimizations are the default, which has no number."""
_KINDS: Final = {"ort-cpu": "KIND_CPU", "ort-cuda": "KIND_GPU"}
_DEVICES: Final = {"ort-cpu": "cpu:0", "ort-cuda": "gpu:0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Settings to be written out, and what they save."""

    path: str
    figure: Figure
    before_bytes: int | None
    after_bytes: int | None
    budget_bytes: int | None
    followed: tuple[Proposal, ...]
    runtime: str | None
    """``None``: training."""
    session: Choice | None
    others: tuple[Choice, ...]
    """Combinations of a session's settings, the least memory first."""
    batch: int | None
    has_batch_dim: bool
    """Whether every input starts with the batch, and as a symbol."""
    dims: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    recipe: TrainingConfig | None


def settled(advice: Advised, session: Advice | None) -> Settled:
    """Follow what meets the budget; without one, the best settings of a session, or of training.

    :raises UsageError: there is a budget, and nothing that was found meets it.
    """
    chosen = _chosen(advice, session)
    subject = followed(advice.subject, chosen)
    settings, binding = subject.request.settings, subject.results().bound.binding
    plan = advice.plan
    return Settled(
        path=subject.request.source.path,
        figure=advice.figure,
        before_bytes=advice.before_bytes,
        after_bytes=bytes_of(advice.figure, subject),
        budget_bytes=None if plan is None else plan.budget_bytes,
        followed=chosen,
        runtime=None if session is None else session.runtime.name,
        session=None if session is None else _choice(session, chosen, subject.options),
        others=() if session is None else session.runtime.advice,
        batch=binding.batch,
        has_batch_dim=_has_batch_dim(advice),
        dims=binding.dims,
        shapes=settings.shapes,
        recipe=settings.recipe if settings.train else None,
    )


def python_code(settled: Settled) -> str:
    """A program that ends with ``session`` and ``run_options``.

    :raises UsageError: a training step has no session.
    """
    if settled.session is None or settled.runtime is None:
        message = "--emit python: onnxruntime's sessions do not train; --emit json holds the recipe"
        raise UsageError(message)
    lines = list(settled.session.lines)
    for name, line in (
        ("run_options", "run_options = onnxruntime.RunOptions()"),
        ("providers", _PROVIDERS[settled.runtime]),
    ):
        if not any(each.startswith(f"{name} = ") for each in lines):
            lines.append(line)
    said = [f"# {printable(remark)}" for remark in _remarks(settled)]
    return "\n".join(
        [
            f"# Settings for {shortened(settled.path)}, worked out by onnxmem {__version__}",
            *said,
            "import onnxruntime",
            "",
            f"MODEL = {settled.path!a}",
            "",
            "options = onnxruntime.SessionOptions()",
            *lines,
            "session = onnxruntime.InferenceSession(MODEL, options, providers=providers)",
            "# session.run(None, inputs, run_options)",
            "",
        ]
    )


def settings_file(settled: Settled) -> str:
    """One JSON object; ``session`` is null for training, ``training`` for a session."""
    content: JsonDict = {
        "path": printable(settled.path),
        "figure": settled.figure.value,
        "before_bytes": settled.before_bytes,
        "after_bytes": settled.after_bytes,
        "budget_bytes": settled.budget_bytes,
        "batch": settled.batch,
        "dims": {printable(name): number for name, number in settled.dims.items()},
        "shapes": {printable(name): list(dims) for name, dims in settled.shapes.items()},
        "session": _session(settled),
        "training": None if settled.recipe is None else recipe_row(settled.recipe),
        "changes": [
            {
                "id": each.suggestion.id,
                "what": printable(each.suggestion.what),
                "settings": dict(each.suggestion.settings),
            }
            for each in settled.followed
        ],
    }
    return document_text(document(SCHEMA, SCHEMA_VERSION, content))


def triton_config(settled: Settled) -> str:
    """Lines of a model's ``config.pbtxt``, as they are; inputs and outputs Triton derives.

    :raises UsageError: a training step has no session.
    """
    runtime = settled.runtime
    if settled.session is None or runtime is None:
        message = "--emit triton: a model server does not train; --emit json holds the recipe"
        raise UsageError(message)
    choice = _sayable(settled, runtime)
    options = choice.options
    batch = settled.batch if settled.has_batch_dim and settled.batch else 0
    return "\n".join(
        [
            f"# Settings for {shortened(settled.path)}, worked out by onnxmem {__version__}",
            *(f"# {printable(remark)}" for remark in _remarks(settled)),
            *_unsaid(settled.session, choice),
            'backend: "onnxruntime"',
            f"max_batch_size: {batch}",
            f"instance_group [ {{ count: 1 kind: {_KINDS[runtime]} }} ]",
            *_optimization(options, runtime),
            _parameter("enable_mem_arena", int(options.enable_cpu_mem_arena)),
            _parameter("enable_mem_pattern", int(options.enable_mem_pattern)),
            *(
                (_parameter("memory.enable_memory_arena_shrinkage", _DEVICES[runtime]),)
                if options.shrinks_arena
                else ()
            ),
            "",
        ]
    )


EMITTERS: Final[Mapping[str, Callable[[Settled], str]]] = MappingProxyType(
    {"python": python_code, "json": settings_file, "triton": triton_config}
)
"""Each form by its name; a session's settings alone have the first and the last."""


def _chosen(advice: Advised, session: Advice | None) -> tuple[Proposal, ...]:
    plan = advice.plan
    if plan is not None:
        if not plan.is_met:
            message = f"--emit: nothing that was found meets the budget of {plan.budget_bytes:,} B"
            raise UsageError(message)
        return plan.chosen
    if session is not None:
        return ()
    usable = (each for each in advice.proposals if each.suggestion.change is not None)
    return tuple(usable)[:1]


def _choice(session: Advice, chosen: Iterable[Proposal], options: SessionOptions) -> Choice:
    """The settings that were chosen for a session; the best where none were."""
    known = (*session.runtime.advice, *session.singles)
    if not any(each.suggestion.group == "session" for each in chosen):
        return known[0]
    wanted = [getattr(options, name) for name in _SESSION_FIELDS]
    found = (
        each
        for each in known
        if [getattr(each.options, name) for name in _SESSION_FIELDS] == wanted
    )
    return next(found, known[0])


def _has_batch_dim(advice: Advised) -> bool:
    prepared = advice.subject.request.prepared
    dims = [input_dims(value) for value in prepared.inputs]
    return bool(dims) and all(each and each[0] in prepared.batch_symbols for each in dims)


def _remarks(settled: Settled) -> list[str]:
    """What the settings save, and what else is to be done, a line each."""
    lines = []
    if settled.session is not None:
        own = next(each for each in settled.others if not each.changes)
        lines.append(
            f"arena resident: {settled.session.resident_bytes:,} B instead of "
            f"{own.resident_bytes:,} B, batch {settled.batch}"
        )
    if settled.budget_bytes is not None:
        lines.append(
            f"{settled.figure.value}: {settled.after_bytes:,} B within {settled.budget_bytes:,} B"
        )
    lines += [
        f"to do as well: {each.suggestion.what}"
        for each in settled.followed
        if each.suggestion.group != "session"
    ]
    return lines


def _session(settled: Settled) -> dict[str, object] | None:
    if settled.session is None:
        return None
    options = settled.session.options
    return {
        "runtime": settled.runtime,
        "graph_optimization_level": options.level,
        "enable_mem_pattern": options.enable_mem_pattern,
        "enable_mem_reuse": options.enable_mem_reuse,
        "enable_cpu_mem_arena": options.enable_cpu_mem_arena,
        "arena_extend_strategy": options.arena_extend_strategy,
        "memory.enable_memory_arena_shrinkage": options.shrinks_arena,
        "session.disable_prepacking": options.disable_prepacking,
        "free_dimension_overrides": dict(settled.dims) if options.fixed_dims else {},
        "resident_bytes": settled.session.resident_bytes,
    }


def _sayable(settled: Settled, runtime: str) -> Choice:
    """What was settled, else the best combination that the backend can be told."""
    session = settled.session
    choices = settled.others if session is None else (session, *settled.others)
    return next(each for each in choices if _is_sayable(each.options, runtime))


def _is_sayable(options: SessionOptions, runtime: str) -> bool:
    grows = options.arena_extend_strategy == "kNextPowerOfTwo" or runtime == "ort-cuda"
    unknown = options.fixed_dims or options.disable_prepacking
    return options.enable_mem_reuse and grows and not unknown


def _unsaid(best: Choice, said: Choice) -> list[str]:
    if best is said:
        return []
    names, left = ", ".join(best.changes), f"{said.resident_bytes:,} B resident"
    return [f"# the best, {names}, is not for this backend to set: {left}"]


def _optimization(options: SessionOptions, runtime: str) -> list[str]:
    parts = []
    if options.level in _LEVELS:
        parts.append(f"graph {{ level: {_LEVELS[options.level]} }}")
    growth = options.arena_extend_strategy
    if runtime == "ort-cuda" and growth != "kNextPowerOfTwo":
        cuda = f'name: "cuda" parameters {{ key: "arena_extend_strategy" value: "{growth}" }}'
        parts.append(f"execution_accelerators {{ gpu_execution_accelerator [ {{ {cuda} }} ] }}")
    return [f"optimization {{ {' '.join(parts)} }}"] if parts else []


def _parameter(key: str, value: int | str) -> str:
    return f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'

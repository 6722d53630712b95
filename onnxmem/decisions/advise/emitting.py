"""Write advised settings: as Python code, as a JSON file, or as the configuration of a server.

``settled`` follows the advice and collects what any format needs; ``EMITTERS`` has the formats.
Keys and values of Triton's ``config.pbtxt`` are those of the backend's README
(triton-inference-server/onnxruntime_backend, "Model Config Options" and "ONNX Runtime with CUDA
Execution Provider optimization"). Session options that it does not name cannot be set there, so the
best combination without them is written.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from onnxmem.analysis.json_rows import JsonDict, document, document_text, recipe_row
from onnxmem.decisions.advise.advising import Advised, followed
from onnxmem.decisions.advise.proposals import Objective, Proposal, bytes_of
from onnxmem.decisions.advise.settings import LOAD_GROUP, SESSION_GROUP
from onnxmem.errors import UsageError, printable, shortened
from onnxmem.model.binding import input_dims
from onnxmem.runtimes.from_settings import Advice
from onnxmem.runtimes.onnxruntime.advice import TRIM_LINE, Choice, option_lines
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS
from onnxmem.runtimes.onnxruntime.session_options import LOAD_OPTIONS, SessionOptions
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
"""Values of ``optimization.graph.level``; the default, all optimizations, has none."""
_KINDS: Final = {"ort-cpu": "KIND_CPU", "ort-cuda": "KIND_GPU"}
_DEVICES: Final = {"ort-cpu": "cpu:0", "ort-cuda": "gpu:0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Settings to write, and what they save."""

    path: str
    figure: Objective
    before_bytes: int | None
    after_bytes: int | None
    budget_bytes: int | None
    followed: tuple[Proposal, ...]
    runtime: str | None
    """``None``: training."""
    session: Choice | None
    others: tuple[Choice, ...]
    """Combinations of session options, the least memory first."""
    batch: int | None
    has_batch_dim: bool
    """Whether axis 0 of every input is the batch, as a symbol."""
    dims: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    recipe: TrainingConfig | None


def settled(advice: Advised, session: Advice | None) -> Settled:
    """Follow the plan for the budget; without one, the best session options or training settings.

    :raises UsageError: no plan that was found meets the budget.
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
        session=None if session is None else _loaded(session, chosen, subject.options),
        others=() if session is None else session.runtime.advice,
        batch=binding.batch,
        has_batch_dim=_has_batch_dim(advice),
        dims=binding.dims,
        shapes={name: binding.shapes[name] for name in settings.shapes},
        recipe=settings.recipe if settings.train else None,
    )


def python_code(settled: Settled) -> str:
    """A Python program that defines ``session`` and ``run_options``.

    :raises UsageError: a training step has no session.
    """
    if settled.session is None or settled.runtime is None:
        message = "--emit python: an onnxruntime session does not train; use --emit json"
        raise UsageError(message)
    return session_code(settled.path, settled.runtime, settled.session.lines, _remarks(settled))


def session_code(path: str, runtime: str, changes: Sequence[str], remarks: Iterable[str]) -> str:
    """A Python program that creates ``session`` with changes of ``options`` or ``run_options``."""
    # `TRIM_LINE` runs after the session is created, and imports come first.
    lines = [each for each in changes if each != TRIM_LINE and not each.startswith("import ")]
    imports = {"import onnxruntime", *(each for each in changes if each.startswith("import "))}
    for name, line in (
        ("run_options", "run_options = onnxruntime.RunOptions()"),
        ("providers", _PROVIDERS[runtime]),
    ):
        # A changed line may define either by itself.
        if not any(each.startswith(f"{name} = ") for each in lines):
            lines.append(line)
    return "\n".join(
        [
            f"# Settings for {shortened(path)}, generated by onnxmem {__version__}",
            *(f"# {printable(remark)}" for remark in remarks),
            *sorted(imports),
            "",
            f"MODEL = {path!a}",
            "",
            "options = onnxruntime.SessionOptions()",
            *lines,
            "session = onnxruntime.InferenceSession(MODEL, options, providers=providers)",
            *((TRIM_LINE,) if TRIM_LINE in changes else ()),
            "# session.run(None, inputs, run_options)",
            "",
        ]
    )


def settings_file(settled: Settled) -> str:
    """A JSON object; ``session`` is null for training, ``training`` is null for a session."""
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
    """A ``config.pbtxt`` without inputs and outputs, which Triton derives from the model.

    :raises UsageError: a training step has no session, or the dims are fixed.
    """
    runtime = settled.runtime
    if settled.session is None or runtime is None:
        message = "--emit triton: a model server does not train; use --emit json"
        raise UsageError(message)
    choice = _supported_choice(settled, runtime)
    options = choice.options
    # `max_batch_size: 0` tells Triton that the inputs' shapes have no batch dim of its own.
    batch = settled.batch if settled.has_batch_dim and settled.batch else 0
    return "\n".join(
        [
            f"# Settings for {shortened(settled.path)}, generated by onnxmem {__version__}",
            *(f"# {printable(remark)}" for remark in _remarks(settled)),
            *_unsupported(settled.session, choice),
            'backend: "onnxruntime"',
            f"max_batch_size: {batch}",
            f"instance_group [ {{ count: 1 kind: {_KINDS[runtime]} }} ]",
            *optimization(options, runtime),
            parameter("enable_mem_arena", int(options.enable_cpu_mem_arena)),
            parameter("enable_mem_pattern", int(options.enable_mem_pattern)),
            *(
                (parameter("memory.enable_memory_arena_shrinkage", _DEVICES[runtime]),)
                if options.shrinks_arena
                else ()
            ),
            "",
        ]
    )


EMITTERS: Final[Mapping[str, Callable[[Settled], str]]] = MappingProxyType(
    {"python": python_code, "json": settings_file, "triton": triton_config}
)
"""The formats by name; ``python`` and ``triton`` are only for session options."""


def _chosen(advice: Advised, session: Advice | None) -> tuple[Proposal, ...]:
    plan = advice.plan
    if plan is not None:
        if not plan.is_met:
            message = (
                f"--emit: no change that was found meets the budget of {plan.budget_bytes:,} B"
            )
            raise UsageError(message)
        return plan.chosen
    if session is not None:
        return tuple(each for each in advice.proposals if each.suggestion.group == LOAD_GROUP)[:1]
    usable = (each for each in advice.proposals if each.suggestion.change is not None)
    return tuple(usable)[:1]


def _loaded(session: Advice, chosen: Iterable[Proposal], options: SessionOptions) -> Choice:
    """The session options of the chosen proposals, and those of their process."""
    found = _choice(session, chosen, options)
    # Combinations vary the options of a run; those of loading are the subject's.
    loaded = {name: getattr(options, name) for name in LOAD_OPTIONS}
    other = replace(found.options, **loaded)
    lines = option_lines(found.options, other, PROVIDERS[session.runtime.name])
    return replace(found, options=other, lines=(*found.lines, *lines))


def _choice(session: Advice, chosen: Iterable[Proposal], options: SessionOptions) -> Choice:
    """The session options of the chosen proposals; the best ones if these change none."""
    known = (*session.runtime.advice, *session.singles)
    if not any(each.suggestion.group == SESSION_GROUP for each in chosen):
        # The first combination takes the least memory.
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
    """One line each: what the settings save, and the changes that they do not make."""
    lines = []
    if settled.session is not None:
        own = next(each for each in settled.others if not each.changes)
        lines.append(
            f"arena resident: {settled.session.resident_bytes:,} B instead of "
            f"{own.resident_bytes:,} B, batch {settled.batch}"
        )
    lines += [
        f"process: {each.after_bytes:,} B instead of {each.before_bytes:,} B, with "
        f"{each.suggestion.what}"
        for each in settled.followed
        if each.suggestion.group == LOAD_GROUP and settled.budget_bytes is None
    ]
    if settled.budget_bytes is not None:
        lines.append(
            f"{settled.figure.value}: {settled.after_bytes:,} B within {settled.budget_bytes:,} B"
        )
    lines += [
        f"also needed: {each.suggestion.what}"
        for each in settled.followed
        if each.suggestion.group not in {SESSION_GROUP, LOAD_GROUP}
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
        "weights": options.weights,
        "malloc_trim": options.trims_heap,
        "malloc_threshold_bytes": options.malloc_threshold_bytes,
        "free_dimension_overrides": dict(settled.dims) if options.fixed_dims else {},
        "resident_bytes": settled.session.resident_bytes,
    }


def _supported_choice(settled: Settled, runtime: str) -> Choice:
    """The settled options, or the best combination that Triton's backend supports.

    :raises UsageError: it supports none of them.
    """
    session = settled.session
    choices = settled.others if session is None else (session, *settled.others)
    supported = next((each for each in choices if _is_supported(each.options, runtime)), None)
    if supported is None:
        # ``others`` vary in all options but the dims, so these are the reason.
        message = "--emit triton: the backend does not support fixed dims; omit --fixed-dims"
        raise UsageError(message)
    return supported


def _is_supported(options: SessionOptions, runtime: str) -> bool:
    # The backend passes the growth strategy on for CUDA alone (`optimization`).
    grows = options.arena_extend_strategy == "kNextPowerOfTwo" or runtime == "ort-cuda"
    unknown = options.fixed_dims or options.disable_prepacking
    return options.enable_mem_reuse and grows and not unknown


def _unsupported(best: Choice, written: Choice) -> list[str]:
    if best is written:
        return []
    names, resident = ", ".join(best.changes), f"{written.resident_bytes:,} B resident"
    return [f"# this backend does not support the best options ({names}): {resident} with these"]


def optimization(options: SessionOptions, runtime: str) -> list[str]:
    """The level and the growth of a GPU's arena, where they are not the default."""
    parts = []
    if options.level in _LEVELS:
        parts.append(f"graph {{ level: {_LEVELS[options.level]} }}")
    growth = options.arena_extend_strategy
    if runtime == "ort-cuda" and growth != "kNextPowerOfTwo":
        cuda = f'name: "cuda" parameters {{ key: "arena_extend_strategy" value: "{growth}" }}'
        parts.append(f"execution_accelerators {{ gpu_execution_accelerator [ {{ {cuda} }} ] }}")
    return [f"optimization {{ {' '.join(parts)} }}"] if parts else []


def parameter(key: str, value: int | str) -> str:
    """A parameter of Triton's backend."""
    return f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'

"""Measures the memory of a model, or returns a finding that says why it cannot be measured.

Each kind of figure comes from a new process: one run under the profiler with the memory pattern
off, further runs under it with the session's own settings, and runs without the profiler.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from onnxmem.children.running import JSON, ChildFault, ChildLimits, available_bytes, run_in_child
from onnxmem.errors import Finding, OnnxmemError, UsageError
from onnxmem.files import temporary_folder
from onnxmem.measuring.inputs import (
    check_feeds,
    check_names,
    fed_values,
    feeds_of,
    read_headers,
    read_settings,
)
from onnxmem.measuring.measurement import Measurement, read_measurement
from onnxmem.measuring.run_request import Feed, RunRequest, StoredInput, read_inputs
from onnxmem.model.binding import Request
from onnxmem.model.building import BoundModel, Prepared, build, prepare
from onnxmem.model.files import ModelFile, ModelSource
from onnxmem.model.filling import stored_tensors
from onnxmem.model.input_values import refuse_unknown_names, unused_values
from onnxmem.runtimes.onnxruntime.session_files import (
    OnDisk,
    RefusedError,
    Runnable,
    on_disk,
    refuse_data_elsewhere,
    refuse_other_dims,
    runnable,
    without_noise,
)
from onnxmem.runtimes.onnxruntime.session_options import LEVELS, Provider, SessionOptions
from onnxmem.settings import Settings, Values
from onnxmem.units import format_bytes, plural

STEPS: Final = ("opening the model", "one run, node by node", "further runs", "the process")
"""Reported as progress, in this order."""
FAILED: Final = "measure_failed"
_AT_RUN: Final = "while running"
"""In onnxruntime's messages about nodes that fail; random inputs may be the cause."""
_PREPARING: Final = STEPS[0]
_STORE: Final = "onnxmem.measuring.run_request:store_inputs"
INPUTS_FILE: Final = "inputs.bin"
UNINITIALIZED: Final = ("onnxmem", "onnxmem.measuring")
_RUNS: Final = tuple(
    zip(
        STEPS[1:],
        (
            ("onnxmem.measuring.tracing:trace_first_run", ()),
            ("onnxmem.measuring.tracing:trace_steady_runs", ()),
            ("onnxmem.measuring.process_run:run_plain", UNINITIALIZED),
        ),
        strict=True,
    )
)
"""The function of each step, and packages whose ``__init__.py`` its process must not run."""
_MISSING: Final = {
    "onnxruntime": "onnxruntime is not installed; pip install 'onnxmem[measure]'",
    "CUDAExecutionProvider": "onnxruntime finds no GPU here; it requires an NVIDIA GPU, its "
    "driver, and 'onnxmem[cuda]' instead of 'onnxmem[measure]'",
}
"""What a child lacks -> the message."""
_UNCONFIRMED: Final = "the profile's figures of a GPU's arena have not been verified on a GPU yet"
_ORDER_VARIES: Final = (
    "onnxruntime's node order depends on memory addresses and differed between two processes: the "
    "memory-pattern buffer and the steady figures belong to another order than the first run's"
)


def no_progress(step: str) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSettings:
    """Backend, runs, inputs and limits."""

    provider: Provider = "cpu"
    runs: int = 3
    options: SessionOptions = field(default_factory=SessionOptions)
    inputs_npz: str | None = None
    """A file of real inputs, whose shapes are used; ``None``: random inputs."""
    values: Mapping[str, Values] = field(default_factory=dict)
    """Values of small inputs, instead of random ones."""
    seconds: float = 300.0
    """Time limit of each process that runs the model."""
    memory_bytes: int | None = None
    """Memory limit of each process; ``None``: the available memory of this machine."""
    one_of_several: bool = False
    """Whether dims and values apply to several models: a name that this one lacks is a finding."""
    progress: Callable[[str], None] = no_progress
    """Called with one of ``STEPS`` when it begins."""

    def __post_init__(self) -> None:
        """Refuse invalid settings.

        :raises UsageError: no runs, no time, or both a file of inputs and values.
        """
        if self.runs < 1 or self.seconds <= 0:
            message = (
                f"{self.runs} runs in {self.seconds:g} s: a measurement needs at least one run"
            )
            raise UsageError(message)
        if self.values and self.inputs_npz is not None:
            message = "the inputs file has every input; --value cannot be combined with --inputs"
            raise UsageError(message)

    def child_limits(self) -> ChildLimits:
        """The limits in effect; none on memory for CUDA, which reserves more addresses than it
        uses.
        """
        if self.provider == "cuda":
            return ChildLimits(self.seconds, self.memory_bytes)
        return ChildLimits(self.seconds, self.memory_bytes or available_bytes())


class BackendUnavailableError(OnnxmemError):
    """The backend is not available on this machine."""

    code: ClassVar[str] = "backend"


class MeasurementFailedError(OnnxmemError):
    """A model could not be run: it crashed, hung, ran out of memory or was refused."""

    code: ClassVar[str] = "measure_failed"


def measure(
    source: ModelSource | ModelFile,
    request: Request | None = None,
    settings: MeasureSettings | None = None,
) -> Measurement | Finding:
    """Run a model in onnxruntime and measure its memory.

    A model that crashes, hangs, runs out of memory or is refused gives a finding:
    ``measure_crash``, ``measure_timeout``, ``measure_memory`` or ``measure_failed``. No process and
    no file outlives the call.

    :raises BackendUnavailableError: onnxruntime or the requested provider is missing.
    :raises InputsFileError: the inputs file does not match the model.
    :raises InputValueError: a value does not match its input, or there is no such input.
    :raises OnnxmemError: what ``load`` and ``build`` raise.
    """
    chosen = settings or MeasureSettings()
    chosen.progress(_PREPARING)
    with temporary_folder() as name:
        try:
            return _measured(on_disk(source, Path(name)), request or Request(), chosen, Path(name))
        except RefusedError as refusal:
            return Finding(FAILED, str(refusal))


def measure_as_set(file: ModelFile, requested: Settings) -> Measurement | Finding:
    """Measure a model with the settings of an analysis; a missing backend is a finding.

    :raises OnnxmemError: what ``measure`` raises.
    """
    options = SessionOptions(
        level=LEVELS[requested.graph or "ort-all"], fixed_dims=requested.fixed_dims
    )
    provider: Provider = "cuda" if requested.measure == "cuda" else "cpu"
    request = Request(requested.batch, requested.dims, requested.shapes)
    try:
        settings = MeasureSettings(
            provider=provider,
            options=options,
            values=requested.values,
            one_of_several=requested.one_of_several,
        )
        return measure(file, request, settings)
    except BackendUnavailableError as fault:
        return Finding("measure_no_backend", str(fault))


def _measured(
    source: OnDisk, request: Request, settings: MeasureSettings, folder: Path
) -> Measurement | Finding:
    staged = stage(source, request, settings, folder)
    if isinstance(staged, Finding):
        return staged
    model, bound, feeds, limits = staged.model, staged.bound, staged.feeds, staged.limits
    inputs_file = folder / INPUTS_FILE
    inputs = stored_inputs(feeds, settings, inputs_file, limits)
    if isinstance(inputs, ChildFault):
        return fault_finding(inputs, _PREPARING, limits)
    # A process measures one thing: the profiler and its files count as memory of the process, and
    # a memory pattern hides the requests of single buffers.
    run = asdict(run_request(model, bound, inputs_file, inputs, settings))
    figures: dict[str, JSON] = {}
    for step, (work, uninitialized) in _RUNS:
        settings.progress(step)
        reply = run_in_child(
            work,
            {"request": run},
            without_mapped(limits, model),
            uninitialized,
            settings.options.variables,
        )
        if isinstance(reply, ChildFault):
            return run_fault(reply, step, staged, settings)
        figures |= reply
    unused = unused_values(bound.graph, settings.values)
    findings = (*bound.binding.findings, *unused, *_notes(figures, model, settings))
    backend, fed = f"onnxruntime-{settings.provider}", _fed(bound, feeds, settings)
    return read_measurement(figures, backend, model.num_filled, findings, fed)


def _fed(
    bound: BoundModel, feeds: tuple[Feed, ...], settings: MeasureSettings
) -> Mapping[str, Values]:
    if settings.inputs_npz is not None:
        return read_settings(settings.inputs_npz, bound)
    return fed_values(bound, feeds)


def bind_inputs(
    prepared: Prepared, request: Request, settings: MeasureSettings
) -> tuple[BoundModel, tuple[Feed, ...]]:
    """The graph at the shapes of the inputs, and the feeds of a run."""
    inputs_npz = settings.inputs_npz
    if inputs_npz is None:
        bound = build(prepared, request)
        return bound, feeds_of(bound, settings.values)
    headers = read_headers(inputs_npz)
    check_names(headers, [value.name for value in prepared.inputs])
    shapes = {name: header.shape for name, header in headers.items()}
    bound = build(prepared, replace(request, shapes={**shapes, **request.shapes}))
    feeds = feeds_of(bound)
    check_feeds(headers, feeds)
    return bound, feeds


def stored_inputs(
    feeds: tuple[Feed, ...],
    settings: MeasureSettings,
    path: Path,
    limits: ChildLimits,
    seed: int = 0,
    spread: int = 0,
) -> tuple[StoredInput, ...] | ChildFault:
    """Write the inputs to a file at ``path``; random ones differ by the seed (``store_inputs``)."""
    npz = settings.inputs_npz
    arguments: dict[str, JSON] = {
        "feeds": [asdict(feed) for feed in feeds],
        "inputs_npz": None if npz is None else str(Path(npz).absolute()),
        "path": str(path.absolute()),
        "seed": seed,
        "spread": spread,
    }
    reply = run_in_child(_STORE, arguments, limits)
    if isinstance(reply, ChildFault):
        return reply
    return read_inputs(cast("list[dict[str, Any]]", reply["inputs"]))


@dataclass(frozen=True, slots=True)
class Staged:
    """A model that is ready to run."""

    source: OnDisk
    model: Runnable
    prepared: Prepared
    bound: BoundModel
    feeds: tuple[Feed, ...]
    limits: ChildLimits


def stage(
    source: OnDisk, request: Request, settings: MeasureSettings, folder: Path
) -> Staged | Finding:
    """Bind the dims, and write a copy of the model where its own file cannot run.

    :raises RefusedError: the model must not be run, or not at these dims.
    """
    if not settings.one_of_several:
        refuse_unknown_names(source.file.proto, request.dims, settings.values)
    prepared = prepare(source.file)
    bound, feeds = bind_inputs(prepared, request, settings)
    refuse_data_elsewhere(stored_tensors(source.file.proto), source.path)
    refuse_other_dims(prepared, bound)
    limits = settings.child_limits()
    model = runnable(source, bound, folder, limits, settings.options.weights)
    if isinstance(model, ChildFault):
        return fault_finding(model, _PREPARING, limits)
    return Staged(source, model, prepared, bound, feeds, limits)


def run_request(
    model: Runnable,
    bound: BoundModel,
    inputs_file: Path,
    inputs: tuple[StoredInput, ...],
    settings: MeasureSettings,
) -> RunRequest:
    """What the child runs."""
    return RunRequest(
        model=str(model.path.absolute()),
        inputs_file=str(inputs_file.absolute()),
        inputs=inputs,
        overrides=bound.binding.dims if settings.options.fixed_dims else {},
        options=settings.options,
        provider=settings.provider,
        runs=settings.runs,
    )


def without_mapped(limits: ChildLimits, model: Runnable) -> ChildLimits:
    """The limits plus the bytes mapped from files, which need addresses but no memory."""
    if limits.memory_bytes is None:
        return limits
    return replace(limits, memory_bytes=limits.memory_bytes + model.mapped_bytes)


def run_fault(fault: ChildFault, step: str, staged: Staged, settings: MeasureSettings) -> Finding:
    """The finding for a fault of a run, which goes by the path that the user named."""
    message = fault.message.replace(str(staged.model.path), staged.source.file.path)
    found = fault_finding(replace(fault, message=message), step, staged.limits)
    return with_hint(found, settings)


def fault_finding(fault: ChildFault, step: str, limits: ChildLimits) -> Finding:
    """The finding for a fault of a child.

    :raises BackendUnavailableError: the backend is not available.
    """
    if fault.kind == "missing":
        message = _MISSING.get(fault.message, f"{fault.message} is not installed")
        raise BackendUnavailableError(message)
    reason = without_noise(fault.message)
    if fault.kind == "crash":
        return Finding("measure_crash", f"the run crashed ({step}): {reason}")
    if fault.kind == "timeout":
        text = f"the run did not finish within {limits.seconds:g} s ({step})"
        return Finding("measure_timeout", f"{text}; --timeout sets another limit")
    if fault.kind == "memory":
        size = format_bytes(limits.memory_bytes) if limits.memory_bytes else "the available memory"
        return Finding("measure_memory", f"the run needed more than {size} ({step}): {reason}")
    return Finding(FAILED, f"onnxruntime refused the model ({step}): {reason}")


def with_hint(finding: Finding, settings: MeasureSettings) -> Finding:
    """The finding, and where random inputs may be its cause, how to pass real ones."""
    if settings.inputs_npz is not None or _AT_RUN not in finding.message:
        return finding
    hint = "the inputs were random; --inputs FILE.npz sets real ones"
    return replace(finding, message=f"{finding.message}; {hint}")


def made_up_weights(model: Runnable) -> Iterator[Finding]:
    """That weights of a model have random values, if some have."""
    if model.num_filled:
        missing = plural(model.num_filled, "weight")
        text = f"{missing} not in the model's files: random values were used"
        yield Finding("made_up_weights", text)


def _notes(
    figures: Mapping[str, JSON], model: Runnable, settings: MeasureSettings
) -> Iterator[Finding]:
    if settings.provider == "cuda":
        yield Finding("cuda_unconfirmed", _UNCONFIRMED)
    # Figures of random inputs and weights are right unless values decide shapes or control flow.
    yield from made_up_weights(model)
    if figures["requested_peak_bytes"] is None:
        yield Finding("no_arena_figures", _why_no_arena_figures(figures, settings))
    if figures.get("steady_order", figures["first_order"]) != figures["first_order"]:
        yield Finding("order_varies", _ORDER_VARIES)
    rows, steps = figures["nodes"], figures["num_steps"]
    if isinstance(rows, list) and isinstance(steps, int) and len(rows) < steps:
        text = f"of {steps:,} nodes that ran, the first {len(rows):,} are listed"
        yield Finding("nodes_left_out", text)


def _why_no_arena_figures(figures: Mapping[str, JSON], settings: MeasureSettings) -> str:
    if figures["num_steps"] is None:
        return "the profile is too small for all nodes that ran"
    if figures["num_steps"] == 0:
        return "no node ran: onnxruntime folded the whole graph when it loaded the model"
    if not settings.options.enable_cpu_mem_arena:
        return "without its arena, onnxruntime does not report memory per node"
    version = figures["onnxruntime_version"]
    return f"onnxruntime {version} does not write memory to its profile; 1.28 and later do"

"""The public functions that join layers, and an analysis that shows itself in a notebook."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxmem.analysis.analysis import Analysis, analyze, takes_settings

if TYPE_CHECKING:
    from onnxmem.analysis.fitting.assessing import FitRequest, FitResult
    from onnxmem.analysis.request import AnalysisRequest
    from onnxmem.decisions.advise.advising import Advised
    from onnxmem.decisions.batch_curve import BatchCurve
    from onnxmem.decisions.check.budgets import Budget
    from onnxmem.decisions.check.checking import Checkup
    from onnxmem.decisions.devices import Device
    from onnxmem.decisions.diff import Difference
    from onnxmem.decisions.simulate import Simulation
    from onnxmem.measuring.measurement import Measurement
    from onnxmem.model.files import ModelSource
    from onnxmem.model.observed import Observed
    from onnxmem.report.explanation import Explanation
    from onnxmem.runtimes.onnxruntime.session_options import Provider, SessionOptions

__all__ = [
    "Analysis",
    "advise",
    "analyze",
    "batch_curve",
    "check",
    "diff",
    "explain",
    "fit",
    "measure",
    "observe",
    "simulate",
]


@takes_settings
def fit(
    source: "ModelSource | Analysis",
    *,
    device: str | int,
    reserve_bytes: int = 0,
    instances: int = 1,
    share_weights: bool = False,
    dim: str | None = None,
    **settings: Any,  # noqa: ANN401 - those of analyze
) -> "FitResult":
    """Compare a model with a device: the verdict, the largest batch that fits, and what limits it.

    :param source: as of ``analyze``, or an ``Analysis``, which takes none of its settings.
    :param device: a name from the catalog (``"RTX 4090"``), a size (``"24GiB"``,
        ``"ram=512KiB,flash=2MiB"``) or bytes.
    :param reserve_bytes: bytes that stay free for other programs (default: 0).
    :param instances: of the model at once (default: 1).
    :param share_weights: the instances have the weights once (default: False).
    :param dim: the symbol whose largest value is searched (default: None, the batch).
    :raises OnnxmemError: the model cannot be read, no device has that name, or the settings
        contradict each other.
    """
    from onnxmem.analysis.fitting.assessing import fit as fit_requests
    from onnxmem.analysis.fitting.footprints import Deployment
    from onnxmem.decisions.devices import catalog

    memory = device if isinstance(device, int) else catalog().device_or_size(device)
    request, setup = _compared(_analyzed(source, settings).request, memory, reserve_bytes)
    deployment = Deployment(instances=instances, shares_weights=share_weights)
    return fit_requests([request], replace(setup, deployment=deployment, dim=dim))


@takes_settings
def batch_curve(
    source: "ModelSource | Analysis",
    batches: Sequence[int],
    *,
    device: str | int | None = None,
    reserve_bytes: int = 0,
    **settings: Any,  # noqa: ANN401 - those of analyze
) -> "BatchCurve":
    """The memory, FLOPs and least time per sample of a model at batches, as ``onnxmem sweep`` does.

    :param source: as of ``analyze``, or an ``Analysis``, which takes none of its settings.
    :param batches: in any order; each is computed once.
    :param device: as of ``fit``: the verdict on each batch, the largest that fits, and the least
        time (default: None, none of these).
    :param reserve_bytes: bytes that stay free for other programs (default: 0).
    :raises OnnxmemError: the model cannot be read or have one of the batches, or no device has that
        name.
    """
    from onnxmem.decisions.batch_curve import batch_curve as curve_of
    from onnxmem.decisions.devices import Device, catalog

    memory = catalog().device_or_size(device) if isinstance(device, str) else device
    request, setup = _compared(_analyzed(source, settings).request, memory, reserve_bytes)
    known = memory if isinstance(memory, Device) else None
    ordered = sorted(dict.fromkeys(batches))
    return curve_of(request, ordered, setup, known, has_limit=memory is not None)


def _compared(
    request: "AnalysisRequest", memory: "Device | int | None", reserve_bytes: int
) -> "tuple[AnalysisRequest, FitRequest]":
    """A model as it runs on a device, and what of it is compared there."""
    from onnxmem.analysis.fitting.footprints import on_device
    from onnxmem.decisions.fit import fit_request

    settings = request.settings
    setup = fit_request(
        memory,
        train=settings.train,
        runtime=next(iter(settings.runtimes), None),
        basis=settings.basis,
        accepted=settings.accepted,
        reserve_bytes=reserve_bytes,
    )
    device = None if isinstance(memory, int) else memory
    return on_device(request, device, setup.basis), setup


@takes_settings
def advise(
    source: "ModelSource | Analysis",
    *,
    budget_bytes: int | None = None,
    **settings: Any,  # noqa: ANN401 - those of analyze
) -> "Advised":
    """Find changes that lower the memory of a model, each with what it saves and what it costs.

    The first of ``runtimes`` is the one to advise on; its session options are advised on by the
    command, ``onnxmem advise``.

    :param source: as of ``analyze``, or an ``Analysis``, which takes none of its settings.
    :param budget_bytes: bytes that the cheapest changes must meet (default: None, no such changes).
    :raises OnnxmemError: the model cannot be read, or the settings contradict each other.
    """
    from onnxmem.decisions.advise.advising import advised

    request = _analyzed(source, settings).request
    runtime = next(iter(request.settings.runtimes), None)
    return advised(request, budget_bytes=budget_bytes, runtime=runtime)


@takes_settings
def simulate(  # noqa: PLR0913 - the options of the command
    source: "ModelSource | Analysis",
    requests: str | Sequence[Mapping[str, int]],
    *,
    num_requests: int | None = None,
    seed: int | None = None,
    concurrency: int = 1,
    sessions: int = 1,
    cores: int | None = None,
    options: "SessionOptions | None" = None,
    **settings: Any,  # noqa: ANN401 - those of analyze
) -> "Simulation":
    """Replay the requests of a server on the sessions of onnxruntime in its process.

    The first of ``runtimes`` is simulated, or ``"ort-cpu"``. Runs of ``observed`` serve the
    requests at the shapes of their inputs, which may differ.

    :param source: as of ``analyze``, or an ``Analysis``, which takes none of its settings.
    :param requests: what the command's ``--requests`` takes, a file or ranges, or a list with the
        dims of each request.
    :param num_requests: how many are drawn from ranges (default: None, 500).
    :param seed: of what is drawn from ranges (default: None, 0).
    :param concurrency: runs at once in each session (default: 1).
    :param sessions: sessions in the process, which take the requests in turn (default: 1).
    :param cores: that runs at once share (default: None, this machine's).
    :param options: of each session (default: None, those of onnxruntime).
    :raises OnnxmemError: the model cannot be read, requests are invalid, or the session's arena
        cannot serve one.
    """
    from onnxmem.analysis.analysis import observed_runs
    from onnxmem.decisions.simulate import ServedModel, Serving
    from onnxmem.decisions.simulate import simulate as simulated
    from onnxmem.model.requests import listed_requests, read_requests
    from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

    if isinstance(requests, str):
        found = read_requests(requests, num_requests, seed)
    else:
        found = listed_requests(requests)
    serving = Serving(
        concurrency=concurrency,
        sessions=sessions,
        options=options or SessionOptions(),
        **({} if cores is None else {"cores": cores}),
    )
    # Observed runs may be at the dims of different requests, and an analysis has one request.
    seen = observed_runs(settings.pop("observed", None))
    request = _analyzed(source, settings).request
    model = ServedModel.of(request, found, serving.options, observed=seen)
    return simulated(request, found, serving, model)


@takes_settings
def diff(
    before: "ModelSource | Analysis",
    after: "ModelSource | Analysis",
    **settings: Any,  # noqa: ANN401 - those of analyze
) -> "Difference":
    """Compare two models, or two analyses of one: what changed, and which tensors moved the peaks.

    The settings are of both sides.

    :param before: as ``source`` of ``analyze``, or an ``Analysis``, which takes none of them.
    :param after: the same.
    :raises OnnxmemError: a model cannot be read, or the settings contradict each other.
    """
    from onnxmem.decisions.diff import diff as difference
    from onnxmem.decisions.diff import snapshot

    sides = [
        snapshot(side if isinstance(side, Analysis) else analyze(side, **settings))
        for side in (before, after)
    ]
    return difference(*sides)


@takes_settings
def explain(
    what: str | None = None,
    source: "ModelSource | Analysis | None" = None,
    **settings: Any,  # noqa: ANN401 - those of analyze
) -> "Explanation":
    """Explain a figure, a code, a tensor's size or an out-of-memory message; answer a question.

    :param what: a name or a text, as after ``onnxmem explain`` (default: None, all names).
    :param source: a model, whose figures the answer has: a training step or a runtime is analyzed
        if they are of one; or an ``Analysis``, which has what it was requested with and takes no
        settings (default: None, no figures).
    :raises OnnxmemError: nothing is known about it, or the model cannot be read.
    """
    from onnxmem.report.explanation import Model, Needs, batch_of, explanation
    from onnxmem.settings import Settings, TrainingConfig

    if source is None:
        return explanation(what)
    if isinstance(source, Analysis):
        known = _analyzed(source, settings)
        return explanation(what, Model(known.path, lambda _: known), known.request.settings)
    file = source
    # A question may name a batch itself.
    if settings.get("batch") is None:
        settings["batch"] = batch_of(what)

    def analysis_with(needs: Needs) -> Analysis:
        needed = {
            "train": settings.get("train", False) or needs.training,
            "runtimes": settings.get("runtimes") or ((needs.runtime,) if needs.runtime else ()),
        }
        return analyze(file, **(settings | needed))

    own = {name: settings[name] for name in ("optimizer", "precision", "loss") if name in settings}
    names = ("batch", "dims", "shapes", "train", "runtimes")
    given = Settings(
        recipe=(settings.get("recipe") or TrainingConfig()).with_fields(**own),
        **{name: settings[name] for name in names if settings.get(name)},
    )
    return explanation(what, Model(_name_of(file), analysis_with), given)


def check(
    *paths: str,
    config: str | None = None,
    budget: "Budget | None" = None,
    baseline: str | None = None,
    allow_uncovered: bool = False,
) -> "Checkup":
    """Compare models with budgets; ``outcome`` of the result is the verdict on all of them.

    :param paths: files, folders and patterns (default: those that the budgets cover).
    :param config: a file of budgets (default: None, without a ``budget`` the nearest
        ``onnxmem.toml`` or ``pyproject.toml``).
    :param budget: limits on all models, as ``onnxmem.Budget`` (default: None).
    :param baseline: a saved report that limits on growth start from (default: None, that of the
        file of budgets).
    :param allow_uncovered: a model without a budget is no failure (default: False).
    :raises OnnxmemError: the configuration is invalid, or a path names no model.
    """
    from onnxmem.analysis.json_rows import Failure
    from onnxmem.collection.sources import covered_paths, model_paths
    from onnxmem.decisions.check.budgets import (
        Configuration,
        find_configuration,
        read_configuration,
    )
    from onnxmem.decisions.check.checking import Checkup, analyzed_at, gate_of
    from onnxmem.errors import UsageError, fault_of

    found = None
    if config is not None:
        found = read_configuration(config)
    elif budget is None:
        found = find_configuration(Path.cwd())
    configuration = found or Configuration("", Path.cwd(), ())
    if budget is not None:
        configuration = replace(configuration, budgets=(budget, *configuration.budgets))
    if not configuration.budgets:
        message = "no budget: pass budget=onnxmem.Budget(...), or write [[tool.onnxmem.budgets]]"
        raise UsageError(message)

    def analysis_at(path: str, budget: "Budget") -> Analysis | Failure:
        try:
            return analyzed_at(path, budget)
        except Exception as error:  # noqa: BLE001 - one that fails costs no other its verdict
            fault = fault_of(error)
            return Failure(path, fault.code, fault.message)

    gate = gate_of(configuration, analysis_at, baseline)
    named = model_paths(paths)
    models = named or covered_paths(configuration)
    return Checkup(
        tuple(gate.check(models)),
        () if named else gate.unmatched(models),
        allows_uncovered=allow_uncovered,
    )


def measure(  # noqa: PLR0913 - the options of the command
    source: "ModelSource | Analysis",
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int | str, ...]] | None = None,
    device: "Provider" = "cpu",
    runs: int = 3,
    inputs: str | None = None,
    timeout_seconds: float = 300.0,
    memory_limit_bytes: int | None = None,
    options: "SessionOptions | None" = None,
) -> "Measurement":
    """Run a model in onnxruntime, in a process of its own, and measure the memory that it took.

    :param source: as of ``analyze``, or an ``Analysis``, which has its batch, dims and shapes.
    :param batch: samples at once (default: None, the batch of the file, or 1).
    :param dims: numbers of symbolic dims, by name (default: None).
    :param shapes: whole shapes of inputs, by name (default: None).
    :param device: ``cpu`` or ``cuda`` (default: 'cpu').
    :param runs: inferences in a session (default: 3).
    :param inputs: an ``.npz`` file of real inputs (default: None, random ones).
    :param timeout_seconds: seconds for each process that runs the model (default: 300.0).
    :param memory_limit_bytes: bytes of each such process (default: None, what is free here).
    :param options: the session's (default: None, onnxruntime's defaults).
    :raises MeasurementFailedError: the model crashed, hung, ran out of memory or was refused.
    :raises OnnxmemError: the model cannot be read, or onnxruntime or the device is missing.
    """
    from onnxmem.errors import Finding
    from onnxmem.measuring.measuring import MeasurementFailedError, MeasureSettings
    from onnxmem.measuring.measuring import measure as measure_file
    from onnxmem.model.binding import Request
    from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

    chosen = MeasureSettings(
        provider=device,
        runs=runs,
        options=options or SessionOptions(),
        inputs_npz=inputs,
        seconds=timeout_seconds,
        memory_bytes=memory_limit_bytes,
    )
    if isinstance(source, Analysis):
        given = {"batch": batch, "dims": dims, "shapes": shapes}
        _analyzed(source, {name: value for name, value in given.items() if value is not None})
        settings, file = source.request.settings, source.request.source
        found = measure_file(file, Request(settings.batch, settings.dims, settings.shapes), chosen)
    else:
        found = measure_file(source, Request(batch, dims or {}, shapes or {}), chosen)
    if isinstance(found, Finding):
        raise MeasurementFailedError(found.message)
    return found


def observe(  # noqa: PLR0913 - the options of the command
    source: "ModelSource",
    *,
    inputs: Sequence[str] = ("random",),
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int | str, ...]] | None = None,
    timeout_seconds: float = 300.0,
    memory_limit_bytes: int | None = None,
) -> "Observed":
    """Run a model in onnxruntime and record the shapes that its data decide.

    :param source: as of ``analyze``.
    :param inputs: of the runs: ``random``, a number of random ones as ``"20"``, and names of
        ``.npz`` files (default: ('random',)).
    :param batch: samples at once (default: None, the batch of the file, or 1).
    :param dims: numbers of symbolic dims, by name (default: None).
    :param shapes: whole shapes of inputs, by name (default: None).
    :param timeout_seconds: seconds for all runs (default: 300.0).
    :param memory_limit_bytes: bytes of their process (default: None, what is free here).
    :returns: what ``analyze(observed=...)`` takes; its ``to_json`` is the file.
    :raises MeasurementFailedError: the model crashed, hung, ran out of memory or was refused.
    :raises OnnxmemError: the model cannot be read, or onnxruntime is missing.
    """
    from onnxmem.errors import Finding
    from onnxmem.measuring.measuring import MeasurementFailedError, MeasureSettings
    from onnxmem.measuring.observing import observe as observe_file
    from onnxmem.model.binding import Request

    settings = MeasureSettings(seconds=timeout_seconds, memory_bytes=memory_limit_bytes)
    found = observe_file(source, Request(batch, dims or {}, shapes or {}), settings, inputs)
    if isinstance(found, Finding):
        raise MeasurementFailedError(found.message)
    return found


def _name_of(source: "ModelSource") -> str:
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    return "<bytes>" if isinstance(source, bytes) else "<ModelProto>"


def _analyzed(source: "ModelSource | Analysis", settings: dict[str, Any]) -> Analysis:
    if not isinstance(source, Analysis):
        return analyze(source, **settings)
    if settings:
        message = f"an Analysis has its settings: {', '.join(settings)} cannot be given"
        raise TypeError(message)
    return source


def _notebook_html(analysis: Analysis) -> str:
    # Charts are imported only if a notebook shows an analysis, which most callers never do.
    from onnxmem.report.notebook import notebook_html

    return notebook_html(analysis)


Analysis.notebook_html = _notebook_html

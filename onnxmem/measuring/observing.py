"""Runs a model on one or many inputs and records the shapes that its data decide."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, cast

from onnxmem.children.running import JSON, ChildFault, run_in_child
from onnxmem.errors import Finding, UsageError
from onnxmem.files import temporary_folder
from onnxmem.measuring.inputs import InputsFileError
from onnxmem.measuring.measuring import (
    MeasureSettings,
    Staged,
    bind_inputs,
    fault_finding,
    run_fault,
    run_request,
    stage,
    stored_inputs,
    without_mapped,
)
from onnxmem.model.binding import Request
from onnxmem.model.building import prepare
from onnxmem.model.files import ModelFile, ModelSource
from onnxmem.model.graph import Graph
from onnxmem.model.observed import (
    NO_RUN,
    RANDOM,
    GraphRun,
    Observed,
    deciding_only,
    digest_of,
    read_run,
)
from onnxmem.ops.spec import known_dims
from onnxmem.runtimes.onnxruntime.session_files import OnDisk, RefusedError, on_disk

STEP: Final = "the shapes"
_TRACE: Final = "onnxmem.measuring.shape_tracing:trace_shapes"
_RANDOM: Final = "random"
_MOST_RUNS: Final = 10_000
_SPREADS: Final = (64, 2)
"""Random integers are below the first that the model accepts: a class or a token may be no index
beyond a small table."""


def observe(
    source: ModelSource | ModelFile,
    request: Request | None = None,
    settings: MeasureSettings | None = None,
    inputs: Sequence[str] = (_RANDOM,),
) -> Observed | Finding:
    """Run a model on each of the inputs: ``random``, a number of random ones, or ``.npz`` files.

    A run that fails gives a finding, as of ``measure``.

    :raises BackendUnavailableError: onnxruntime is missing.
    :raises InputsFileError: a file does not match the model, or not the files before it.
    :raises OnnxmemError: what ``measure`` raises.
    """
    chosen = settings or MeasureSettings()
    chosen.progress(STEP)
    sources = inputs_of(inputs)
    with temporary_folder() as name:
        folder = Path(name)
        try:
            return _observed(on_disk(source, folder), request or Request(), chosen, sources, folder)
        except RefusedError as refusal:
            return Finding("measure_failed", str(refusal))


def inputs_of(names: Sequence[str]) -> tuple[str | int, ...]:
    """The inputs of each run: a seed of random ones, or a file.

    :raises UsageError: no runs, or too many.
    """
    found: list[str | int] = []
    for name in names:
        number = 1 if name == _RANDOM else int(name) if _is_number(name) else None
        # Seeds go on over all numbers that are given, so that no two runs have equal inputs.
        first = sum(isinstance(each, int) for each in found)
        found += [name] if number is None else range(first, first + number)
        if not found or len(found) > _MOST_RUNS:
            message = f"{name!r} runs: a model is observed in 1 to {_MOST_RUNS:,} runs"
            raise UsageError(message)
    return tuple(found)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < len(str(_MOST_RUNS)) + 1


def _observed(
    source: OnDisk,
    request: Request,
    settings: MeasureSettings,
    sources: Sequence[str | int],
    folder: Path,
) -> Observed | Finding:
    settled = [_settings_of(settings, each) for each in sources]
    # Every file is read, also where nothing has to run.
    distinct = {each.inputs_npz: each for each in settled}.values()
    bound, *_ = [bind_inputs(prepare(source.file), request, each)[0] for each in distinct]
    is_open = any(tensor.is_open for tensor in bound.graph.tensors.values())
    if not is_open and not any(node.subgraphs for node in bound.graph.nodes):
        return _of(source, bound.graph, sources, [NO_RUN] * len(sources))
    staged = stage(source, request, settled[0], folder)
    if isinstance(staged, Finding):
        return staged
    graph = staged.bound.graph
    limits = without_mapped(staged.limits, staged.model)
    # The first of random runs has the inputs of `measure`. A model may accept no others.
    is_varied = any(isinstance(each, int) and each for each in sources)
    for spread in (*(_SPREADS if is_varied else ()), 0):
        requests = _requests(staged, request, settled, sources, folder, spread)
        if isinstance(requests, Finding):
            return requests
        reply = run_in_child(_TRACE, {"requests": requests}, limits)
        if not (isinstance(reply, ChildFault) and reply.kind == "error"):
            break
    if isinstance(reply, ChildFault):
        return run_fault(reply, STEP, staged, settled[0])
    rows = cast("list[dict[str, Any]]", reply["runs"])
    if len(rows) < len(sources):
        text = f"onnxruntime's profile has {len(rows):,} of {len(sources):,} runs: request fewer"
        return Finding("measure_failed", text)
    runs = [deciding_only(read_run(row), graph) for row in rows]
    return _of(source, graph, sources, runs)


def _requests(
    staged: Staged,
    request: Request,
    settings: Sequence[MeasureSettings],
    sources: Sequence[str | int],
    folder: Path,
    spread: int,
) -> list[dict[str, JSON]] | Finding:
    """The request of each run, whose inputs are in a file of its own."""
    requests: list[dict[str, JSON]] = []
    for index, (each, own) in enumerate(zip(sources, settings, strict=True)):
        feeds = staged.feeds
        if own.inputs_npz is not None and index:
            bound, feeds = bind_inputs(staged.prepared, request, own)
            if bound.binding.shapes != staged.bound.binding.shapes:
                message = f"{own.inputs_npz}: the inputs have other shapes than those before them"
                raise InputsFileError(message)
        path = folder / f"inputs-{index}.bin"
        seed = each if isinstance(each, int) else 0
        stored = stored_inputs(feeds, own, path, staged.limits, seed, spread if seed else 0)
        if isinstance(stored, ChildFault):
            return fault_finding(stored, STEP, staged.limits)
        requests.append(asdict(run_request(staged.model, staged.bound, path, stored, own)))
    return requests


def _of(
    source: OnDisk, graph: Graph, sources: Sequence[str | int], runs: Sequence[GraphRun]
) -> Observed:
    return Observed(
        model=source.file.path,
        digest=digest_of(source.file),
        inputs={name: known_dims(graph.tensors[name].shape) or () for name in graph.inputs},
        sources=tuple(f"{RANDOM}{each}" if isinstance(each, int) else each for each in sources),
        runs=tuple(runs),
    )


def _settings_of(settings: MeasureSettings, source: str | int) -> MeasureSettings:
    return replace(settings, inputs_npz=None if isinstance(source, int) else source)

"""Measures a process that serves requests of changing shapes, by serving them in a child.

Inputs of all requests are the first elements of one array each, which the child maps from a file:
so they take no part in the growth of its heap.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Final

from onnxmem.children.running import JSON, ChildFault, run_in_child
from onnxmem.errors import Finding
from onnxmem.files import temporary_folder
from onnxmem.measuring.inputs import feeds_of
from onnxmem.measuring.measurement import listed, whole
from onnxmem.measuring.measuring import (
    FAILED,
    INPUTS_FILE,
    UNINITIALIZED,
    MeasureSettings,
    Staged,
    fault_finding,
    made_up_weights,
    run_fault,
    run_request,
    stored_inputs,
    without_mapped,
)
from onnxmem.measuring.run_request import Feed
from onnxmem.model.binding import Binding, Request, bind
from onnxmem.model.building import BoundModel, build, prepare
from onnxmem.model.files import ModelFile, ModelSource
from onnxmem.model.filling import stored_tensors
from onnxmem.model.input_values import refuse_unknown_names, unused_values
from onnxmem.model.requests import Requests
from onnxmem.runtimes.onnxruntime.session_files import (
    OnDisk,
    RefusedError,
    on_disk,
    refuse_data_elsewhere,
    refuse_other_dims,
    runnable,
)

_SERVE: Final = "onnxmem.measuring.served_run:serve_requests"
_STEPS: Final = ("opening the model", "serving the requests")


@dataclass(frozen=True, slots=True)
class MeasuredRequest:
    """The process when a request has ended, in bytes; all sessions together."""

    dims: Mapping[str, int]
    reserved_bytes: int
    """Arena reserved."""
    reserved_peak_bytes: int
    """The same during the request: more only where the arena shrinks at the end of a run."""
    resident_bytes: int | None
    """Resident memory of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedMeasurement:
    """A process that served requests, in bytes; ``None``: the system does not say."""

    onnxruntime_version: str
    timeline: tuple[MeasuredRequest, ...]
    """One for each request, in the order of their ends."""
    loaded_bytes: int
    """Arena reserved before the first request."""
    input_bytes: int
    """Of the arrays that hold the inputs of all requests; they are resident from the start on."""
    load_peak_bytes: int | None
    """Peak of the process while the sessions were created."""
    process_floor_bytes: int | None
    """Resident before the inputs: Python with numpy and onnxruntime imported."""
    process_peak_bytes: int | None
    """Peak of the process, its outputs included."""
    proportional_bytes: int | None
    """After the last request; a page that processes share counts in parts (PSS)."""
    seconds: float
    """Wall time of all requests."""
    findings: tuple[Finding, ...]

    @property
    def arena_reserved_bytes(self) -> int:
        """After the last request."""
        return self.timeline[-1].reserved_bytes

    @property
    def arena_reserved_peak_bytes(self) -> int:
        """The most that the arenas reserved."""
        return max(self.loaded_bytes, *(each.reserved_peak_bytes for each in self.timeline))

    @property
    def process_bytes(self) -> int | None:
        """Resident after the last request."""
        return self.timeline[-1].resident_bytes


@dataclass(frozen=True, slots=True)
class ServedLoad:
    """Requests, and how they are served."""

    requests: Requests
    concurrency: int = 1
    """Runs at once in each session."""
    sessions: int = 1
    """In the process; they are handed requests in turn."""


def measure_requests(
    source: ModelSource | ModelFile,
    load: ServedLoad,
    fixed: Request | None = None,
    settings: MeasureSettings | None = None,
) -> ServedMeasurement | Finding:
    """Serve requests in a process of its own and measure it.

    ``fixed`` has the dims that all requests have in common. A model that fails gives a finding, as
    ``measure`` does.

    :raises RequestsError: the model does not have a dim of the requests.
    :raises BackendUnavailableError: onnxruntime is missing.
    :raises InputValueError: a value does not match its input, or there is no such input.
    :raises OnnxmemError: what ``load`` and ``build`` raise.
    """
    chosen = settings or MeasureSettings()
    chosen.progress(_STEPS[0])
    with temporary_folder() as name:
        folder = Path(name)
        try:
            return _served(on_disk(source, folder), load, fixed or Request(), chosen, folder)
        except RefusedError as refusal:
            return Finding(FAILED, str(refusal))


def _served(
    source: OnDisk, load: ServedLoad, fixed: Request, settings: MeasureSettings, folder: Path
) -> ServedMeasurement | Finding:
    refuse_unknown_names(source.file.proto, fixed.dims, settings.values)
    prepared = prepare(source.file)
    request_at = load.requests.binder(prepared, fixed)
    distinct = load.requests.shapes
    bindings = [bind(prepared.inputs, request_at(row)) for row in distinct]
    # An index that is valid in the smallest request is so in all.
    smallest = min(range(len(distinct)), key=lambda index: _num_elements(bindings[index].shapes))
    bound = build(prepared, request_at(distinct[smallest]))
    refuse_data_elsewhere(stored_tensors(source.file.proto), source.path)
    refuse_other_dims(prepared, bound)
    limits = settings.child_limits()
    model = runnable(source, bound, folder, limits, settings.options.weights)
    if isinstance(model, ChildFault):
        return fault_finding(model, _STEPS[0], limits)
    feeds = tuple(_largest_feeds(bound, bindings, settings))
    staged = Staged(source, model, prepared, bound, feeds, limits)
    inputs_file = folder / INPUTS_FILE
    inputs = stored_inputs(feeds, settings, inputs_file, limits)
    if isinstance(inputs, ChildFault):
        return fault_finding(inputs, _STEPS[0], limits)
    arguments: dict[str, JSON] = {
        "request": asdict(run_request(model, bound, inputs_file, inputs, settings)),
        "shapes": [{name: each.shapes[name] for name in bound.graph.inputs} for each in bindings],
        **_served_by(load),
    }
    settings.progress(_STEPS[1])
    variables = settings.options.variables
    reply = run_in_child(_SERVE, arguments, without_mapped(limits, model), UNINITIALIZED, variables)
    if isinstance(reply, ChildFault):
        return run_fault(reply, _STEPS[1], staged, settings)
    unused = unused_values(bound.graph, settings.values)
    return ServedMeasurement(
        onnxruntime_version=str(reply["onnxruntime_version"]),
        timeline=tuple(_timeline(listed(reply["timeline"]), distinct)),
        loaded_bytes=whole(reply["loaded_bytes"]) or 0,
        input_bytes=inputs_file.stat().st_size,
        load_peak_bytes=whole(reply["load_peak_bytes"]),
        process_floor_bytes=whole(reply["process_floor_bytes"]),
        process_peak_bytes=whole(reply["process_peak_bytes"]),
        proportional_bytes=whole(reply["proportional_bytes"]),
        seconds=float(str(reply["seconds"])),
        findings=(*bound.binding.findings, *unused, *made_up_weights(model)),
    )


def _largest_feeds(
    bound: BoundModel, bindings: Sequence[Binding], settings: MeasureSettings
) -> Iterator[Feed]:
    """Inputs that are as long as the largest request: each request reads the start of them."""
    for each in feeds_of(bound, settings.values):
        # One flat array for each input, of which a request reads as many elements as its shape has.
        yield replace(each, shape=(max(prod(other.shapes[each.name]) for other in bindings),))


def _served_by(load: ServedLoad) -> dict[str, JSON]:
    """The order of the requests, each by the index of its shapes, and who runs them."""
    # Requests are sent as indices: thousands of them have a few shapes.
    index_of = {tuple(row.items()): index for index, row in enumerate(load.requests.shapes)}
    return {
        "order": [index_of[tuple(row.items())] for row in load.requests.rows],
        "concurrency": load.concurrency,
        "sessions": load.sessions,
    }


def _num_elements(shapes: Mapping[str, Sequence[int]]) -> int:
    return sum(map(prod, shapes.values()))


def _timeline(
    rows: Sequence[JSON], distinct: Sequence[Mapping[str, int]]
) -> Iterator[MeasuredRequest]:
    for row in rows:
        index, *sizes = map(whole, listed(row))
        reserved, peak = (size or 0 for size in sizes[:2])
        yield MeasuredRequest(distinct[index or 0], reserved, peak, sizes[2])

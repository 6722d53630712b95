"""The memory of a server's pod: what to request and where to limit it, from simulated processes.

Several models in one process have Python and the pages of onnxruntime's library once, and so their
processes add up to less than their sum. The request is what all of them hold after their last
request. The limit is the most that was found: each model's peak in the worst order that was tried
and of the largest draw of concurrent runs, in the larger outcome of the heap where it has two, all
at once, and the error of the prediction on top. The peaks of several models seldom come at once, so
the limit of one process may be high, not low. Workers are processes of their own, which share
nothing but the pages of mapped external weights; these are counted for each of them. Workers that
are forked from a process which has loaded the sessions share all that no run writes: each adds its
arenas, its inputs, and some pages of Python and of the sessions.

Written as a patch of a Deployment (Kubernetes), as ``instance_group`` of Triton's onnxruntime
backend, each instance of which has a session and runs one request at a time, or as JSON.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
from typing import ClassVar, Final, Self, TypeVar

from onnxmem.analysis.fitting.verdicts import ACCURACIES, Basis
from onnxmem.analysis.json_rows import (
    JsonDict,
    SavedObject,
    SavedReportError,
    document,
    document_text,
    read_saved,
)
from onnxmem.decisions.advise.emitting import optimization, parameter
from onnxmem.decisions.simulate import MOST_AT_ONCE, Simulation
from onnxmem.errors import UsageError, printable, shortened
from onnxmem.runtimes.onnxruntime.advice import option_names
from onnxmem.runtimes.onnxruntime.process.sessions import FORKED_BYTES, SHARED_BYTES
from onnxmem.runtimes.onnxruntime.session_options import (
    GROWTHS,
    LEVELS,
    MOST_THREADS,
    SessionOptions,
    Storage,
)
from onnxmem.settings import RUNTIMES
from onnxmem.units import format_bytes, plural
from onnxmem.version import __version__

SCHEMA: Final = "onnxmem.sizing"
SCHEMA_VERSION: Final = "1.0"
SIMULATION_SCHEMA: Final = "onnxmem.simulation"
_MIB: Final = 1 << 20
_MOST_LABEL: Final = 63
"""Characters of a name in Kubernetes (RFC 1123)."""
_MOST_WORKERS: Final = 10_000
_MOST_BYTES: Final = 1 << 60
_STORED: Final[tuple[Storage, ...]] = ("inline", "external")
_Name = TypeVar("_Name", bound=str)


class SavedSimulation(SavedObject):
    """A JSON object of a saved simulation."""

    hint: ClassVar[str] = "; write it with onnxmem simulate MODEL --requests ... --json -o FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedProcess:
    """One model that a process serves, in bytes of a process that serves nothing else."""

    path: str
    runtime: str
    sessions: int
    concurrency: int
    options: SessionOptions
    """Of each session, with its level."""
    steady_bytes: int
    """After the last request."""
    most_bytes: int
    """The most that was found."""
    own_bytes: int
    """Of the process after the last request, what a forked worker has to itself."""
    is_complete: bool
    """False: the bytes are lower bounds."""
    notes: tuple[str, ...]
    """What the simulation assumes or leaves out."""

    @classmethod
    def of(cls, path: str, found: Simulation) -> Self:
        """The process of a simulation."""
        own_bytes = found.own_bytes
        return cls(
            path=path,
            runtime=found.runtime,
            sessions=found.serving.sessions,
            concurrency=found.serving.concurrency,
            options=found.serving.options,
            steady_bytes=found.timeline[-1].process_bytes,
            most_bytes=found.process_most_bytes,
            own_bytes=found.timeline[-1].process_bytes if own_bytes is None else own_bytes,
            is_complete=found.is_complete,
            notes=tuple(each.message for each in found.findings),
        )

    @property
    def settings(self) -> tuple[str, ...]:
        """The options of its sessions that are not onnxruntime's defaults, by its names."""
        own = SessionOptions(level=self.options.level, num_threads=self.options.num_threads)
        return option_names(own, self.options)

    @property
    def num_busy_threads(self) -> int:
        """Threads that compute at once at most: the callers, and the pool of each session."""
        # The calling thread is one of the intra-op threads of its session.
        return self.sessions * (self.concurrency + self.options.num_threads - 1)


@dataclass(frozen=True, slots=True)
class Sizing:
    """A pod: one or more equal processes, each of which serves all models."""

    processes: tuple[ServedProcess, ...]
    workers: int = 1
    is_forked: bool = False
    """Whether the workers are forked from a process that has loaded the sessions, which is there
    too (``gunicorn --preload``)."""

    def __post_init__(self) -> None:
        """Refuse what is no pod.

        :raises UsageError: with the reason.
        """
        # What one process cannot have is refused here, so that all figures below may read the first
        # process's options.
        refuse_workers(self.workers)
        if self.is_forked and any(each.options.num_threads > 1 for each in self.processes):
            message = (
                "--preload: the threads of a session do not survive a fork, and its runs wait for "
                "them; simulate with --threads 1"
            )
            raise UsageError(message)
        if len({each.runtime for each in self.processes}) > 1:
            message = "the models are of ort-cpu and of ort-cuda; size each runtime by itself"
            raise UsageError(message)
        if len({each.options.malloc_threshold_bytes for each in self.processes}) > 1:
            message = (
                "the models were simulated with different malloc thresholds, which one process "
                "cannot have; simulate each with the same --malloc-threshold"
            )
            raise UsageError(message)

    @property
    def runtime(self) -> str:
        """Of all models."""
        return self.processes[0].runtime

    @property
    def request_bytes(self) -> int:
        """What all workers hold after the last request, in whole MiB."""
        return self._total([each.steady_bytes for each in self.processes])

    @property
    def limit_bytes(self) -> int:
        """The most that was found of all, and the error on top, in whole MiB."""
        most = self._total([each.most_bytes for each in self.processes])
        # In whole numbers and rounded up, so that no float lowers a limit.
        hundredths = round((100 + self.error_percent) * 100)
        return _whole(-(-most * hundredths // 10_000))

    @property
    def error_percent(self) -> float:
        """Nine of ten predictions of a process are this near."""
        return ACCURACIES[Basis.ORT_CPU].percent or 0.0

    @property
    def num_threads(self) -> int:
        """Threads that compute at once at most."""
        return self.workers * sum(each.num_busy_threads for each in self.processes)

    @property
    def variables(self) -> dict[str, str]:
        """In the environment of each process."""
        return self.processes[0].options.variables

    @property
    def is_complete(self) -> bool:
        """False: the bytes are lower bounds."""
        return all(each.is_complete for each in self.processes)

    def _total(self, sizes_bytes: Sequence[int]) -> int:
        """Of all workers; ``sizes_bytes`` are of each process alone."""
        # Each simulation is of a process of its own: what the models share in one is counted once.
        whole_bytes = sum(sizes_bytes) - SHARED_BYTES * (len(self.processes) - 1)
        if not self.is_forked:
            return _whole(self.workers * whole_bytes)
        # The process that loaded the sessions has everything once; each worker adds what its runs
        # write, and the pages of Python and of the sessions that it touches (`FORKED_BYTES`).
        # What runs take beyond their last state is a worker's own too.
        pairs = zip(self.processes, sizes_bytes, strict=True)
        own_bytes = sum(each.own_bytes + size - each.steady_bytes for each, size in pairs)
        return _whole(whole_bytes - own_bytes + self.workers * (own_bytes + FORKED_BYTES))


def read_process(file: str) -> ServedProcess:
    """Read the process that ``onnxmem simulate --json`` wrote.

    :raises MissingFileError: the file cannot be opened.
    :raises SavedReportError: it is not such a file, or has not one model with a result.
    """
    rows = read_saved(file, SIMULATION_SCHEMA, SavedSimulation)
    found = rows[0].table("simulation") if len(rows) == 1 else None
    settings = rows[0].table("settings") if len(rows) == 1 else None
    if found is None or settings is None:
        message = f"{shortened(file)}: has not the simulation of one model{SavedSimulation.hint}"
        raise UsageError(message)
    timeline = found.tables("timeline")
    if not timeline:
        fault = found.fault("timeline", "is empty")
        raise fault
    options = _options(settings)
    steady_bytes = _count(timeline[-1], "process_bytes", _MOST_BYTES)
    most_bytes = _count(found, "process_most_bytes", _MOST_BYTES)
    if most_bytes < steady_bytes:
        fault = found.fault("process_most_bytes", "is less than after the last request")
        raise fault
    own_bytes = found.size_bytes("process_own_bytes")
    notes = (each.text("message") for each in rows[0].tables("findings"))
    return ServedProcess(
        path=rows[0].text("path") or "",
        runtime=_one_of(settings, "runtime", RUNTIMES),
        sessions=_count(settings, "sessions", MOST_AT_ONCE),
        concurrency=_count(settings, "concurrency", MOST_AT_ONCE),
        options=options,
        steady_bytes=steady_bytes,
        most_bytes=most_bytes,
        own_bytes=steady_bytes if own_bytes is None else min(own_bytes, steady_bytes),
        is_complete=rows[0].text("status") == "ok",
        notes=tuple(each for each in notes if each),
    )


def _options(settings: SavedObject) -> SessionOptions:
    values = settings.values
    stored = values.get("weights") is not None
    has_level = values.get("graph") is not None
    try:
        return SessionOptions(
            level=LEVELS[_one_of(settings, "graph", tuple(LEVELS))] if has_level else "all",
            num_threads=_count(settings, "num_threads", MOST_THREADS),
            enable_mem_pattern=values.get("enable_mem_pattern") is not False,
            enable_mem_reuse=values.get("enable_mem_reuse") is not False,
            shares_arena=values.get("shares_arena") is True,
            shrinks_arena=values.get("shrinks_arena") is True,
            arena_extend_strategy=_one_of(settings, "arena_extend_strategy", GROWTHS),
            weights=_one_of(settings, "weights", _STORED) if stored else None,
            trims_heap=values.get("malloc_trim") is True,
            malloc_threshold_bytes=settings.size_bytes("malloc_threshold_bytes"),
            gpu_mem_limit_bytes=settings.size_bytes("gpu_mem_limit_bytes"),
        )
    except SavedReportError:
        raise
    except UsageError as error:
        fault = settings.fault("malloc_threshold_bytes", str(error))
        raise fault from error


def _count(table: SavedObject, key: str, most: int) -> int:
    number = table.size_bytes(key)
    if not number:
        raise table.fault(key, "is not a positive count")
    if number > most:
        raise table.fault(key, f"is more than {most:,}")
    return number


def _one_of(table: SavedObject, key: str, known: Sequence[_Name]) -> _Name:
    value = table.text(key)
    for name in known:
        if name == value:
            return name
    raise table.fault(key, f"is not one of {', '.join(known)}")


def refuse_workers(workers: int) -> None:
    """Refuse a number of processes that no pod has.

    :raises UsageError: with the number.
    """
    if not 1 <= workers <= _MOST_WORKERS:
        message = f"{workers:,} workers; it is between 1 and {_MOST_WORKERS:,}"
        raise UsageError(message)


def kubernetes_patch(sizing: Sizing) -> str:
    """A patch of a Deployment: ``kubectl patch deployment NAME --patch-file FILE``.

    :raises UsageError: the models are on a GPU.
    """
    _refuse_gpu(sizing, "k8s")
    name = _label(sizing.processes[0].path)
    lines = [
        *_remarks(sizing),
        "spec:",
        "  template:",
        "    spec:",
        "      containers:",
        f"        - name: {json.dumps(name)}",
        "          resources:",
        "            requests:",
        f"              memory: {sizing.request_bytes // _MIB}Mi",
        f'              cpu: "{sizing.num_threads}"',
        "            limits:",
        f"              memory: {sizing.limit_bytes // _MIB}Mi",
    ]
    if sizing.variables:
        lines.append("          env:")
        for variable, value in sizing.variables.items():
            lines += [f"            - name: {variable}", f'              value: "{value}"']
    return "\n".join(lines) + "\n"


def triton_groups(sizing: Sizing) -> str:
    """The part of each model's ``config.pbtxt`` that says how many instances it has.

    :raises UsageError: a session runs several requests at once, or there are several workers.
    """
    lines = [*_remarks(sizing), _NOT_TRITON]
    if sizing.workers > 1 or sizing.is_forked:
        message = "--emit triton: Triton is one process; use --sessions for more instances"
        raise UsageError(message)
    for each in sizing.processes:
        if each.concurrency > 1:
            message = (
                "--emit triton: an instance runs one request at a time; "
                f"use --sessions {each.sessions * each.concurrency} --concurrency 1"
            )
            raise UsageError(message)
        kind, device = _TRITON[each.runtime]
        lines += [
            "",
            f"# config.pbtxt of {shortened(each.path)}",
            'backend: "onnxruntime"',
            f"instance_group [ {{ count: {each.sessions} kind: {kind} }} ]",
            *optimization(each.options, each.runtime),
            parameter("intra_op_thread_count", each.options.num_threads),
            parameter("enable_mem_pattern", int(each.options.enable_mem_pattern)),
        ]
        if each.options.shrinks_arena:
            lines.append(parameter("memory.enable_memory_arena_shrinkage", device))
        lines += map("# counted, but not in this file: {}".format, _not_triton(each))
    return "\n".join(lines) + "\n"


def _not_triton(process: ServedProcess) -> Iterator[str]:
    """Settings that the figures are of and that ``config.pbtxt`` does not have."""
    options = process.options
    growth, limit_bytes = options.arena_extend_strategy, options.gpu_mem_limit_bytes
    found = (
        (not options.enable_mem_reuse, "enable_mem_reuse 0"),
        (process.runtime == "ort-cpu" and growth != GROWTHS[0], f"arena_extend_strategy {growth}"),
        (options.shares_arena, "one arena for all sessions"),
        (limit_bytes is not None, f"gpu_mem_limit {limit_bytes}"),
        (options.weights is not None, f"{options.weights} weights"),
        (options.trims_heap, "malloc_trim(0) when the session is created"),
    )
    yield from (text for is_set, text in found if is_set)
    for name, value in options.variables.items():
        yield f"{name}={value} in the environment of tritonserver"


def sizing_file(sizing: Sizing) -> str:
    """A JSON object."""
    content: JsonDict = {
        "runtime": sizing.runtime,
        "workers": sizing.workers,
        "is_forked": sizing.is_forked,
        "request_bytes": sizing.request_bytes,
        "limit_bytes": sizing.limit_bytes,
        "is_complete": sizing.is_complete,
        "error_percent": sizing.error_percent,
        "num_threads": sizing.num_threads,
        "shared_bytes": SHARED_BYTES,
        "models": [
            {
                "path": printable(each.path),
                "sessions": each.sessions,
                "concurrency": each.concurrency,
                "num_threads": each.options.num_threads,
                "settings": list(each.settings),
                "steady_bytes": each.steady_bytes,
                "most_bytes": each.most_bytes,
                "own_bytes": each.own_bytes,
                "is_complete": each.is_complete,
                "notes": list(map(printable, each.notes)),
            }
            for each in sizing.processes
        ],
        "environment": dict(sizing.variables),
    }
    return document_text(document(SCHEMA, SCHEMA_VERSION, content))


SIZERS: Final[Mapping[str, Callable[[Sizing], str]]] = MappingProxyType(
    {"k8s": kubernetes_patch, "triton": triton_groups, "json": sizing_file}
)
"""The formats by name."""
_NOT_TRITON: Final = "# Triton's own memory was not measured; Python's is counted in its place"
_TRITON: Final = {"ort-cpu": ("KIND_CPU", "cpu:0"), "ort-cuda": ("KIND_GPU", "gpu:0")}


def _remarks(sizing: Sizing) -> Iterator[str]:
    """What the numbers are, as comments."""
    yield f"# Sized by onnxmem {__version__}, from simulated requests"
    for each in sizing.processes:
        yield from _remarks_of(each)
    if len(sizing.processes) > 1:
        yield f"# each further model shares {format_bytes(SHARED_BYTES)} of the process"
    if sizing.is_forked:
        workers = plural(sizing.workers, "worker")
        yield f"# {workers}, forked from the process that loaded the models"
    elif sizing.workers > 1:
        yield f"# {sizing.workers:,} such processes; pages of mapped weights count in each"
    yield (
        f"# request: {format_bytes(sizing.request_bytes)}, after the last request; "
        f"limit: {format_bytes(sizing.limit_bytes)}, the most found and {sizing.error_percent:g} %"
    )
    if not sizing.is_complete:
        yield "# lower bound: both leave out what is unknown of a model; measure before you deploy"


def _remarks_of(process: ServedProcess) -> Iterator[str]:
    """What the numbers of a model are, as comments."""
    sessions = plural(process.sessions, "session")
    threads = plural(process.options.num_threads, "thread")
    at_once = f"{process.concurrency:,} at once in each, {threads}"
    yield f"# {shortened(process.path)}: {sessions}, {at_once}"
    if process.settings:
        yield f"#   with {', '.join(process.settings)}"
    sizes = map(format_bytes, (process.steady_bytes, process.most_bytes))
    yield "#   alone: {} after the last request, {} at most".format(*sizes)
    if not process.is_complete:
        yield "#   lower bound: something of unknown size is left out, so it may take more"
    for note in process.notes:
        yield f"#   note: {printable(note)}"


def _refuse_gpu(sizing: Sizing, name: str) -> None:
    if sizing.runtime != "ort-cpu":
        message = f"--emit {name}: a pod's memory is the host's, which is unknown for a GPU"
        raise UsageError(message)


def _label(path: str) -> str:
    """The name of a model's file as a name in Kubernetes."""
    words = re.sub(r"[^a-z0-9]+", "-", PurePath(path).stem.lower()).strip("-")
    return words[:_MOST_LABEL].strip("-") or "model"


def _whole(size_bytes: int) -> int:
    return -(-size_bytes // _MIB) * _MIB

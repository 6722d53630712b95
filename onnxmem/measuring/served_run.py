"""Runs in the child: sessions of onnxruntime that serve requests, as the process of a server does.

Beside Python, numpy and onnxruntime the process imports only this module, ``process_run`` and
``memory``, and ``concurrent.futures`` where several requests run at once. onnxruntime logs each
extension of an arena (``bfc_arena.cc``, ``BFCArena::Extend``) at severity 1 of its default logger,
and each shrinkage at 0. The log goes to stderr, which is a file here and is read at the end of each
request.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import onnxruntime as ort

from onnxmem.measuring.memory import (
    peak_resident_bytes,
    proportional_bytes,
    resident_bytes,
    restart_peak,
)
from onnxmem.measuring.process_run import (
    input_array,
    mapped_inputs,
    native_options,
    open_session,
    read_plain_request,
    run_options,
)

if TYPE_CHECKING:
    from onnxmem.children.running import JSON
    from onnxmem.measuring.run_request import RunRequest

VERBOSE, _INFO = 0, 1
"""Severities of the log that has the arena's shrinkages, and its extensions."""
_CHANGE: Final = re.compile(
    rb"Reserving memory in BFCArena for Cpu size: (\d+)"
    rb"|Extended allocation by (\d+) bytes"
    rb"|BFC Arena shrunk by (\d+) bytes"
    rb"|otal allocated bytes(?:: | is now )(\d+)"
)
_SHRUNK, _TOTAL = 3, 4
"""Groups of the pattern. After an extension and a shrinkage the arena says what it has."""
_LOG: Final = "arena.log"


def serve_requests(
    request: Mapping[str, Any],
    shapes: Sequence[Mapping[str, Sequence[int]]],
    order: Sequence[int],
    concurrency: int,
    sessions: int,
) -> "dict[str, JSON]":
    """Measure the process and its arenas at the end of each request.

    ``shapes`` are the distinct requests, and ``order`` has the index of each one that comes. The
    keys of the result are fields of ``ServedMeasurement``.
    """
    floor = resident_bytes()
    plan = read_plain_request(request)
    ort.set_default_logger_severity(VERBOSE if plan.options.shrinks_arena else _INFO)
    with arena_log(1 if plan.options.shares_arena else sessions) as arenas:
        server = _Server(plan, shapes, arenas)
        restart_peak()
        opened = [open_session(plan, native_options(plan)) for _ in range(sessions)]
        arenas.read()
        loaded = {
            "loaded_bytes": arenas.reserved_bytes,
            "load_peak_bytes": peak_resident_bytes(),
        }
        start = time.perf_counter()
        if concurrency == 1:
            for number, index in enumerate(order):
                server.serve(opened[number % sessions], index)
        else:
            server.serve_at_once(opened, order, concurrency)
        seconds = time.perf_counter() - start
    # The kernel updates its counters in batches: VmRSS may be a little above VmHWM.
    residents = (peak_resident_bytes(), *(row[-1] for row in server.timeline))
    return {
        **loaded,
        "timeline": server.timeline,
        "process_floor_bytes": floor,
        "process_peak_bytes": max((each for each in residents if each is not None), default=None),
        "proportional_bytes": proportional_bytes(),
        "seconds": seconds,
        "onnxruntime_version": ort.__version__,
    }


class ArenaLog:
    """Mutable: what all arenas of the process reserve, as far as their log was read.

    A weight that the load reserved and released again is in no line but the next total. A total is
    that of one arena, so with several such weights stay counted: some hundred bytes, if any.
    """

    def __init__(self, descriptor: int, num_arenas: int) -> None:
        self._descriptor = descriptor
        self._num_arenas = num_arenas
        self._position = 0
        self.reserved_bytes = self.reserved_peak_bytes = 0

    def restart_peak(self) -> None:
        """Forget what was reserved at most."""
        self.reserved_peak_bytes = self.reserved_bytes

    def read(self) -> None:
        """Read the whole lines that the log has now."""
        size = os.fstat(self._descriptor).st_size - self._position
        text = os.pread(self._descriptor, size, self._position)
        text = text[: text.rfind(b"\n") + 1]
        self._position += len(text)
        for change in _CHANGE.finditer(text):
            index = change.lastindex or 0
            size_bytes = int(change[index])
            if index != _TOTAL:
                self.reserved_bytes += -size_bytes if index == _SHRUNK else size_bytes
            elif self._num_arenas == 1:
                self.reserved_bytes = size_bytes
            self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)


@contextmanager
def arena_log(num_arenas: int) -> Iterator[ArenaLog]:
    """Log the arenas of sessions that are created in a ``with`` block."""
    # The descriptor and not ``sys.stderr``, which onnxruntime does not write to.
    stderr, log = os.dup(2), os.open(_LOG, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    try:
        yield ArenaLog(log, num_arenas)
    finally:
        os.dup2(stderr, 2)
        for descriptor in (stderr, log):
            os.close(descriptor)


class _Server:
    """Mutable: serves requests, and has the process at the end of each so far."""

    def __init__(
        self, plan: "RunRequest", shapes: Sequence[Mapping[str, Sequence[int]]], arenas: ArenaLog
    ) -> None:
        self._plan, self._shapes, self._arenas = plan, shapes, arenas
        self._content = mapped_inputs(plan)
        self._ending = run_options(plan)
        self.timeline: list[list[int | None]] = []
        """A row for each request that ended: its index, then bytes."""

    def serve(self, session: ort.InferenceSession, index: int) -> None:
        """Serve one request to its end, and read the process."""
        self._run(session, index)
        self._record(index)

    def serve_at_once(
        self, sessions: Sequence[ort.InferenceSession], order: Sequence[int], concurrency: int
    ) -> None:
        """Serve by so many threads for each session; each takes the next request when it is done.

        :raises Exception: what a run raised.
        """
        from concurrent.futures import ThreadPoolExecutor  # which one run at a time does not need
        from threading import Lock

        lock = Lock()

        def serve_waiting(session: ort.InferenceSession, waiting: Iterator[int]) -> None:
            for index in waiting:
                self._run(session, index)
                with lock:
                    self._record(index)

        with ThreadPoolExecutor(len(sessions) * concurrency) as pool:
            # The threads of a session share one iterator, so that each request is served once.
            served = [
                pool.submit(serve_waiting, session, waiting)
                for number, session in enumerate(sessions)
                for waiting in [iter(order[number :: len(sessions)])] * concurrency
            ]
        for each in served:
            each.result()

    def _run(self, session: ort.InferenceSession, index: int) -> None:
        shapes = self._shapes[index]
        inputs = self._plan.inputs
        feeds = {each.name: input_array(each, self._content, shapes[each.name]) for each in inputs}
        session.run(None, feeds, self._ending)

    def _record(self, index: int) -> None:
        arenas = self._arenas
        arenas.read()
        row = [index, arenas.reserved_bytes, arenas.reserved_peak_bytes, resident_bytes()]
        self.timeline.append(row)
        arenas.restart_peak()

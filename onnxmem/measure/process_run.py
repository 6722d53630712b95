"""The child's side: runs as a user does them, and what they make of the process.

The process that runs this is the one that is measured. Beside Python, numpy and onnxruntime it
carries this module, ``session`` and ``process_memory``, and of the packages above them nothing.
"""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from onnxmem.measure.process_memory import peak_resident_bytes, resident_bytes, restart_peak
from onnxmem.measure.session import mapped_feeds, native_options, open_session, run_options

if TYPE_CHECKING:
    from onnxmem.children.running import JSON
    from onnxmem.measure.device_memory import Reader, Watch
    from onnxmem.measure.run_request import RunRequest


def run_plain(request: Mapping[str, Any]) -> "dict[str, JSON]":
    """What a session with its own settings takes of the process and the GPU, and its times.

    Keys are fields of ``Measurement``.
    """
    floor = resident_bytes()
    asked = _read_request(request)
    feeds, ending = mapped_feeds(asked), run_options(asked)
    read = _device_reader() if asked.provider == "cuda" else None
    device_baseline = read() if read else None
    before, baseline = peak_resident_bytes(), resident_bytes()
    has_restarted = restart_peak()
    seconds: list[float] = []
    with _watched(read) as watch:
        session = open_session(asked, native_options(asked))
        loaded = peak_resident_bytes() if has_restarted else None
        for _ in range(asked.runs):
            start = time.perf_counter()
            session.run(None, feeds, ending)
            seconds.append(time.perf_counter() - start)
        device_steady = watch.look() if watch else None
    # The kernel counts pages in batches: what is resident may be a little over its own peak.
    steady = resident_bytes()
    peaks = [size for size in (before, peak_resident_bytes(), steady) if size is not None]
    return {
        "load_peak_bytes": None if loaded is None or baseline is None else loaded - baseline,
        "process_floor_bytes": floor,
        "process_baseline_bytes": baseline,
        "process_peak_bytes": max(peaks, default=None),
        "process_steady_bytes": steady,
        "device_baseline_bytes": device_baseline,
        "device_peak_bytes": watch.peak_bytes if watch else None,
        "device_steady_bytes": device_steady,
        "seconds_per_run": seconds,
    }


def _read_request(plain: Mapping[str, Any]) -> "RunRequest":
    """Read what ``run_request.read_request`` reads, without its classes and what they import."""
    inputs = [SimpleNamespace(**each) for each in plain["inputs"]]
    options = SimpleNamespace(**plain["options"])
    return cast("RunRequest", SimpleNamespace(**{**plain, "inputs": inputs, "options": options}))


def _device_reader() -> "Reader | None":
    from onnxmem.measure.device_memory import device_reader

    return device_reader()


def _watched(read: "Reader | None") -> "AbstractContextManager[Watch | None]":
    if read is None:
        return nullcontext()
    from onnxmem.measure.device_memory import watched

    return watched(read)

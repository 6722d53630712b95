"""The child's side: runs as a user does them, and what they make of the process."""

import time
from collections.abc import Mapping
from typing import Any

from onnxmem.children import JSON
from onnxmem.measure.device_memory import device_reader, watched
from onnxmem.measure.process_memory import peak_resident_bytes, resident_bytes, restart_peak
from onnxmem.measure.run_request import read_request
from onnxmem.measure.session import make_feeds, native_options, open_session, run_options
from onnxmem.sums import sum_if_known


def run_plain(request: Mapping[str, Any]) -> dict[str, JSON]:
    """What a session with its own settings takes of the process and the GPU, and its times.

    Keys are fields of ``Measurement``.
    """
    asked = read_request(request)
    feeds, ending = make_feeds(asked), run_options(asked)
    read = device_reader() if asked.provider == "cuda" else None
    device_baseline = read() if read else None
    before, baseline = peak_resident_bytes(), resident_bytes()
    has_restarted = restart_peak()
    seconds: list[float] = []
    with watched(read) as watch:
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
        "load_peak_bytes": sum_if_known((loaded, None if baseline is None else -baseline)),
        "process_baseline_bytes": baseline,
        "process_peak_bytes": max(peaks, default=None),
        "process_steady_bytes": steady,
        "device_baseline_bytes": device_baseline,
        "device_peak_bytes": watch.peak_bytes if watch else None,
        "device_steady_bytes": device_steady,
        "seconds_per_run": seconds,
    }

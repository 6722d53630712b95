"""A session with given memory options, in a fresh process: what stays resident, and the time.

Usage: python advice_run.py < request.json > figures.json

The request is that of ``session_run.py``, with ``pattern``, ``arena`` (``next_power_of_two`` as by
default, ``same_as_requested``, ``off``), ``shrink`` (after each run), ``threads``, ``num_timed``.
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable
from statistics import median

import onnxruntime as ort
import session_run

SAME_AS_REQUESTED = 1
DEFAULT = -1
_CONFIGURED = "session.use_env_allocators"


def main() -> None:
    """Measure one request."""
    request = json.load(sys.stdin)
    if request["arena"] == "same_as_requested":
        register_arena()
    run_options = ort.RunOptions()
    if request["shrink"]:
        run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    feeds = session_run.made_up(request)
    session = ort.InferenceSession(
        request["model"], configured(request), providers=session_run.PROVIDERS
    )
    ctypes.CDLL(None).malloc_trim(0)  # what loading freed would hide what the runs take
    session_run.forget_high_water_mark()
    loaded = session_run.process_memory()
    for _ in range(3):
        session.run(None, feeds, run_options)
    after = session_run.process_memory()
    seconds = median(
        _seconds(lambda: session.run(None, feeds, run_options)) for _ in range(request["num_timed"])
    )
    figures: dict[str, float] = {f"{key}_grown": after[key] - loaded[key] for key in after}
    json.dump({**figures, "run_seconds": round(seconds, 6)}, sys.stdout)


def configured(request: session_run.Request) -> ort.SessionOptions:
    """The session options of a request."""
    asked = session_run.options(request)
    asked.intra_op_num_threads = request["threads"]
    asked.enable_mem_pattern = request["pattern"]
    asked.enable_cpu_mem_arena = request["arena"] != "off"
    if request["arena"] == "same_as_requested":
        asked.add_session_config_entry(_CONFIGURED, "1")
    return asked


def register_arena() -> None:
    """Give the process an arena that grows by what is asked; ahead of any session, or it ends."""
    arena = ort.OrtArenaCfg(0, SAME_AS_REQUESTED, DEFAULT, DEFAULT)
    kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, arena)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()

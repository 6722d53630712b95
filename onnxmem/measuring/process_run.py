"""Runs in the child: a session of onnxruntime, in a process as a user would run it.

``run_plain`` measures its own process. Beside Python, numpy and onnxruntime that process imports
only this module and ``memory``: anything else would count as memory of the model. Libraries of
custom operators are never registered, so a model that needs one does not run.
"""

import mmap
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import onnxruntime as ort

from onnxmem.measuring.memory import (
    device_reader,
    peak_resident_bytes,
    resident_bytes,
    restart_peak,
    sampled,
    utilization_reader,
)

if TYPE_CHECKING:
    from onnxmem.children.running import JSON
    from onnxmem.measuring.memory import PeakSampler
    from onnxmem.measuring.run_request import RunRequest, StoredInput
    from onnxmem.runtimes.onnxruntime.session_options import Provider, SessionOptions

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
_LEVELS: Final = {
    "off": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_DEFAULT_GROWTH: Final = "kNextPowerOfTwo"
_REGISTERED: Final[list[str]] = []
"""How the arenas of the environment extend that this process registered so far."""
_QUIET: Final = 4
"""Log level: fatal messages only. Exceptions report everything else."""


def run_plain(request: Mapping[str, Any]) -> "dict[str, JSON]":
    """Measure the process and the GPU during runs with the session's own settings.

    The keys of the result are fields of ``Measurement``.
    """
    floor = resident_bytes()
    plan = read_plain_request(request)
    feeds, ending = mapped_feeds(plan), run_options(plan)
    read = device_reader() if plan.provider == "cuda" else None
    device_baseline = read() if read else None
    before, baseline = peak_resident_bytes(), resident_bytes()
    has_restarted = restart_peak()
    seconds: list[float] = []
    sampling: AbstractContextManager[PeakSampler | None] = nullcontext()
    if read is not None:
        sampling = sampled(read, utilization_reader())
    with sampling as sampler:
        session = open_session(plan, native_options(plan))
        loaded = peak_resident_bytes() if has_restarted else None
        if sampler is not None:
            sampler.restart_utilization()
        for _ in range(plan.runs):
            start = time.perf_counter()
            session.run(None, feeds, ending)
            seconds.append(time.perf_counter() - start)
        device_steady = sampler.sample() if sampler else None
    # The kernel updates its counters in batches: VmRSS may be a little above VmHWM.
    steady = resident_bytes()
    peaks = [size for size in (before, peak_resident_bytes(), steady) if size is not None]
    return {
        "load_peak_bytes": None if loaded is None or baseline is None else loaded - baseline,
        "process_floor_bytes": floor,
        "process_baseline_bytes": baseline,
        "process_peak_bytes": max(peaks, default=None),
        "process_steady_bytes": steady,
        "device_baseline_bytes": device_baseline,
        "device_peak_bytes": sampler.peak_bytes if sampler else None,
        "device_steady_bytes": device_steady,
        "device_utilization_percent": sampler.mean_percent if sampler else None,
        "device_utilization_peak_percent": sampler.peak_percent
        if sampler and sampler.mean_percent is not None
        else None,
        "seconds_per_run": seconds,
    }


def native_options(request: "RunRequest") -> ort.SessionOptions:
    """The options of a session as onnxruntime's own type."""
    options = request.options
    native = ort.SessionOptions()
    native.graph_optimization_level = _LEVELS[options.level]
    native.intra_op_num_threads = options.num_threads
    native.log_severity_level = _QUIET
    native.enable_mem_pattern = options.enable_mem_pattern
    native.enable_mem_reuse = options.enable_mem_reuse
    native.enable_cpu_mem_arena = options.enable_cpu_mem_arena
    for symbol, number in request.overrides.items():
        native.add_free_dimension_override_by_name(symbol, number)
    for key, value in _entries(request).items():
        native.add_session_config_entry(key, value)
    return native


def open_session(request: "RunRequest", native: ort.SessionOptions) -> ort.InferenceSession:
    """Create a session on the requested provider, without a fallback to another.

    :raises ModuleNotFoundError: the provider is not available.
    """
    providers = _providers(request.provider, request.options)
    if providers[0][0] not in ort.get_available_providers():
        raise _missing(providers[0][0])
    # NVML numbers the devices in this order; CUDA's default order is another.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if _has_env_arena(request) and not (request.options.shares_arena and _REGISTERED):
        _register_arena(request.options.arena_extend_strategy)
    session = ort.InferenceSession(request.model, native, providers=providers)
    if session.get_providers()[0] != providers[0][0]:
        raise _missing(providers[0][0])
    if request.options.trims_heap:
        _trim_heap()
    return session


def run_options(request: "RunRequest") -> ort.RunOptions:
    """The options of each run."""
    native = ort.RunOptions()
    if request.options.shrinks_arena:
        arenas = "cpu:0" if request.provider == "cpu" else "cpu:0;gpu:0"
        native.add_run_config_entry("memory.enable_memory_arena_shrinkage", arenas)
    return native


def read_plain_request(plain: Mapping[str, Any]) -> "RunRequest":
    """Like ``run_request.read_request``, but without importing the classes of the request."""
    inputs = [SimpleNamespace(**each) for each in plain["inputs"]]
    options = SimpleNamespace(**plain["options"])
    return cast("RunRequest", SimpleNamespace(**{**plain, "inputs": inputs, "options": options}))


def mapped_feeds(request: "RunRequest") -> dict[str, object]:
    """The arrays of the inputs, resident in memory like those of a caller."""
    content = mapped_inputs(request)
    return {each.name: input_array(each, content, each.shape) for each in request.inputs}


def mapped_inputs(request: "RunRequest") -> mmap.mmap:
    """The file of the inputs, all of it resident."""
    with open(request.inputs_file, "rb") as stream:
        if sys.platform == "linux":
            # Pages are read in now, and not during a run, whose growth they would add to.
            flags = mmap.MAP_PRIVATE | mmap.MAP_POPULATE
            return mmap.mmap(stream.fileno(), 0, flags=flags, prot=mmap.PROT_READ)
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def provider_name(provider: "Provider") -> str:
    """Onnxruntime's name of a provider."""
    return CPU if provider == "cpu" else CUDA


def input_array(stored: "StoredInput", content: mmap.mmap, shape: Sequence[int]) -> object:
    """An input of this shape, whose elements are the first ones that are stored."""
    array = np.ndarray(tuple(shape), stored.dtype, content, stored.offset)
    if stored.elem_type is None:
        return array
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, stored.elem_type)


def _entries(request: "RunRequest") -> Mapping[str, str]:
    options = request.options
    prepacking = {"session.disable_prepacking": "1"} if options.disable_prepacking else {}
    shared = {"session.use_env_allocators": "1"} if _has_env_arena(request) else {}
    return {**prepacking, **shared, **options.config}


def _has_env_arena(request: "RunRequest") -> bool:
    """Whether the CPU arena is of the environment: it is shared, or grows by what is requested."""
    options = request.options
    is_other = options.shares_arena or options.arena_extend_strategy != _DEFAULT_GROWTH
    return request.provider == "cpu" and is_other


def _providers(provider: "Provider", options: "SessionOptions") -> list[tuple[str, dict[str, str]]]:
    if provider == "cpu":
        return [(CPU, {})]
    cuda = {
        "arena_extend_strategy": options.arena_extend_strategy,
        "cudnn_conv_algo_search": options.cudnn_conv_algo_search,
        "cudnn_conv_use_max_workspace": str(int(options.cudnn_conv_use_max_workspace)),
    }
    if options.gpu_mem_limit_bytes is not None:
        cuda["gpu_mem_limit"] = str(options.gpu_mem_limit_bytes)
    return [(CUDA, cuda), (CPU, {})]


def _register_arena(strategy: str) -> None:
    """Register an arena for the next sessions that extends in this way.

    A session's own arena has no such option. The process must be new: onnxruntime 1.31 crashes if a
    session has run before. A second arena takes the place of the first one, which the sessions that
    have it keep: so each session has an arena of its own, unless they are to share one.
    """
    memory = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    number = int(strategy != _DEFAULT_GROWTH)
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({"arena_extend_strategy": number}))
    _REGISTERED.append(strategy)


def _trim_heap() -> None:
    """Return free memory to the system, where the C library can."""
    import ctypes  # which takes memory, and which a process that keeps its heap does not need

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _missing(provider: str) -> ModuleNotFoundError:
    message = f"{provider} is not available"
    return ModuleNotFoundError(message, name=provider)

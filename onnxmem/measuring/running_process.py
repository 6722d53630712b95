"""Memory of a process that already runs, and of its children, as Linux and NVML report it.

A process may end at any time, and its number may be given to another: each reading checks when the
process with that number started. The kernel keeps the peak of each process (``VmHWM``), not of
their sum, so the peak of several is at least the largest that was read.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final

from onnxmem.errors import Finding, UsageError
from onnxmem.files import reason_of

_KIB: Final = 1024
_PROC: Final = Path("/proc")
_POLL_SECONDS: Final = 0.1
_START_TIME: Final = 19
"""Of the fields of ``/proc/PID/stat`` behind the name: 0 is the state, 1 the parent."""
_GONE: Final = (FileNotFoundError, ProcessLookupError)


class ProcessError(UsageError):
    """There is no such process, or it cannot be read."""

    code: ClassVar[str] = "unreadable_process"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReading:
    """One process at one time; bytes, ``None``: the system does not report it."""

    pid: int
    name: str
    rss_bytes: int
    """Resident memory, pages that are shared with others included: ``VmRSS``."""
    peak_rss_bytes: int
    """The most that was resident since the process began: ``VmHWM``."""
    pss_bytes: int | None
    """Resident memory, each shared page divided by the processes that share it: ``Pss``."""
    gpu_bytes: int | None
    """Memory on all GPUs that NVML reports for this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedProcess:
    """A process and its children, watched for a time; bytes, ``None``: not reported."""

    processes: tuple[ProcessReading, ...]
    """The last reading of each, the process itself first."""
    rss_bytes: int
    pss_bytes: int | None
    gpu_bytes: int | None
    peak_rss_bytes: int
    """Of all together: at least."""
    peak_pss_bytes: int | None
    """The largest reading of all together."""
    peak_gpu_bytes: int | None
    """The largest reading of all together."""
    gpu_utilization_percent: int | None
    """How busy the GPUs are that they run on, by all processes: the mean of all readings."""
    gpu_utilization_peak_percent: int | None
    """The same at most."""
    num_readings: int
    seconds: float
    """From the first to the last reading."""
    findings: tuple[Finding, ...]

    @property
    def process(self) -> ProcessReading:
        """The process itself."""
        return self.processes[0]


def watch(pid: int, seconds: float | None = None, proc: Path = _PROC) -> WatchedProcess:
    """Read a process and its children once, or every tenth of a second until it ends.

    :raises ProcessError: there is no such process, or nothing of it can be read.
    """
    if not (proc / "self" / "status").exists():
        message = f"--pid reads /proc, which this system ({sys.platform}) does not have"
        raise ProcessError(message)
    start = time.monotonic()
    first = _first_reading(pid, proc)
    readings, times, has_ended = [first], [start], False
    while seconds is not None and times[-1] - start < seconds:
        time.sleep(min(_POLL_SECONDS, seconds))
        # The number of an ended process may be another one's by now.
        if _start_time(pid, proc) != first.start_time:
            has_ended = True
            break
        try:
            readings.append(_Reading(pid, proc))
        except _GONE:
            has_ended = True
            break
        times.append(time.monotonic())
    return _watched(readings, times[-1] - start, has_ended=has_ended)


class _Reading:
    """A process and its children at one time."""

    def __init__(self, pid: int, proc: Path) -> None:
        self.start_time = _start_time(pid, proc)
        gpus = _gpus()
        self.has_gpu = bool(gpus)
        self.faults: list[OSError] = []
        found = [self._process(pid, proc, gpus)]
        for child in _descendants(pid, proc):
            try:
                found.append(self._process(child, proc, gpus))
            except _GONE:
                continue
        self.processes = tuple(found)
        pids = {each.pid for each in found}
        self.gpus = tuple(each for each in gpus if pids & {*each.size_bytes})
        """Those that a process runs on."""

    def total(self, name: str) -> int | None:
        """The sum over all processes; ``None``: no process has one."""
        return _sum_known(getattr(each, name) for each in self.processes)

    def percent(self) -> float | None:
        """How busy the GPUs are, the mean of those that say it."""
        known = [each.percent for each in self.gpus if each.percent is not None]
        return sum(known) / len(known) if known else None

    def _process(self, pid: int, proc: Path, gpus: Sequence["_Gpu"]) -> ProcessReading:
        """Read one process.

        :raises FileNotFoundError: it has ended; a ``ProcessLookupError`` says the same.
        """
        values = _values(proc / str(pid) / "status")
        # A zombie has a status but no memory.
        if values.get("State", "").startswith(("Z", "X")):
            raise ProcessLookupError
        return ProcessReading(
            pid=pid,
            name=values.get("Name", ""),
            rss_bytes=_size(values, "VmRSS") or 0,
            peak_rss_bytes=_size(values, "VmHWM") or 0,
            pss_bytes=self._pss_bytes(pid, proc),
            gpu_bytes=_sum_known(each.size_bytes.get(pid) for each in gpus),
        )

    def _pss_bytes(self, pid: int, proc: Path) -> int | None:
        try:
            return _size(_values(proc / str(pid) / "smaps_rollup"), "Pss")
        except ProcessLookupError:  # it has no memory: it ends, or is a thread of the kernel
            return None
        except OSError as fault:
            if not (proc / str(pid)).exists():
                raise
            self.faults.append(fault)
            return None


def _first_reading(pid: int, proc: Path) -> _Reading:
    try:
        return _Reading(pid, proc)
    except _GONE as fault:
        message = f"process {pid}: there is no such process"
        if proc == _PROC and _is_hidden(pid):
            message = f"process {pid}: no permission to read it; run as its user or as root"
        raise ProcessError(message) from fault
    except OSError as fault:
        message = f"process {pid}: cannot be read: {reason_of(fault)}; run as its user or as root"
        raise ProcessError(message) from fault


def _is_hidden(pid: int) -> bool:
    """Whether a process is there that ``/proc`` does not show (``hidepid``)."""
    try:
        # Signal 0 only checks whether the process exists, and whether it may be signaled.
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _watched(readings: list[_Reading], seconds: float, *, has_ended: bool) -> WatchedProcess:
    last = readings[-1]
    sums = [each.total("rss_bytes") or 0 for each in readings]
    # The kernel's own peak of a process (VmHWM) has what happened between two readings.
    kept = [each.peak_rss_bytes for reading in readings for each in reading.processes]
    percents = [percent for percent in (each.percent() for each in readings) if percent is not None]
    return WatchedProcess(
        processes=last.processes,
        rss_bytes=sums[-1],
        pss_bytes=last.total("pss_bytes"),
        gpu_bytes=last.total("gpu_bytes"),
        peak_rss_bytes=max((*sums, *kept)),
        peak_pss_bytes=_most(readings, "pss_bytes"),
        peak_gpu_bytes=_most(readings, "gpu_bytes"),
        gpu_utilization_percent=round(sum(percents) / len(percents)) if percents else None,
        gpu_utilization_peak_percent=round(max(percents)) if percents else None,
        num_readings=len(readings),
        seconds=seconds,
        findings=tuple(_findings(readings, seconds, has_ended=has_ended)),
    )


def _most(readings: list[_Reading], name: str) -> int | None:
    totals = (each.total(name) for each in readings)
    return max((total for total in totals if total is not None), default=None)


def _findings(readings: list[_Reading], seconds: float, *, has_ended: bool) -> Iterator[Finding]:
    last = readings[-1]
    if has_ended:
        message = f"the process ended after {seconds:.1f} s; these are its last figures"
        yield Finding("process_ended", message)
    if last.faults:
        num, num_unknown = len(last.processes), len(last.faults)
        whose = f" for {num_unknown} of {num} processes" if num > 1 else ""
        reason = reason_of(last.faults[0])
        message = f"PSS is unknown{whose}: {reason}; run as the process's user or as root"
        yield Finding("unknown_pss", message)
    if last.has_gpu and not any(each.gpus for each in readings):
        message = (
            "NVML lists none of these processes on a GPU; in a container it may know them by other "
            "numbers, or not at all"
        )
        yield Finding("no_gpu_process", message)


def _descendants(pid: int, proc: Path) -> list[int]:
    """The children of a process, and theirs, each behind its parent."""
    # One pass over /proc, not one per level: a process that starts in between is seen at the
    # next poll, and one that ends has no fields.
    children: dict[int, list[int]] = {}
    for entry in os.listdir(proc):
        if entry.isdigit():
            fields = _stat(int(entry), proc)
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry))
    found, waiting = [], sorted(children.get(pid, ()))
    while waiting:
        found.append(waiting.pop(0))
        waiting += sorted(children.get(found[-1], ()))
    return found


def _start_time(pid: int, proc: Path) -> str:
    """When a process started, in clock ticks since the boot; empty: it has ended."""
    fields = _stat(pid, proc)
    return fields[_START_TIME] if len(fields) > _START_TIME and fields[0] not in "ZX" else ""


def _stat(pid: int, proc: Path) -> list[str]:
    """The fields behind the name, which may hold anything; none: the process has ended."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    # The name stands in parentheses, and may have spaces and parentheses itself: fields begin after
    # the last one.
    return text.rpartition(")")[2].split()


def _values(path: Path) -> dict[str, str]:
    text = path.read_text(encoding="utf-8", errors="replace")
    pairs = (line.partition(":") for line in text.splitlines())
    return {key: value.strip() for key, _, value in pairs}


def _size(values: dict[str, str], key: str) -> int | None:
    number = values.get(key, "").partition(" ")[0]
    return int(number) * _KIB if number.isdigit() else None


def _sum_known(sizes: Iterable[int | None]) -> int | None:
    """The sum of the known sizes; ``None``: none is known."""
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class _Gpu:
    """What NVML reports of a GPU."""

    size_bytes: dict[int, int | None]
    """By process; ``None``: not reported."""
    percent: int | None
    """How busy it is, as nvidia-smi shows it; ``None``: not reported."""


def _gpus() -> list[_Gpu]:
    """The GPUs that NVML can read; empty without ``pynvml`` or a driver."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return []
    found = []
    try:
        nvml.nvmlInit()
        for index in range(nvml.nvmlDeviceGetCount()):
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            listed = nvml.nvmlDeviceGetComputeRunningProcesses(device)
            sizes = {each.pid: each.usedGpuMemory for each in listed}
            found.append(_Gpu(sizes, _percent(nvml, device)))
    except nvml.NVMLError:
        return found
    return found


def _percent(nvml: Any, device: object) -> int | None:  # noqa: ANN401 - a module without types
    try:
        return int(nvml.nvmlDeviceGetUtilizationRates(device).gpu)
    except nvml.NVMLError:
        return None

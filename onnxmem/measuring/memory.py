"""Current and peak memory of this process and of a GPU; ``None``: the system does not report it.

Linux reports the memory of a process in ``/proc/self``. The measured process imports this module,
so it opens files without ``pathlib``, which alone would add 600 KiB.

NVML has no high-water mark, so a GPU is sampled every few milliseconds during a run. It counts the
bytes of all processes: on a shared GPU the figures include those of others.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

_PROCESS: Final = "/proc/self"
_KIB: Final = 1024
_POLL_SECONDS: Final = 0.002
Reader = Callable[[], int]


def resident_bytes() -> int | None:
    """Current resident memory: ``VmRSS``."""
    return _status("VmRSS")


def peak_resident_bytes() -> int | None:
    """Peak resident memory since the start or the last ``restart_peak``: ``VmHWM``."""
    return _status("VmHWM")


def restart_peak() -> bool:
    """Reset the peak to the current resident memory; False: not supported."""
    try:
        with open(f"{_PROCESS}/clear_refs", "w", encoding="ascii") as stream:
            # 5 resets the peak (proc(5), ``/proc/pid/clear_refs``, since Linux 4.0).
            stream.write("5")
    except OSError:
        return False
    return True


def proportional_bytes() -> int | None:
    """Resident memory in which a page that processes share counts in parts: ``Pss``."""
    return _kilobytes("smaps_rollup", "Pss")


def _status(field: str) -> int | None:
    return _kilobytes("status", field)


def _kilobytes(file: str, field: str) -> int | None:
    try:
        with open(f"{_PROCESS}/{file}", encoding="ascii", errors="replace") as lines:
            values = dict(line.split(":", 1) for line in lines if ":" in line)
    except OSError:
        return None
    return int(values[field].split()[0]) * _KIB if field in values else None


class PeakSampler:
    """Mutable: samples the bytes in use on a device and its utilization, and has the largest."""

    def __init__(self, read: Reader, read_percent: Reader | None = None) -> None:
        self._read = read
        self._read_percent = read_percent
        self.peak_bytes = 0
        self.restart_utilization()

    def restart_utilization(self) -> None:
        """Forget the utilization of the samples so far."""
        self.peak_percent = self._sum_percent = self._num_percent = 0

    @property
    def mean_percent(self) -> int | None:
        """The mean utilization of the samples; ``None``: none has one."""
        return round(self._sum_percent / self._num_percent) if self._num_percent else None

    def sample(self) -> int:
        """Bytes in use now."""
        now = self._read()
        self.peak_bytes = max(self.peak_bytes, now)
        if self._read_percent is not None:
            percent = self._read_percent()
            self.peak_percent = max(self.peak_percent, percent)
            self._sum_percent += percent
            self._num_percent += 1
        return now


@contextmanager
def sampled(read: Reader, read_percent: Reader | None = None) -> Iterator[PeakSampler]:
    """Sample a device every few milliseconds during a ``with`` block."""
    from threading import Event, Thread  # 150 KiB, which a process without a GPU does not need

    sampler, is_over = PeakSampler(read, read_percent), Event()

    def sample_until_over() -> None:
        while not is_over.wait(_POLL_SECONDS):
            sampler.sample()

    thread = Thread(target=sample_until_over, daemon=True)
    thread.start()
    try:
        yield sampler
    finally:
        is_over.set()
        thread.join()


def device_reader() -> Reader | None:
    """A function that reads the bytes in use on CUDA's first GPU.

    ``None``: no ``pynvml``, driver or GPU.
    """
    found = cuda_device()
    if found is None:
        return None
    nvml, device = found
    return lambda: int(nvml.nvmlDeviceGetMemoryInfo(device).used)


def utilization_reader() -> Reader | None:
    """A function that reads how busy CUDA's first GPU is, in percent, as ``nvidia-smi`` shows it.

    It is the share of the last sixth of a second, or more, in which a kernel ran. ``None``: no
    ``pynvml``, driver or GPU, or NVML does not say.
    """
    found = cuda_device()
    if found is None:
        return None
    nvml, device = found
    try:
        nvml.nvmlDeviceGetUtilizationRates(device)
    except nvml.NVMLError:
        return None
    return lambda: int(nvml.nvmlDeviceGetUtilizationRates(device).gpu)


def cuda_device() -> tuple[Any, Any] | None:
    """NVML and its handle of CUDA's first GPU; ``None``: no ``pynvml``, driver or GPU."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    try:
        nvml.nvmlInit()
        if visible.isdigit():
            device = nvml.nvmlDeviceGetHandleByIndex(int(visible))
        else:
            device = nvml.nvmlDeviceGetHandleByUUID(visible)
    except nvml.NVMLError:
        return None
    return nvml, device

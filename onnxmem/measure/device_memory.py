"""What is in use on a GPU, by NVML; ``None`` where there is no NVML to ask.

NVML knows no high-water mark, so the memory is looked at every few milliseconds while a run lasts.
It counts what every process uses: on a GPU that others use the figures are theirs too.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from threading import Event, Thread
from typing import Final

_SECONDS: Final = 0.002
Reader = Callable[[], int]


@dataclass(slots=True)
class Watch:
    """Mutable: the most that was seen so far."""

    read: Reader
    peak_bytes: int = 0
    is_over: Event = field(default_factory=Event)

    def look(self) -> int:
        """Bytes in use now."""
        now = self.read()
        self.peak_bytes = max(self.peak_bytes, now)
        return now

    def keep_looking(self) -> None:
        """Look again and again until it is over."""
        while not self.is_over.wait(_SECONDS):
            self.look()


@contextmanager
def watched(read: Reader) -> Iterator[Watch]:
    """Look at a device's memory as long as the block lasts."""
    watch = Watch(read)
    thread = Thread(target=watch.keep_looking, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.is_over.set()
        thread.join()


def device_reader() -> Reader | None:
    """What reads the bytes in use on the GPU that CUDA takes first.

    ``None`` without ``pynvml``, driver or GPU.
    """
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
    return lambda: int(nvml.nvmlDeviceGetMemoryInfo(device).used)

"""NVML of a machine with three GPUs, in place of ``pynvml``."""

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace

GIB = 2**30


class FakeNvml(SimpleNamespace):
    """Indices 0 and 1, and the UUID ``GPU-a``; without a driver nothing is found."""

    class NVMLError(Exception):
        """What NVML raises."""

    def __init__(
        self,
        *,
        has_driver: bool,
        name: str | bytes = "NVIDIA H100 80GB HBM3",
        processes: Mapping[int, Mapping[int, int | None]] = MappingProxyType({}),
    ) -> None:
        """``processes`` are bytes by index of the GPU and number of the process."""
        super().__init__(has_driver=has_driver, name=name, processes=processes)

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own name
        if not self.has_driver:
            raise self.NVMLError

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"index {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if not uuid.startswith("GPU-"):
            raise self.NVMLError
        return f"uuid {uuid}"

    def nvmlDeviceGetMemoryInfo(self, device: str) -> SimpleNamespace:  # noqa: N802
        used = {"index 0": 13, "index 1": 17, "uuid GPU-a": 19}[device]
        return SimpleNamespace(used=used, total=80 * GIB, free=80 * GIB - used)

    def nvmlDeviceGetUtilizationRates(self, device: str) -> SimpleNamespace:  # noqa: N802
        """GPU 0 is busy; the others do not tell."""
        if device != "index 0":
            raise self.NVMLError
        return SimpleNamespace(gpu=37, memory=5)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetComputeRunningProcesses(self, device: str) -> list[SimpleNamespace]:  # noqa: N802
        found = self.processes.get(int(device.removeprefix("index ")), {})
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in found.items()]

    def nvmlDeviceGetCudaComputeCapability(self, _device: str) -> tuple[int, int]:  # noqa: N802
        return 9, 0

    def nvmlDeviceGetName(self, _device: str) -> str | bytes:  # noqa: N802
        name: str | bytes = self.name
        return name

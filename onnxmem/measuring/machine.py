"""Memory that is free on this machine now: of CUDA's first GPU, or of the host.

NVML says what is free on a GPU. On the host it is what the kernel counts as available (psutil, or
``/proc/meminfo`` without it), and no more than the cgroups of this process leave: a container's
limit is not in ``/proc/meminfo``. Files that a cgroup caches and that are not in use are free to
take, as Kubernetes counts them (``memory.usage - total_inactive_file``).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from onnxmem.files import text_or_empty
from onnxmem.measuring.memory import cuda_device
from onnxmem.units import format_bytes

_KIB: Final = 1024
_UNLIMITED: Final = 2**60
"""A limit of cgroup v1 that is not one: the largest multiple of a page."""
_ROOT: Final = Path("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineMemory:
    """The memory of a GPU or of the host, and what is free of it now."""

    name: str
    is_gpu: bool
    total_bytes: int
    free_bytes: int
    source: str
    """Who says so."""
    compute_capability: str | None = None
    """Of an NVIDIA GPU: ``9.0``."""


def gpu_memory() -> MachineMemory | None:
    """CUDA's first GPU; ``None``: no ``pynvml``, driver or GPU."""
    found = cuda_device()
    if found is None:
        return None
    nvml, device = found
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(device)
        name = nvml.nvmlDeviceGetName(device)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(device)
    except nvml.NVMLError:
        return None
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return MachineMemory(
        name=text,
        is_gpu=True,
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        source="free now, by NVML",
        compute_capability=f"{major}.{minor}",
    )


def host_memory(root: Path = _ROOT) -> MachineMemory | None:
    """The host's memory within the limits of its cgroups; ``None``: the system does not report it.

    ``root`` holds ``proc`` and ``sys``.
    """
    found = _available(root)
    if found is None:
        return None
    total_bytes, free_bytes, source = found
    limits = tuple(_cgroups(root))
    if limits:
        # The group with the least left decides, whatever its limit is.
        limit_bytes, left_bytes, version = min(limits, key=lambda each: each[1])
        total_bytes = min(total_bytes, limit_bytes)
        if left_bytes < free_bytes:
            free_bytes = left_bytes
            source = f"cgroup v{version}, limit {format_bytes(limit_bytes)}"
    return MachineMemory(
        name="this machine",
        is_gpu=False,
        total_bytes=total_bytes,
        free_bytes=free_bytes,
        source=f"free now, by {source}",
    )


def _available(root: Path) -> tuple[int, int, str] | None:
    """All memory, what programs can have without swapping, and who says so."""
    if root == _ROOT:
        try:
            memory = import_module("psutil").virtual_memory()
        except ImportError:
            pass
        else:
            return int(memory.total), int(memory.available), "psutil"
    text = text_or_empty(root / "proc/meminfo")
    values = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    sizes = [values.get(key, "").split() for key in ("MemTotal", "MemAvailable")]
    if not all(size and size[0].isdigit() for size in sizes):
        return None
    total, available = (int(size[0]) * _KIB for size in sizes)
    return total, available, "/proc/meminfo"


def _cgroups(root: Path) -> Iterator[tuple[int, int, int]]:
    """Limit, bytes left below it, and version, of each cgroup with a limit that holds this process.

    A process is in one group of a hierarchy and in all above it. In a container the path may be
    that outside of it: then the group is the root of what is mounted.
    """
    for line in text_or_empty(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        # Version 2 has one line without controllers, version 1 a line for each of them.
        if not controllers:
            mount, version = root / "sys/fs/cgroup", 2
        elif "memory" in controllers.split(","):
            mount, version = root / "sys/fs/cgroup/memory", 1
        else:
            continue
        own = mount / path.strip("/")
        # In a container the path may be the host's, and the limit that applies is at the mount.
        if ".." in own.parts or not own.is_dir():
            own = mount
        # A group is limited by all groups around it.
        for folder in (own, *own.parents):
            found = _limit(folder, version)
            if found is not None:
                yield *found, version
            if folder == mount:
                break


def _limit(folder: Path, version: int) -> tuple[int, int] | None:
    """The limit of one cgroup, and the bytes left; ``None``: it sets no limit."""
    names = (
        ("memory.max", "memory.current", "inactive_file")
        if version > 1
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    )
    limit, used = (text_or_empty(folder / name).strip() for name in names[:2])
    if not (limit.isdigit() and used.isdigit()) or int(limit) >= _UNLIMITED:
        return None
    # Cached pages of files are reclaimed before the limit is enforced: they count as left.
    pairs = (line.split() for line in text_or_empty(folder / "memory.stat").splitlines())
    stat = {pair[0]: pair[1] for pair in pairs if len(pair) > 1}
    cached = stat.get(names[2], "")
    cached_bytes = int(cached) if cached.isdigit() else 0
    return int(limit), max(int(limit) - max(int(used) - cached_bytes, 0), 0)

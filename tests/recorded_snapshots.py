"""Memory snapshots as PyTorch writes them, version by version, of a run that is computed by hand.

The keys are those of torch/csrc/cuda/Module.cpp (``THCPModule_memorySnapshot``): newer versions add
keys to segments, events and the document, and leave out none.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 2**20
STREAM = 0
OTHER_STREAM = 94_000_000
SMALL, LARGE, OWN, OTHER = 0x7F00_0000_0000, 0x7F10_0000_0000, 0x7F20_0000_0000, 0x7F30_0000_0000
FRAMES = [
    {"name": "c10::cuda::CUDACachingAllocator::malloc", "filename": "??", "line": 0},
    {"name": "forward", "filename": "/env/torch/nn/modules/linear.py", "line": 125},
    {"name": "step", "filename": "/home/user/train.py", "line": 31},
]
VERSIONS = ("2.1", "2.2", "2.3", "2.6", "2.7", "2.9", "2.12")
"""Each writes keys that the one before does not."""
SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF": "",
    "max_split_size": -1,
    "garbage_collection_threshold": 0.0,
    "expandable_segments": False,
    "pinned_num_register_threads": 1,
    "release_lock_on_cudamalloc": False,
    "pinned_use_cuda_host_register": False,
    "roundup_power2_divisions": {str(2**power): 0 for power in range(16)},
}
"""As of a process without settings (pytorch/pytorch, pull request 119404)."""

Document = dict[str, Any]


def event(action: str, address: int, size: int, stream: int = STREAM) -> Document:
    """An event with its call stack."""
    return {"action": action, "addr": address, "size": size, "stream": stream, "frames": FRAMES}


def freed(address: int, size: int, stream: int = STREAM) -> list[Document]:
    """The two events of a release on one stream."""
    return [event(action, address, size, stream) for action in ("free_requested", "free_completed")]


def trace() -> list[Document]:
    """The events of the run: 8 allocations, of which 5 are left.

    Peak of the requests: 100 B + 3 MiB + 18 MiB + 5 MiB, at the fourth. 2 + 20 + 18 MiB are
    reserved for them, and 2 MiB for the other stream.
    """
    return [
        event("segment_alloc", SMALL, 2 * MIB),
        event("alloc", SMALL, 100),
        event("segment_alloc", LARGE, 20 * MIB),
        event("alloc", LARGE, 3 * MIB),
        event("segment_alloc", OWN, 18 * MIB),
        event("alloc", OWN, 18 * MIB),
        event("alloc", LARGE + 3 * MIB, 5 * MIB),
        *freed(LARGE, 3 * MIB),
        *freed(OWN, 18 * MIB),
        event("alloc", LARGE, 2 * MIB),
        event("segment_alloc", OTHER, 2 * MIB, OTHER_STREAM),
        event("alloc", OTHER, 700, OTHER_STREAM),
        event("alloc", SMALL + 512, 4),
        # Another stream still uses this one when the snapshot is written: it is not given back.
        event("alloc", SMALL + 1024, 2000),
        event("free_requested", SMALL + 1024, 2000),
        event("snapshot", 0, 0),
    ]


def segments() -> list[Document]:
    """The segments when the snapshot is written."""
    return [
        segment(
            (SMALL, 2 * MIB, STREAM, "small"),
            (512, 100, "active_allocated"),
            (512, 4, "active_allocated"),
            (2048, 2000, "active_pending_free"),
            (2 * MIB - 3072, 0, "inactive"),
        ),
        segment(
            (LARGE, 20 * MIB, STREAM, "large"),
            # What is left of a free block of 3 MiB is too small for a block of its own.
            (3 * MIB, 2 * MIB, "active_allocated"),
            (5 * MIB, 5 * MIB, "active_allocated"),
            (12 * MIB, 0, "inactive"),
        ),
        segment((OWN, 18 * MIB, STREAM, "large"), (18 * MIB, 0, "inactive")),
        segment(
            (OTHER, 2 * MIB, OTHER_STREAM, "small"),
            (1024, 700, "active_allocated"),
            (2 * MIB - 1024, 0, "inactive"),
        ),
    ]


def segment(head: tuple[int, int, int, str], *blocks: tuple[int, int, str]) -> Document:
    """A segment of address, bytes, stream and kind, with blocks of bytes, request and state."""
    address, total, stream, kind = head
    rows = []
    at = address
    for size, requested, state in blocks:
        frames = FRAMES if requested else []
        rows.append(
            {
                "address": at,
                "size": size,
                "requested_size": requested,
                "state": state,
                "frames": frames,
            }
        )
        at += size
    allocated = sum(size for size, _, state in blocks if state == "active_allocated")
    return {
        "device": 0,
        "address": address,
        "total_size": total,
        "allocated_size": allocated,
        "active_size": sum(size for size, _, state in blocks if state != "inactive"),
        "requested_size": sum(requested for _, requested, _ in blocks),
        "stream": stream,
        "segment_type": kind,
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": FRAMES,
        "blocks": rows,
    }


def document(version: str) -> Document:
    """The run as a version of PyTorch writes it."""
    events, number = trace(), VERSIONS.index(version)
    for time, each in enumerate(events):
        if number >= VERSIONS.index("2.2"):
            each["time_us"] = 1_700_000_000_000_000 + time
        if number >= VERSIONS.index("2.7"):
            each["compile_context"] = "N/A"
        if number >= VERSIONS.index("2.9"):
            each["user_metadata"] = ""
        if number >= VERSIONS.index("2.12"):
            each["pool_id"] = (0, 0)
    found: Document = {"segments": segments(), "device_traces": [events]}
    if number >= VERSIONS.index("2.3"):
        found["allocator_settings"] = SETTINGS
    if number >= VERSIONS.index("2.6"):
        found["external_annotations"] = []
    return found


def written(path: Path, content: object, protocol: int = 4) -> str:
    """Pickle a document as ``torch.cuda.memory._dump_snapshot`` does; returns the path."""
    path.write_bytes(pickle.dumps(content, protocol))
    return str(path)


def changed(version: str, change: Callable[[Document], object]) -> Document:
    """A document after a change."""
    found = document(version)
    change(found)
    return found

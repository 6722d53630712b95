"""What an out-of-memory message says: who asked, for how much, and of how much there is.

Each wording is one record, and its source is where the program writes it. What a message rounds is
an interval here: the sizes that can have been asked for.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, prod
from typing import Final

from onnxmem.allocators.caching.rounding import (
    LARGE_SEGMENT_BYTES,
    LARGE_STEP_BYTES,
    MIN_BLOCK_BYTES,
    MIN_LARGE_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
)

_UNITS: Final = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 2**10}
_ARENA_BYTES: Final = 256
"""A chunk of onnxruntime's arena is a multiple of it (``kMinAllocationSize``, bfc_arena.h)."""
_WIDTHS: Final = {
    "double": 8,
    "int64": 8,
    "uint64": 8,
    "complex64": 8,
    "complex128": 16,
    "float": 4,
    "int32": 4,
    "uint32": 4,
    "half": 2,
    "bfloat16": 2,
    "int16": 2,
    "uint16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of TensorFlow's element types, by the names that ``DataTypeString`` gives them."""


@dataclass(frozen=True, slots=True)
class RequestedBytes:
    """Bytes that can have been asked for, both ends included."""

    least_bytes: int
    most_bytes: int

    def holds(self, size_bytes: int) -> bool:
        """Whether a size is among them."""
        return self.least_bytes <= size_bytes <= self.most_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """What a message says; ``None`` where it says nothing."""

    program: str
    """Who wrote it."""
    meaning: str
    """What it means, in a sentence."""
    sizes: RequestedBytes | None = None
    shape: tuple[int, ...] | None = None
    """Of the tensor that was asked for."""
    node: str | None = None
    op_type: str | None = None
    capacity_bytes: int | None = None
    """Of the device."""
    free_bytes: int | None = None
    held_bytes: int | None = None
    """What the process had when it was killed."""


def read_message(text: str) -> OutOfMemory | None:
    """Read a message, however much stands around it; ``None`` where it is none that is known."""
    plain = " ".join(text.split())
    for read in _READERS:
        found = read(plain)
        if found is not None:
            return found
    return None


def _tensorflow(text: str) -> OutOfMemory | None:
    """``tensorflow/core/framework/op_kernel.cc``: allocate_temp and its kind."""
    match = re.search(r"OOM when allocating tensor with shape\s*\[([\d,\s]*)\]", text)
    if match is None:
        return None
    shape = tuple(int(dim) for dim in match[1].split(",") if dim.strip())
    width = re.search(r"(?:and type|dtype)\s*:?\s*(\w+)", text[match.end() :])
    bytes_each = _WIDTHS.get(width[1]) if width else _WIDTHS["float"]
    size_bytes = None if bytes_each is None else bytes_each * prod(shape)
    operator = re.search(r"\[Op:(\w+)\]", text)
    node = re.search(r"\[\[(?:\{\{)?[nN]ode:? ([^\s\]}=]+)", text)
    return OutOfMemory(
        program="TensorFlow",
        meaning="the allocator had no room for one tensor",
        sizes=None if size_bytes is None else RequestedBytes(size_bytes, size_bytes),
        shape=shape,
        node=node[1] if node else None,
        op_type=operator[1] if operator else None,
    )


def _torch_cuda(text: str) -> OutOfMemory | None:
    """``c10/cuda/CUDACachingAllocator.cpp``: the segment that was asked of the device.

    Until 2023 ``(GPU 0; 6.00 GiB total capacity; ...)``, then ``GPU 0 has a total capacity of``;
    2019's ``cached`` in place of ``reserved`` tells the release that named the block itself.
    """
    match = re.search(r"Tried to allocate ([\d.]+) (bytes|[KMG]iB)", text)
    if match is None:
        return None
    is_block = re.search(r"[KMG]iB cached", text) is not None
    return OutOfMemory(
        program="PyTorch on CUDA",
        meaning="the device had no room for one more segment of the caching allocator",
        sizes=_torch_sizes(match[1], match[2], is_block=is_block),
        capacity_bytes=_size_of(
            text, r"([\d.]+) ([KMG]iB) total capacity", r"total capaci?ty of ([\d.]+) ([KMG]iB)"
        ),
        free_bytes=_size_of(text, r"([\d.]+) (bytes|[KMG]iB) free", r"of which ([\d.]+) (\w+) is"),
    )


def _torch_sizes(number: str, unit: str, *, is_block: bool) -> RequestedBytes:
    """The requests that make such a segment, or such a block, once it is rounded and printed."""
    least, most = _printed(number, unit)
    if is_block:
        return RequestedBytes(max(least - MIN_BLOCK_BYTES + 1, 1), most)
    if least <= SMALL_SEGMENT_BYTES <= most:
        return RequestedBytes(1, SMALL_BYTES)
    if least <= LARGE_SEGMENT_BYTES <= most:
        return RequestedBytes(SMALL_BYTES + 1, LARGE_SEGMENT_BYTES)
    return RequestedBytes(max(least - LARGE_STEP_BYTES + 1, MIN_LARGE_BYTES), most)


def _printed(number: str, unit: str) -> tuple[int, int]:
    """The bytes that are printed so: rounded to as many decimals as there are."""
    factor = _UNITS[unit]
    half = Fraction(factor, 2 * 10 ** len(number.partition(".")[2])) if "." in number else 0
    value = Fraction(number) * factor
    return ceil(value - half), floor(value + half)


def _onnxruntime(text: str) -> OutOfMemory | None:
    """``onnxruntime/core/framework/bfc_arena.cc``, AllocateRawInternal: the rounded request."""
    match = re.search(r"Failed to allocate memory for requested buffer of size (\d+)", text)
    if match is None:
        return None
    size_bytes = int(match[1])
    node = re.search(r"Name: ?\\?['\"]([^'\"\\]*)", text)
    return OutOfMemory(
        program="onnxruntime",
        meaning="the arena found no chunk and could not grow by one",
        sizes=RequestedBytes(max(size_bytes - _ARENA_BYTES + 1, 1), size_bytes),
        node=node[1] if node else None,
        op_type=_operator(text),
    )


def _torch_cpu(text: str) -> OutOfMemory | None:
    """``c10/core/impl/alloc_cpu.cpp``: the bytes of the tensor, exactly."""
    match = re.search(r"DefaultCPUAllocator: .{0,80}?tried to allocate (\d+) ?bytes", text)
    if match is None:
        return None
    size_bytes = int(match[1])
    return OutOfMemory(
        program="PyTorch on CPU",
        meaning="the system refused the bytes of one tensor",
        sizes=RequestedBytes(size_bytes, size_bytes),
    )


def _killed(text: str) -> OutOfMemory | None:
    """``mm/oom_kill.c`` of Linux, __oom_kill_process: what the process had."""
    match = re.search(r"Killed process \d+.*?anon-rss:\s*([\d,]+)\s*kB", text)
    if match is None and not re.search(r"oom-kill:|Out of memory: Kill", text):
        return None
    files = re.search(r"file-rss:\s*([\d,]+)\s*kB", text)
    held = [int(each[1].replace(",", "")) * _UNITS["kB"] for each in (match, files) if each]
    return OutOfMemory(
        program="Linux",
        meaning="the kernel killed the process: the machine, or its control group, was full; no "
        "request is named",
        held_bytes=sum(held) if held else None,
    )


def _unsized(text: str) -> OutOfMemory | None:
    """Messages that name no size."""
    for pattern, program, meaning in _UNSIZED:
        if re.search(pattern, text):
            node = re.search(r"Name: ?\\?['\"]([^'\"\\]*)", text)
            return OutOfMemory(
                program=program,
                meaning=meaning,
                node=node[1] if node else None,
                op_type=_operator(text),
            )
    return None


def _operator(text: str) -> str | None:
    match = re.search(r"while running (\w+) node", text)
    return match[1] if match else None


def _size_of(text: str, *patterns: str) -> int | None:
    for pattern in patterns:
        match = re.search(pattern, text)
        if match and match[2] in _UNITS:
            return round(Fraction(match[1]) * _UNITS[match[2]])
    return None


_UNSIZED: Final = (
    (
        r"CUBLAS_STATUS_ALLOC_FAILED",
        "cuBLAS",
        "cuBLAS could not allocate its handle or workspace: the device was full before it began",
    ),
    (
        r"cudaErrorMemoryAllocation|CUDA (failure 2|error): out of memory|CUDA out of memory",
        "CUDA",
        "the device was full; the call that failed names no size",
    ),
    (
        r"std::bad_alloc|bad allocation|Cannot allocate memory|MemoryError",
        "the C++ runtime",
        "the system refused memory; no size is named",
    ),
)
_READERS: Final[tuple[Callable[[str], OutOfMemory | None], ...]] = (
    _tensorflow,
    _onnxruntime,
    _torch_cpu,
    _torch_cuda,
    _killed,
    _unsized,
)
"""In the order in which one text is tried: the wordings with a size first."""

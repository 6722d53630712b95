"""Which tensors of a model can have asked for the bytes of an out-of-memory message.

``read_message`` says what a message tells: who asked, for how much, and of how much there is. Each
wording is one record, and its source is where the program writes it. What a message rounds is an
interval here: the sizes that can have been requested.

``oom_report`` looks for them in a model. A tensor's bytes are affine in the batch; two batches give
its line, and the line the batches at which it has one of the sizes. A size that no tensor has can
be a block of the memory pattern, or scratch of a kernel, which no file tells.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, prod
from typing import Final

from onnxmem.allocators.caching import (
    LARGE_SEGMENT_BYTES,
    LARGE_STEP_BYTES,
    MIN_BLOCK_BYTES,
    MIN_LARGE_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
)
from onnxmem.analysis.fitting.assessing import Assessment, FitRequest, FitResult, assess, fit
from onnxmem.analysis.fitting.verdicts import Basis
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.errors import OnnxmemError
from onnxmem.model.graph import Graph, Tensor
from onnxmem.runtimes.onnxruntime.memory import RuntimeQuestion, Sessions
from onnxmem.runtimes.onnxruntime.prediction import arena_figures
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS
from onnxmem.runtimes.onnxruntime.session_graph.opening import ModelAt
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

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
_LARGEST_BATCH: Final = 1 << 20
"""Beyond it a match says nothing: any size is some tensor's at some batch."""
_MOST: Final = 12
_OF_GRAPH_OPTIMIZER: Final = ("_nchwc", "_FusedMatMulAndScale", "_fused")


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
    resident_bytes: int | None = None
    """What the process had when it was killed."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tensor that has one of the sizes."""

    tensor: str
    node: str | None
    """That makes it; ``None`` for an input or a weight."""
    op_type: str | None
    role: str
    size_bytes: int
    batch: int | None
    """At which it has it; ``None`` where the model has no batch, or the tensor does not follow."""
    shape: tuple[int, ...] | None
    is_named: bool
    """Whether the message names its node."""
    graph: str
    """``file``, ``session`` (as onnxruntime optimizes it) or ``training``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OomReport:
    """What a model says to a message."""

    batch: int | None
    at_batch: tuple[Candidate, ...]
    """At the batch asked about."""
    num_at_batch: int
    """Of which ``at_batch`` holds the first."""
    at_others: tuple[Candidate, ...]
    """At another batch, the smallest first."""
    num_at_others: int
    pattern_block_bytes: int | None
    """Of a session at this batch; ``None``: not asked for, or unknown."""
    is_pattern_block: bool
    basis: Basis
    """The figure that is compared with the capacity."""
    assessment: Assessment | None
    """What the model takes at this batch; ``None`` where that cannot be worked out."""
    fit_result: FitResult | None
    """Whether it fits the capacity of the message; ``None`` where that has none."""


def read_message(text: str) -> OutOfMemory | None:
    """Read a message, however much stands around it; ``None`` where it is none that is known."""
    plain = " ".join(text.split())
    for read in _READERS:
        found = read(plain)
        if found is not None:
            return found
    return None


def oom_report(message: OutOfMemory, request: AnalysisRequest) -> OomReport:
    """Look for a message's request in a model.

    :raises OnnxmemError: the dims do not fit the model.
    """
    results = request.results
    batch = results.bound.binding.batch
    graphs = dict(_graphs(request, message))
    found = () if message.sizes is None else tuple(_candidates(request, graphs, message))
    here = _ordered((each for each in found if each.batch in {batch, None}), message)
    elsewhere = _ordered((each for each in found if each.batch not in {batch, None}), message)
    block_bytes = _pattern_block(request) if message.program == "onnxruntime" else None
    basis = _basis(request, message)
    assessment, fit_result = _verdict(request, basis, message.capacity_bytes)
    return OomReport(
        batch=batch,
        at_batch=here[:_MOST],
        num_at_batch=len(here),
        at_others=elsewhere[:_MOST],
        num_at_others=len(elsewhere),
        pattern_block_bytes=block_bytes,
        is_pattern_block=bool(message.sizes and block_bytes and message.sizes.holds(block_bytes)),
        basis=basis,
        assessment=assessment,
        fit_result=fit_result,
    )


def is_shape(candidate: Candidate, shape: tuple[int, ...] | None) -> bool:
    """Whether a tensor has a message's shape, its channels perhaps in another place."""
    if shape is None or candidate.shape is None:
        return False
    return sorted(candidate.shape) == sorted(shape)


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
    resident = [int(each[1].replace(",", "")) * _UNITS["kB"] for each in (match, files) if each]
    return OutOfMemory(
        program="Linux",
        meaning="the kernel killed the process: the machine, or its control group, was full; no "
        "request is named",
        resident_bytes=sum(resident) if resident else None,
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


def _ordered(candidates: Iterable[Candidate], message: OutOfMemory) -> tuple[Candidate, ...]:
    """The named node's first, then those of the message's shape or operator, then by batch."""
    ordered = sorted(
        candidates,
        key=lambda each: (
            not each.is_named,
            not is_shape(each, message.shape),
            message.op_type is None or each.op_type != message.op_type,
            each.role == "weight",
            each.batch or 0,
        ),
    )
    seen: set[tuple[str, int | None]] = set()
    kept = []
    for each in ordered:
        if (each.tensor, each.batch) not in seen:
            seen.add((each.tensor, each.batch))
            kept.append(each)
    return tuple(kept)


def _basis(request: AnalysisRequest, message: OutOfMemory) -> Basis:
    if request.settings.train:
        return Basis.STEP if message.program == "PyTorch on CPU" else Basis.TORCH
    return Basis.TOTAL


def _verdict(
    request: AnalysisRequest, basis: Basis, capacity_bytes: int | None
) -> tuple[Assessment | None, FitResult | None]:
    """The verdict of every command, on the capacity that a message tells."""
    setup = FitRequest(memory_bytes=capacity_bytes or 0, basis=basis)
    try:
        if capacity_bytes is None:
            return assess((request,), setup), None
        result = fit((request,), setup)
    except OnnxmemError:
        return None, None
    return result.assessment, result


def _graphs(request: AnalysisRequest, message: OutOfMemory) -> Iterator[tuple[str, Graph]]:
    """The file's graph, and the session's where onnxruntime wrote the message."""
    yield "file", request.results.bound.graph
    if message.program == "onnxruntime":
        try:
            yield "session", _sessions(request).graph(SessionOptions()).graph
        except OnnxmemError:
            return


def _sessions(request: AnalysisRequest) -> Sessions:
    model = ModelAt(request.source, request.prepared, request.results.bound)
    asked = RuntimeQuestion(
        asks_onnxruntime=False, cpu=request.settings.cpu, values=request.settings.values
    )
    return Sessions(model, asked)


def _pattern_block(request: AnalysisRequest) -> int | None:
    try:
        session = _sessions(request).graph(SessionOptions())
        return arena_figures(session, SessionOptions(), PROVIDERS["ort-cpu"])[0].pattern_block_bytes
    except OnnxmemError:
        return None


def _candidates(
    request: AnalysisRequest, graphs: Mapping[str, Graph], message: OutOfMemory
) -> Iterator[Candidate]:
    batch = request.results.bound.binding.batch
    for name, graph in graphs.items():
        beside = None if batch is None else _beside(request, message, name, batch + 1)
        yield from _in_graph(name, graph, beside, batch, message)
    if request.settings.train and message.sizes is not None:
        yield from _in_step(request, message.sizes, batch)


def _beside(request: AnalysisRequest, message: OutOfMemory, name: str, batch: int) -> Graph | None:
    """The same graph at another batch, from which each tensor's line follows."""
    try:
        return dict(_graphs(request.at(batch), message)).get(name)
    except OnnxmemError:
        return None


def _in_graph(
    name: str, graph: Graph, beside: Graph | None, batch: int | None, message: OutOfMemory
) -> Iterator[Candidate]:
    makers = {output: node for node in graph.all_nodes() for output in node.writes}
    for tensor in graph.tensors.values():
        other = None if beside is None else beside.tensors.get(tensor.name)
        hit = _batch_of(tensor, other, batch, message)
        if hit is None:
            continue
        at, size_bytes = hit
        node = makers.get(tensor.name)
        shape = _shape_at(tensor, other, batch, at)
        yield Candidate(
            tensor=tensor.name,
            node=None if node is None else node.name,
            op_type=None if node is None else node.op_type,
            role=tensor.role.value,
            size_bytes=size_bytes,
            batch=at,
            shape=shape,
            is_named=node is not None and _is_named(node.name, message.node),
            graph=name,
        )


def _is_named(node: str, named: str | None) -> bool:
    """Whether a message names a node; a node that is made of it keeps its name at the front."""
    if not named:
        return False
    for ending in _OF_GRAPH_OPTIMIZER:
        named = named.removesuffix(ending)
    return node == named or any(
        node.removesuffix(ending) == named for ending in _OF_GRAPH_OPTIMIZER
    )


def _batch_of(
    tensor: Tensor, other: Tensor | None, batch: int | None, message: OutOfMemory
) -> tuple[int | None, int] | None:
    """The batch at which a tensor has one of the sizes, the one asked about if it does there."""
    size_bytes, sizes = tensor.size_bytes, message.sizes
    if size_bytes is None or sizes is None:
        return None
    if sizes.holds(size_bytes):
        return batch, size_bytes
    more_bytes = None if other is None else other.size_bytes
    if batch is None or more_bytes is None:
        return None
    return _on_line(size_bytes, more_bytes - size_bytes, batch, sizes)


def _on_line(
    size_bytes: int, slope: int, batch: int, sizes: RequestedBytes
) -> tuple[int, int] | None:
    """The smallest batch at which ``fixed + slope x batch`` is one of the sizes."""
    if slope <= 0:
        return None
    fixed_bytes = size_bytes - slope * batch
    at = max(-(-(sizes.least_bytes - fixed_bytes) // slope), 1)
    found_bytes = fixed_bytes + slope * at
    return (at, found_bytes) if sizes.holds(found_bytes) and at <= _LARGEST_BATCH else None


def _shape_at(
    tensor: Tensor, other: Tensor | None, batch: int | None, at: int | None
) -> tuple[int, ...] | None:
    """A shape at another batch: dims that follow the batch are lines as well."""
    shape = tensor.shape
    if shape is None or None in shape:
        return None
    known = tuple(dim for dim in shape if dim is not None)
    if batch is None or at is None or at == batch:
        return known
    beside = other.shape if other is not None else None
    if beside is None or None in beside or len(beside) != len(known):
        return None
    pairs = zip(known, (dim or 0 for dim in beside), strict=True)
    return tuple(dim + (more - dim) * (at - batch) for dim, more in pairs)


def _in_step(
    request: AnalysisRequest, sizes: RequestedBytes, batch: int | None
) -> Iterator[Candidate]:
    """Allocations of the training step, at the batch asked about and on their lines."""
    one = request.results.training
    two = None if batch is None else request.at(batch + 1).results.training
    allocations = () if one is None else tuple(one.replay.allocations())
    beside = () if two is None else tuple(two.replay.allocations())
    for number, allocation in enumerate(allocations):
        hit: tuple[int | None, int] | None = None
        if sizes.holds(allocation.size_bytes):
            hit = batch, allocation.size_bytes
        elif batch is not None and len(beside) == len(allocations):
            slope = beside[number].size_bytes - allocation.size_bytes
            hit = _on_line(allocation.size_bytes, slope, batch, sizes)
        if hit is not None:
            yield Candidate(
                tensor=allocation.label,
                node=None,
                op_type=None,
                role=allocation.category.value,
                size_bytes=hit[1],
                batch=hit[0],
                shape=None,
                is_named=False,
                graph="training",
            )

"""Find the tensors of a model whose allocation may have failed with an out-of-memory message.

``read_message`` parses the message: the program, the requested bytes, the memory of the device.
There is one function per wording; its docstring names the source file that prints it. A rounded
number becomes an interval of the sizes that are printed so.

``oom_report`` searches a model for tensors of that size. A tensor's bytes are affine in the batch,
so its sizes at two batches give a line, and the line gives the batch at which the tensor has a
requested size. A size that no tensor has may be a memory-pattern buffer of onnxruntime, or scratch
memory of a kernel, of which a model file says nothing.
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
"""Matches at larger batches are dropped: at some batch, nearly every tensor has any size."""
_MOST: Final = 12
_OF_GRAPH_OPTIMIZER: Final = ("_nchwc", "_FusedMatMulAndScale", "_fused")


@dataclass(frozen=True, slots=True)
class RequestedBytes:
    """The sizes that a message may mean, both ends included."""

    least_bytes: int
    most_bytes: int

    def includes(self, size_bytes: int) -> bool:
        """Whether a size is one of them."""
        return self.least_bytes <= size_bytes <= self.most_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """A parsed message; ``None`` is not in the message."""

    program: str
    """The program that printed it."""
    meaning: str
    """What it means, in a sentence."""
    sizes: RequestedBytes | None = None
    shape: tuple[int, ...] | None = None
    """The shape of the requested tensor."""
    node: str | None = None
    op_type: str | None = None
    capacity_bytes: int | None = None
    """The memory of the device."""
    free_bytes: int | None = None
    resident_bytes: int | None = None
    """The resident memory of the killed process."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tensor with a requested size."""

    tensor: str
    node: str | None
    """The node that produces it; ``None`` for an input or a weight."""
    op_type: str | None
    role: str
    size_bytes: int
    batch: int | None
    """The batch at which it has the size; ``None`` if the model has no batch."""
    shape: tuple[int, ...] | None
    is_named: bool
    """Whether the message names its node."""
    graph: str
    """``file``, ``session`` (as onnxruntime optimizes it) or ``training``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OomReport:
    """A message compared with a model."""

    batch: int | None
    at_batch: tuple[Candidate, ...]
    """The first candidates at the requested batch."""
    num_at_batch: int
    """How many there are in all."""
    at_others: tuple[Candidate, ...]
    """The first candidates at other batches, the smallest batch first."""
    num_at_others: int
    """How many there are in all."""
    pattern_block_bytes: int | None
    """The memory-pattern buffer of a session at this batch; ``None`` if it is unknown, or if
    another program printed the message."""
    is_pattern_block: bool
    """Whether the message may have requested that buffer."""
    basis: Basis
    """The figure that is compared with the capacity."""
    assessment: Assessment | None
    """The memory of the model at this batch; ``None`` if it cannot be computed."""
    fit_result: FitResult | None
    """The verdict on the capacity in the message; ``None`` without one."""


def read_message(text: str) -> OutOfMemory | None:
    """Find a message in a text, such as a log; ``None`` if no known wording is in it."""
    plain = " ".join(text.split())
    for read in _READERS:
        found = read(plain)
        if found is not None:
            return found
    return None


def oom_report(message: OutOfMemory, request: AnalysisRequest) -> OomReport:
    """Search a model for the tensors that a message may mean.

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
        is_pattern_block=bool(
            message.sizes and block_bytes and message.sizes.includes(block_bytes)
        ),
        basis=basis,
        assessment=assessment,
        fit_result=fit_result,
    )


def is_shape(candidate: Candidate, shape: tuple[int, ...] | None) -> bool:
    """Whether a tensor has a message's shape; TensorFlow may have channels on another axis."""
    if shape is None or candidate.shape is None:
        return False
    return sorted(candidate.shape) == sorted(shape)


def _tensorflow(text: str) -> OutOfMemory | None:
    """``tensorflow/core/framework/op_kernel.cc``: allocate_temp and the like."""
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
        meaning="the allocator could not allocate one tensor",
        sizes=None if size_bytes is None else RequestedBytes(size_bytes, size_bytes),
        shape=shape,
        node=node[1] if node else None,
        op_type=operator[1] if operator else None,
    )


def _torch_cuda(text: str) -> OutOfMemory | None:
    """``c10/cuda/CUDACachingAllocator.cpp``: the size of the segment that cudaMalloc refused.

    Until 2023 ``(GPU 0; 6.00 GiB total capacity; ...)``, then ``GPU 0 has a total capacity of``. In
    2019 the text said ``cached`` instead of ``reserved``, and the size was that of the block.
    """
    match = re.search(r"Tried to allocate ([\d.]+) (bytes|[KMG]iB)", text)
    if match is None:
        return None
    is_block = re.search(r"[KMG]iB cached", text) is not None
    return OutOfMemory(
        program="PyTorch on CUDA",
        meaning="the caching allocator could not get another segment from the device",
        sizes=_torch_sizes(match[1], match[2], is_block=is_block),
        capacity_bytes=_size_of(
            text, r"([\d.]+) ([KMG]iB) total capacity", r"total capaci?ty of ([\d.]+) ([KMG]iB)"
        ),
        free_bytes=_size_of(text, r"([\d.]+) (bytes|[KMG]iB) free", r"of which ([\d.]+) (\w+) is"),
    )


def _torch_sizes(number: str, unit: str, *, is_block: bool) -> RequestedBytes:
    """The requests that lead to a segment or block whose size is printed so."""
    # The inverse of ``get_allocation_size``: small requests get a small segment, requests below
    # MIN_LARGE_BYTES a large one, and larger ones a segment rounded up to LARGE_STEP_BYTES.
    least, most = _printed(number, unit)
    if is_block:
        return RequestedBytes(max(least - MIN_BLOCK_BYTES + 1, 1), most)
    if least <= SMALL_SEGMENT_BYTES <= most:
        return RequestedBytes(1, SMALL_BYTES)
    if least <= LARGE_SEGMENT_BYTES <= most:
        return RequestedBytes(SMALL_BYTES + 1, LARGE_SEGMENT_BYTES)
    return RequestedBytes(max(least - LARGE_STEP_BYTES + 1, MIN_LARGE_BYTES), most)


def _printed(number: str, unit: str) -> tuple[int, int]:
    """The least and the most bytes that are printed so, given the number of decimals."""
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
        meaning="the arena had no free chunk and could not grow",
        sizes=RequestedBytes(max(size_bytes - _ARENA_BYTES + 1, 1), size_bytes),
        node=node[1] if node else None,
        op_type=_operator(text),
    )


def _torch_cpu(text: str) -> OutOfMemory | None:
    """``c10/core/impl/alloc_cpu.cpp``: the exact bytes of the tensor."""
    match = re.search(r"DefaultCPUAllocator: .{0,80}?tried to allocate (\d+) ?bytes", text)
    if match is None:
        return None
    size_bytes = int(match[1])
    return OutOfMemory(
        program="PyTorch on CPU",
        meaning="the system could not allocate one tensor",
        sizes=RequestedBytes(size_bytes, size_bytes),
    )


def _killed(text: str) -> OutOfMemory | None:
    """``mm/oom_kill.c`` of Linux, __oom_kill_process: the resident memory of the process."""
    match = re.search(r"Killed process \d+.*?anon-rss:\s*([\d,]+)\s*kB", text)
    if match is None and not re.search(r"oom-kill:|Out of memory: Kill", text):
        return None
    files = re.search(r"file-rss:\s*([\d,]+)\s*kB", text)
    resident = [int(each[1].replace(",", "")) * _UNITS["kB"] for each in (match, files) if each]
    return OutOfMemory(
        program="Linux",
        meaning="the kernel killed the process: the machine or its cgroup was out of memory; the "
        "message does not name a request",
        resident_bytes=sum(resident) if resident else None,
    )


def _unsized(text: str) -> OutOfMemory | None:
    """Messages without a size."""
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
        "cuBLAS could not allocate its handle or workspace: the device was already full",
    ),
    (
        r"cudaErrorMemoryAllocation|CUDA (failure 2|error): out of memory|CUDA out of memory",
        "CUDA",
        "the device was full; the message names no size",
    ),
    (
        r"std::bad_alloc|bad allocation|Cannot allocate memory|MemoryError",
        "the C++ runtime",
        "the system could not allocate memory; the message names no size",
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
"""In this order: a log may have several messages, and those with a size say more."""


def _ordered(candidates: Iterable[Candidate], message: OutOfMemory) -> tuple[Candidate, ...]:
    """The most likely first: by the message's node, then its shape, its operator, and the batch."""
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
    # A tensor in both graphs, the file's and the session's, is listed once, where it ranks higher.
    first: dict[tuple[str, int | None], Candidate] = {}
    for each in ordered:
        first.setdefault((each.tensor, each.batch), each)
    return tuple(first.values())


def _basis(request: AnalysisRequest, message: OutOfMemory) -> Basis:
    if request.settings.train:
        return Basis.STEP if message.program == "PyTorch on CPU" else Basis.TORCH
    return Basis.TOTAL


def _verdict(
    request: AnalysisRequest, basis: Basis, capacity_bytes: int | None
) -> tuple[Assessment | None, FitResult | None]:
    """The assessment, and the verdict on the capacity in a message, as in other commands."""
    setup = FitRequest(memory_bytes=capacity_bytes or 0, basis=basis)
    try:
        if capacity_bytes is None:
            return assess((request,), setup), None
        result = fit((request,), setup)
    except OnnxmemError:
        return None, None
    return result.assessment, result


def _graphs(request: AnalysisRequest, message: OutOfMemory) -> Iterator[tuple[str, Graph]]:
    """The file's graph, and the session's if onnxruntime printed the message."""
    yield "file", request.results.bound.graph
    if message.program == "onnxruntime":
        try:
            yield "session", _sessions(request).graph(SessionOptions()).graph
        except OnnxmemError:
            return


def _sessions(request: AnalysisRequest) -> Sessions:
    model = ModelAt(request.source, request.prepared, request.results.bound)
    question = RuntimeQuestion(
        asks_onnxruntime=False, cpu=request.settings.cpu, values=request.settings.values
    )
    return Sessions(model, question)


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
        second = None if batch is None else _graph_at(request, message, name, batch + 1)
        yield from _in_graph(name, graph, second, batch, message)
    if request.settings.train and message.sizes is not None:
        yield from _in_step(request, message.sizes, batch)


def _graph_at(
    request: AnalysisRequest, message: OutOfMemory, name: str, batch: int
) -> Graph | None:
    """The same graph at another batch, as the second point of each tensor's line."""
    try:
        return dict(_graphs(request.at(batch), message)).get(name)
    except OnnxmemError:
        return None


def _in_graph(
    name: str, graph: Graph, second: Graph | None, batch: int | None, message: OutOfMemory
) -> Iterator[Candidate]:
    producers = {output: node for node in graph.all_nodes() for output in node.writes}
    for tensor in graph.tensors.values():
        other = None if second is None else second.tensors.get(tensor.name)
        hit = _batch_of(tensor, other, batch, message)
        if hit is None:
            continue
        at, size_bytes = hit
        node = producers.get(tensor.name)
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
    """Whether a message names a node, or a node that onnxruntime fused from it."""
    # A fused node's name is that of one of its nodes with a suffix.
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
    """The batch at which a tensor has a requested size, and the size; the request's batch first."""
    size_bytes, sizes = tensor.size_bytes, message.sizes
    if size_bytes is None or sizes is None:
        return None
    if sizes.includes(size_bytes):
        return batch, size_bytes
    more_bytes = None if other is None else other.size_bytes
    if batch is None or more_bytes is None:
        return None
    return _on_line(size_bytes, more_bytes - size_bytes, batch, sizes)


def _on_line(
    size_bytes: int, slope: int, batch: int, sizes: RequestedBytes
) -> tuple[int, int] | None:
    """The smallest batch at which ``fixed + slope x batch`` is a requested size."""
    if slope <= 0:
        return None
    fixed_bytes = size_bytes - slope * batch
    at = max(-(-(sizes.least_bytes - fixed_bytes) // slope), 1)
    found_bytes = fixed_bytes + slope * at
    return (at, found_bytes) if sizes.includes(found_bytes) and at <= _LARGEST_BATCH else None


def _shape_at(
    tensor: Tensor, other: Tensor | None, batch: int | None, at: int | None
) -> tuple[int, ...] | None:
    """The shape at another batch: each dim is affine in the batch too."""
    shape = tensor.shape
    if shape is None or None in shape:
        return None
    known = tuple(dim for dim in shape if dim is not None)
    if batch is None or at is None or at == batch:
        return known
    second = other.shape if other is not None else None
    if second is None or None in second or len(second) != len(known):
        return None
    pairs = zip(known, (dim or 0 for dim in second), strict=True)
    return tuple(dim + (more - dim) * (at - batch) for dim, more in pairs)


def _in_step(
    request: AnalysisRequest, sizes: RequestedBytes, batch: int | None
) -> Iterator[Candidate]:
    """Allocations of the training step with a requested size at this batch or at another one."""
    # A step makes the same allocations in the same order at every batch, unless the graph takes
    # another path; then their numbers differ and no line can be drawn.
    one = request.results.training
    two = None if batch is None else request.at(batch + 1).results.training
    allocations = () if one is None else tuple(one.replay.allocations())
    second = () if two is None else tuple(two.replay.allocations())
    for index, allocation in enumerate(allocations):
        hit: tuple[int | None, int] | None = None
        if sizes.includes(allocation.size_bytes):
            hit = batch, allocation.size_bytes
        elif batch is not None and len(second) == len(allocations):
            slope = second[index].size_bytes - allocation.size_bytes
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

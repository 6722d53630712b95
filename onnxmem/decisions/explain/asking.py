"""Which tensors and nodes of a model can have asked for the bytes of a message, and at which batch.

A tensor's bytes are affine in the batch; two batches tell its line, and the line the batches at
which it has one of the sizes. A size that no tensor has can be a block of the memory pattern, or
scratch of a kernel, which no file tells.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from onnxmem.analysis.fitting.answering import Assessment, FitRequest, FitResult, assess, fit
from onnxmem.analysis.fitting.bases import Basis
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.decisions.explain.messages import OutOfMemory, RequestedBytes
from onnxmem.errors import OnnxmemError
from onnxmem.model import Graph, Tensor
from onnxmem.runtimes.onnxruntime.memory import RuntimeQuestion, Sessions
from onnxmem.runtimes.onnxruntime.prediction import arena_figures
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS
from onnxmem.runtimes.onnxruntime.session_graph.opening import ModelAt
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

_LARGEST_BATCH: Final = 1 << 20
"""Beyond it a match says nothing: any size is some tensor's at some batch."""
_MOST: Final = 12
_OF_OPTIMISER: Final = ("_nchwc", "_FusedMatMulAndScale", "_fused")


@dataclass(frozen=True, slots=True)
class Suspect:
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
    """``file``, ``session`` (as onnxruntime optimises it) or ``training``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquest:
    """What a model says to a message."""

    batch: int | None
    at_batch: tuple[Suspect, ...]
    """At the batch asked about."""
    num_at_batch: int
    """Of which ``at_batch`` holds the first."""
    at_others: tuple[Suspect, ...]
    """At another batch, the smallest first."""
    num_at_others: int
    pattern_block_bytes: int | None
    """Of a session at this batch; ``None``: not asked for, or unknown."""
    is_pattern_block: bool
    basis: Basis
    """The figure that is compared with the capacity."""
    standing: Assessment | None
    """What the model takes at this batch; ``None`` where that cannot be worked out."""
    answer: FitResult | None
    """Whether it fits the capacity of the message; ``None`` where that has none."""


def inquire(message: OutOfMemory, question: AnalysisRequest) -> Inquest:
    """Look for a message's request in a model.

    :raises OnnxmemError: the dims do not fit the model.
    """
    terms = question.results
    batch = terms.bound.binding.batch
    graphs = dict(_graphs(question, message))
    found = () if message.sizes is None else tuple(_suspects(question, graphs, message))
    here = _ordered((each for each in found if each.batch in {batch, None}), message)
    elsewhere = _ordered((each for each in found if each.batch not in {batch, None}), message)
    block_bytes = _pattern_block(question) if message.program == "onnxruntime" else None
    basis = _basis(question, message)
    standing, answer = _verdict(question, basis, message.capacity_bytes)
    return Inquest(
        batch=batch,
        at_batch=here[:_MOST],
        num_at_batch=len(here),
        at_others=elsewhere[:_MOST],
        num_at_others=len(elsewhere),
        pattern_block_bytes=block_bytes,
        is_pattern_block=bool(message.sizes and block_bytes and message.sizes.holds(block_bytes)),
        basis=basis,
        standing=standing,
        answer=answer,
    )


def _ordered(suspects: Iterable[Suspect], message: OutOfMemory) -> tuple[Suspect, ...]:
    """The named node's first, then those of the message's shape or operator, then by batch."""
    ordered = sorted(
        suspects,
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


def _basis(question: AnalysisRequest, message: OutOfMemory) -> Basis:
    if question.settings.train:
        return Basis.STEP if message.program == "PyTorch on CPU" else Basis.TORCH
    return Basis.TOTAL


def _verdict(
    question: AnalysisRequest, basis: Basis, capacity_bytes: int | None
) -> tuple[Assessment | None, FitResult | None]:
    """The verdict of every command, on the capacity that a message tells."""
    setup = FitRequest(memory_bytes=capacity_bytes or 0, basis=basis)
    try:
        if capacity_bytes is None:
            return assess((question,), setup), None
        answer = fit((question,), setup)
    except OnnxmemError:
        return None, None
    return answer.standing, answer


def _graphs(question: AnalysisRequest, message: OutOfMemory) -> Iterator[tuple[str, Graph]]:
    """The file's graph, and the session's where onnxruntime wrote the message."""
    yield "file", question.results.bound.graph
    if message.program == "onnxruntime":
        try:
            yield "session", _sessions(question).graph(SessionOptions()).graph
        except OnnxmemError:
            return


def _sessions(question: AnalysisRequest) -> Sessions:
    model = ModelAt(question.source, question.prepared, question.results.bound)
    asked = RuntimeQuestion(
        asks_onnxruntime=False, cpu=question.settings.cpu, values=question.settings.values
    )
    return Sessions(model, asked)


def _pattern_block(question: AnalysisRequest) -> int | None:
    try:
        session = _sessions(question).graph(SessionOptions())
        return arena_figures(session, SessionOptions(), PROVIDERS["ort-cpu"])[0].pattern_block_bytes
    except OnnxmemError:
        return None


def _suspects(
    question: AnalysisRequest, graphs: Mapping[str, Graph], message: OutOfMemory
) -> Iterator[Suspect]:
    batch = question.results.bound.binding.batch
    for name, graph in graphs.items():
        beside = None if batch is None else _beside(question, message, name, batch + 1)
        yield from _in_graph(name, graph, beside, batch, message)
    if question.settings.train and message.sizes is not None:
        yield from _in_step(question, message.sizes, batch)


def _beside(question: AnalysisRequest, message: OutOfMemory, name: str, batch: int) -> Graph | None:
    """The same graph at another batch, from which each tensor's line follows."""
    try:
        return dict(_graphs(question.at(batch), message)).get(name)
    except OnnxmemError:
        return None


def _in_graph(
    name: str, graph: Graph, beside: Graph | None, batch: int | None, message: OutOfMemory
) -> Iterator[Suspect]:
    makers = {output: node for node in graph.all_nodes() for output in node.writes}
    for tensor in graph.tensors.values():
        other = None if beside is None else beside.tensors.get(tensor.name)
        hit = _batch_of(tensor, other, batch, message)
        if hit is None:
            continue
        at, size_bytes = hit
        node = makers.get(tensor.name)
        shape = _shape_at(tensor, other, batch, at)
        yield Suspect(
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
    """Whether a message names a node; what an optimiser makes of it keeps its name at the front."""
    if not named:
        return False
    for ending in _OF_OPTIMISER:
        named = named.removesuffix(ending)
    return node == named or any(node.removesuffix(ending) == named for ending in _OF_OPTIMISER)


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
    question: AnalysisRequest, sizes: RequestedBytes, batch: int | None
) -> Iterator[Suspect]:
    """Allocations of the training step, at the batch asked about and on their lines."""
    one = question.results.training
    two = None if batch is None else question.at(batch + 1).results.training
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
            yield Suspect(
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


def is_shape(suspect: Suspect, shape: tuple[int, ...] | None) -> bool:
    """Whether a tensor has a message's shape, its channels perhaps in another place."""
    if shape is None or suspect.shape is None:
        return False
    return sorted(suspect.shape) == sorted(shape)

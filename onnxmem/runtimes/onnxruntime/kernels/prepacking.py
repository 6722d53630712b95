"""Prepacked weights, and the initializers in the arena before the first node runs.

When a session is created, a kernel may pack a constant input in the layout in which it reads it
(``PrePack``). The initializer is dropped once all its readers have packed it. Initializers of up to
127 bytes are copied into the arena; larger ones, and those in external files, stay outside of it.

Kernels of one operator share one copy of equal packed bytes. Tensors with different names count as
different unless they are known to be equal. No kernel packs an initializer that a caller can
override as a graph input; which ones these are is not known here.

Sources: session_state.cc, PrepackConstantInitializedTensors; session_state_utils.cc,
SaveInitializedTensors; tensorprotoutils.h, kSmallTensorExternalDataThreshold. Verified on
onnxruntime 1.32.0 on an AVX-512 machine; ``mlas`` says what depends on the processor. The
memory pattern changes nothing.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from onnxmem.model.graph import Graph, Node, Role, Tensor
from onnxmem.runtimes.onnxruntime.cpu import AVX512, Cpu
from onnxmem.runtimes.onnxruntime.kernels.kernel import KernelCall, KernelInfo, Packed, UnknownError
from onnxmem.runtimes.onnxruntime.kernels.registry import kernel_of

# ``kSmallTensorExternalDataThreshold``; a tensor of exactly so many bytes is small.
_SMALL_BYTES: Final = 127


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """Facts about a session that its graph does not contain."""

    contents: Mapping[str, str] = field(default_factory=dict)
    """A text per weight name that is equal for weights with equal bytes, if that is known."""
    indices: Mapping[str, int] = field(default_factory=dict)
    """onnxruntime's node indices by the name of the first output; kernels pack in this order."""
    cpu: Cpu = AVX512
    """The CPU of the session: MLAS has a packed layout for each kind."""
    host: frozenset[str] = frozenset()
    """Values in the host's memory, of a session on CUDA."""


_DEFAULT: Final = SessionFacts()


@dataclass(frozen=True, slots=True)
class Prepacked:
    """One weight as one kernel prepacks it."""

    node: str
    weight: str
    size_bytes: int
    """0 if the kernel uses the copy of an earlier kernel."""
    is_reserved: bool
    """Whether it is reserved outside the arena's regions, not allocated in one."""
    drops_original: bool
    """Whether the kernel no longer needs the initializer."""
    transient_bytes: int = 0
    """Bytes that the kernel packs, and frees when it finds an equal earlier copy."""
    transposed_bytes: int = 0
    """Bytes of a transposed copy that the kernel allocates while it packs."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """A small initializer, reserved in the arena outside its regions."""

    weight: str
    size_bytes: int


def prepacked(graph: Graph, facts: SessionFacts = _DEFAULT) -> tuple[Prepacked, ...]:
    """The weights that the kernels of a graph and its subgraphs prepack, in sequence.

    A kernel in a subgraph packs weights of its own graph and of the graph directly around it, but
    not of one further out (session_state.cc: the search ends at the first parent with the name).
    """
    constants = initializers(graph)
    stored: set[tuple[str, str, int]] = set()
    result = []
    for node, beyond in _in_packing_order(graph, facts):
        own = (name for name in node.inputs if name not in beyond)
        known = {name: constants[name] for name in own if name in constants}
        for packed in _packs(graph, node, kernel_info(graph, node, known, facts.cpu)):
            weight = node.inputs[packed.index]
            content = facts.contents.get(weight, graph.tensors[weight].storage_key)
            # onnxruntime's key is the operator and a hash of the packed bytes
            # (``GenerateKeyForPrepackedWeightsMap``), for which equal content and size stand here.
            # It packs before it compares, hence the transient bytes.
            key = (node.op_type, content, packed.size_bytes)
            is_stored = packed.is_shared and key in stored
            stored.add(key)
            result.append(
                Prepacked(
                    node=node.name,
                    weight=weight,
                    size_bytes=0 if is_stored else packed.size_bytes,
                    is_reserved=packed.is_reserved,
                    drops_original=packed.drops_original,
                    transient_bytes=packed.size_bytes if is_stored else 0,
                    transposed_bytes=packed.transposed_bytes,
                )
            )
    return tuple(result)


def _in_packing_order(
    graph: Graph,
    facts: SessionFacts,
    outer: frozenset[str] = frozenset(),
    beyond: frozenset[str] = frozenset(),
) -> Iterator[tuple[Node, frozenset[str]]]:
    """Each node, with the names that its graph reads from beyond the graph directly around it.

    Nodes with unknown indices come last, as nodes that the optimizer added do.

    :param outer: the names that the graph reads from all graphs around it.
    """

    def index(node: Node) -> int:
        return facts.indices.get(next(iter(node.writes), ""), sys.maxsize)

    # All kernels of a graph pack before those of its subgraphs.
    nodes = sorted(graph.nodes, key=index)
    for node in nodes:
        yield node, beyond
    for node in nodes:
        for _, body in node.subgraphs:
            read = frozenset(node.outer_reads)
            yield from _in_packing_order(body, facts, read, read & outer)


def initializer_reserves(graph: Graph, packed: Iterable[Prepacked] = ()) -> tuple[Reserve, ...]:
    """The small initializers in the arena, without those that all readers have packed."""
    dropped = Counter(each.weight for each in packed if each.drops_original)
    readers = Counter(name for node in graph.all_nodes() for name in node.inputs if name)
    # A graph output is read by the caller, who needs the original.
    readers.update(graph.outputs)
    readers.update(
        name for node in graph.all_nodes() for _, inner in node.subgraphs for name in inner.outputs
    )
    return tuple(
        Reserve(name, size)
        for name, tensor in initializers(graph).items()
        if not tensor.is_external and dropped[name] < readers[name]
        if (size := tensor.size_bytes or 0) and size <= _SMALL_BYTES
    )


def initializers(graph: Graph) -> dict[str, Tensor]:
    """All tensors stored in the file, also in subgraphs, whether they count as weights or not."""
    nodes = graph.all_nodes()
    computed = {name for node in nodes if node.onnx_op != "Constant" for name in node.writes}
    roles = (Role.WEIGHT, Role.UNREAD)
    return {n: t for n, t in graph.tensors.items() if t.role in roles and n not in computed}


def kernel_info(
    graph: Graph,
    node: Node,
    constants: Mapping[str, Tensor],
    cpu: Cpu,
    opset: int | None = None,
) -> KernelInfo:
    """What a node's kernel knows about its session, except threads and cache.

    :param constants: the initializers that the node reads, or all of the graph's.
    """
    return KernelInfo(
        constants=frozenset(index for index, name in enumerate(node.inputs) if name in constants),
        types=tuple((graph.tensors[name].dtype or "") if name else "" for name in node.inputs),
        opset=opset,
        cpu=cpu,
    )


def _packs(graph: Graph, node: Node, info: KernelInfo) -> Iterator[Packed]:
    try:
        yield from kernel_of(node.op_type, node.domain).packing(KernelCall(graph.call(node), info))
    except (UnknownError, ValueError, IndexError, ZeroDivisionError):
        return  # Invalid ranks and groups, with which no kernel runs, count as unknown too.

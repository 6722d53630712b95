"""Prepacked weights, and the initializers that lie in the arena before the first node runs.

When a session is made, a kernel may pack a constant input as its products read it; the initializer
is dropped when all its readers have. An initializer of up to 127 bytes is copied into the arena; a
larger one, and one in an external file, stays where the file's reader put it, outside.

Kernels of one operator share one copy of equal packed bytes, where they hand them over to be kept;
tensors of different names are taken to differ where it isn't known that they are equal. An
initializer that the file lists as a graph input is packed by no kernel where a caller may override
it: that isn't known here.

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

_SMALL_BYTES: Final = 127


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What a session's graph doesn't say by itself."""

    contents: Mapping[str, str] = field(default_factory=dict)
    """What weights of equal bytes have in common, by name, as far as it is known."""
    indices: Mapping[str, int] = field(default_factory=dict)
    """onnxruntime's numbers of nodes, by the name of their first output: kernels pack in this
    order, which is the file's, nodes that the optimizer has made after all others."""
    cpu: Cpu = AVX512
    """That packs the weights: MLAS packs for its own kernels."""


_NOTHING_MORE: Final = SessionFacts()


@dataclass(frozen=True, slots=True)
class Prepacked:
    """What one kernel keeps of one weight."""

    node: str
    weight: str
    size_bytes: int
    """0 where an earlier kernel's copy serves."""
    is_reserved: bool
    """Beside the arena's regions; else like any buffer, whose region stays."""
    drops_original: bool
    transient_bytes: int = 0
    """What it packs only to find that an earlier copy serves."""
    transposed_bytes: int = 0
    """Asked of the arena while it packs."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """An initializer that lies in the arena, beside its regions."""

    weight: str
    size_bytes: int


def prepacked(graph: Graph, facts: SessionFacts = _NOTHING_MORE) -> tuple[Prepacked, ...]:
    """What the kernels of a graph and its subgraphs pack, in the order in which they do.

    A kernel in a subgraph packs weights of its own graph and of the one right around it, and of
    none further out (session_state.cc: the walk ends at the first parent that knows the name).
    """
    constants = initializers(graph)
    kept: set[tuple[str, str, int]] = set()
    made = []
    for node, beyond in _in_packing_order(graph, facts):
        own = (name for name in node.inputs if name not in beyond)
        known = {name: constants[name] for name in own if name in constants}
        for packed in _packs(graph, node, kernel_info(graph, node, known, facts.cpu)):
            weight = node.inputs[packed.index]
            content = facts.contents.get(weight, graph.tensors[weight].storage_key)
            key = (node.op_type, content, packed.size_bytes)
            is_there = packed.is_shared and key in kept
            kept.add(key)
            made.append(
                Prepacked(
                    node=node.name,
                    weight=weight,
                    size_bytes=0 if is_there else packed.size_bytes,
                    is_reserved=packed.is_reserved,
                    drops_original=packed.drops_original,
                    transient_bytes=packed.size_bytes if is_there else 0,
                    transposed_bytes=packed.transposed_bytes,
                )
            )
    return tuple(made)


def _in_packing_order(
    graph: Graph,
    facts: SessionFacts,
    outer: frozenset[str] = frozenset(),
    beyond: frozenset[str] = frozenset(),
) -> Iterator[tuple[Node, frozenset[str]]]:
    """Each node, and what its graph reads of graphs further out than the one around it.

    ``outer`` is what the graph reads of all that are around it. Nodes whose number isn't known come
    last, as those do that the optimizer has made.
    """

    def index(node: Node) -> int:
        return facts.indices.get(next(iter(node.writes), ""), sys.maxsize)

    nodes = sorted(graph.nodes, key=index)
    for node in nodes:
        yield node, beyond
    for node in nodes:
        for _, body in node.subgraphs:
            read = frozenset(node.outer_reads)
            yield from _in_packing_order(body, facts, read, read & outer)


def initializer_reserves(graph: Graph, packed: Iterable[Prepacked] = ()) -> tuple[Reserve, ...]:
    """The small initializers in the arena, but for those that all readers have packed."""
    dropped = Counter(each.weight for each in packed if each.drops_original)
    readers = Counter(name for node in graph.all_nodes() for name in node.inputs if name)
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
    """The tensors that the file holds, subgraphs' too: weights, and what only sizes something."""
    nodes = graph.all_nodes()
    made = {name for node in nodes if node.onnx_op != "Constant" for name in node.writes}
    roles = (Role.WEIGHT, Role.UNREAD)
    return {n: t for n, t in graph.tensors.items() if t.role in roles and n not in made}


def kernel_info(
    graph: Graph,
    node: Node,
    constants: Mapping[str, Tensor],
    cpu: Cpu,
    opset: int | None = None,
) -> KernelInfo:
    """What a node's kernel knows beside its call; ``constants``: the graph's initializers.

    The threads and the cache are the session's: ``replace`` sets them.
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
        return  # Ranks and numbers of groups that no kernel takes are as unknown as an open shape.

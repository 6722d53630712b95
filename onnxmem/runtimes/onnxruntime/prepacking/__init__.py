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
onnxruntime 1.32.0 on an AVX-512 machine; ``onnxmem.runtimes.onnxruntime.mlas`` says what depends on
the processor. The memory pattern changes nothing.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from onnxmem.model import Graph, Node
from onnxmem.runtimes.onnxruntime.kernel_use import Site, UnknownError, Use
from onnxmem.runtimes.onnxruntime.prepacking import floats, integers
from onnxmem.runtimes.onnxruntime.prepacking.rule import Packed, Rule, SessionFacts
from onnxmem.runtimes.onnxruntime.sites import initializers, site_of

__all__ = [
    "RULES",
    "UNKNOWN",
    "Prepacked",
    "Reserve",
    "SessionFacts",
    "initializer_reserves",
    "initializers",
    "prepacked",
    "site_of",
]

_SMALL_BYTES = 127
_NOTHING_MORE = SessionFacts()

UNKNOWN = frozenset({("com.microsoft", "QMoE")})
"""Operators whose kernels pack their weights in a way that is not known."""


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
    passing_bytes: int = 0
    """What it packs only to find that an earlier copy serves."""
    turned_bytes: int = 0
    """Asked of the arena while it packs."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """An initializer that lies in the arena, beside its regions."""

    weight: str
    size_bytes: int


def _join(families: Iterable[Iterable[Rule]]) -> Mapping[tuple[str, str], Rule]:
    rules = [rule for family in families for rule in family]
    table = {(rule.domain, rule.op_type): rule for rule in rules}
    if len(table) < len(rules):
        message = "what an operator packs is described twice"
        raise ValueError(message)
    return MappingProxyType(table)


RULES = _join((floats.RULES, integers.RULES))


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
        for packed in _packs(graph, node, site_of(graph, node, known, facts.cpu)):
            weight = node.inputs[packed.place]
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
                    passing_bytes=packed.size_bytes if is_there else 0,
                    turned_bytes=packed.turned_bytes,
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
    last, as those do that the optimiser has made.
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


def _packs(graph: Graph, node: Node, site: Site) -> Iterator[Packed]:
    rule = RULES.get((node.domain, node.op_type))
    if rule is None:
        return
    try:
        yield from rule.packs(Use(graph.call(node), site))
    except (UnknownError, ValueError, IndexError, ZeroDivisionError):
        return  # Ranks and numbers of groups that no kernel takes are as unknown as an open shape.

"""Brute force over a graph's records and a program's events: what sweeps find, found by looking.

It goes by the definitions' words, asks every question of every node again, and shares no code with
the package but the records themselves.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import prod

from onnxmem.model.graph import Graph, Node, Role, Tensor

Groups = Mapping[str, str]
"""Activation to the first tensor of its buffer; ``""`` where the bytes are somebody else's."""


def size_of(tensor: Tensor) -> int:
    """Bytes, bits rounded up; what is unknown counts nothing."""
    bits = None if tensor.dtype is None else tensor.dtype.bits
    if tensor.shape is None or bits is None:
        return 0
    known = [dim for dim in tensor.shape if dim is not None]
    return (prod(known) * bits + 7) // 8 if len(known) == len(tensor.shape) else 0


def is_known(tensor: Tensor) -> bool:
    """Whether the size of a tensor can be told."""
    has_bits = tensor.dtype is not None and tensor.dtype.bits is not None
    return has_bits and tensor.shape is not None and None not in tensor.shape


def alone(graph: Graph) -> Groups:
    """Definition 3: every activation is a buffer of its own."""
    return {name: name for node in graph.nodes for name in _made(graph, node)}


def shared(graph: Graph) -> Groups:
    """Definition 4: views and in-place chains share a buffer."""
    groups: dict[str, str] = {}
    for step, node in enumerate(graph.nodes):
        views = {out: source for source, out in _tensors(node, node.operator.alias)}
        for out, source in views.items():
            groups[out] = groups.get(source, "")
        for out in _made(graph, node):
            if out not in views:
                pairs = _tensors(node, node.operator.may_inplace)
                sources = [source for source, target in pairs if target == out]
                fits = [s for s in sources if _may_overwrite(graph, groups, step, s, out)]
                groups[out] = groups[fits[0]] if fits else out
    return groups


def naive(graph: Graph, *, in_place: bool, outside: Iterable[str] = ()) -> int:
    """Definition 2: every buffer kept, of an If's branches the larger sum, a body once."""
    groups = shared(graph) if in_place else alone(graph)
    total = sum(_buffers(graph, groups, outside).values())
    for node in graph.nodes:
        sums = [
            naive(
                body, in_place=in_place, outside=_same_as_outer(graph, node, body, groups, outside)
            )
            for _, body in node.subgraphs
        ]
        total += max(sums, default=0)
    return total


def live_bytes(graph: Graph, *, in_place: bool, outside: Iterable[str] = ()) -> list[int]:
    """Bytes live at each step, that of a node with subgraphs with their peak on top."""
    groups = shared(graph) if in_place else alone(graph)
    sizes = _buffers(graph, groups, outside)
    steps = []
    for step, node in enumerate(graph.nodes):
        total = sum(sizes[first] for first in sizes if _is_live(graph, groups, first, step))
        peaks = []
        for _, body in node.subgraphs:
            same = _same_as_outer(graph, node, body, groups, outside)
            peaks.append(max(live_bytes(body, in_place=in_place, outside=same), default=0))
        steps.append(total + max(peaks, default=0))
    return steps


Block = tuple[int, int, int]
"""Bytes, and the steps ``[start, stop)`` in which they are live."""


def overlaps(blocks: Mapping[int, Block], offsets: Mapping[int, int]) -> list[tuple[int, int]]:
    """Pairs of blocks, by number, that share a step and an address."""
    found = []
    for one, other in combinations(sorted(offsets), 2):
        (size, start, stop), (other_size, other_start, other_stop) = blocks[one], blocks[other]
        in_time = range(max(start, other_start), min(stop, other_stop))
        low = max(offsets[one], offsets[other])
        if in_time and low < min(offsets[one] + size, offsets[other] + other_size):
            found.append((one, other))
    return found


def alive(events: Sequence[int], num_events: int) -> list[int]:
    """What is allocated by so many events of a program and not released, in that order."""
    done = list(events[:num_events])
    return [event for event in done if event >= 0 and ~event not in done]


def live_after_events(events: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Bytes alive after each event of a program, each counted anew from the first one on."""
    return [sum(sizes[n] for n in alive(events, at + 1)) for at in range(len(events))]


def _made(graph: Graph, node: Node) -> list[str]:
    return [out for out in node.outputs if out and graph.tensors[out].role is Role.ACTIVATION]


def _reads(node: Node) -> list[str]:
    """Inputs, and what subgraphs at any depth name that is not made within the node."""
    names = [name for name in node.inputs if name]
    inside = {out for _, body in node.subgraphs for n in body.all_nodes() for out in n.outputs}
    for _, body in node.subgraphs:
        for inner in body.all_nodes():
            names += [name for name in inner.inputs if name and name not in inside]
            names += [n for _, deep in inner.subgraphs for n in deep.outputs if n not in inside]
        names += [name for name in body.outputs if name not in inside]
    return names


def _tensors(node: Node, pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs of schema names as pairs of tensors, where both are there."""
    found = []
    for source, out in pairs:
        sources = dict(zip(node.operator.inputs, node.inputs, strict=False))
        outs = dict(zip(node.operator.outputs, node.outputs, strict=False))
        if sources.get(source) and outs.get(out):
            found.append((sources[source], outs[out]))
    return found


def _may_overwrite(graph: Graph, groups: Groups, step: int, source: str, out: str) -> bool:
    first = groups.get(source, "")
    members = [name for name in groups if groups[name] == first]
    node = graph.nodes[step]
    before, after = graph.tensors[source], graph.tensors[out]
    return (
        first != ""
        and not any(name in graph.outputs for name in [*members, out])
        and not any(name in node.outputs for name in members)
        and not any(name in _reads(later) for later in graph.nodes[step + 1 :] for name in members)
        and len([name for name in _reads(node) if name in members]) == 1
        and is_known(before)
        and is_known(after)
        and before.shape == after.shape
        and before.dtype is not None
        and after.dtype is not None
        and before.dtype.bits == after.dtype.bits
    )


def _buffers(graph: Graph, groups: Groups, outside: Iterable[str]) -> dict[str, int]:
    """First tensor to bytes, of the buffers that are this graph's own."""
    sizes = {}
    for first in groups.values():
        members = [name for name in groups if groups[name] == first]
        if first and not set(members) & set(outside):
            sizes[first] = max(size_of(graph.tensors[name]) for name in members)
    return sizes


def _is_live(graph: Graph, groups: Groups, first: str, step: int) -> bool:
    members = {name for name in groups if groups[name] == first}
    touched = [
        place for place, node in enumerate(graph.nodes) if members & {*node.outputs, *_reads(node)}
    ]
    return touched[0] <= step and (step <= touched[-1] or bool(members & set(graph.outputs)))


def _same_as_outer(
    graph: Graph, node: Node, body: Graph, groups: Groups, outside: Iterable[str]
) -> list[str]:
    """The outputs of an If's branch that the If's own output, or a wider one, is counted for."""
    if node.op_type != "If":
        return []
    same = []
    for inner, outer in zip(body.outputs, node.outputs, strict=True):
        members = [name for name in groups if groups[name] == groups.get(outer)]
        if any(name in outside or is_known(graph.tensors[name]) for name in members):
            same.append(inner)
    return same

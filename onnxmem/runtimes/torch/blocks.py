"""The blocks that a network repeats: the layers of a transformer, residual blocks of convolutions.

``repeated_blocks`` finds those that frameworks run under ``torch.utils.checkpoint``, by the modules
that exporters write into a file. Where a file names none, the names of its weights do
(``transformer.h.3.mlp.c_fc.weight``): a block reaches from the first to the last node that reads
one of its weights, and to the nearest points around them that the fewest tensors cross.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate, pairwise

from onnxmem.model.graph import Graph, Node, Role
from onnxmem.model.module_paths import Modules, dotted_path, modules_of
from onnxmem.runtimes.torch.framework import CUDNN_RNN
from onnxmem.runtimes.torch.recurrent import RECURRENT
from onnxmem.runtimes.torch.strides import MATMUL_LIKE

COMPUTE_INTENSIVE = frozenset({*MATMUL_LIKE, *RECURRENT, CUDNN_RNN.op_type})
"""Operators of which every block has one, and whose outputs selective checkpointing saves."""

_NUMBERED = re.compile(r"(?P<stem>.*?)(?P<number>\d+)(?:[_@]\d+)?")
"""A module of a list: ``layers.3``, ``denselayer3``; called again it is ``layers.3_1``."""
_MAX_DEPTH = 32
"""Modules nest less deeply; names of a hostile file do not."""
_MIN_PRODUCTS = 2
"""Fewer are a single layer, of which a checkpoint saves nothing."""
_ALIKE = 0.5
"""Of the operators of the larger of two blocks: the first block of a network may have no
expansion, the first of a stage has a projection besides, and a shifted window its rolls."""
_COVERED = 0.8
"""Stages that consist of blocks up to a projection between them are not blocks themselves."""
_MOSTLY = 0.5
"""Of the nodes of a stage. A layer with more than that around its parts is a block: a weighed sum
of several maps, up- and downsampling (BiFPN)."""


@dataclass(frozen=True, slots=True)
class Block:
    """A module that is repeated in a network."""

    modules: Modules
    nodes: tuple[Node, ...]
    """In the order in which they run."""

    @property
    def name(self) -> str:
        """The module's path, as ``get_submodule`` takes it."""
        return dotted_path(self.modules)


def repeated_blocks(graph: Graph) -> tuple[Block, ...]:
    """The repeated modules of a graph, in the order in which they run; none is in another.

    Siblings in a list of modules are blocks if most of their operators are the same, each has two
    products at least, and each reads what the one before wrote. Experts and heads, which run side
    by side, are none, and a stage is none if it consists of blocks itself. A module without
    siblings is a block if it has all operators of one: the only block of a middle stage.
    """
    products = _products_of_inputs(graph)
    by_module = _by_module(graph.nodes)
    return _blocks_of(graph, by_module, products, _all_nodes) or _blocks_of(
        graph, _by_weights(graph), products, _num_between
    )


def _products_of_inputs(graph: Graph) -> frozenset[str]:
    """Name the products of what depends on the graph's inputs.

    Those of parameters alone make a layer's weight, as spectral_norm does.
    """
    found: set[str] = set()
    computed = set(graph.inputs)
    for node in graph.nodes:
        if not computed.isdisjoint(node.reads):
            computed.update(node.writes)
            if node.op_type in COMPUTE_INTENSIVE:
                found.add(node.name)
    return frozenset(found)


def _all_nodes(block: Block) -> int:
    return len(block.nodes)


def _num_between(block: Block) -> int:
    """How many nodes there are from the first to the last that reads a weight of a block."""
    prefix = f"{'.'.join(block.modules)}."
    found = [n for n, node in enumerate(block.nodes) if _has_prefix(node.reads, prefix)]
    return found[-1] - found[0] + 1 if found else 0


def _has_prefix(names: Iterable[str], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in names)


def _blocks_of(
    graph: Graph,
    by_module: Mapping[Modules, Sequence[Node]],
    products: frozenset[str],
    count: Callable[[Block], int],
) -> tuple[Block, ...]:
    """The blocks among some modules; ``count`` says how many nodes are certainly in one."""
    siblings: dict[Modules, list[Block]] = {}
    for modules, nodes in by_module.items():
        key = _list_of(modules)
        if key is not None and _num_within(products, nodes) >= _MIN_PRODUCTS:
            siblings.setdefault(key, []).append(Block(modules, tuple(nodes)))
    position = {node.name: index for index, node in enumerate(graph.nodes)}
    chosen: dict[Modules, Block] = {}
    # Innermost first: a list of modules takes the place of the blocks inside of its members,
    # unless these are nearly all of it.
    for members in sorted(siblings.values(), key=lambda each: -len(each[0].modules)):
        found = {block.modules: block for block in _alike(members)}
        stretch = _stretch(graph.nodes, found.values(), position)
        if len(found) < 2 or not _is_chain(stretch, tuple(found.values())):  # noqa: PLR2004 - repeated
            continue
        inner = {modules: block for modules, block in chosen.items() if _is_within(modules, found)}
        own = _own_blocks(found, inner)
        if not _consist_of(found.values(), own, products, count):
            chosen = {m: block for m, block in chosen.items() if m not in inner} | found
    chosen |= _like_blocks(by_module, products, chosen)
    return tuple(sorted(chosen.values(), key=lambda each: position[each.nodes[0].name]))


def _own_blocks(members: Collection[Modules], inner: Mapping[Modules, Block]) -> Collection[Block]:
    """The blocks inside of the members of a list that the members may consist of.

    Those of a list, ``blocks.0.1``; not a member's attributes: a residual block calls its two
    convolutions ``conv1`` and ``conv2``, a transformer's its attentions ``attn1`` and ``attn2``.
    """
    is_list = all(map(_is_member, members))
    return [block for modules, block in inner.items() if not is_list or _is_member(modules)]


def _is_member(modules: Modules) -> bool:
    """Whether a module is a member of a list, ``3`` or ``layers.3``; an attribute is ``conv3``."""
    numbered = _NUMBERED.fullmatch(modules[-1])
    return numbered is not None and numbered["stem"][-1:] in {"", "."}


def _like_blocks(
    by_module: Mapping[Modules, Sequence[Node]],
    products: frozenset[str],
    chosen: Mapping[Modules, Block],
) -> dict[Modules, Block]:
    """The modules outside of all blocks with the operators of one."""
    kinds = {_kind(block.nodes) for block in chosen.values()}
    around = {modules[:depth] for modules in chosen for depth in range(1, len(modules) + 1)}
    found: dict[Modules, Block] = {}
    # Outermost first: what a module around it is wrapped for is wrapped with it.
    for modules, nodes in sorted(by_module.items(), key=lambda each: len(each[0])):
        if modules in around or _is_within(modules, chosen) or _is_within(modules, found):
            continue
        if _num_within(products, nodes) >= _MIN_PRODUCTS and _kind(nodes) in kinds:
            found[modules] = Block(modules, tuple(nodes))
    return found


def _kind(nodes: Iterable[Node]) -> frozenset[tuple[str, int]]:
    return frozenset(Counter(node.op_type for node in nodes).items())


def blocks_named(graph: Graph, pattern: str) -> tuple[Block, ...]:
    """The outermost modules whose path matches a pattern, as ``encoder.layer.*``."""
    for by_module in (_by_module(graph.nodes), _by_weights(graph)):
        found = {
            modules: nodes
            for modules, nodes in by_module.items()
            if fnmatchcase(dotted_path(modules), pattern)
        }
        if found:
            break
    return tuple(
        Block(modules, tuple(nodes))
        for modules, nodes in found.items()
        if not _is_within(modules, found)
    )


def _list_of(modules: Modules) -> Modules | None:
    """What the members of one list of modules share; ``None`` for a module without a number."""
    numbered = _NUMBERED.fullmatch(modules[-1])
    return None if numbered is None else (*modules[:-1], numbered["stem"])


def _by_module(nodes: Iterable[Node]) -> Mapping[Modules, Sequence[Node]]:
    """The nodes inside of each module, at any depth."""
    found: dict[Modules, list[Node]] = {}
    for node in nodes:
        modules = modules_of(node)
        for depth in range(1, len(modules) + 1):
            found.setdefault(modules[:depth], []).append(node)
    return found


def _by_weights(graph: Graph) -> Mapping[Modules, Sequence[Node]]:
    """The nodes of each numbered module, by the names of the weights that they read."""
    # By module of a list: the first and the last node that reads one of its weights. What several
    # nodes read may be an initializer that the exporter merged with those of other modules.
    num_readers = Counter(name for node in graph.nodes for name in node.reads)
    spans: dict[Modules, tuple[int, int]] = {}
    readers: list[int] = []
    num_layers: list[int] = []
    for index, node in enumerate(graph.nodes):
        weights = [name for name in node.reads if _is_parameter(graph, name)]
        num_layers.append((num_layers[-1] if num_layers else 0) + bool(weights))
        own = [name for name in weights if num_readers[name] == 1]
        if own:
            readers.append(index)
        for path in {path for name in own for path in _numbered_modules(name)}:
            spans[path] = spans.get(path, (index, index))[0], index
    lists: dict[Modules, list[Modules]] = {}
    for path in spans:
        lists.setdefault(_list_of(path) or path, []).append(path)
    # Points by how many tensors cross them, and how many nodes before them read a weight.
    points = list(zip(_crossing_counts(graph), num_layers, strict=True))
    return {
        path: nodes
        for members in lists.values()
        for path, nodes in _members(graph.nodes, {m: spans[m] for m in members}, readers, points)
    }


def _is_parameter(graph: Graph, name: str) -> bool:
    return graph.tensors[name].role is Role.WEIGHT and "." in name


def _numbered_modules(weight: str) -> Iterator[Modules]:
    """The members of lists of modules around a weight: ``h.3`` of ``h.3.mlp.weight``."""
    parts = tuple(weight.split(".")[:_MAX_DEPTH])
    paths = (parts[:end] for end in range(1, len(parts)))
    yield from (path for path in paths if _list_of(path) is not None)


def _members(
    nodes: Sequence[Node],
    spans: Mapping[Modules, tuple[int, int]],
    readers: Sequence[int],
    points: Sequence[tuple[int, int]],
) -> Iterator[tuple[Modules, Sequence[Node]]]:
    """The nodes of the members of one list of modules, if they run one after another."""
    ordered = sorted(spans.items(), key=lambda each: each[1])
    if any(last >= first for (_, (_, last)), (_, (first, _)) in pairwise(ordered)):
        return
    # A member ends where the fewest tensors cross: of several such points at the last, for what
    # reads no weight completes it, as the activation behind a residual sum.
    starts, ends = {}, {}
    for (path, (_, last)), (following, (first, _)) in pairwise(ordered):
        cut = min(range(last, first), key=lambda index: (points[index], -index))
        ends[path], starts[following] = cut - last, first - cut - 1
    # The first member begins and the last one ends as its neighbor does, unless a node that reads
    # another weight comes between.
    for index, (path, (first, last)) in enumerate(ordered):
        before = readers[bisect_left(readers, first) - 1] if first > readers[0] else -1
        after = readers[bisect_right(readers, last)] if last < readers[-1] else len(nodes)
        lead = starts.get(path, starts.get(ordered[min(1, len(ordered) - 1)][0], 0))
        rest = ends.get(path, ends.get(ordered[index - 1][0], 0))
        yield path, nodes[max(before + 1, first - lead) : min(after, last + 1 + rest)]


def _crossing_counts(graph: Graph) -> list[int]:
    """How many tensors are written before the point after each node and read after it."""
    last_read: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        last_read |= dict.fromkeys(node.reads, index)
    changes = [0] * (len(graph.nodes) + 1)
    for index, node in enumerate(graph.nodes):
        for name in node.writes:
            changes[index] += 1
            changes[max(index, last_read.get(name, index))] -= 1
    return list(accumulate(changes[:-1]))


def _alike(members: Iterable[Block]) -> list[Block]:
    """The largest group of siblings that resemble one of them."""
    # Most siblings have the same operators, so that few kinds are compared with each other.
    kinds: dict[frozenset[tuple[str, int]], list[Block]] = {}
    for member in members:
        kinds.setdefault(_kind(member.nodes), []).append(member)
    counts = [(Counter(dict(kind)), blocks) for kind, blocks in kinds.items()]
    groups = (
        [
            block
            for other, blocks in counts
            if (count & other).total() >= _ALIKE * max(count.total(), other.total())
            for block in blocks
        ]
        for count, _ in counts
    )
    return max(groups, key=len)


def _is_chain(nodes: Iterable[Node], blocks: Sequence[Block]) -> bool:
    """Whether at least half of the blocks lie on one path through the graph."""
    block_of = {node.name: index for index, block in enumerate(blocks) for node in block.nodes}
    # By tensor: how many blocks the longest path to it has entered, and the block that wrote it.
    entered: dict[str, tuple[int, int | None]] = {}
    longest = 0
    for node in nodes:
        block = block_of.get(node.name)
        counts = [0 if block is None else 1]
        for name in node.reads:
            count, writer = entered.get(name, (0, None))
            counts.append(count + (block is not None and writer != block))
        most = max(counts)
        longest = max(longest, most)
        entered.update((name, (most, block)) for name in node.writes)
    return longest >= max(2, len(blocks) / 2)


def _is_within(modules: Modules, outer: Collection[Modules]) -> bool:
    """Whether a module is inside of one of others."""
    return any(modules[:depth] in outer for depth in range(1, len(modules)))


def _stretch(
    nodes: Sequence[Node], blocks: Iterable[Block], position: Mapping[str, int]
) -> Sequence[Node]:
    """The nodes from the first to the last of some blocks."""
    ends = [position[node.name] for block in blocks for node in (block.nodes[0], block.nodes[-1])]
    return nodes[min(ends) : max(ends) + 1]


def _consist_of(
    stages: Collection[Block],
    inner: Collection[Block],
    products: frozenset[str],
    count: Callable[[Block], int],
) -> bool:
    """Whether stages are no more than a row of blocks."""
    is_mostly = sum(map(count, inner)) >= _MOSTLY * sum(map(_all_nodes, stages))
    return is_mostly and _num_in(products, inner) >= _COVERED * _num_in(products, stages)


def _num_in(names: frozenset[str], blocks: Iterable[Block]) -> int:
    return sum(_num_within(names, block.nodes) for block in blocks)


def _num_within(names: frozenset[str], nodes: Iterable[Node]) -> int:
    return sum(node.name in names for node in nodes)

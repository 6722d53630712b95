"""The blocks that a network repeats: the layers of a transformer, residual blocks of convolutions.

``repeated_blocks`` finds those that frameworks run under ``torch.utils.checkpoint``, by the modules
that exporters write into a file.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from onnxmem.model.graph import Graph, Node
from onnxmem.model.module_paths import Modules, dotted_path, modules_of
from onnxmem.runtimes.torch.framework import CUDNN_RNN
from onnxmem.runtimes.torch.recurrent import RECURRENT
from onnxmem.runtimes.torch.strides import MATMUL_LIKE

COMPUTE_INTENSIVE = frozenset({*MATMUL_LIKE, *RECURRENT, CUDNN_RNN.op_type})
"""Operators of which every block has one, and whose outputs selective checkpointing saves."""

_NUMBERED = re.compile(r"(?P<stem>.*?)(?P<number>\d+)(?:[_@]\d+)?")
"""A module of a list: ``layers.3``, ``denselayer3``; called again it is ``layers.3_1``."""
_MIN_PRODUCTS = 2
"""Fewer are a single layer, of which a checkpoint saves nothing."""
_ALIKE = 0.5
"""Of the operators of the larger of two blocks: the first block of a network may have no
expansion, the first of a stage has a projection besides, and a shifted window its rolls."""
_COVERED = 0.8
"""Stages that consist of blocks up to a projection between them are not blocks themselves."""


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
    siblings: dict[tuple[str, ...], list[Block]] = {}
    by_module = _by_module(graph.nodes)
    for modules, nodes in by_module.items():
        numbered = _NUMBERED.fullmatch(modules[-1])
        if numbered is not None and _num_products(nodes) >= _MIN_PRODUCTS:
            key = (*modules[:-1], numbered["stem"])
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
        if _products(inner.values()) < _COVERED * _products(found.values()):
            chosen = {m: block for m, block in chosen.items() if m not in inner} | found
    chosen |= _like_blocks(by_module, chosen)
    return tuple(sorted(chosen.values(), key=lambda each: position[each.nodes[0].name]))


def _like_blocks(
    by_module: Mapping[Modules, list[Node]], chosen: Mapping[Modules, Block]
) -> dict[Modules, Block]:
    """The modules outside of all blocks with the operators of one."""
    kinds = {_kind(block.nodes) for block in chosen.values()}
    around = {modules[:depth] for modules in chosen for depth in range(1, len(modules) + 1)}
    found: dict[Modules, Block] = {}
    # Outermost first: what a module around it is wrapped for is wrapped with it.
    for modules, nodes in sorted(by_module.items(), key=lambda each: len(each[0])):
        if modules in around or _is_within(modules, chosen) or _is_within(modules, found):
            continue
        if _num_products(nodes) >= _MIN_PRODUCTS and _kind(nodes) in kinds:
            found[modules] = Block(modules, tuple(nodes))
    return found


def _kind(nodes: Iterable[Node]) -> frozenset[tuple[str, int]]:
    return frozenset(Counter(node.op_type for node in nodes).items())


def blocks_named(graph: Graph, pattern: str) -> tuple[Block, ...]:
    """The outermost modules whose path matches a pattern, as ``encoder.layer.*``."""
    found = {
        modules: nodes
        for modules, nodes in _by_module(graph.nodes).items()
        if fnmatchcase(dotted_path(modules), pattern)
    }
    return tuple(
        Block(modules, tuple(nodes))
        for modules, nodes in found.items()
        if not _is_within(modules, found)
    )


def _by_module(nodes: Iterable[Node]) -> Mapping[Modules, list[Node]]:
    """The nodes inside of each module, at any depth."""
    found: dict[Modules, list[Node]] = {}
    for node in nodes:
        modules = modules_of(node)
        for depth in range(1, len(modules) + 1):
            found.setdefault(modules[:depth], []).append(node)
    return found


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


def _products(blocks: Iterable[Block]) -> int:
    return sum(_num_products(block.nodes) for block in blocks)


def _num_products(nodes: Iterable[Node]) -> int:
    return sum(node.op_type in COMPUTE_INTENSIVE for node in nodes)

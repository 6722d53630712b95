"""Names that are told apart where scopes and nodes would share them."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from onnxmem.model.graph import Graph


def unique_name(name: str, taken: dict[str, int]) -> str:
    """A node's name, numbered where another node has it already.

    ``taken`` maps each name that is taken to the last number that was tried with it.
    """
    if name not in taken:
        taken[name] = 1
        return name
    candidate, number = name, taken[name]
    while candidate in taken:
        number += 1
        candidate = f"{name}#{number}"
    taken[name] = number
    taken.setdefault(candidate, 1)
    return candidate


def outer_reads(inner: Iterable[tuple[str, Graph]], offered: Sequence[str]) -> tuple[str, ...]:
    """Names that the subgraphs read of those that the enclosing graphs offer."""
    names: dict[str, None] = {}
    for _, graph in inner:
        reads = (*(name for node in graph.nodes for name in node.reads), *graph.outputs)
        names.update(dict.fromkeys(name for name in reads if _first_from(name, offered) == name))
    return tuple(names)


def free_prefix(text: str, offered: Sequence[str]) -> str:
    """The scope of a subgraph, numbered where a tensor outside has a name that begins like it."""
    prefix, number = f"{text}/", 1
    while _first_from(prefix, offered).startswith(prefix):
        number += 1
        prefix = f"{text}#{number}/"
    return prefix


def _first_from(text: str, names: Sequence[str]) -> str:
    """The first of the sorted names that is not before a text; ``""`` where there is none."""
    place = bisect_left(names, text)
    return names[place] if place < len(names) else ""

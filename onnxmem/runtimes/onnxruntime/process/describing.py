"""The terms of a session, read off its model as the file has it and as the optimiser left it."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from onnxmem.allocators.bfc_arena import BfcArena
from onnxmem.model import Graph, Node, Tensor
from onnxmem.runtimes.onnxruntime.prepacking import Prepacked, initializers
from onnxmem.runtimes.onnxruntime.process.heap import PAGE_BYTES
from onnxmem.runtimes.onnxruntime.process.made_weights import made_weights
from onnxmem.runtimes.onnxruntime.process.terms import (
    LoadTerms,
    PackedWeight,
    Region,
    StoredWeight,
)

_TAKES_ROWS: Final = ("Gather", "GatherBlockQuantized")


def load_terms(
    model: Graph, session: Graph, packed: Iterable[Prepacked], file_bytes: int
) -> LoadTerms:
    """The terms of a load, but for the arena's regions; bytes that are unknown count as nothing.

    ``model`` is the file's graph, ``session`` the optimised one, ``packed`` what its kernels pack,
    and ``file_bytes`` the size of the file without the files of its external weights.
    """
    made = made_weights(model, session)
    return LoadTerms(
        file_bytes=file_bytes,
        num_nodes=sum(node.onnx_op != "Constant" for node in model.all_nodes()),
        stored=tuple(
            StoredWeight(name, tensor.size_bytes or 0, tensor.is_external)
            for name, tensor in initializers(model).items()
        ),
        made=made.rounds,
        kept=made.kept,
        packed=tuple(_packed(model, session, tuple(packed))),
    )


def arena_regions(arena: BfcArena) -> tuple[Region, ...]:
    """The regions of an arena, in the order in which they were added."""
    return tuple(
        Region(size, arena.touched[number].num_bytes if number in arena.touched else 0)
        for number, size in sorted(arena.regions.items())
    )


def mapped_bytes(model: Graph, session: Graph, packed: Iterable[Prepacked]) -> int:
    """Pages of external weights that runs read in, each weight in a mapping of its own.

    A Gather reads a row for each index; every other kernel reads all. Weights that a kernel has
    packed were read at load, and count there.
    """
    return PAGE_BYTES * sum(mapped_pages(model, session, packed).values())


def mapped_pages(model: Graph, session: Graph, packed: Iterable[Prepacked]) -> dict[str, int]:
    """The same by weight, in pages."""
    stored = initializers(model)
    done = {each.weight for each in packed}
    pages: Counter[str] = Counter()
    for node in session.all_nodes():
        for place, name in enumerate(node.inputs):
            tensor = stored.get(name)
            if tensor is not None and tensor.is_external and name not in done:
                by_rows = node.op_type in _TAKES_ROWS and place == 0
                read = _row_pages(session, node, tensor) if by_rows else _pages(tensor)
                pages[name] = max(pages[name], read)
    return dict(pages)


def _pages(tensor: Tensor) -> int:
    return -(-(tensor.size_bytes or 0) // PAGE_BYTES)


def _row_pages(graph: Graph, node: Node, tensor: Tensor) -> int:
    """Pages of as many rows as there are indices: a bound, for indices may be equal."""
    indices = graph.tensors.get(node.inputs[1]) if len(node.inputs) > 1 else None
    count = indices.num_elements if indices is not None else None
    rows = tensor.shape[0] if tensor.shape else None
    if count is None or not isinstance(rows, int) or rows == 0:
        return _pages(tensor)
    row_pages = -(-(tensor.size_bytes or 0) // (rows * PAGE_BYTES))
    return min(count * row_pages, _pages(tensor))


def _packed(model: Graph, session: Graph, packed: tuple[Prepacked, ...]) -> Iterator[PackedWeight]:
    """In the order of node indices: the file's nodes as it has them, then those that are new."""
    places = {node.name: place for place, node in enumerate(model.all_nodes())}
    readers = Counter(name for node in session.all_nodes() for name in node.inputs if name)
    seen: Counter[str] = Counter()
    for each in sorted(packed, key=lambda each: places.get(each.node, len(places))):
        seen[each.weight] += each.drops_original
        yield PackedWeight(
            each.weight,
            session.tensors[each.weight].size_bytes or 0,
            each.size_bytes or each.passing_bytes,
            is_reserved=each.is_reserved,
            is_kept=each.size_bytes > 0,
            is_last=each.drops_original and seen[each.weight] == readers[each.weight],
        )

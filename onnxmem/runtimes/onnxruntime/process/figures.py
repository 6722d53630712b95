"""The figures of a process, from a model, its session and what the arena did.

The optimizer makes weights, which take memory while it does. Which ones, of which others and in
which order is told by the two graphs: a node of constants that the optimized graph has not was
folded, a node behind a convolution may have gone into its filter, and a weight that the file has
not is new. Names tell what a new weight was made of, and where they don't, sizes do.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from onnxmem.model.graph import Graph, Node, Tensor
from onnxmem.runtimes.onnxruntime.kernels.prepacking import Prepacked, initializers, prepacked
from onnxmem.runtimes.onnxruntime.kernels.registry import kernel_of
from onnxmem.runtimes.onnxruntime.prediction import ArenaFigures
from onnxmem.runtimes.onnxruntime.process.heap import PAGE_BYTES
from onnxmem.runtimes.onnxruntime.process.loading import (
    Loading,
    LoadTerms,
    MadeWeight,
    Making,
    PackedWeight,
    ProcessTerms,
    StoredWeight,
    process_parts,
)
from onnxmem.runtimes.onnxruntime.session_graph.loaded import SessionGraph
from onnxmem.runtimes.onnxruntime.session_graph.opening import ModelAt
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

_CONVOLUTIONS: Final = ("Conv", "FusedConv")
_CHANGES_FILTER: Final = ("BatchNormalization", "Mul")
"""``core/optimizer/conv_bn_fusion.cc``, ``conv_mul_fusion.cc``."""
_CHANGES_BIAS: Final = "Add"
"""``core/optimizer/conv_add_fusion.cc``."""
_MAX_ROUNDS: Final = 10
"""A level is repeated until nothing changes, but no more often (``inference_session.cc``)."""
_STAYS_QUANTIZED: Final = "DequantizeLinear"
"""It is folded last, and only where no operator that reads quantized weights took it."""
_NCHWC: Final = "com.microsoft.nchwc"

Sizes = Mapping[str, int]
Weights = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """Resident bytes of a process with one session, on CPU."""

    load_peak_bytes: int
    """The most that it grows while the session is made."""
    process_parts: tuple[tuple[str, int], ...]
    """All of it after the third run, part by part."""

    @property
    def process_bytes(self) -> int:
        """All of it together."""
        return sum(size_bytes for _, size_bytes in self.process_parts)


def process_figures(
    model: ModelAt, session: SessionGraph, options: SessionOptions, arena: ArenaFigures
) -> ProcessFigures:
    """Work out what the process takes beside and with its arena; bytes unknown count as nothing."""
    terms = process_terms(model, session, options, arena)
    loaded = Loading(terms.load).run()
    return ProcessFigures(loaded.peak_bytes, process_parts(terms, loaded))


def process_terms(
    model: ModelAt, session: SessionGraph, options: SessionOptions, arena: ArenaFigures
) -> ProcessTerms:
    """What the figures of the process are reckoned from."""
    graph = model.bound.graph
    packed = () if options.disable_prepacking else prepacked(session.graph, session.facts)
    load = load_terms(graph, session.graph, packed, model.file.file_bytes)
    return ProcessTerms(
        load=replace(load, regions=arena.loaded_regions),
        regions=arena.steady_regions,
        mapped_bytes=mapped_bytes(graph, session.graph, packed),
        feed_bytes=sum(graph.tensors[name].size_bytes or 0 for name in graph.inputs),
    )


def load_terms(
    model: Graph, session: Graph, packed: Iterable[Prepacked], file_bytes: int
) -> LoadTerms:
    """The terms of a load, but for the arena's regions; bytes that are unknown count as nothing.

    ``model`` is the file's graph, ``session`` the optimized one, ``packed`` what its kernels pack,
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
        for index, name in enumerate(node.inputs):
            tensor = stored.get(name)
            if tensor is not None and tensor.is_external and name not in done:
                by_rows = index == 0 and kernel_of(node.op_type, node.domain).reads_rows
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
    indices = {node.name: index for index, node in enumerate(model.all_nodes())}
    readers = Counter(name for node in session.all_nodes() for name in node.inputs if name)
    seen: Counter[str] = Counter()
    for each in sorted(packed, key=lambda each: indices.get(each.node, len(indices))):
        seen[each.weight] += each.drops_original
        yield PackedWeight(
            each.weight,
            session.tensors[each.weight].size_bytes or 0,
            each.size_bytes or each.transient_bytes,
            is_reserved=each.is_reserved,
            is_kept=each.size_bytes > 0,
            is_last=each.drops_original and seen[each.weight] == readers[each.weight],
        )


@dataclass(frozen=True, slots=True)
class Made:
    """The weights that an optimizer made."""

    rounds: tuple[tuple[MadeWeight, ...], ...]
    """What nothing reads when a round ends is freed."""
    kept: frozenset[str]
    """The weights that are left in the end."""


def made_weights(model: Graph, session: Graph) -> Made:
    """What became of a model's weights, ``session`` being the optimized graph."""
    stored, left = initializers(model), initializers(session)
    folding = _Folding(model, session)
    folded = tuple(folding.made())
    at_hand = {name: _bytes(tensor) for name, tensor in stored.items()}
    at_hand |= {each.name: each.size_bytes for each in folded}
    filters = _Filters(model, session, folding, at_hand)
    first, *later = (*filters.fused(), ())
    new = {
        name: making
        for name, making in _readings(session)
        if name in left and at_hand.get(name) != _bytes(left[name])
    }
    layout = tuple(_reordered(new, left, filters.sizes))
    used = {each.source for each in layout}
    final = {n: size for n, size in filters.sizes.items() if n not in used and n not in at_hand}
    others = tuple(_others(new, left, stored, final))
    rounds = ((*folded, *others, *first), *later, layout)
    return Made(tuple(filter(None, rounds)), frozenset({*left, *final}))


class _Folding:
    """The constants of a model, by the node that is left of equal ones.

    A node is folded where all its inputs are constants and the optimized graph has it no more. The
    shape of a tensor is a constant where its dims are numbers. Source:
    ``core/optimizer/constant_folding.cc`` (``ConstantFolding::ApplyImpl``) and
    ``common_subexpression_elimination.cc``.
    """

    def __init__(self, model: Graph, session: Graph) -> None:
        self._model = model
        self._remaining = {name for node in session.all_nodes() for name in node.writes}
        self._left = initializers(session)
        self._stored = initializers(model)
        self._same: dict[str, str] = {}
        self._known: dict[object, str] = {}
        for name in self._stored:
            self._join(name, self._content(name))

    def latest(self, name: str) -> str:
        """The tensor that stands for a name, where equal ones were merged."""
        return self._same.get(name, name)

    def made(self) -> Iterator[MadeWeight]:
        """What the folded nodes make, in the order of the file."""
        for node in self._model.all_nodes():
            if not self._is_folded(node):
                continue
            inputs = tuple(self.latest(name) for name in node.inputs)
            key = (node.op_type, inputs, repr(sorted(node.attributes.items())))
            for index, name in enumerate(node.outputs):
                if name and self._join(name, (key, index)):
                    yield self._row(node, name)

    def _is_folded(self, node: Node) -> bool:
        if not node.writes or any(name in self._remaining for name in node.writes):
            return False
        if node.op_type == _STAYS_QUANTIZED and node.outputs[0] not in self._left:
            return False
        if node.onnx_op in ("Shape", "Constant"):
            return True
        reads = node.reads
        return bool(reads) and all(name in self._same for name in reads)

    def _join(self, name: str, key: object) -> bool:
        """Whether a constant is the first of its content."""
        first = self._known.setdefault(key, name)
        self._same[name] = first
        return first == name

    def _content(self, name: str) -> object:
        values = self._model.values.get(name)
        tensor = self._stored[name]
        return name if values is None else (tensor.dtype, tensor.shape, values)

    def _row(self, node: Node, name: str) -> MadeWeight:
        known = {
            read: self._stored[read].size_bytes or 0 for read in node.reads if read in self._stored
        }
        source = max(known, key=known.__getitem__, default=None)
        size = self._model.tensors[name].size_bytes or 0
        source_bytes = 0 if source is None else known[source]
        return MadeWeight(name, size, Making.FOLDED, source, source_bytes)


@dataclass(slots=True)
class _Filter:
    """A constant filter, as far as fusions have come."""

    name: str
    size_bytes: int
    output: str
    """What its convolution puts out by now."""


class _Filters:
    """The constant filters of a model, under their latest names."""

    def __init__(
        self, model: Graph, session: Graph, folding: _Folding, at_hand: Mapping[str, int]
    ) -> None:
        self._folding, self._at_hand = folding, at_hand
        self._remaining = {
            (node.op_type, name) for node in session.all_nodes() for name in node.writes
        }
        self._readers: dict[str, list[Node]] = {}
        self._filters: list[_Filter] = []
        for node in model.all_nodes():
            for name in node.reads:
                self._readers.setdefault(name, []).append(node)
            if node.op_type in _CONVOLUTIONS and len(node.inputs) > 1 and node.writes:
                name = folding.latest(node.inputs[1])
                if name in at_hand:
                    self._filters.append(_Filter(name, at_hand[name], node.outputs[0]))

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each, by name."""
        return {each.name: each.size_bytes for each in self._filters}

    def fused(self) -> tuple[tuple[MadeWeight, ...], ...]:
        """Filters into which the node behind their convolution went, one node in each round."""
        rounds = []
        for _ in range(_MAX_ROUNDS):
            made = tuple(self._round())
            if not made:
                break
            rounds.append(made)
        return tuple(rounds)

    def _round(self) -> Iterator[MadeWeight]:
        for each in self._filters:
            behind = self._behind(each.output)
            while behind is not None and behind.op_type == _CHANGES_BIAS:
                each.output = behind.outputs[0]
                behind = self._behind(each.output)
            if behind is not None:
                source, each.output = each.name, behind.outputs[0]
                each.name = f"{source} with {each.output}"
                yield MadeWeight(each.name, each.size_bytes, Making.FUSED, source, each.size_bytes)

    def _behind(self, output: str) -> Node | None:
        """The only reader of an output, where it reads constants beside and is gone."""
        readers = self._readers.get(output, [])
        if len(readers) != 1 or readers[0].op_type not in (*_CHANGES_FILTER, _CHANGES_BIAS):
            return None
        node = readers[0]
        others = (self._folding.latest(name) for name in node.reads if name != output)
        is_gone = (node.op_type, node.outputs[0]) not in self._remaining
        return node if is_gone and all(name in self._at_hand for name in others) else None


class _Pool:
    """Weights, each of which is the source of one other."""

    def __init__(self, sizes: Sizes) -> None:
        self._rows = sorted((size, index, name) for index, (name, size) in enumerate(sizes.items()))

    def take(self, size_bytes: int) -> str | None:
        """The first of a size, or else the largest smaller one: channels may be padded."""
        end = bisect_right(self._rows, (size_bytes, inf, ""))
        return self.take_equal(self._rows[end - 1][0]) if end else None

    def take_equal(self, size_bytes: int) -> str | None:
        """The first of a size."""
        index = bisect_left(self._rows, (size_bytes, -1, ""))
        if index == len(self._rows) or self._rows[index][0] != size_bytes:
            return None
        return self._rows.pop(index)[2]


def _readings(session: Graph) -> Iterator[tuple[str, Making]]:
    """What nodes read, and how that was made where it is new."""
    for node in session.all_nodes():
        for index, name in enumerate(node.inputs):
            is_filter = node.op_type in _CONVOLUTIONS and index == 1
            layout = Making.REORDERED if node.domain == _NCHWC else Making.FUSED
            yield name, layout if is_filter else Making.FOLDED


def _reordered(new: Mapping[str, Making], left: Weights, filters: Sizes) -> Iterator[MadeWeight]:
    pool = _Pool(filters)
    for name, making in new.items():
        if making is Making.REORDERED:
            size = _bytes(left[name])
            source = pool.take(size)
            known = size if source is None else filters[source]
            yield MadeWeight(name, size, making, source, known)


def _others(
    new: Mapping[str, Making], left: Weights, stored: Weights, fused: Sizes
) -> Iterator[MadeWeight]:
    """New weights of no known maker; a filter that a fusion made is not made again."""
    made = _Pool(fused)
    gone = _Pool({name: _bytes(tensor) for name, tensor in stored.items() if name not in left})
    for name, making in new.items():
        size = _bytes(left[name])
        if making is Making.REORDERED or (making is Making.FUSED and made.take_equal(size)):
            continue
        source = gone.take_equal(size)
        yield MadeWeight(name, size, Making.FOLDED, source, 0 if source is None else size)


def _bytes(tensor: Tensor) -> int:
    return tensor.size_bytes or 0

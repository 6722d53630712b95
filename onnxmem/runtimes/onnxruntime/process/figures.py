"""The resident memory of the process of a session on the CPU.

The graph optimizer creates weights, which needs memory during the load. They are derived from the
graph of the file and the optimized graph: a node of constants that the optimized graph lacks was
folded, a node after a convolution may be fused into its filter, and a weight that the file lacks is
new. The source of a new weight follows from names, or else from sizes.
"""

import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Final

from onnxmem.model.graph import Graph, Node, Tensor
from onnxmem.runtimes.onnxruntime.kernels.prepacking import Prepacked, initializers, prepacked
from onnxmem.runtimes.onnxruntime.kernels.registry import kernel_of
from onnxmem.runtimes.onnxruntime.prediction import PlannedSession
from onnxmem.runtimes.onnxruntime.process.baselines import Baseline, baseline_of
from onnxmem.runtimes.onnxruntime.process.heap import PAGE_BYTES
from onnxmem.runtimes.onnxruntime.process.loading import (
    INPUTS,
    CreatedWeight,
    Loading,
    LoadSpec,
    PackedWeight,
    Parts,
    Region,
    StoredWeight,
    WeightOrigin,
    arena_regions,
    process_parts,
)
from onnxmem.runtimes.onnxruntime.session_options import Storage

_CONVOLUTIONS: Final = ("Conv", "FusedConv")
_CHANGES_FILTER: Final = ("BatchNormalization", "Mul")
"""``core/optimizer/conv_bn_fusion.cc``, ``conv_mul_fusion.cc``."""
_CHANGES_BIAS: Final = "Add"
"""``core/optimizer/conv_add_fusion.cc``."""
_MAX_ROUNDS: Final = 10
"""A level is repeated until nothing changes, at most so often (``inference_session.cc``)."""
_STAYS_QUANTIZED: Final = "DequantizeLinear"
"""Folded last, and only if no operator on quantized weights absorbed it."""
_NCHWC: Final = "com.microsoft.nchwc"
_FOLIO_PAGES: Final = (2 << 20) // PAGE_BYTES
"""Linux makes more resident than the page that is read: the 64 KiB around it
(``fault_around_bytes`` of ``mm/memory.c``), or the whole folio of the page cache
(``filemap_map_pages`` of ``mm/filemap.c``), which is at most 2 MiB on x86-64. Kernel, filesystem
and whoever wrote the file decide; 2 MiB were measured around one row with Linux 6.18 and ext4."""
_LEAST_PERCENT: Final = 5
LEAST_EXTERNAL_BYTES: Final = 1024
"""The default of ``onnx.save_model``: smaller weights stay in the model file."""

Sizes = Mapping[str, int]
Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class HostProcess:
    """The process of a session on the CPU; its load is simulated on demand."""

    graph: Graph
    """Of the file."""
    file_bytes: int
    session: PlannedSession

    @property
    def resident(self) -> "Resident":
        """Its resident memory at the dims of the graph."""
        graph, session = self._stored.graph, self.session.recorded.graph
        return Resident(
            self,
            feed_bytes=sum(graph.tensors[name].size_bytes or 0 for name in graph.inputs),
            pages=mapped_pages(graph, session.graph, self._packed),
        )

    def pages_of(self, session: Graph) -> "Mapping[str, ReadPages]":
        """Pages of mapped weights, by weight, that a run of this graph of the session reads."""
        return read_pages(self._stored.graph, session, self._packed)

    @property
    def baseline(self) -> Baseline:
        """Of the release that optimized the graph."""
        return baseline_of(self.session.recorded.graph.optimized.graph_optimizer)

    @property
    def load_peak_bytes(self) -> int:
        """The peak by which it grows while the session is created."""
        _, loaded = self.loaded
        return loaded.peak_bytes

    @cached_property
    def loaded(self) -> tuple[LoadSpec, Loading]:
        """The simulated load; it is the same at every batch."""
        stored, options = self._stored, self.session.options
        graph = self.session.recorded.graph.graph
        spec = load_spec(stored.graph, graph, self._packed, stored.file_bytes)
        spec = replace(
            spec,
            regions=arena_regions(self.session.loaded_arena()),
            malloc_threshold_bytes=options.malloc_threshold_bytes,
            trims_heap=options.trims_heap,
            baseline=self.baseline,
        )
        return spec, Loading(spec).run()

    @cached_property
    def outcomes(self) -> tuple[Loading, ...]:
        """The load in each state of the heap that small blocks of the program may leave.

        Whether the ends of aligned blocks merge decides if a freed weight's place serves the next
        one of its size. From none that stay apart to all of them.
        """
        spec, loaded = self.loaded
        ends = {spec.baseline.unmerged_ends: loaded}
        # The two extremes: every freed end merges with its neighbors, or none does.
        for number in (0, sys.maxsize):
            other = replace(spec, baseline=replace(spec.baseline, unmerged_ends=number))
            ends[number] = Loading(other).run()
        return tuple(ends.values())

    @cached_property
    def _stored(self) -> "StoredModel":
        """The model's files as the session loads them."""
        stored = StoredModel(self.graph, self.file_bytes)
        weights = self.session.options.weights
        return stored if weights is None else stored.with_weights(weights)

    @cached_property
    def _packed(self) -> tuple[Prepacked, ...]:
        session = self.session.recorded.graph
        is_packing = not self.session.options.disable_prepacking
        return tuple(prepacked(session.graph, session.facts)) if is_packing else ()


@dataclass(frozen=True, slots=True)
class StoredModel:
    """The files of a model, as far as its load depends on them."""

    graph: Graph
    file_bytes: int
    """Of the model file, without external weights."""

    def with_weights(self, storage: Storage) -> "StoredModel":
        """The same weights in the model file, or those of at least 1 KiB in a file beside it.

        The data of Constant nodes stay where they are, as with ``onnx.save_model``.
        """
        is_external = storage == "external"
        computed = {name for node in self.graph.all_nodes() for name in node.writes}
        moved = {
            name: replace(tensor, is_external=is_external)
            for name, tensor in initializers(self.graph).items()
            if name not in computed and tensor.is_external is not is_external
            if not is_external or (tensor.size_bytes or 0) >= LEAST_EXTERNAL_BYTES
        }
        moved_bytes = sum(_bytes(tensor) for tensor in moved.values())
        graph = self.graph.with_tensors({**self.graph.tensors, **moved})
        file_bytes = self.file_bytes + (-moved_bytes if is_external else moved_bytes)
        # The size of the file is the caller's, and may be less than the weights of an edited graph.
        return StoredModel(graph, max(file_bytes, 0))


@dataclass(frozen=True, slots=True)
class Resident:
    """The resident memory of a process with one session."""

    process: HostProcess
    feed_bytes: int
    """The caller's inputs."""
    pages: Mapping[str, int]
    """Pages of mapped external weights that runs read, by weight."""

    def total_bytes(self, regions: tuple[Region, ...]) -> int:
        """All of it, with an arena of these regions."""
        return sum(size_bytes for _, size_bytes in self.parts(regions))

    def range_bytes(self, regions: tuple[Region, ...]) -> tuple[int, int] | None:
        """The least and the most of it, by how the heap reuses the places of freed weights.

        ``None``: they differ by no more than the figure's error.
        """
        totals = [self._total(regions, loaded) for loaded in self.process.outcomes]
        least, most = min(totals), max(totals)
        return (least, most) if 100 * (most - least) > _LEAST_PERCENT * most else None

    def more_bytes(self, regions: tuple[Region, ...]) -> int:
        """How much more than the total the most of it is."""
        found = self.range_bytes(regions)
        return 0 if found is None else found[1] - self.total_bytes(regions)

    def parts(self, regions: tuple[Region, ...]) -> Parts:
        """The same by part; the parts add up to the total."""
        return self._parts(regions, self.process.loaded[1])

    def _total(self, regions: tuple[Region, ...], loaded: Loading) -> int:
        return sum(size_bytes for _, size_bytes in self._parts(regions, loaded))

    def _parts(self, regions: tuple[Region, ...], loaded: Loading) -> Parts:
        grown = loaded.with_regions(regions)
        mapped_bytes = PAGE_BYTES * sum(self.pages.values())
        parts = process_parts([grown], grown.heap, mapped_bytes)
        return (*parts, (INPUTS, self.feed_bytes))


def load_spec(
    model: Graph, session: Graph, packed: Iterable[Prepacked], file_bytes: int
) -> LoadSpec:
    """The weights of a load, without the arena's regions; unknown bytes count as 0.

    ``model`` is the graph of the file, ``session`` the optimized graph, ``packed`` what its kernels
    prepack, and ``file_bytes`` the size of the file without its external weights.
    """
    created = created_weights(model, session)
    return LoadSpec(
        file_bytes=file_bytes,
        num_nodes=sum(1 for _ in session.all_nodes()),
        num_weights=len(initializers(session)),
        stored=tuple(
            StoredWeight(name, tensor.size_bytes or 0, tensor.is_external)
            for name, tensor in initializers(model).items()
        ),
        created=created.rounds,
        remaining=created.remaining,
        packed=tuple(_packed(model, session, tuple(packed))),
    )


@dataclass(frozen=True, slots=True)
class ReadPages:
    """Pages of mapped weights that runs make resident."""

    least: int
    """If all indices of a Gather are equal: those of one row."""
    pages: int
    """If all are different, a row of each."""
    most: int
    """And if Linux maps a whole folio around each row (``_FOLIO_PAGES``)."""

    @classmethod
    def of_runs(cls, runs: "Iterable[Mapping[str, ReadPages]]") -> "ReadPages":
        """Of all weights together, given what each run reads of each."""
        by_weight: dict[str, ReadPages] = {}
        for run in runs:
            for name, pages in run.items():
                # By weight first: two runs that read the same page of a mapping make it resident
                # once.
                by_weight[name] = by_weight.get(name, pages).joined(pages)
        found = by_weight.values()
        return cls(
            sum(each.least for each in found),
            sum(each.pages for each in found),
            sum(each.most for each in found),
        )

    def joined(self, other: "ReadPages") -> "ReadPages":
        """The larger of each, of two runs that read one weight."""
        return ReadPages(
            max(self.least, other.least), max(self.pages, other.pages), max(self.most, other.most)
        )


def mapped_pages(model: Graph, session: Graph, packed: Iterable[Prepacked]) -> dict[str, int]:
    """Pages of external weights that runs read, by weight, if all rows of a Gather differ."""
    return {name: found.pages for name, found in read_pages(model, session, packed).items()}


def read_pages(model: Graph, session: Graph, packed: Iterable[Prepacked]) -> dict[str, ReadPages]:
    """Pages of external weights that runs read, by weight; each has a mapping of its own.

    A Gather reads a row per index, all other kernels the whole weight. Weights that a kernel has
    prepacked were read during the load, and count there.
    """
    stored = initializers(model)
    done = {each.weight for each in packed}
    pages: dict[str, ReadPages] = {}
    for node in session.all_nodes():
        for index, name in enumerate(node.inputs):
            tensor = stored.get(name)
            if tensor is not None and tensor.is_external and name not in done:
                by_rows = index == 0 and kernel_of(node.op_type, node.domain).reads_rows
                whole = _pages(tensor)
                read = ReadPages(whole, whole, whole)
                read = _row_pages(session, node, tensor, read) if by_rows else read
                # Two readers of a weight may read the same pages, so they do not add up.
                pages[name] = pages.get(name, read).joined(read)
    return pages


def _pages(tensor: Tensor) -> int:
    return -(-(tensor.size_bytes or 0) // PAGE_BYTES)


def _row_pages(graph: Graph, node: Node, tensor: Tensor, whole: ReadPages) -> ReadPages:
    """Pages of one row per index; all of the weight where that is unknown."""
    indices = graph.tensors.get(node.inputs[1]) if len(node.inputs) > 1 else None
    count = indices.num_elements if indices is not None else None
    rows = tensor.shape[0] if tensor.shape else None
    if count is None or not isinstance(rows, int) or rows == 0:
        return whole
    # Rounded up to whole pages; a row that crosses one page more is within the upper figure's
    # folio.
    row_pages = -(-(tensor.size_bytes or 0) // (rows * PAGE_BYTES))
    each_pages = (row_pages * min(count, 1), row_pages * count, count * (row_pages + _FOLIO_PAGES))
    return ReadPages(*(min(number, whole.pages) for number in each_pages))


def _packed(model: Graph, session: Graph, packed: tuple[Prepacked, ...]) -> Iterator[PackedWeight]:
    """Prepacked weights in the order of node indices: the file's nodes, then new ones."""
    indices = {node.name: index for index, node in enumerate(model.all_nodes())}
    readers = Counter(name for node in session.all_nodes() for name in node.inputs if name)
    seen: Counter[str] = Counter()
    for each in sorted(packed, key=lambda each: indices.get(each.node, len(indices))):
        # ``SessionState::PrepackConstantInitializedTensors`` counts down the readers of a constant
        # as their kernels pack it, and erases it with the last one: a reader that does not pack
        # keeps it.
        seen[each.weight] += each.drops_original
        yield PackedWeight(
            each.weight,
            session.tensors[each.weight].size_bytes or 0,
            each.size_bytes or each.transient_bytes,
            is_reserved=each.is_reserved,
            is_retained=each.size_bytes > 0,
            is_last=each.drops_original and seen[each.weight] == readers[each.weight],
        )


@dataclass(frozen=True, slots=True)
class CreatedWeights:
    """The weights that the graph optimizer creates."""

    rounds: tuple[tuple[CreatedWeight, ...], ...]
    """By round of the optimizer: weights without a reader are freed at the end of a round."""
    remaining: frozenset[str]
    """The weights that the optimized graph reads."""


def created_weights(model: Graph, session: Graph) -> CreatedWeights:
    """The weights that the optimizer creates between the file's graph and the optimized one."""
    stored, left = initializers(model), initializers(session)
    folding = _Folding(model, session)
    # The order follows from what reads what: fusions copy folded filters, layouts fused ones.
    folded = tuple(folding.created())
    at_hand = {name: _bytes(tensor) for name, tensor in stored.items()}
    at_hand |= {each.name: each.size_bytes for each in folded}
    filters = _Filters(model, session, folding, at_hand)
    # The first round also folds constants; layouts change after the last one, at level `all`.
    first, *later = (*filters.fused(), ())
    # New are the weights that neither the file nor a folded node has in this size.
    new = {
        name: origin
        for name, origin in _readings(session)
        if name in left and at_hand.get(name) != _bytes(left[name])
    }
    layout = tuple(_reordered(new, left, filters.sizes))
    used = {each.source for each in layout}
    final = {n: size for n, size in filters.sizes.items() if n not in used and n not in at_hand}
    others = tuple(_others(new, left, stored, final))
    rounds = ((*folded, *others, *first), *later, layout)
    return CreatedWeights(tuple(filter(None, rounds)), frozenset({*left, *final}))


class _Folding:
    """The constants of a model, with equal ones merged.

    A node is folded if all its inputs are constants and the optimized graph lacks it. The shape of
    a tensor is a constant if its dims are numbers. Source: ``core/optimizer/constant_folding.cc``
    (``ConstantFolding::ApplyImpl``) and ``common_subexpression_elimination.cc``.
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
        """The tensor that a name was merged into, or the name itself."""
        return self._same.get(name, name)

    def created(self) -> Iterator[CreatedWeight]:
        """The outputs of folded nodes, in the order of the file."""
        for node in self._model.all_nodes():
            if not self._is_folded(node):
                continue
            # common_subexpression_elimination.cc: equal operators on equal inputs are one node.
            inputs = tuple(self.latest(name) for name in node.inputs)
            key = (node.op_type, inputs, repr(sorted(node.attributes.items())))
            # A node comes after its producers in the file, so its inputs are joined already.
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
        """Add a constant; whether it is the first with its content."""
        first = self._known.setdefault(key, name)
        self._same[name] = first
        return first == name

    def _content(self, name: str) -> object:
        values = self._model.values.get(name)
        tensor = self._stored[name]
        return name if values is None else (tensor.dtype, tensor.shape, values)

    def _row(self, node: Node, name: str) -> CreatedWeight:
        # Of several sources the largest decides the peak, for one temporary copy is simulated.
        known = {
            read: self._stored[read].size_bytes or 0 for read in node.reads if read in self._stored
        }
        source = max(known, key=known.__getitem__, default=None)
        size = self._model.tensors[name].size_bytes or 0
        source_bytes = 0 if source is None else known[source]
        return CreatedWeight(name, size, WeightOrigin.FOLDED, source, source_bytes)


@dataclass(slots=True)
class _Filter:
    """A constant filter after the fusions so far."""

    name: str
    size_bytes: int
    output: str
    """The current output of its convolution."""


class _Filters:
    """The constant filters of a model, by their current names."""

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
                # A filter may have been folded before: what the fusion copies is its newest form.
                name = folding.latest(node.inputs[1])
                if name in at_hand:
                    self._filters.append(_Filter(name, at_hand[name], node.outputs[0]))

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each, by name."""
        return {each.name: each.size_bytes for each in self._filters}

    def fused(self) -> tuple[tuple[CreatedWeight, ...], ...]:
        """Filters that absorb the node after their convolution, one node per round."""
        rounds = []
        for _ in range(_MAX_ROUNDS):
            created = tuple(self._round())
            if not created:
                break
            rounds.append(created)
        return tuple(rounds)

    def _round(self) -> Iterator[CreatedWeight]:
        for each in self._filters:
            # An Add changes the bias only, so the filter is not copied for it.
            after = self._fused_node(each.output)
            while after is not None and after.op_type == _CHANGES_BIAS:
                each.output = after.outputs[0]
                after = self._fused_node(each.output)
            if after is not None:
                source, each.output = each.name, after.outputs[0]
                # A name for each form: the fusion's copy and its source are alive at once.
                each.name = f"{source} with {each.output}"
                yield CreatedWeight(
                    each.name, each.size_bytes, WeightOrigin.FUSED, source, each.size_bytes
                )

    def _fused_node(self, output: str) -> Node | None:
        """The node fused into the convolution: the only reader, with constants, and now missing."""
        readers = self._readers.get(output, [])
        if len(readers) != 1 or readers[0].op_type not in (*_CHANGES_FILTER, _CHANGES_BIAS):
            return None
        node = readers[0]
        others = (self._folding.latest(name) for name in node.reads if name != output)
        is_gone = (node.op_type, node.outputs[0]) not in self._remaining
        return node if is_gone and all(name in self._at_hand for name in others) else None


class _Pool:
    """Weights, each of which can be the source of one other weight."""

    def __init__(self, sizes: Sizes) -> None:
        # Only its size tells which weight a new one was made from, so each is given away once.
        self._rows = sorted((size, index, name) for index, (name, size) in enumerate(sizes.items()))

    def take(self, size_bytes: int) -> str | None:
        """The first weight of a size, or else the largest smaller one: channels may be padded."""
        # Sorted by size, then by the order in the file, so that the first of a size is taken first.
        end = bisect_right(self._rows, (size_bytes, inf, ""))
        return self.take_equal(self._rows[end - 1][0]) if end else None

    def take_equal(self, size_bytes: int) -> str | None:
        """The first weight of a size."""
        index = bisect_left(self._rows, (size_bytes, -1, ""))
        if index == len(self._rows) or self._rows[index][0] != size_bytes:
            return None
        return self._rows.pop(index)[2]


def _readings(session: Graph) -> Iterator[tuple[str, WeightOrigin]]:
    """The inputs of all nodes, with the origin that each would have if it is new."""
    for node in session.all_nodes():
        for index, name in enumerate(node.inputs):
            is_filter = node.op_type in _CONVOLUTIONS and index == 1
            layout = WeightOrigin.REORDERED if node.domain == _NCHWC else WeightOrigin.FUSED
            yield name, layout if is_filter else WeightOrigin.FOLDED


def _reordered(
    new: Mapping[str, WeightOrigin], left: Weights, filters: Sizes
) -> Iterator[CreatedWeight]:
    pool = _Pool(filters)
    for name, origin in new.items():
        if origin is WeightOrigin.REORDERED:
            size = _bytes(left[name])
            source = pool.take(size)
            known = size if source is None else filters[source]
            yield CreatedWeight(name, size, origin, source, known)


def _others(
    new: Mapping[str, WeightOrigin], left: Weights, stored: Weights, fused: Sizes
) -> Iterator[CreatedWeight]:
    """New weights of unknown origin; a filter that a fusion creates is not created again."""
    created = _Pool(fused)
    gone = _Pool({name: _bytes(tensor) for name, tensor in stored.items() if name not in left})
    for name, origin in new.items():
        size = _bytes(left[name])
        if origin is WeightOrigin.REORDERED or (
            origin is WeightOrigin.FUSED and created.take_equal(size)
        ):
            continue
        source = gone.take_equal(size)
        yield CreatedWeight(name, size, WeightOrigin.FOLDED, source, 0 if source is None else size)


def _bytes(tensor: Tensor) -> int:
    return tensor.size_bytes or 0

"""What changed between two analyses or saved reports, and why their peaks differ.

Each side is a ``Snapshot``: computed now, or read from a saved report. Each peak is the sum of the
blocks that are live at it, so its change is the sum of the changes of its blocks. A block that is
live at only one of the two peaks counts with all its bytes.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.compute import layers as node_layers
from onnxmem.analysis.fitting.verdicts import (
    ACCURACIES,
    Accuracy,
    AnyBasis,
    Comparison,
    Verdict,
    basis_named,
)
from onnxmem.analysis.json_rows import (
    SavedObject,
    both_ends_of,
    data_rows,
    recipe_row,
    verdict_row,
)
from onnxmem.errors import Finding, UsageError
from onnxmem.program.program import Allocation, Category
from onnxmem.runtimes.ideal.activation_memory import ActivationMemory
from onnxmem.settings import LEFT_OPEN, TrainingConfig, listed_shape
from onnxmem.units import format_bytes

MOST_SAVED: Final = 50
"""How many blocks at the peak of a training step a saved report lists."""
_REST: Final = "smaller blocks"


FIGURE_LABELS: Final = {
    "weights": "weights",
    "inputs": "inputs",
    "activations peak": "activations, peak",
    "run": "inference",
    "training peak": "training step, peak",
}
"""Of a difference's figures."""
Ends = tuple[int | None, int | None]
"""A figure at least and at most; ``None``: unknown, or without an end."""
_DECIDED: Final = {
    "activations peak": "in_place_peak",
    "run": "total",
    "training peak": "training_peak",
}
"""Figures that the data of a run may decide, and their names in a report."""


@dataclass(frozen=True, slots=True)
class PeakContents:
    """The live blocks at a peak, from a replay or a saved report; they add up to the peak."""

    size_bytes: int
    node: str | None
    blocks: tuple[Allocation, ...]
    is_abridged: bool = False
    """Whether small blocks are merged by category, as in a saved report."""

    def abridged(self, named: Collection[str]) -> "PeakContents":
        """Merge the blocks that are neither among the largest nor in ``named``, by category."""
        # Blocks that the other side names stay, however small they are: a block that only one side
        # lists by name would count as a change of all its bytes.
        largest = sorted(self.blocks, key=lambda block: -block.size_bytes)
        listed = [b for n, b in enumerate(largest) if n < MOST_SAVED or b.label in named]
        rest = dict.fromkeys((block.category for block in self.blocks), 0)
        for block in self.blocks:
            rest[block.category] += block.size_bytes
        return replace(self, blocks=_with_rest(listed, rest), is_abridged=True)


@dataclass(frozen=True, slots=True)
class LayerSize:
    """A node with the bytes of its outputs and weights; ``None`` is unknown."""

    node: str
    op_type: str
    output_bytes: int | None
    weight_bytes: int | None

    @property
    def size_bytes(self) -> int | None:
        """Outputs and weights; ``None`` if one is unknown."""
        if self.output_bytes is None or self.weight_bytes is None:
            return None
        return self.output_bytes + self.weight_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetVerdict:
    """The verdict on a model and a budget."""

    compared: Comparison
    limit_bytes: int | None
    basis: AnyBasis | None
    """The figure that was compared; ``None`` if it does not exist."""
    accuracy: Accuracy | None
    """Of that figure, with the settings of its side."""
    row: Mapping[str, object]
    """The whole verdict, as in a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One side of a comparison; bytes, ``None`` is unknown."""

    path: str
    is_saved: bool
    status: str
    batch: int | None
    dims: Mapping[str, object]
    weight_bytes: int | None
    inputs_bytes: int | None
    total_bytes: int | None
    activations: PeakContents | None
    training: PeakContents | None
    runtimes: Mapping[str, PeakContents] = field(default_factory=dict)
    """The peak of requested bytes of each runtime, by name; a saved report has none."""
    processes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The parts of the whole process of each runtime on the host, by name; they add up to it. A
    saved report has none."""
    layers: tuple[LayerSize, ...] | None
    """``None``: the saved report has none."""
    step: str = ""
    """How it is trained: ``adam fp32``; ``""`` without training."""
    findings: tuple[Finding, ...] = ()
    verdict: BudgetVerdict | None = None
    """The verdict on a budget; ``None`` without a budget."""
    ends: Mapping[str, Ends] = field(default_factory=dict)
    """Figures that the data of a run decide, by name."""
    activations_at_most: PeakContents | None = None
    """Where the data of a run decide them; a saved report has none."""

    @property
    def inference_ends(self) -> Ends | None:
        """Inference at least and at most; ``None``: the data of a run do not decide it."""
        least_bytes, most_bytes = self.ends.get("run", (None, None))
        return None if least_bytes == most_bytes else (least_bytes, most_bytes)

    @property
    def is_whole(self) -> bool:
        """Whether the figures are complete and of the requested batch, or have two ends."""
        has_ends = bool(self.ends) and self.ends.get("run", (None, None))[1] is not None
        is_fixed = any(each.code == "batch_fixed" for each in self.findings)
        return self.status == "ok" or (has_ends and not is_fixed)

    def both_ends(self, figure: str, size_bytes: int | None) -> Ends:
        """A figure at least and at most; ``size_bytes`` is what stands for it without ends."""
        return self.ends.get(figure, (size_bytes, size_bytes if self.status == "ok" else None))

    @property
    def saved(self) -> bool:
        """Whether it is a saved report."""
        return self.is_saved

    @property
    def train(self) -> str | None:
        """How it is trained; ``None``: it is not."""
        return self.step or None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSetting:
    """The settings with which a saved report was made."""

    batch: int | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    train: bool = False
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``TrainingConfig``."""


@dataclass(frozen=True, slots=True)
class Change:
    """Bytes of a figure, or of a block at a peak, before and after.

    ``None`` is unknown or missing; a block that is not live has 0 bytes.
    """

    name: str
    before_bytes: int | None
    after_bytes: int | None
    category: Category | None = None
    """The category of a block; ``None`` for a figure, and for blocks of inference."""
    ends: "tuple[Change, Change] | None" = None
    """A figure at least and at most; ``None``: the data of a run decide it on no side."""

    @property
    def change_bytes(self) -> int | None:
        """The difference; ``None`` if one of the two is unknown."""
        if self.before_bytes is None or self.after_bytes is None:
            return None
        return self.after_bytes - self.before_bytes

    @property
    def change_percent(self) -> float | None:
        """The difference in percent of the bytes before; ``None`` also if those were 0."""
        if self.change_bytes is None or not self.before_bytes:
            return None
        return 100 * self.change_bytes / self.before_bytes


@dataclass(frozen=True, slots=True)
class PeakChange:
    """Why a peak changed."""

    before: PeakContents
    after: PeakContents
    blocks: tuple[Change, ...]
    """Blocks that changed, the largest change first; they add up to the change of the peak."""
    unchanged_tensors: int
    """How many blocks are live at both peaks with equal bytes."""

    @property
    def peak_node_before(self) -> str | None:
        """The node with the peak of the first side."""
        return self.before.node

    @property
    def peak_node_after(self) -> str | None:
        """The node with the peak of the second side."""
        return self.after.node

    @property
    def tensors(self) -> tuple[Change, ...]:
        """The blocks that changed."""
        return self.blocks

    @property
    def change_bytes(self) -> int:
        """The difference of the peaks."""
        return self.after.size_bytes - self.before.size_bytes


@dataclass(frozen=True, slots=True)
class LayerChange:
    """A layer that changed; ``None`` on the side that does not have it."""

    before: LayerSize | None
    after: LayerSize | None

    @property
    def change_bytes(self) -> int | None:
        """The difference of its outputs and weights; ``None`` is unknown."""
        sizes = [0 if each is None else each.size_bytes for each in (self.before, self.after)]
        before_bytes, after_bytes = sizes
        if before_bytes is None or after_bytes is None:
            return None
        return after_bytes - before_bytes

    @property
    def what(self) -> str:
        """``added``, ``removed``, ``grown``, ``shrunk``, or ``changed`` if the sum is the same."""
        if self.before is None:
            return "added"
        if self.after is None:
            return "removed"
        change_bytes = self.change_bytes
        if not change_bytes:
            return "changed"
        return "grown" if change_bytes > 0 else "shrunk"


@dataclass(frozen=True, slots=True)
class Difference:
    """Two snapshots side by side."""

    before: Snapshot
    after: Snapshot
    figures: tuple[Change, ...]
    activations: PeakChange | None
    """``None`` if a peak is unknown."""
    training: PeakChange | None
    """``None`` unless both sides have a training step."""
    layers: tuple[LayerChange, ...] | None
    """Layers that changed, the largest change first; ``None`` if a saved report has no layers."""
    unchanged_layers: int = 0
    runtimes: Mapping[str, PeakChange] = field(default_factory=dict)
    """The runtimes that both sides have, by name."""
    processes: Mapping[str, tuple[Change, ...]] = field(default_factory=dict)
    """The parts of the processes that both sides have, which changed, the largest change first."""
    activations_at_most: PeakChange | None = None
    """Where the data of a run decide activations; ``None`` also if a peak at most is unknown."""

    def __repr__(self) -> str:
        """The changed figures: the fields hold both snapshots."""
        lines = ["<Difference"]
        for label, each in labelled(self.figures):
            before, after = format_bytes(each.before_bytes), format_bytes(each.after_bytes)
            lines.append(f"  {label}: {before} -> {after}")
        return "\n".join(lines) + ">"

    @property
    def is_whole(self) -> bool:
        """Whether the figures of both sides are complete, or have two ends."""
        return self.before.is_whole and self.after.is_whole


def diff(before: Snapshot, after: Snapshot) -> Difference:
    """Compare two snapshots."""
    layers, unchanged_tensors = None, 0
    if before.layers is not None and after.layers is not None:
        pairs = list(_paired(before.layers, after.layers))
        changes = [LayerChange(*pair) for pair in pairs if not _is_same(*pair)]
        layers = tuple(sorted(changes, key=lambda change: -abs(change.change_bytes or 0)))
        unchanged_tensors = len(pairs) - len(changes)
    return Difference(
        before=before,
        after=after,
        figures=tuple(_figures(before, after)),
        activations=_of_inference(_peak_change(before.activations, after.activations)),
        training=_peak_change(before.training, after.training),
        layers=layers,
        unchanged_layers=unchanged_tensors,
        runtimes={
            name: change
            for name, peak in after.runtimes.items()
            if (change := _peak_change(before.runtimes.get(name), peak)) is not None
        },
        processes={
            name: _changed_parts(before.processes[name], parts)
            for name, parts in after.processes.items()
            if name in before.processes
        },
        activations_at_most=_change_at_most(before, after),
    )


def _changed_parts(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[Change, ...]:
    names = dict.fromkeys((*after, *before))
    parts = (Change(name, before.get(name, 0), after.get(name, 0)) for name in names)
    changed = (part for part in parts if part.change_bytes)
    return tuple(sorted(changed, key=lambda part: -abs(part.change_bytes or 0)))


def _change_at_most(before: Snapshot, after: Snapshot) -> PeakChange | None:
    """Why the most that activations take changed."""
    # Where data decide nothing on a side, its one peak is also its most.
    if before.activations_at_most is after.activations_at_most is None:
        return None
    peaks = [
        side.activations if side.status == "ok" else side.activations_at_most
        for side in (before, after)
    ]
    return _of_inference(_peak_change(*peaks))


def labelled(figures: Iterable[Change]) -> Iterator[tuple[str, Change]]:
    """Figures by what they are called; one that the data of a run decide has two rows."""
    for each in figures:
        name = each.name.replace(" process", ", process")
        label = FIGURE_LABELS.get(each.name) or name.replace(" peak", ", peak")
        if each.ends is None:
            yield label, each
        else:
            words = label.removesuffix(", peak")
            yield from zip((f"{words}, at least", f"{words}, at most"), each.ends, strict=True)


def snapshot(analysis: Analysis) -> Snapshot:
    """The snapshot of an analysis."""
    step, training = analysis.training, None
    at_most = None if analysis.at_most is analysis.results else analysis.at_most
    if step is not None:
        training = PeakContents(step.peak_bytes, step.peak_node, step.live_at_peak())
    verdict = verdict_row(analysis.fit, analysis.settings.budget_bytes, analysis.findings)
    rows = node_layers(analysis.graph, analysis.parameters, analysis.compute)
    return Snapshot(
        path=analysis.path,
        is_saved=False,
        status=analysis.status,
        batch=analysis.settings.batch,
        dims=dict(analysis.settings.dims),
        weight_bytes=analysis.weight_bytes,
        inputs_bytes=analysis.inputs_bytes,
        total_bytes=analysis.total_bytes,
        activations=_peak_of(analysis.activations),
        training=training,
        runtimes=dict(_runtime_peaks(analysis)),
        processes={
            each.name: dict(each.process_parts) or {"the whole process": each.process_bytes}
            for each in analysis.runtimes
            if each.process_bytes is not None
        },
        layers=tuple(
            LayerSize(row.node, row.op_type, row.output_bytes, row.weight_bytes) for row in rows
        ),
        step="" if step is None else _step(recipe_row(step.recipe)),
        findings=analysis.findings,
        verdict=_saved_verdict(SavedObject("", "verdict", verdict or {})),
        ends=dict(_ends(analysis)),
        activations_at_most=None if at_most is None else _peak_of(at_most.activations),
    )


def _peak_of(memory: ActivationMemory) -> PeakContents | None:
    if memory.in_place_peak_bytes is None:
        return None
    return PeakContents(memory.in_place_peak_bytes, memory.peak_node, memory.live_at_peak)


def _ends(analysis: Analysis) -> Iterator[tuple[str, Ends]]:
    """The figures that the data of a run decide; of runtimes, their requested peaks."""
    yield from _ends_in(data_rows(analysis.results))
    for each in analysis.runtimes:
        if each.requested_peak_ends is not None:
            yield f"{each.name} peak", each.requested_peak_ends


def _ends_in(row: Mapping[str, object]) -> Iterator[tuple[str, Ends]]:
    for figure, name in _DECIDED.items():
        ends = both_ends_of(row, name)
        if ends is not None:
            yield figure, ends


def _runtime_peaks(analysis: Analysis) -> Iterator[tuple[str, PeakContents]]:
    """The peak of each runtime and the live blocks at it."""
    found = [(each.name, each.arena.replay, each.arena.peak) for each in analysis.runtimes]
    found += [(each.name, each.replay, each.replay.peak) for each in analysis.replays]
    for name, replay, peak in found:
        live = tuple(each for each in replay.live_set(peak) if each.size_bytes)
        yield name, PeakContents(peak.size_bytes, peak.node or None, live)


def saved_snapshot(row: SavedObject) -> Snapshot:
    """The snapshot of a saved report.

    :raises SavedReportError: a value does not have the type that onnxmem writes.
    """
    settings = _part(row, "settings")
    rows = None if row.values.get("layers") is None else row.tables("layers")
    return Snapshot(
        path=row.text("path") or "",
        is_saved=True,
        status=row.text("status") or "",
        batch=settings.size_bytes("batch"),
        dims=_part(settings, "dims").values,
        weight_bytes=_part(row, "weights").size_bytes("bytes"),
        inputs_bytes=row.size_bytes("inputs_bytes"),
        total_bytes=row.size_bytes("total_bytes"),
        activations=_saved_peak(row.table("activations"), "in_place_peak_bytes"),
        training=_saved_peak(row.table("training"), "peak_bytes"),
        layers=None if rows is None else tuple(map(_saved_layer, rows)),
        step=_saved_step(row.table("training")),
        findings=tuple(map(_saved_finding, row.tables("findings"))),
        verdict=_saved_verdict(_part(row, "verdict")),
        ends=dict(_ends_in(row.values)),
    )


def saved_setting(row: SavedObject) -> SavedSetting:
    """The settings of a saved report, for another analysis with the same.

    :raises SavedReportError: a value does not have the type that onnxmem writes.
    """
    settings = _part(row, "settings")
    dims, shapes = _part(settings, "dims"), _part(settings, "shapes")
    step = row.table("training")
    return SavedSetting(
        batch=settings.size_bytes("batch"),
        dims={name: dims.size_bytes(name) or 1 for name in dims.values},
        shapes={name: _shape(shapes, name) for name in shapes.values},
        train=step is not None,
        recipe={} if step is None else _recipe(_part(step, "recipe")),
    )


def _figures(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    yield Change("weights", before.weight_bytes, after.weight_bytes)
    yield Change("inputs", before.inputs_bytes, after.inputs_bytes)
    sizes = {
        "activations peak": (_size(before.activations), _size(after.activations)),
        "run": (before.total_bytes, after.total_bytes),
    }
    if before.training is not None or after.training is not None:
        sizes["training peak"] = _size(before.training), _size(after.training)
    for name in dict.fromkeys((*before.runtimes, *after.runtimes)):
        one, other = (side.runtimes.get(name) for side in (before, after))
        sizes[f"{name} peak"] = _size(one), _size(other)
    for figure, (then, now) in sizes.items():
        yield Change(figure, then, now, ends=_both_ends(before, after, figure, (then, now)))
    for name in dict.fromkeys((*before.processes, *after.processes)):
        sums = [_sum_of(side.processes.get(name)) for side in (before, after)]
        yield Change(f"{name} process", sums[0], sums[1])


def _sum_of(parts: Mapping[str, int] | None) -> int | None:
    return None if parts is None else sum(parts.values())


def _both_ends(
    before: Snapshot, after: Snapshot, figure: str, sizes: Ends
) -> tuple[Change, Change] | None:
    """The changes of both ends of a figure; ``None``: the data of a run decide it on no side."""
    then, now = (
        side.both_ends(figure, size) for side, size in zip((before, after), sizes, strict=True)
    )
    least, most = map(Change, (f"{figure} at least", f"{figure} at most"), then, now)
    is_decided = figure in before.ends or figure in after.ends
    # Ends that are equal on both sides say nothing that the figure alone does not.
    return (least, most) if is_decided and (then[0], now[0]) != (then[1], now[1]) else None


def _size(peak: PeakContents | None) -> int | None:
    return None if peak is None else peak.size_bytes


def _of_inference(change: PeakChange | None) -> PeakChange | None:
    """The change without categories: all blocks of inference are activations."""
    if change is None:
        return None
    return replace(change, blocks=tuple(replace(each, category=None) for each in change.blocks))


def _peak_change(before: PeakContents | None, after: PeakContents | None) -> PeakChange | None:
    if before is None or after is None:
        return None
    # A saved peak lists its largest blocks by name and merges the rest. The other side is merged in
    # the same way, but keeps the blocks that the saved one names, so that equal blocks cancel.
    if before.is_abridged != after.is_abridged:
        named = {
            block.label for peak in (before, after) if peak.is_abridged for block in peak.blocks
        }
        before, after = (p if p.is_abridged else p.abridged(named) for p in (before, after))
    then, now = _by_name(before.blocks), _by_name(after.blocks)
    keys = dict.fromkeys((*now, *then))
    changes = [Change(key[0], then.get(key, 0), now.get(key, 0), key[1]) for key in keys]
    moved = [change for change in changes if change.change_bytes]
    return PeakChange(
        before,
        after,
        tuple(sorted(moved, key=lambda change: -abs(change.change_bytes or 0))),
        len(changes) - len(moved),
    )


def _by_name(blocks: Iterable[Allocation]) -> dict[tuple[str, Category], int]:
    """Bytes by label and category; several blocks of an optimizer step have the same label."""
    found: dict[tuple[str, Category], int] = {}
    for block in blocks:
        key = block.label, block.category
        found[key] = found.get(key, 0) + block.size_bytes
    return found


def _is_same(before: LayerSize | None, after: LayerSize | None) -> bool:
    if before is None or after is None:
        return False
    sizes = before.output_bytes, before.weight_bytes
    return before.op_type == after.op_type and sizes == (after.output_bytes, after.weight_bytes)


def _paired(
    before: Iterable[LayerSize], after: Iterable[LayerSize]
) -> Iterator[tuple[LayerSize | None, LayerSize | None]]:
    """Pair layers by name and operator, and the rest in order within each operator."""
    # Nodes that were only renamed keep their order: paired by it, they are not reported as removed
    # and added.
    then, now = tuple(before), tuple(after)
    names = {(layer.node, layer.op_type): layer for layer in then}
    taken = {(layer.node, layer.op_type) for layer in now} & set(names)
    left: dict[str, list[LayerSize]] = {}
    for layer in then:
        if (layer.node, layer.op_type) not in taken:
            left.setdefault(layer.op_type, []).append(layer)
    for layer in now:
        key = layer.node, layer.op_type
        if key in taken:
            yield names[key], layer
        else:
            rest = left.get(layer.op_type)
            yield (rest.pop(0) if rest else None), layer
    for layers in left.values():
        yield from ((layer, None) for layer in layers)


def _saved_step(step: SavedObject | None) -> str:
    return "" if step is None else _step(_part(step, "recipe").values)


def _step(recipe: Mapping[str, object]) -> str:
    """Optimizer and precision, and every other field that is not the default."""
    defaults = recipe_row(TrainingConfig())
    words = [str(recipe[name]) for name in ("optimizer", "precision") if name in recipe]
    rest = (name for name in defaults if name in recipe and name not in {"optimizer", "precision"})
    words += [f"{name}={recipe[name]}" for name in rest if recipe[name] != defaults[name]]
    return " ".join(words)


def _part(row: SavedObject, key: str) -> SavedObject:
    """The object at a key, empty if it is missing."""
    return row.table(key) or SavedObject(row.file, f"{row.key}.{key}", {})


def _saved_peak(part: SavedObject | None, key: str) -> PeakContents | None:
    size_bytes = None if part is None else part.size_bytes(key)
    if part is None or size_bytes is None:
        return None
    blocks = [
        Allocation(each.text("tensor") or "", _category(each), each.size_bytes("bytes") or 0)
        for each in part.tables("live_at_peak")
    ]
    # A report without categories is of inference, where all blocks are activations.
    by_kind = part.table("live_by_kind")
    known = {Category.ACTIVATION: size_bytes}
    if by_kind is not None and by_kind.values:
        known = {
            _category_named(kind, by_kind, kind): by_kind.size_bytes(kind) or 0
            for kind in by_kind.values
        }
    full = _with_rest(blocks, known)
    # The file may be edited; whatever it lists, the blocks must add up to its peak.
    missing = size_bytes - sum(block.size_bytes for block in full)
    if missing:
        full = (*full, Allocation(_REST, Category.ACTIVATION, missing))
    return PeakContents(size_bytes, part.text("peak_node"), full, is_abridged=by_kind is not None)


def _category(block: SavedObject) -> Category:
    """The category of a block at a training peak; blocks of inference have no such key."""
    kind = block.text("kind")
    return Category.ACTIVATION if kind is None else _category_named(kind, block, "kind")


def _category_named(kind: str, part: SavedObject, key: str) -> Category:
    if kind not in set(Category):
        fault = part.fault(key, "is not a kind of allocation")
        raise fault
    return Category(kind)


def _with_rest(
    listed: list[Allocation], by_category: Mapping[Category, int]
) -> tuple[Allocation, ...]:
    """Blocks, and one for the rest of each category's bytes."""
    rest = dict(by_category)
    for block in listed:
        rest[block.category] = rest.get(block.category, 0) - block.size_bytes
    return (*listed, *(Allocation(_REST, each, size) for each, size in rest.items() if size))


def _saved_layer(row: SavedObject) -> LayerSize:
    return LayerSize(
        row.text("node") or "",
        row.text("op_type") or "",
        row.size_bytes("output_bytes"),
        row.size_bytes("weight_bytes"),
    )


def _saved_verdict(row: SavedObject) -> BudgetVerdict | None:
    word = row.text("verdict")
    if word is None:
        return None
    if word not in set(Verdict):
        fault = row.fault("verdict", "is not a verdict")
        raise fault
    basis = row.text("basis")
    known = None if basis is None else basis_named(basis)
    return BudgetVerdict(
        compared=Comparison(
            verdict=Verdict(word),
            num_bytes=row.size_bytes("bytes"),
            # Reports of older versions have no such key.
            unlimited_bytes=row.size_bytes("unlimited_bytes") or row.size_bytes("bytes"),
        ),
        limit_bytes=row.size_bytes("limit_bytes"),
        basis=known,
        accuracy=_saved_accuracy(row.table("accuracy"), known),
        row=row.values,
    )


def _saved_accuracy(row: SavedObject | None, basis: AnyBasis | None) -> Accuracy | None:
    """The error that was saved with a verdict, by its settings; else that of the figure."""
    if row is None:
        return None if basis is None else ACCURACIES[basis]
    percent = row.values.get("percent")
    if percent is not None and (isinstance(percent, bool) or not isinstance(percent, int | float)):
        fault = row.fault("percent", "is not a number")
        raise fault
    return Accuracy(percent, row.text("source") or "")


def _saved_finding(row: SavedObject) -> Finding:
    return Finding(row.text("code") or "", row.text("message") or "", row.text("node"))


def _shape(row: SavedObject, name: str) -> tuple[int | str, ...]:
    shape = listed_shape(row.values[name])
    if shape is None:
        fault = row.fault(name, "is not a list of dims")
        raise fault
    return shape


def _recipe(row: SavedObject) -> dict[str, Any]:
    """The fields of a training configuration; unknown keys are ignored."""
    known: Iterable[str] = (each.name for each in fields(TrainingConfig))
    read: dict[str, Any] = {name: row.values[name] for name in known if name in row.values}
    read = {k: tuple(v) if isinstance(v, list) else v for k, v in read.items()}
    for name, value in read.items():
        if not _is_like(name, value):
            fault = row.fault(name, "is not a field of a training configuration")
            raise fault
    try:
        TrainingConfig(**read)
    except UsageError as error:
        fault = row.fault("", f"not a training configuration: {error}")
        raise fault from error
    # Written with its default, the size would count as set by the user, which changes the verdict's
    # stated error.
    # A report has the size also where nobody set it, and the error of a verdict differs by that.
    if read.get("cublas_workspace_bytes") == TrainingConfig().cublas_bytes():
        del read["cublas_workspace_bytes"]
    return read


def _is_like(name: str, value: object) -> bool:
    """Whether a value has the type of a field's default; fields in ``LEFT_OPEN`` may be null."""
    default = getattr(TrainingConfig(), name)
    if name in LEFT_OPEN:
        return value is None or isinstance(value, bool)
    if isinstance(value, tuple):
        return isinstance(default, tuple) and all(isinstance(each, str) for each in value)
    return type(value) is type(default) or (default is None and type(value) is int)

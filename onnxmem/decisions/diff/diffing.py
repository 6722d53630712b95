"""What changed between two snapshots: figures, layers, and why the peaks moved.

A peak's change is the sum of its blocks' changes, because each peak is the sum of its blocks: what
is alive at one of the two alone counts whole.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from onnxmem.decisions.diff.snapshots import ComparedPeak, LayerSize, LiveBlock, Snapshot


@dataclass(frozen=True, slots=True)
class Change:
    """Bytes before and after; ``None`` is unknown, or not there."""

    name: str
    before_bytes: int | None
    after_bytes: int | None

    @property
    def change_bytes(self) -> int | None:
        """What was added; ``None`` where one of the two is unknown."""
        if self.before_bytes is None or self.after_bytes is None:
            return None
        return self.after_bytes - self.before_bytes

    @property
    def change_percent(self) -> float | None:
        """The same as a share of what was there; ``None`` also where that was nothing."""
        if self.change_bytes is None or not self.before_bytes:
            return None
        return 100 * self.change_bytes / self.before_bytes


@dataclass(frozen=True, slots=True)
class BlockChange:
    """What one block adds to the change of a peak; 0 bytes where it is not alive."""

    name: str
    kind: str
    before_bytes: int
    after_bytes: int

    @property
    def change_bytes(self) -> int:
        """What was added."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True)
class PeakChange:
    """Why a peak moved."""

    before: ComparedPeak
    after: ComparedPeak
    blocks: tuple[BlockChange, ...]
    """Those that changed, the largest change first: they add up to the change of the peak."""
    num_same: int
    """Blocks that are alive at both, with equal bytes."""

    @property
    def change_bytes(self) -> int:
        """What was added."""
        return self.after.size_bytes - self.before.size_bytes


@dataclass(frozen=True, slots=True)
class LayerChange:
    """A layer that is not as it was; ``None`` where it is not there."""

    before: LayerSize | None
    after: LayerSize | None

    @property
    def change_bytes(self) -> int | None:
        """Outputs and weights that were added; ``None`` is unknown."""
        sizes = [0 if each is None else each.size_bytes for each in (self.before, self.after)]
        before_bytes, after_bytes = sizes
        if before_bytes is None or after_bytes is None:
            return None
        return after_bytes - before_bytes

    @property
    def what(self) -> str:
        """``added``, ``removed``, ``grown``, ``shrunk``, or ``changed`` where it keeps its sum."""
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
    """``None`` where a peak is unknown."""
    training: PeakChange | None
    """``None`` where a step is not worked out on both sides."""
    layers: tuple[LayerChange, ...] | None
    """Those that changed, the largest first; ``None`` where a saved report has no layers."""
    num_same_layers: int = 0
    runtimes: Mapping[str, PeakChange] = field(default_factory=dict)
    """Of the runtimes that both sides have, by name."""

    @property
    def is_whole(self) -> bool:
        """Whether both sides are known whole."""
        return self.before.status == self.after.status == "ok"


def diff(before: Snapshot, after: Snapshot) -> Difference:
    """Compare two snapshots."""
    layers, num_same = None, 0
    if before.layers is not None and after.layers is not None:
        pairs = list(_paired(before.layers, after.layers))
        changes = [LayerChange(*pair) for pair in pairs if not _is_same(*pair)]
        layers = tuple(sorted(changes, key=lambda change: -abs(change.change_bytes or 0)))
        num_same = len(pairs) - len(changes)
    return Difference(
        before=before,
        after=after,
        figures=tuple(_figures(before, after)),
        activations=_peak_change(before.activations, after.activations),
        training=_peak_change(before.training, after.training),
        layers=layers,
        num_same_layers=num_same,
        runtimes={
            name: change
            for name, peak in after.runtimes.items()
            if (change := _peak_change(before.runtimes.get(name), peak)) is not None
        },
    )


def _figures(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    yield Change("weights", before.weight_bytes, after.weight_bytes)
    yield Change("inputs", before.inputs_bytes, after.inputs_bytes)
    yield Change("activations peak", _size(before.activations), _size(after.activations))
    yield Change("run", before.total_bytes, after.total_bytes)
    if before.training is not None or after.training is not None:
        yield Change("training peak", _size(before.training), _size(after.training))
    for name in dict.fromkeys((*before.runtimes, *after.runtimes)):
        one, other = (side.runtimes.get(name) for side in (before, after))
        yield Change(f"{name} peak", _size(one), _size(other))


def _size(peak: ComparedPeak | None) -> int | None:
    return None if peak is None else peak.size_bytes


def _peak_change(before: ComparedPeak | None, after: ComparedPeak | None) -> PeakChange | None:
    if before is None or after is None:
        return None
    if before.is_abridged != after.is_abridged:
        named = {
            block.name for peak in (before, after) if peak.is_abridged for block in peak.blocks
        }
        before, after = (p if p.is_abridged else p.abridged(named) for p in (before, after))
    then, now = _by_name(before.blocks), _by_name(after.blocks)
    changes = [
        BlockChange(*key, then.get(key, 0), now.get(key, 0)) for key in dict.fromkeys((*now, *then))
    ]
    moved = [change for change in changes if change.change_bytes]
    return PeakChange(
        before,
        after,
        tuple(sorted(moved, key=lambda change: -abs(change.change_bytes))),
        len(changes) - len(moved),
    )


def _by_name(blocks: Iterable[LiveBlock]) -> dict[tuple[str, str], int]:
    """Bytes by name and kind: the blocks of an optimizer's step share a name."""
    found: dict[tuple[str, str], int] = {}
    for block in blocks:
        key = block.name, block.kind
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
    """Pair layers by name and operator; those that are left by their order within an operator."""
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

"""What one model took at one setting, as a comparison sees it: worked out now, or saved before."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.fitting.bases import AnyBasis, basis_named
from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.analysis.json_row import Row as JsonRow
from onnxmem.analysis.json_row import recipe_row, verdict_row
from onnxmem.analysis.layers import layers as node_layers
from onnxmem.analysis.saved_json import Saved
from onnxmem.errors import Finding, UsageError
from onnxmem.settings import LEFT_OPEN, Recipe

MOST_SAVED: Final = 50
"""Blocks at the peak of a training step that a saved report lists."""


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """What is alive at a peak."""

    name: str
    kind: str
    """What it holds, in a training step; ``""`` for an activation of inference."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ComparedPeak:
    """A peak and what is alive there; the blocks add up to it."""

    size_bytes: int
    node: str | None
    blocks: tuple[LiveBlock, ...]
    is_abridged: bool = False
    """Whether small blocks are summed by kind, as in a saved report."""

    def abridged(self, named: Collection[str]) -> "ComparedPeak":
        """Sum the blocks that are neither among the largest nor named, by kind."""
        largest = sorted(self.blocks, key=lambda block: -block.size_bytes)
        kept = [b for n, b in enumerate(largest) if n < MOST_SAVED or b.name in named]
        rest = dict.fromkeys((block.kind for block in self.blocks), 0)
        for block in self.blocks:
            rest[block.kind] += block.size_bytes
        return replace(self, blocks=_with_rest(kept, rest), is_abridged=True)


@dataclass(frozen=True, slots=True)
class LayerSize:
    """A node and the bytes that it brings; ``None`` is unknown."""

    node: str
    op_type: str
    output_bytes: int | None
    weight_bytes: int | None

    @property
    def size_bytes(self) -> int | None:
        """Outputs and weights; ``None`` where one is unknown."""
        if self.output_bytes is None or self.weight_bytes is None:
            return None
        return self.output_bytes + self.weight_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetVerdict:
    """What became of a model within a budget."""

    verdict: Verdict
    size_bytes: int | None
    limit_bytes: int | None
    basis: AnyBasis | None
    """What was compared; ``None`` where the figure could not be had."""
    row: Mapping[str, object]
    """All of it, as in a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The figures; bytes, ``None`` is unknown."""

    path: str
    is_saved: bool
    status: str
    batch: int | None
    dims: Mapping[str, object]
    weight_bytes: int | None
    inputs_bytes: int | None
    total_bytes: int | None
    activations: ComparedPeak | None
    training: ComparedPeak | None
    runtimes: Mapping[str, ComparedPeak] = field(default_factory=dict)
    """Of each runtime, by name: what its kernels and tensors request; a saved report has none."""
    layers: tuple[LayerSize, ...] | None
    """``None``: the saved report has none."""
    step: str = ""
    """How it is trained: ``adam fp32``; ``""`` where no step is worked out."""
    findings: tuple[Finding, ...] = ()
    verdict: BudgetVerdict | None = None
    """On a budget; ``None`` where none is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSetting:
    """At which setting a saved report was made."""

    batch: int | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    train: bool = False
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``Recipe``."""


def snapshot(analysis: Analysis) -> Snapshot:
    """Take from an analysis what is compared."""
    memory, step = analysis.activations, analysis.training
    activations = training = None
    if memory.in_place_peak_bytes is not None:
        live = (LiveBlock(each.label, "", each.size_bytes) for each in memory.live_at_peak)
        activations = ComparedPeak(memory.in_place_peak_bytes, memory.peak_node, tuple(live))
    if step is not None:
        blocks = (LiveBlock(b.label, b.category.value, b.size_bytes) for b in step.live_at_peak())
        training = ComparedPeak(step.peak_bytes, step.peak_node, tuple(blocks))
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
        activations=activations,
        training=training,
        runtimes=dict(_runtime_peaks(analysis)),
        layers=tuple(
            LayerSize(row.node, row.op_type, row.output_bytes, row.weight_bytes) for row in rows
        ),
        step="" if step is None else _step(recipe_row(step.recipe)),
        findings=analysis.findings,
        verdict=_saved_verdict(Saved("", "verdict", _verdict(analysis) or {})),
    )


def _runtime_peaks(analysis: Analysis) -> Iterator[tuple[str, ComparedPeak]]:
    """The peak of each runtime's program and what is alive there."""
    found = [(each.name, each.arena.replay, each.arena.peak) for each in analysis.runtimes]
    found += [(each.name, each.replay, each.replay.peak) for each in analysis.replays]
    for name, replay, peak in found:
        live = [each for each in replay.live_set(peak) if each.size_bytes]
        blocks = tuple(LiveBlock(each.label, each.category.value, each.size_bytes) for each in live)
        yield name, ComparedPeak(peak.size_bytes, peak.node or None, blocks)


def _verdict(analysis: Analysis) -> JsonRow | None:
    return verdict_row(analysis.fit, analysis.settings.budget_bytes, analysis.findings)


def saved_snapshot(row: Saved) -> Snapshot:
    """Take the same from a saved report.

    :raises SavedReportError: it is not as onnxmem writes it.
    """
    settings = _part(row, "settings")
    rows = row.parts("layers")
    return Snapshot(
        path=row.text("path") or "",
        is_saved=True,
        status=row.text("status") or "",
        batch=settings.size_bytes("batch"),
        dims=_part(settings, "dims").values,
        weight_bytes=_part(row, "weights").size_bytes("bytes"),
        inputs_bytes=row.size_bytes("inputs_bytes"),
        total_bytes=row.size_bytes("total_bytes"),
        activations=_saved_peak(row.part("activations"), "in_place_peak_bytes"),
        training=_saved_peak(row.part("training"), "peak_bytes"),
        layers=None if rows is None else tuple(map(_saved_layer, rows)),
        step=_saved_step(row.part("training")),
        findings=tuple(map(_saved_finding, row.parts("findings") or ())),
        verdict=_saved_verdict(_part(row, "verdict")),
    )


def saved_setting(row: Saved) -> SavedSetting:
    """The setting of a saved report, to ask the same again.

    :raises SavedReportError: it is not as onnxmem writes it.
    """
    settings = _part(row, "settings")
    dims, shapes = _part(settings, "dims"), _part(settings, "shapes")
    step = row.part("training")
    return SavedSetting(
        batch=settings.size_bytes("batch"),
        dims={name: dims.size_bytes(name) or 1 for name in dims.values},
        shapes={name: _dims(shapes, name) for name in shapes.values},
        train=step is not None,
        recipe={} if step is None else _recipe(_part(step, "recipe")),
    )


def _saved_step(step: Saved | None) -> str:
    return "" if step is None else _step(_part(step, "recipe").values)


def _step(recipe: Mapping[str, object]) -> str:
    """Optimizer and precision, and every other field that is not as usual."""
    usual = recipe_row(Recipe())
    told = [str(recipe[name]) for name in ("optimizer", "precision") if name in recipe]
    rest = (name for name in usual if name in recipe and name not in {"optimizer", "precision"})
    told += [f"{name}={recipe[name]}" for name in rest if recipe[name] != usual[name]]
    return " ".join(told)


def _part(row: Saved, key: str) -> Saved:
    """An object that may be left out."""
    return row.part(key) or Saved(row.file, f"{row.key}.{key}", {})


def _saved_peak(part: Saved | None, key: str) -> ComparedPeak | None:
    size_bytes = None if part is None else part.size_bytes(key)
    if part is None or size_bytes is None:
        return None
    blocks = [
        LiveBlock(each.text("tensor") or "", each.text("kind") or "", each.size_bytes("bytes") or 0)
        for each in part.parts("live_at_peak") or ()
    ]
    by_kind = part.part("live_by_kind")
    known = {} if by_kind is None else {k: by_kind.size_bytes(k) or 0 for k in by_kind.values}
    known = known or {"": size_bytes}
    full = _with_rest(blocks, known)
    # Whatever a file says, the blocks add up to its peak.
    missing = size_bytes - sum(block.size_bytes for block in full)
    if missing:
        full = (*full, LiveBlock(f"{_REST}", "", missing))
    return ComparedPeak(size_bytes, part.text("peak_node"), full, is_abridged=by_kind is not None)


_REST = "smaller blocks together"


def _with_rest(kept: list[LiveBlock], by_kind: Mapping[str, int]) -> tuple[LiveBlock, ...]:
    """Blocks, and one for what each kind holds beyond them."""
    rest = dict(by_kind)
    for block in kept:
        rest[block.kind] = rest.get(block.kind, 0) - block.size_bytes
    return (*kept, *(LiveBlock(_REST, kind, size) for kind, size in rest.items() if size))


def _saved_layer(row: Saved) -> LayerSize:
    return LayerSize(
        row.text("node") or "",
        row.text("op_type") or "",
        row.size_bytes("output_bytes"),
        row.size_bytes("weight_bytes"),
    )


def _saved_verdict(row: Saved) -> BudgetVerdict | None:
    word = row.text("verdict")
    if word is None:
        return None
    if word not in set(Verdict):
        fault = row.fault("verdict", "is no verdict")
        raise fault
    basis = row.text("basis")
    return BudgetVerdict(
        verdict=Verdict(word),
        size_bytes=row.size_bytes("bytes"),
        limit_bytes=row.size_bytes("limit_bytes"),
        basis=None if basis is None else basis_named(basis),
        row=row.values,
    )


def _saved_finding(row: Saved) -> Finding:
    return Finding(row.text("code") or "", row.text("message") or "", row.text("node"))


def _dims(row: Saved, name: str) -> tuple[int, ...]:
    value = row.values[name]
    if not isinstance(value, list) or any(type(dim) is not int or dim < 1 for dim in value):
        fault = row.fault(name, "is no list of dims")
        raise fault
    return tuple(value)


def _recipe(row: Saved) -> dict[str, Any]:
    """The fields of a recipe; keys that this version doesn't know are left out."""
    known: Iterable[str] = (each.name for each in fields(Recipe))
    given: dict[str, Any] = {name: row.values[name] for name in known if name in row.values}
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    for name, value in given.items():
        if not _is_like(name, value):
            fault = row.fault(name, "is not of a recipe")
            raise fault
    try:
        Recipe(**given)
    except UsageError as error:
        fault = row.fault("", f"is no recipe: {error}")
        raise fault from error
    return given


def _is_like(name: str, value: object) -> bool:
    """Whether a value is of the kind that a field's default is of; two fields may be left out."""
    default = getattr(Recipe(), name)
    if name in LEFT_OPEN:
        return value is None or isinstance(value, bool)
    if isinstance(value, tuple):
        return isinstance(default, tuple) and all(isinstance(each, str) for each in value)
    return type(value) is type(default) or (default is None and type(value) is int)

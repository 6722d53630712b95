"""A difference as text and as JSON (schema ``onnxmem.diff`` 1.0, additive within 1.x)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from onnxmem.analysis.fitting.verdicts import BASES
from onnxmem.analysis.json_rows import JsonDict, document, document_text
from onnxmem.decisions.diff import (
    Change,
    Difference,
    LayerChange,
    LayerSize,
    PeakChange,
    Snapshot,
    labelled,
)
from onnxmem.errors import Finding, printable, shortened
from onnxmem.report.text import fact, finding_rows, finding_text, percent, prose, rounded
from onnxmem.report.verdict import error_text, verdict_text
from onnxmem.units import format_bytes, format_ends, in_decimal_unit, in_unit, plural, unit_power

_SCHEMA: Final = "onnxmem.diff"
_SCHEMA_VERSION: Final = "1.0"
_NO_VERDICT: Final = "unknown: the saved report is of another budget, or of none: save it anew"
_MOST_ROWS: Final = 12
"""Allocations and layers that the text lists; JSON has all."""


def render(difference: Difference) -> str:
    """Figures, why the peaks moved, layers; the text ends with a newline."""
    lines = [
        *_side("A", difference.before),
        *_side("B", difference.after),
        "",
        *_figures(difference),
        *_budget(difference),
        *(
            _why("activations", "no node", difference.activations)
            if difference.activations_at_most is None
            else _why("activations at most", "no node", difference.activations_at_most)
        ),
        *_why("training step", "the optimizer", difference.training),
        *(
            line
            for name, change in difference.runtimes.items()
            for line in _why(shortened(name), "no node", change)
        ),
        *(
            line
            for name, parts in difference.processes.items()
            for line in _why_process(shortened(name), parts)
        ),
        *_layers(difference),
        *_notes(difference),
    ]
    return "\n".join(lines) + "\n"


def as_json(difference: Difference) -> str:
    """Everything, in ASCII: no name can reach a terminal as a command."""
    layers = difference.layers
    content: JsonDict = {
        "before": _side_row(difference.before),
        "after": _side_row(difference.after),
        "figures": {
            change.name.replace(" ", "_"): _change(change) | _ends(change)
            for change in difference.figures
        },
        "activations": _peak(difference.activations),
        **_activations_at_most(difference),
        "training": _peak(difference.training),
        **_runtimes(difference),
        "layers": None if layers is None else [_layer_change(change) for change in layers],
        "unchanged_layers": difference.unchanged_layers,
    }
    return document_text(document(_SCHEMA, _SCHEMA_VERSION, content))


def _runtimes(difference: Difference) -> JsonDict:
    """Peaks and processes of the runtimes; no key where both sides have none in common."""
    peaks = {printable(name): _peak(change) for name, change in difference.runtimes.items()}
    processes = {
        printable(name): [{"part": part.name, **_change(part)} for part in parts]
        for name, parts in difference.processes.items()
    }
    return {
        **({"runtimes": peaks} if peaks else {}),
        **({"processes": processes} if processes else {}),
    }


def _side(letter: str, side: Snapshot) -> Iterator[str]:
    batch = "" if side.batch is None else f"  batch {side.batch:,}"
    step = f"  train {shortened(side.step)}" if side.step else ""
    saved = "  saved" if side.is_saved else ""
    partial = "" if side.status == "ok" else "  figures are lower bounds"
    if side.inference_ends is not None:
        partial = f"  inference {format_ends(*side.inference_ends)}"
    yield f"{letter}  {shortened(side.path)}{batch}{step}{saved}{partial}"


def _figures(difference: Difference) -> Iterator[str]:
    rows = [(shortened(label), change) for label, change in labelled(difference.figures)]
    power = unit_power(max((size or 0 for _, each in rows for size in _sizes(each)), default=0))
    width = max(20, *(len(label) + 1 for label, _ in rows))
    yield f"{'':<{width}}{'A':>12}{'B':>12}{'change':>12}"
    for label, change in rows:
        sizes = "".join(f"{in_unit(size, power):>12}" for size in _sizes(change))
        share = percent(change.change_percent)
        yield f"{label:<{width}}{sizes}{_signed(change.change_bytes):>12}{share:>11}".rstrip()


def _sizes(change: Change) -> tuple[int | None, int | None]:
    return change.before_bytes, change.after_bytes


def _signed(change_bytes: int | None) -> str:
    """A change with its sign.

    >>> _signed(-600 * 1024), _signed(0)
    ('-600 KiB', '+0 B')
    """
    if change_bytes is None:
        return "unknown"
    return f"{'-' if change_bytes < 0 else '+'}{format_bytes(abs(change_bytes))}"


def budget_lines(difference: Difference) -> Iterator[str]:
    """The verdicts of both sides on a budget, where one is given."""
    sides = {"A": difference.before.verdict, "B": difference.after.verdict}
    known = [each for each in sides.values() if each is not None]
    if not known:
        return
    bases = list(dict.fromkeys(each.basis for each in known if each.basis is not None))
    yield rounded("Budget", known[-1].limit_bytes, in_decimal_unit(known[-1].limit_bytes))
    for letter, each in sides.items():
        if each is None:
            yield fact(f"  {letter}", _NO_VERDICT)
            continue
        text = verdict_text(each.compared, each.limit_bytes or 0)
        by = f", by {each.basis}" if len(bases) > 1 and each.basis is not None else ""
        yield rounded(f"  {letter}", each.compared.num_bytes, text + by)
    for basis in bases:
        name = f" ({basis})" if len(bases) > 1 else ""
        yield fact("  compared" + name, BASES[basis])
        errors = {
            letter: each.accuracy
            for letter, each in sides.items()
            if each is not None and each.basis is basis and each.accuracy is not None
        }
        for accuracy in dict.fromkeys(errors.values()):
            of = [letter for letter, each in errors.items() if each == accuracy]
            side = "" if len({*errors.values()}) == 1 else f" of {of[0]}"
            yield fact("  accuracy" + name + side, error_text(accuracy))


def _budget(difference: Difference) -> list[str]:
    lines = list(budget_lines(difference))
    return ["", *lines] if lines else []


def _why(label: str, elsewhere: str, change: PeakChange | None) -> Iterator[str]:
    """The allocations whose changes add up to that of a peak; ``elsewhere`` stands for no node."""
    if change is None or not change.blocks:
        return
    yield ""
    where = _nodes(change, elsewhere)
    yield from prose(f"Why the peak changed, {label}  ", f"{_signed(change.change_bytes)}: {where}")
    for block in change.blocks[:_MOST_ROWS]:
        kind = f" ({block.category})" if block.category else ""
        yield from prose(
            f"{_signed(block.change_bytes):>14}  {_moved(block)}  ",
            f"{shortened(block.name)}{kind}",
        )
    rest = change.blocks[_MOST_ROWS:]
    if rest:
        rest_bytes = sum(block.change_bytes or 0 for block in rest)
        yield f"{_signed(rest_bytes):>14}  {plural(len(rest), 'other')}"
    if change.unchanged_tensors:
        yield f"{'+0 B':>14}  {change.unchanged_tensors:,} unchanged"


def _why_process(name: str, parts: Sequence[Change]) -> Iterator[str]:
    """The parts of a process whose changes add up to that of the whole."""
    if not parts:
        return
    total = _signed(sum(part.change_bytes or 0 for part in parts))
    yield ""
    yield f"Why the process changed, {name}  {total}: by part, after three runs"
    for part in parts:
        yield from prose(f"{_signed(part.change_bytes):>14}  {_moved(part)}  ", part.name)


def _nodes(change: PeakChange, elsewhere: str) -> str:
    """Where the peaks are."""
    before, after = (
        elsewhere if peak.node is None else shortened(peak.node)
        for peak in (change.before, change.after)
    )
    return f"at {after}" if before == after else f"from {before} to {after}"


def _moved(block: Change) -> str:
    if not block.before_bytes:
        return "new "
    if not block.after_bytes:
        return "gone"
    return f"{format_bytes(block.before_bytes)} -> {format_bytes(block.after_bytes)}"


def _layers(difference: Difference) -> Iterator[str]:
    yield ""
    changes = difference.layers
    if changes is None:
        yield from prose("Layers  ", "unknown: the saved report has none; save it with --layers")
        return
    counts = Counter(change.what for change in changes)
    changed = [f"{count:,} {what}" for what, count in sorted(counts.items())]
    yield f"Layers  {', '.join((*changed, f'{difference.unchanged_layers:,} unchanged'))}"
    for change in changes[:_MOST_ROWS]:
        yield from prose(
            f"{_signed(change.change_bytes):>14}  {change.what:<8} ", _layer_name(change)
        )
    if changes[_MOST_ROWS:]:
        yield f"{'':>14}  {plural(len(changes) - _MOST_ROWS, 'other')}"


def notes(difference: Difference) -> Iterator[tuple[str, Finding]]:
    """The findings of the sides and which of them has each: ``A``, ``B``, ``A and B``."""
    before, after = difference.before.findings, difference.after.findings
    yield from (("A and B" if each in after else "A", each) for each in before)
    yield from (("B", each) for each in after if each not in before)


def _notes(difference: Difference) -> Iterator[str]:
    lines = [
        line
        for which, each in notes(difference)
        for line in prose(f"note on {which}: ", finding_text(each))
    ]
    yield from ["", *lines] if lines else []


def _layer_name(change: LayerChange) -> str:
    layer = change.after or change.before
    if layer is None:
        return ""
    name = f"{shortened(layer.op_type)} {shortened(layer.node)}"
    renamed = change.before is not None and change.before.node != layer.node
    return f"{name} (was {shortened(change.before.node)})" if renamed and change.before else name


def _side_row(side: Snapshot) -> JsonDict:
    return {
        "path": printable(side.path),
        "saved": side.is_saved,
        "status": printable(side.status),
        "batch": side.batch,
        "train": printable(side.step) or None,
        "dims": {printable(name): number for name, number in side.dims.items()},
        "findings": finding_rows(side.findings),
        "verdict": None if side.verdict is None else dict(side.verdict.row),
    }


def _change(change: Change) -> JsonDict:
    return {
        "before_bytes": change.before_bytes,
        "after_bytes": change.after_bytes,
        "change_bytes": change.change_bytes,
    }


def _ends(change: Change) -> JsonDict:
    """Both ends of a figure; no key where the data of a run decide it on no side."""
    if change.ends is None:
        return {}
    return {
        key.replace("_bytes", f"_{end}_bytes"): size_bytes
        for end, each in zip(("lower", "upper"), change.ends, strict=True)
        for key, size_bytes in _change(each).items()
    }


def _activations_at_most(difference: Difference) -> JsonDict:
    change = difference.activations_at_most
    return {} if change is None else {"activations_at_most": _peak(change)}


def _peak(change: PeakChange | None) -> JsonDict | None:
    if change is None:
        return None
    return {
        "change_bytes": change.change_bytes,
        "peak_node_before": change.before.node and printable(change.before.node),
        "peak_node_after": change.after.node and printable(change.after.node),
        "unchanged_tensors": change.unchanged_tensors,
        "tensors": [
            {
                "tensor": printable(block.name),
                "kind": None if block.category is None else block.category.value,
                **_change(block),
            }
            for block in change.blocks
        ],
    }


def _layer_change(change: LayerChange) -> JsonDict:
    return {
        "what": change.what,
        "change_bytes": change.change_bytes,
        "before": _layer(change.before),
        "after": _layer(change.after),
    }


def _layer(layer: LayerSize | None) -> JsonDict | None:
    if layer is None:
        return None
    return {
        "node": printable(layer.node),
        "op_type": printable(layer.op_type),
        "output_bytes": layer.output_bytes,
        "weight_bytes": layer.weight_bytes,
    }


def grown_figures(figures: Iterable[Change]) -> str:
    """What grew, in words, for an error's line."""
    return ", ".join(
        f"{change.name} {_signed(change.change_bytes)}"
        + ("" if change.change_percent is None else f" ({percent(change.change_percent)})")
        for change in figures
    )

"""Whether a model fits, as text and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onnxmem.analysis.fitting.answering import FitResult, Row
from onnxmem.analysis.fitting.holding import Footprint
from onnxmem.analysis.fitting.verdicts import Basis
from onnxmem.analysis.json_rows import Row as JsonRow
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.decisions.devices import Device
from onnxmem.decisions.fit import Contexts
from onnxmem.errors import printable, shortened
from onnxmem.report.contexts import contexts_row, contexts_section, reach_row
from onnxmem.report.text import (
    fact,
    figure,
    finding_lines,
    finding_rows,
    laid_out,
    paragraph,
    prose,
)
from onnxmem.report.verdict import (
    fits_row,
    reach_lines,
    terms_lines,
    verdict_text,
)
from onnxmem.runtimes.onnxruntime.cpu import cpu_named
from onnxmem.settings import Settings
from onnxmem.units import format_bytes, plural

_REPEATED = frozenset({"bytes", "limit_bytes"})
"""Keys of a verdict that the row has itself."""


@dataclass(frozen=True, slots=True)
class Place:
    """What models are held against: a device, or a size alone."""

    name: str
    memory_bytes: int
    """What there is to hold bytes against."""
    device: Device | None


def render_answer(
    answer: FitResult,
    place: Place,
    questions: Sequence[AnalysisRequest],
    contexts: Contexts | None = None,
) -> str:
    """Write the whole answer; it ends with a newline."""
    sections = [
        _head(answer, place, questions),
        _verdict_section(answer, place),
        _largest_section(answer),
        _table_section(answer),
        contexts_section(contexts),
        _instances_section(answer),
        _remarks(answer, place),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def answer_row(answer: FitResult, place: Place, contexts: Contexts | None = None) -> JsonRow:
    """The answer in JSON; unknown is null."""
    setup, limit_bytes = answer.setup, answer.setup.limit_bytes
    verdict = answer.verdict
    return {
        "status": "ok" if answer.held.is_whole else "partial",
        "fits": fits_row(verdict),
        **{key: value for key, value in answer.to_dict().items() if key not in _REPEATED},
        "device": None if place.device is None else printable(place.device.name),
        "memory_bytes": setup.memory_bytes,
        "reserve_bytes": setup.reserve_bytes,
        "limit_bytes": limit_bytes,
        "dim": setup.dim or "batch",
        "at": answer.asked.number if answer.has_number else None,
        "dims": {printable(name): number for name, number in answer.dims.items()},
        "bytes": answer.held.total_bytes,
        "common_bytes": answer.held.common_bytes,
        "shared_bytes": answer.held.shared_bytes,
        "largest": _reach_row(answer),
        "power_of_two": None
        if answer.power_of_two is None
        else {
            **_row(answer.power_of_two),
            "is_better_pick": answer.is_power_better,
        },
        "table": [_row(row) for row in answer.table],
        "instances": {
            "number": setup.fleet.instances,
            "share_weights": setup.fleet.shares_weights,
            "largest": answer.instances if answer.held.is_whole else None,
        },
        "contexts": contexts_row(contexts),
        "remarks": [printable(remark) for remark in answer.remarks],
        "findings": finding_rows(answer.standing.findings),
    }


def _reach_row(answer: FitResult) -> JsonRow | None:
    row, limiting = reach_row(answer.reach), answer.limiting
    if row is None:
        return None
    row["limited_by"] = None if limiting is None else _limiting_row(limiting)
    return row


def _limiting_row(limiting: Footprint) -> JsonRow:
    return {
        "phase": limiting.phase,
        "node": None if limiting.node is None else printable(limiting.node),
        "tensors": [
            {"tensor": printable(each.label), "bytes": each.size_bytes} for each in limiting.tensors
        ],
    }


def _row(row: Row) -> JsonRow:
    return {
        "number": row.number,
        "bytes": row.num_bytes,
        "fits": fits_row(row.verdict),
        "verdict": row.verdict.value,
    }


def _head(answer: FitResult, place: Place, questions: Sequence[AnalysisRequest]) -> list[str]:
    settings = questions[0].settings
    recipe = settings.recipe
    names = "  ".join(shortened(question.model.path) for question in questions)
    fleet = answer.setup.fleet
    symbols = questions[0].prepared.batch_symbols if answer.setup.dim is None else ()
    training = ("training", f"optimizer {recipe.optimizer}", f"precision {recipe.precision}")
    parts = [
        *(training if settings.train else ("inference",)),
        _at(answer) if answer.has_number else "no batch",
        *(
            f"{shortened(name)} = {number:,}"
            for name, number in answer.dims.items()
            if name != answer.setup.dim and name not in symbols
        ),
        *_session(answer, settings, place.device),
        *((f"{fleet.instances:,} instances",) if fleet.instances > 1 else ()),
        *(("weights shared",) if fleet.shares_weights else ()),
    ]
    return [f"{names}  on {shortened(place.name)}", *paragraph("assumes: ", parts)]


def _session(answer: FitResult, settings: Settings, device: Device | None) -> Iterator[str]:
    """What is assumed of a session of onnxruntime, where the figures are of one."""
    if answer.setup.basis not in {Basis.ORT_CPU, Basis.ORT_CUDA}:
        return
    if answer.setup.basis == Basis.ORT_CPU:
        own = "" if device is None or device.cpu is None else " (the device's)"
        yield f"CPU {cpu_named(settings.cpu).name}{own}"
    if not settings.asks_onnxruntime:
        yield "its optimiser emulated"


def _at(answer: FitResult) -> str:
    return f"{shortened(answer.setup.dim or 'batch')} {answer.asked.number:,}"


def _verdict_section(answer: FitResult, place: Place) -> list[str]:
    setup = answer.setup
    said = verdict_text(answer.verdict, answer.held.total_bytes, setup.limit_bytes)
    lines = [fact("FITS", said), *laid_out(terms_lines(answer.standing))]
    lines.append(figure("  memory", setup.memory_bytes, _memory_remark(place.device), wraps=True))
    if setup.reserve_bytes:
        lines.append(figure("  reserve", setup.reserve_bytes, "kept free"))
    return lines


def _memory_remark(device: Device | None) -> str:
    if device is None:
        return "as given"
    if device.usable_bytes is not None:
        return f"usable of {format_bytes(device.memory_bytes)}"
    if device.kind == "mcu":
        return "as sold"
    if device.shares_memory:
        return "as sold; the system takes of it too: --reserve"
    return "as sold; a driver may keep some back: --reserve"


def _largest_section(answer: FitResult) -> list[str]:
    name = shortened(answer.setup.dim or "batch")
    lines = [
        f"LARGEST {name.upper() if answer.setup.dim is None else name}",
        *laid_out(reach_lines(answer)),
    ]
    reach = answer.reach
    if reach is not None and reach.number is not None and not reach.is_stopped:
        lines += _limits(answer.limiting)
    return [*lines, *_power(answer)]


def _limits(limiting: Footprint | None) -> Iterator[str]:
    if limiting is None:
        return
    parts = [
        *((f"the {limiting.phase} phase",) if limiting.phase else ()),
        *((f"at {shortened(limiting.node)}",) if limiting.node else ()),
    ]
    yield fact("  limited by", ", ".join(parts) or "weights and inputs")
    for each in limiting.tensors:
        yield figure("", each.size_bytes, shortened(each.label))


def _power(answer: FitResult) -> Iterator[str]:
    power, reach = answer.power_of_two, answer.reach
    if power is None or reach is None or reach.number is None:
        return
    if power.number == reach.number:
        yield fact("  power of two", "it is one")
        return
    share = 100 * (reach.number - power.number) / reach.number
    pick = "the better pick" if answer.is_power_better else "not the better pick"
    rule = f"gives up {share:.0f} %: {pick}, by the rule of at most a tenth"
    yield fact("  power of two", f"{power.number:,} {rule}")


def _table_section(answer: FitResult) -> list[str]:
    if not answer.table:
        return []
    limit_bytes = answer.setup.limit_bytes
    lines = [f"EACH {shortened(answer.setup.dim or 'batch')}"]
    for row in answer.table:
        free = "" if row.num_bytes is None else f"{_signed(limit_bytes - row.num_bytes):>12}"
        lines.append(figure(f"  {row.number:,}", row.num_bytes, f"{row.verdict.value:<13}{free}"))
    return lines


def _signed(num_bytes: int) -> str:
    return f"{'+' if num_bytes >= 0 else '-'}{format_bytes(abs(num_bytes))}"


def _instances_section(answer: FitResult) -> list[str]:
    fleet = answer.setup.fleet
    if not answer.held.is_whole:
        return []
    count = "no limit" if answer.instances is None else f"{answer.instances:,}"
    how = "sharing weights" if fleet.shares_weights else "each with its weights"
    own = f"{plural(fleet.instances, 'instance')} asked for"
    return [fact("INSTANCES", f"{count} at most, {how}; {own}")]


def _remarks(answer: FitResult, place: Place) -> list[str]:
    remarks = list(answer.remarks)
    if answer.setup.basis is Basis.TORCH and place.device is None:
        remarks.append("a bare size is taken for a GPU's memory")
    if answer.setup.basis is Basis.ORT_CUDA:
        remarks.append("from onnxruntime's sources; no GPU has confirmed its figures yet")
    told = [line for remark in remarks for line in prose("note: ", shortened(remark, 2000))]
    return [*told, *finding_lines(answer.standing.findings)]

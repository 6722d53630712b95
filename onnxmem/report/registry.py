"""Many models: a line each and their summary as text, one JSON document, JSON lines, CSV.

Every form is written piece by piece as the models come: before the first, for each, after the last.
CSV has flat columns. Any frame library makes Parquet of it and of JSON lines:
``polars.read_csv(file).write_parquet(...)``, or ``polars.read_ndjson(file)`` for nested columns.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from onnxmem.analysis.coverage import unbound_dims_text
from onnxmem.analysis.fitting.verdicts import (
    ACCURACIES,
    BASES,
    DATA,
    OF_SEVERAL,
    Accuracy,
    AnyBasis,
    Basis,
    Comparison,
    Verdict,
)
from onnxmem.analysis.json_rows import (
    JsonDict,
    bytes_at,
    document,
    ends_of,
    findings_of,
    guessed_dims,
    session_bytes,
)
from onnxmem.collection.summary import SESSION_FIGURES, FigureSummary, Summary
from onnxmem.errors import Finding, no_formula, shortened
from onnxmem.report.text import (
    csv_line,
    fact,
    finding_lines,
    finding_text,
    joined,
    prose,
    rounded,
    width,
)
from onnxmem.report.verdict import error_text, verdict_text
from onnxmem.units import common_power, format_bytes, format_ends, plural

_SCHEMA: Final = "onnxmem.report"
_SCHEMA_VERSION: Final = "1.0"
_SIZES: Final = (
    ("WEIGHTS", ("weights", "bytes")),
    ("PEAK", ("activations", "in_place_peak_bytes")),
    ("INFERENCE", ("total_bytes",)),
    ("TRAINING", ("training", "peak_bytes")),
)
_OF_SESSIONS: Final = {"process": "PROCESS", "arena": "CUDA ARENA"}
"""Columns of the runtimes that are requested, by the name of their figure."""
_WIDTH: Final = 11
_SMALL: Final = 0.1
"""MiB below which a size has two significant digits in place of two decimals."""
_GAP: Final = "   "
"""Between the parts of a row behind its columns."""
LABELS: Final = {
    "weights": "weights",
    "peak": "peak activation memory",
    "total": "inference",
    "training": "training step",
    "process": "process of onnxruntime",
    "arena": "arena on CUDA",
}
"""Of a summary's figures."""
COLUMNS: Final = (
    *("path", "status", "error.code", "error.message"),
    *("settings.batch", "settings.train", "settings.optimizer", "settings.precision"),
    *("settings.loss", "settings.graph", "file_bytes", "weights.bytes", "weights.parameters"),
    *("inputs_bytes", "outputs_bytes", "batch_law.fixed_bytes", "batch_law.bytes_per_sample"),
    *("activations.naive_bytes", "activations.naive_in_place_bytes", "activations.peak_bytes"),
    *("activations.in_place_peak_bytes", "activations.arena_bytes", "activations.peak_node"),
    *("total_bytes", "training.weight_bytes", "training.buffer_bytes", "training.gradient_bytes"),
    *("training.optimizer_state_bytes", "training.saved_activation_bytes"),
    *("training.input_bytes", "training.forward_peak_bytes", "training.backward_peak_bytes"),
    *("training.optimizer_peak_bytes", "training.peak_bytes", "training.peak_phase"),
    *("training.cuda.reserved_bytes", "training.cuda.total_bytes", "training_law.fixed_bytes"),
    *("training_law.bytes_per_sample", "runtime.name", "runtime.requested_peak_bytes"),
    *("runtime.held_steady_bytes", "runtime.process_bytes", "measured.requested_peak_bytes"),
    *("measured.process_peak_bytes", "compute.forward_macs", "compute.forward_flops"),
    *("compute.backward_flops", "max_batch.batch", "max_batch.peak_bytes", "coverage.nodes"),
    *("coverage.assumed_nodes", "coverage.unknown_tensors", "findings", "verdict.verdict"),
    *("verdict.basis", "verdict.bytes", "verdict.limit_bytes", "verdict.fits_up_to", "notes"),
    *("data_dependent.total_lower_bytes", "data_dependent.total_upper_bytes"),
)
"""The path of each column in a JSON row; its name has ``_`` for the dots. ``findings`` are counted,
and ``notes`` are their texts."""
_MOST_NAMED: Final = 5
"""How many models of unknown verdict are named."""
_LONGEST_CELL: Final = 4096
"""Characters of a cell; a path may have so many."""


def table_head(*, train: bool, runtimes: Sequence[str] = ()) -> str:
    """The line above the rows."""
    names = [name for name, _ in (_SIZES if train else _SIZES[:-1])]
    names += [_OF_SESSIONS[name] for name in _sessions(runtimes)]
    return "".join(f"{name:>{_WIDTH}}" for name in names) + "   MODEL (sizes in MiB)\n"


def _sessions(runtimes: Sequence[str]) -> list[str]:
    """The figures of runtimes that have a column."""
    return [name for name, (runtime, _) in SESSION_FIGURES.items() if runtime in runtimes]


def table_row(row: JsonDict, *, train: bool, runtimes: Sequence[str] = ()) -> str:
    """One model, its name last: no other column depends on how long names are."""
    sizes = [bytes_at(row, keys) for _, keys in (_SIZES if train else _SIZES[:-1])]
    sizes += [session_bytes(row, *SESSION_FIGURES[name]) for name in _sessions(runtimes)]
    cells = "".join(f"{_mebibytes(size):>{_WIDTH}}" for size in sizes)
    parts = (
        _fits(row),
        _undone(row),
        _left_to_data(row, train=train),
        _untrained(row, train=train),
    )
    text = [str(row["path"]), *(part for part in parts if part)]
    return "".join(f"{line}\n" for line in _parts_in_lines(f"{cells}{_GAP}", text))


def _mebibytes(num_bytes: int | None) -> str:
    """A size of a table without its unit: rows are written before the largest of them is known.

    >>> _mebibytes(14 * 2**30), _mebibytes(6_400)
    ('14,336.00', '0.0061')
    """
    if num_bytes is None:
        return "unknown"
    size = num_bytes / 2**20
    return f"{size:,.2f}" if not 0 < size < _SMALL else f"{size:.2g}"


def _parts_in_lines(start: str, parts: Sequence[str]) -> list[str]:
    """As many parts to a line as fit; only a part that is longer than a line is broken."""
    texts = [parts[0]]
    for part in parts[1:]:
        longer = f"{texts[-1]}{_GAP}{part}"
        if len(start) + len(longer) <= width():
            texts[-1] = longer
        else:
            texts.append(part)
    starts = (start, *(" " * len(start) for _ in texts[1:]))
    return [line for each in zip(starts, texts, strict=True) for line in prose(*each)]


def table_end(row: JsonDict, *, is_only: bool) -> str:
    """What comes below the rows, of which this is one: the error of verdicts, and its notes."""
    verdict: Any = row["verdict"]
    lines = [*finding_lines(findings_of(row))] if is_only else []
    if verdict is not None and verdict["accuracy"] is not None:
        lines = prose("accuracy: ", error_text(Accuracy(**verdict["accuracy"]))) + lines
    return "".join(f"{line}\n" for line in lines)


def render_summary(summary: Summary) -> str:
    """Totals, percentiles, the heaviest, what fits where, and failures by their codes."""
    blocks = [
        _totals_section(summary),
        _fitting_section(summary),
        _percentiles_section(summary.figures),
        _heaviest_section(summary),
        _faults_section(summary),
        _notes_section(summary),
    ]
    return joined(blocks)


def summary_line(summary: Summary) -> str:
    """How many models there are, what becomes of them, and what they take in all: one line."""
    line = f"{plural(summary.num_models, 'model')}: {', '.join(_counts(summary))}"
    figure = next(each for each in summary.figures if each.name == summary.heaviest_by)
    if figure.sum_bytes is not None:
        least = "at least " if figure.num_data or figure.num_incomplete else ""
        line += f"; {LABELS[figure.name]} {least}{format_bytes(figure.sum_bytes)} in all"
    return f"{line}\n"


def _counts(summary: Summary) -> Iterator[str]:
    """The verdicts on the budget where there is one, else what could be analyzed; failures."""
    statuses = summary.statuses
    if summary.verdicts:
        yield from (f"{number:,} {OF_SEVERAL[each]}" for each, number in summary.verdicts.items())
    else:
        yield from (f"{statuses[name]:,} {name}" for name in ("ok", "partial") if statuses[name])
    if statuses["error"]:
        yield f"{statuses['error']:,} failed"


def summary_row(summary: Summary) -> JsonDict:
    """The summary as plain values; bytes are exact, ``None`` is unknown."""
    return {
        "models": summary.num_models,
        "statuses": dict(summary.statuses),
        "errors": dict(summary.faults),
        "figures": {each.name: _figure_row(each) for each in summary.figures},
        "heaviest_by": summary.heaviest_by,
        "heaviest": [{"path": path, "bytes": size} for path, size in summary.heaviest],
        "devices": [
            {
                "name": each.target.name,
                "limit_bytes": each.target.limit_bytes,
                "basis": each.basis and each.basis.value,
                "fits": each.fits,
                "tight": each.tight,
                "does_not_fit": each.does_not_fit,
                "unknown": each.unknown,
            }
            for each in summary.fittings
        ],
        "findings": dict(summary.findings),
    }


def json_head() -> str:
    """What comes before the first row of a document of the contract ``onnxmem.report``."""
    return json.dumps(document(_SCHEMA, _SCHEMA_VERSION, {"models": []}), indent=1).removesuffix(
        "]\n}"
    )


def json_row(row: JsonDict, *, is_first: bool) -> str:
    """One row within the document."""
    return ("\n" if is_first else ",\n") + _indented(json.dumps(row, indent=1), 2)


def json_tail(summary: Summary | None) -> str:
    """What comes after the last row."""
    if summary is None:
        return "\n ]\n}\n"
    text = _indented(json.dumps(summary_row(summary), indent=1), 1).lstrip()
    return f'\n ],\n "summary": {text}\n}}\n'


def _indented(text: str, by: int) -> str:
    return "\n".join(" " * by + line for line in text.splitlines())


def _fits(row: JsonDict) -> str:
    """The verdict on the budget, where one is given."""
    verdict: Any = row["verdict"]
    if verdict is None:
        return ""
    compared = Comparison(
        verdict=Verdict(verdict["verdict"]),
        num_bytes=verdict["bytes"],
        unlimited_bytes=verdict["unlimited_bytes"],
    )
    text = verdict_text(compared, verdict["limit_bytes"])
    columns = [bytes_at(row, keys) for _, keys in _SIZES]
    columns += [session_bytes(row, *keys) for keys in SESSION_FIGURES.values()]
    if compared.num_bytes is not None and compared.num_bytes not in columns:
        # On CUDA a context comes to what the columns have.
        text += f", takes {format_bytes(compared.num_bytes)}"
    doubts = verdict["doubts"]
    if compared.verdict is Verdict.UNKNOWN and all(each.startswith(f"{DATA}:") for each in doubts):
        text = text.replace(compared.verdict.value, "depends on the data", 1)
    return text


def _undone(row: JsonDict) -> str:
    """Why figures of a model are missing or lower bounds."""
    if row["status"] not in {"error", "partial"}:
        return ""
    error = row["error"]
    if isinstance(error, dict):
        return f"error: {error['code']}"
    guessed = guessed_dims(row)
    if guessed:
        return f"partial: {shortened(unbound_dims_text(guessed))}"
    return "" if row.get("data_dependent") else "partial: lower bounds"


def _left_to_data(row: JsonDict, *, train: bool) -> str:
    """Both ends of the figures that the data of a run decide."""
    ends = [("inference", ends_of(row)), *((("training", ends_of(row, "training_peak")),) * train)]
    parts = [f"{name} {_ends_text(*each)}" for name, each in ends if each is not None]
    return ", ".join(parts)


def _ends_text(least_bytes: int | None, most_bytes: int | None) -> str:
    text = format_ends(least_bytes, most_bytes)
    return text if most_bytes is not None else f"{text}, no upper end"


def _untrained(row: JsonDict, *, train: bool) -> str:
    """Why the training figure of a model is not that of a step that trains it."""
    codes = {each.code for each in findings_of(row)} if train else set()
    if "nothing_to_train" in codes:
        return "training: no trainable weights"
    return "training: quantized weights not trained" if "quantized_training" in codes else ""


def _totals_section(summary: Summary) -> list[str]:
    statuses = summary.statuses
    parts = [f"{statuses[name]:,} {name}" for name in ("ok", "partial") if statuses[name]]
    failed = [f"{statuses['error']:,} failed"] if statuses["error"] else []
    lines = [f"Total of {plural(summary.num_models, 'model')}: {', '.join([*parts, *failed])}"]
    if summary.verdicts:
        verdicts = (f"{number:,} {OF_SEVERAL[each]}" for each, number in summary.verdicts.items())
        lines.append(fact("  budget", ", ".join(verdicts)))
    power = common_power(each.sum_bytes for each in summary.figures)
    lines += [
        rounded(f"  {LABELS[each.name]}", each.sum_bytes, _bound(each), power=power)
        for each in summary.figures
    ]
    return lines


def _bound(each: FigureSummary) -> str:
    """What is left out of a total, and its ends where the data of a run decide."""
    parts = []
    if each.num_data:
        parts.append(_ends_text(each.sum_lower_bytes, each.sum_upper_bytes))
    if each.num_incomplete:
        incomplete = f"{plural(each.num_incomplete, 'model')} incomplete"
        # A total that counts the larger branch of an If is no lower bound; the ends are beside it.
        parts.append(incomplete if parts else f"lower bound: {incomplete}")
    return "; ".join(parts)


def _percentiles_section(figures: Iterable[FigureSummary]) -> list[str]:
    known = [each for each in figures if each.percentiles]
    if not known:
        return []
    names = [f"p{percent}" for percent, _ in known[0].percentiles]
    head = "".join(f"{name:>{_WIDTH}}" for name in (*names, "largest"))
    lines = [f"{'Percentiles (MiB)':<24}{head}"]
    for each in known:
        sizes = [*(size for _, size in each.percentiles), each.max_bytes]
        cells = "".join(f"{_mebibytes(size):>{_WIDTH}}" for size in sizes)
        lines.append(f"{'  ' + LABELS[each.name]:<24}{cells}")
    if any(each.num_data for each in known):
        lines += prose("  where data decide sizes: ", _OF_NO_RUN)
    return lines


_OF_NO_RUN: Final = "of known sizes, larger branches and one iteration of a Loop"
"""What a figure is that is neither at least nor at most."""


def _heaviest_section(summary: Summary) -> list[str]:
    power = common_power(size for _, size in summary.heaviest)
    lines = [rounded("", size, path, power=power) for path, size in summary.heaviest]
    name = summary.heaviest_by
    if any(each.num_data for each in summary.figures if each.name == name):
        lines += prose("  where data decide sizes: ", _OF_NO_RUN)
    return [f"Heaviest by {LABELS[name]}", *lines] if lines else []


def _fitting_section(summary: Summary) -> list[str]:
    if not summary.fittings:
        return [fact("Next", "--device 24GiB (repeatable): how many of them fit")]
    lines = ["Fits, each model alone"]
    power = common_power(each.target.limit_bytes for each in summary.fittings)
    for each in summary.fittings:
        limit = f"{each.fits:,} of {summary.num_models:,}"
        unknown = f", {each.unknown:,} unknown" if each.unknown else ""
        tight = f", {each.tight:,} tight" if each.tight else ""
        own = each.target.cpu if each.basis is Basis.ORT_CPU else None
        cpu = "" if own is None else f", on the device's {own}"
        remark = f"{limit} fit{tight}, {each.does_not_fit:,} too large{unknown}{cpu}"
        size = each.target.limit_bytes
        lines.append(rounded(f"  {each.target.name}", size, remark, power=power))
    paths = dict.fromkeys(path for each in summary.fittings for path in each.unknown_paths)
    if paths:
        names = ", ".join(map(shortened, [*paths][:_MOST_NAMED]))
        more = f" and {len(paths) - _MOST_NAMED:,} more" if len(paths) > _MOST_NAMED else ""
        lines += prose("  unknown: ", f"{names}{more}")
    for basis in dict.fromkeys(each.basis for each in summary.fittings if each.basis):
        lines += prose("  compared: ", BASES[basis])
        for which, error in errors_of(summary, basis):
            lines += prose(f"  accuracy{which}: ", error)
    return lines


def errors_of(summary: Summary, basis: AnyBasis) -> Iterator[tuple[str, str]]:
    """The errors of a compared figure, each with its targets where they differ in it."""
    named: dict[Accuracy, list[str]] = {}
    for each in summary.fittings:
        if each.basis == basis:
            named.setdefault(each.accuracy or ACCURACIES[basis], []).append(each.target.name)
    for accuracy, targets in named.items():
        yield "" if len(named) == 1 else f" ({', '.join(targets)})", error_text(accuracy)


def _faults_section(summary: Summary) -> list[str]:
    lines = [fact(f"  {code}", f"{n:,}") for code, n in summary.faults.items()]
    return ["Failed, by code", *lines] if lines else []


def _notes_section(summary: Summary) -> list[str]:
    """The findings, each with the words of the first model that has it."""
    lines: list[str] = []
    for each in summary.notes:
        others = f" and {each.num_models - 1:,} more" if each.num_models > 1 else ""
        which = f"{shortened(each.path)}{others}: "
        lines += prose("  ", which + finding_text(Finding(each.code, each.message)))
    return ["Notes", *lines] if lines else []


def _figure_row(each: FigureSummary) -> JsonDict:
    return {
        "known": each.num_known,
        "partial": each.num_partial,
        "sum_bytes": each.sum_bytes,
        **(
            {"sum_lower_bytes": each.sum_lower_bytes, "sum_upper_bytes": each.sum_upper_bytes}
            if each.num_data
            else {}
        ),
        **{f"p{percent}_bytes": size for percent, size in each.percentiles},
        "max_bytes": each.max_bytes,
    }


def csv_head() -> str:
    """The names of the columns: a JSON path's, ``_`` for each dot."""
    return csv_line([column.replace(".", "_") for column in COLUMNS])


def csv_row(row: JsonDict) -> str:
    """One model: whole numbers, ``true`` and ``false``, and nothing where it is unknown."""
    return csv_line([csv_cell(_value_at(row, column)) for column in COLUMNS])


def jsonl_row(row: JsonDict) -> str:
    """One model on a line of its own: the row of the JSON contract, whole."""
    return json.dumps(row) + "\n"


def _value_at(row: JsonDict, column: str) -> object:
    if column == "notes":
        return "; ".join(map(finding_text, findings_of(row)))
    value: Any = row
    for key in column.split("."):
        if value is None:
            return None
        value = value.get(key)
    return value


def csv_cell(value: object) -> str:
    """A value as the text of a cell; nothing where it is unknown, and never a formula."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return str(len(value))
    return no_formula(shortened(value, _LONGEST_CELL)) if isinstance(value, str) else str(value)

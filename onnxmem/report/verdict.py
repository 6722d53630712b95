"""The verdict on memory in words, and the section of a budget: the same lines in every report."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from onnxmem.analysis.fitting.verdicts import (
    BASES,
    DATA,
    Accuracy,
    AnyBasis,
    Basis,
    Comparison,
    Doubt,
    Verdict,
)
from onnxmem.errors import shortened
from onnxmem.report.sections.section import Line, Section, formula_lines
from onnxmem.runtimes.assumed import Assumed
from onnxmem.units import format_bytes

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis
    from onnxmem.analysis.fitting.assessing import Assessment, FitResult, TableRow
    from onnxmem.analysis.fitting.footprints import Footprint
    from onnxmem.analysis.fitting.searching import MaxBatch

_MOST_RANGES: Final = 5
_RETRIES: Final = "but only because the allocator retries"
_HOW: Final[Mapping[AnyBasis, str]] = {
    Basis.TORCH: "in a full device PyTorch releases cached segments and tries again",
    Basis.ORT_CUDA: "in a full device the arena of onnxruntime asks for smaller regions",
}
"""What an allocator does before it gives up."""
_HOW_ELSE: Final = "in a full device the allocator tries again"
_IN_RANGE: Final = "less than the figure may be off by"


def alone_text(basis: AnyBasis) -> str:
    """What is said behind a figure without a runtime; empty: it has one."""
    return ", by the tensors alone" if basis is Basis.TOTAL else ""


def until_text(doubts: Iterable[Doubt]) -> str:
    """What an unknown verdict waits for: `` until --dim sequence=N is given``; empty: no flag.

    Other doubts may be left when it is given.
    """
    return "".join(f" until {doubt.until}" for doubt in doubts if doubt.until)


def verdict_text(compared: Comparison, limit_bytes: int, doubts: Iterable[Doubt] = ()) -> str:
    """A verdict and by how much; an unknown one names the flag that it waits for.

    >>> verdict_text(compared_bytes(3 * 2**30, 4 * 2**30), 4 * 2**30)
    'fits: 1.00 GiB free'
    """
    verdict, num_bytes = compared.verdict, compared.num_bytes
    if num_bytes is None:
        return "unknown: nothing is known of it"
    free_bytes = limit_bytes - num_bytes
    margin = format_bytes(abs(free_bytes))
    if compared.flash_margin_bytes is not None:
        return _on_two_memories(compared, free_bytes, compared.flash_margin_bytes)
    if verdict is Verdict.TIGHT:
        return f"tight: {margin} free, {_RETRIES if compared.is_retried else _IN_RANGE}"
    if verdict is Verdict.UNKNOWN:
        doubts = tuple(doubts)
        return (
            f"unknown{until_text(doubts)}: {'at most ' if free_bytes >= 0 else ''}{margin} "
            + ("free" if free_bytes >= 0 else "over")
            + at_text(doubts)
        )
    # Bytes over the limit on an empty device may run all the same, and bytes within it may not.
    return f"{verdict.value}: {margin} {'free' if free_bytes >= 0 else 'over'}"


def _on_two_memories(compared: Comparison, ram_bytes: int, flash_bytes: int) -> str:
    """The verdict on a microcontroller; a memory that is too small comes first."""
    parts = [
        f"{format_bytes(abs(free_bytes))} {'free in' if free_bytes >= 0 else 'too little'} {name}"
        for free_bytes, name in sorted(((ram_bytes, "RAM"), (flash_bytes, "flash")))
    ]
    at_most = "at most " if compared.verdict is Verdict.UNKNOWN else ""
    return f"{compared.verdict.value}: {at_most}{', '.join(parts)}"


def budget(analysis: "Analysis") -> Section | None:
    """Whether the model fits the budget, and the largest batch; ``None`` without a budget."""
    budget_bytes, result = analysis.settings.budget_bytes, analysis.fit
    if budget_bytes is None:
        return None
    if result is None:
        total = Line("", budget_bytes, "unknown: the figure is not known; see Notes")
        return Section(key="fits", title="Budget", total=total)
    batch = analysis.settings.batch
    text = verdict_text(result.requested, budget_bytes, result.doubts)
    at = "" if batch is None else f"batch {batch:,} "
    affine = analysis.batch_law if analysis.training is None else analysis.training_law
    return Section(
        key="fits",
        title="Budget",
        total=Line("", budget_bytes, at + text),
        lines=(
            *assessment_lines(result.assessment, result.requested),
            *max_batch_lines(result),
            *formula_lines(affine),
            *_rule_lines(analysis.rule_max_batch),
        ),
    )


def _rule_lines(batch: int | None) -> Iterator[Line]:
    if batch is not None:
        rule = f"batch {batch:,} = budget / 4 / (tensor elements + parameters)"
        yield Line("rule of thumb", text=rule)


def retries_text(compared: Comparison, basis: AnyBasis) -> str:
    """What a run that succeeds only by retries takes elsewhere, and what its allocator does."""
    unlimited = format_bytes(compared.unlimited_bytes)
    return f"{unlimited} on a larger device; {_HOW.get(basis, _HOW_ELSE)}"


def assessment_lines(assessment: "Assessment", compared: Comparison | None) -> Iterator[Line]:
    """What is compared: its bytes, what of them is assumed, its error and what is in doubt."""
    footprint = assessment.footprint
    takes_bytes = footprint.total_bytes if compared is None else compared.num_bytes
    end = "" if compared is None else end_text(assessment, compared)
    basis = BASES[assessment.basis]
    yield Line("takes", takes_bytes, f"{end.strip()}; {basis}" if end else basis)
    yield from _assumed("context", footprint.context, "--cuda-context")
    yield from _assumed("workspace", footprint.workspace, "--cuda-workspace")
    if footprint.range_bytes:
        high_bytes = footprint.total_bytes + footprint.range_bytes
        yield Line("or", high_bytes, "with the BatchNormalization that may be folded", depth=2)
    if footprint.heap_bytes:
        high_bytes = footprint.total_bytes + footprint.heap_bytes
        text = "if the heap does not reuse the places of freed weights: external weights avoid it"
        yield Line("or", high_bytes, text, depth=2)
    if compared is not None and compared.is_retried:
        yield Line("retries", text=retries_text(compared, assessment.basis))
    yield Line("accuracy", text=_error_of(assessment))
    if takes_bytes == footprint.total_bytes:
        yield from observed_lines(footprint, assessment.doubts)
    is_open = compared is None or compared.verdict is Verdict.UNKNOWN
    for doubt in assessment.doubts:
        if doubt.code == DATA and not is_open:
            yield Line("data", text=doubt.message)
        else:
            yield doubt_line(doubt)


def doubt_line(doubt: Doubt) -> Line:
    """Why a verdict is unknown, and what settles it."""
    return Line("uncertain", text=f"{doubt.message} ({doubt.settled_by})")


def end_text(assessment: "Assessment", compared: Comparison) -> str:
    """Of which end the compared figure is; empty: of no end, or of an observed run."""
    footprint, num_bytes = assessment.footprint, compared.num_bytes
    if footprint.is_whole:
        return ""
    if num_bytes is not None and num_bytes == footprint.upper_bytes:
        return "at most "
    is_least = assessment.is_least_accepted and not footprint.num_observed
    return "at least " if is_least else ""


def _error_of(assessment: "Assessment") -> str:
    """The error of a figure; of one that the data of a run decide, the range is the error."""
    accuracy = assessment.accuracy
    if accuracy.percent == 0 and any(doubt.code == DATA for doubt in assessment.doubts):
        return f"the range that the data decide; the rest is {accuracy.source}"
    return error_text(accuracy)


def observed_lines(footprint: "Footprint", doubts: Iterable[Doubt]) -> Iterator[Line]:
    """That a figure is of observed runs, unless a doubt says so."""
    if footprint.num_observed and all(doubt.code != DATA for doubt in doubts):
        upper_bytes = footprint.upper_bytes
        most = "" if upper_bytes is None else f", at most {format_bytes(upper_bytes)}"
        text = f"{footprint.observed_text}; other inputs may take more{most}"
        yield Line("observed", text=text)


def short_error(accuracy: Accuracy) -> str:
    """The error without the largest one.

    >>> short_error(Accuracy.measured(7.0, "90 % of 153 files", 26.2))
    '+-7 % (90 % of 153 files)'
    """
    if not accuracy.share:
        return error_text(accuracy)
    return f"+-{accuracy.percent:g} % ({accuracy.share})"


def error_text(accuracy: Accuracy) -> str:
    """How far a figure may be off, and the source of that.

    >>> error_text(Accuracy.measured(7.0, "90 % of 153 files", 26.2))
    '+-7 %: 90 % of 153 files are within it, the largest is 26.2 %'
    """
    return (f"+-{accuracy.percent:g} %: " if accuracy.percent else "") + accuracy.source


def _assumed(label: str, assumed: Assumed, flag: str) -> Iterator[Line]:
    if not assumed.high_bytes:
        return
    if assumed.low_bytes == assumed.high_bytes:
        yield Line(label, assumed.size_bytes, assumed.source, depth=2)
        return
    to = f"{format_bytes(assumed.low_bytes)} to {format_bytes(assumed.high_bytes)}"
    of_cards = ", for any card" if label == "context" else ""
    yield Line(label, assumed.size_bytes, f"assumed of {to}{of_cards}; {flag}", depth=2)


def largest_text(result: "FitResult") -> str:
    """The largest number that fits, what the next one lacks, and where tight begins."""
    max_batch = result.max_batch
    if max_batch is None:
        return _unknown_text(result)
    if max_batch.number is None:
        from onnxmem.analysis.scaling import LARGEST_BATCH

        return f"no limit: it fits up to {LARGEST_BATCH:,}"
    if result.requested.lacks_flash:
        return "0: the weights do not fit the flash"
    at = _row_at(result, max_batch.number or 1)
    doubt = held_text(result) or (", as uncertain as the figures" if result.doubts else "")
    if result.assessment.is_least_accepted:
        doubt = ", by the least that a run takes"
    elif at is not None and at.is_at_most:
        doubt = ", whatever the data are"
        if not max_batch.number and at.verdict is Verdict.UNKNOWN:
            # With some data 1 does fit.
            return "0" + doubt.removeprefix(",") + _next(result).replace("more)", "more at most)")
    return f"{max_batch.number:,}{_next(result)}{_tight(max_batch)}{doubt}"


def _unknown_text(result: "FitResult") -> str:
    """Why no largest number is known."""
    if result.has_own_batches:
        return "unknown: the models have different batches; --batch N sets one"
    if not result.has_number:
        return "unknown: the model has no batch"
    if result.is_fixed:
        return f"unknown: {shortened(result.setup.dim or 'batch')} is fixed by --shape"
    is_least = result.requested.num_bytes is not None
    return f"unknown: bytes at 1 are {'a lower bound' if is_least else 'not known'}"


def held_text(result: "FitResult") -> str:
    """The dims that a number is found at, where nothing gave them; at others it is another."""
    return at_text(result.doubts)


def at_text(doubts: Iterable[Doubt]) -> str:
    """The dims that figures are of, where nothing gave them: ``, at sequence = 1``."""
    return "".join(f", at {doubt.at}" for doubt in doubts if doubt.at)


def max_batch_lines(result: "FitResult") -> Iterator[Line]:
    """The largest number that fits, where tight begins, and what fits again above."""
    max_batch, name = result.max_batch, shortened(result.setup.dim or "batch")
    yield Line(f"largest {name} that fits", text=largest_text(result))
    if max_batch is None or max_batch.number is None or result.requested.lacks_flash:
        return
    if max_batch.above:
        yield Line("fits again", text=_ranges_text(max_batch))
    if max_batch.number:
        yield Line(
            f"at {max_batch.number:,}",
            max_batch.num_bytes,
            "" if (row := _row_at(result, max_batch.number)) is None else row.verdict.value,
            depth=2,
        )
    over = "the model cannot be analyzed there"
    if not max_batch.is_stopped:
        phase = result.limiting.peak.phase if result.limiting else None
        over = "does not fit" + (f" ({phase})" if phase else "")
        above = _row_at(result, max_batch.number + 1)
        if above is not None and above.verdict is Verdict.UNKNOWN:
            over = "at most; depends on the data"
    yield Line(f"at {max_batch.number + 1:,}", max_batch.over_bytes, over, depth=2)
    yield Line("found by", text=_found_by(max_batch))


def _found_by(max_batch: "MaxBatch") -> str:
    """How the largest number was found, and what proves it."""
    if max_batch.method == "every number" and max_batch.number == 0:
        return "computing 1, which takes the least"
    if max_batch.method == "every number":
        return f"replaying each of the {max_batch.num_replayed:,} whose tensors fit"
    if max_batch.method == "replays":
        return f"{max_batch.num_replayed:,} replays near the limit, not of every number"
    if max_batch.number == 0:
        return "computing 1, which takes the least"
    next_number = "" if max_batch.number is None else f" and {max_batch.number + 1:,}"
    checked = f"{max_batch.number:,}{next_number}" if max_batch.number else "the last"
    how = "a formula" if max_batch.method == "closed form" else max_batch.method
    if max_batch.num_replayed:
        how += f", {max_batch.num_replayed:,} replays, as if bytes never fell"
    return f"{how}, checked by computing {checked}"


def _next(result: "FitResult") -> str:
    """What the next number lacks: `` (294 needs 35.9 MiB more)``.

    Where the largest succeeds only by retries, so could the next with fewer bytes than it asks for.
    """
    max_batch, limit_bytes = result.max_batch, result.setup.limit_bytes
    if max_batch is None or max_batch.number is None or max_batch.over_bytes is None:
        return ""
    over_bytes = max_batch.over_bytes - limit_bytes
    at = _row_at(result, max_batch.number)
    if over_bytes <= 0 or (at is not None and at.is_retried):
        return ""
    return f" ({max_batch.number + 1:,} needs {format_bytes(over_bytes)} more)"


def _tight(max_batch: "MaxBatch") -> str:
    if max_batch.comfortable is None or max_batch.comfortable >= (max_batch.number or 0):
        return ""
    return f", tight from {max_batch.comfortable + 1:,}"


def _ranges_text(max_batch: "MaxBatch") -> str:
    ranges = [
        f"{first:,}" if first == last else f"{first:,} to {last:,}"
        for first, last in max_batch.above[:_MOST_RANGES]
    ]
    left = len(max_batch.above) - len(ranges)
    more = f" and {left:,} more, the last up to {max_batch.above[-1][1]:,}" if left else ""
    return ", ".join(ranges) + more


def _row_at(result: "FitResult", number: int) -> "TableRow | None":
    return next((row for row in result.table if row.number == number), None)

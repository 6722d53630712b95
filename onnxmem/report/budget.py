"""The budget in the text report: whether the batch asked for fits, and the largest that does."""

from typing import TYPE_CHECKING

from onnxmem.capacity import LARGEST_BATCH, BatchLimit
from onnxmem.report.lines import fact, figure, law_text
from onnxmem.units import format_bytes

if TYPE_CHECKING:
    from onnxmem.analysis import Analysis


def budget_section(analysis: "Analysis") -> list[str]:
    """What fits; empty where no budget is given."""
    budget_bytes = analysis.settings.budget_bytes
    if budget_bytes is None:
        return []
    training = analysis.training
    ours = analysis.total_bytes if training is None else training.peak_bytes
    answer = "RUN" if training is None else "TRAIN"
    batch = analysis.settings.batch
    this = "this model" if batch is None else f"batch {batch:,}"
    bound = ", a lower bound," if not analysis.is_whole else ""
    lines = [
        figure("FITS", budget_bytes, f"budget that {answer}{bound} is held against"),
        figure(f"  {this}", ours, _verdict(ours, budget_bytes)),
        *_limit_lines(analysis.max_batch, budget_bytes),
    ]
    law = analysis.batch_law if training is None else analysis.training_law
    if law is not None:
        lines.append(fact("  formula", law_text(law)))
    if analysis.rule_max_batch is not None:
        rule = f"batch {analysis.rule_max_batch:,} = budget / 4 / (tensor elements + parameters)"
        lines.append(fact("  usual formula", rule))
    return lines


def _verdict(num_bytes: int | None, budget_bytes: int) -> str:
    if num_bytes is None:
        return "nothing is known of it"
    free_bytes = budget_bytes - num_bytes
    if free_bytes < 0:
        return f"does not fit: {format_bytes(-free_bytes)} over"
    return f"fits: {format_bytes(free_bytes)} free"


def _limit_lines(limit: BatchLimit | None, budget_bytes: int) -> list[str]:
    if limit is None:
        return [fact("  largest batch", "unknown: the model has no batch, or bytes are unknown")]
    if limit.batch is None:
        everything = f"bytes do not reach the budget up to batch {LARGEST_BATCH:,}"
        return [fact("  largest batch", f"no limit: {everything}")]
    lines = [fact("  largest batch", f"{limit.batch:,}")]
    if limit.peak_bytes is not None:
        verdict = _verdict(limit.peak_bytes, budget_bytes)
        lines.append(figure(f"    at {limit.batch:,}", limit.peak_bytes, verdict))
    phase = f" ({limit.limiting_phase})" if limit.limiting_phase else ""
    verdict = _verdict(limit.over_bytes, budget_bytes) + phase
    return [*lines, figure(f"    at {limit.batch + 1:,}", limit.over_bytes, verdict)]

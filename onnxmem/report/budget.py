"""The budget in the text report: whether the batch asked for fits, and the largest that does."""

from typing import TYPE_CHECKING

from onnxmem.report.lines import fact, figure, law_text
from onnxmem.report.verdict import reach_lines, terms_lines, verdict_text

if TYPE_CHECKING:
    from onnxmem.analysis import Analysis


def budget_section(analysis: "Analysis") -> list[str]:
    """What fits; empty where no budget is given."""
    budget_bytes, answer = analysis.settings.budget_bytes, analysis.fit
    if budget_bytes is None:
        return []
    if answer is None:
        return [figure("FITS", budget_bytes, "unknown: the figure cannot be had; see FINDINGS")]
    batch = analysis.settings.batch
    said = verdict_text(answer.verdict, answer.held.total_bytes, budget_bytes)
    lines = [
        figure("FITS", budget_bytes, f"{'' if batch is None else f'batch {batch:,} '}{said}"),
        *terms_lines(answer.standing),
        *reach_lines(answer),
    ]
    law = analysis.batch_law if analysis.training is None else analysis.training_law
    if law is not None:
        lines.append(fact("  formula", law_text(law)))
    if analysis.rule_max_batch is not None:
        rule = f"batch {analysis.rule_max_batch:,} = budget / 4 / (tensor elements + parameters)"
        lines.append(fact("  rule of thumb", rule))
    return lines

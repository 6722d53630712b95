"""The rules of thumb in the text report, beside the answer that they stand for."""

from dataclasses import fields
from typing import TYPE_CHECKING

from onnxmem.analysis.rules_of_thumb import FORMULAS, RulesOfThumb
from onnxmem.report.lines import figure
from onnxmem.units import format_bytes

if TYPE_CHECKING:
    from onnxmem.analysis import Analysis


def rules_section(analysis: "Analysis") -> list[str]:
    """What the rules of the field would have said, and how far from the answer."""
    training = analysis.training
    ours = analysis.total_bytes if training is None else training.peak_bytes
    answer = "RUN" if training is None else "TRAIN"
    lines = [f"RULES OF THUMB, as multiples of {answer} ({format_bytes(ours)})"]
    for rule in fields(RulesOfThumb):
        num_bytes: int | None = getattr(analysis.rules_of_thumb, rule.name)
        ratio, formula = _ratio(num_bytes, ours), FORMULAS[rule.name]
        lines.append(figure(f"  {ratio}", num_bytes, formula, wraps=True))
    return lines


def _ratio(num_bytes: int | None, ours: int | None) -> str:
    return "unknown" if num_bytes is None or not ours else f"{num_bytes / ours:.2f} x"

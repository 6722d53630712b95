"""The training step in the text report: its terms as a sum, and the rules of thumb beside it."""

from dataclasses import fields

from onnxmem.analysis import Analysis
from onnxmem.capacity import BatchLaw
from onnxmem.report.lines import fact, figure, law_text
from onnxmem.training import TrainingMemory
from onnxmem.training.rules_of_thumb import FORMULAS, RulesOfThumb
from onnxmem.units import format_bytes


def training_section(training: TrainingMemory | None, law: BatchLaw | None) -> list[str]:
    """The peak of a step as a sum of what is live then; empty where no training is asked for."""
    if training is None:
        return []
    phase = f", in its {training.peak_phase} phase" if training.peak_phase else ""
    lines = [figure("TRAIN", training.peak_bytes, f"peak of one step{phase}")]
    terms = _terms(training)
    lines += [figure(f"  {label}", num_bytes, remark) for label, num_bytes, remark in terms]
    if training.peak_bytes is not None:
        rest_bytes = training.peak_bytes - sum(num_bytes or 0 for _, num_bytes, _ in terms)
        lines += _rest(training, rest_bytes)
    lines.append(fact("  by phase", _phases(training)))
    lines.append(fact("", "each a sum of terms, an estimate of when they are live together"))
    if law is not None:
        lines.append(fact("  formula", law_text(law)))
    return lines


def _terms(training: TrainingMemory) -> list[tuple[str, int | None, str]]:
    """The terms of the step by name, live at its peak or not."""
    return [
        ("weights", training.weight_bytes, "trained"),
        ("buffers", training.buffer_bytes, "held, not trained"),
        ("optimizer state", training.optimizer_state_bytes, training.recipe.optimizer),
        ("gradients", training.gradient_bytes, "of the weights"),
        ("saved activations", training.saved_activation_bytes, "for the backward pass"),
        ("inputs, targets", training.input_bytes, ""),
    ]


def _rest(training: TrainingMemory, rest_bytes: int) -> list[str]:
    """What the named terms leave of the peak, above or below it."""
    if rest_bytes == 0:
        return []
    if rest_bytes < 0:
        return [
            figure("  not live at the peak", rest_bytes, "of the above: freed, or not yet made")
        ]
    what = {
        "optimizer": "outputs, and what the optimizer makes and frees",
        "backward": "gradients of activations, outputs, work space",
    }
    return [figure("  others live", rest_bytes, what.get(training.peak_phase or "", ""))]


def _phases(training: TrainingMemory) -> str:
    phases = {
        "forward": training.forward_peak_bytes,
        "backward": training.backward_peak_bytes,
        "optimizer": training.optimizer_peak_bytes,
    }
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in phases.items())


def rules_section(analysis: Analysis) -> list[str]:
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

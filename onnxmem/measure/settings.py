"""How a model is measured."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from onnxmem.children.running import ChildLimits, available_bytes
from onnxmem.errors import UsageError
from onnxmem.runtimes.onnxruntime.session_options import Provider, SessionOptions
from onnxmem.settings import Values

STEPS: Final = ("opening the model", "one run, node by node", "further runs", "the process")
"""What is told of the progress, in this order."""


def no_progress(step: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSettings:
    """Backend, runs, inputs and limits."""

    provider: Provider = "cpu"
    runs: int = 3
    options: SessionOptions = field(default_factory=SessionOptions)
    inputs_npz: str | None = None
    """A file of real inputs, whose shapes are taken; made up where there is none."""
    values: Mapping[str, Values] = field(default_factory=dict)
    """What small inputs are fed, where that is not made up."""
    seconds: float = 300.0
    """For each process that runs the model."""
    memory_bytes: int | None = None
    """For each process; ``None``: what is free on this machine."""
    one_of_several: bool = False
    """Whether dims and values are of several models: one that this model lacks is a finding."""
    tell: Callable[[str], None] = no_progress
    """Called with one of ``STEPS`` when it begins."""

    def __post_init__(self) -> None:
        """Refuse what no run can be.

        :raises UsageError: no run at all, no time for one, or an input that is given twice.
        """
        if self.runs < 1 or self.seconds <= 0:
            message = (
                f"{self.runs} runs in {self.seconds:g} s: a measurement takes one run at least"
            )
            raise UsageError(message)
        if self.values and self.inputs_npz is not None:
            message = "the inputs file holds every input; give no --value beside --inputs"
            raise UsageError(message)

    def child_limits(self) -> ChildLimits:
        """The limits in effect; CUDA reserves more address space than it uses, and gets it."""
        if self.provider == "cuda":
            return ChildLimits(self.seconds, self.memory_bytes)
        return ChildLimits(self.seconds, self.memory_bytes or available_bytes())

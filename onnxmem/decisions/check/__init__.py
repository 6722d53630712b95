"""A gate for CI: budgets, and whether models keep them."""

from onnxmem.decisions.check.baseline import Baseline, read_baseline
from onnxmem.decisions.check.budgets import Budget, Growth, read_growth, read_percent
from onnxmem.decisions.check.checking import Analyse, Gate, relative_path
from onnxmem.decisions.check.configuration import (
    Configuration,
    find_configuration,
    read_configuration,
)
from onnxmem.decisions.check.verdicts import Check, CheckedModel, Checkup, Figure, Held

__all__ = [
    "Analyse",
    "Baseline",
    "Budget",
    "Check",
    "CheckedModel",
    "Checkup",
    "Configuration",
    "Figure",
    "Gate",
    "Growth",
    "Held",
    "find_configuration",
    "read_baseline",
    "read_configuration",
    "read_growth",
    "read_percent",
    "relative_path",
]

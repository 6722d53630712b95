"""A gate for CI: budgets, and whether models keep them."""

from onnxmem.checking.baseline import Baseline, read_baseline
from onnxmem.checking.budgets import Budget, Growth, read_growth, read_percent
from onnxmem.checking.checking import Analyse, Gate
from onnxmem.checking.configuration import (
    Configuration,
    find_configuration,
    read_configuration,
)
from onnxmem.checking.paths import model_paths, models_below, relative_path
from onnxmem.checking.verdicts import Check, CheckedModel, Checkup, Figure, Held

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
    "model_paths",
    "models_below",
    "read_baseline",
    "read_configuration",
    "read_growth",
    "read_percent",
    "relative_path",
]

"""``analyze``: walks the stages in order, the only room that knows them all."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from onnxmem.capacity import BatchLaw, BatchLimit
from onnxmem.compute import Compute
from onnxmem.findings import Finding
from onnxmem.memory import ActivationMemory
from onnxmem.model import BoundModel, Graph, ModelFile
from onnxmem.model.parameters import Parameters
from onnxmem.settings import Settings
from onnxmem.training import TrainingMemory
from onnxmem.training.rules_of_thumb import RulesOfThumb


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the model the figures rest on."""

    num_nodes: int
    assumed_nodes: tuple[str, ...]
    """Nodes whose operator has no record, or whose trip count or shape is assumed."""
    unknown_tensors: tuple[str, ...]
    """Tensors of unknown size: figures leave them out and are lower bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The answer: one model under one setting."""

    path: str
    file_bytes: int
    settings: Settings
    """As asked; ``batch`` and ``dims`` are those in effect."""
    graph: Graph
    parameters: Parameters
    weight_bytes: int | None
    num_parameters: int
    inputs_bytes: int | None
    outputs_bytes: int | None
    activations: ActivationMemory
    total_bytes: int | None
    """Weights, inputs and in-place peak: what inference needs before any runtime's overhead."""
    training: TrainingMemory | None
    rules_of_thumb: RulesOfThumb
    compute: Compute
    batch_law: BatchLaw | None
    """Of ``total_bytes``."""
    training_law: BatchLaw | None
    """Of the training peak."""
    max_batch: BatchLimit | None
    rule_max_batch: int | None
    """The batch that the usual formula gives: budget / 4 / (tensor elements + parameters)."""
    coverage: Coverage
    findings: tuple[Finding, ...]

    @property
    def status(self) -> str:
        """``ok``, or ``partial`` where a figure leaves something unknown out."""
        return "partial" if self.coverage.unknown_tensors else "ok"

    def at(self, *, batch: int) -> "Analysis":
        """The same question at another batch, without reading the file again."""
        raise NotImplementedError

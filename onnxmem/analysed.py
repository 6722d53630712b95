"""The answer: everything that is known of one model under one setting."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnxmem import rows
from onnxmem.findings import Finding

if TYPE_CHECKING:
    from onnxmem.capacity import BatchLaw, BatchLimit
    from onnxmem.compute import Compute
    from onnxmem.coverage import Coverage
    from onnxmem.kv_cache import CacheMemory
    from onnxmem.measure.measurement import Measurement
    from onnxmem.memory import ActivationMemory
    from onnxmem.memory.schedule import Schedule
    from onnxmem.model import Graph
    from onnxmem.model.parameters import Parameters
    from onnxmem.question import Question
    from onnxmem.runtimes import RuntimeMemory
    from onnxmem.runtimes.torch import TorchMemory
    from onnxmem.settings import Settings
    from onnxmem.symbolic_terms import NoRows, SymbolicTerms
    from onnxmem.training import PeakRange, TrainingMemory
    from onnxmem.training.rules_of_thumb import RulesOfThumb


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The answer: one model under one setting. Bytes are exact; ``None`` is unknown."""

    path: str
    file_bytes: int
    settings: "Settings"
    """As asked, but ``batch`` and ``dims`` are those in effect."""
    graph: "Graph"
    parameters: "Parameters"
    weight_bytes: int | None
    inputs_bytes: int | None
    outputs_bytes: int | None
    activations: "ActivationMemory"
    schedule: "Schedule | None"
    """The order of execution asked for; ``None``: the file's."""
    total_bytes: int | None
    """Weights, inputs and in-place peak (definition 6): what inference needs before any runtime's
    overhead."""
    training: "TrainingMemory | None"
    training_range: "PeakRange | None"
    """The training peak if no BatchNormalization was folded where the file doesn't tell, and if one
    was in each such layer; ``None``: the file tells, or the recipe says."""
    torch: "TorchMemory | None"
    """What PyTorch's allocator on CUDA makes of the training step."""
    rules_of_thumb: "RulesOfThumb"
    compute: "Compute"
    batch_law: "BatchLaw | None"
    """Of ``total_bytes``."""
    training_law: "BatchLaw | None"
    """Of the training peak."""
    max_batch: "BatchLimit | None"
    rule_max_batch: int | None
    """The batch that the usual formula gives: budget / 4 / (tensor elements + parameters)."""
    runtimes: tuple["RuntimeMemory", ...]
    """What each runtime asked for takes, in the order asked."""
    measured: "Measurement | Finding | None"
    """What a run took, or why there is no such figure; ``None``: not asked for."""
    kv_cache: "CacheMemory | None"
    """``None``: the model has no cache that is recognised."""
    coverage: "Coverage"
    findings: tuple["Finding", ...]
    follows_batch: bool
    """False: the batch asked for is not, or not everywhere, the batch of the graph."""
    symbolic: "SymbolicTerms | NoRows"
    """The peaks of a run as polynomials in the dims that are free, or why there are none."""
    question: "Question"
    """What ``at`` asks again."""

    @property
    def status(self) -> str:
        """``ok``, or ``partial``: a figure leaves something out, or is of another batch."""
        is_whole = self.follows_batch and not self.coverage.unknown_tensors
        return "ok" if is_whole else "partial"

    @property
    def measurement(self) -> "Measurement | None":
        """What a run took, where one came to something."""
        return None if isinstance(self.measured, Finding) else self.measured

    @property
    def num_parameters(self) -> int:
        """Elements of trained parameters and of quantised weights."""
        return self.parameters.num_parameters

    def at(self, *, batch: int | None = None, dims: Mapping[str, int] | None = None) -> "Analysis":
        """Ask the same of another batch or of other dims, without reading the file again."""
        return self.question.at(batch, dims).answer()

    def to_dict(self, *, layers: bool = False) -> rows.Row:
        """One row of the JSON contract; ``layers`` adds a row per node."""
        return rows.row(self, with_layers=layers)

    def _repr_html_(self) -> str:
        """Show the main figures and the timeline in a notebook."""
        # The faces stand above the answer; this one is asked for by whoever holds an answer.
        from onnxmem.report.notebook import notebook_html  # noqa: PLC0415

        return notebook_html(self)

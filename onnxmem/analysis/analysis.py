"""The answer: everything that is known of one model under one setting."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote
from typing import TYPE_CHECKING, ClassVar, Final

from onnxmem.analysis import json_row as rows
from onnxmem.analysis.scaling.capacity import BatchLimit
from onnxmem.errors import Finding, listed
from onnxmem.model.given_names import refuse_unknown_names

if TYPE_CHECKING:
    from onnxmem.analysis.cache_memory import CacheMemory
    from onnxmem.analysis.compute import Compute
    from onnxmem.analysis.coverage import Coverage
    from onnxmem.analysis.fitting.answering import FitResult
    from onnxmem.analysis.request import AnalysisRequest
    from onnxmem.analysis.rules_of_thumb import RulesOfThumb
    from onnxmem.analysis.scaling.capacity import BatchLaw
    from onnxmem.analysis.scaling.symbolic_terms import NoRows, SymbolicTerms
    from onnxmem.measure.measurement import Measurement
    from onnxmem.model import Graph
    from onnxmem.model.parameters import Parameters
    from onnxmem.runtimes import RuntimeMemory
    from onnxmem.runtimes.ideal import ActivationMemory
    from onnxmem.runtimes.ideal.schedule import Schedule
    from onnxmem.runtimes.torch import PeakRange, TorchMemory, TrainingMemory
    from onnxmem.settings import Settings


_EXAMPLE: Final = 512
"""Of a dim that is to be named: a usual sequence, and a usual side of a picture."""


def guess_told(dims: Sequence[str]) -> str:
    """Dims that count as 1, and the flags to type: ``--dim sequence=512``."""
    verb = "counts" if len(dims) == 1 else "count"
    return f"{listed(dims)} {verb} as 1, give {dims_line(dims)}"


def dims_line(dims: Sequence[str]) -> str:
    """The flags that give dims a value, as they are typed: ``--dim sequence=512``."""
    return " ".join(f"--dim {quote(f'{name}={_EXAMPLE}')}" for name in dims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The answer: one model under one setting. Bytes are exact; ``None`` is unknown."""

    notebook_html: "ClassVar[Callable[[Analysis], str] | None]" = None
    """Set by ``onnxmem.api``: what draws it stands above the analysis."""

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
    guessed_dims: tuple[str, ...]
    """Dynamic dims without a value, which count as 1; the batch is none of them."""
    follows_batch: bool
    """False: the batch asked for is not, or not everywhere, the batch of the graph."""
    symbolic: "SymbolicTerms | NoRows"
    """The peaks of a run as polynomials in the dims that are free, or why there are none."""
    question: "AnalysisRequest"
    """What ``at`` asks again."""
    again: Callable[["AnalysisRequest"], "Analysis"] = field(repr=False)
    """Answers a question: the analysis stands above the stages."""
    fit: "FitResult | None" = None
    """The verdict on the budget; ``None`` where none is given, or its figure cannot be had."""

    @property
    def max_batch(self) -> BatchLimit | None:
        """How far the budget goes; ``None`` where none is given, or bytes are unknown."""
        reach = None if self.fit is None else self.fit.reach
        if self.fit is None or reach is None:
            return None
        limiting = self.fit.limiting
        return BatchLimit(
            batch=reach.number,
            budget_bytes=self.fit.setup.memory_bytes,
            peak_bytes=reach.num_bytes,
            limiting_phase=None if limiting is None else limiting.phase,
            over_bytes=reach.over_bytes,
        )

    @property
    def status(self) -> str:
        """``ok``, or ``partial``: a figure leaves something out, or is of dims nobody asked for."""
        return "partial" if self.doubts or self.partial_runtimes else "ok"

    @property
    def is_whole(self) -> bool:
        """Whether the figures, those of runtimes aside, are of the batch and leave nothing out."""
        return self.follows_batch and not self.coverage.unknown_tensors

    @property
    def partial_runtimes(self) -> tuple[str, ...]:
        """Runtimes whose figures are lower bounds, or unknown."""
        whole = {each.name for each in self.runtimes if not each.unknown.is_lower_bound}
        return tuple(name for name in self.settings.runtimes if name not in whole)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the figures are partial, a clause each; none where they are not."""
        clauses = (
            ("the graph does not follow the batch", not self.follows_batch),
            (
                "tensors of unknown size are left out, figures are lower bounds",
                bool(self.coverage.unknown_tensors),
            ),
            (guess_told(self.guessed_dims), bool(self.guessed_dims)),
        )
        return tuple(clause for clause, holds in clauses if holds)

    def dims_to_give(self) -> tuple[tuple[str, ...], str]:
        """The dims that count as 1, and the flags to type; no verdict may hang on such a figure."""
        return self.guessed_dims, dims_line(self.guessed_dims)

    @property
    def measurement(self) -> "Measurement | None":
        """What a run took, where one came to something."""
        return None if isinstance(self.measured, Finding) else self.measured

    @property
    def num_parameters(self) -> int:
        """Elements of trained parameters and of quantised weights."""
        return self.parameters.num_parameters

    def at(self, *, batch: int | None = None, dims: Mapping[str, int] | None = None) -> "Analysis":
        """Ask the same of another batch or of other dims, without reading the file again.

        :raises OnnxmemError: no input has a dim of that name.
        """
        refuse_unknown_names(self.question.source.proto, dims or ())
        return self.again(self.question.at(batch, dims))

    def to_dict(self, *, layers: bool = False) -> rows.Row:
        """One row of the JSON contract; ``layers`` adds a row per node."""
        return rows.row(self, with_layers=layers)

    def _repr_html_(self) -> str | None:
        """Show the main figures and the timeline in a notebook."""
        return None if self.notebook_html is None else self.notebook_html()

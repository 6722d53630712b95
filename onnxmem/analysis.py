"""``analyze``: walks the stages in order, the only room that knows them all."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from onnxmem import rows
from onnxmem.capacity import BatchLaw, BatchLimit, batch_law, largest_batch
from onnxmem.compute import Compute, compute
from onnxmem.coverage import Coverage, coverage, model_findings
from onnxmem.findings import Finding
from onnxmem.memory import ActivationMemory, activation_memory
from onnxmem.model import (
    BoundModel,
    Graph,
    ModelFile,
    ModelSource,
    Prepared,
    Request,
    Tensor,
    build,
    load,
    prepare,
)
from onnxmem.model.parameters import Parameters, parameters
from onnxmem.settings import Settings
from onnxmem.sums import sum_known
from onnxmem.training import TrainingMemory, training_memory
from onnxmem.training.rules_of_thumb import (
    ModelSize,
    RulesOfThumb,
    per_sample,
    rules_of_thumb,
    tensor_elements,
    usual_max_batch,
)

_LAW_BATCH = 128
"""The affine law is sought from batch 1 to this batch at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What one batch of one model takes, before any other batch is tried."""

    bound: BoundModel
    parameters: Parameters
    activations: ActivationMemory
    weight_bytes: int | None
    inputs_bytes: int | None
    training: TrainingMemory | None

    @property
    def total_bytes(self) -> int | None:
        """Weights, inputs and in-place peak."""
        peak_bytes = self.activations.in_place_peak_bytes
        return sum_known((self.weight_bytes, self.inputs_bytes, peak_bytes))

    @property
    def is_whole(self) -> bool:
        """Whether the figures are of the batch asked for and leave nothing out."""
        left_out = self.training.unknown if self.training else ()
        return self.bound.follows_batch and not (left_out or self.activations.unknown_tensors)

    @property
    def training_peak_bytes(self) -> int | None:
        """The training step's peak; ``None`` also where no training is asked for."""
        return self.training.peak_bytes if self.training else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The answer: one model under one setting. Bytes are exact; ``None`` is unknown."""

    path: str
    file_bytes: int
    settings: Settings
    """As asked, but ``batch`` and ``dims`` are those in effect."""
    graph: Graph
    parameters: Parameters
    weight_bytes: int | None
    inputs_bytes: int | None
    outputs_bytes: int | None
    activations: ActivationMemory
    total_bytes: int | None
    """Weights, inputs and in-place peak (definition 6): what inference needs before any runtime's
    overhead."""
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
    follows_batch: bool
    """False: the batch asked for is not, or not everywhere, the batch of the graph."""
    question: "Question"
    """What ``at`` asks again."""

    @property
    def status(self) -> str:
        """``ok``, or ``partial``: a figure leaves something out, or is of another batch."""
        is_whole = self.follows_batch and not self.coverage.unknown_tensors
        return "ok" if is_whole else "partial"

    @property
    def num_parameters(self) -> int:
        """Elements of trained parameters and of quantised weights."""
        return self.parameters.num_parameters

    def at(self, *, batch: int) -> "Analysis":
        """Ask the same of another batch, without reading the file again."""
        return self.question.at(batch).answer()

    def to_dict(self, *, layers: bool = False) -> rows.Row:
        """One row of the JSON contract; ``layers`` adds a row per node."""
        return rows.row(self, with_layers=layers)


@dataclass(frozen=True, slots=True)
class Question:
    """A model that is read, and what is asked of it."""

    model: ModelFile
    prepared: Prepared
    settings: Settings

    def at(self, batch: int) -> "Question":
        """The same question at another batch, which wins over a dim given for it."""
        symbols = self.prepared.batch_symbols
        dims = {name: n for name, n in self.settings.dims.items() if name not in symbols}
        return replace(self, settings=replace(self.settings, batch=batch, dims=dims))

    def terms(self) -> Terms:
        """Walk the stages once, at the batch asked for."""
        asked = self.settings
        bound = build(self.prepared, Request(asked.batch, asked.dims, asked.shapes))
        graph = bound.graph
        found = parameters(graph)
        return Terms(
            bound=bound,
            parameters=found,
            activations=activation_memory(graph),
            weight_bytes=_sum_bytes(graph.weights()),
            inputs_bytes=_sum_bytes(graph.tensors[name] for name in graph.inputs),
            training=training_memory(
                graph,
                found,
                optimizer=asked.optimizer,
                precision=asked.precision,
                loss=asked.loss,
            )
            if asked.train
            else None,
        )

    def answer(self) -> Analysis:
        """Walk the stages at the batch asked for, and at the batches that laws and limits need."""
        terms = self.terms()
        graph = terms.bound.graph
        settings = replace(
            self.settings, batch=terms.bound.binding.batch, dims=terms.bound.binding.dims
        )
        arithmetic = compute(graph)
        covered = coverage(graph, terms.activations, terms.training)
        size = _model_size(self.model, terms)
        elements = tensor_elements(size)
        budget_bytes = settings.budget_bytes
        limits = _Limits(self, terms)
        found = model_findings(graph, terms.parameters, train=settings.train)
        return Analysis(
            path=self.model.path,
            file_bytes=self.model.file_bytes,
            settings=settings,
            graph=graph,
            parameters=terms.parameters,
            weight_bytes=terms.weight_bytes,
            inputs_bytes=terms.inputs_bytes,
            outputs_bytes=_sum_bytes(graph.tensors[name] for name in graph.outputs),
            activations=terms.activations,
            total_bytes=terms.total_bytes,
            training=terms.training,
            rules_of_thumb=rules_of_thumb(size),
            compute=arithmetic,
            batch_law=limits.law(lambda at: at.total_bytes),
            training_law=limits.law(lambda at: at.training_peak_bytes),
            max_batch=limits.max_batch(),
            rule_max_batch=None
            if budget_bytes is None or elements is None
            else usual_max_batch(budget_bytes, elements, terms.parameters.num_parameters),
            coverage=covered,
            findings=(*terms.bound.findings, *found),
            follows_batch=terms.bound.follows_batch,
            question=self,
        )


class _Limits:
    """The other batches of a question, each evaluated once."""

    def __init__(self, question: Question, terms: Terms) -> None:
        self._question = question
        self._batch = terms.bound.binding.batch
        self._known = {self._batch: terms}
        self._terms = cache(self._evaluated)

    def law(self, figure: Callable[[Terms], int | None]) -> BatchLaw | None:
        """The affine law of a figure from batch 1 to the batch asked for and beyond."""
        if self._batch is None:
            return None
        return batch_law(self._figure(figure), max(self._batch, _LAW_BATCH))

    def max_batch(self) -> BatchLimit | None:
        """The largest batch within the budget: of the training peak where training is asked for."""
        settings = self._question.settings
        if settings.budget_bytes is None or self._batch is None:
            return None
        if not settings.train:
            return largest_batch(self._figure(lambda at: at.total_bytes), settings.budget_bytes)
        limit = largest_batch(
            self._figure(lambda at: at.training_peak_bytes), settings.budget_bytes
        )
        if limit is None or limit.batch is None:
            return limit
        over = self._terms(limit.batch + 1).training
        return replace(limit, limiting_phase=over.peak_phase if over else None)

    def _figure(self, figure: Callable[[Terms], int | None]) -> Callable[[int], int | None]:
        def at(batch: int) -> int | None:
            terms = self._terms(batch)
            return figure(terms) if terms.is_whole else None

        return at

    def _evaluated(self, batch: int) -> Terms:
        return self._known.get(batch) or self._question.at(batch).terms()


def analyze(  # noqa: PLR0913 - the public face: one keyword per question
    source: ModelSource,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    train: bool = False,
    optimizer: str = "adam",
    precision: str = "fp32",
    loss: str = "cross-entropy",
    budget_bytes: int | None = None,
) -> Analysis:
    """Say how much memory a model takes, from its file alone.

    ``source`` is a path, the model's bytes or a ``ModelProto``. ``dims`` binds symbols, ``shapes``
    whole inputs; ``budget_bytes`` asks for the largest batch within it.

    :raises OnnxmemError: the model cannot be read, or the question makes no sense.
    """
    settings = Settings(
        batch=batch,
        dims=dims or {},
        shapes=shapes or {},
        train=train,
        optimizer=optimizer,
        precision=precision,
        loss=loss,
        budget_bytes=budget_bytes,
    )
    model = load(source)
    return Question(model, prepare(model), settings).answer()


def _model_size(model: ModelFile, terms: Terms) -> ModelSize:
    """What the rules of thumb reckon with."""
    graph = terms.bound.graph
    batch = terms.bound.binding.batch or 1
    external = [weight for weight in graph.weights() if weight.is_external]
    inputs = sum_known(graph.tensors[name].num_elements for name in graph.inputs)
    activations = terms.activations.naive_in_place_elements
    return ModelSize(
        file_bytes=model.file_bytes,
        absent_external_bytes=_sum_bytes(external),
        weight_bytes=terms.weight_bytes,
        num_parameters=terms.parameters.num_parameters,
        activation_elements_per_sample=per_sample(activations, batch),
        input_elements_per_sample=per_sample(inputs, batch),
        activation_bytes=terms.activations.naive_in_place_bytes,
        input_bytes=terms.inputs_bytes,
        batch=batch,
    )


def _sum_bytes(tensors: Iterable[Tensor]) -> int | None:
    return sum_known(tensor.size_bytes for tensor in tensors)

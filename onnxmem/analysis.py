"""``analyze``: walks the stages in order, the only room that knows them all."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from onnxmem import rows
from onnxmem.capacity import BatchLaw, BatchLimit
from onnxmem.compute import Compute, compute
from onnxmem.coverage import Coverage, coverage, model_findings
from onnxmem.findings import Finding
from onnxmem.limits import Limits
from onnxmem.measure.measurement import Measurement
from onnxmem.measure.measuring import BackendUnavailableError
from onnxmem.measure.measuring import measure as run_measured
from onnxmem.measure.options import Provider, SessionOptions
from onnxmem.measure.settings import MeasureSettings
from onnxmem.memory import ActivationMemory
from onnxmem.model import Graph, ModelFile, ModelSource, Prepared, Request, load, prepare
from onnxmem.model.parameters import Parameters
from onnxmem.recipe import Recipe
from onnxmem.runtimes import LEVELS, RuntimeMemory, optimised_file, runtime_memories
from onnxmem.runtimes.torch import TorchMemory, TorchSettings, replay
from onnxmem.settings import Settings
from onnxmem.terms import Terms, model_size, sum_bytes, terms_of
from onnxmem.training import TrainingMemory
from onnxmem.training.rules_of_thumb import (
    RulesOfThumb,
    rules_of_thumb,
    tensor_elements,
    usual_max_batch,
)
from onnxmem.values import GivenValue, read_values

_STEPS = 2
"""Training steps that PyTorch's allocator is replayed for: no network's third asked for more
than its second.
"""


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
    torch: TorchMemory | None
    """What PyTorch's allocator on CUDA makes of the training step."""
    rules_of_thumb: RulesOfThumb
    compute: Compute
    batch_law: BatchLaw | None
    """Of ``total_bytes``."""
    training_law: BatchLaw | None
    """Of the training peak."""
    max_batch: BatchLimit | None
    rule_max_batch: int | None
    """The batch that the usual formula gives: budget / 4 / (tensor elements + parameters)."""
    runtimes: tuple[RuntimeMemory, ...]
    """What each runtime asked for takes, in the order asked."""
    measured: Measurement | Finding | None
    """What a run took, or why there is no such figure; ``None``: not asked for."""
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
    source: ModelFile
    """The file, where ``model`` is what a runtime's optimiser made of it."""
    remarks: tuple[Finding, ...] = ()

    def at(self, batch: int) -> "Question":
        """The same question at another batch, which wins over a dim given for it."""
        symbols = self.prepared.batch_symbols
        dims = {name: n for name, n in self.settings.dims.items() if name not in symbols}
        return replace(self, settings=replace(self.settings, batch=batch, dims=dims))

    def terms(self) -> Terms:
        """Walk the stages once, at the batch asked for."""
        return terms_of(self.prepared, self.settings)

    def measurement(self) -> Measurement | Finding | None:
        """Run the model where that is asked for; what goes wrong costs no other figure."""
        asked = self.settings
        if asked.measure is None:
            return None
        level = LEVELS[asked.graph or "ort-all"]
        options = SessionOptions(level=level, fixed_dims=asked.fixed_dims)
        provider: Provider = "cuda" if asked.measure == "cuda" else "cpu"
        request = Request(asked.batch, asked.dims, asked.shapes)
        try:
            how = MeasureSettings(provider=provider, options=options, values=asked.values)
            return run_measured(self.source, request, how)
        except BackendUnavailableError as fault:
            return Finding("measure_no_backend", str(fault))

    def torch_memory(self, training: TrainingMemory | None) -> TorchMemory | None:
        """Replay the step's allocations; ``None`` where no training is asked for."""
        if training is None:
            return None
        defaults, asked = TorchSettings(), self.settings
        cublas_bytes = defaults.cublas_workspace_bytes if training.multiplies_matrices else 0
        settings = TorchSettings(
            expandable_segments=asked.expandable_segments,
            cublas_workspace_bytes=cublas_bytes,
            cudnn_workspace_bytes=asked.cuda_workspace_bytes or defaults.cudnn_workspace_bytes,
            context_bytes=defaults.context_bytes
            if asked.cuda_context_bytes is None
            else asked.cuda_context_bytes,
        )
        sizes, held = tuple(training.trace.sizes()), training.trace.num_held_events
        return replay(sizes[:held], sizes[held:], steps=_STEPS, settings=settings)

    def answer(self) -> Analysis:
        """Walk the stages at the batch asked for, and at the batches that laws and limits need."""
        terms = self.terms()
        graph = terms.bound.graph
        settings = replace(
            self.settings, batch=terms.bound.binding.batch, dims=terms.bound.binding.dims
        )
        arithmetic = compute(graph)
        covered = coverage(graph, terms.activations, terms.training)
        size = model_size(self.model, terms)
        elements = tensor_elements(size)
        budget_bytes = settings.budget_bytes
        limits = Limits(terms, lambda batch: self.at(batch).terms())
        largest = limits.largest_to_train if settings.train else limits.largest_to_run
        measured = self.measurement()
        fed = measured.fed if isinstance(measured, Measurement) else {}
        asked = runtime_memories(self.source, terms.bound, self.settings, fed)
        found = (
            *(*terms.bound.findings, *self.remarks),
            *(terms.training.findings if terms.training else ()),
            *model_findings(graph, terms.parameters, train=settings.train),
            *(each for each in asked if isinstance(each, Finding)),
            *_findings_of(measured),
        )
        return Analysis(
            path=self.model.path,
            file_bytes=self.model.file_bytes,
            settings=settings,
            graph=graph,
            parameters=terms.parameters,
            weight_bytes=terms.weight_bytes,
            inputs_bytes=terms.inputs_bytes,
            outputs_bytes=sum_bytes(graph.tensors[name] for name in graph.outputs),
            activations=terms.activations,
            total_bytes=terms.total_bytes,
            training=terms.training,
            torch=self.torch_memory(terms.training),
            rules_of_thumb=rules_of_thumb(size),
            compute=arithmetic,
            batch_law=limits.total_law(),
            training_law=limits.training_law(),
            max_batch=largest(budget_bytes),
            runtimes=tuple(each for each in asked if isinstance(each, RuntimeMemory)),
            measured=measured,
            rule_max_batch=None
            if budget_bytes is None or elements is None
            else usual_max_batch(budget_bytes, elements, terms.parameters.num_parameters),
            coverage=covered,
            findings=tuple(dict.fromkeys(found)),
            follows_batch=terms.bound.follows_batch,
            question=self,
        )


def _findings_of(measured: Measurement | Finding | None) -> tuple[Finding, ...]:
    if measured is None:
        return ()
    return (measured,) if isinstance(measured, Finding) else measured.findings


def _recipe(
    recipe: Recipe, optimizer: str | None, precision: str | None, loss: str | None
) -> Recipe:
    """A recipe with those of its fields that are named by themselves."""
    return replace(
        recipe,
        optimizer=optimizer or recipe.optimizer,
        precision=precision or recipe.precision,
        loss=loss or recipe.loss,
    )


def analyze(  # noqa: PLR0913 - the public face: one keyword per question
    source: ModelSource,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    values: Mapping[str, GivenValue] | None = None,
    train: bool = False,
    optimizer: str | None = None,
    precision: str | None = None,
    loss: str | None = None,
    recipe: Recipe | None = None,
    budget_bytes: int | None = None,
    runtimes: tuple[str, ...] = (),
    graph: str | None = None,
    measure: str | None = None,
    fixed_dims: bool = False,
    cuda_context_bytes: int | None = None,
    cuda_workspace_bytes: int | None = None,
    expandable_segments: bool = False,
    asks_onnxruntime: bool = True,
) -> Analysis:
    """Say how much memory a model takes, from its file alone.

    ``source`` is a path, the model's bytes or a ``ModelProto``. ``dims`` binds symbols, ``shapes``
    whole inputs; ``values`` says what small inputs hold, where that decides what a runtime does (a
    number, or a list of them); ``budget_bytes`` asks for the largest batch within it. ``runtimes``
    asks for what ``ort-cpu`` and ``ort-cuda`` take, ``graph`` for figures of the graph that
    onnxruntime makes.

    :raises OnnxmemError: the model cannot be read, or the question makes no sense.
    """
    settings = Settings(
        batch=batch,
        dims=dims or {},
        shapes=shapes or {},
        values=read_values(values or {}),
        train=train,
        recipe=_recipe(recipe or Recipe(), optimizer, precision, loss),
        budget_bytes=budget_bytes,
        runtimes=runtimes,
        graph=graph,
        measure=measure,
        fixed_dims=fixed_dims,
        cuda_context_bytes=cuda_context_bytes,
        cuda_workspace_bytes=cuda_workspace_bytes,
        expandable_segments=expandable_segments,
        asks_onnxruntime=asks_onnxruntime,
    )
    file = load(source)
    model, remarks = optimised_file(file, settings)
    return Question(model, prepare(model), settings, file, remarks).answer()

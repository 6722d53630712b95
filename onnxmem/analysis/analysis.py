"""``analyze``: from a model and what is requested of it to an ``Analysis``.

``analysis_of`` is the one function that walks the stages, and computes what every reader needs.
What only some faces show (how the peak grows with the batch, the peak as polynomials, rules of
thumb, arithmetic, PyTorch's allocator, a key-value cache) is computed when it is first read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final

from onnxmem.analysis import json_rows
from onnxmem.analysis.compute import Compute, compute
from onnxmem.analysis.compute import layers as layers_of
from onnxmem.analysis.coverage import Coverage, coverage, unbound_dims_text
from onnxmem.analysis.fitting.verdicts import Basis
from onnxmem.analysis.request import (
    AnalysisRequest,
    StageResults,
    model_size,
    request_for,
    sum_bytes,
)
from onnxmem.analysis.rules_of_thumb import (
    RulesOfThumb,
    rule_of_thumb_batch,
    rules_of_thumb,
    tensor_elements,
)
from onnxmem.analysis.scaling import (
    BatchScaling,
    ClosedForm,
    NoClosedForm,
    find_closed_form,
    free_dims,
)
from onnxmem.errors import Finding, UsageError, printable
from onnxmem.model.files import ModelFile, ModelSource, load
from onnxmem.model.input_values import refuse_unknown_names
from onnxmem.program.sizes import Affine
from onnxmem.settings import RUNTIMES, GivenValue, Recipe, Settings, read_values

if TYPE_CHECKING:
    from onnxmem.analysis.cache_memory import CacheMemory
    from onnxmem.analysis.fitting.assessing import FitResult
    from onnxmem.analysis.fitting.searching import MaxBatch
    from onnxmem.measure.measurement import Measurement
    from onnxmem.model.graph import Graph
    from onnxmem.model.parameters import Parameters
    from onnxmem.runtimes.base import Runtime, RuntimeReplay
    from onnxmem.runtimes.ideal.activation_memory import ActivationMemory
    from onnxmem.runtimes.ideal.schedules import Schedule
    from onnxmem.runtimes.onnxruntime.memory import RuntimeMemory
    from onnxmem.runtimes.torch.cuda import TorchMemory
    from onnxmem.runtimes.torch.memory import PeakRange, TrainingMemory


_TAKEN: Final = frozenset({*Basis, *RUNTIMES, "none"})
"""Names that a runtime of the caller's own can't have: they say which figure is compared."""


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
    context: int | None = None,
    budget_bytes: int | None = None,
    basis: str | None = None,
    accepted: Iterable[str] = (),
    runtimes: "Sequence[str | Runtime]" = (),
    graph: str | None = None,
    order: str = "file",
    measure: str | None = None,
    fixed_dims: bool = False,
    cuda_context_bytes: int | None = None,
    cuda_workspace_bytes: int | None = None,
    expandable_segments: bool = False,
    asks_onnxruntime: bool = True,
    cpu: str = "native",
    one_of_several: bool = False,
) -> "Analysis":
    """Say how much memory a model takes, from its file alone.

    ``source`` is a path, the model's bytes or a ``ModelProto``. ``dims`` binds symbols, ``shapes``
    whole inputs; ``values`` says what small inputs hold, where shapes or a runtime follow from it
    (a number for all elements, or a list of them); ``context`` is the tokens that a language
    model's cache holds after a decode step; ``budget_bytes`` asks for the largest batch within it,
    of which ``basis`` says what is compared, ``tensors`` or ``process``, and ``accepted`` the
    warnings that leave the verdict in no doubt.
    ``runtimes`` asks for what ``ort-cpu`` and ``ort-cuda`` take, or a runtime of your own (an
    object as ``onnxmem.runtimes.base.Runtime`` describes it; a verdict compares the first one that
    is named, else the first object, and PyTorch's step with ``train``), ``graph`` for figures of
    the graph that onnxruntime makes, ``order`` for activations in another order of execution,
    ``cpu`` for another CPU than this machine's: ``avx512``, ``avx2`` or ``arm64``. A dim or a value
    that the model has no name for is an error, unless it is ``one_of_several`` that are asked the
    same.

    :raises OnnxmemError: the model cannot be read, or the question makes no sense.
    """
    named, own = _runtimes(runtimes)
    settings = Settings(
        batch=batch,
        dims=dims or {},
        shapes=shapes or {},
        values=read_values(values or {}),
        train=train,
        recipe=_recipe(recipe or Recipe(), optimizer, precision, loss),
        budget_bytes=budget_bytes,
        basis=basis,
        accepted=tuple(accepted),
        runtimes=named,
        graph=graph,
        order=order,
        measure=measure,
        fixed_dims=fixed_dims,
        cuda_context_bytes=cuda_context_bytes,
        cuda_workspace_bytes=cuda_workspace_bytes,
        expandable_segments=expandable_segments,
        asks_onnxruntime=asks_onnxruntime,
        cpu=cpu,
        one_of_several=one_of_several,
    )
    if not train and settings.recipe != Recipe():
        message = "an optimizer, a precision, a loss or a recipe: no effect without train=True"
        raise UsageError(message)
    file = load(source)
    model, remarks = _graph_of(file, settings)
    request = _at_context(request_for(model, settings, file, remarks), context)
    return analysis_of(replace(request, own_runtimes=own) if own else request)


def analysis_of(request: AnalysisRequest) -> "Analysis":
    """Analyze a model as requested.

    :raises OnnxmemError: the model cannot be analyzed at what is requested.
    """
    results = request.results
    binding = results.bound.binding
    # A recipe or an order that the model does not have is refused here, not where a face reads it.
    _ = results.training, results.schedule
    measured = _measured(request)
    predicted = _predicted(request, measured)
    replays = tuple(_replayed(request))
    fit, without_figure = _verdict(request)
    findings = request.findings(results, _of_runs((*predicted, *replays), measured))
    return Analysis(
        path=request.model.path,
        settings=replace(request.settings, batch=binding.batch, dims=binding.dims),
        request=request,
        results=results,
        measured=measured,
        runtimes=tuple(each for each in predicted if not isinstance(each, Finding)),
        replays=tuple(each for each in replays if not isinstance(each, Finding)),
        findings=(*findings, *without_figure),
        fit=fit,
    )


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The figures of one model under one setting. Bytes are exact; ``None`` is unknown."""

    notebook_html: "ClassVar[Callable[[Analysis], str] | None]" = None
    """Set by ``onnxmem.api``: what draws it stands above the analysis."""

    path: str
    settings: "Settings"
    """As requested, but ``batch`` and ``dims`` are those in effect."""
    request: AnalysisRequest = field(repr=False)
    """What ``at`` requests again."""
    results: StageResults = field(repr=False)
    """Of the stages."""
    measured: "Measurement | Finding | None"
    """What a run took, or why there is no such figure; ``None``: not requested."""
    runtimes: tuple["RuntimeMemory", ...]
    """What each runtime requested takes, in the order requested."""
    findings: tuple[Finding, ...]
    replays: tuple["RuntimeReplay", ...] = ()
    """What runtimes take that were given as objects."""
    fit: "FitResult | None" = None
    """The verdict on the budget; ``None`` where none is given, or its figure cannot be had."""

    @property
    def file_bytes(self) -> int:
        """Of the model's file."""
        return self.request.model.file_bytes

    @property
    def graph(self) -> "Graph":
        """The graph in the order requested."""
        return self.results.graph

    @property
    def parameters(self) -> "Parameters":
        """The weights by what they are to training."""
        return self.results.parameters

    @property
    def weight_bytes(self) -> int | None:
        """Weights, each storage once."""
        return self.results.weight_bytes

    @property
    def inputs_bytes(self) -> int | None:
        """Graph inputs."""
        return self.results.inputs_bytes

    @cached_property
    def outputs_bytes(self) -> int | None:
        """Graph outputs."""
        return sum_bytes(self.graph.tensors[name] for name in self.graph.outputs)

    @property
    def activations(self) -> "ActivationMemory":
        """What nodes make."""
        return self.results.activations

    @property
    def schedule(self) -> "Schedule | None":
        """The order of execution requested; ``None``: the file's."""
        return self.results.schedule

    @property
    def total_bytes(self) -> int | None:
        """Weights, inputs and in-place peak: what inference needs before any runtime's overhead."""
        return self.results.total_bytes

    @property
    def training(self) -> "TrainingMemory | None":
        """The training step; ``None``: not requested."""
        return self.results.training

    @property
    def training_range(self) -> "PeakRange | None":
        """The training peak if no BatchNormalization was folded where the file doesn't tell, and if
        one was in each such layer; ``None``: the file tells, or the recipe says.
        """
        training = self.training
        is_open = training is not None and training.batchnorms.unknown
        return self.results.training_range if is_open else None

    @cached_property
    def torch(self) -> "TorchMemory | None":
        """What PyTorch's allocator on CUDA makes of the training step."""
        return self.request.torch_memory(self.results)

    @cached_property
    def rules_of_thumb(self) -> RulesOfThumb:
        """What the rules of thumb say, for comparison."""
        return rules_of_thumb(model_size(self.request.model, self.results))

    @cached_property
    def rule_max_batch(self) -> int | None:
        """The batch of the usual rule: budget / 4 / (tensor elements + parameters).

        ``None``: no budget is given, or sizes are unknown.
        """
        budget_bytes = self.settings.budget_bytes
        if budget_bytes is None:
            return None
        size = model_size(self.request.model, self.results)
        elements, parameters = tensor_elements(size), size.num_parameters
        if elements is None or parameters is None:
            return None
        return rule_of_thumb_batch(budget_bytes, elements, parameters)

    @cached_property
    def compute(self) -> Compute:
        """Arithmetic of the forward and the backward pass."""
        return compute(self.graph)

    @cached_property
    def coverage(self) -> Coverage:
        """What the figures rest on."""
        return coverage(self.graph, self.activations, self.training)

    @property
    def batch_law(self) -> Affine | None:
        """Of ``total_bytes``."""
        return self._affine_in_batch[0]

    @property
    def training_law(self) -> Affine | None:
        """Of the training peak."""
        return self._affine_in_batch[1]

    @cached_property
    def symbolic(self) -> ClosedForm | NoClosedForm:
        """The peaks of inference as polynomials in the dims that are free, or why there are none.

        In the batch alone where whole shapes or a context are bound. A training step's report
        leaves them out: they are walks of their own.
        """
        request, results = self.request, self.results
        if request.settings.train:
            return NoClosedForm("rows are of a run: ask without --train")
        is_bound = request.settings.shapes or request.context is not None
        dims = free_dims(request.prepared, results.bound.binding, results.graph)
        return find_closed_form(
            results, request.walk, dict.fromkeys(dims, False) if is_bound else dims
        )

    @cached_property
    def _affine_in_batch(self) -> tuple[Affine | None, Affine | None]:
        request = self.request
        scaling = BatchScaling(self.results, lambda batch: request.at(batch).results, self.symbolic)
        return scaling.affine_total_bytes(), scaling.affine_training_peak()

    @cached_property
    def kv_cache(self) -> "CacheMemory | None":
        """``None``: the model has no cache that is recognized."""
        request = self.request
        if request.cache is None:
            return None
        from onnxmem.analysis.cache_memory import cache_memory

        return cache_memory(request.cache, request.settings, self.results, request.context)

    @cached_property
    def guessed_dims(self) -> tuple[str, ...]:
        """Dynamic dims without a value, which count as 1; the batch is none of them."""
        return self.request.guessed_dims()

    @property
    def follows_batch(self) -> bool:
        """False: the batch requested is not, or not everywhere, the batch of the graph."""
        return self.results.bound.follows_batch

    @property
    def max_batch(self) -> "MaxBatch | None":
        """How far the budget goes; ``None`` where none is given, or bytes are unknown."""
        return None if self.fit is None else self.fit.max_batch

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
        whole |= {each.name for each in self.replays if each.run.made.is_complete}
        requested = (*self.settings.runtimes, *self.request.own_runtimes)
        return tuple(name for name in requested if name not in whole)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the figures are partial, a clause each; none where they are not."""
        clauses = (
            ("the graph does not follow the batch", not self.follows_batch),
            (
                "tensors of unknown size are left out, figures are lower bounds",
                bool(self.coverage.unknown_tensors),
            ),
            (unbound_dims_text(self.guessed_dims), bool(self.guessed_dims)),
        )
        return tuple(clause for clause, holds in clauses if holds)

    @property
    def measurement(self) -> "Measurement | None":
        """What a run took, where one came to something."""
        return None if isinstance(self.measured, Finding) else self.measured

    @property
    def num_parameters(self) -> int:
        """Elements of trained parameters and of quantized weights."""
        return self.parameters.num_parameters

    def at(self, *, batch: int | None = None, dims: Mapping[str, int] | None = None) -> "Analysis":
        """Analyze at another batch or other dims, without reading the file again.

        :raises OnnxmemError: no input has a dim of that name.
        """
        refuse_unknown_names(self.request.source.proto, dims or ())
        return analysis_of(self.request.at(batch, dims))

    def to_dict(self, *, layers: bool = False, peak_rows: bool = True) -> json_rows.JsonDict:
        """One row of the JSON contract.

        ``layers`` adds a row per node; without ``peak_rows`` the peaks as polynomials are null.
        """
        nodes = layers_of(self.graph, self.parameters, self.compute) if layers else None
        polynomials = self.symbolic.to_dict() if peak_rows else json_rows.NO_PEAK_ROWS
        return {
            "path": printable(self.path),
            "status": self.status,
            "error": None,
            "settings": json_rows.settings_row(self.settings)
            | {"guessed_dims": list(self.guessed_dims)},
            "file_bytes": self.file_bytes,
            "weights": {"bytes": self.weight_bytes, "parameters": self.num_parameters},
            "inputs_bytes": self.inputs_bytes,
            "outputs_bytes": self.outputs_bytes,
            "batch_law": json_rows.affine_row(self.batch_law),
            "activations": json_rows.activations_row(self.activations, self.schedule) | polynomials,
            "total_bytes": self.total_bytes,
            "training": json_rows.training_row(self.training, self.torch, self.training_range),
            "training_law": json_rows.affine_row(self.training_law),
            "rules_of_thumb": json_rows.rules_row(self.rules_of_thumb),
            "runtime": next(map(json_rows.runtime_row, self.runtimes), None),
            "runtimes": [json_rows.runtime_row(runtime) for runtime in self.runtimes],
            "measured": json_rows.run_row(self.measurement, self.runtimes),
            "compute": json_rows.compute_row(self.compute),
            "max_batch": json_rows.max_batch_row(self.fit, self.rule_max_batch),
            "coverage": json_rows.coverage_row(self.coverage),
            "layers": None if nodes is None else [json_rows.layer_row(node) for node in nodes],
            "findings": [
                {"code": finding.code, "message": finding.message, "node": finding.node}
                for finding in self.findings
            ],
            "kv_cache": json_rows.kv_cache_row(self.kv_cache),
            "verdict": json_rows.verdict_row(self.fit, self.settings.budget_bytes, self.findings),
            "devices": None,
            **json_rows.replay_rows(self.replays),
        }

    def _repr_html_(self) -> str | None:
        """Show the main figures and the timeline in a notebook."""
        return None if self.notebook_html is None else self.notebook_html()


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


def _runtimes(
    given: "Sequence[str | Runtime]",
) -> "tuple[tuple[str, ...], dict[str, Runtime]]":
    """The runtimes that are named, and those that are objects by their names.

    :raises UsageError: no list of them, a class in place of an object, or a name that is taken.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        message = "runtimes: give a list, as runtimes=('ort-cpu', MyRuntime())"
        raise UsageError(message)
    own: dict[str, Runtime] = {}
    for each in given:
        if isinstance(each, str):
            continue
        if isinstance(each, type):
            message = f"runtimes: {each.__name__} is a class; give an object, {each.__name__}()"
            raise UsageError(message)
        name = getattr(each, "name", None)
        if not isinstance(name, str) or not name.strip() or name in own or name in _TAKEN:
            message = f"runtimes: the name {name!r} is taken or empty; give each runtime its own"
            raise UsageError(message)
        own[name] = each
    return tuple(each for each in given if isinstance(each, str)), own


def _graph_of(file: ModelFile, settings: Settings) -> tuple[ModelFile, tuple[Finding, ...]]:
    """The model that the figures are of; a runtime's rules are imported where they make it."""
    if settings.graph is None:
        return file, ()
    from onnxmem.runtimes.asking import optimized_file

    return optimized_file(file, settings)


def _at_context(request: AnalysisRequest, context: int | None) -> AnalysisRequest:
    """At a context where one is requested; what cannot be is a finding, and the dims stay open."""
    if context is None:
        return request
    from onnxmem.kv_cache.steps import NoContextError, Step

    try:
        return request.at_context(context, Step.DECODE)
    except NoContextError as fault:
        text = f"--context {context} has no effect: {fault}; see --dim"
        return replace(request, remarks=(*request.remarks, Finding("no_context", text)))


def _measured(request: AnalysisRequest) -> "Measurement | Finding | None":
    """Run the model where that is requested; what goes wrong costs no other figure."""
    if request.settings.measure is None:
        return None
    from onnxmem.measure.measuring import measure_as_set

    return measure_as_set(request.source, request.settings)


def _predicted(
    request: AnalysisRequest, measured: "Measurement | Finding | None"
) -> "tuple[RuntimeMemory | Finding, ...]":
    """What the runtimes requested take; their rules are imported where one is."""
    if not request.settings.runtimes:
        return ()
    fed = {} if measured is None or isinstance(measured, Finding) else measured.fed
    from onnxmem.runtimes.asking import runtime_memories

    return runtime_memories(
        request.source, request.results.bound, request.settings, fed, request.optimized_model
    )


def _replayed(request: AnalysisRequest) -> "Iterator[RuntimeReplay | Finding]":
    """What runtimes take that were given as objects; one that fails costs no other figure."""
    if not request.own_runtimes:
        return
    from onnxmem.runtimes.base import RuntimeFailedError

    for name in request.own_runtimes:
        try:
            replayed = request.own_run(name).replay()
        except RuntimeFailedError as fault:
            yield Finding(fault.code, str(fault))
        else:
            yield replayed
            yield from replayed.run.made.diagnostics


def _verdict(request: AnalysisRequest) -> "tuple[FitResult | None, tuple[Finding, ...]]":
    """The verdict on the budget, or why its figure cannot be had."""
    asked = request.settings
    if asked.budget_bytes is None:
        return None, ()
    runtime = request.runtime_name
    from onnxmem.analysis.fitting.assessing import FitRequest, fit
    from onnxmem.analysis.fitting.verdicts import basis_for

    setup = FitRequest(
        memory_bytes=asked.budget_bytes,
        basis=basis_for(None, train=asked.train, runtime=runtime, basis=asked.basis),
        accepted=frozenset(asked.accepted),
    )
    from onnxmem.analysis.fitting.footprints import NoFigureError

    try:
        return fit((request,), setup), ()
    except NoFigureError as fault:
        return None, (Finding("no_figure", f"{setup.basis.value}: {fault}"),)


def _of_runs(
    predicted: "Iterable[RuntimeMemory | RuntimeReplay | Finding]",
    measured: "Measurement | Finding | None",
) -> tuple[Finding, ...]:
    """Why something requested came to nothing, and what is worth saying of the run."""
    refused = tuple(each for each in predicted if isinstance(each, Finding))
    if measured is None:
        return refused
    of_run = (measured,) if isinstance(measured, Finding) else measured.findings
    return (*refused, *of_run)

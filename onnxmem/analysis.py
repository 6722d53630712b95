"""``analyze``: walks the stages in order, the only room that knows them all."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from onnxmem.analysed import Analysis
from onnxmem.compute import compute
from onnxmem.coverage import coverage, model_findings
from onnxmem.errors import UsageError
from onnxmem.findings import Finding
from onnxmem.kv_cache import (
    CacheMemory,
    KvCache,
    NoContextError,
    Recognised,
    Step,
    cache_memory,
    find_cache,
    numbers_at,
    refuse_bound,
    settled,
    with_zeros,
)
from onnxmem.limits import Limits
from onnxmem.measure.measurement import Measurement
from onnxmem.measure.measuring import BackendUnavailableError
from onnxmem.measure.measuring import measure as run_measured
from onnxmem.measure.options import Provider, SessionOptions
from onnxmem.measure.settings import MeasureSettings
from onnxmem.model import ModelFile, ModelSource, Prepared, Request, load, prepare
from onnxmem.recipe import Recipe
from onnxmem.runtimes import LEVELS, RuntimeMemory, optimised_file, runtime_memories
from onnxmem.runtimes.torch import TorchMemory, TorchSettings, replay
from onnxmem.settings import Settings
from onnxmem.terms import Terms, model_size, sum_bytes, terms_of
from onnxmem.training import TrainingMemory
from onnxmem.training.rules_of_thumb import (
    rules_of_thumb,
    tensor_elements,
    usual_max_batch,
)
from onnxmem.values import GivenValue, read_values

__all__ = ["Analysis", "Question", "analyze", "ask"]

_STEPS = 2
"""Training steps that PyTorch's allocator is replayed for: no network's third asked for more
than its second.
"""


@dataclass(frozen=True, slots=True)
class Question:
    """A model that is read, and what is asked of it."""

    model: ModelFile
    prepared: Prepared
    settings: Settings
    source: ModelFile
    """The file, where ``model`` is what a runtime's optimiser made of it."""
    remarks: tuple[Finding, ...] = ()
    cache: KvCache | None = None
    context: int | None = None
    """Tokens that the cache holds after a step, where that is asked for."""
    is_emptied: bool = False
    """Whether ``source`` says 0 for past tokens, of which there are none in a prefill."""

    def at_context(self, context: int, step: Step = Step.DECODE) -> "Question":
        """A step that ends at a context, of a question that is asked of none yet.

        :raises NoContextError: the model has no such step, or no cache.
        :raises UsageError: a dim is asked for that the context decides, or training.
        """
        if self.settings.train:
            message = "--context: a training step has no cache; leave --train or --context out"
            raise UsageError(message)
        if self.cache is None:
            message = "no key-value cache is recognised among the inputs"
            raise NoContextError(message)
        at = numbers_at(self.cache, step, context)
        refuse_bound(self.settings.dims, at[1])
        asked = self.without(at[1])
        prepared, settings = settled(self.cache, asked.prepared, asked.settings, at)
        return replace(asked, prepared=prepared, settings=settings, context=context)

    def without(self, numbers: Mapping[str, int]) -> "Question":
        """The same of a file that says 0 for the symbols that are; itself where none is."""
        proto = with_zeros(self.source.proto, numbers)
        if proto is self.source.proto or self.is_emptied:
            return self
        prepared = replace(self.prepared, proto=with_zeros(self.prepared.proto, numbers))
        source = replace(self.source, proto=proto)
        return replace(self, prepared=prepared, source=source, is_emptied=True)

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

    def cache_memory(self, terms: Terms) -> CacheMemory | None:
        """What the cache takes; ``None`` where there is none."""
        if self.cache is None:
            return None
        return cache_memory(self.cache, self.settings, terms, self.context)

    def answer(self) -> Analysis:
        """Walk the stages at the batch asked for, and at the batches that laws and limits need."""
        terms = self.terms()
        graph = terms.graph
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
            schedule=terms.schedule,
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
            kv_cache=self.cache_memory(terms),
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
    context: int | None = None,
    budget_bytes: int | None = None,
    runtimes: tuple[str, ...] = (),
    graph: str | None = None,
    order: str = "file",
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
    number, or a list of them); ``context`` is the tokens that a language model's cache holds after
    a decode step; ``budget_bytes`` asks for the largest batch within it. ``runtimes``
    asks for what ``ort-cpu`` and ``ort-cuda`` take, ``graph`` for figures of the graph that
    onnxruntime makes, ``order`` for activations in another order of execution.

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
        order=order,
        measure=measure,
        fixed_dims=fixed_dims,
        cuda_context_bytes=cuda_context_bytes,
        cuda_workspace_bytes=cuda_workspace_bytes,
        expandable_segments=expandable_segments,
        asks_onnxruntime=asks_onnxruntime,
    )
    file = load(source)
    model, remarks = optimised_file(file, settings)
    return _at(ask(model, settings, file, remarks), context).answer()


def ask(
    model: ModelFile, settings: Settings, source: ModelFile, remarks: tuple[Finding, ...] = ()
) -> Question:
    """Read a model and what is asked of it; nothing is worked out yet.

    :raises OnnxmemError: the model cannot be read.
    """
    prepared = prepare(model)
    found: Recognised = find_cache(prepared)
    return Question(model, prepared, settings, source, (*remarks, *found.remarks), found.cache)


def _at(asked: Question, context: int | None) -> Question:
    """At a context where one is asked for; what cannot be is a finding, and the dims stay open."""
    if context is None:
        return asked
    try:
        return asked.at_context(context)
    except NoContextError as fault:
        text = f"--context {context} has no effect: {fault}; see --dim"
        return replace(asked, remarks=(*asked.remarks, Finding("no_context", text)))

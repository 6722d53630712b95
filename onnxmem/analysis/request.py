"""What is requested of one model, and what the stages find at one batch of it.

An ``AnalysisRequest`` is a model prepared once, with the settings, at any batch and dims. Its
``StageResults`` are the results of the stages, each computed when first read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from onnxmem.analysis.coverage import model_findings
from onnxmem.analysis.rules_of_thumb import ModelSize, per_sample
from onnxmem.errors import Finding, OnnxmemError, UsageError
from onnxmem.kv_cache.candidates import candidates
from onnxmem.model.binding import Request, guessed_dims, required_inputs
from onnxmem.model.building import BoundModel, Prepared, build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import Graph, Node, Tensor
from onnxmem.model.input_values import (
    input_arrays,
    refuse_unknown_names,
    unused_values,
    with_input_values,
)
from onnxmem.model.parameters import Parameters, parameters
from onnxmem.model.type_conflicts import conflict_findings, type_conflicts
from onnxmem.runtimes import assumed
from onnxmem.runtimes.assumed import Assumed
from onnxmem.runtimes.ideal.activation_memory import (
    ActivationMemory,
    activation_memory,
    in_place_peak_bytes,
)
from onnxmem.units import sum_known

if TYPE_CHECKING:
    from onnxmem.kv_cache.cache import KvCache
    from onnxmem.kv_cache.steps import Step
    from onnxmem.runtimes.base import Runtime, RuntimeRun
    from onnxmem.runtimes.ideal.schedules import Schedule
    from onnxmem.runtimes.onnxruntime.session import SessionRuntime
    from onnxmem.runtimes.onnxruntime.session_graph.loaded import OptimizedModel
    from onnxmem.runtimes.onnxruntime.session_graph.opening import ModelAt, Opening
    from onnxmem.runtimes.torch.cuda import TorchMemory, TorchRuntime
    from onnxmem.runtimes.torch.memory import PeakRange, TrainingMemory
    from onnxmem.settings import Recipe, Settings


@dataclass(frozen=True, kw_only=True)
class StageResults:
    """The figures of the stages; bytes, ``None`` is unknown."""

    prepared: Prepared
    bound: BoundModel
    weight_bytes: int | None
    inputs_bytes: int | None
    recipe: "Recipe | None" = None
    """Of the training step; ``None``: none is asked for."""
    order: str = "file"
    """In which the nodes run."""

    @cached_property
    def training(self) -> "TrainingMemory | None":
        """The training step, worked out when first asked for: rows of a run ask for none.

        :raises UsageError: a recipe that names an output which is none.
        """
        if self.recipe is None:
            return None
        from onnxmem.runtimes.torch.step import training_memory

        return training_memory(self.bound.graph, self.recipe)

    @cached_property
    def training_range(self) -> "PeakRange | None":
        """The training peak without and with the BatchNormalizations that the step leaves out.

        ``None``: it leaves none out.
        """
        if self.training is None:
            return None
        from onnxmem.runtimes.torch.step import batchnorm_range

        return batchnorm_range(self.bound.graph, self.training)

    @cached_property
    def schedule(self) -> "Schedule | None":
        """The order asked for; ``None``: the file's."""
        if self.order == "file":
            return None
        from onnxmem.runtimes.ideal.scheduling import schedule_of

        return schedule_of(self.bound.graph, self.order)

    @cached_property
    def graph(self) -> Graph:
        """The graph in the order asked for; a runtime has an order of its own."""
        if self.schedule is None:
            return self.bound.graph
        from onnxmem.runtimes.ideal.scheduling import in_order

        return in_order(self.bound.graph, self.schedule)

    @cached_property
    def parameters(self) -> Parameters:
        """The weights by what they are to training, found when first asked for: a law asks none."""
        return parameters(self.bound.graph)

    @cached_property
    def activations(self) -> ActivationMemory:
        """What nodes make, found when first asked for: peaks as lines ask for the graph alone."""
        return activation_memory(self.graph)

    @cached_property
    def type_conflicts(self) -> tuple[tuple[Node, str], ...]:
        """The nodes that no runtime takes, found when first asked for: no batch changes them."""
        return tuple(type_conflicts(self.prepared.proto, self.bound.graph))

    @property
    def total_bytes(self) -> int | None:
        """Weights, inputs and in-place peak."""
        return sum_known((self.weight_bytes, self.inputs_bytes, self._in_place_peak_bytes))

    @cached_property
    def _in_place_peak_bytes(self) -> int | None:
        """Of activations that were asked for, or by itself: most batches are asked no more."""
        if "activations" in vars(self):
            return self.activations.in_place_peak_bytes
        return in_place_peak_bytes(self.graph)

    @property
    def is_whole(self) -> bool:
        """Whether the figures are of the batch asked for and leave nothing out."""
        left_out = self.training.unknown if self.training else ()
        return self.bound.follows_batch and not (left_out or self.activations.unknown_tensors)

    @property
    def training_peak_bytes(self) -> int | None:
        """The training step's peak; ``None`` also where no training is asked for."""
        return self.training.peak_bytes if self.training else None


@dataclass(frozen=True)
class AnalysisRequest:
    """A model that was read, and what is requested of it."""

    model: ModelFile
    prepared: Prepared
    settings: "Settings"
    source: ModelFile
    """The file, where ``model`` is what a runtime's graph optimizer made of it."""
    remarks: tuple[Finding, ...] = ()
    cache: "KvCache | None" = None
    context: int | None = None
    """Tokens that the cache holds after a step, where that is asked for."""
    is_emptied: bool = False
    """Whether ``source`` says 0 for past tokens, of which there are none in a prefill."""
    own_runtimes: "Mapping[str, Runtime]" = field(default_factory=dict)
    """Runtimes that were given as objects, by name."""
    _optimized: "dict[tuple[int, Opening], tuple[ModelFile, OptimizedModel]]" = field(
        default_factory=dict, compare=False, repr=False
    )
    """What sessions make of files: of this request and those made of it, at any batch and dims."""

    def at_context(self, context: int, step: "Step") -> "AnalysisRequest":
        """A step that ends at a context, of a question that is asked of none yet.

        :raises NoContextError: the model has no such step, or no cache.
        :raises UsageError: a dim is asked for that the context decides, or training.
        """
        if self.settings.train:
            message = "--context: a training step has no cache; leave --train or --context out"
            raise UsageError(message)
        from onnxmem.kv_cache.steps import NoContextError, numbers_at, refuse_bound, settled

        if self.cache is None:
            message = "no key-value cache is recognised among the inputs"
            raise NoContextError(message)
        at = numbers_at(self.cache, step, context)
        refuse_bound(self.settings.dims, at[1])
        asked = self.without(at[1])
        prepared, settings = settled(self.cache, asked.prepared, asked.settings, at)
        return replace(asked, prepared=prepared, settings=settings, context=context)

    def without(self, numbers: Mapping[str, int]) -> "AnalysisRequest":
        """The same of a file that says 0 for the symbols that are; itself where none is."""
        from onnxmem.kv_cache.steps import with_zeros

        proto = with_zeros(self.source.proto, numbers)
        if proto is self.source.proto or self.is_emptied:
            return self
        prepared = replace(self.prepared, proto=with_zeros(self.prepared.proto, numbers))
        source = replace(self.source, proto=proto)
        return replace(self, prepared=prepared, source=source, is_emptied=True)

    def at(
        self, batch: int | None = None, dims: Mapping[str, int] | None = None
    ) -> "AnalysisRequest":
        """The same question at another batch, which wins over a dim given for it, and other dims.

        Those that are not named stay as they were asked for.
        """
        named = {**self.settings.dims, **(dims or {})}
        if batch is None:
            return replace(self, settings=replace(self.settings, dims=named))
        symbols = self.prepared.batch_symbols
        named = {name: n for name, n in named.items() if name not in symbols}
        if batch == self.settings.batch and named == self.settings.dims:
            return self
        return replace(self, settings=replace(self.settings, batch=batch, dims=named))

    def walk(self, batch: int | None, dims: Mapping[str, int]) -> StageResults:
        """What a run takes at a batch and at dims."""
        return stage_results(self.prepared, replace(self.at(batch, dims).settings, train=False))

    @cached_property
    def results(self) -> StageResults:
        """What the stages find at the batch and the dims requested, walked once."""
        return stage_results(self.prepared, self.settings)

    def torch_runtime(self, results: StageResults) -> "TorchRuntime":
        """PyTorch's process as requested, and what is assumed beside the step's tensors."""
        from onnxmem.allocators.caching import CachingConfig
        from onnxmem.runtimes.torch.cuda import WORKSPACE_BYTES, TorchRuntime

        requested = self.settings
        multiplies = results.training is not None and results.training.multiplies_matrices
        return TorchRuntime(
            recipe=requested.recipe,
            config=CachingConfig(expandable_segments=requested.expandable_segments),
            cublas_workspace_bytes=WORKSPACE_BYTES if multiplies else 0,
            context=self.torch_context,
            workspace=self.workspace(results),
        )

    @property
    def torch_context(self) -> Assumed:
        """The CUDA context of a process of PyTorch."""
        is_old = self.settings.recipe.torch == "1.12"
        usual = assumed.OLD_TORCH_CONTEXT if is_old else assumed.TORCH_CONTEXT
        return assumed.context(usual, self.settings.cuda_context_bytes)

    @property
    def runtime_context(self) -> Assumed:
        """The CUDA context of a process of onnxruntime."""
        return assumed.context(assumed.ORT_CONTEXT, self.settings.cuda_context_bytes)

    def workspace(self, results: StageResults) -> Assumed:
        """What cuDNN takes for the model's convolutions."""
        return assumed.workspace(results.graph, self.settings.cuda_workspace_bytes)

    def torch_memory(
        self, results: StageResults, capacity_bytes: int | None = None
    ) -> "TorchMemory | None":
        """Replay the step's allocations; ``None`` where no training is asked for.

        ``capacity_bytes`` is what the device has for the allocator, beside the context.
        """
        training = results.training
        if training is None:
            return None
        runtime = self.torch_runtime(results)
        return runtime.memory(runtime.program_of(training), capacity_bytes)

    @property
    def runtime_name(self) -> str | None:
        """The runtime whose process a verdict compares; ``None``: none is requested."""
        return next(iter((*self.settings.runtimes, *self.own_runtimes)), None)

    def torch_run(self) -> "RuntimeRun | None":
        """The training step as PyTorch runs it; ``None``: figures of it leave something out."""
        results = self.results
        step = results.training
        if step is None or not results.is_whole or step.checkpoints or step.batchnorms.unknown:
            return None
        from onnxmem.runtimes.base import RuntimeRun

        runtime = self.torch_runtime(results)
        return RuntimeRun(runtime, runtime.program_of(step), runtime.overheads(results.graph))

    def session(self, name: str) -> "tuple[SessionRuntime, Graph]":
        """The session of onnxruntime on the model, and the graph of the file that it opens.

        :raises OnnxmemError: the optimized graph cannot be read, or a value does not fit its input.
        """
        from onnxmem.runtimes.onnxruntime.memory import RuntimeQuestion
        from onnxmem.runtimes.onnxruntime.session import SessionRuntime
        from onnxmem.runtimes.onnxruntime.session_graph.opening import ModelAt
        from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

        asked, results = self.settings, self.results
        input_arrays(results.bound.graph, asked.values)
        opened = RuntimeQuestion(
            name=name,
            graph=asked.graph or "ort-all",
            options=SessionOptions(fixed_dims=asked.fixed_dims),
            asks_onnxruntime=asked.asks_onnxruntime,
            cpu=asked.cpu,
        )
        prepared, bound = self.prepared, results.bound
        if asked.graph not in {None, "raw"}:
            # The optimized graph has no symbols left to bind dims by where they are fixed.
            prepared = prepare(self.source)
            bound = build(prepared, Request(asked.batch, asked.dims, asked.shapes))
        runtime = SessionRuntime(
            name=name,
            optimized=self.optimized_model(ModelAt(self.source, prepared, bound), opened.opening()),
            options=opened.session_options(),
            values=asked.values,
            file_bytes=self.source.file_bytes,
            context=self.runtime_context,
            workspace=self.workspace(results),
        )
        return runtime, bound.graph

    def session_run(self, name: str) -> "RuntimeRun | None":
        """The session, ready to be replayed; ``None``: figures of the model leave something out.

        :raises OnnxmemError: as ``session``.
        """
        from onnxmem.runtimes.base import RuntimeRun

        run = RuntimeRun.of(*self.session(name)) if self.results.is_whole else None
        return run if run is not None and run.made.is_complete else None

    def optimized_model(self, model: "ModelAt", opening: "Opening") -> "OptimizedModel":
        """What a session makes of the file: once, but where it depends on the dims.

        :raises OnnxmemError: what ``opening.optimized_model`` raises.
        """
        from onnxmem.runtimes.onnxruntime.session_graph.opening import optimized_model

        if opening.fixed_dims or model.bound.binding.old_batch is not None:
            return optimized_model(model, opening)
        key = id(model.file), opening
        if key not in self._optimized:
            self._optimized[key] = model.file, optimized_model(model, opening)
        return self._optimized[key][1]

    def own_run(self, name: str) -> "RuntimeRun":
        """A runtime that was given as an object, on the graph.

        :raises RuntimeFailedError: it does not run the graph, for whatever reason.
        """
        from onnxmem.runtimes.base import RuntimeFailedError, RuntimeRun

        if name not in self._own_runs:
            try:
                self._own_runs[name] = RuntimeRun.of(self.own_runtimes[name], self.results.graph)
            except Exception as fault:  # the runtime is the caller's, and so are its faults
                told = str(fault) if isinstance(fault, OnnxmemError) else repr(fault)
                message = f"{name} does not run the model: {told}"
                raise RuntimeFailedError(message) from fault
        return self._own_runs[name]

    @cached_property
    def _own_runs(self) -> "dict[str, RuntimeRun]":
        """The runs that were made."""
        return {}

    def guessed_dims(self) -> tuple[str, ...]:
        """Of the file itself: a graph that is optimized for its dims has numbers in their place."""
        asked = self.settings
        request = Request(asked.batch, asked.dims, asked.shapes)
        return guessed_dims(required_inputs(self.source.proto.graph), request)

    def findings(
        self, results: StageResults, of_runs: Iterable[Finding] = ()
    ) -> tuple[Finding, ...]:
        """Warnings and notes on the file, the request and runs, each once."""
        found = (
            *(*results.bound.findings, *self.remarks),
            *unused_values(results.graph, self.settings.values),
            *conflict_findings(results.type_conflicts),
            *(results.training.findings if results.training else ()),
            *_range_findings(results),
            *model_findings(results.graph, results.parameters, train=self.settings.train),
            *of_runs,
        )
        return tuple(dict.fromkeys(found))


def request_for(
    model: ModelFile, settings: "Settings", source: ModelFile, remarks: tuple[Finding, ...] = ()
) -> AnalysisRequest:
    """Read a model and what is asked of it; nothing is worked out yet.

    :raises OnnxmemError: the model cannot be read, or lacks a name that is given.
    """
    if not settings.one_of_several:
        refuse_unknown_names(source.proto, settings.dims, settings.values)
    prepared = prepare(model)
    cache, no_caches = _cache_of(prepared)
    return AnalysisRequest(model, prepared, settings, source, (*remarks, *no_caches), cache)


def stage_results(prepared: Prepared, asked: "Settings") -> StageResults:
    """Walk the stages once, at the batch asked for."""
    bound = build(prepared, Request(asked.batch, asked.dims, asked.shapes))
    bound = with_input_values(prepared, bound, asked.values)
    graph = bound.graph
    return StageResults(
        prepared=prepared,
        bound=bound,
        weight_bytes=sum_bytes(graph.weights),
        inputs_bytes=sum_bytes(graph.tensors[name] for name in graph.inputs),
        recipe=asked.recipe if asked.train else None,
        order=asked.order,
    )


def model_size(model: ModelFile, results: StageResults) -> ModelSize:
    """What the rules of thumb reckon with."""
    graph = results.bound.graph
    batch = results.bound.binding.batch or 1
    external = [weight for weight in graph.weights if weight.is_external]
    inputs = sum_known(graph.tensors[name].num_elements for name in graph.inputs)
    activations = results.activations.naive_in_place_elements
    return ModelSize(
        file_bytes=model.file_bytes,
        absent_external_bytes=sum_bytes(external),
        weight_bytes=results.weight_bytes,
        num_parameters=results.parameters.num_parameters,
        activation_elements_per_sample=per_sample(activations, batch),
        input_elements_per_sample=per_sample(inputs, batch),
        activation_bytes=results.activations.naive_in_place_bytes,
        input_bytes=results.inputs_bytes,
        batch=batch,
    )


def sum_bytes(tensors: Iterable[Tensor]) -> int | None:
    """Bytes of tensors: a lower bound where one is unknown, ``None`` where all are."""
    return sum_known(tensor.size_bytes for tensor in tensors)


def _cache_of(prepared: Prepared) -> "tuple[KvCache | None, tuple[Finding, ...]]":
    """The key-value cache, and what is only named like one; most models have no candidate."""
    found = tuple(candidates(prepared))
    if not found:
        return None, ()
    from onnxmem.kv_cache.cache import find_cache

    return find_cache(prepared, found)


def _range_findings(results: StageResults) -> tuple[Finding, ...]:
    if results.training is None or results.training_range is None:
        return ()
    from onnxmem.runtimes.torch.step import range_finding

    return (range_finding(results.training, results.training_range),)

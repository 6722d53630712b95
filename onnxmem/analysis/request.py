"""What is requested of one model, prepared once: the settings, at any batch and dims."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from onnxmem.analysis.coverage import model_findings
from onnxmem.analysis.stages import StageResults, stage_results
from onnxmem.errors import Finding, OnnxmemError, UsageError
from onnxmem.kv_cache.candidates import candidates
from onnxmem.model.binding import Request, given_inputs, guessed_dims
from onnxmem.model.building import Prepared, build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.input_values import given_values, refuse_unknown_names, unused_values
from onnxmem.model.type_conflicts import conflict_findings
from onnxmem.runtimes import assumed
from onnxmem.runtimes.assumed import Assumed

if TYPE_CHECKING:
    from onnxmem.kv_cache.cache import KvCache
    from onnxmem.kv_cache.steps import Step
    from onnxmem.model.graph import Graph
    from onnxmem.runtimes.base import Runtime, RuntimeRun
    from onnxmem.runtimes.onnxruntime.memory import RuntimeQuestion
    from onnxmem.runtimes.onnxruntime.session import SessionRuntime
    from onnxmem.runtimes.onnxruntime.session_graph.loaded import OptimizedModel
    from onnxmem.runtimes.onnxruntime.session_graph.opening import ModelAt, Opening
    from onnxmem.runtimes.torch.cuda import TorchMemory, TorchRuntime
    from onnxmem.settings import Settings


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

    def torch_runtime(self, terms: StageResults) -> "TorchRuntime":
        """PyTorch's process as requested, and what is assumed beside the step's tensors."""
        from onnxmem.allocators.caching import CachingConfig
        from onnxmem.runtimes.torch.cuda import WORKSPACE_BYTES, TorchRuntime

        requested = self.settings
        multiplies = terms.training is not None and terms.training.multiplies_matrices
        return TorchRuntime(
            recipe=requested.recipe,
            config=CachingConfig(expandable_segments=requested.expandable_segments),
            cublas_workspace_bytes=WORKSPACE_BYTES if multiplies else 0,
            context=self.torch_context,
            workspace=self.workspace(terms),
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

    def workspace(self, terms: StageResults) -> Assumed:
        """What cuDNN takes for the model's convolutions."""
        return assumed.workspace(terms.graph, self.settings.cuda_workspace_bytes)

    def torch_memory(
        self, terms: StageResults, capacity_bytes: int | None = None
    ) -> "TorchMemory | None":
        """Replay the step's allocations; ``None`` where no training is asked for.

        ``capacity_bytes`` is what the device has for the allocator, beside the context.
        """
        training = terms.training
        if training is None:
            return None
        runtime = self.torch_runtime(terms)
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
        given_values(results.bound.graph, asked.values)
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
            optimized=self._optimized_model(ModelAt(self.source, prepared, bound), opened),
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

    def _optimized_model(self, model: "ModelAt", opened: "RuntimeQuestion") -> "OptimizedModel":
        """What the session makes of the file: once, but where it depends on the dims."""
        from onnxmem.runtimes.onnxruntime.session_graph.opening import optimized_model

        opening = opened.opening()
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
        return guessed_dims(given_inputs(self.source.proto.graph), request)

    def findings(self, terms: StageResults, of_runs: Iterable[Finding] = ()) -> tuple[Finding, ...]:
        """What is worth telling of the file, of the question and of runs, each once."""
        found = (
            *(*terms.bound.findings, *self.remarks),
            *unused_values(terms.graph, self.settings.values),
            *conflict_findings(terms.type_conflicts),
            *(terms.training.findings if terms.training else ()),
            *_range_findings(terms),
            *model_findings(terms.graph, terms.parameters, train=self.settings.train),
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


def _cache_of(prepared: Prepared) -> "tuple[KvCache | None, tuple[Finding, ...]]":
    """The key-value cache, and what is only named like one; most models have no candidate."""
    found = tuple(candidates(prepared))
    if not found:
        return None, ()
    from onnxmem.kv_cache.cache import find_cache

    return find_cache(prepared, found)


def _range_findings(terms: StageResults) -> tuple[Finding, ...]:
    if terms.training is None or terms.training_range is None:
        return ()
    from onnxmem.runtimes.torch.step import range_finding

    return (range_finding(terms.training, terms.training_range),)

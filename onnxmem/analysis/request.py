"""What is asked of one model, and the one place that walks all stages to answer it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from onnxmem import kv_cache, measure, runtimes
from onnxmem.allocators.caching import CachingConfig
from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.compute import compute
from onnxmem.analysis.coverage import coverage, model_findings
from onnxmem.analysis.rules_of_thumb import (
    ModelSize,
    rules_of_thumb,
    tensor_elements,
    usual_max_batch,
)
from onnxmem.analysis.scaling.limits import BatchScaling
from onnxmem.analysis.scaling.row_finding import free_dims, symbolic_terms
from onnxmem.analysis.scaling.symbolic_terms import NoRows, SymbolicTerms
from onnxmem.analysis.stages import StageResults, model_size, stage_results, sum_bytes
from onnxmem.collecting import without_collection
from onnxmem.errors import Finding, UsageError
from onnxmem.model import ModelFile, Prepared, Request, prepare
from onnxmem.model.binding import given_inputs, guessed_dims
from onnxmem.model.given_names import refuse_unknown_names
from onnxmem.model.given_values import unused_values
from onnxmem.model.type_conflicts import conflict_findings
from onnxmem.runtimes import assumed, torch
from onnxmem.runtimes.assumed import Assumed

if TYPE_CHECKING:
    from onnxmem.analysis.cache_memory import CacheMemory
    from onnxmem.kv_cache import KvCache, Step
    from onnxmem.measure.measurement import Measurement
    from onnxmem.runtimes import RuntimeMemory
    from onnxmem.runtimes.torch import PeakRange, TorchMemory, TorchSettings
    from onnxmem.settings import Settings, Values


@dataclass(frozen=True, slots=True)
class AnalysisRequest:
    """A model that is read, and what is asked of it."""

    model: ModelFile
    prepared: Prepared
    settings: "Settings"
    source: ModelFile
    """The file, where ``model`` is what a runtime's optimiser made of it."""
    remarks: tuple[Finding, ...] = ()
    cache: "KvCache | None" = None
    context: int | None = None
    """Tokens that the cache holds after a step, where that is asked for."""
    is_emptied: bool = False
    """Whether ``source`` says 0 for past tokens, of which there are none in a prefill."""

    def at_context(self, context: int, step: "Step") -> "AnalysisRequest":
        """A step that ends at a context, of a question that is asked of none yet.

        :raises NoContextError: the model has no such step, or no cache.
        :raises UsageError: a dim is asked for that the context decides, or training.
        """
        if self.settings.train:
            message = "--context: a training step has no cache; leave --train or --context out"
            raise UsageError(message)
        if self.cache is None:
            message = "no key-value cache is recognised among the inputs"
            raise kv_cache.NoContextError(message)
        at = kv_cache.numbers_at(self.cache, step, context)
        kv_cache.refuse_bound(self.settings.dims, at[1])
        asked = self.without(at[1])
        prepared, settings = kv_cache.settled(self.cache, asked.prepared, asked.settings, at)
        return replace(asked, prepared=prepared, settings=settings, context=context)

    def without(self, numbers: Mapping[str, int]) -> "AnalysisRequest":
        """The same of a file that says 0 for the symbols that are; itself where none is."""
        proto = kv_cache.with_zeros(self.source.proto, numbers)
        if proto is self.source.proto or self.is_emptied:
            return self
        prepared = replace(self.prepared, proto=kv_cache.with_zeros(self.prepared.proto, numbers))
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
        return replace(self, settings=replace(self.settings, batch=batch, dims=named))

    def walk(self, batch: int | None, dims: Mapping[str, int]) -> StageResults:
        """What a run takes at a batch and at dims."""
        return stage_results(self.prepared, replace(self.at(batch, dims).settings, train=False))

    def symbolic(self, terms: StageResults) -> SymbolicTerms | NoRows:
        """The peaks of a run as rows; in the batch alone where whole shapes or a context are bound.

        A training step's report leaves them out: they are walks of their own.
        """
        if self.settings.train:
            return NoRows("rows are of a run: ask without --train")
        is_bound = self.settings.shapes or self.context is not None
        dims = free_dims(self.prepared, terms.bound.binding, terms.graph)
        return symbolic_terms(terms, self.walk, dict.fromkeys(dims, False) if is_bound else dims)

    def terms(self) -> StageResults:
        """Walk the stages once, at the batch asked for."""
        return stage_results(self.prepared, self.settings)

    def measurement(self) -> "Measurement | Finding | None":
        """Run the model where that is asked for; what goes wrong costs no other figure."""
        if self.settings.measure is None:
            return None
        return measure.run_as_asked(self.source, self.settings)

    def torch_settings(self, terms: StageResults) -> "TorchSettings":
        """PyTorch's allocator as asked for, and what is assumed beside the step's tensors."""
        asked, usual = self.settings, torch.TorchSettings()
        multiplies = terms.training is not None and terms.training.multiplies_matrices
        return torch.TorchSettings(
            allocator=CachingConfig(expandable_segments=asked.expandable_segments),
            cublas_workspace_bytes=usual.cublas_workspace_bytes if multiplies else 0,
            cudnn_workspace_bytes=self.workspace(terms).size_bytes,
            context_bytes=self.torch_context.size_bytes,
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
        sizes, held = tuple(training.trace.sizes()), training.trace.num_held_events
        settings = self.torch_settings(terms)
        return torch.replay(
            sizes[:held], sizes[held:], settings=settings, capacity_bytes=capacity_bytes
        )

    def runtime_memories(
        self, terms: StageResults, fed: Mapping[str, "Values"]
    ) -> "tuple[RuntimeMemory | Finding, ...]":
        """What the runtimes asked for take; their rules are imported where one is."""
        if not self.settings.runtimes:
            return ()
        return runtimes.runtime_memories(self.source, terms.bound, self.settings, fed)

    def cache_memory(self, terms: StageResults) -> "CacheMemory | None":
        """What the cache takes; ``None`` where there is none."""
        if self.cache is None:
            return None
        # Most models have none, and pay for none of its rules.
        from onnxmem.analysis.cache_memory import cache_memory  # noqa: PLC0415

        return cache_memory(self.cache, self.settings, terms, self.context)

    @without_collection()
    def figures(self, again: "Callable[[AnalysisRequest], Analysis]") -> Analysis:
        """Walk the stages at the batch asked for, and at the batches that laws need.

        ``again`` answers the same question at another batch.
        """
        terms = self.terms()
        graph = terms.graph
        settings = replace(
            self.settings, batch=terms.bound.binding.batch, dims=terms.bound.binding.dims
        )
        arithmetic = compute(graph)
        covered = coverage(graph, terms.activations, terms.training)
        size = model_size(self.model, terms)
        symbolic = self.symbolic(terms)
        limits = BatchScaling(terms, lambda batch: self.at(batch).results, symbolic)
        measured = self.measurement()
        fed = measured.fed if measured is not None and not isinstance(measured, Finding) else {}
        asked = self.runtime_memories(terms, fed)
        refused = tuple(each for each in asked if isinstance(each, Finding))
        peaks = batchnorm_range(terms)
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
            training_range=peaks if terms.training and terms.training.batchnorms.unknown else None,
            torch=self.torch_memory(terms),
            rules_of_thumb=rules_of_thumb(size),
            compute=arithmetic,
            batch_law=limits.total_law(),
            training_law=limits.training_law(),
            runtimes=tuple(each for each in asked if not isinstance(each, Finding)),
            measured=measured,
            kv_cache=self.cache_memory(terms),
            rule_max_batch=_rule_max_batch(size, settings.budget_bytes),
            coverage=covered,
            findings=self.findings(terms, (*refused, *_findings_of(measured))),
            guessed_dims=self.guessed_dims(),
            follows_batch=terms.bound.follows_batch,
            symbolic=symbolic,
            question=self,
            again=again,
        )

    def guessed_dims(self) -> tuple[str, ...]:
        """Of the file itself: a graph that is optimised for its dims has numbers in their place."""
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
            *_range_findings(terms, batchnorm_range(terms)),
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
    found = kv_cache.find_cache(prepared)
    return AnalysisRequest(
        model, prepared, settings, source, (*remarks, *found.remarks), found.cache
    )


def batchnorm_range(terms: StageResults) -> "PeakRange | None":
    """What BatchNormalizations that the step leaves out would add; ``None``: it leaves none out."""
    if terms.training is None:
        return None
    return torch.batchnorm_range(terms.bound.graph, terms.training)


def _range_findings(terms: StageResults, peaks: "PeakRange | None") -> tuple[Finding, ...]:
    if terms.training is None or peaks is None:
        return ()
    return (torch.range_finding(terms.training, peaks),)


def _rule_max_batch(size: ModelSize, budget_bytes: int | None) -> int | None:
    """The largest batch by the usual formula; ``None`` where no budget is or sizes are unknown."""
    elements, parameters = tensor_elements(size), size.num_parameters
    if budget_bytes is None or elements is None or parameters is None:
        return None
    return usual_max_batch(budget_bytes, elements, parameters)


def _findings_of(measured: "Measurement | Finding | None") -> tuple[Finding, ...]:
    if measured is None:
        return ()
    return (measured,) if isinstance(measured, Finding) else measured.findings

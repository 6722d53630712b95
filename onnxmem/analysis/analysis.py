"""``analyze``: a model and settings to an ``Analysis``.

``analysis_of`` is the only function that runs the stages. It computes what every report needs; what
only some show (growth with the batch, peaks as polynomials, rules of thumb, FLOPs, PyTorch's
allocator, the key-value cache) is computed when it is first read.
"""

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias, TypeVar

from onnxmem.analysis import json_rows
from onnxmem.analysis.coverage import Coverage, coverage, unbound_dims_text
from onnxmem.analysis.fitting.verdicts import Basis
from onnxmem.analysis.request import (
    AnalysisRequest,
    StageResults,
    at_observed,
    request_for,
    sum_bytes,
)
from onnxmem.errors import Finding, UsageError, printable
from onnxmem.model.files import ModelFile, ModelSource, load
from onnxmem.model.graph import DType
from onnxmem.model.input_values import refuse_unknown_names
from onnxmem.program.sizes import Affine
from onnxmem.settings import RUNTIMES, Settings, TrainingConfig, ValueLike, read_values
from onnxmem.units import format_bytes, format_limit

if TYPE_CHECKING:
    from onnxmem.analysis.cache_memory import CacheMemory
    from onnxmem.analysis.compute import Compute
    from onnxmem.analysis.data_control_flow import DataBranches, DataLoop
    from onnxmem.analysis.fitting.assessing import BudgetBatch, FitResult
    from onnxmem.analysis.observed_memory import ObservedMemory
    from onnxmem.analysis.rules_of_thumb import Elements, RulesOfThumb
    from onnxmem.analysis.scaling import ClosedForm, NoClosedForm
    from onnxmem.analysis.training_figures import TrainingFigures
    from onnxmem.measuring.measurement import Measurement
    from onnxmem.model.graph import Graph
    from onnxmem.model.observed import Observed
    from onnxmem.model.parameters import Parameters
    from onnxmem.runtimes.base import Runtime, RuntimeReplay
    from onnxmem.runtimes.ideal.activation_memory import ActivationMemory
    from onnxmem.runtimes.ideal.schedules import Schedule
    from onnxmem.runtimes.onnxruntime.memory import RuntimeMemory
    from onnxmem.runtimes.torch.cuda import TorchMemory
    from onnxmem.runtimes.torch.memory import PeakRange
    from onnxmem.runtimes.torch.tensorflow import TensorflowMemory


Recorded: TypeAlias = "str | os.PathLike[str] | Observed"
"""Runs of a model, or the file that keeps them."""
_WITHOUT_END: Final = (
    *("with_scratch_peak_bytes", "pattern_block_bytes", "in_use_peak_bytes", "held_bytes"),
    *("held_steady_bytes", "process_first_run_bytes", "process_bytes"),
)
"""Figures of a session that have no upper end where data decide sizes."""
_Function = TypeVar("_Function", bound=Callable[..., object])
_TAKEN: Final = frozenset({*Basis, *RUNTIMES, "none"})
"""Names that a user's runtime must not have, because ``basis`` and ``--runtime`` use them."""


def analyze(  # noqa: PLR0913 - the public API: a keyword per setting
    source: ModelSource | ModelFile,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int | str, ...]] | None = None,
    values: Mapping[str, ValueLike] | None = None,
    train: bool = False,
    optimizer: str | None = None,
    precision: str | None = None,
    loss: str | None = None,
    recipe: TrainingConfig | None = None,
    context: int | None = None,
    budget_bytes: int | None = None,
    basis: str | None = None,
    accepted: Iterable[str] = (),
    runtimes: "Sequence[str | Runtime]" = (),
    graph: str | None = None,
    order: str = "file",
    pack: str = "quick",
    measure: str | None = None,
    fixed_dims: bool = False,
    most: Mapping[str, int] | None = None,
    observed: "Recorded | Sequence[Recorded] | None" = None,
    cuda_context_bytes: int | None = None,
    cuda_workspace_bytes: int | None = None,
    expandable_segments: bool = False,
    asks_onnxruntime: bool = True,
    cpu: str = "native",
    one_of_several: bool = False,
) -> "Analysis":
    """Predict how much memory a model takes, from its file alone.

    :param source: a path, a URL, the model's bytes or a ``ModelProto``.
    :param batch: samples at once (default: None, the batch of the file, or 1).
    :param dims: numbers of symbolic dims, by name (default: None; a dim without one counts as 1).
    :param shapes: whole shapes of inputs, by name (default: None, those of the file).
    :param values: elements of small inputs that shapes or control flow depend on, by name: one
        number for all elements, or a list (default: None, unknown).
    :param most: limits on dims that the data of a run decide, by ``TENSOR:AXIS`` or by a name that
        the file declares (default: None, no limits but those of the operators).
    :param observed: runs of the model whose figures are also reported: a file that
        ``--save-observed`` wrote, or what ``onnxmem.observe`` returned; without dims of your own,
        the inputs have the shapes of these runs (default: None).
    :param train: also a training step of PyTorch (default: False).
    :param optimizer: of the step, one of ``onnxmem.settings.OPTIMIZERS`` (default: None, ``adam``).
    :param precision: of the step, one of ``PRECISIONS`` there (default: None, ``fp32``).
    :param loss: of the step, one of ``LOSSES`` there (default: None, ``cross-entropy``).
    :param recipe: all other settings of the step, as
        ``onnxmem.TrainingConfig(checkpoint="blocks")`` (default: None, ``TrainingConfig()``).
    :param context: tokens in a language model's cache after a decode step (default: None).
    :param budget_bytes: bytes of a device: requests a verdict and the largest batch that fits
        (default: None, no verdict).
    :param basis: what is compared with it, ``tensors`` or ``process`` (default: None, ``process``
        if a step or a runtime is requested).
    :param accepted: codes of warnings that do not make the verdict unknown (default: ()).
    :param runtimes: ``ort-cpu``, ``ort-cuda`` or runtimes of your own (objects as described by
        ``onnxmem.runtimes.base.Runtime``). A verdict compares PyTorch's step with ``train``, else
        the first runtime by name, else the first object (default: ()).
    :param graph: ``raw``, ``ort-basic``, ``ort-extended`` or ``ort-all``, as onnxruntime optimizes
        it (default: None, the file's, for a runtime ``ort-all``).
    :param order: of execution: ``file``, ``onnxruntime`` or ``best`` (default: 'file').
    :param pack: ``best`` searches longer for a small packed block (default: 'quick').
    :param measure: also run the model in onnxruntime, on ``cpu`` or ``cuda`` (default: None).
    :param fixed_dims: open the session with numbers in place of symbolic dims (default: False).
    :param cuda_context_bytes: bytes of CUDA's context (default: None, an assumption).
    :param cuda_workspace_bytes: bytes of cuDNN's workspace (default: None, an assumption).
    :param expandable_segments: PyTorch's allocator on CUDA grows its segments (default: False).
    :param asks_onnxruntime: get the graph from onnxruntime where it is installed; else its graph
        optimizer is emulated (default: True).
    :param cpu: that a session runs on: ``avx512``, ``avx2`` or ``arm64`` (default: 'native', this
        machine's).
    :param one_of_several: several models get the same settings, so a name in ``dims`` or ``values``
        that this one lacks is a warning and not an error (default: False).
    :raises OnnxmemError: the model cannot be read, or the settings contradict each other.
    """
    named, own = _runtimes(runtimes)
    settings = Settings(
        batch=batch,
        dims=dims or {},
        shapes=shapes or {},
        values=read_values(values or {}),
        most=most or {},
        train=train,
        recipe=_recipe(recipe or TrainingConfig(), optimizer, precision, loss),
        budget_bytes=budget_bytes,
        basis=basis,
        accepted=tuple(accepted),
        runtimes=named,
        graph=graph,
        order=order,
        pack=pack,
        measure=measure,
        fixed_dims=fixed_dims,
        cuda_context_bytes=cuda_context_bytes,
        cuda_workspace_bytes=cuda_workspace_bytes,
        expandable_segments=expandable_segments,
        asks_onnxruntime=asks_onnxruntime,
        cpu=cpu,
        one_of_several=one_of_several,
    )
    if not train and settings.recipe != TrainingConfig():
        message = "training options (optimizer, precision, ...) have no effect without train=True"
        raise UsageError(message)
    file = source if isinstance(source, ModelFile) else load(source)
    given = observed_runs(observed)
    settings, seen = at_observed(settings, file, given)
    model, remarks = _graph_of(file, settings)
    request = _at_context(request_for(model, settings, file, remarks), context)
    is_unobserved = bool(given) and seen is None
    return analysis_of(
        replace(request, own_runtimes=own, observed=seen, is_unobserved=is_unobserved)
    )


def takes_settings(function: _Function) -> _Function:
    """Add the settings of ``analyze`` to the documentation of a function that passes them on."""
    known = inspect.getdoc(analyze) or ""
    # The settings follow the function's own parameters and precede what it raises, each once: a
    # parameter that the function documents itself is not repeated.
    own, raises, rest = (inspect.getdoc(function) or "").partition(":raises")
    mine = {*re.findall(r"^:param (\w+)", own, re.MULTILINE), "source"}
    options = re.findall(r"^:param (\w+)(.*?)(?=^:)", known, re.MULTILINE | re.DOTALL)
    added = "".join(f":param {name}{text}" for name, text in options if name not in mine)
    function.__doc__ = f"{own}{added}{raises}{rest}"
    return function


def analysis_of(request: AnalysisRequest) -> "Analysis":
    """Analyze a model as requested.

    :raises OnnxmemError: the model cannot be analyzed at these settings.
    """
    results = request.results
    binding = results.bound.binding
    # Computed here although they are lazy: an output or an order that the model does not have must
    # fail the analysis, not a report of it.
    _ = results.training, results.schedule
    # The measurement comes before the predictions, which are computed for the inputs that it fed.
    observed = _observed(request)
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
        observed=observed,
    )


@dataclass(frozen=True, slots=True)
class WeightFigures:
    """The weights of a model."""

    bytes: int | None
    """Each storage once; ``None``: unknown."""
    parameters: int
    """Elements of trainable parameters and of quantized weights."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The figures of one model under one setting. Bytes are exact; ``None`` is unknown."""

    notebook_html: "ClassVar[Callable[[Analysis], str] | None]" = None
    """Set by ``onnxmem.api``, because ``report`` is a layer above this one."""

    path: str
    settings: "Settings"
    """As requested, but ``batch`` and ``dims`` are those in effect."""
    request: AnalysisRequest = field(repr=False)
    """The request that ``at`` changes."""
    results: StageResults = field(repr=False)
    """The results of the stages."""
    measured: "Measurement | Finding | None"
    """The measurement, or why it failed; ``None``: not requested."""
    runtimes: tuple["RuntimeMemory", ...]
    """The predictions for the named runtimes, in the order of the request."""
    findings: tuple[Finding, ...]
    replays: tuple["RuntimeReplay", ...] = ()
    """The replays of runtimes that were passed as objects."""
    fit: "FitResult | None" = None
    """The verdict on the budget; ``None``: no budget, or its figure does not exist."""
    observed: "ObservedMemory | None" = None
    """The figures of observed runs; ``None``: none are given, or the data decide no dim."""

    @property
    def file_bytes(self) -> int:
        """The size of the model's file."""
        return self.request.model.file_bytes

    @property
    def graph(self) -> "Graph":
        """The graph in the order requested."""
        return self.results.graph

    @property
    def parameters(self) -> "Parameters":
        """The weights by their role in training."""
        return self.results.parameters

    @property
    def error(self) -> None:
        """Nothing: a model that could not be analyzed is a ``Failure``."""

    @property
    def weights(self) -> "WeightFigures":
        """Bytes and parameters of the weights."""
        return WeightFigures(self.weight_bytes, self.num_parameters)

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
        """The memory of activations."""
        return self.results.activations

    @property
    def schedule(self) -> "Schedule | None":
        """The requested order of execution; ``None``: that of the file."""
        return self.results.schedule

    @property
    def total_bytes(self) -> int | None:
        """Weights, inputs and in-place peak: what inference needs before any runtime's overhead."""
        return self.results.total_bytes

    @cached_property
    def training(self) -> "TrainingFigures | None":
        """The training step; ``None``: not requested."""
        step = self.results.training
        if step is None:
            return None
        from onnxmem.analysis.training_figures import TrainingFigures

        return TrainingFigures.of(step, lambda: self.torch, lambda: self.tensorflow)

    @property
    def training_range(self) -> "PeakRange | None":
        """The training peak without and with a folded BatchNormalization in each layer of which
        the file doesn't show it; ``None``: the file or the training configuration decides.
        """
        training = self.training
        is_open = training is not None and training.batchnorms.unknown
        return self.results.training_range if is_open else None

    @cached_property
    def torch(self) -> "TorchMemory | None":
        """The training step as replayed with PyTorch's caching allocator on CUDA."""
        return self.request.torch_memory(self.results)

    @cached_property
    def tensorflow(self) -> "TensorflowMemory | None":
        """The training step as replayed with TensorFlow's allocator, unmeasured."""
        step, torch = self.results.training, self.torch
        if step is None or torch is None:
            return None
        from onnxmem.runtimes.torch.tensorflow import tensorflow_memory

        return tensorflow_memory(step, torch.context_bytes)

    @cached_property
    def rules_of_thumb(self) -> "RulesOfThumb":
        """The estimates of rules of thumb, for comparison."""
        from onnxmem.analysis.rules_of_thumb import model_size, rules_of_thumb

        return rules_of_thumb(model_size(self.request.model, self.results))

    @cached_property
    def rule_max_batch(self) -> int | None:
        """The largest batch by rule of thumb: budget / 4 / (tensor elements + parameters).

        ``None``: no budget, or sizes are unknown.
        """
        budget_bytes = self.settings.budget_bytes
        if budget_bytes is None:
            return None
        from onnxmem.analysis.rules_of_thumb import model_size, rule_of_thumb_batch, tensor_elements

        size = model_size(self.request.model, self.results)
        elements, parameters = tensor_elements(size), size.num_parameters
        if elements is None or parameters is None:
            return None
        return rule_of_thumb_batch(budget_bytes, elements, parameters)

    @cached_property
    def elements(self) -> "Elements":
        """Elements of inputs and activations at the batch."""
        from onnxmem.analysis.rules_of_thumb import elements_of

        return elements_of(self.results)

    @cached_property
    def compute(self) -> "Compute":
        """MACs and FLOPs of the forward and the backward pass."""
        from onnxmem.analysis.compute import compute

        return compute(self.graph)

    @cached_property
    def coverage(self) -> Coverage:
        """How many nodes and tensors are assumed or unknown."""
        return coverage(self.graph, self.activations, self.training)

    @property
    def batch_law(self) -> Affine | None:
        """``total_bytes`` as a line in the batch; ``None`` if it is not one."""
        return self._affine_in_batch[0]

    @property
    def training_law(self) -> Affine | None:
        """The training peak as a line in the batch; ``None`` if it is not one."""
        return self._affine_in_batch[1]

    @cached_property
    def symbolic(self) -> "ClosedForm | NoClosedForm":
        """The peaks of inference as polynomials in the free dims, or why there are none.

        They are in the batch alone if whole shapes or a context are set. The report of a training
        step leaves them out, because they need more walks of the model.
        """
        from onnxmem.analysis.scaling import NoClosedForm, find_closed_form, free_dims

        request, results = self.request, self.results
        if request.settings.train:
            return NoClosedForm("the formula is of inference; run without --train")
        # Whole shapes and a context fix all dims but the batch: the other ones stay as they are
        # bound.
        is_bound = request.settings.shapes or request.context is not None
        dims = free_dims(request.prepared, results.bound.binding, results.graph)
        return find_closed_form(
            results, request.walk, dict.fromkeys(dims, False) if is_bound else dims
        )

    @cached_property
    def _affine_in_batch(self) -> tuple[Affine | None, Affine | None]:
        from onnxmem.analysis.scaling import BatchScaling

        request = self.request
        scaling = BatchScaling(self.results, lambda batch: request.at(batch).results, self.symbolic)
        return scaling.affine_total_bytes(), scaling.affine_training_peak()

    @cached_property
    def kv_cache(self) -> "CacheMemory | None":
        """The key-value cache; ``None``: none is recognized."""
        request = self.request
        if request.cache is None:
            return None
        from onnxmem.analysis.cache_memory import cache_memory

        return cache_memory(request.cache, request.settings, self.results, request.context)

    @cached_property
    def guessed_dims(self) -> tuple[str, ...]:
        """Dynamic dims without a value, which count as 1; never the batch."""
        return self.request.guessed_dims()

    @property
    def follows_batch(self) -> bool:
        """False: some tensors of the graph do not have the requested batch."""
        return self.results.bound.follows_batch

    @cached_property
    def max_batch(self) -> "BudgetBatch | None":
        """The largest batch within the budget; ``None``: no budget, or bytes are unknown."""
        if self.fit is None or self.fit.max_batch is None:
            return None
        from onnxmem.analysis.fitting.assessing import BudgetBatch

        return BudgetBatch.of(self.fit, self.fit.max_batch, self.rule_max_batch)

    @property
    def verdict(self) -> "FitResult | None":
        """The verdict on the budget; ``None``: no budget, or the figure is unknown."""
        return self.fit

    @property
    def status(self) -> str:
        """``partial`` if a figure leaves something out or depends on unset dims, else ``ok``."""
        return "partial" if self.doubts or self.partial_runtimes else "ok"

    @property
    def is_whole(self) -> bool:
        """Whether figures without a runtime have the requested batch and include every tensor."""
        return self.follows_batch and not self.coverage.unknown_tensors

    @property
    def runtime(self) -> "RuntimeMemory | None":
        """The first of ``runtimes``."""
        return next(iter(self.runtimes), None)

    @property
    def partial_runtimes(self) -> tuple[str, ...]:
        """Runtimes whose figures are lower bounds, or unknown."""
        whole = {each.name for each in self.runtimes if not each.unknown.is_lower_bound}
        whole |= {each.name for each in self.replays if each.run.runtime_program.is_complete}
        requested = (*self.settings.runtimes, *self.request.own_runtimes)
        return tuple(name for name in requested if name not in whole)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the figures are partial, one clause per reason."""
        clauses = (
            ("the batch size is fixed in this model", not self.follows_batch),
            (self._left_out, bool(self.coverage.unknown_tensors)),
            (unbound_dims_text(self.guessed_dims), bool(self.guessed_dims)),
        )
        return tuple(clause for clause, is_so in clauses if is_so)

    @property
    def _unsized(self) -> str:
        """Which tensors are left out, where no dim is left to the data."""
        # A training step also leaves out nodes that save something.
        found = [self.graph.tensors.get(name) for name in self.coverage.unknown_tensor_names]
        if all(each is not None and each.dtype is DType.STRING for each in found):
            return "the bytes of strings are unknown and left out"
        # A string's bytes are not in its shape, so no setting of a dim adds them.
        return "tensors of unknown size are left out"

    @property
    def _left_out(self) -> str:
        """Why the figures leave tensors out, and what inference takes at most."""
        dims, at_most = self.results.data_text(), self.at_most
        least_bytes = self.results.at_least.total_bytes
        bounds = "figures are lower bounds"
        if least_bytes != self.total_bytes:
            bounds = f"a run takes at least {format_bytes(least_bytes)}"
        if not dims:
            return f"{self._unsized}, figures are lower bounds"
        if at_most is None:
            flags = self.results.data_flags()
            observing = "" if self.observed else ", or run it with --observe random"
            settled = f"; set {flags}{observing}" if flags else ""
            return f"{bounds}: {dims}{settled}"
        if at_most.total_bytes == least_bytes:
            return f"{dims}, which does not change the peak; other figures are lower bounds"
        seen = None if self.observed is None else self.observed.total_bytes
        known = "" if seen is None else f", {format_bytes(seen.most)} in observed runs"
        most = f"of inference at most {format_bytes(at_most.total_bytes)}{known}"
        if at_most.training_peak_bytes is not None:
            most += f", of a training step at most {format_bytes(at_most.training_peak_bytes)}"
        return f"{bounds}, {most}: {dims}"

    @property
    def at_most(self) -> StageResults | None:
        """The figures at the upper end of every dim that the data of a run decide; those of the
        request, if all dims are known; ``None``: a dim has no upper end.
        """
        return self.results.at_most

    @property
    def without_upper_end(self) -> tuple[str, ...]:
        """The figures of allocators that data of a run may raise, by their keys in JSON.

        More bytes of a tensor may lower what an allocator reserves, so no replay bounds them.
        """
        names = [
            f"runtimes.{each.name}.{figure}"
            for each in self.runtimes
            if not each.is_every_run
            for figure in _WITHOUT_END
            if getattr(each, figure) is not None
        ]
        names += [
            f"runtimes.{each.name}.requested_peak_bytes"
            for each in self.runtimes
            if not each.is_every_run and each.requested_peak_upper_bytes is None
        ]
        # If the upper ends are the request itself, no data decide a size.
        is_of_data = self.at_most is not self.results and bool(self.results.data_text())
        if self.torch is not None and is_of_data:
            names += ["training.cuda.reserved_bytes", "training.cuda.total_bytes"]
        return tuple(names)

    @cached_property
    def data_branches(self) -> "tuple[DataBranches, ...]":
        """Both branches of each If whose condition the data of a run decide."""
        if not any(node.subgraphs for node in self.graph.nodes):
            return ()
        from onnxmem.analysis.data_control_flow import data_branches

        return data_branches(self.results)

    @cached_property
    def data_loops(self) -> "tuple[DataLoop, ...]":
        """Each Loop whose number of iterations the data of a run decide."""
        if not any(node.subgraphs for node in self.graph.nodes):
            return ()
        from onnxmem.analysis.data_control_flow import data_loops

        seen = {} if self.observed is None else self.observed.iterations
        return data_loops(self.results, {name: spread.most for name, spread in seen.items()})

    @property
    def measurement(self) -> "Measurement | None":
        """The measurement; ``None``: not requested, or failed."""
        return None if isinstance(self.measured, Finding) else self.measured

    @property
    def num_parameters(self) -> int:
        """Elements of trainable parameters and of quantized weights."""
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
        # The optional parts are the expensive ones: FLOPs of every node, and walks of the model at
        # several batches for the polynomials.
        from onnxmem.analysis.compute import layers as layers_of

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
            "activations": json_rows.activations_row(self.activations) | polynomials,
            "total_bytes": self.total_bytes,
            "training": json_rows.training_row(
                self.training, (self.torch, self.tensorflow), self.training_range
            ),
            "training_law": json_rows.affine_row(self.training_law),
            "rules_of_thumb": json_rows.rules_row(self.rules_of_thumb),
            "runtime": next(map(json_rows.runtime_row, self.runtimes), None),
            "runtimes": [json_rows.runtime_row(runtime) for runtime in self.runtimes],
            "measured": json_rows.run_row(self.measurement, self.runtimes),
            "compute": json_rows.compute_row(self.compute),
            "elements": json_rows.elements_row(self.elements),
            "max_batch": json_rows.max_batch_row(self.max_batch),
            "coverage": json_rows.coverage_row(self.coverage),
            "layers": None if nodes is None else [json_rows.layer_row(node) for node in nodes],
            "findings": json_rows.findings_row(self.findings),
            "kv_cache": json_rows.kv_cache_row(self.kv_cache),
            "verdict": json_rows.verdict_row(self.fit, self.settings.budget_bytes, self.findings),
            "devices": None,
            **json_rows.replay_rows(self.replays),
            **json_rows.fetched_row(self.request.source.fetched),
            **json_rows.data_rows(self.results, self.without_upper_end),
            **json_rows.observed_rows(self.observed),
            **json_rows.control_flow_rows(self.data_branches, self.data_loops),
        }

    def status_dict(self) -> json_rows.JsonDict:
        """The part of the row that tells how the analysis went, without a figure of its own."""
        return {
            "path": printable(self.path),
            "status": self.status,
            "settings": {"guessed_dims": list(self.guessed_dims)},
            "file_bytes": self.file_bytes,
            "coverage": json_rows.coverage_row(self.coverage),
            "findings": json_rows.findings_row(self.findings),
            "verdict": json_rows.verdict_row(self.fit, self.settings.budget_bytes, self.findings),
            **json_rows.fetched_row(self.request.source.fetched),
        }

    def __repr__(self) -> str:
        """The main figures, one per line: the fields hold the whole graph."""
        step, batch = self.training, self.settings.batch
        figures = {
            "inference": self.total_bytes,
            "weights": self.weight_bytes,
            "peak activation memory": self.activations.in_place_peak_bytes,
            **({} if step is None else {"training step": step.peak_bytes}),
            **{f"{each.name} process": each.process_bytes for each in self.runtimes},
        }
        at = "" if batch is None else f" batch={batch}"
        lines = [f"<Analysis of {printable(self.path)!r}{at} status={self.status}"]
        lines += [f"  {label}: {format_bytes(size)}" for label, size in figures.items()]
        if self.fit is not None:
            lines.append(f"  budget {format_limit(self.settings.budget_bytes)}: {self.fit.verdict}")
        return "\n".join(lines) + ">"

    def _repr_html_(self) -> str | None:
        """Show the main figures and the timeline in a notebook."""
        return None if self.notebook_html is None else self.notebook_html()


def _recipe(
    recipe: TrainingConfig, optimizer: str | None, precision: str | None, loss: str | None
) -> TrainingConfig:
    """The training configuration, with the fields that have keywords of their own."""
    return replace(
        recipe,
        optimizer=optimizer or recipe.optimizer,
        precision=precision or recipe.precision,
        loss=loss or recipe.loss,
    )


def _runtimes(
    runtimes: "Sequence[str | Runtime]",
) -> "tuple[tuple[str, ...], dict[str, Runtime]]":
    """The names of built-in runtimes, and the objects by their names.

    :raises UsageError: not a list, a class in place of an object, or a name that is taken.
    """
    if isinstance(runtimes, str) or not isinstance(runtimes, Sequence):
        message = "runtimes: give a list, as runtimes=('ort-cpu', MyRuntime())"
        raise UsageError(message)
    own: dict[str, Runtime] = {}
    for each in runtimes:
        if isinstance(each, str):
            continue
        if isinstance(each, type):
            message = f"runtimes: {each.__name__} is a class; give an object, {each.__name__}()"
            raise UsageError(message)
        name = getattr(each, "name", None)
        if not isinstance(name, str) or not name.strip() or name in own or name in _TAKEN:
            message = f"runtimes: the name {name!r} is taken or empty; names must be unique"
            raise UsageError(message)
        own[name] = each
    return tuple(each for each in runtimes if isinstance(each, str)), own


def _graph_of(file: ModelFile, settings: Settings) -> tuple[ModelFile, tuple[Finding, ...]]:
    """The model that is analyzed: the file, or what a graph optimizer makes of it."""
    if settings.graph is None:
        return file, ()
    from onnxmem.runtimes.from_settings import optimized_file

    return optimized_file(file, settings)


def _at_context(request: AnalysisRequest, context: int | None) -> AnalysisRequest:
    """The request at a context; if the model has none, a warning, and the dims stay dynamic."""
    if context is None:
        return request
    from onnxmem.kv_cache.steps import NoContextError, Step

    try:
        return request.at_context(context, Step.DECODE)
    except NoContextError as fault:
        text = f"--context {context} has no effect: {fault}; see --dim"
        return replace(request, remarks=(*request.remarks, Finding("no_context", text)))


def observed_runs(
    observed: "Recorded | Sequence[Recorded] | None",
) -> "tuple[Observed, ...]":
    """The runs that are given, of any models.

    :raises ObservedFileError: a file cannot be read.
    """
    if observed is None or observed == ():
        return ()
    from onnxmem.model.observed import Observed, read_observed

    rows = (observed,) if isinstance(observed, str | os.PathLike | Observed) else observed
    return tuple(
        each if isinstance(each, Observed) else read_observed(os.fspath(each)) for each in rows
    )


def _observed(request: AnalysisRequest) -> "ObservedMemory | None":
    """The figures of observed runs."""
    if request.observed is None:
        return None
    from onnxmem.analysis.observed_memory import observed_memory

    return observed_memory(request)


def _measured(request: AnalysisRequest) -> "Measurement | Finding | None":
    """Measure the model if requested; a failure becomes a warning beside the other figures."""
    if request.settings.measure is None:
        return None
    from onnxmem.measuring.measuring import measure_as_set

    return measure_as_set(request.source, request.settings)


def _predicted(
    request: AnalysisRequest, measured: "Measurement | Finding | None"
) -> "tuple[RuntimeMemory | Finding, ...]":
    """The predictions for the named runtimes."""
    if not request.settings.runtimes:
        return ()
    # A measurement and a prediction must be of the same inputs.
    fed = {} if measured is None or isinstance(measured, Finding) else measured.fed
    from onnxmem.runtimes.from_settings import runtime_memories

    return runtime_memories(
        request.source, request.results.bound, request.settings, fed, request.optimized_model
    )


def _replayed(request: AnalysisRequest) -> "Iterator[RuntimeReplay | Finding]":
    """The replays of runtimes that were passed as objects; a failure becomes a warning."""
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
            yield from replayed.run.runtime_program.diagnostics


def _verdict(request: AnalysisRequest) -> "tuple[FitResult | None, tuple[Finding, ...]]":
    """The verdict on the budget, or a warning if its figure does not exist."""
    settings = request.settings
    if settings.budget_bytes is None:
        return None, ()
    runtime = request.runtime_name
    from onnxmem.analysis.fitting.assessing import FitRequest, fit
    from onnxmem.analysis.fitting.verdicts import basis_for

    setup = FitRequest(
        memory_bytes=settings.budget_bytes,
        basis=basis_for(None, train=settings.train, runtime=runtime, basis=settings.basis),
        accepted=frozenset(settings.accepted),
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
    """The warnings of runtimes and of the measurement."""
    refused = tuple(each for each in predicted if isinstance(each, Finding))
    if measured is None:
        return refused
    of_run = (measured,) if isinstance(measured, Finding) else measured.findings
    return (*refused, *of_run)

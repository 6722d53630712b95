"""A request for one model, and the results of the stages at one batch of it.

An ``AnalysisRequest`` is a model that was read and prepared once, with settings; ``at`` gives the
same at another batch or other dims. Its ``StageResults`` are computed when they are first read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from shlex import quote
from typing import TYPE_CHECKING, Final

from onnxmem.analysis.coverage import dequantized_findings, model_findings
from onnxmem.errors import Finding, OnnxmemError, ShapeError, UsageError, listed
from onnxmem.kv_cache.candidates import candidates
from onnxmem.model.binding import Request, bind, input_dims, names_in, required_inputs
from onnxmem.model.building import BoundModel, Prepared, build, prepare
from onnxmem.model.control_flow import (
    trip_count,
    with_least_branches,
    with_least_trips,
    without_idle_bodies,
)
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import DType, Graph, Node, Role, Tensor
from onnxmem.model.input_values import (
    input_arrays,
    refuse_unknown_names,
    unused_values,
    with_input_values,
)
from onnxmem.model.intervals.limits import (
    Limits,
    declared_names,
    limits_of,
    requested_names,
    unknown_limits,
)
from onnxmem.model.parameters import Parameters, parameters
from onnxmem.model.type_conflicts import conflict_findings, type_conflicts
from onnxmem.runtimes import assumed
from onnxmem.runtimes.assumed import Assumed
from onnxmem.runtimes.ideal.activation_memory import (
    ActivationMemory,
    activation_memory,
    in_place_peak_bytes,
    scope_of,
)
from onnxmem.runtimes.ideal.lifetimes import Scope
from onnxmem.units import format_bytes, sum_known

if TYPE_CHECKING:
    from onnxmem.analysis.limiting import UpperEnds
    from onnxmem.kv_cache.cache import KvCache
    from onnxmem.kv_cache.steps import Step
    from onnxmem.model.intervals.walk import UpperGraph
    from onnxmem.model.observed import GraphRun, Observed, Shapes
    from onnxmem.runtimes.base import Runtime, RuntimeRun
    from onnxmem.runtimes.ideal.schedules import Schedule
    from onnxmem.runtimes.onnxruntime.session import SessionRuntime
    from onnxmem.runtimes.onnxruntime.session_graph.loaded import OptimizedModel
    from onnxmem.runtimes.onnxruntime.session_graph.optimization import ModelAt, SessionConfig
    from onnxmem.runtimes.torch.cuda import TorchMemory, TorchRuntime
    from onnxmem.runtimes.torch.memory import PeakRange, TrainingMemory
    from onnxmem.settings import Settings, TrainingConfig, Values


_UNOBSERVED: Final = Finding(
    "unobserved", "the data of a run decide dims, and none of the observed runs is of this model"
)
_EXAMPLE: Final = 100
"""Example of an upper end in hints: the boxes that a detector returns."""
_MOST_FLAGS: Final = 3


@dataclass(frozen=True)
class GraphMemory:
    """What the activations of a graph take; an If counts its larger branch."""

    graph: Graph
    pack: str

    @cached_property
    def buffers(self) -> Scope:
        """The buffers that tensors share."""
        return scope_of(self.graph)

    @cached_property
    def activations(self) -> ActivationMemory:
        """The figures."""
        return activation_memory(self.graph, self.pack, self.buffers)


@dataclass(frozen=True, kw_only=True)
class StageResults:
    """The figures of the stages; bytes, ``None`` is unknown."""

    prepared: Prepared = field(repr=False)
    bound: BoundModel = field(repr=False)
    weight_bytes: int | None
    inputs_bytes: int | None
    recipe: "TrainingConfig | None" = None
    """How the training step runs; ``None``: no training is requested."""
    order: str = "file"
    """The order of execution."""
    pack: str = "quick"
    """How far a smaller packed block is searched for."""
    limits: Limits = field(default_factory=dict, repr=False)
    """What the user knows of the dims that data decide."""
    values: "Mapping[str, Values]" = field(default_factory=dict, repr=False)
    """Known elements of inputs."""
    has_smaller_branches: bool = False
    """Whether an If counts its smaller branch."""
    of_graph: "GraphMemory | None" = field(default=None, repr=False, compare=False)
    """The memory of the graph where other results have computed it; ``None``: they have not."""
    is_run: bool = False
    """Whether the graph is that of one run, in which nothing is left to the data."""
    is_upper: bool = False
    """Whether every dim that data decide is at its upper end."""

    @cached_property
    def upper(self) -> "UpperGraph | None":
        """The graph with the upper ends of the dims that data decide; ``None``: all are known."""
        if not any(tensor.is_open for tensor in self.graph.tensors.values()):
            return None
        from onnxmem.model.intervals.walk import with_upper_dims

        return with_upper_dims(self.graph, self.prepared.proto, self.limits, self.values)

    @property
    def limited_graph(self) -> Graph:
        """The graph of the upper ends, in which the dims that data decide have names."""
        return self.graph if self.upper is None else self.upper.graph

    def limit_faults(self, names: Iterable[str]) -> Iterator[str]:
        """What is wrong with limits of a user: they are of no dim that data decide, or below the
        least of it.
        """
        upper = self.upper
        applied = frozenset[str]() if upper is None else upper.applied
        names = tuple(names)
        requested = requested_names(self.prepared.proto, names)
        others = [name for name in names if name not in applied]
        yield from unknown_limits(self.limited_graph, self.prepared.proto, others)
        for name, fewest in ({} if upper is None else upper.beyond).items():
            number = f"{fewest:,} elements" if name in self.graph.tensors else f"{fewest:,}"
            flag = f"--max {requested.get(name, name)}"
            yield f"{flag}: it is at least {number} in every run; raise it, or omit --max"

    # Neither of the next two is cached where it is ``self``: each analysis would be a cycle, which
    # many models in one process leave to the garbage collector.

    @property
    def at_most(self) -> "StageResults | None":
        """The same figures at the upper end of every dim; ``None``: a size has none.

        More bytes of one tensor never lower a peak: each replay has the same allocations and
        releases, so each live set has the same tensors.
        """
        # What a caller feeds without a size (strings, a sequence) is bounded by no rule of the
        # graph.
        if any(each.size_bytes is None for each in self.graph.fed_tensors):
            return None
        if self.upper is None:
            return None if self._unknown_tensors else self
        return self._at_upper_ends

    @cached_property
    def _at_upper_ends(self) -> "StageResults | None":
        if self.upper is None or self.upper.unbounded:
            return None
        found = replace(self.with_graph(self.upper.graph), is_upper=True)
        # Strings have no size even at their largest dims.
        return None if found.activations.unknown_tensors else found

    @property
    def at_least(self) -> "StageResults":
        """The same figures at the lower end of what the data of a run decide.

        Tensors of unknown size have no bytes, an If counts its smaller branch, and a body that
        need not run does not.
        """
        return self if self._at_lower_ends is None else self._at_lower_ends

    @cached_property
    def _at_lower_ends(self) -> "StageResults | None":
        # Without such a node both ends are the same. Returning ``self`` from here would put it in
        # its own cache, the cycle that is described above.
        if self.is_run or next(_undecided(self.graph), None) is None:
            return None
        found = self.with_graph(with_least_trips(self.graph))
        # Not these results themselves, which would be a cycle.
        of_graph = self._of_graph if found.graph is self.graph else None
        return replace(found, has_smaller_branches=True, of_graph=of_graph)

    @cached_property
    def data_nodes(self) -> tuple[str, ...]:
        """Ifs and Loops of which the data of a run decide the branch or the iterations."""
        if self.is_run or not any(node.subgraphs for node in self.graph.nodes):
            return ()
        return tuple(_undecided(self.graph))

    def with_graph(self, graph: Graph) -> "StageResults":
        """The results of another graph of the same model, in the order of the file."""
        return replace(self, bound=replace(self.bound, graph=graph), order="file")

    def data_text(self) -> str:
        """Which dims the data of a run decide, and those without an upper end, else which nodes;
        empty: neither.
        """
        if self.upper is None or not self.upper.data_dims:
            if self.is_whole:
                nodes = self._nodes_text()
                return f"the data of a run decide {nodes}" if nodes else ""
            return "" if self.upper is None else self._bounded_text()
        if self.upper.unbounded:
            names = listed(self.shown(self.upper.unbounded))
            return f"the data of a run decide dims without a bound: {names}"
        nodes, dims, left = self._nodes_text(), self.shown(self._own_dims), self.without_size
        parts = [*([listed(dims)] if dims else []), *([nodes] if nodes else [])]
        parts += [self.size_text(left)] if left else []
        return f"the data of a run decide {', and '.join(parts)}"

    def shown(self, dims: Iterable[str]) -> tuple[str, ...]:
        """The dims that data decide by the names that the file declares for them, if any."""
        return tuple(self._declared_names.get(name, name) for name in dims)

    @cached_property
    def _declared_names(self) -> Mapping[str, str]:
        return declared_names(self.limited_graph, self.prepared.proto)

    @property
    def _own_dims(self) -> tuple[str, ...]:
        """The dims that data decide, without those of the outputs of Ifs and Loops that they decide
        too.
        """
        if self.upper is None:
            return ()
        nodes = set(self.data_nodes)
        written = {
            name for node in self.graph.all_nodes() if node.name in nodes for name in node.writes
        }
        # A dim that data decide is named by its tensor and axis, ``boxes:0``.
        return tuple(
            name for name in self.upper.data_dims if name.rpartition(":")[0] not in written
        )

    def size_text(self, names: Sequence[str]) -> str:
        """Of which tensors the size is unknown: of strings, whatever the dims are."""
        strings = [name for name in names if self.graph.tensors[name].dtype is DType.STRING]
        others = [name for name in names if name not in strings]
        parts = [f"the size of {listed(others)}"] if others else []
        parts += [f"the bytes of the strings of {listed(strings)}"] if strings else []
        return " and ".join(parts)

    def _bounded_text(self) -> str:
        """Which tensors rules or limits settle although no shape is known; empty: not all."""
        names = self.activations.unknown_tensors
        return "" if self.at_most is None or not names else f"rules alone bound {listed(names)}"

    def _nodes_text(self) -> str:
        """Which branches and iterations the data of a run decide; empty: none."""
        names = set(self.data_nodes)
        undecided = [node for node in self.graph.all_nodes() if node.name in names]
        ifs = [node.name for node in undecided if node.onnx_op == "If"]
        loops = [node.name for node in undecided if node.onnx_op != "If"]
        parts = [f"which branch of {listed(ifs)} runs"] if ifs else []
        parts += [f"how many iterations {listed(loops)} runs"] if loops else []
        return " and ".join(parts)

    @property
    def without_size(self) -> tuple[str, ...]:
        """Tensors that have no size at the upper end of every dim, such as strings, or sequences
        that a caller passes.
        """
        if self.upper is None or self.at_most is not None:
            return ()
        tensors = self.upper.graph.tensors.values()
        written = (each for each in tensors if each.role is Role.ACTIVATION)
        of_run = (*self.graph.fed_tensors, *written)
        return tuple(each.name for each in of_run if each.size_bytes is None)

    @cached_property
    def deciding_limits(self) -> tuple[str, ...]:
        """The names for ``--max`` that lower what a run takes at most, the most bytes first."""
        # Where a tensor has no size whatever its dims are, no limit gives the sum an upper end.
        if self.upper is None or (self.without_size and not self.upper.unbounded):
            return ()
        from onnxmem.analysis.limiting import deciding_limits

        return deciding_limits(self.upper, lambda most: self.within(most).upper_ends())

    def within(self, most: Mapping[str, int]) -> "StageResults":
        """The results within more limits."""
        limits = {name: (0, number) for name, number in most.items()}
        return replace(self, limits={**self.limits, **limits}) if most else self

    def settling_limits(
        self, most_of: "Callable[[StageResults], int | None]", limit_bytes: int
    ) -> tuple[str, ...]:
        """The names for ``--max`` with which what a run takes may be within a limit; empty: none.

        ``most_of`` reads the figure that is compared, at most.
        """
        from onnxmem.analysis.limiting import lowest_limits

        # Lowering one dim may uncover the next that decides the peak, so names are added round by
        # round, each at the lowest that it may be. Each round adds one, so it ends; if even these
        # are too much, no limit settles it.
        names: tuple[str, ...] = ()
        found = self
        while more := [name for name in found.deciding_limits if name not in names]:
            names = (*names, *more)
            found = self.within(lowest_limits(names, self.upper))
            most_bytes = most_of(found)
            if most_bytes is not None and most_bytes <= limit_bytes:
                return names
        return ()

    @property
    def deciding_inputs(self) -> tuple[str, ...]:
        """The inputs whose value is the condition of an If or the iterations of a Loop that the
        data of a run decide.
        """
        names, fed = set(self.data_nodes), set(self.graph.inputs)
        read = (node.reads[0] for node in self.graph.nodes if node.name in names and node.reads)
        return tuple(dict.fromkeys(name for name in read if name in fed))

    def upper_ends(self) -> "UpperEnds":
        """What a run takes at most, and what decides it."""
        from onnxmem.analysis.limiting import UpperEnds

        at_most = self.at_most
        if at_most is None or at_most.total_bytes is None:
            return UpperEnds(self.upper, None)
        # One number to order limits by: what lowers either peak lowers their sum.
        size_bytes = at_most.total_bytes + (at_most.training_peak_bytes or 0)
        return UpperEnds(self.upper, size_bytes, at_most.activations.live_at_peak)

    def data_flags(self, names: Sequence[str] | None = None) -> str:
        """The flags that bound the dims that the data decide: ``--max boxes:0=100``."""
        names = self.shown(self.deciding_limits if names is None else names)
        is_unbounded = self.upper is not None and self.upper.unbounded
        number = _EXAMPLE if is_unbounded else "N"
        flags = [f"--max {quote(f'{name}={number}')}" for name in names[:_MOST_FLAGS]]
        return " ".join((*flags, *(("...",) if len(names) > _MOST_FLAGS else ())))

    @cached_property
    def training(self) -> "TrainingMemory | None":
        """The training step; ``None``: not requested.

        :raises UsageError: the training configuration names an output that the model doesn't have.
        """
        if self.recipe is None:
            return None
        from onnxmem.runtimes.torch.step import training_memory

        graph = self.bound.graph
        if self.has_smaller_branches:
            graph = with_least_branches(graph)
        return training_memory(graph, self.recipe)

    @cached_property
    def training_range(self) -> "PeakRange | None":
        """The training peak without and with the BatchNormalizations that the step leaves out.

        ``None``: the step leaves none out.
        """
        if self.training is None:
            return None
        from onnxmem.runtimes.torch.step import batchnorm_range

        return batchnorm_range(self.bound.graph, self.training)

    @cached_property
    def schedule(self) -> "Schedule | None":
        """The requested order of execution; ``None``: that of the file."""
        if self.order == "file":
            return None
        from onnxmem.runtimes.ideal.schedule_search import schedule_of

        return schedule_of(self.bound.graph, self.order)

    @cached_property
    def graph(self) -> Graph:
        """The graph in the requested order; a runtime has an order of its own."""
        if self.schedule is None:
            return self.bound.graph
        from onnxmem.runtimes.ideal.schedule_search import in_order

        return in_order(self.bound.graph, self.schedule)

    @cached_property
    def parameters(self) -> Parameters:
        """The weights by their role in training."""
        return parameters(self.bound.graph)

    @cached_property
    def activations(self) -> ActivationMemory:
        """The memory of activations."""
        memory = self._of_graph.activations
        if self.has_smaller_branches:
            memory = memory.of_smaller_branches()
        return memory if self.schedule is None else replace(memory, order=self.schedule)

    @cached_property
    def _buffers(self) -> Scope:
        """Those of the graph, of which the smaller branch of an If counts where it must."""
        buffers = self._of_graph.buffers
        return buffers.of_smaller_branches() if self.has_smaller_branches else buffers

    @cached_property
    def _of_graph(self) -> "GraphMemory":
        return self.of_graph or GraphMemory(self.graph, self.pack)

    @cached_property
    def type_conflicts(self) -> tuple[tuple[Node, str], ...]:
        """Nodes with conflicting types, which no runtime accepts, and why."""
        return tuple(type_conflicts(self.prepared.proto, self.bound.graph))

    @property
    def total_bytes(self) -> int | None:
        """Weights, inputs and in-place peak."""
        return sum_known((self.weight_bytes, self.inputs_bytes, self._in_place_peak_bytes))

    @cached_property
    def _in_place_peak_bytes(self) -> int | None:
        """The peak without the rest of ``activations``, which most batches don't need."""
        # A cached property keeps its value in the dict of the object: there it costs nothing.
        if "activations" in vars(self):
            return self.activations.in_place_peak_bytes
        return in_place_peak_bytes(self._buffers)

    @property
    def is_whole(self) -> bool:
        """Whether the figures are of the requested batch and include every tensor."""
        left_out = self.training.unknown if self.training else ()
        return self.bound.follows_batch and not (left_out or self._unknown_tensors)

    @cached_property
    def _unknown_tensors(self) -> tuple[str, ...]:
        """``activations.unknown_tensors``, which most batches need not compute to have none."""
        written = [each for each in self.graph.tensors.values() if each.role is Role.ACTIVATION]
        is_known = all(tensor.size_bytes is not None for tensor in written)
        return () if is_known else self.activations.unknown_tensors

    @property
    def training_peak_bytes(self) -> int | None:
        """The peak of the training step; ``None``: unknown, or no training is requested."""
        if self.training is None or (self.is_upper and self._has_open_widths):
            return None
        return self.training.peak_bytes

    @property
    def _has_open_widths(self) -> bool:
        """Whether autocast decides of how many bits the elements of sequences are, which no file
        says: a step of fewer bits may take less at more elements.
        """
        is_autocast = self.recipe is not None and self.recipe.precision.startswith("mixed")
        return is_autocast and any(
            node.onnx_op.startswith(("Sequence", "ConcatFromSequence", "SplitToSequence"))
            for node in self.graph.all_nodes()
        )


@dataclass(frozen=True, kw_only=True)
class ObservedRun:
    """The results of one observed run."""

    run: "GraphRun"
    shapes: "Shapes"
    results: StageResults
    """Tensors whose size the run does not show have their upper ends."""
    at_least: StageResults
    """They are unknown here: the figures are lower bounds."""


@dataclass(frozen=True)
class AnalysisRequest:
    """A model that was read, and the settings of its analysis."""

    model: ModelFile
    prepared: Prepared
    settings: "Settings"
    source: ModelFile
    """The file that was read; ``model`` is the same unless a graph optimizer changed it."""
    remarks: tuple[Finding, ...] = ()
    cache: "KvCache | None" = None
    context: int | None = None
    """Tokens in the cache after a step, if requested."""
    is_emptied: bool = False
    """Whether ``source`` has 0 in place of the past dims, as in a prefill."""
    own_runtimes: "Mapping[str, Runtime]" = field(default_factory=dict)
    """Runtimes that were passed as objects, by name."""
    observed: "Observed | None" = None
    """Runs of which figures are requested."""
    is_unobserved: bool = False
    """Whether none of the given runs is of this model."""
    is_moved: bool = False
    """Whether it is at another batch or other dims than the user requested."""
    _optimized: "dict[tuple[int, SessionConfig], tuple[ModelFile, OptimizedModel]]" = field(
        default_factory=dict, compare=False, repr=False
    )
    """Optimized graphs by file and session settings, shared by all requests made from this one."""

    def at_context(self, context: int, step: "Step") -> "AnalysisRequest":
        """The request for a step after which the cache has ``context`` tokens.

        ``self`` must not be at a context yet.

        :raises NoContextError: the model has no such step, or no cache.
        :raises UsageError: training, or a value for a dim that follows from the context.
        """
        if self.settings.train:
            message = "--context: a training step has no cache; omit --train or --context"
            raise UsageError(message)
        from onnxmem.kv_cache.steps import NoContextError, bind_context, numbers_at, refuse_bound

        if self.cache is None:
            message = "no key-value cache is recognized among the inputs"
            raise NoContextError(message)
        at = numbers_at(self.cache, step, context)
        refuse_bound(self.settings.dims, at[1])
        request = self.without(at[1])
        prepared, settings = bind_context(self.cache, request.prepared, request.settings, at)
        return replace(request, prepared=prepared, settings=settings, context=context)

    def without(self, numbers: Mapping[str, int]) -> "AnalysisRequest":
        """The request with 0 written into the file for symbols that are 0; ``self`` if none is."""
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
        """The request at another batch and other dims; dims that are not named keep their values.

        The batch wins over a dim of the same symbol. Observed runs are of their own dims alone.
        """
        settings, asked = self.settings, self._bound_to(self.settings, batch, dims)
        # The same settings must give the same object, because its results are cached in it; only
        # then are the shapes of observed runs, which would contradict any other batch, replaced by
        # dims.
        if (asked.batch, asked.dims) == (settings.batch, settings.dims):
            return self
        settings = self._bound_to(self._free_settings, batch, dims)
        moved = replace(self, settings=settings, observed=None, is_moved=True)
        # The observed runs stay if the inputs at the new dims are still those of the runs.
        seen = self.observed
        if seen is None or seen.other_input(moved.results.bound.graph) is not None:
            return moved
        return replace(moved, observed=seen)

    def _bound_to(
        self, settings: "Settings", batch: int | None, dims: Mapping[str, int] | None
    ) -> "Settings":
        named = {**settings.dims, **(dims or {})}
        if batch is None:
            return replace(settings, dims=named)
        symbols = self.prepared.batch_symbols
        named = {name: n for name, n in named.items() if name not in symbols}
        return replace(settings, batch=batch, dims=named)

    @property
    def _free_settings(self) -> "Settings":
        """The settings with dims by name in place of the shapes of observed runs, which fix all."""
        settings, seen = self.settings, self.observed
        if seen is None or not settings.shapes or settings.shapes != _shapes_of(seen):
            return settings
        dims = self.results.bound.binding.dims
        return replace(
            settings,
            # An expression of other dims (``batch * 4``) follows from them; bound to its old number
            # it would contradict a new batch.
            dims={
                name: number
                for name, number in dims.items()
                if not names_in(name) or not names_in(name) <= dims.keys()
            },
            # An input without dims in the file has no names to bind, so its shape stays.
            shapes={
                value.name: settings.shapes[value.name]
                for value in self.prepared.inputs
                if value.name in settings.shapes and input_dims(value) is None
            },
        )

    def without_observed(self) -> "AnalysisRequest":
        """The request without observed runs, at dims that their shapes do not fix."""
        if self.observed is None:
            return self
        return replace(self, settings=self._free_settings, observed=None)

    def is_fixed(self, dim: str | None = None) -> bool:
        """Whether the requested shape of an input fixes a dim; ``None``: the batch."""
        shapes = self._free_settings.shapes
        # A dim of the shape with its name in the file stays free.
        fixed = [
            tuple(
                dim
                for dim, number in zip(input_dims(each) or (), shapes[each.name], strict=False)
                if not isinstance(number, str)
            )
            for each in self.prepared.inputs
            if each.name in shapes
        ]
        sought = self.prepared.batch_symbols if dim is None else {dim}
        if not sought:
            return any(fixed)
        # A fixed dim may be an expression of the one that is sought: ``batch * 4``.
        named = {each for dims in fixed for each in dims if isinstance(each, str)}
        return any(each in sought or names_in(each) & sought for each in named)

    def freeing_shapes(self) -> "dict[str, tuple[int | str, ...]]":
        """The requested shapes that fix the batch, with its name in the file where they do."""
        shapes, sought = self._free_settings.shapes, self.prepared.batch_symbols
        found = {}
        for each in self.prepared.inputs:
            named = input_dims(each) or ()
            freed = tuple(
                name if isinstance(name, str) and (name in sought or names_in(name) & sought) else n
                for name, n in zip(named, shapes.get(each.name, ()), strict=False)
            )
            if freed and freed != tuple(shapes[each.name]):
                found[each.name] = freed
        return found

    def walk(self, batch: int | None, dims: Mapping[str, int]) -> StageResults:
        """The results for inference at a batch and at dims."""
        return stage_results(self.prepared, replace(self.at(batch, dims).settings, train=False))

    @cached_property
    def results(self) -> StageResults:
        """The results at the requested batch and dims.

        :raises ShapeError: a limit of ``--max`` is of no dim that data decide.
        """
        settings, found = self.settings, stage_results(self.prepared, self.settings)
        # At another batch the least of a dim may be beyond a limit, which then says nothing of it.
        if not (settings.one_of_several or self.is_moved):
            for message in found.limit_faults(settings.most):
                raise ShapeError(message)
        return found

    @cached_property
    def observed_runs(self) -> "tuple[ObservedRun, ...]":
        """The results of observed runs; empty: none are given, or the data decide nothing.

        Runs with the same shapes share their results.

        :raises ObservedFileError: the runs are of another model, or of other dims.
        """
        if self.observed is None:
            return ()
        self.observed.refuse_other(self.source)
        self.observed.refuse_other_inputs(self.results.bound.graph)
        if self.results.upper is None and not self.results.data_nodes:
            return ()
        made: dict[str, ObservedRun] = {}
        requested = requested_names(self.prepared.proto, self.settings.most)
        for run in self.observed.runs:
            key = repr(run)
            if key not in made:
                made[key] = _observed_run(self.results, run)
                made[key].shapes.refuse_more(self.results.limits, requested)
        return tuple(made[repr(run)] for run in self.observed.runs)

    def torch_runtime(self, results: StageResults) -> "TorchRuntime":
        """The process of PyTorch as requested, with its assumed context and workspaces."""
        from onnxmem.allocators.caching import CachingConfig
        from onnxmem.runtimes.torch.cuda import TorchRuntime

        requested, recipe = self.settings, self.settings.recipe
        # cuBLAS allocates its workspace with the first matrix product.
        if results.training is None or not results.training.multiplies_matrices:
            recipe = replace(recipe, cublas_workspace_bytes=0)
        return TorchRuntime(
            recipe=recipe,
            config=CachingConfig(expandable_segments=requested.expandable_segments),
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
        """The workspace of cuDNN for the model's convolutions."""
        return assumed.workspace(results.graph, self.settings.cuda_workspace_bytes)

    def torch_memory(
        self, results: StageResults, capacity_bytes: int | None = None
    ) -> "TorchMemory | None":
        """Replay the allocations of the step; ``None`` if no training is requested.

        ``capacity_bytes`` is what the device has for the allocator, without the context.
        """
        training = results.training
        if training is None:
            return None
        runtime = self.torch_runtime(results)
        return runtime.memory(runtime.program_of(training), capacity_bytes)

    @property
    def runtime_name(self) -> str | None:
        """The runtime whose process is compared with a limit; ``None``: no runtime is requested."""
        return next(iter((*self.settings.runtimes, *self.own_runtimes)), None)

    def torch_run(self) -> "RuntimeRun | None":
        """The training step as PyTorch runs it; ``None``: its figures would leave something out."""
        results = self.results
        step = results.training
        if step is None or not results.is_whole or step.checkpoints or step.batchnorms.unknown:
            return None
        from onnxmem.runtimes.base import RuntimeRun

        runtime = self.torch_runtime(results)
        return RuntimeRun(runtime, runtime.program_of(step), runtime.overheads(results.graph))

    def session(
        self, name: str, observed: "GraphRun | None" = None
    ) -> "tuple[SessionRuntime, Graph]":
        """The session of onnxruntime on the model, and the graph that it loads.

        ``observed`` is what was seen of the run.

        :raises OnnxmemError: the optimized graph cannot be read, or a value does not fit its input.
        """
        from onnxmem.model.observed import NO_RUN
        from onnxmem.runtimes.onnxruntime.memory import SessionRequest
        from onnxmem.runtimes.onnxruntime.session import SessionRuntime
        from onnxmem.runtimes.onnxruntime.session_graph.optimization import ModelAt
        from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

        settings, results = self.settings, self.results
        # Called for its error alone: a value that does not fit its input must fail here, not in a
        # process of onnxruntime.
        input_arrays(results.bound.graph, settings.values)
        opened = SessionRequest(
            name=name,
            graph=settings.graph or "ort-all",
            options=SessionOptions(fixed_dims=settings.fixed_dims),
            asks_onnxruntime=settings.asks_onnxruntime,
            cpu=settings.cpu,
        )
        prepared, bound = self.prepared, results.bound
        if settings.graph not in {None, "raw"}:
            # The optimized graph may have numbers in place of symbols: dims are bound in the file.
            prepared = prepare(self.source)
            bound = build(prepared, Request(settings.batch, settings.dims, settings.shapes))
        runtime = SessionRuntime(
            name=name,
            optimized=self.optimized_model(ModelAt(self.source, prepared, bound), opened.config()),
            options=opened.session_options(),
            values=settings.values,
            observed=NO_RUN if observed is None else observed,
            file_bytes=self.source.file_bytes,
            context=self.runtime_context,
            workspace=self.workspace(results),
        )
        return runtime, bound.graph

    def session_run(self, name: str) -> "RuntimeRun | None":
        """The session, ready to be replayed; ``None``: its figures would leave something out.

        :raises OnnxmemError: as ``session``.
        """
        from onnxmem.runtimes.base import RuntimeRun

        # Where data decide a branch, one run is not every run: the figure has two ends.
        names, graph = self.results.data_nodes, self.results.graph
        is_one = self.results.is_whole and not any(
            node.onnx_op == "If" and node.name in names for node in graph.all_nodes()
        )
        run = RuntimeRun.of(*self.session(name)) if is_one else None
        return run if run is not None and run.runtime_program.is_complete else None

    def optimized_model(self, model: "ModelAt", config: "SessionConfig") -> "OptimizedModel":
        """What the graph optimizer makes of the file, cached unless it depends on the dims.

        :raises OnnxmemError: what ``optimization.optimized_model`` raises.
        """
        from onnxmem.runtimes.onnxruntime.session_graph.optimization import optimized_model

        # With numbers in place of its dims, or of a batch that the file fixes, the graph serves
        # this batch alone.
        if config.fixed_dims or model.bound.binding.old_batch is not None:
            return optimized_model(model, config)
        # The entry refers to the file, so its id is not reused while the entry exists.
        key = id(model.file), config
        if key not in self._optimized:
            self._optimized[key] = model.file, optimized_model(model, config)
        return self._optimized[key][1]

    def own_run(self, name: str) -> "RuntimeRun":
        """The run of a runtime that was passed as an object.

        :raises RuntimeFailedError: it raises an exception of any kind.
        """
        from onnxmem.runtimes.base import RuntimeFailedError, RuntimeRun

        if name not in self._own_runs:
            try:
                self._own_runs[name] = RuntimeRun.of(self.own_runtimes[name], self.results.graph)
            except Exception as fault:  # the code is the caller's: it may raise anything
                reason = str(fault) if isinstance(fault, OnnxmemError) else repr(fault)
                message = f"{name} does not run the model: {reason}"
                raise RuntimeFailedError(message) from fault
        return self._own_runs[name]

    @cached_property
    def _own_runs(self) -> "dict[str, RuntimeRun]":
        """The runs of ``own_run`` by the name of their runtime."""
        return {}

    def guessed_dims(self) -> tuple[str, ...]:
        """Dynamic dims of the file without a value; an optimized graph may have numbers instead."""
        settings = self.settings
        request = Request(settings.batch, settings.dims, settings.shapes)
        return bind(required_inputs(self.source.proto.graph), request).unbound

    def findings(
        self, results: StageResults, of_runs: Iterable[Finding] = ()
    ) -> tuple[Finding, ...]:
        """Warnings and notes on the file, the request and runs, each once."""
        found = (
            *(*results.bound.findings, *self.remarks),
            *unused_values(results.graph, self.settings.values),
            *(
                Finding("unused_limit", message)
                for message in results.limit_faults(self.settings.most)
            ),
            *self._idle_limits(results),
            *((_UNOBSERVED,) if self.is_unobserved and results.upper is not None else ()),
            *conflict_findings(results.type_conflicts),
            *(results.training.findings if results.training else ()),
            *_range_findings(results),
            *model_findings(
                results.graph,
                results.parameters,
                {} if results.upper is None else results.upper.iterations,
                train=self.settings.train,
            ),
            *(() if self.settings.runtimes else dequantized_findings(results.graph)),
            *of_runs,
        )
        return tuple(dict.fromkeys(found))

    def _idle_limits(self, results: StageResults) -> Iterator[Finding]:
        """Limits of ``--max`` that change no upper end."""
        most, proto = self.settings.most, self.prepared.proto
        known = {
            name: number
            for name, number in most.items()
            if not any(unknown_limits(results.limited_graph, proto, (name,)))
        }
        if not known or results.upper is None:
            return
        ends, at_most = results.upper_ends(), results.at_most
        size_bytes = None if at_most is None else at_most.total_bytes
        stays = "without a bound" if size_bytes is None else f"at most {format_bytes(size_bytes)}"
        left = results.without_size
        why = f", for no limit bounds {results.size_text(left)}" if left else ""
        # Each limit is taken away alone, at the cost of one walk of the intervals: it is idle if
        # the ends stay as they are.
        for name in known:
            others = {other: number for other, number in known.items() if other != name}
            without = replace(results, limits=limits_of(results.graph, proto, others))
            if without.upper_ends().is_like(ends):
                both = f"{stays} with and without it{why}"
                text = f"--max {name}={most[name]}: what a run takes is {both}"
                yield Finding("idle_limit", text)


def request_for(
    model: ModelFile, settings: "Settings", source: ModelFile, remarks: tuple[Finding, ...] = ()
) -> AnalysisRequest:
    """Prepare a model for a request; no stage runs yet.

    :raises OnnxmemError: the model cannot be read, or lacks a name in the settings.
    """
    if (settings.dims or settings.values) and not settings.one_of_several:
        refuse_unknown_names(source.proto, settings.dims, settings.values)
    prepared = prepare(model)
    cache, no_caches = _cache_of(prepared)
    return AnalysisRequest(model, prepared, settings, source, (*remarks, *no_caches), cache)


def at_observed(
    settings: "Settings", file: ModelFile, given: "Sequence[Observed]"
) -> "tuple[Settings, Observed | None]":
    """The observed runs of a model, and the settings at their dims unless they name others.

    :raises ObservedFileError: all runs are of other models, and this is the only one.
    """
    if not given:
        return settings, None
    from onnxmem.model.observed import runs_of

    seen = runs_of(given, file, one_of_several=settings.one_of_several)
    if seen is not None and settings.batch is None and not (settings.dims or settings.shapes):
        settings = replace(settings, shapes=_shapes_of(seen))
    return settings, seen


def _shapes_of(seen: "Observed") -> "dict[str, tuple[int, ...]]":
    """The shapes of the observed inputs that may be requested."""
    return {name: shape for name, shape in seen.inputs.items() if 0 not in shape}


def stage_results(prepared: Prepared, settings: "Settings") -> StageResults:
    """Run the stages at the batch and dims of the settings."""
    bound = build(prepared, Request(settings.batch, settings.dims, settings.shapes))
    bound = with_input_values(prepared, bound, settings.values)
    graph = bound.graph
    if [node for node in graph.nodes if node.subgraphs]:
        graph = _with_known_loops(without_idle_bodies(graph), prepared, settings)
        bound = replace(bound, graph=graph)
    return StageResults(
        prepared=prepared,
        bound=bound,
        weight_bytes=sum_bytes(graph.weights),
        inputs_bytes=sum_bytes(graph.tensors[name] for name in graph.inputs),
        recipe=settings.recipe if settings.train else None,
        order=settings.order,
        pack=settings.pack,
        limits=limits_of(graph, prepared.proto, settings.most),
        values=settings.values,
    )


def _with_known_loops(graph: Graph, prepared: Prepared, settings: "Settings") -> Graph:
    """The graph with the dims of what Loops carry, where the number of iterations is known."""
    if not any(tensor.is_open for tensor in graph.tensors.values()):
        return graph
    from onnxmem.model.intervals.walk import with_loop_dims

    return with_loop_dims(graph, prepared.proto, settings.values)


def _observed_run(results: StageResults, run: "GraphRun") -> ObservedRun:
    from onnxmem.model.intervals.walk import with_upper_dims
    from onnxmem.model.observed import graph_of, shapes_of
    from onnxmem.model.observed_sequences import sequence_elements

    graph, upper = results.graph, results.upper
    seen = shapes_of(run, graph)
    seen.sequences = sequence_elements(run, graph)
    # Tensors that the run does not show have two ends: the largest that the run's other dims and
    # the user's limits allow (`found`), and unknown (`at_least`).
    hidden = [
        name for name, tensor in graph.tensors.items() if tensor.is_open and not seen.shows(name)
    ]
    if hidden:
        limits = {**results.limits, **seen.limits()}
        upper = with_upper_dims(graph, results.prepared.proto, limits, results.values)
    of_run = graph_of(graph, graph if upper is None else upper.graph, seen)
    found = at_least = replace(results.with_graph(of_run), is_run=True)
    if hidden:
        unknown = {name: graph.tensors[name] for name in hidden}
        of_run = of_run.with_tensors({**of_run.tensors, **unknown})
        at_least = replace(results.with_graph(of_run), is_run=True)
    return ObservedRun(run=run, shapes=seen, results=found, at_least=at_least)


def _undecided(graph: Graph) -> Iterator[str]:
    """Nodes with subgraphs of which a run decides the branch or the number of iterations."""
    for node in graph.all_nodes():
        is_if = node.onnx_op == "If"
        if len(node.subgraphs) > 1 if is_if else node.subgraphs and trip_count(graph, node) is None:
            yield node.name


def sum_bytes(tensors: Iterable[Tensor]) -> int | None:
    """Bytes of tensors: a lower bound where one is unknown, ``None`` where all are."""
    return sum_known(tensor.size_bytes for tensor in tensors)


def _cache_of(prepared: Prepared) -> "tuple[KvCache | None, tuple[Finding, ...]]":
    """The key-value cache, and a warning on inputs that only have names like one."""
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

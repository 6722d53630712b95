"""One training step (definition 7): forward, loss, backward, optimizer, as PyTorch runs it.

The step is in the steady state, unless the first step is requested: the optimizer has its state,
and the gradients of the previous step are freed at its start. The training loop keeps the network's
outputs and the loss alive to the end of the step.

A rank may have a shard of each tensor. With the ZeRO stages (Rajbhandari et al. 2020, arXiv
1910.02054) over N ranks, a shard is an Nth of the tensor, rounded up: of the optimizer's state (1),
of the gradients too (2), of the weights too (3). The third is PyTorch's ``fully_shard``.
DistributedDataParallel has all of it and a copy of the gradients in its buckets
(torch/nn/parallel/distributed.py, gradient_as_bucket_view off).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from glob import escape
from math import prod
from typing import Self

from onnxmem.errors import Finding, listed
from onnxmem.model.graph import Graph
from onnxmem.model.parameters import Parameters
from onnxmem.ops.spec import known_dims
from onnxmem.program.program import Allocation, Category
from onnxmem.runtimes.torch.backward import Backward
from onnxmem.runtimes.torch.checkpointing import Passes, Schedule, schedules
from onnxmem.runtimes.torch.doubts import doubts, matrices_finding, matrices_in_doubt
from onnxmem.runtimes.torch.fully_sharded import Gathering, Units
from onnxmem.runtimes.torch.losses import OutputLosses, loss_named, loss_outputs
from onnxmem.runtimes.torch.memory import CheckpointOption, Heap, PeakRange, Phase, TrainingMemory
from onnxmem.runtimes.torch.network import Network, network_of
from onnxmem.runtimes.torch.optimizers import Optimizer, optimizer_named
from onnxmem.runtimes.torch.precision import Precision, operand_in, precision_named
from onnxmem.runtimes.torch.strides import Dims, multiplies_matrices
from onnxmem.runtimes.torch.tape import Tape, tape_of
from onnxmem.runtimes.torch.variables import has_lines, most_held_bytes
from onnxmem.settings import TrainingConfig
from onnxmem.units import format_bytes, plural, sum_known

_BATCH_COUNT_BYTES = 8
"""``num_batches_tracked`` of PyTorch's BatchNorm: an int64 that no ONNX file has."""


_STEP_BYTES = 4
"""``state["step"]`` of torch/optim/adam.py, a float32."""


_DOUBT = 1.05
"""Variables that may hold less than this share more are not worth a warning."""


_BUCKETED = frozenset({"ddp", "zero1"})


_STAGES = {"none": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}
"""The ZeRO stage of each way to shard."""


def training_memory(graph: Graph, recipe: TrainingConfig) -> TrainingMemory:
    """Simulate one training step of a graph.

    :raises UsageError: the configuration names an output that the graph does not have.
    """
    step = _Step.of(graph, recipe)
    run = [(schedule, step.run(schedule)) for schedule in schedules(step.tape, recipe.checkpoint)]
    schedule, best = min(run, key=lambda each: each[1].peak_bytes)
    if _is_open_to_variables(step.tape, best):
        most = step.run(schedule, holds_all=True).peak_bytes
        best = replace(best, findings=(*best.findings, *_variables_finding(best, most)))
    # Priced by a second step with the matrices frozen, under the schedule of the first: another
    # schedule would mix two differences.
    matrices = matrices_in_doubt(step.network.graph, step.network.parameters)
    if matrices:
        frozen = replace(recipe, freeze=(*recipe.freeze, *map(escape, matrices)))
        other = _Step.of(graph, frozen)
        again = schedules(other.tape, recipe.checkpoint)
        same = next(each for each in again if each.name == schedule.name)
        more = matrices_finding(matrices, best.peak_bytes, other.run(same).peak_bytes)
        best = replace(best, findings=(*best.findings, *more))
    best = replace(best, findings=(*best.findings, *doubts(step.tape, best.peak_bytes)))
    return best if len(run) == 1 else replace(best, checkpoints=_unbeaten(step.tape, run))


def _is_open_to_variables(tape: Tape, step: TrainingMemory) -> bool:
    """Whether variables may hold enough to matter that the file does not show."""
    if has_lines(tape.graph.nodes):
        return False
    # An upper bound, so that the second simulation runs only where it can matter. What is saved for
    # backward is alive anyway, unless it is recomputed.
    is_saved = step.recipe.checkpoint == "none"
    saved = {name for each in tape.saved.values() for name in each.storages if is_saved}
    most_bytes = step.forward_peak_bytes if is_saved else step.peak_bytes
    return most_bytes + most_held_bytes(tape, saved) > _DOUBT * step.peak_bytes


def _variables_finding(step: TrainingMemory, most_bytes: int) -> Iterator[Finding]:
    """The warning where variables may hold much more than is counted."""
    if most_bytes > _DOUBT * step.peak_bytes:
        text = (
            "the file does not show which tensors variables of the network hold: the training "
            f"peak is {format_bytes(step.peak_bytes)} if they hold what several calls read, and up "
            f"to {format_bytes(most_bytes)} if all that a module computes until it returns; files "
            "that torch.export writes have the lines of code"
        )
        yield Finding("variables_unknown", text)


def _unbeaten(
    tape: Tape, run: Iterable[tuple[Schedule, TrainingMemory]]
) -> tuple[CheckpointOption, ...]:
    """The Pareto front of the options, by FLOPs: none has both fewer FLOPs and fewer bytes."""
    options = (
        CheckpointOption(schedule.name, found.peak_bytes, schedule.extra_flops(tape))
        for schedule, found in run
    )
    front: list[CheckpointOption] = []
    for option in sorted(options, key=lambda each: (each.extra_flops, each.peak_bytes)):
        if not front or option.peak_bytes < front[-1].peak_bytes:
            front.append(option)
    return tuple(front)


def batchnorm_range(graph: Graph, step: TrainingMemory) -> PeakRange | None:
    """The peak of the step, and with every BatchNormalization that it leaves out.

    ``None`` where it leaves none out; otherwise a second step of the same graph is simulated.
    """
    left_out = step.batchnorms
    if not (left_out.left_out or left_out.unknown):
        return None
    # The other end of the range: those left out on request come back with the default, unknown ones
    # must be assumed.
    assumed = None if left_out.left_out else True
    full = training_memory(graph, replace(step.recipe, assume_batchnorm=assumed))
    return PeakRange(*sorted((step.peak_bytes, full.peak_bytes)))


def range_finding(step: TrainingMemory, peaks: PeakRange) -> Finding:
    """The warning on a range: its BatchNormalizations were left out on request, or are unknown."""
    names = step.batchnorms.left_out or step.batchnorms.unknown
    low, high = format_bytes(peaks.low_bytes), format_bytes(peaks.high_bytes)
    factor = peaks.high_bytes / peaks.low_bytes
    norms = f"{len(names):,} BatchNormalization"
    if step.batchnorms.left_out:
        text = (
            f"{norms} that the export folded away left out, as requested: {listed(names)}; the "
            f"training peak is {low} without them and {high} with them, {factor:.2f} times that"
        )
        return Finding("folded_batchnorm", text, names[0])
    text = (
        f"up to {norms} may have been folded into convolutions with a bias; the file does not show "
        f"which: {listed(names)}; the training peak is {low} if none was and {high} if all were, "
        f"{factor:.2f} times that; choose with --assume-batchnorm or --no-assume-batchnorm"
    )
    return Finding("batchnorm_unknown", text, names[0])


@dataclass(frozen=True, slots=True)
class PersistentState:
    """The allocations of one rank that live from step to step, and its optimizer's temporaries."""

    graph: Graph
    parameters: Parameters
    recipe: TrainingConfig

    @property
    def precision(self) -> Precision:
        """The precision of weights, gradients and activations."""
        return precision_named(self.recipe.precision, self.recipe.torch)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer, in the requested release of PyTorch."""
        return optimizer_named(self.recipe.optimizer, self.recipe.torch)

    @property
    def shards_weights(self) -> bool:
        """Whether a rank has only a shard of each weight."""
        return _STAGES[self.recipe.shard] >= 3  # noqa: PLR2004 - the third stage

    def shard(self, size_bytes: int, stage: int, dims: Dims | None = None) -> int:
        """Bytes of a rank's part of a tensor that is sharded from a ZeRO stage on."""
        if _STAGES[self.recipe.shard] < stage:
            return size_bytes
        if self.shards_weights and dims and dims[0]:
            # FSDPParam._init_sharded_param of _fully_shard/_fsdp_param.py cuts the first dim, and
            # pads every shard to the first, which is the longest.
            return -(-dims[0] // self.recipe.world) * (size_bytes // dims[0])
        return -(-size_bytes // self.recipe.world)

    def _shard_of(self, name: str, size_bytes: int, stage: int) -> int:
        return self.shard(size_bytes, stage, known_dims(self.graph.tensors[name].shape))

    def whole_bytes(self, names: Iterable[str]) -> Iterator[tuple[str, int]]:
        """Parameters and buffers, each with its bytes on all ranks together."""
        return self._sized(names, self.precision.weight_bits)

    def weight_allocations(self) -> Iterable[Allocation]:
        """The trained parameters."""
        for name, size_bytes in self.whole_bytes(self.parameters.trained):
            yield Allocation(name, Category.WEIGHT, self._shard_of(name, size_bytes, 3))

    def buffer_allocations(self) -> Iterable[Allocation]:
        """Weights that are not trained, and BatchNormalization's batch counters."""
        names = (*self.parameters.buffers, *self.parameters.quantized)
        for name, size_bytes in self.whole_bytes(names):
            yield Allocation(name, Category.BUFFER, size_bytes)
        norms = (n for n in self.graph.all_nodes() if n.onnx_op == "BatchNormalization")
        for mean in dict.fromkeys(mean for node in norms for mean in node.inputs[3:4]):
            yield Allocation(
                f"num_batches_tracked beside {mean}", Category.BUFFER, _BATCH_COUNT_BYTES
            )

    def master_allocations(self) -> Iterable[Allocation]:
        """The copies of the weights that the optimizer steps, which it makes when it is made."""
        if self.precision.master_bits:
            bits = self.precision.stepped_bits
            for name, size_bytes in self._sized(self.parameters.trained, bits):
                yield Allocation(
                    f"master of {name}", Category.STATE, self._shard_of(name, size_bytes, 1)
                )

    def state_allocations(self) -> Iterable[Allocation]:
        """The optimizer's state, which its first step makes."""
        optimizer, element_bytes = self.optimizer, self.precision.stepped_bits // 8
        for name in self.parameters.trained:
            dims = known_dims(self.graph.tensors[name].shape)
            if dims is None:
                continue
            stepped_bytes = prod(dims) * element_bytes
            state_bytes = optimizer.state_of(dims, element_bytes)
            for size_bytes in _pieces(state_bytes, stepped_bytes):
                # A counter of steps is a tensor of its own on each rank.
                is_cut = size_bytes > _STEP_BYTES or not self.shards_weights
                shard_bytes = self.shard(size_bytes, 1, dims) if is_cut else size_bytes
                yield Allocation(f"state of {name}", Category.STATE, shard_bytes)
        if self.parameters.trained and optimizer.shared_state_bytes:
            yield Allocation("shared state", Category.STATE, optimizer.shared_state_bytes)

    def gradient_allocations(self) -> Iterable[Allocation]:
        """The parameters' gradients, which live from one step to the next."""
        for name, size_bytes in self.whole_bytes(self.parameters.trained):
            yield Allocation(
                f"gradient of {name}", Category.GRADIENT, self._shard_of(name, size_bytes, 2)
            )

    def bucket_allocations(self) -> Iterable[Allocation]:
        """The buckets in which ranks reduce gradients: as large as all of them."""
        if self.recipe.shard in _BUCKETED:
            # Buckets are copies beside the gradients unless `gradient_as_bucket_view` is set, which
            # is off by default (torch/nn/parallel/distributed.py).
            total_bytes = sum(size for _, size in self.whole_bytes(self.parameters.trained))
            yield Allocation("gradient buckets", Category.GRADIENT, total_bytes)

    def temporary_allocations(self) -> Iterable[Allocation]:
        """What is alive at once while the optimizer steps."""
        # Master weights are stepped with float32 gradients, which replace those of 16 bits tensor
        # by tensor before the step: only the difference in bytes is added.
        wider = self.precision.stepped_bits - self.precision.weight_bits
        for name, more_bytes in self._sized(self.parameters.trained if wider else (), wider):
            yield Allocation(
                f"wider gradient of {name}", Category.TEMPORARY, self._shard_of(name, more_bytes, 1)
            )
        shapes = (self.graph.tensors[name].shape for name in self.parameters.trained)
        sizes = self.optimizer.temporaries(
            tuple(dims for shape in shapes if (dims := known_dims(shape)) is not None),
            self.precision.stepped_bits // 8,
            form=self.recipe.optimizer_form,
            weight_decay=self.recipe.weight_decay,
        )
        for size_bytes in sizes:
            yield Allocation(
                f"{self.optimizer.name} step", Category.TEMPORARY, self.shard(size_bytes, 1)
            )

    def _sized(self, names: Iterable[str], bits: int) -> Iterator[tuple[str, int]]:
        # A large graph has few shapes, each of many weights.
        sizes: dict[tuple[object, ...], int] = {}
        for name in names:
            tensor = self.graph.tensors[name]
            key = tensor.shape, tensor.dtype
            if key not in sizes:
                sizes[key] = operand_in(tensor, bits).size_bytes or 0
            yield name, sizes[key]


def _pieces(total_bytes: int, piece_bytes: int) -> Iterable[int]:
    """The tensors of a parameter's state: as large as the parameter, and the remainder."""
    while piece_bytes and total_bytes > piece_bytes:
        yield piece_bytes
        total_bytes -= piece_bytes
    yield total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What every checkpointing schedule of a step shares."""

    network: Network
    persistent: PersistentState
    tape: Tape
    outputs: tuple[str, ...]
    masters: tuple[Allocation, ...]
    state: tuple[Allocation, ...]
    gradients: tuple[Allocation, ...]
    """Where they live from one step to the next."""
    units: Units

    @classmethod
    def of(cls, graph: Graph, recipe: TrainingConfig) -> Self:
        """Read a graph as a training configuration trains it."""
        network = network_of(graph, recipe)
        persistent = PersistentState(network.graph, network.parameters, recipe)
        outputs = loss_outputs(network.graph, recipe.outputs)
        tape = tape_of(
            network.graph,
            network.parameters,
            persistent.precision,
            outputs,
            in_place=recipe.in_place_activations,
        )
        whole = persistent.whole_bytes(persistent.parameters.trained)
        return cls(
            network=network,
            persistent=persistent,
            tape=tape,
            outputs=outputs,
            masters=tuple(persistent.master_allocations()),
            state=tuple(persistent.state_allocations()),
            gradients=tuple(persistent.gradient_allocations()),
            units=Units.of(tape, whole) if persistent.shards_weights else Units(),
        )

    def run(self, schedule: Schedule, *, holds_all: bool = False) -> TrainingMemory:
        """Simulate the step once with a schedule; ``holds_all``: variables hold all they may."""
        recipe, graph = self.persistent.recipe, self.network.graph
        loss = loss_named(recipe.loss)
        losses = OutputLosses(graph, self.persistent.precision, loss, self.outputs)
        setup = self._setup_allocations(losses)
        heap = Heap.with_setup(setup)
        is_first = self.persistent.recipe.first_step
        state = () if is_first else heap.add_to_setup(self.state)
        gradients = self._previous_gradients(heap)
        outputs = heap.add_to_setup(self._previous_outputs())
        passes = Passes(self.tape, heap, schedule, holds_all)
        # What is saved for backward is the growth of the heap between these two events.
        num_before = heap.num_events
        gathering = Gathering(heap, self.units)
        self._run_forward(passes, losses, outputs, gathering)
        num_forward = heap.num_events
        # zero_grad(set_to_none=True) between forward and backward.
        if not recipe.adds_to_gradients:
            _release(heap, gradients)
        self._run_backward(passes, losses, gradients, gathering)
        self._run_optimizer(heap, state)
        inputs = [graph.tensors[name].size_bytes for name in graph.inputs]
        replay = heap.replay()
        return TrainingMemory(
            recipe=recipe,
            weight_bytes=_sum_bytes(setup, Category.WEIGHT),
            buffer_bytes=_sum_bytes(setup, Category.BUFFER),
            gradient_bytes=sum(each.size_bytes for each in self.gradients),
            optimizer_state_bytes=sum(each.size_bytes for each in (*self.masters, *self.state)),
            saved_activation_bytes=replay.bytes_after(num_forward) - replay.bytes_after(num_before),
            input_bytes=sum_known((*inputs, losses.target_bytes())),
            replay=replay,
            kernel_buffers=tuple(heap.kernel_buffers),
            checkpointed=passes.checkpointed(replay),
            multiplies_matrices=any(multiplies_matrices(node) for node in graph.nodes),
            assumed_nodes=self.tape.assumed_nodes,
            unknown=_unknown(self.tape),
            findings=(
                *self.network.findings,
                *_widening(self.tape),
                *_narrowing(self.tape),
                *_missed_blocks(schedule, recipe.checkpoint),
            ),
            batchnorms=self.network.batchnorms,
        )

    def _setup_allocations(self, losses: OutputLosses) -> tuple[Allocation, ...]:
        """What is alive before the step and through it."""
        graph = self.network.graph
        inputs = ((name, graph.tensors[name].size_bytes or 0) for name in graph.inputs)
        return (
            *self.persistent.weight_allocations(),
            *self.persistent.buffer_allocations(),
            *self.masters,
            *self.persistent.bucket_allocations(),
            *(Allocation(name, Category.INPUT, size_bytes) for name, size_bytes in inputs),
            Allocation("targets", Category.INPUT, losses.target_bytes() or 0),
        )

    def _run_forward(
        self,
        passes: Passes,
        losses: OutputLosses,
        previous_outputs: tuple[int, ...],
        gathering: Gathering,
    ) -> None:
        heap = passes.heap
        gathering.begin_forward()
        passes.run_forward()
        gathering.end_forward()
        # `output = model(input)` in a loop: the name refers to the previous pass's outputs until
        # the new ones are returned.
        _release(heap, previous_outputs)
        losses.run_forward(heap, self.tape)
        # The loss is computed inside the autocast block, backward outside of it.
        passes.storages.leave_autocast()

    def _run_backward(
        self,
        passes: Passes,
        losses: OutputLosses,
        gradients: tuple[int, ...],
        gathering: Gathering,
    ) -> None:
        heap = passes.heap
        heap.enter_phase(Phase.BACKWARD)
        tensors = map(self.network.graph.tensors.__getitem__, self.persistent.parameters.trained)
        sized = zip(tensors, self.gradients, strict=True)
        storages = (tensor.storage_key for tensor, gradient in sized if gradient.size_bytes)
        adds = self.persistent.recipe.adds_to_gradients
        backward = Backward(
            passes.storages,
            previous=dict(zip(storages, gradients, strict=True)) if adds else {},
            shard=lambda size_bytes, dims: self.persistent.shard(size_bytes, 2, dims),
            units=self.units.of_parameter,
        )
        loss_gradient = losses.run_backward(backward)
        gathering.begin_backward(backward.reduce)
        passes.run_backward(backward)
        gathering.end_backward()
        _release(heap, () if loss_gradient is None else (loss_gradient,))

    def _previous_gradients(self, heap: Heap) -> tuple[int, ...]:
        """Allocate the gradients that are alive when the forward pass begins."""
        recipe = self.persistent.recipe
        if recipe.zero_grad == "start" and not recipe.adds_to_gradients:
            return ()
        return heap.add_to_setup(self.gradients)

    def _previous_outputs(self) -> Iterator[Allocation]:
        """The outputs of the previous pass, if the loop keeps them that long."""
        recipe = self.persistent.recipe
        if recipe.accumulate == 1 and not recipe.keep_outputs:
            return
        # An output that is a view keeps its whole storage: a value that is a part of one product.
        storages = self.tape.storages
        kept = dict.fromkeys(storages[n] for n in self.network.graph.outputs if n in storages)
        for name in kept:
            label, size_bytes = f"{name} of the previous pass", self.tape.size_bytes(name) or 0
            yield Allocation(label, Category.ACTIVATION, size_bytes)

    def _run_optimizer(self, heap: Heap, state: tuple[int, ...]) -> None:
        heap.enter_phase(Phase.OPTIMIZER)
        # Optimizer._init_group of torch/optim: the first step makes the state of all parameters.
        for number in state:
            heap.make_first(number)
        if self.persistent.recipe.first_step:
            heap.allocate_all(self.state)
        _release(heap, heap.allocate_all(self.persistent.temporary_allocations()))


def _widening(tape: Tape) -> Iterator[Finding]:
    """The note on constants whose type under autocast the file does not show."""
    if tape.widening:
        text = (
            f"{plural(len(tape.widening), 'constant')} counted as float32 under autocast, as "
            f"torch.zeros makes it: {listed(tape.widening)}; what is computed with it is float32 "
            "too, which x.new_zeros(...) of a 16-bit x would not cause; files that torch.export "
            "writes with metadata tell"
        )
        yield Finding("constant_in_float32", text, tape.widening[0])


def _narrowing(tape: Tape) -> Iterator[Finding]:
    """The note on sums whose type under autocast the file does not show."""
    if tape.narrowed:
        text = (
            f"{plural(len(tape.narrowed), 'residual sum')} of 16 bits and float32 counted as 16 "
            f"bits under autocast, as `x += shortcut` leaves it: {listed(tape.narrowed)}; if the "
            "network adds with `x = x + shortcut`, they and what is added to them are float32: "
            "--no-in-place-activations"
        )
        yield Finding("sums_in_place", text, tape.narrowed[0])


def _missed_blocks(schedule: Schedule, checkpoint: str) -> Iterator[Finding]:
    """The warning where blocks are to be checkpointed and the file does not name them."""
    rule, _, pattern = checkpoint.partition("=")
    if rule != "blocks" or any(segment.blocks for segment in schedule.segments):
        return
    if pattern:
        text = (
            f"--checkpoint {checkpoint!r}: no module has a path of that pattern; nothing is "
            "checkpointed"
        )
        yield Finding("checkpoint_matches_nothing", text)
    else:
        text = (
            "--checkpoint blocks: the file does not name repeated modules; each stretch between "
            "points that few tensors cross is checkpointed instead, as with every=1"
        )
        yield Finding("no_repeated_modules", text)


def _sum_bytes(allocations: Iterable[Allocation], category: Category) -> int:
    return sum(each.size_bytes for each in allocations if each.category is category)


def _release(heap: Heap, numbers: Iterable[int]) -> None:
    for number in numbers:
        heap.release(number)


def _unknown(tape: Tape) -> tuple[str, ...]:
    """Name the saved tensors of unknown size, and the nodes that save unknown bytes."""
    found: list[str] = []
    for node in tape.backward_nodes:
        saved = tape.saved[node.name]
        found += [name for name in saved.storages if tape.size_bytes(name) is None]
        if saved.copies or saved.inner:
            found += [name for name, size in (*saved.copies, *saved.inner) if size is None]
        if saved.extra_bytes is None:
            found.append(node.name)
    found += (name for name in tape.graph.outputs if tape.size_bytes(name) is None)
    return tuple(dict.fromkeys(found))

"""One training step (definition 7): its terms, and when they are alive.

The step is PyTorch's in its steady state: forward, loss, backward, optimizer, with the gradients of
the step before freed at its start. The loop holds the network's outputs and the loss to its end.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from onnxmem.model import Graph
from onnxmem.model.parameters import Parameters, parameters
from onnxmem.ops.spec import Operand, known_dims
from onnxmem.recipe import Recipe
from onnxmem.sums import sum_known
from onnxmem.training.backward import Backward
from onnxmem.training.composites import as_run
from onnxmem.training.forward import Storages, run_forward
from onnxmem.training.heap import Block, Heap, Kind, Phase, StepTrace
from onnxmem.training.losses import loss_named
from onnxmem.training.optimizers import Optimizer, optimizer_named
from onnxmem.training.precision import Precision, precision_named
from onnxmem.training.tape import Tape, tape_of
from onnxmem.training.trained_outputs import OutputLosses, loss_outputs

_BATCH_COUNT_BYTES = 8
"""PyTorch's BatchNorm counts its batches in an int64, which no ONNX file holds."""


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """The terms of a training step in bytes; ``None`` is unknown."""

    recipe: Recipe
    weight_bytes: int
    """Trained parameters, in the precision's copies."""
    buffer_bytes: int
    """Weights that no gradient reaches: running statistics and constants."""
    gradient_bytes: int
    optimizer_state_bytes: int
    saved_activation_bytes: int | None
    """All that lives from forward to backward: what formulas read, the outputs and the loss."""
    input_bytes: int | None
    """Graph inputs and the loss's targets."""
    trace: StepTrace
    """Every allocation of the step; tensors of unknown size take 0 bytes in it."""
    assumed_nodes: tuple[str, ...] = ()
    """Nodes of which everything is taken to be saved: no record, or subgraphs."""
    unknown: tuple[str, ...] = ()
    """Tensors and nodes that the figures leave out: they are lower bounds."""

    @property
    def forward_peak_bytes(self) -> int:
        """The most that is alive at once up to the loss."""
        return self.trace.peaks[Phase.FORWARD].size_bytes

    @property
    def backward_peak_bytes(self) -> int:
        """The most that is alive at once from the loss to the last gradient."""
        return self.trace.peaks[Phase.BACKWARD].size_bytes

    @property
    def optimizer_peak_bytes(self) -> int:
        """The most that is alive at once while the optimizer steps."""
        return self.trace.peaks[Phase.OPTIMIZER].size_bytes

    @property
    def peak_bytes(self) -> int:
        """The largest of the three phases."""
        return self.trace.peaks[self.peak_phase].size_bytes

    @property
    def peak_phase(self) -> Phase:
        """The phase of the peak; of equal ones the backward pass, then the optimizer."""
        order = (Phase.BACKWARD, Phase.OPTIMIZER, Phase.FORWARD)
        return max(order, key=lambda phase: self.trace.peaks[phase].size_bytes)

    @property
    def peak_node(self) -> str:
        """The node at which the peak is reached; ``""`` in the optimizer."""
        return self.trace.peaks[self.peak_phase].node

    def live_at_peak(self) -> tuple[Block, ...]:
        """What is alive at the peak, largest first."""
        return self.trace.live_at(self.trace.peaks[self.peak_phase])


@dataclass(frozen=True, slots=True)
class _Step:
    """One training step, and the terms of its memory."""

    graph: Graph
    parameters: Parameters
    optimizer: Optimizer
    precision: Precision

    def parameter_bytes(self, name: str) -> int:
        """Bytes of one trained parameter."""
        return self._held(name, self.precision.weight_bits).size_bytes or 0

    def copy_bytes(self, name: str) -> int:
        """Bytes of the copy of a parameter that the layers read; 0 where there is none."""
        if not self.precision.weight_copy_bits:
            return 0
        return self._held(name, self.precision.weight_copy_bits).size_bytes or 0

    def buffer_blocks(self) -> Iterable[Block]:
        """What is held and not trained, BatchNormalization's batch counters too."""
        for name in (*self.parameters.buffers, *self.parameters.quantised):
            size_bytes = self._held(name, self.precision.weight_bits).size_bytes or 0
            yield Block(name, Kind.BUFFER, size_bytes)
        norms = (n for n in self.graph.all_nodes() if n.onnx_op == "BatchNormalization")
        for mean in dict.fromkeys(mean for node in norms for mean in node.inputs[3:4]):
            yield Block(f"batches counted beside {mean}", Kind.BUFFER, _BATCH_COUNT_BYTES)

    def state_blocks(self) -> Iterable[Block]:
        """What the optimizer keeps from step to step."""
        element_bytes = self.precision.weight_bits // 8
        for name in self.parameters.trained:
            dims = known_dims(self.graph.tensors[name].shape)
            if dims is not None:
                size_bytes = self.optimizer.state_of(dims, element_bytes)
                yield Block(f"state of {name}", Kind.STATE, size_bytes)
        if self.parameters.trained and self.optimizer.shared_state_bytes:
            yield Block("shared state", Kind.STATE, self.optimizer.shared_state_bytes)

    def temporary_bytes(self) -> int:
        """Bytes that the optimizer allocates while it steps."""
        shapes = (self.graph.tensors[name].shape for name in self.parameters.trained)
        known = tuple(dims for shape in shapes if (dims := known_dims(shape)) is not None)
        return self.optimizer.temporary_bytes(known, self.precision.weight_bits // 8)

    def _held(self, name: str, bits: int) -> Operand:
        tensor = self.graph.tensors[name]
        return self.precision.held(tensor.operand(), tensor.dtype, bits)


def training_memory(graph: Graph, recipe: Recipe) -> TrainingMemory:
    """Work out one training step, in the steady state: the optimizer has its state.

    :raises UsageError: a recipe that names an output which is none.
    """
    graph = as_run(graph)
    found = parameters(graph)
    precision = precision_named(recipe.precision)
    step = _Step(graph, found, optimizer_named(recipe.optimizer), precision)
    outputs = loss_outputs(graph, recipe.outputs)
    losses = OutputLosses(graph, precision, loss_named(recipe.loss), outputs)
    tape = tape_of(graph, found, step.precision, losses.outputs)
    heap = Heap()
    terms = _hold(heap, step, losses)
    held_bytes = heap.live_bytes
    backward = Backward(Storages(tape, heap))
    run_forward(backward.storages, graph.nodes, survivors=graph.outputs)
    losses.run_forward(heap)
    saved_bytes = heap.live_bytes - held_bytes
    heap.enter(Phase.BACKWARD)
    one = losses.run_backward(backward)
    backward.run(tape.way_back)
    if one is not None:
        heap.release(one)
    _optimize(heap, step)
    unknown = _unknown(tape)
    return TrainingMemory(
        recipe=recipe,
        weight_bytes=terms[Kind.WEIGHT],
        buffer_bytes=terms[Kind.BUFFER],
        gradient_bytes=sum(step.parameter_bytes(name) for name in found.trained),
        optimizer_state_bytes=terms[Kind.STATE],
        saved_activation_bytes=saved_bytes,
        input_bytes=_input_bytes(graph, losses),
        trace=heap.trace(),
        assumed_nodes=tape.assumed_nodes,
        unknown=unknown,
    )


def _hold(heap: Heap, step: _Step, losses: OutputLosses) -> dict[Kind, int]:
    """Allocate what is held through the step; say the bytes of each kind."""
    trained = step.parameters.trained
    inputs = ((name, step.graph.tensors[name].size_bytes or 0) for name in step.graph.inputs)
    blocks = [
        *(Block(name, Kind.WEIGHT, step.parameter_bytes(name)) for name in trained),
        *(Block(f"copy of {name}", Kind.WEIGHT, step.copy_bytes(name)) for name in trained),
        *step.buffer_blocks(),
        *step.state_blocks(),
        *(Block(name, Kind.INPUT, size_bytes) for name, size_bytes in inputs),
        Block("targets", Kind.INPUT, losses.target_bytes() or 0),
    ]
    terms = dict.fromkeys(Kind, 0)
    for block in blocks:
        terms[block.kind] += block.size_bytes
        if block.size_bytes:
            heap.allocate(block.label, block.kind, block.size_bytes)
    return terms


def _optimize(heap: Heap, step: _Step) -> None:
    heap.enter(Phase.OPTIMIZER)
    size_bytes = step.temporary_bytes()
    if size_bytes:
        heap.release(heap.allocate(f"{step.optimizer.name} step", Kind.TEMPORARY, size_bytes))


def _input_bytes(graph: Graph, losses: OutputLosses) -> int | None:
    sizes = [graph.tensors[name].size_bytes for name in graph.inputs]
    return sum_known((*sizes, losses.target_bytes()))


def _unknown(tape: Tape) -> tuple[str, ...]:
    """Name the tensors and nodes of which a formula keeps an unknown number of bytes."""
    found: list[str] = []
    for node in tape.way_back:
        kept = tape.kept[node.name]
        found += (name for name in kept.storages if tape.size_bytes(name) is None)
        found += (name for name, size in (*kept.copies, *kept.inner) if size is None)
        if kept.extra_bytes is None:
            found.append(node.name)
    found += (name for name in tape.graph.outputs if tape.size_bytes(name) is None)
    return tuple(dict.fromkeys(found))

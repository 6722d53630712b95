"""One training step (definition 7): its terms, and the peaks of its phases.

The step is PyTorch's: forward, loss, backward, optimizer; gradients are freed before the next step
begins, and the loop holds the network's output and the loss until then. Each phase's peak here is
the sum of what it holds at most, not yet when: gradients are counted in full beside all saved
activations, and activations that nothing saves are left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from onnxmem.model import Graph
from onnxmem.model.parameters import Parameters
from onnxmem.ops.spec import Operand, known_dims
from onnxmem.sums import sum_known
from onnxmem.training.losses import Loss, loss_named
from onnxmem.training.optimizers import Optimizer, optimizer_named
from onnxmem.training.precision import Precision, precision_named
from onnxmem.training.saved import SavedActivations, saved_activations

_BATCH_COUNT_BYTES = 8
"""PyTorch's BatchNorm counts its batches in an int64, which no ONNX file holds."""


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """The terms of a training step in bytes; ``None`` is unknown."""

    optimizer: str
    precision: str
    loss: str
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
    forward_peak_bytes: int | None
    backward_peak_bytes: int | None
    optimizer_peak_bytes: int | None
    assumed_nodes: tuple[str, ...] = ()
    """Nodes of which everything is taken to be saved: no record, or subgraphs."""
    unknown: tuple[str, ...] = ()
    """Tensors and nodes that the figures leave out: they are lower bounds."""

    @property
    def peak_bytes(self) -> int | None:
        """The largest of the three phases."""
        return max((size for _, size in self._phases()), default=None)

    @property
    def peak_phase(self) -> str | None:
        """``forward``, ``backward`` or ``optimizer``: the phase of the peak."""
        return max(self._phases(), key=lambda phase: phase[1], default=(None, 0))[0]

    def _phases(self) -> list[tuple[str, int]]:
        phases = (
            ("backward", self.backward_peak_bytes),
            ("optimizer", self.optimizer_peak_bytes),
            ("forward", self.forward_peak_bytes),
        )
        return [(name, size) for name, size in phases if size is not None]


@dataclass(frozen=True, slots=True)
class _Step:
    """One training step, and the terms of its memory."""

    graph: Graph
    parameters: Parameters
    optimizer: Optimizer
    precision: Precision
    loss: Loss

    def saved(self) -> SavedActivations:
        """What the forward pass keeps, the loss left out."""
        return saved_activations(self.graph, self.parameters, self.precision)

    def output(self) -> str | None:
        """Name the output that the loss reads: the first floating one."""
        for name in self.graph.outputs:
            dtype = self.graph.tensors[name].dtype
            if dtype is not None and dtype.is_floating:
                return name
        return None

    def output_operand(self) -> Operand:
        """The output as the loss reads it; no elements where there is none."""
        name = self.output()
        return self._held(name, self.precision.loss_bits) if name else Operand((0,), 32)

    def output_bytes(self) -> int | None:
        """Bytes that the loop holds to the end of the step: the network's outputs and the loss."""
        sizes = [
            self._held(name, self.precision.activation_bits).size_bytes
            for name in self.graph.outputs
        ]
        return sum_known((*sizes, self.loss_bytes()))

    def loss_bytes(self) -> int:
        """Bytes of the loss itself, one number."""
        return self.precision.loss_bits // 8 if self.loss.has_value else 0

    def weight_bytes(self, names: Iterable[str], bits: int) -> int:
        """Bytes of weights whose floating elements take ``bits``."""
        return sum(self._held(name, bits).size_bytes or 0 for name in names)

    def buffer_bytes(self) -> int:
        """Bytes of what is held and not trained, BatchNormalization's batch counters too."""
        norms = (n for n in self.graph.all_nodes() if n.onnx_op == "BatchNormalization")
        means = {mean for node in norms for mean in node.inputs[3:4]}
        held = (*self.parameters.buffers, *self.parameters.quantised)
        return self.weight_bytes(held, self.precision.weight_bits) + len(means) * _BATCH_COUNT_BYTES

    def input_bytes(self) -> int | None:
        """Bytes that the caller hands in: graph inputs and targets."""
        sizes = [self.graph.tensors[name].size_bytes for name in self.graph.inputs]
        return sum_known((*sizes, self.loss.target_bytes(self.output_operand())))

    def state_bytes(self) -> int:
        """Bytes that the optimizer keeps from step to step."""
        return self.optimizer.state_bytes(self._shapes(), self.precision.weight_bits // 8)

    def temporary_bytes(self) -> int:
        """Bytes that the optimizer allocates while it steps."""
        return self.optimizer.temporary_bytes(self._shapes(), self.precision.weight_bits // 8)

    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        shapes = (self.graph.tensors[name].shape for name in self.parameters.trained)
        return tuple(dims for shape in shapes if (dims := known_dims(shape)) is not None)

    def _held(self, name: str, bits: int) -> Operand:
        tensor = self.graph.tensors[name]
        return self.precision.held(tensor.operand(), tensor.dtype, bits)


def training_memory(
    graph: Graph, found: Parameters, *, optimizer: str, precision: str, loss: str
) -> TrainingMemory:
    """Work out the terms of one training step, in the steady state: the optimizer has its state.

    ``found`` are the graph's parameters.

    :raises UsageError: an optimizer, a precision or a loss that is not known.
    """
    step = _Step(
        graph,
        found,
        optimizer_named(optimizer),
        precision_named(precision),
        loss_named(loss),
    )
    trained = step.parameters.trained
    weights = step.weight_bytes(trained, step.precision.weight_bits)
    copies = step.weight_bytes(trained, step.precision.weight_copy_bits)
    buffers, state, inputs = step.buffer_bytes(), step.state_bytes(), step.input_bytes()
    saved = step.saved()
    loss_saved_bytes = step.loss.saved_bytes(step.output_operand())
    saved_bytes = sum_known((saved.size_bytes, loss_saved_bytes, step.loss_bytes()))
    held = weights + buffers + state
    forward = sum_known((held + copies, saved_bytes, inputs))
    return TrainingMemory(
        optimizer=optimizer,
        precision=precision,
        loss=loss,
        weight_bytes=weights + copies,
        buffer_bytes=buffers,
        gradient_bytes=weights,
        optimizer_state_bytes=state,
        saved_activation_bytes=saved_bytes,
        input_bytes=inputs,
        forward_peak_bytes=forward,
        backward_peak_bytes=sum_known((forward, weights)),
        optimizer_peak_bytes=sum_known(
            (held + weights + step.temporary_bytes(), inputs, step.output_bytes())
        ),
        assumed_nodes=saved.assumed_nodes,
        unknown=saved.unknown,
    )

"""Losses: what each saves for backward, its targets, and the gradients that it starts.

The loss is PyTorch's, one on each floating output of the graph that is trained, or on the outputs
that the training configuration names.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType

from onnxmem.errors import UsageError
from onnxmem.model.graph import Graph
from onnxmem.ops.spec import Operand, known_dims
from onnxmem.program.program import Category
from onnxmem.runtimes.torch.autocast_lists import Policy
from onnxmem.runtimes.torch.backward import Backward
from onnxmem.runtimes.torch.gradients import GradientTensor
from onnxmem.runtimes.torch.memory import Heap
from onnxmem.runtimes.torch.precision import Precision, operand_in
from onnxmem.runtimes.torch.tape import Tape
from onnxmem.units import sum_known

_LABEL_BYTES = 8
"""Class labels are int64."""


def _number_bytes(output: Operand) -> int | None:
    return None if output.bits is None else output.bits // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What one loss allocates, by the output that it reads; ``None`` where a shape is unknown."""

    name: str
    saved_bytes: Callable[[Operand], int | None]
    """Saved for backward; the output itself is alive anyway."""
    saves_output: bool = False
    """Whether the formula reads the output, so that a copy that was cast for the loss is saved."""
    operator: str = ""
    """PyTorch's operator that reads the output, as autocast's lists name it."""
    num_inner_gradients: int = 0
    """Gradients as large as the output that are computed before the output's, in a chain."""
    has_weight_sum: bool = False
    """Whether a scalar is saved until the first gradient: ``total_weight``, the sum of the class
    weights."""
    has_value: bool = True
    """Whether there is a loss, which the training loop keeps to the end of the step."""
    value_bytes: Callable[[Operand], int | None] = _number_bytes
    """Of the loss's storage."""
    target_bytes: Callable[[Operand], int | None]
    formula: str
    source: str


def _label_bytes(output: Operand) -> int | None:
    """One label where the output has a score for each class: its shape without the class axis.

    Classes are the last axis up to rank 3, ``[batch, classes]`` or ``[batch, time, classes]``, and
    axis 1 from rank 4 on, ``[batch, classes, height, width]``.
    """
    if output.shape is None:
        return None
    rank = len(output.shape)
    class_axis = 1 if rank > 3 else rank - 1  # noqa: PLR2004 - images and what is larger
    others = known_dims((*output.shape[:class_axis], *output.shape[class_axis + 1 :]))
    return None if others is None else _LABEL_BYTES * prod(others)


def _nothing(output: Operand) -> int | None:  # noqa: ARG001 - a formula like any other
    return 0


def _output_bytes(output: Operand) -> int | None:
    return output.size_bytes


_ALL = (
    Loss(
        name="cross-entropy",
        saved_bytes=_output_bytes,
        operator="cross_entropy_loss",
        has_weight_sum=True,
        num_inner_gradients=1,  # of the log-probabilities
        target_bytes=_label_bytes,
        formula="log-softmax of the output and one sum; int64 labels",
        source="torch derivatives.yaml: _log_softmax, nll_loss_forward; aten/src/ATen/native/"
        "LossNLL.cpp: cross_entropy_loss",
    ),
    Loss(
        name="mse",
        saved_bytes=_nothing,
        saves_output=True,
        operator="mse_loss",
        # The mean is written into the storage of the squared differences
        value_bytes=_output_bytes,
        target_bytes=_output_bytes,
        formula="nothing but the output itself; targets as large as the output",
        source="torch derivatives.yaml: mse_loss; aten/src/ATen/native/BinaryOps.cpp: mse_loss",
    ),
    Loss(
        name="none",
        saved_bytes=_nothing,
        has_value=False,
        target_bytes=_nothing,
        formula="0",
        source="no loss",
    ),
)

LOSSES: Mapping[str, Loss] = MappingProxyType({known.name: known for known in _ALL})


def loss_named(name: str) -> Loss:
    """Find a loss.

    :raises UsageError: there is none of that name.
    """
    if name not in LOSSES:
        message = f"loss {name!r}: not known; one of {', '.join(LOSSES)}"
        raise UsageError(message)
    return LOSSES[name]


def loss_outputs(graph: Graph, named: Iterable[str]) -> tuple[str, ...]:
    """Name the outputs that losses read: every floating one, or those in ``named``.

    :raises UsageError: a name is not that of a floating output.
    """
    floating = tuple(name for name in graph.outputs if _is_floating(graph, name))
    wanted = tuple(named)
    for name in wanted:
        if name not in floating:
            message = (
                f"output {name!r}: the model has no floating output of that name; "
                f"one of {', '.join(floating)}"
            )
            raise UsageError(message)
    # Without names every floating output has a loss: outputs of integers have no gradient.
    return wanted or floating


def _is_floating(graph: Graph, name: str) -> bool:
    dtype = graph.tensors[name].dtype
    return dtype is not None and dtype.is_floating


@dataclass(slots=True)
class OutputLosses:
    """The same loss on each of several outputs."""

    graph: Graph
    precision: Precision
    loss: Loss
    outputs: tuple[str, ...]
    saved: dict[str, int] = field(default_factory=dict)
    """Blocks that each loss saved for backward."""
    casts: dict[str, int] = field(default_factory=dict)
    """Casts of what a loss computed that it saved too."""
    weight_sums: dict[str, int] = field(default_factory=dict)

    def operand(self, name: str) -> Operand:
        """An output as its loss reads it."""
        return operand_in(self.graph.tensors[name], self.precision.loss_bits)

    def target_bytes(self) -> int | None:
        """Bytes of the targets that the caller allocates."""
        return sum_known(self.loss.target_bytes(self.operand(name)) for name in self.outputs)

    def run_forward(self, heap: Heap, tape: Tape) -> None:
        """Compute the losses: their values, and what they save where a gradient is required."""
        for name in self.outputs:
            heap.enter_node(f"loss of {name}")
            is_trained = name in tape.requires_grad
            argument = self._cast(heap, tape, name)
            if is_trained:
                self._save(heap, tape, name)
            if self.loss.has_value:
                size_bytes = self.loss.value_bytes(self.operand(name)) or 0
                heap.allocate(f"value of the {heap.node}", Category.ACTIVATION, size_bytes)
            if argument is not None and self.loss.saves_output and is_trained:
                self.saved[name] = argument
            elif argument is not None:
                heap.release(argument)

    def _cast(self, heap: Heap, tape: Tape, name: str) -> int | None:
        """Cast an output to the loss's type, as autocast does; ``None`` if it makes no copy."""
        if not self._is_cast(tape, name) or self._bits(tape, name) < self.precision.loss_bits:
            return None
        size_bytes = self.operand(name).size_bytes or 0
        return heap.allocate(f"{name} as its loss reads it", Category.ACTIVATION, size_bytes)

    def _save(self, heap: Heap, tape: Tape, name: str) -> None:
        """Allocate what a loss computes of an output and saves, and a cast of that."""
        bits = self._bits(tape, name)
        if saved_bytes := self.loss.saved_bytes(operand_in(self.graph.tensors[name], bits)):
            self.saved[name] = heap.allocate(heap.node, Category.ACTIVATION, saved_bytes)
            if self._is_cast(tape, name) and bits < self.precision.loss_bits:
                label, size_bytes = f"cast of the {heap.node}", self.operand(name).size_bytes or 0
                self.casts[name] = heap.allocate(label, Category.ACTIVATION, size_bytes)
        if self.loss.has_weight_sum:
            self.weight_sums[name] = self._number(heap, "sum of the class weights")

    def _is_cast(self, tape: Tape, name: str) -> bool:
        """Whether autocast casts an output, or what the loss first computes of it."""
        bits = tape.bits(name)
        has_autocast = self.precision.autocast is not None
        return has_autocast and self.loss.has_value and 0 < bits < self.precision.loss_bits

    def _bits(self, tape: Tape, name: str) -> int:
        """Bits of what a loss first computes of an output, and of the output's gradient."""
        # Only autocast of the CPU casts the operand of `cross_entropy_loss`. On CUDA it hands the
        # output's own type to `log_softmax`, and a type that is given wins: float32 is first the
        # operand of `nll_loss` (cross_entropy_loss of aten/src/ATen/native/LossNLL.cpp).
        if not self.loss.has_value:
            return tape.bits(name)
        is_read = self.precision.lists.get(self.loss.operator) is Policy.FLOAT32
        if self._is_cast(tape, name) and not is_read:
            return tape.bits(name)
        return self.operand(name).bits or 0

    def run_backward(self, backward: Backward) -> int | None:
        """Start the gradients of the outputs; one in a wider type than its output is cast.

        Return the block of the loss's own gradient, if there is a loss.
        """
        # `loss.backward()` creates it (_make_grads of torch/autograd/__init__.py: ones_like) and
        # refers to it until the whole pass is done.
        has_loss = self.loss.has_value
        ones = self._number(backward.heap, "gradient of the loss") if has_loss else None
        for name in reversed(self.outputs):
            if name in backward.tape.requires_grad:
                gradient = self._gradient(backward, name)
                bits = backward.tape.bits(name)
                backward.accumulate(name, backward.gradients.cast(name, gradient, bits))
        return ones

    def _gradient(self, backward: Backward, name: str) -> GradientTensor:
        # Each formula's result is alive while the next one reads it; what it saved is released
        # after it, as in `Backward.run`.
        heap, gradients = backward.heap, backward.gradients
        heap.enter_node(f"loss of {name}")
        dims, bits = known_dims(self.operand(name).shape), self.operand(name).bits or 0
        own_bits = self._bits(backward.tape, name)
        before: list[GradientTensor] = []
        for _ in range(self.loss.num_inner_gradients):
            inner = gradients.new(f"gradient inside the {heap.node}", dims, bits)
            for blocks in (self.weight_sums, self.casts):
                if name in blocks:
                    heap.release(blocks.pop(name))
            before.append(gradients.cast(name, inner, own_bits))
        gradient = gradients.new(f"gradient of {name}", dims, own_bits)
        for tensor in before:
            gradients.drop(tensor)
        if name in self.saved:
            heap.release(self.saved.pop(name))
        return gradient

    def _number(self, heap: Heap, label: str) -> int:
        label = f"{label}, {heap.node}" if heap.node else label
        return heap.allocate(label, Category.ACTIVATION, self.precision.loss_bits // 8)

"""The losses of a step: what each makes in the forward pass, and the gradients that it starts."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from onnxmem.errors import UsageError
from onnxmem.model.graph import DType, Graph
from onnxmem.ops.spec import Operand, known_dims
from onnxmem.program.program import Category
from onnxmem.runtimes.torch.backward import Backward
from onnxmem.runtimes.torch.heap import Heap
from onnxmem.runtimes.torch.losses import Loss
from onnxmem.runtimes.torch.precision import Precision, held
from onnxmem.runtimes.torch.tape import Tape
from onnxmem.runtimes.torch.tensors import GradientTensor
from onnxmem.units import sum_known


def loss_outputs(graph: Graph, named: Iterable[str] = ()) -> tuple[str, ...]:
    """Name the outputs that losses read: every floating one, or those that are named.

    :raises UsageError: a name is that of no output, or of one that carries no gradient.
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
    return wanted or floating


def _is_floating(graph: Graph, name: str) -> bool:
    dtype = graph.tensors[name].dtype
    return dtype is not None and dtype.is_floating


@dataclass(slots=True)
class OutputLosses:
    """The same loss on each of some outputs."""

    graph: Graph
    precision: Precision
    loss: Loss
    outputs: tuple[str, ...]
    saved: dict[str, int] = field(default_factory=dict)
    """Blocks that each keeps for the backward pass."""
    weight_sums: dict[str, int] = field(default_factory=dict)

    def operand(self, name: str) -> Operand:
        """An output as its loss reads it."""
        return held(self.graph.tensors[name], self.precision.loss_bits)

    def target_bytes(self) -> int | None:
        """Bytes of the targets that the caller hands in."""
        return sum_known(self.loss.target_bytes(self.operand(name)) for name in self.outputs)

    def run_forward(self, heap: Heap, tape: Tape) -> None:
        """Compute the losses: what they keep where a gradient is required, and their values."""
        for name in self.outputs:
            heap.enter_node(f"loss of {name}")
            is_trained = name in tape.reached
            cast = self._cast(heap, tape, name)
            saved_bytes = self.loss.saved_bytes(self.operand(name)) or 0
            if saved_bytes and is_trained:
                self.saved[name] = heap.allocate(heap.node, Category.ACTIVATION, saved_bytes)
            if self.loss.has_weight_sum and is_trained:
                self.weight_sums[name] = self._number(heap, "sum of the class weights")
            if self.loss.has_value:
                size_bytes = self.loss.value_bytes(self.operand(name)) or 0
                heap.allocate(f"value of the {heap.node}", Category.ACTIVATION, size_bytes)
            if cast is not None and self.loss.keeps_output and is_trained:
                self.saved[name] = cast
            elif cast is not None:
                heap.release(cast)

    def _cast(self, heap: Heap, tape: Tape, name: str) -> int | None:
        """Cast an output to the loss's type, as autocast does; ``None``: it makes no copy."""
        bits = self.precision.loss_bits
        if self.precision.autocast is None or not 0 < tape.bits(name) < bits:
            return None
        if self._gradient_bits(tape, name) < bits:
            return None
        size_bytes = self.operand(name).size_bytes or 0
        return heap.allocate(f"{name} as its loss reads it", Category.ACTIVATION, size_bytes)

    def _gradient_bits(self, tape: Tape, name: str) -> int:
        """Of the output's gradient as the loss makes it: the output's own where it casts none."""
        is_half = self.precision.autocast is DType.FLOAT16
        if not self.loss.has_value or (is_half and self.loss.reads_half):
            return tape.bits(name)
        return self.operand(name).bits or 0

    def run_backward(self, backward: Backward) -> int | None:
        """Start the gradients of the outputs; one in a wider type than its output is cast.

        The caller of the pass holds its first gradient, a one, to the end: say its block, if any.
        """
        has_one = self.loss.has_value
        one = self._number(backward.heap, "gradient of the loss") if has_one else None
        for name in reversed(self.outputs):
            if name in backward.tape.reached:
                made = self._gradient(backward, name)
                bits = backward.tape.bits(name)
                backward.hand_over(name, backward.gradients.cast(name, made, bits))
        return one

    def _gradient(self, backward: Backward, name: str) -> GradientTensor:
        heap, gradients = backward.heap, backward.gradients
        heap.enter_node(f"loss of {name}")
        dims, bits = known_dims(self.operand(name).shape), self.operand(name).bits or 0
        before: list[GradientTensor] = []
        for _ in range(self.loss.gradients_on_the_way):
            before.append(gradients.make(f"gradient inside the {heap.node}", dims, bits))
            if name in self.weight_sums:
                heap.release(self.weight_sums.pop(name))
        own_bits = self._gradient_bits(backward.tape, name)
        made = gradients.make(f"gradient of {name}", dims, own_bits)
        for tensor in before:
            gradients.drop(tensor)
        if name in self.saved:
            heap.release(self.saved.pop(name))
        return made

    def _number(self, heap: Heap, label: str) -> int:
        label = f"{label}, {heap.node}" if heap.node else label
        return heap.allocate(label, Category.ACTIVATION, self.precision.loss_bits // 8)

"""The gradients of recurrent layers, step by step, as PyTorch's own cells go back.

What a step kept is let go of while the gradients of its gates are gathered, which are then stacked
for the products with the input.
"""

from dataclasses import dataclass, field

from onnxmem.model.graph import Node
from onnxmem.program.program import Category
from onnxmem.runtimes.torch.recurrent_layer import Layer
from onnxmem.runtimes.torch.tape import Tape
from onnxmem.runtimes.torch.tensors import GradientHeap, GradientTensor


def layer_gradients(
    tape: Tape,
    heap: GradientHeap,
    node: Node,
    layer: Layer,
    own: list[int],
) -> list[tuple[str, GradientTensor]]:
    """Go back through the steps of each direction, the last first; ``own`` is what it keeps."""
    back = _Back(tape, heap, node, layer)
    num_blocks = len(layer.runs)
    for direction in reversed(range(layer.num_directions)):
        steps = own[len(own) - num_blocks :]
        del own[len(own) - num_blocks :]
        back.through(direction, steps)
    back.make_biases()
    return back.made


@dataclass(slots=True)
class _Back:
    """The way back through one recurrent node."""

    tape: Tape
    heap: GradientHeap
    node: Node
    layer: Layer
    made: list[tuple[str, GradientTensor]] = field(default_factory=list)

    def through(self, direction: int, steps: list[int]) -> None:
        """Take one direction's steps back, and make its gradients."""
        data, weight, recurrence = self.node.inputs[:3]
        heap, layer = self.heap.heap, self.layer
        self._make_leaf(recurrence, direction)
        share_bytes = (self.tape.size_bytes(recurrence) or 0) // layer.num_directions
        label = f"gradient of {recurrence}, of one step"
        gates: list[int] = []
        runs = reversed(layer.runs)
        for place, (step, count) in enumerate(zip(reversed(steps), runs, strict=True)):
            # The second is added to the first out of place: that is a view; later ones in place
            if place:
                self.heap.brush(label, share_bytes * (2 if place == 1 else 1))
            heap.release(step)
            size_bytes = count * (layer.gates_bytes // layer.num_steps)
            gates.append(
                heap.allocate("gates' gradients", Category.ACTIVATION_GRADIENT, size_bytes)
            )
        stacked = heap.allocate("gates' gradients", Category.ACTIVATION_GRADIENT, layer.gates_bytes)
        for block in gates:
            heap.release(block)
        if data in self.tape.reached:
            self.made.append((data, self._gradient(data)))
        self._make_leaf(weight, direction)
        heap.release(stacked)

    def make_biases(self) -> None:
        """Make the gradients of biases, peepholes and first states."""
        for name in self.node.inputs[3:]:
            if name in self.tape.reached:
                leaves = self.tape.packed.get(name, (name,))
                self.made += [(leaf, self._gradient(leaf)) for leaf in leaves]

    def _make_leaf(self, name: str, direction: int) -> None:
        """Make the gradient of one direction's matrix; of a packed one with the last direction."""
        leaves = self.tape.packed.get(name, (name,))
        if len(leaves) == 1:
            leaves = leaves if direction == self.layer.num_directions - 1 else ()
        else:
            leaves = leaves[direction : direction + 1]
        self.made += [(leaf, self._gradient(leaf)) for leaf in leaves if name in self.tape.reached]

    def _gradient(self, name: str) -> GradientTensor:
        return self.heap.make(f"gradient of {name}", self.tape.dims(name), self.tape.bits(name))

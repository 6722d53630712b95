"""What ``fully_shard`` gathers and reduces while a step runs, unit by unit.

Each repeated block is a unit, and the network around them another, the root, as where
``fully_shard`` is called on each layer and on the whole. Files that name no modules are cut where
few tensors cross.

The rules are those of torch/distributed/fsdp/_fully_shard (PyTorch 2.6 to 2.13):

- ``FSDPParamGroup.unshard`` gathers into one buffer, which ``wait_for_unshard`` copies into the
  weights. In the forward pass the buffer stays until the next unit's is there; in the backward pass
  it is freed, and ``_backward_prefetch`` gathers the next unit's while this one runs.
- ``post_forward`` frees the weights, but the root's (``reshard_after_forward`` of
  _fully_shard.py), which stay to the end of the backward pass.
- ``post_backward`` frees the weights, copies the whole gradients of the unit into a buffer that
  stays until the next unit's, and frees them; of its reduction the rank keeps its shards.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from onnxmem.program.program import Allocation, Category
from onnxmem.runtimes.torch.blocks import repeated_blocks
from onnxmem.runtimes.torch.checkpointing import units
from onnxmem.runtimes.torch.memory import Heap
from onnxmem.runtimes.torch.tape import Tape

ROOT = -1


@dataclass(frozen=True, slots=True)
class Units:
    """The trained parameters that are gathered together, by unit."""

    of_node: Mapping[str, int] = field(default_factory=dict)
    """By the name of a node; what is in no block is the root's."""
    of_parameter: Mapping[str, int] = field(default_factory=dict)
    """By the storage of a parameter."""
    whole_bytes: Mapping[int, int] = field(default_factory=dict)
    """Of a unit's parameters on all ranks together."""
    num_blocks: int = 0

    @classmethod
    def of(cls, tape: Tape, whole_bytes: Iterable[tuple[str, int]]) -> Self:
        """Find the units of trained parameters: their names, and bytes on all ranks together."""
        tensors = tape.graph.tensors
        sizes = {tensors[name].storage_key: size_bytes for name, size_bytes in whole_bytes}
        blocks = [block.nodes for block in repeated_blocks(tape.graph)] or units(tape)
        of_node = {node.name: index for index, nodes in enumerate(blocks) for node in nodes}
        of_parameter: dict[str, int] = {}
        for node in tape.graph.nodes:
            unit = of_node.get(node.name, ROOT)
            for key in sizes.keys() & {tensors[name].storage_key for name in node.reads}:
                # What several units read is the root's.
                of_parameter[key] = unit if of_parameter.get(key, unit) == unit else ROOT
        of_unit: Counter[int] = Counter()
        for key, size_bytes in sizes.items():
            of_unit[of_parameter.setdefault(key, ROOT)] += size_bytes
        return cls(of_node, of_parameter, of_unit, len(blocks))


@dataclass(slots=True)
class Gathering:
    """The whole weights and the buffers of a rank while a step runs; mutable."""

    heap: Heap
    units: Units
    reduce: Callable[[int], None] | None = None
    """In the backward pass: frees a unit's whole gradients, and allocates the rank's shards."""
    unit: int = ROOT
    """The one that runs."""
    root: tuple[int, ...] = ()
    """The root's weights."""
    weights: tuple[int, ...] = ()
    """Those of the block that runs."""
    buffer: tuple[int, ...] = ()
    """What the last all-gather wrote."""
    reduced: tuple[int, ...] = ()
    """What the last reduce-scatter reads."""

    def begin_forward(self) -> None:
        """Gather the root's weights."""
        self.buffer = self._allocate("all-gather", ROOT)
        self.root = self._allocate("gathered weights", ROOT)
        if self.units.whole_bytes:
            self.heap.entering = self.enter

    def end_forward(self) -> None:
        """The network returns; only the root's weights stay for the loss."""
        self.enter("")
        self._release(self.buffer)

    def begin_backward(self, reduce: Callable[[int], None]) -> None:
        """The outputs have their gradients: the last block is gathered."""
        self.reduce = reduce
        last = self.units.num_blocks - 1
        self.buffer = self._allocate("all-gather", last) if last >= 0 else ()

    def end_backward(self) -> None:
        """Reduce the root's gradients."""
        self.enter("")
        self._reduce(ROOT)
        self._release(self.root)
        self._release(self.reduced)
        self.heap.entering = None

    def enter(self, node: str) -> None:
        """A node runs: the weights of its unit are whole, those of the block before are freed."""
        unit = self.units.of_node.get(node, ROOT)
        if unit == self.unit:
            return
        if self.unit != ROOT:
            self._release(self.weights)
            self._reduce(self.unit)
        self.unit = unit
        if unit != ROOT:
            self._gather(unit)

    def _gather(self, unit: int) -> None:
        if self.reduce:
            self.weights = self._allocate("gathered weights", unit)
            self._release(self.buffer)
            self.buffer = self._allocate("all-gather", unit - 1) if unit else ()
        else:
            before = self.buffer
            self.buffer = self._allocate("all-gather", unit)
            self._release(before)
            self.weights = self._allocate("gathered weights", unit)

    def _reduce(self, unit: int) -> None:
        if self.reduce is None:
            return
        self._release(self.reduced)
        self.reduced = self._allocate("reduce-scatter", unit, Category.GRADIENT)
        self.reduce(unit)

    def _allocate(
        self, label: str, unit: int, category: Category = Category.WEIGHT
    ) -> tuple[int, ...]:
        name = "the root" if unit == ROOT else f"block {unit}"
        size_bytes = self.units.whole_bytes.get(unit, 0)
        return self.heap.allocate_all((Allocation(f"{label} of {name}", category, size_bytes),))

    def _release(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            self.heap.release(number)

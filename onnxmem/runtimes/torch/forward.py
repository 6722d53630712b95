"""The forward pass: storages appear as nodes write them, and go with their last reader.

A storage lives while a later node reads it or a view of it, while a node on the way back keeps it,
and to the end of the step where it holds an output of the graph. A network's own variables may hold
a tensor somewhat longer, which the file does not show.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

from onnxmem.model.graph import Node
from onnxmem.program.program import Category
from onnxmem.runtimes.torch.framework import data_reads
from onnxmem.runtimes.torch.memory import Heap
from onnxmem.runtimes.torch.tape import SavedTensors, Tape


@dataclass(slots=True)
class Storages:
    """The live storages of a pass by the name of their first tensor, and what nodes keep."""

    tape: Tape
    heap: Heap
    reads_left: Counter[str]
    """How often each tensor is still to be read; an output of the graph once more."""
    blocks: dict[str, int] = field(default_factory=dict)
    saved_blocks: dict[str, list[int]] = field(default_factory=dict)
    """Blocks that one node keeps for itself, by node: masks, statistics, copies of operands."""
    cached: tuple[str, ...] = ()
    """Copies of parameters that autocast holds until it ends, behind the loss."""
    callers: dict[str, str] = field(default_factory=dict)
    """Autocast's casts by the nodes that they are made for."""
    arguments: dict[str, list[str]] = field(default_factory=dict)
    """What was cast for a node that is still to run: its caller holds it."""

    @classmethod
    def before(
        cls, tape: Tape, heap: Heap, nodes: Iterable[Node], outputs: Iterable[str] = ()
    ) -> "Storages":
        """The storages before some nodes run; ``outputs`` are held after their last reader.

        So are the copies that autocast caches, where the nodes are a whole network with outputs.
        """
        nodes, retained = tuple(nodes), tuple(outputs)
        names = {node.name for node in nodes} if tape.callers else set()
        callers = {
            cast: caller
            for cast, caller in tape.callers.items()
            if cast in names and caller in names
        }
        cached = tuple(sorted(tape.cached)) if retained else ()
        reads = Counter(chain.from_iterable(map(data_reads, nodes)))
        reads.update((*retained, *cached))
        return cls(tape, heap, reads, cached=cached, callers=callers)

    def read_by(self, node: Node) -> tuple[str, ...]:
        """Name the tensors that are read when a node is done, each as often as it is."""
        reads = data_reads(node)
        if node.name in self.callers:
            self.arguments.setdefault(self.callers[node.name], []).extend(reads)
            return ()
        return (*reads, *self.arguments.pop(node.name, ()))

    def leave_autocast(self) -> None:
        """Let go of the copies that autocast holds."""
        for name in self.cached:
            self.reads_left[name] -= 1
            if not self.reads_left[name]:
                self.release(name)

    def write(self, name: str) -> None:
        """Allocate what a node writes, with one reference; a view takes one more of its storage."""
        storage = self.tape.storages.get(name)
        if storage is not None:
            self.retain(storage)

    def release(self, name: str) -> None:
        """Drop the reference that writing a tensor took."""
        storage = self.tape.storages.get(name)
        if storage is not None:
            self.drop(storage)

    def save(self, node: Node, saved: SavedTensors) -> None:
        """Take what a node's backward formula reads."""
        for storage in saved.storages:
            self.retain(storage)
        if saved.copies or saved.extra_bytes or saved.inner:
            extra = ((f"kept by {node.name}", saved.extra_bytes),) if saved.extra_bytes else ()
            items = (*saved.copies, *extra, *saved.inner)
            self.saved_blocks[node.name] = [
                self.heap.allocate(label, Category.ACTIVATION, size or 0) for label, size in items
            ]

    def release_saved(self, node: Node) -> None:
        """Release what a node saved, when its backward formula is done."""
        for storage in self.tape.saved[node.name].storages:
            self.drop(storage)
        for block in self.saved_blocks.pop(node.name, ()):
            self.heap.release(block)

    def retain(self, storage: str) -> None:
        """Take one reference to a storage, which is allocated if it is not there."""
        block = self.blocks.get(storage)
        if block is not None:
            self.heap.retain(block)
        else:
            size_bytes = self.tape.size_bytes(storage) or 0
            self.blocks[storage] = self.heap.allocate(storage, Category.ACTIVATION, size_bytes)

    def drop(self, storage: str) -> None:
        """Release one reference to a storage."""
        block = self.blocks[storage]
        if self.heap.is_unique(block):
            del self.blocks[storage]
        self.heap.release(block)


def run_forward(storages: Storages, nodes: Iterable[Node], *, saves: bool = True) -> None:
    """Run nodes in order; without ``saves`` nothing is saved for a backward pass."""
    heap, reads_left, saved = storages.heap, storages.reads_left, storages.tape.saved
    for node in nodes:
        heap.enter_node(node.name)
        # What the framework has too: not a mask or a statistic that it keeps aside.
        first = node.outputs[0]
        written = [name for name in node.writes if name == first or reads_left[name]]
        for name in written:
            storages.write(name)
        if node.name in saved:
            _work(storages, node, saves=saves)
        for name in written:
            if not reads_left[name]:
                storages.release(name)
        for name in storages.read_by(node) if storages.callers else data_reads(node):
            reads_left[name] -= 1
            if not reads_left[name]:
                storages.release(name)


def _work(storages: Storages, node: Node, *, saves: bool) -> None:
    """Make the copies of operands, and what the backward formula keeps."""
    saved = storages.tape.saved[node.name]
    if saves:
        storages.save(node, saved)
    passing = saved.transient_copies if saves else (*saved.copies, *saved.transient_copies)
    if passing:
        heap = storages.heap
        for block in [
            heap.allocate(label, Category.TEMPORARY, size or 0) for label, size in passing
        ]:
            heap.release(block)

"""The forward pass: nodes allocate storages, and the last reference frees each.

A storage lives while a later node reads it or a view of it, while a node has it saved for backward,
and to the end of the step where it holds an output of the graph. Variables of the network keep some
tensors longer: see ``variables``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from onnxmem.model.graph import Node
from onnxmem.model.module_paths import paths_of
from onnxmem.program.program import Category
from onnxmem.runtimes.torch.framework import data_reads
from onnxmem.runtimes.torch.memory import Heap
from onnxmem.runtimes.torch.strides import CONVOLUTIONS
from onnxmem.runtimes.torch.tape import SavedTensors, Tape
from onnxmem.runtimes.torch.variables import all_held, num_shared, variables


@dataclass(slots=True)
class Storages:
    """The live storages of a pass by the name of their first tensor, and what nodes save."""

    tape: Tape
    heap: Heap
    reads_left: Counter[str]
    """How many reads of each tensor are still to come; an output of the graph has one more."""
    blocks: dict[str, int] = field(default_factory=dict)
    saved_blocks: dict[str, list[int]] = field(default_factory=dict)
    """Blocks that belong to one node's saved tensors, by node: masks, statistics, copies."""
    cached: tuple[str, ...] = ()
    """Copies of parameters in autocast's cache, which is cleared when it ends, after the loss."""
    callers: dict[str, str] = field(default_factory=dict)
    """Nodes that run inside another one's call: see ``Tape.callers``."""
    returns: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Under autocast, reads of modules' arguments (node, tensor) by the last node of the module."""
    arguments: dict[str, list[str]] = field(default_factory=dict)
    """Reads that have not ended, by the node at whose end they do."""
    assigned: dict[str, int] = field(default_factory=dict)
    """Blocks of the last step's weights that hooks assigned, by the tensors that replace them."""
    variables: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Tensors that variables of a module's ``forward`` hold, by the last node of that module."""

    @classmethod
    def before(
        cls,
        tape: Tape,
        heap: Heap,
        nodes: Iterable[Node],
        outputs: Iterable[str] = (),
        *,
        unfinished: Iterable[Node] = (),
        holds_all: bool = False,
    ) -> "Storages":
        """The storages before some nodes run; ``outputs`` stay allocated after their last reader.

        So do the copies in autocast's cache, where the nodes are a whole network with outputs.
        ``unfinished`` nodes read, and return nothing. ``holds_all``: variables hold all that
        they may.
        """
        nodes, retained = tuple(nodes), tuple(outputs)
        names = {node.name for node in nodes} if tape.callers else set()
        callers = {
            cast: caller
            for cast, caller in tape.callers.items()
            if cast in names and caller in names
        }
        cached = tuple(sorted(tape.cached)) if retained else ()
        reads = Counter(chain.from_iterable(map(data_reads, (*nodes, *unfinished))))
        held = all_held(nodes, tape) if holds_all else variables(nodes, callers, tape)
        reads.update((*retained, *cached, *chain.from_iterable(held.values())))
        has_autocast = tape.precision.autocast is not None
        returns = _returns(nodes, callers) if callers and has_autocast else {}
        return cls(
            *(tape, heap, reads),
            cached=cached,
            callers=callers,
            returns=returns,
            variables=held,
        )

    def read_by(self, node: Node) -> tuple[str, ...]:
        """Name the tensors whose reads end with a node, once for each read."""
        # A cast that autocast inserts runs inside the operator's wrapper (autocast_mode.cpp), whose
        # arguments stay referenced until it returns: reads by the cast end with its caller. Those
        # of a module stay referenced by the call of it. Without casts, backward formulas save most
        # of them anyway.
        caller = self.callers.get(node.name, node.name)
        ended: list[str] = []
        for name in data_reads(node):
            last = self.returns.get((caller, name), caller)
            if last == node.name:
                ended.append(name)
            else:
                self.arguments.setdefault(last, []).append(name)
        return (*ended, *self.arguments.pop(node.name, ()))

    def end_reads(self, node: Node) -> None:
        """End the reads of a node; the last one of a tensor drops the reference of its writer."""
        ended = self.read_by(node) if self.callers else data_reads(node)
        for name in (*ended, *self.variables.get(node.name, ())):
            self.reads_left[name] -= 1
            if not self.reads_left[name]:
                self.release(name)

    def leave_autocast(self) -> None:
        """Clear autocast's cache: copies of parameters that no formula saved are freed."""
        for name in self.cached:
            self.reads_left[name] -= 1
            if not self.reads_left[name]:
                self.release(name)

    def write(self, name: str) -> None:
        """Allocate what a node writes, with one reference; a view adds one to its storage."""
        storage = self.tape.storages.get(name)
        if storage is not None:
            self.retain(storage)
        if name in self.assigned:
            self.heap.release(self.assigned.pop(name))

    def release(self, name: str) -> None:
        """Drop the reference that writing a tensor added."""
        storage = self.tape.storages.get(name)
        if storage is not None:
            self.drop(storage)

    def save(self, node: Node, saved: SavedTensors) -> None:
        """Add references to the storages that a node saves, and allocate what else it saves."""
        for storage in saved.storages:
            self.retain(storage)
        if saved.copies or saved.extra_bytes or saved.inner:
            extra = ((f"saved by {node.name}", saved.extra_bytes),) if saved.extra_bytes else ()
            items = (*saved.copies, *extra, *saved.inner)
            self.saved_blocks[node.name] = [
                self.heap.allocate(label, Category.ACTIVATION, size or 0) for label, size in items
            ]

    def release_saved(self, node: Node) -> None:
        """Release what a node saved, after its backward formula."""
        for storage in self.tape.saved[node.name].storages:
            self.drop(storage)
        for block in self.saved_blocks.pop(node.name, ()):
            self.heap.release(block)

    def retain(self, storage: str) -> None:
        """Add one reference to a storage, which is allocated if it is not there."""
        block = self.blocks.get(storage)
        if block is not None:
            self.heap.retain(block)
        else:
            size_bytes = self.tape.size_bytes(storage) or 0
            self.blocks[storage] = self.heap.allocate(storage, Category.ACTIVATION, size_bytes)

    def drop(self, storage: str) -> None:
        """Drop one reference to a storage; the last frees it."""
        block = self.blocks[storage]
        if self.heap.is_unique(block):
            del self.blocks[storage]
        self.heap.release(block)


def _returns(nodes: Sequence[Node], callers: Mapping[str, str]) -> Mapping[tuple[str, str], str]:
    """The last node of the module that each read (node, tensor) is of an argument of.

    Reads inside the module that the tensor's producer is in are left out.
    """
    # A call of a module is a run of nodes with its path as a prefix of theirs. `last` has the last
    # node of each such run that the current node is in, by the length of the prefix.
    path_of = dict(zip((node.name for node in nodes), paths_of(nodes), strict=True))
    paths = [path_of[callers.get(node.name, node.name)] for node in nodes]
    written = {name: path for node, path in zip(nodes, paths, strict=True) for name in node.writes}
    found: dict[tuple[str, str], str] = {}
    last: list[str] = []
    after: tuple[str, ...] = ()
    for node, path in reversed(tuple(zip(nodes, paths, strict=True))):
        del last[num_shared(path, after) :]
        caller = callers.get(node.name, node.name)
        last += [caller] * (len(path) - len(last))
        for name in data_reads(node):
            depth = num_shared(path, written.get(name, path))
            if depth < len(path):
                found[caller, name] = last[depth]
        after = path
    return found


def run_forward(storages: Storages, nodes: Iterable[Node], *, saves: bool = True) -> None:
    """Run nodes in order; without ``saves`` nothing is saved for a backward pass."""
    # Order within a node: outputs are allocated while all inputs are alive, then what it saves;
    # inputs that nothing else refers to are freed last. Each written tensor has one reference
    # until its last read, and each saved one another until its backward formula.
    heap, reads_left, saved = storages.heap, storages.reads_left, storages.tape.saved
    for node in nodes:
        heap.enter_node(node.name)
        # A second output that nothing reads (a mask, a statistic) is not a tensor of the framework,
        # whose function returns one; its bytes are in `extra_bytes` where they are saved.
        first = node.outputs[0]
        written = [name for name in node.writes if name == first or reads_left[name]]
        for name in written:
            storages.write(name)
        if node.name in saved:
            _save(storages, node, saves=saves)
        if node.op_type in CONVOLUTIONS:
            run_convolution(storages, node)
        for name in written:
            if not reads_left[name]:
                storages.release(name)
        storages.end_reads(node)


def run_convolution(storages: Storages, node: Node) -> None:
    """Note that cuDNN runs a convolution, in either pass."""
    operand_bytes = storages.tape.convolution_bytes(node)
    if operand_bytes:
        storages.heap.run_convolution(node.name, operand_bytes)


def _save(storages: Storages, node: Node, *, saves: bool) -> None:
    """Save what the backward formula reads, and allocate and free the transient copies."""
    saved = storages.tape.saved[node.name]
    if saves:
        storages.save(node, saved)
    # Without grad mode, copies that would be saved are made all the same, and freed.
    transient = saved.transient_copies if saves else (*saved.copies, *saved.transient_copies)
    if transient:
        heap = storages.heap
        for block in [
            heap.allocate(label, Category.TEMPORARY, size or 0) for label, size in transient
        ]:
            heap.release(block)

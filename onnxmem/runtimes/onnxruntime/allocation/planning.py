"""Emulates the allocation plan that onnxruntime makes at load.

Source: ``core/framework/allocation_planner.cc`` of onnxruntime 1.31. For each output of each node,
in the order of execution, the first rule that applies decides (``ComputeSingleStreamReusePlan``):

1. A graph output gets its own buffer.
2. An alias shares its input's buffer (``FindReusableInput``).
3. An output overwrites an input if the kernel allows it, the input has no other consumer, and both
   have the same size (``SameSize``).
4. An output without consumers gets its own buffer.
5. An output reuses a dead buffer of the same size, the most recently freed first
   (``FindReusableTensor``; not with ``enable_mem_reuse=False``).
6. Otherwise it gets its own buffer.

Same size means equal bits per element and, dim by dim, the same number or the same symbol as known
*at load*; never for strings. A buffer is freed once, after the last consumer of all tensors that
share it, so it also occupies memory between their uses. A buffer without consumers lives to the end
of the run (``GenerateDeallocationPlan``).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from onnxmem.model.graph import DType, Graph, Node, Role
from onnxmem.runtimes.ideal.schedules import reverse_dfs
from onnxmem.runtimes.onnxruntime.providers import CPU, ExecutionProvider

LoadShape = tuple[int | str | None, ...]
"""Dims as known at load: a number, a symbol, or ``None`` for unknown."""
LoadShapes = Mapping[str, LoadShape | None]
"""By tensor name; absent or ``None``: unknown rank."""


@dataclass(frozen=True, slots=True)
class Step:
    """One node of a plan."""

    node: Node
    allocates: tuple[str, ...]
    """Outputs that get a new buffer, by index."""
    releases: tuple[str, ...]
    """Buffers released after the node, by the name of their first tensor."""
    bodies: tuple["Plan", ...]
    """Plans of its subgraphs, each with its own pattern and frames."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The allocations and releases of one graph, node by node."""

    graph: Graph
    steps: tuple[Step, ...]
    outputs: frozenset[str]
    """Buffers of the caller: outside the memory pattern, and never released by the run."""
    stored_outputs: tuple[str, ...]
    """Outputs that are copies of initializers, made at the start of a run."""
    sized_outputs: frozenset[str]
    """Graph outputs whose dims are all numbers at load."""
    buffers: Mapping[str, str]
    """Tensor -> its buffer, by the name of the buffer's first tensor."""
    sharing: Mapping[str, tuple[str, ...]]
    """Buffer -> its tensors in the order of writing, if there are several."""


@dataclass(frozen=True, slots=True)
class Planning:
    """The settings of a session that affect its plan."""

    shapes: LoadShapes
    """Of all tensors of the model; those of subgraphs by their scoped names."""
    provider: ExecutionProvider = CPU
    reuses_memory: bool = True
    """``enable_mem_reuse``."""
    host: frozenset[str] = frozenset()
    """Values in the host's memory, of a session on CUDA: they take nothing of its arena."""


_Size = tuple[int, LoadShape, bool]
"""Bits of an element, the shape, and whether it is on the host: a buffer is reused where it is."""


def plan(graph: Graph, planning: Planning) -> Plan:
    """Plan a graph whose nodes are in onnxruntime's order of execution."""
    return _Planner(graph, planning).planned()


def in_running_order(graph: Graph) -> tuple[Node, ...]:
    """The nodes of a graph in onnxruntime's order of execution; the current order is by index.

    A depth-first walk from the leaves to the producers, which emits a node after all its producers.
    Leaves start from the last index, and each node visits the producer with the highest index
    first. Source: ``core/graph/graph_viewer.cc`` (the constructor) and ``Graph::ReverseDFSFrom`` of
    ``core/graph/graph.cc``.
    """
    nodes = [node for node in graph.nodes if runs(node)]
    producer = {name: index for index, node in enumerate(nodes) for name in node.writes}
    producers = [
        sorted({producer[name] for name in uses(node) if name in producer}) for node in nodes
    ]
    read = {index for indices in producers for index in indices}
    leaves = [index for index in range(len(nodes)) if index not in read]
    return tuple(nodes[index] for index in reverse_dfs(leaves, producers))


def runs(node: Node) -> bool:
    """Whether a session runs a node: Constants become initializers at load."""
    return node.onnx_op != "Constant"


@dataclass(slots=True)
class _Planner:
    """Plans one graph; fields are named as in ``allocation_planner.cc``."""

    graph: Graph
    planning: Planning
    outer: tuple[str, ...] = ()
    """Values of enclosing graphs that a subgraph reads."""
    parent: Node | None = None
    """The node of a subgraph."""
    use_count: Counter[str] = field(default_factory=Counter)
    """By buffer: the uses that are not planned yet; the buffer is dead at 0."""
    buffer: dict[str, str] = field(default_factory=dict)
    """Tensor -> its buffer, by the name of the buffer's first tensor."""
    free_list: dict[_Size, list[str]] = field(default_factory=dict)
    """Dead buffers by the size of their first tensors, the most recent last."""

    def planned(self) -> Plan:
        nodes = tuple(filter(runs, self.graph.nodes))
        self._count_uses(nodes)
        own = [self._plan_outputs(node) for node in nodes]
        allocated = {name for allocates in own for name in allocates}
        # The caller releases the outputs.
        releases = self._releases(nodes, allocated.difference(self.graph.outputs))
        steps = tuple(
            Step(node, allocates, tuple(releases.get(index, ())), self._bodies(node))
            for index, (node, allocates) in enumerate(zip(nodes, own, strict=True))
        )
        # Not in any step: ``IExecutionFrame::Init`` makes these copies before the first node.
        stored = self._stored_outputs(nodes)
        shapes = self.planning.shapes
        return Plan(
            graph=self.graph,
            steps=steps,
            outputs=frozenset(self.graph.outputs) & allocated.union(stored),
            stored_outputs=stored,
            sized_outputs=frozenset(n for n in self.graph.outputs if _is_sized(shapes.get(n))),
            buffers=self.buffer,
            sharing=self._sharing(),
        )

    def _sharing(self) -> Mapping[str, tuple[str, ...]]:
        tensors: dict[str, list[str]] = {}
        for name, buffer in self.buffer.items():
            if name != buffer:
                tensors.setdefault(buffer, [buffer]).append(name)
        return {buffer: tuple(names) for buffer, names in tensors.items()}

    def _stored_outputs(self, nodes: Iterable[Node]) -> tuple[str, ...]:
        """Outputs that are initializers of this graph, and not outputs of a node or outer
        values.
        """
        elsewhere = {*self.outer, *(name for node in nodes for name in node.writes)}
        weights = (n for n in self.graph.outputs if self.graph.tensors[n].role is Role.WEIGHT)
        elsewhere |= self.planning.host
        return tuple(name for name in dict.fromkeys(weights) if name not in elsewhere)

    def _bodies(self, node: Node) -> tuple[Plan, ...]:
        return tuple(
            # A subgraph has its own SessionState and plan: neither plan reuses a dead buffer of the
            # other.
            _Planner(body, self.planning, node.outer_reads, node).planned()
            for _, body in node.subgraphs
        )

    def _count_uses(self, nodes: Iterable[Node]) -> None:
        """Count the uses of each tensor (``ComputeReuseCount``).

        A write counts as a use, so an output without consumers has a count of 1. Values that
        outlive the graph have an extra use, so that their count never reaches 0 and no output
        reuses their buffer: graph inputs and outputs, initializers and outer values.
        """
        written = {name for node in nodes for name in node.writes}
        for node in nodes:
            self.use_count.update(uses(node))
            self.use_count.update(node.writes)
        outliving = {name for name in self.use_count if name not in written}
        outliving.update(self.graph.inputs, self.outer)
        self.use_count.update(outliving)
        self.use_count.update(self.graph.outputs)
        self.buffer.update((name, name) for name in self.use_count)

    def _plan_outputs(self, node: Node) -> tuple[str, ...]:
        """Assign a buffer to each output of a node, then count down the uses of its tensors."""
        allocates = []
        for index, name in enumerate(node.outputs):
            if not name:
                continue
            shared = self._shared(node, index, name)
            if shared is not None:
                self._reuse(shared, name)
            elif name not in self.planning.host:
                allocates.append(name)
        # Only now may the inputs die: an output never reuses the buffer of an input of its own node
        # by rule 5.
        for name in (*uses(node), *node.writes):
            buffer = self.buffer[name]
            self.use_count[buffer] -= 1
            size = self._size(buffer) if not self.use_count[buffer] else None
            if size is not None:
                self.free_list.setdefault(size, []).append(buffer)
        return tuple(allocates)

    def _shared(self, node: Node, index: int, name: str) -> str | None:
        """The tensor whose buffer an output shares; ``None``: it gets its own."""
        if name in self.graph.outputs:
            return self._passed_through(node)
        for source, target in self.planning.provider.aliases(node):
            if target == index and source < len(node.inputs) and node.inputs[source]:
                if self._is_copied(node):
                    break
                return node.inputs[source]
        for source, target in self.planning.provider.may_overwrite(node):
            if target == index and source < len(node.inputs) and node.inputs[source]:
                dying = node.inputs[source]
                # One use left: this node is the last consumer of the buffer.
                if self.use_count[self.buffer[dying]] == 1 and self._same_size(dying, name):
                    return dying
        # Nobody reads the output: its own count is the only one, and no dead buffer is spent on it.
        return None if self.use_count[name] == 1 else self._dead(name)

    def _passed_through(self, node: Node) -> str | None:
        """A Loop's body does not copy a value that it returns unchanged.

        ``ComputeSingleStreamReusePlan``: an Identity of a loop-carried or outer value shares it.
        """
        if self.parent is None or self.parent.op_type != "Loop" or node.op_type != "Identity":
            return None
        if self._is_copied(node):
            return None
        source = node.inputs[0]
        return source if source in {*self.graph.inputs[1:], *self.outer} else None

    def _is_copied(self, node: Node) -> bool:
        """Whether an Identity stands for a copy between the host and the device."""
        host = self.planning.host
        return node.op_type == "Identity" and (node.inputs[0] in host) != (node.outputs[0] in host)

    def _dead(self, name: str) -> str | None:
        """The most recently freed buffer whose first tensor has the same size
        (``FindReusableTensor``).
        """
        if not self.planning.reuses_memory or not self.planning.shapes.get(name):
            return None
        # The runtime looks through one list from the most recent on. That two tensors have the same
        # size is an equivalence, so the last one of a list for each size is the one that it finds.
        size = self._size(name)
        dead = self.free_list.get(size) if size is not None else None
        return dead.pop() if dead else None

    def _reuse(self, shared: str, name: str) -> None:
        # The uses of both tensors add up, so the buffer lives until the last of them.
        buffer = self.buffer[shared]
        self.buffer[name] = buffer
        self.use_count[buffer] += self.use_count[name]

    def _same_size(self, one: str, other: str) -> bool:
        """Whether two tensors certainly have the same size (``SameSize``)."""
        size = self._size(one)
        return size is not None and size == self._size(other)

    def _size(self, name: str) -> _Size | None:
        """The size of a tensor; ``None``: unknown, so it is the same as no other."""
        # A reuse that might not fit would corrupt memory.
        bits = element_bits(self.graph.tensors[name].dtype)
        shape = self.planning.shapes.get(name)
        if bits is None or shape is None or None in shape:
            return None
        return bits, shape, name in self.planning.host

    def _releases(self, nodes: tuple[Node, ...], freed: set[str]) -> Mapping[int, list[str]]:
        """The buffers to release, by the index of their last consumer
        (``GenerateDeallocationPlan``).
        """
        last: dict[str, int] = {}
        for index, node in enumerate(nodes):
            for name in uses(node):
                # The last reader of any tensor in a buffer releases it.
                last[self.buffer[name]] = index
        releases: dict[int, list[str]] = {}
        for buffer in self.buffer:
            if buffer in last and buffer in freed:
                releases.setdefault(last[buffer], []).append(buffer)
        return releases


def _is_sized(shape: LoadShape | None) -> bool:
    return shape is not None and all(isinstance(dim, int) for dim in shape)


def uses(node: Node) -> tuple[str, ...]:
    """Explicit inputs, repeated ones included, and each implicit input once."""
    return (*(name for name in node.inputs if name), *dict.fromkeys(node.outer_reads))


def element_bits(dtype: DType | None) -> int | None:
    """Bits of one element; ``None``: a string, or not a tensor."""
    return None if dtype is None else dtype.bits

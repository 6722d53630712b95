"""The graph that passes change: nodes by index, producers and readers of values, known types.

A node's index is its position in the file, or the next free number if a pass adds the node. No
index is used twice. The order of execution follows from the indices, so a pass that adds nodes in a
different sequence than onnxruntime would change that order.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx

from onnxmem.model.constants import Array, constant_value
from onnxmem.runtimes.onnxruntime.cpu import AVX512, Cpu
from onnxmem.runtimes.onnxruntime.session_options import Provider

# --------------------------------------------------------------------------------------------------
# Elements of small integer tensors, as far as they follow from shapes.
#
# onnxruntime/core/graph/data_propagation/ and onnx's data propagation.


@dataclass(frozen=True, slots=True)
class ShapeValue:
    """Elements of a small integer tensor that follow from shapes."""

    elements: tuple[int | None, ...]
    """Row-major; ``None`` where an element is unknown."""
    is_scalar: bool = False
    """Rank 0 rather than rank 1."""


# --------------------------------------------------------------------------------------------------
# What onnxruntime knows about a value at load: its element type and the dims that it could infer.
#
# A dim is a number, a symbol, or ``None`` if neither is known. onnxruntime keeps what it knows and
# fills gaps: a symbol that a file stores for an inner value stays wherever no inference finds a
# number, even if a free-dimension override gives the same symbol of an input one.
#
# onnxruntime/core/graph/graph.cc, ``MergeShapeInfo``, and onnx's ``mergeInShapeInfo``.


Dim = int | str | None
Dims = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor's type."""

    elem_type: int
    """``TensorProto.DataType``; 0 if unknown."""
    dims: Dims | None
    """``None`` if not even the rank is known."""


ValueType = TensorType | onnx.TypeProto
"""A dense tensor's type, or that of a sequence, a map or an optional as the file writes it."""


def read_type(proto: onnx.TypeProto) -> ValueType | None:
    """The type in a TypeProto; ``None`` if it is empty."""
    kind = proto.WhichOneof("value")
    if kind is None:
        return None
    if kind != "tensor_type":
        return proto
    dense = proto.tensor_type
    if not dense.HasField("shape"):
        return TensorType(dense.elem_type, None)
    return TensorType(dense.elem_type, tuple(_read_dim(dim) for dim in dense.shape.dim))


def _read_dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    """Read one dim; a negative number is unknown (``utils::HasDimValue``)."""
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return dim.dim_param or None


def write_type(known: ValueType) -> onnx.TypeProto:
    """Write a type as a TypeProto."""
    if isinstance(known, onnx.TypeProto):
        return known
    proto = onnx.TypeProto()
    proto.tensor_type.elem_type = known.elem_type
    if known.dims is None:
        return proto
    shape = proto.tensor_type.shape
    # A shape without dims is a scalar's; no shape at all is one of unknown rank.
    shape.SetInParent()
    for dim in known.dims:
        if dim is None:
            shape.dim.add()
        elif isinstance(dim, str):
            shape.dim.add(dim_param=dim)
        else:
            shape.dim.add(dim_value=dim)
    return proto


def merged_dims(inferred: Dims, known: Dims) -> Dims | None:
    """Merge inferred dims into the known ones; ``None`` if two numbers or the ranks differ.

    A number beats a symbol, and a known symbol beats an inferred one (onnx's
    ``mergeInDimensionInfo``).
    """
    if len(inferred) != len(known):
        return None
    dims: list[Dim] = []
    for new, old in zip(inferred, known, strict=True):
        if isinstance(new, int) and isinstance(old, int) and new != old:
            return None
        if isinstance(new, int):
            dims.append(new)
        else:
            dims.append(new if old is None else old)
    return tuple(dims)


def common_dims(inferred: Dims, known: Dims) -> Dims | None:
    """The dims in which two shapes agree (onnx's ``UnionShapeInfo``); ``None`` if ranks differ."""
    if len(inferred) != len(known):
        return None
    return tuple(
        old if new == old and new is not None else None
        for new, old in zip(inferred, known, strict=True)
    )


def merged_type(inferred: ValueType | None, known: ValueType | None) -> ValueType | None:
    """The known type of a value after one more inference.

    Source: onnxruntime/core/graph/graph.cc, ``Graph::InferAndVerifyTypeMatch`` and
    ``MergeShapeInfo``: contradicting dims are only a warning, and the dims that agree stay.
    """
    if inferred is None or known is None:
        return _as_inferred(inferred) if known is None else known
    if not isinstance(inferred, TensorType) or not isinstance(known, TensorType):
        return known
    elem_type = inferred.elem_type or known.elem_type
    if inferred.dims is None or known.dims is None:
        return TensorType(elem_type, known.dims if inferred.dims is None else inferred.dims)
    dims = merged_dims(inferred.dims, known.dims)
    if dims is None:
        dims = common_dims(inferred.dims, known.dims)
    return TensorType(elem_type, dims)


def _as_inferred(inferred: ValueType | None) -> ValueType | None:
    """Drop the shapes inside sequences, maps and optionals, as onnxruntime does."""
    if not isinstance(inferred, onnx.TypeProto):
        return inferred
    bare = onnx.TypeProto()
    bare.CopyFrom(inferred)
    # Sequences of maps of optionals: downwards to the tensor inside, which keeps its element type.
    inner = bare
    while (kind := inner.WhichOneof("value")) in _NESTED:
        container = getattr(inner, kind)
        inner = container.value_type if kind == "map_type" else container.elem_type
    if kind == "tensor_type":
        inner.tensor_type.ClearField("shape")
    return bare


_NESTED = frozenset({"sequence_type", "optional_type", "map_type"})


Attributes = dict[str, onnx.AttributeProto]


@dataclass(slots=True, eq=False)
class Node:
    """One node; only its graph changes its lists, since the graph indexes producers and readers."""

    index: int
    op_type: str
    domain: str
    since_version: int
    """Version of the operator in the model's operator set; 0 if ONNX has no such operator."""
    name: str
    inputs: list[str]
    """``""`` is an omitted optional input."""
    outputs: list[str]
    attributes: Attributes = field(default_factory=dict)
    bodies: dict[str, "Graph"] = field(default_factory=dict)
    """Subgraphs by the name of their attribute."""
    implicit: list[str] = field(default_factory=list)
    """Outer values that the subgraphs read."""
    is_unassigned: bool = False
    """It replaced a node without a kernel: no pass fuses it before the casts are inserted."""
    inferred_from: object = None
    """The inputs of its last shape inference, which is not repeated while they stay the same."""

    def input_at(self, index: int) -> str:
        """The name of an input; ``""`` if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def output_at(self, index: int) -> str:
        """The name of an output; ``""`` if it is omitted."""
        return self.outputs[index] if index < len(self.outputs) else ""


@dataclass(frozen=True, slots=True)
class Edge:
    """One read of an output by a node of the same graph."""

    reader: Node
    output: int
    """Index among the producer's outputs."""
    input: int
    """Index among the reader's inputs; implicit inputs follow the explicit ones."""


@dataclass(slots=True, eq=False)
class Graph:
    """A graph or a subgraph that passes change."""

    name: str
    opsets: Mapping[str, int]
    ir_version: int
    outer: "Graph | None" = None
    cpu: Cpu = AVX512
    """The CPU of the session."""
    provider: Provider = "cpu"
    """The provider of the session that comes first; nodes without a kernel of CUDA run on the
    CPU."""
    host: set[str] = field(default_factory=set)
    """Values in the host's memory, of a session on CUDA whose nodes are placed."""
    nodes: dict[int, Node] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    """As the file lists them; before IR version 4 they include the initializers."""
    outputs: list[str] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)
    types: dict[str, ValueType] = field(default_factory=dict)
    shape_values: dict[str, ShapeValue] = field(default_factory=dict)
    """Elements that data propagation found, by value name."""
    contents: dict[object, int] = field(default_factory=dict)
    """A number for each distinct content of a constant (``constants.mark_folded``).

    Only the outermost graph's is used, so that constants of different subgraphs can be equal.
    """
    producers: dict[str, Node] = field(default_factory=dict)
    order: list[Node] | None = None
    """The order of execution if no node has changed since it was found (``execution_order``)."""
    _readers: dict[str, dict[int, Node]] = field(default_factory=dict)
    _arrays: dict[str, Array | None] = field(default_factory=dict)
    _next_index: int = 0
    _names: set[str] = field(default_factory=set)
    _node_names: set[str] = field(default_factory=set)
    _token: int = 0

    # -- nodes ---------------------------------------------------------------------------------

    def insert(self, node: Node) -> Node:
        """Add a node with the next index."""
        return self.insert_at(node, self._next_index)

    def insert_at(self, node: Node, index: int) -> Node:
        """Add a node with an index that no node has had."""
        self.order = None
        node.index = index
        self._next_index = index + 1
        self.nodes[node.index] = node
        for name in (*node.inputs, *node.implicit):
            self._reads(name, node)
        for name in node.outputs:
            if name:
                self.producers[name] = node
        return node

    def remove(self, node: Node) -> None:
        """Remove a node; its outputs have no producer afterwards."""
        self.order = None
        del self.nodes[node.index]
        for name in {*node.inputs, *node.implicit}:
            self._readers.get(name, {}).pop(node.index, None)
        for name in node.outputs:
            if self.producers.get(name) is node:
                del self.producers[name]

    def set_input(self, node: Node, input_index: int, name: str) -> None:
        """Replace one input of a node; inputs in between that do not exist yet are omitted."""
        node.inputs.extend([""] * (input_index + 1 - len(node.inputs)))
        self.set_inputs(node, [*node.inputs[:input_index], name, *node.inputs[input_index + 1 :]])

    def set_inputs(self, node: Node, names: Iterable[str]) -> None:
        """Replace all explicit inputs of a node."""
        self.order = None
        for name in set(node.inputs) - set(node.implicit):
            self._readers.get(name, {}).pop(node.index, None)
        node.inputs = list(names)
        for name in node.inputs:
            self._reads(name, node)

    def set_outputs(self, node: Node, names: Iterable[str]) -> None:
        """Replace all outputs of a node."""
        self.order = None
        for name in node.outputs:
            if self.producers.get(name) is node:
                del self.producers[name]
        node.outputs = list(names)
        for name in node.outputs:
            if name:
                self.producers[name] = node

    def set_implicit(self, node: Node, names: Iterable[str]) -> None:
        """Replace the outer values that a node's subgraphs read."""
        self.order = None
        for name in set(node.implicit) - set(node.inputs):
            self._readers.get(name, {}).pop(node.index, None)
        node.implicit = list(names)
        for name in node.implicit:
            self._reads(name, node)

    def _reads(self, name: str, node: Node) -> None:
        if name:
            self._readers.setdefault(name, {})[node.index] = node

    # -- edges ---------------------------------------------------------------------------------

    def readers(self, name: str) -> list[Node]:
        """The nodes of this graph that read a value, themselves or in a subgraph, by index."""
        return [node for _, node in sorted(self._readers.get(name, {}).items())]

    def edges_of(self, node: Node) -> list[Edge]:
        """All reads of a node's outputs in this graph, sorted by reader, output and input.

        onnxruntime keeps edges in this order (``Node::EdgeSet``). Passes that take the first reader
        or duplicate a node per edge depend on it.
        """
        edges = [
            Edge(reader, output_index, input_index)
            for output_index, name in enumerate(node.outputs)
            if name
            for reader in self.readers(name)
            for input_index, read in enumerate((*reader.inputs, *reader.implicit))
            if read == name
        ]
        return sorted(edges, key=lambda edge: (edge.reader.index, edge.output, edge.input))

    def num_edges(self, node: Node) -> int:
        """How many reads of a node's outputs this graph has; a graph output is not a read."""
        names = [name for name in node.outputs if name]
        return sum(
            reader.inputs.count(name) + reader.implicit.count(name)
            for name in names
            for reader in self._readers.get(name, {}).values()
        )

    def parent(self, node: Node, input_index: int) -> Node | None:
        """The node that writes an input."""
        return self.producers.get(node.input_at(input_index))

    def parents(self, node: Node) -> list[Node]:
        """The nodes that write a node's inputs, one per edge, by index."""
        found = [
            self.producers[name]
            for name in (*node.inputs, *node.implicit)
            if name in self.producers
        ]
        return sorted(found, key=lambda producer: producer.index)

    def children(self, node: Node) -> list[Node]:
        """The nodes that read a node's outputs, one per edge, by index."""
        return [edge.reader for edge in self.edges_of(node)]

    def is_output(self, node: Node) -> bool:
        """Whether a node writes a graph output (``Graph::NodeProducesGraphOutput``)."""
        return any(name in self.outputs for name in node.outputs if name)

    # -- values --------------------------------------------------------------------------------

    def type_of(self, name: str) -> ValueType | None:
        """The known type of a value of this graph or of an outer one."""
        if not name:
            return None
        if name in self.types or self.outer is None or self.has_value(name):
            return self.types.get(name)
        return self.outer.type_of(name)

    def has_value(self, name: str) -> bool:
        """Whether this graph itself has a value, and not just an outer graph."""
        return name in self.producers or name in self.initializers or name in self.inputs

    def dims_of(self, name: str) -> tuple[int | str | None, ...] | None:
        """The dims of a dense tensor; ``None`` if the rank is unknown."""
        known = self.type_of(name)
        return known.dims if isinstance(known, TensorType) else None

    def elem_type_of(self, name: str) -> int:
        """Element type of a dense tensor; 0 if it is unknown."""
        known = self.type_of(name)
        return known.elem_type if isinstance(known, TensorType) else 0

    def constant(self, name: str) -> onnx.TensorProto | None:
        """An initializer of this graph or of an outer one that no caller can override.

        Source: ``Graph::GetConstantInitializer``. From IR version 4 on, a caller can override an
        initializer if it is a graph input too.
        """
        if name in self.initializers:
            can_override = name in self.inputs and self.ir_version >= INPUTS_MAY_OVERRIDE
            return None if can_override else self.initializers[name]
        if self.outer is None or not name or name in self.producers or name in self.inputs:
            return None
        return self.outer.constant(name)

    def array(self, name: str) -> Array | None:
        """The elements of a constant; ``None`` if it is not one or its data is absent."""
        tensor = self.constant(name)
        if tensor is None:
            return None
        if name not in self.initializers and self.outer is not None:
            return self.outer.array(name)
        if name not in self._arrays:
            self._arrays[name] = constant_value(tensor)
        return self._arrays[name]

    def add_initializer(self, tensor: onnx.TensorProto) -> str:
        """Add a constant and its type."""
        self.initializers[tensor.name] = tensor
        self._arrays.pop(tensor.name, None)
        self.types[tensor.name] = TensorType(tensor.data_type, tuple(tensor.dims))
        return tensor.name

    def drop_initializer(self, name: str) -> None:
        """Remove a constant that nothing reads."""
        del self.initializers[name]
        self._arrays.pop(name, None)

    # -- names ---------------------------------------------------------------------------------

    def fresh_name(self, base: str) -> str:
        """A name that no value has: ``base``, with a running number if it is taken.

        Source: ``Graph::GenerateNodeArgName``.
        """
        name = base
        while name in self._names or self._is_taken(name):
            name = self._numbered(base)
        self._names.add(name)
        return name

    def fresh_node_name(self, base: str) -> str:
        """A name that no pass has given a node: ``base``, with a running number if it is taken.

        Source: ``Graph::GenerateNodeName``, which shares its counter with the names of values.
        """
        name = base
        while name in self._node_names:
            name = self._numbered(base)
        self._node_names.add(name)
        return name

    def _numbered(self, base: str) -> str:
        number, self._token = self._token, self._token + 1
        return f"{base}_token_{number}"

    def _is_taken(self, name: str) -> bool:
        return not name or self.has_value(name) or name in self._readers or name in self.types

    def graphs(self) -> Iterator["Graph"]:
        """The graph itself and every graph inside it."""
        yield self
        for node in self.nodes.values():
            for body in node.bodies.values():
                yield from body.graphs()


INPUTS_MAY_OVERRIDE = 4
"""IR version from which an initializer may be omitted from the graph inputs."""


# --------------------------------------------------------------------------------------------------
# The order in which onnxruntime runs a graph's nodes, and in which its passes walk them.
#
# onnxruntime/core/graph/graph_viewer.cc, constructor, and ``Graph::ReverseDFSFrom`` in graph.cc: a
# depth-first walk from the nodes whose outputs no node reads, the last of them first; at each node
# the parent with the highest index is visited first, and a node comes after its parents.


def execution_order(graph: Graph) -> list[Node]:
    """All nodes of one graph in the order of execution."""
    # Most passes change nothing: the order of the pass before holds.
    if graph.order is None:
        graph.order = _walked(graph)
    return [*graph.order]


def _walked(graph: Graph) -> list[Node]:
    # A node is on the stack twice: to be visited, and below its parents to be appended after them.
    # Parents are pushed in ascending order of index, so that the highest is popped first.
    stack = [(node, False) for node in graph.nodes.values() if not _is_read(graph, node)]
    visited: set[int] = set()
    order: list[Node] = []
    while stack:
        node, is_done = stack.pop()
        if is_done:
            order.append(node)
            continue
        if node.index in visited:
            continue
        visited.add(node.index)
        stack.append((node, True))
        stack.extend(
            (producer, False) for producer in graph.parents(node) if producer.index not in visited
        )
    return order


def _is_read(graph: Graph, node: Node) -> bool:
    return any(name and graph.readers(name) for name in node.outputs)


def walk(graph: Graph, apply: Callable[[Graph], bool], changed: list[bool]) -> Iterator[Node]:
    """The nodes in order of execution; before a node, the pass runs on its subgraphs.

    Source: ``GraphTransformer::Recurse``.

    :param apply: the pass itself.
    :param changed: gets the result of the pass for each subgraph.
    """
    # The order is that before the pass. A node that the pass removed meanwhile is skipped, and a
    # node that it added is not visited, as in onnxruntime, where both are for the next round.
    for node in execution_order(graph):
        if graph.nodes.get(node.index) is not node:
            continue
        for body in node.bodies.values():
            changed.append(apply(body))
        if graph.nodes.get(node.index) is node:
            yield node

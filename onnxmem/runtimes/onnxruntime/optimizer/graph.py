"""A graph that passes change: nodes by index, who writes and who reads each value, what is known.

A node's index is its place in the file, or the next free number for a node that a pass adds; it is
never given twice. The order of execution follows from the indices, so a pass that adds nodes in
another sequence than onnxruntime's gives another order.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx

from onnxmem.model.constants import Array, constant_value
from onnxmem.runtimes.onnxruntime.cpu import AVX512, Cpu

# --------------------------------------------------------------------------------------------------
# What follows from shapes about the elements of small integer tensors.


@dataclass(frozen=True, slots=True)
class ShapeValue:
    """Elements of a small integer tensor that follow from shapes."""

    elements: tuple[int | None, ...]
    """Row-major; ``None`` where an element is unknown."""
    is_scalar: bool = False
    """Rank 0 rather than rank 1."""


# --------------------------------------------------------------------------------------------------
# What onnxruntime knows of a value at load: its element type and the dims that it could infer.
#
# A dim is a number, a symbol, or ``None`` where neither is known. onnxruntime keeps what it knows
# and fills gaps: a symbol that a file stores for a value outlives an override of the symbol at the
# input.


Dim = int | str | None
Dims = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor's type."""

    elem_type: int
    """``TensorProto.DataType``; 0 where it is unknown."""
    dims: Dims | None
    """``None`` where not even the rank is known."""


ValueType = TensorType | onnx.TypeProto
"""A dense tensor's type, or that of a sequence, a map or an optional as the file writes it."""


def read_type(proto: onnx.TypeProto) -> ValueType | None:
    """The type that a file or an inference states; ``None`` where it states nothing."""
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
    """A negative number counts as unknown, as ``utils::HasDimValue`` sees it after loading."""
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return dim.dim_param or None


def write_type(known: ValueType) -> onnx.TypeProto:
    """Write a type as ONNX does."""
    if isinstance(known, onnx.TypeProto):
        return known
    proto = onnx.TypeProto()
    proto.tensor_type.elem_type = known.elem_type
    if known.dims is None:
        return proto
    shape = proto.tensor_type.shape
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
    """Fill what is known with what is inferred; ``None`` where two numbers or the ranks differ.

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
    """What two shapes of one value agree on (onnx's ``UnionShapeInfo``); no rank, no shape."""
    if len(inferred) != len(known):
        return None
    return tuple(
        old if new == old and new is not None else None
        for new, old in zip(inferred, known, strict=True)
    )


def merged_type(inferred: ValueType | None, known: ValueType | None) -> ValueType | None:
    """What is known of a value after one more inference.

    Source: onnxruntime/core/graph/graph.cc, ``Graph::InferAndVerifyTypeMatch`` and
    ``MergeShapeInfo``: a clash is a warning, and what both agree on stays.
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
    """Of sequences, maps and optionals onnxruntime keeps the inferred type without its shapes."""
    if not isinstance(inferred, onnx.TypeProto):
        return inferred
    bare = onnx.TypeProto()
    bare.CopyFrom(inferred)
    inner = bare
    while (kind := inner.WhichOneof("value")) in _NESTED:
        held = getattr(inner, kind)
        inner = held.value_type if kind == "map_type" else held.elem_type
    if kind == "tensor_type":
        inner.tensor_type.ClearField("shape")
    return bare


_NESTED = frozenset({"sequence_type", "optional_type", "map_type"})


Attributes = dict[str, onnx.AttributeProto]


@dataclass(slots=True, eq=False)
class Node:
    """One node; its lists are changed through its graph only."""

    index: int
    op_type: str
    domain: str
    since_version: int
    """Version of the operator that the model's operator set means; 0 if ONNX knows none."""
    name: str
    inputs: list[str]
    """``""`` is an optional input left out."""
    outputs: list[str]
    attributes: Attributes = field(default_factory=dict)
    bodies: dict[str, "Graph"] = field(default_factory=dict)
    """Subgraphs by the attribute that holds them."""
    implicit: list[str] = field(default_factory=list)
    """Outer values that the subgraphs read."""
    is_unassigned: bool = False
    """Made from a node without a kernel: no pass fuses it before the casts are in."""
    seen: object = None
    """What the last shape inference was told, so that it is not asked twice."""

    def input_at(self, place: int) -> str:
        """The value at an input's place; ``""`` where there is none."""
        return self.inputs[place] if place < len(self.inputs) else ""

    def output_at(self, place: int) -> str:
        """The value at an output's place; ``""`` where there is none."""
        return self.outputs[place] if place < len(self.outputs) else ""


@dataclass(frozen=True, slots=True)
class Edge:
    """One use of an output by a node of the same graph."""

    reader: Node
    output: int
    """Index among the producer's outputs."""
    input: int
    """Place among the reader's inputs; implicit ones follow the explicit ones."""


@dataclass(slots=True, eq=False)
class Graph:
    """A graph or a subgraph in the making."""

    name: str
    opsets: Mapping[str, int]
    ir_version: int
    outer: "Graph | None" = None
    cpu: Cpu = AVX512
    """That the session runs on."""
    nodes: dict[int, Node] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    """As the file lists them; before IR version 4 with the initializers."""
    outputs: list[str] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)
    types: dict[str, ValueType] = field(default_factory=dict)
    shape_values: dict[str, ShapeValue] = field(default_factory=dict)
    """Elements that data propagation found, by value."""
    contents: dict[object, int] = field(default_factory=dict)
    """Of the outermost graph: numbers of what constants may hold (``contents.py``)."""
    producers: dict[str, Node] = field(default_factory=dict)
    _readers: dict[str, dict[int, Node]] = field(default_factory=dict)
    _arrays: dict[str, Array | None] = field(default_factory=dict)
    _next_index: int = 0
    _names: set[str] = field(default_factory=set)
    _node_names: set[str] = field(default_factory=set)
    _token: int = 0

    # -- nodes ---------------------------------------------------------------------------------

    def insert(self, node: Node) -> Node:
        """Take a node in under the next index."""
        return self.insert_at(node, self._next_index)

    def insert_at(self, node: Node, index: int) -> Node:
        """Take a node in under an index that no node has had."""
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
        del self.nodes[node.index]
        for name in {*node.inputs, *node.implicit}:
            self._readers.get(name, {}).pop(node.index, None)
        for name in node.outputs:
            if self.producers.get(name) is node:
                del self.producers[name]

    def set_input(self, node: Node, place: int, name: str) -> None:
        """Make a node read another value at a place; places in between are left out."""
        node.inputs.extend([""] * (place + 1 - len(node.inputs)))
        self.set_inputs(node, [*node.inputs[:place], name, *node.inputs[place + 1 :]])

    def set_inputs(self, node: Node, names: Iterable[str]) -> None:
        """Replace all explicit inputs of a node."""
        for name in set(node.inputs) - set(node.implicit):
            self._readers.get(name, {}).pop(node.index, None)
        node.inputs = list(names)
        for name in node.inputs:
            self._reads(name, node)

    def set_outputs(self, node: Node, names: Iterable[str]) -> None:
        """Replace all outputs of a node."""
        for name in node.outputs:
            if self.producers.get(name) is node:
                del self.producers[name]
        node.outputs = list(names)
        for name in node.outputs:
            if name:
                self.producers[name] = node

    def set_implicit(self, node: Node, names: Iterable[str]) -> None:
        """Replace the outer values that a node's subgraphs read."""
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
        """The nodes of this graph that read a value, by index, subgraphs' readers included."""
        return [node for _, node in sorted(self._readers.get(name, {}).items())]

    def edges_of(self, node: Node) -> list[Edge]:
        """Every use of a node's outputs by nodes of this graph, by reader, output and input."""
        edges = [
            Edge(reader, place, slot)
            for place, name in enumerate(node.outputs)
            if name
            for reader in self.readers(name)
            for slot, read in enumerate((*reader.inputs, *reader.implicit))
            if read == name
        ]
        return sorted(edges, key=lambda edge: (edge.reader.index, edge.output, edge.input))

    def num_edges(self, node: Node) -> int:
        """Uses of a node's outputs within this graph; being a graph output is no use."""
        names = [name for name in node.outputs if name]
        return sum(
            reader.inputs.count(name) + reader.implicit.count(name)
            for name in names
            for reader in self._readers.get(name, {}).values()
        )

    def parent(self, node: Node, place: int) -> Node | None:
        """The node that writes an input."""
        return self.producers.get(node.input_at(place))

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
        """Whether a node writes a graph output."""
        return any(name in self.outputs for name in node.outputs if name)

    # -- values --------------------------------------------------------------------------------

    def type_of(self, name: str) -> ValueType | None:
        """What is known of a value here or in the graphs around."""
        if not name:
            return None
        if name in self.types or self.outer is None or self.has_value(name):
            return self.types.get(name)
        return self.outer.type_of(name)

    def has_value(self, name: str) -> bool:
        """Whether this graph itself offers a value, the graphs around aside."""
        return name in self.producers or name in self.initializers or name in self.inputs

    def dims_of(self, name: str) -> tuple[int | str | None, ...] | None:
        """The dims of a dense tensor, as far as they are known."""
        known = self.type_of(name)
        return known.dims if isinstance(known, TensorType) else None

    def elem_type_of(self, name: str) -> int:
        """Element type of a dense tensor; 0 where it is unknown."""
        known = self.type_of(name)
        return known.elem_type if isinstance(known, TensorType) else 0

    def constant(self, name: str) -> onnx.TensorProto | None:
        """An initializer, here or around, that no caller can override.

        Source: ``Graph::GetConstantInitializer``; inputs may override from IR version 4 on.
        """
        if name in self.initializers:
            can_override = name in self.inputs and self.ir_version >= INPUTS_MAY_OVERRIDE
            return None if can_override else self.initializers[name]
        if self.outer is None or not name or name in self.producers or name in self.inputs:
            return None
        return self.outer.constant(name)

    def array(self, name: str) -> Array | None:
        """The elements of a constant; ``None`` for others and where the payload is absent."""
        tensor = self.constant(name)
        if tensor is None:
            return None
        if name not in self.initializers and self.outer is not None:
            return self.outer.array(name)
        if name not in self._arrays:
            self._arrays[name] = constant_value(tensor)
        return self._arrays[name]

    def add_initializer(self, tensor: onnx.TensorProto) -> str:
        """Take a constant in under its name; its type is known from here on."""
        self.initializers[tensor.name] = tensor
        self._arrays.pop(tensor.name, None)
        self.types[tensor.name] = TensorType(tensor.data_type, tuple(tensor.dims))
        return tensor.name

    def drop_initializer(self, name: str) -> None:
        """Forget a constant that nothing reads."""
        del self.initializers[name]
        self._arrays.pop(name, None)

    # -- names ---------------------------------------------------------------------------------

    def fresh_name(self, base: str) -> str:
        """A name that no value has: ``base`` itself, or one with a running number.

        Source: ``Graph::GenerateNodeArgName``.
        """
        name = base
        while name in self._names or self._is_taken(name):
            name = self._numbered(base)
        self._names.add(name)
        return name

    def fresh_node_name(self, base: str) -> str:
        """A name that no node was given by a pass; it counts on with the same numbers.

        Source: ``Graph::GenerateNodeName``.
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
"""IR version from which an initializer may be left out of the graph inputs."""


# --------------------------------------------------------------------------------------------------
# The order in which onnxruntime runs a graph's nodes, and in which its passes walk them.
#
# onnxruntime/core/graph/graph_viewer.cc, constructor, and ``Graph::ReverseDFSFrom`` in graph.cc: a
# depth-first walk from the nodes that nobody reads, the last of them first; at each node the
# parent with the highest index is visited first, and a node comes after its parents.


def execution_order(graph: Graph) -> list[Node]:
    """All nodes of one graph in the order of execution."""
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
    """The nodes in order, those aside that a pass removed meanwhile; subgraphs are passed first.

    ``apply`` is the pass itself, and what it says of a subgraph goes into ``changed``. Source:
    ``GraphTransformer::Recurse``.
    """
    for node in execution_order(graph):
        if graph.nodes.get(node.index) is not node:
            continue
        for body in node.bodies.values():
            changed.append(apply(body))
        if graph.nodes.get(node.index) is node:
            yield node

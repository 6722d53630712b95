"""The types of a model: DType, Role, Tensor, Node and Graph.

Names are unique in the whole model. A tensor of a subgraph has its scope as a prefix
(``loop_3/body/hidden``), so there is one mapping of all tensors, and inputs of nodes need no scope.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache
from math import prod
from typing import TYPE_CHECKING, TypeVar, dataclass_transform

from onnxmem.ops.spec import Attribute, Call, Operand, OpSpec, Shape, known_dims

if TYPE_CHECKING:
    import networkx as nx


class DType(StrEnum):
    """An element type; equal to its name in numpy and ml_dtypes.

    Members are in the order of ``TensorProto.DataType``, whose first number (1) is FLOAT.
    """

    FLOAT32 = "float32"
    UINT8 = "uint8"
    INT8 = "int8"
    UINT16 = "uint16"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    STRING = "string"
    BOOL = "bool"
    FLOAT16 = "float16"
    FLOAT64 = "float64"
    UINT32 = "uint32"
    UINT64 = "uint64"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    BFLOAT16 = "bfloat16"
    FLOAT8E4M3FN = "float8e4m3fn"
    FLOAT8E4M3FNUZ = "float8e4m3fnuz"
    FLOAT8E5M2 = "float8e5m2"
    FLOAT8E5M2FNUZ = "float8e5m2fnuz"
    UINT4 = "uint4"
    INT4 = "int4"
    FLOAT4E2M1 = "float4e2m1"
    FLOAT8E8M0 = "float8e8m0"
    UINT2 = "uint2"
    INT2 = "int2"
    FLOAT6E2M3 = "float6e2m3"
    FLOAT6E3M2 = "float6e3m2"

    # The hash of an enum runs Python code at each dict look-up; that of a string does not.
    __hash__ = str.__hash__

    @property
    def bits(self) -> int | None:
        """Bits per stored element; ``None`` for strings, whose size depends on their text."""
        return _BITS[self]

    @property
    def is_floating(self) -> bool:
        """Whether the type can have a gradient: floats of any width, and complex."""
        return self.startswith(("float", "bfloat", "complex"))

    @property
    def is_integer(self) -> bool:
        """Whether it is a signed or unsigned integer, not bool."""
        return self.startswith(("int", "uint"))


def dtype_of(elem_type: int) -> DType | None:
    """The type of a ``TensorProto.DataType`` number; ``None`` for UNDEFINED and unknown numbers."""
    return _BY_NUMBER.get(elem_type)


def _width(dtype: DType) -> int | None:
    """The bits, which are the first number in the name, except for bool and string."""
    if dtype is DType.STRING:
        return None
    if dtype is DType.BOOL:
        return 8
    digits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits.split("e")[0])


_BITS = {dtype: _width(dtype) for dtype in DType}
_BY_NUMBER = dict(enumerate(DType, start=1))


FX_NODE = "pkg.torch.onnx.fx_node"
"""The key of ``metadata_props`` with the call of torch.export that a node was written for."""
STACK_TRACE = "pkg.torch.onnx.stack_trace"
"""The key with the lines of Python that made that call, the innermost last."""
_Record = TypeVar("_Record")


@dataclass_transform(frozen_default=True)
def record(described: type[_Record]) -> type[_Record]:
    """Make a slotted dataclass that is frozen only for type checkers (PEP 681).

    A frozen dataclass calls ``object.__setattr__`` for each field, so its instances take four times
    as long to create: half a second for a graph of 100,000 nodes.
    """
    return dataclass(slots=True, unsafe_hash=True)(described)


@dataclass_transform(frozen_default=True, eq_default=False)
def single(described: type[_Record]) -> type[_Record]:
    """The same with comparison by identity."""
    return dataclass(slots=True, eq=False)(described)


class Role(StrEnum):
    """The owner of a tensor's memory."""

    INPUT = "input"
    """The caller passes it."""
    WEIGHT = "weight"
    """It is stored in the file, or filled with a stored value (ConstantOfShape)."""
    UNREAD = "unread"
    """An initializer that nothing reads, or that only sizes a ConstantOfShape: no memory."""
    ACTIVATION = "activation"
    """A node produces it at run time."""
    BODY_INPUT = "body_input"
    """The input of a subgraph: the enclosing node passes its memory."""

    __hash__ = str.__hash__


class Masking(StrEnum):
    """What a stored mask [batch, 1, rows, rows] hides of an attention's scores."""

    NOTHING = "nothing"
    LATER = "later"
    """Of each row all later columns and no other: the mask is causal."""
    OTHER = "other"


_MADE_IN_A_RUN = frozenset({Role.ACTIVATION, Role.BODY_INPUT})


@single
class Tensor:
    """A named value; several tensors may share the same memory."""

    name: str
    dtype: DType | None
    """``None``: unknown, or a sequence, an optional or a map."""
    shape: Shape | None
    """``None``: unknown rank."""
    role: Role
    storage: str | None = None
    """The identity of a weight's bytes, if several names may share them."""
    is_external: bool = False
    """Whether it is stored in another file, which is never opened."""
    num_stored: int | None = None
    """The number of stored elements of a sparse weight."""
    is_assumed: bool = False
    """Whether the shape is only declared, or that of another batch than the requested one."""
    dynamic: tuple[str, ...] = ()
    """In a graph of upper ends (``model.intervals``): the name of each dim that data decide, "" for
    a number; dims of one name are equal in every run. Empty: all dims are those of every run."""
    masking: Masking | None = None
    """``None``: it is not a stored mask, or its values are not at hand."""
    max_elements: int | None = None
    """In such a graph: an upper end of the elements below the product of the dims."""

    @property
    def num_elements(self) -> int | None:
        """Product of the dims; ``None`` if one is unknown."""
        return _num_elements(self.shape) if self.max_elements is None else self.max_elements

    @property
    def size_bytes(self) -> int | None:
        """``ceil(elements x bits / 8)``; ``None`` if the shape or the element size is unknown."""
        shape = self.shape if self.max_elements is None else (self.max_elements,)
        return _size_bytes(shape, self.dtype)

    @property
    def is_open(self) -> bool:
        """Whether the size of an activation is unknown before a run."""
        return self.role in _MADE_IN_A_RUN and self.num_elements is None

    @property
    def storage_key(self) -> str:
        """The identity of the bytes: tensors with equal keys share them."""
        return self.storage or self.name

    def operand(self, value: tuple[int | float, ...] | None = None) -> Operand:
        """The tensor as an operand of an operator's formulas."""
        if value is None:
            return _operand(self.shape, self.dtype)
        return Operand(self.shape, self.dtype.bits if self.dtype else None, value)


# A large graph has many tensors but few shapes, so what depends on a shape is cached.


@lru_cache(maxsize=4096)
def _operand(shape: Shape | None, dtype: DType | None) -> Operand:
    return Operand(shape, dtype.bits if dtype else None)


@lru_cache(maxsize=4096)
def _num_elements(shape: Shape | None) -> int | None:
    dims = known_dims(shape)
    return None if dims is None else prod(dims)


@lru_cache(maxsize=4096)
def _size_bytes(shape: Shape | None, dtype: DType | None) -> int | None:
    # Not by ``_operand``: a graph may have more shapes than are cached.
    dims, bits = known_dims(shape), None if dtype is None else _BITS[dtype]
    return None if dims is None or bits is None else -(-prod(dims) * bits // 8)


@single
class Node:
    """A node; inputs and outputs are names of tensors, ``""`` if missing."""

    name: str
    """The name in the file with its scope; an unnamed node is ``<op_type>_<index>``."""
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operator: OpSpec
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    subgraphs: tuple[tuple[str, "Graph"], ...] = ()
    """Attribute name and graph: then_branch, else_branch, body."""
    outer_reads: tuple[str, ...] = ()
    """Tensors of enclosing graphs that the subgraphs read."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The ``metadata_props``: torch.export writes the module and operator of origin there."""

    @property
    def onnx_op(self) -> str:
        """The operator if it is in the default domain, else ``""``."""
        return "" if self.domain else self.op_type

    @property
    def reads(self) -> tuple[str, ...]:
        """Every tensor that the node reads, in order, repeated ones included."""
        named = tuple(filter(None, self.inputs)) if "" in self.inputs else self.inputs
        return (*named, *self.outer_reads) if self.outer_reads else named

    @property
    def writes(self) -> tuple[str, ...]:
        """Every tensor that the node writes."""
        return tuple(filter(None, self.outputs)) if "" in self.outputs else self.outputs

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "Node":
        """The node whose subgraphs have another mapping of tensors."""
        return Node(
            self.name,
            self.op_type,
            self.domain,
            self.inputs,
            self.outputs,
            self.operator,
            self.attributes,
            tuple([(name, inner.with_tensors(tensors)) for name, inner in self.subgraphs]),
            self.outer_reads,
            self.metadata,
        )


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in topological order, and the tensors between them."""

    name: str
    nodes: tuple[Node, ...] = field(repr=False)
    inputs: tuple[str, ...]
    """The inputs without a default; an initializer that is listed as an input is a weight."""
    outputs: tuple[str, ...]
    tensors: Mapping[str, Tensor] = field(repr=False)
    """Every tensor of the model by its scoped name; subgraphs share this mapping."""
    values: Mapping[str, tuple[int | float, ...]] = field(default_factory=dict, repr=False)
    """Elements of small constants in row-major order."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The model's ``metadata_props``; empty for a subgraph."""
    of_parameters: frozenset[str] = frozenset()
    """Weights that the file says are parameters, or were computed of some when it was written."""

    def all_nodes(self) -> Sequence[Node]:
        """The nodes, each followed by the nodes of its subgraphs."""
        return self._all_nodes

    @cached_property
    def _all_nodes(self) -> tuple[Node, ...]:
        # Read by a dozen passes: generators within generators would be walked by each of them.
        if not any(node.subgraphs for node in self.nodes):
            return self.nodes
        found: list[Node] = []
        for node in self.nodes:
            found.append(node)
            for _, inner in node.subgraphs:
                found += inner.all_nodes()
        return tuple(found)

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "Graph":
        """The graph and its subgraphs with another mapping of tensors, which all of them share."""
        nodes = self.nodes
        if any(node.subgraphs for node in nodes):
            nodes = tuple(
                [node.with_tensors(tensors) if node.subgraphs else node for node in nodes]
            )
        # A model may have a graph in every block, and ``replace`` takes four times as long.
        return Graph(
            self.name,
            nodes,
            self.inputs,
            self.outputs,
            tensors,
            self.values,
            self.metadata,
            self.of_parameters,
        )

    @property
    def fed_tensors(self) -> tuple[Tensor, ...]:
        """The tensors that the caller feeds, each once; those of weights are left out."""
        tensors = (self.tensors[name] for name in dict.fromkeys(self.inputs))
        return tuple(tensor for tensor in tensors if tensor.role is Role.INPUT)

    @cached_property
    def weights(self) -> tuple[Tensor, ...]:
        """The weights of the model and its subgraphs, each storage once."""
        by_storage: dict[str, Tensor] = {}
        of_weights = Role.WEIGHT
        for tensor in self.tensors.values():
            if tensor.role is of_weights:
                by_storage.setdefault(tensor.storage_key, tensor)
        return tuple(by_storage.values())

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """The node of this graph that writes each tensor; nodes of subgraphs are left out."""
        return {name: node for node in self.nodes for name in node.writes}

    @cached_property
    def trip_counts(self) -> "dict[Node, int | None]":
        """The iterations of Loops, as far as ``control_flow.trip_count`` has found them yet."""
        return {}

    def call(self, node: Node) -> Call:
        """A node as the argument of its operator's formulas."""
        return Call(
            tuple([self._operand(name) for name in node.inputs]),
            tuple([self._operand(name) for name in node.outputs]),
            node.attributes,
        )

    def _operand(self, name: str) -> Operand | None:
        return self.tensors[name].operand(self.values.get(name)) if name else None

    def to_networkx(self) -> "nx.DiGraph[str]":
        """The graph as a DAG of node names; edges have an attribute ``tensors``.

        Nodes have an attribute ``op_type``; nodes of subgraphs are not included.
        """
        # networkx takes as long to import as numpy, and few callers need a DAG.
        import networkx as nx

        dag: nx.DiGraph[str] = nx.DiGraph(name=self.name)
        producer: dict[str, str] = {}
        for node in self.nodes:
            dag.add_node(node.name, op_type=node.op_type)
            for name in dict.fromkeys(node.reads):
                if name in producer:
                    source = producer[name]
                    tensors = dag.get_edge_data(source, node.name, {}).get("tensors", ())
                    dag.add_edge(source, node.name, tensors=(*tensors, name))
            producer.update(dict.fromkeys(node.writes, node.name))
        return dag


def body_prefix(node: Node, attribute: str, body: Graph) -> str:
    """The prefix of a subgraph's names in a ``Graph``, numbered if the plain one was in use."""
    head = f"{node.name}/{attribute}"
    pattern = re.compile(rf"{re.escape(head)}(#\d+)?/")
    names = (name for inner in body.nodes for name in inner.outputs)
    found = (match[0] for match in map(pattern.match, names) if match)
    return next(found, f"{head}/")

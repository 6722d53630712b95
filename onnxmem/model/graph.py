"""The nouns of a model: DType, Role, Tensor, Node, Graph; and the graph as a networkx DAG.

Names are unique over the whole model. A tensor of a subgraph carries its scope before its name
(``loop_3/body/hidden``), so one mapping holds them all and a node's inputs need no scope.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, TypeVar, dataclass_transform

from onnxmem.ops.spec import Attribute, Call, Operand, OpSpec, Shape

if TYPE_CHECKING:
    import networkx as nx


class DType(StrEnum):
    """An element type; equal to the string that numpy and ml_dtypes name it by.

    Members stand in the order of ``TensorProto.DataType``, whose first number (1) is FLOAT.
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

    # An enum's own runs Python code at each look-up in a table of sizes.
    __hash__ = str.__hash__

    @property
    def bits(self) -> int | None:
        """Bits per element as stored; ``None`` for strings, whose size is their text's."""
        return _BITS[self]

    @property
    def is_floating(self) -> bool:
        """Whether a gradient can be taken in this type: floats of any width, and complex."""
        return self.startswith(("float", "bfloat", "complex"))

    @property
    def is_integer(self) -> bool:
        """Whether the type counts: signed or unsigned integers, not bool."""
        return self.startswith(("int", "uint"))


def dtype_of(elem_type: int) -> DType | None:
    """Read a ``TensorProto.DataType`` number; ``None`` for UNDEFINED and numbers of the future."""
    return _BY_NUMBER.get(elem_type)


def _width(dtype: DType) -> int | None:
    """Read the bits off the name: its first number, but for bool and string."""
    if dtype is DType.STRING:
        return None
    if dtype is DType.BOOL:
        return 8
    digits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits.split("e")[0])


_BITS = {dtype: _width(dtype) for dtype in DType}
_BY_NUMBER = dict(enumerate(DType, start=1))


_Record = TypeVar("_Record")


@dataclass_transform(frozen_default=True)
def record(described: type[_Record]) -> type[_Record]:
    """Make a slotted dataclass of it, frozen for type checkers alone (PEP 681).

    A frozen dataclass sets each field by a call of ``object.__setattr__``, and takes four times as
    long to make as a plain one: half a second of a graph of 100,000 nodes.
    """
    return dataclass(slots=True, unsafe_hash=True)(described)


@dataclass_transform(frozen_default=True, eq_default=False)
def single(described: type[_Record]) -> type[_Record]:
    """The same where each is equal to itself alone."""
    return dataclass(slots=True, eq=False)(described)


class Role(StrEnum):
    """Who owns a tensor's bytes."""

    INPUT = "input"
    """The caller passes it."""
    WEIGHT = "weight"
    """The file holds it, or holds what it is filled with (ConstantOfShape)."""
    UNREAD = "unread"
    """An initializer that nothing reads, or that only sizes a ConstantOfShape: no memory."""
    ACTIVATION = "activation"
    """A node makes it at run time."""
    BODY_INPUT = "body_input"
    """A subgraph's formal input: bytes that the enclosing node passes."""

    # An enum's own runs Python code at each look-up.
    __hash__ = str.__hash__


@single
class Tensor:
    """One named value. A tensor is a name; the bytes behind it may be another tensor's too."""

    name: str
    dtype: DType | None
    """``None``: unknown, or a sequence, an optional or a map."""
    shape: Shape | None
    """``None``: unknown rank."""
    role: Role
    storage: str | None = None
    """What identifies a weight's bytes where several names may share them."""
    is_external: bool = False
    """The weight lies in another file, which is never opened."""
    num_stored: int | None = None
    """Elements that are really stored, of a sparse weight."""
    is_assumed: bool = False
    """The shape is only what the file declares, or of a batch that the node could not follow."""

    @property
    def num_elements(self) -> int | None:
        """Product of the dims; ``None`` if one is unknown."""
        return _num_elements(self.shape)

    @property
    def size_bytes(self) -> int | None:
        """``ceil(elements x bits / 8)``; ``None`` if the shape or the element size is unknown."""
        return _size_bytes(self.shape, self.dtype)

    @property
    def storage_key(self) -> str:
        """What identifies the bytes: tensors of one key are one storage."""
        return self.storage or self.name

    def operand(self, value: tuple[int | float, ...] | None = None) -> Operand:
        """The tensor as an operator's formulas see it."""
        if value is None:
            return _operand(self.shape, self.dtype)
        return Operand(self.shape, self.dtype.bits if self.dtype else None, value)


# A large graph has few shapes, each of many tensors: what follows from one is computed once.


@lru_cache(maxsize=4096)
def _operand(shape: Shape | None, dtype: DType | None) -> Operand:
    return Operand(shape, dtype.bits if dtype else None)


@lru_cache(maxsize=4096)
def _num_elements(shape: Shape | None) -> int | None:
    return Operand(shape, None).num_elements


@lru_cache(maxsize=4096)
def _size_bytes(shape: Shape | None, dtype: DType | None) -> int | None:
    return _operand(shape, dtype).size_bytes


@single
class Node:
    """One use of an operator; inputs and outputs are tensor names, ``""`` where left out."""

    name: str
    """As in the file, scope before it; an unnamed node is ``<op_type>_<index>``."""
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
    """The node's ``metadata_props``: torch.export writes the module and operator it comes from."""

    @property
    def onnx_op(self) -> str:
        """The operator, if it is ONNX's own; ``""`` if it only has the name of one."""
        return "" if self.domain else self.op_type

    @property
    def reads(self) -> tuple[str, ...]:
        """Every tensor that the node needs, in order and as often as it names it."""
        named = tuple(filter(None, self.inputs)) if "" in self.inputs else self.inputs
        return (*named, *self.outer_reads) if self.outer_reads else named

    @property
    def writes(self) -> tuple[str, ...]:
        """Every tensor that the node makes."""
        return tuple(filter(None, self.outputs)) if "" in self.outputs else self.outputs


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in running order, and the tensors between them."""

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    """What the caller passes; an initializer that the file lists as an input is a weight."""
    outputs: tuple[str, ...]
    tensors: Mapping[str, Tensor]
    """Every tensor of the model by its scoped name; subgraphs share this mapping."""
    values: Mapping[str, tuple[int | float, ...]] = field(default_factory=dict)
    """Elements of the small constants, row-major."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The model's ``metadata_props``; empty for a subgraph."""

    def all_nodes(self) -> Iterator[Node]:
        """Each node and, after it, the nodes of its subgraphs."""
        for node in self.nodes:
            yield node
            for _, inner in node.subgraphs:
                yield from inner.all_nodes()

    @cached_property
    def weights(self) -> tuple[Tensor, ...]:
        """Each weight of the model and its subgraphs, every storage once."""
        by_storage: dict[str, Tensor] = {}
        of_weights = Role.WEIGHT
        for tensor in self.tensors.values():
            if tensor.role is of_weights:
                by_storage.setdefault(tensor.storage_key, tensor)
        return tuple(by_storage.values())

    def call(self, node: Node) -> Call:
        """A node as its operator's formulas see it."""
        return Call(
            tuple([self._operand(name) for name in node.inputs]),
            tuple([self._operand(name) for name in node.outputs]),
            node.attributes,
        )

    def _operand(self, name: str) -> Operand | None:
        return self.tensors[name].operand(self.values.get(name)) if name else None

    def to_networkx(self) -> "nx.DiGraph[str]":
        """The graph as a DAG of node names; an edge carries the ``tensors`` that flow along it.

        Each node carries ``op_type``; nodes of subgraphs stay inside their If, Loop or Scan.
        """
        # networkx takes as long to import as numpy, and few callers ask for a DAG.
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

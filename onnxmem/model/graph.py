"""The nouns of a model: Tensor, Node, Graph; and the graph as a networkx DAG.

Names are unique over the whole model. A tensor of a subgraph carries its scope before its name
(``loop_3/body/hidden``), so one mapping holds them all and a node's inputs need no scope.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from onnxmem.model.dtypes import DType
from onnxmem.model.records import single
from onnxmem.ops.spec import Attribute, Call, Operand, OpSpec, Shape

if TYPE_CHECKING:
    import networkx as nx


class Role(StrEnum):
    """Who owns a tensor's bytes."""

    INPUT = "input"
    """The caller hands it in."""
    WEIGHT = "weight"
    """The file holds it, or holds what it is filled with (ConstantOfShape)."""
    UNREAD = "unread"
    """An initializer that nothing reads, or that only sizes a ConstantOfShape: no memory."""
    ACTIVATION = "activation"
    """A node makes it at run time."""
    BODY_INPUT = "body_input"
    """A subgraph's formal input: bytes that the enclosing node hands in."""

    # An enum's own is worked out by Python code at each look-up.
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
    """The shape is the file's word alone, or of a batch that the node could not follow."""

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


# A large graph has few shapes, each of many tensors: what follows from one is worked out once.


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
    """As in the file, scope before it; an unnamed node is ``<op_type>_<place>``."""
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
    """Tensors handed in; initializers that the file lists as inputs are weights, not these."""
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
        # networkx takes as long to import as numpy, and few models are asked for their DAG.
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

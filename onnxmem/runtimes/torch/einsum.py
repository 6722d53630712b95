"""Einsum as PyTorch runs it: a batched matrix product for each pair of operands.

``with_contractions`` writes the nodes of ``sumproduct_pair`` (aten/src/ATen/native/Linear.cpp) in
the place of an Einsum. Of two operands, the labels that both and the result have become the batch,
those that are summed the inner dim, and the rest rows and columns: each operand is permuted and
reshaped to three dims, which copies it unless its strides allow a view, ``bmm`` saves that copy,
and the result is a permuted view. Operands without a label to sum are multiplied element by
element.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from onnxmem.model.graph import Graph, Node, Role, Tensor
from onnxmem.ops.linear import Contraction, contraction_of
from onnxmem.ops.registry import lookup
from onnxmem.ops.spec import Attribute, Dims, OpSpec, known_dims
from onnxmem.runtimes.torch.framework import CALL, EINSUM_OPERAND, EINSUM_SUM, PADDED_HEADS


def with_contractions(graph: Graph) -> Graph:
    """Replace each Einsum of two or more operands whose shapes are known."""
    calls = {node.name: call for node in graph.nodes if (call := _call(graph, node)) is not None}
    if not calls:
        return graph
    nodes: list[Node] = []
    tensors = dict(graph.tensors)
    for node in graph.nodes:
        if node.name in calls:
            calls[node.name].run()
            nodes += calls[node.name].nodes
            tensors |= calls[node.name].tensors
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), tensors=tensors)


def operand_calls(nodes: Iterable[Node]) -> Mapping[str, str]:
    """Nodes of operands by the node at whose end the call drops its arguments."""
    return {
        node.name: str(node.attributes[CALL])
        for node in nodes
        if node.operator is EINSUM_OPERAND or node.operator is PADDED_HEADS
    }


def _call(graph: Graph, node: Node) -> "_Call | None":
    if node.onnx_op != "Einsum" or len(node.inputs) < 2:  # noqa: PLR2004 - one operand is summed
        return None
    contraction = contraction_of(graph.call(node))
    if contraction is None or any(len(set(term)) < len(term) for term in contraction.terms):
        return None
    return _Call(graph, node, contraction)


@dataclass(frozen=True, slots=True)
class _Operand:
    """A tensor with a label for each of its axes."""

    name: str
    labels: tuple[str, ...]
    dims: Dims

    def sizes(self, labels: Iterable[str]) -> Dims:
        """The dims of labels; 1 of those that the operand does not have."""
        known = dict(zip(self.labels, self.dims, strict=True))
        return tuple(known.get(label, 1) for label in labels)


@dataclass(slots=True)
class _Call:
    """One Einsum, and the nodes that replace it, with their tensors."""

    graph: Graph
    node: Node
    contraction: Contraction
    nodes: list[Node] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    @property
    def order(self) -> tuple[str, ...]:
        """All labels as operands are aligned: those of the output, then those that are summed."""
        output = self.contraction.output
        return (*output, *sorted(self.contraction.sizes.keys() - set(output)))

    def run(self) -> None:
        """Write the nodes."""
        products = [f"{self.node.name}.bmm_{index}" for index in range(len(self.node.inputs) - 1)]
        # Autocast casts the operands of the call, whichever product reads them.
        operands = [
            self._operand(name, labels, products[-1])
            for name, labels in zip(self.node.inputs, self.contraction.terms, strict=True)
        ]
        result = operands[0]
        for index, product in enumerate(products):
            later = {label for each in operands[index + 2 :] for label in each.labels}
            result = self._contract(product, result, operands[index + 1], later)
        # What was summed is 1 by now.
        shape = result.sizes(self.contraction.output)
        self._add("Reshape", (result.name,), shape, output=self.node.outputs[0])

    def _operand(self, name: str, labels: tuple[str, ...], call: str) -> _Operand:
        dims = known_dims(self.graph.tensors[name].shape) or ()
        operand = self._add(EINSUM_OPERAND, (name,), dims, attributes={CALL: call})
        return _Operand(operand, labels, dims)

    def _contract(self, name: str, left: _Operand, right: _Operand, later: set[str]) -> _Operand:
        """Multiply two operands, and sum what neither a later one nor the output has."""
        order = self.order
        needed = later.union(self.contraction.output)
        # Labels that only one side has and nobody needs are summed first, as ``sumproduct_pair`` of
        # aten/src/ATen/native/Linear.cpp does.
        left = self._summed(left, needed.union(right.labels))
        right = self._summed(right, needed.union(left.labels))
        wide = zip(order, left.sizes(order), right.sizes(order), strict=True)
        of = {label: (rows != 1, columns != 1) for label, rows, columns in wide}
        shared = [label for label in order if of[label] == (True, True)]
        summed = [label for label in shared if label not in needed]
        # `sumproduct_pair` multiplies element by element where no label is summed.
        if not summed:
            return self._multiply(name, left, right)
        # One batched product of [batch, rows, summed] and [batch, summed, columns]: each group of
        # labels is folded into one axis, which is a view only if its labels are next to each other.
        batch = [label for label in shared if label not in summed]
        rows = [label for label in order if of[label] == (True, False)]
        columns = [label for label in order if of[label] == (False, True)]
        matrices = (
            self._laid_out(left, (batch, rows, summed)),
            self._laid_out(right, (batch, summed, columns)),
        )
        sizes = (*left.sizes((*batch, *rows)), *right.sizes(columns))
        folded = (prod(left.sizes(batch)), prod(left.sizes(rows)), prod(right.sizes(columns)))
        result = self._add("MatMul", matrices, folded, name=name)
        result = self._add("Reshape", (result,), sizes)
        kept = (*batch, *rows, *columns)
        labels = tuple(label for label in order if label in kept)
        return self._permuted(_Operand(result, kept, sizes), labels)

    def _summed(self, operand: _Operand, kept: Container[str]) -> _Operand:
        """An operand without the labels that no other one and not the output has."""
        axes = tuple(axis for axis, label in enumerate(operand.labels) if label not in kept)
        if all(operand.dims[axis] == 1 for axis in axes):
            return operand
        dims = tuple(1 if axis in axes else dim for axis, dim in enumerate(operand.dims))
        attributes: Mapping[str, Attribute] = {"axes": axes, "keepdims": 1}
        name = self._add(EINSUM_SUM, (operand.name,), dims, attributes=attributes)
        return _Operand(name, operand.labels, dims)

    def _multiply(self, name: str, left: _Operand, right: _Operand) -> _Operand:
        order = self.order
        both = [self._laid_out(each, [(label,) for label in order]) for each in (left, right)]
        dims = tuple(map(max, left.sizes(order), right.sizes(order)))
        return _Operand(self._add("Mul", both, dims, name=name), order, dims)

    def _laid_out(self, operand: _Operand, groups: Sequence[Sequence[str]]) -> str:
        """An operand with one axis for each group of labels: a view or a copy."""
        # Labels that are 1 and in no group go last, where they fold into any axis.
        labels = [label for group in groups for label in group if label in operand.labels]
        narrow = [label for label in operand.labels if label not in labels]
        dims = tuple(prod(operand.sizes(group)) for group in groups)
        permuted = self._permuted(operand, (*labels, *narrow))
        return self._add("Reshape", (permuted.name,), dims)

    def _permuted(self, operand: _Operand, labels: tuple[str, ...]) -> _Operand:
        if labels == operand.labels:
            return operand
        # A view: only a Reshape behind it may copy.
        perm = tuple(operand.labels.index(label) for label in labels)
        dims = operand.sizes(labels)
        name = self._add("Transpose", (operand.name,), dims, attributes={"perm": perm})
        return _Operand(name, labels, dims)

    def _add(
        self,
        operator: str | OpSpec,
        inputs: Sequence[str],
        dims: Dims,
        *,
        name: str = "",
        output: str = "",
        attributes: Mapping[str, Attribute] | None = None,
    ) -> str:
        """Add a node; return the name of what it writes."""
        spec = lookup(operator) if isinstance(operator, str) else operator
        name = name or f"{self.node.name}.{spec.op_type}_{len(self.nodes)}"
        if not output:
            output = f"{name}_output"
            dtype = self.graph.tensors[self.node.outputs[0]].dtype
            self.tensors[output] = Tensor(output, dtype, dims, Role.ACTIVATION)
        node = Node(
            *(name, spec.op_type, spec.domain, tuple(inputs), (output,), spec, attributes or {}),
            metadata=self.node.metadata,
        )
        self.nodes.append(node)
        return output

"""The elements of the sequences of a run, which no profile shows.

They follow from the shapes of the tensors of which a run made them: each run of a graph is followed
node by node, that of a body once per iteration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, Self

from onnxmem.model.graph import Graph, Node, body_prefix
from onnxmem.model.observed import BodyRuns, GraphRun
from onnxmem.model.sequences import erased_index, split_elements, with_piece
from onnxmem.ops.spec import Dims, known_dims

_MAKING: Final = frozenset(
    {"SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SplitToSequence"}
)
_PASSING: Final = frozenset({"Identity", "Optional", "OptionalGetElement"})
_OF_LOOP: Final = 2
"""Inputs of a Loop before the values that it carries: its trip count and its condition."""


def sequence_elements(run: GraphRun, graph: Graph) -> Mapping[str, int]:
    """The elements of each sequence of a run by its scoped name; the most that it had at once."""
    if not any(node.onnx_op in _MAKING for node in graph.all_nodes()):
        return {}
    walk = _Walk(graph)
    walk.graph(graph, "", run)
    return {name: most for name, most in walk.most.items() if name not in walk.unknown}


@dataclass(frozen=True, slots=True)
class _Elements:
    """The elements of the tensors of a sequence."""

    count: int
    pieces: tuple[int, ...] | None
    """Of each tensor, in order; ``None``: only their sum is known."""

    @classmethod
    def of(cls, pieces: Sequence[int]) -> Self:
        """The elements of known tensors."""
        return cls(sum(pieces), tuple(pieces))


@dataclass(slots=True)
class _Walk:
    """Mutable: the tensors and sequences of the iteration that is followed."""

    main: Graph
    shapes: dict[str, Dims] = field(default_factory=dict)
    """Those that the run shows, by scoped names."""
    sequences: dict[str, _Elements] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    """Sequences of which an iteration has unknown elements."""

    def graph(self, graph: Graph, prefix: str, run: GraphRun) -> None:
        """Follow one run of a graph."""
        for node in graph.nodes:
            for name in node.writes:
                self._forget(name)
                if (dims := run.shapes.get(name.removeprefix(prefix))) is not None:
                    self.shapes[name] = dims
            if node.subgraphs:
                self._bodies(node, run.bodies.get(node.writes[0].removeprefix(prefix)))
            elif node.onnx_op in _MAKING:
                self._add(node.outputs[0], self._made(node))
            elif node.onnx_op in _PASSING and node.inputs and node.inputs[0] in self.sequences:
                self._add(node.outputs[0], self.sequences[node.inputs[0]])

    def _bodies(self, node: Node, seen: BodyRuns | None) -> None:
        """Follow the runs of a node's subgraph."""
        body = None if seen is None else dict(node.subgraphs).get(seen.attribute)
        if seen is None or body is None:
            return
        prefix = body_prefix(node, seen.attribute, body)
        is_loop = node.onnx_op == "Loop"
        carried = list(node.inputs[_OF_LOOP:]) if is_loop else []
        for run in seen.runs:
            # An iteration may return its inputs in another order.
            for name, value in zip(body.inputs[_OF_LOOP:], self._values(carried), strict=False):
                self._set(name, *value)
            self.graph(body, prefix, run)
            carried = list(body.outputs[1 : 1 + len(carried)])
        returned = carried if is_loop else body.outputs if node.onnx_op == "If" else ()
        for name, value in zip(node.outputs, self._values(returned), strict=False):
            if value[1] is not None:
                self._add(name, value[1])

    def _values(self, names: Sequence[str]) -> list[tuple[Dims | None, _Elements | None]]:
        return [(self._dims(name), self.sequences.get(name)) for name in names]

    def _set(self, name: str, dims: Dims | None, elements: _Elements | None) -> None:
        """Give an input of a body what the iteration before returned."""
        self._forget(name)
        if dims is not None:
            self.shapes[name] = dims
        if elements is not None:
            self.sequences[name] = elements

    def _forget(self, name: str) -> None:
        self.shapes.pop(name, None)
        self.sequences.pop(name, None)

    def _add(self, name: str, elements: _Elements | None) -> None:
        if elements is None:
            self.unknown.add(name)
        else:
            self.sequences[name] = elements
            self.most[name] = max(self.most.get(name, 0), elements.count)

    def _dims(self, name: str) -> Dims | None:
        if not name or name in self.sequences:
            return None
        return self.shapes.get(name) or known_dims(self.main.tensors[name].shape)

    def _count(self, name: str) -> int | None:
        dims = self._dims(name)
        return None if dims is None else prod(dims)

    def _made(self, node: Node) -> _Elements | None:
        """The sequence that a node makes; ``None``: unknown."""
        if node.onnx_op == "SplitToSequence":
            return self._split(node)
        if node.onnx_op in {"SequenceConstruct", "SequenceEmpty"}:
            counts = [self._count(name) for name in node.inputs]
            known = [count for count in counts if count is not None]
            return _Elements.of(known) if len(known) == len(counts) else None
        before = self.sequences.get(node.inputs[0])
        if before is None:
            return None
        if node.onnx_op == "SequenceErase":
            return self._erased(node, before)
        added = self._count(node.inputs[1])
        return None if added is None else self._inserted(node, before, added)

    def _inserted(self, node: Node, before: _Elements, added: int) -> _Elements:
        pieces = before.pieces
        if pieces is not None:
            pieces = with_piece(self.main, node, pieces, added)
        return _Elements(before.count + added, pieces)

    def _erased(self, node: Node, before: _Elements) -> _Elements | None:
        pieces = before.pieces
        index = None if pieces is None else erased_index(self.main, node, pieces)
        if pieces is None or index is None:
            return None
        return _Elements.of((*pieces[:index], *pieces[index + 1 :]))

    def _split(self, node: Node) -> _Elements | None:
        """The pieces of a tensor: together its elements, however long each is."""
        dims = self._dims(node.inputs[0])
        if dims is None:
            return None
        pieces = split_elements(self.main, node, dims)
        return _Elements(prod(dims), None) if pieces is None else _Elements.of(pieces)

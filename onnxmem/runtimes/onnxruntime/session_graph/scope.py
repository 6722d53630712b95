"""What is known of the values in sight of a graph that is rehearsed: their types and elements."""

from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Final

import numpy as np
import onnx
import onnx.helper

from onnxmem.model.constants import Array
from onnxmem.model.shapes.folding import Folder
from onnxmem.model.shapes.node_inference import NodeInference
from onnxmem.model.shapes.propagation import add_known
from onnxmem.model.traversal import onnx_op
from onnxmem.model.value_types import dense_type, dims_of, is_complete, merged

Types = ChainMap[str, onnx.TypeProto]
Values = ChainMap[str, Array]


@dataclass(frozen=True, slots=True)
class Fact:
    """One value: its type and its elements, as far as they are known."""

    kind: onnx.TypeProto | None = None
    elements: Array | None = None

    def key(self) -> tuple[bytes, bytes]:
        """What tells it from another fact of the same name."""
        kind = b"" if self.kind is None else self.kind.SerializeToString()
        return kind, b"" if self.elements is None else self.elements.tobytes()

    @property
    def truth(self) -> bool | None:
        """A condition; ``None``: unknown."""
        if self.elements is None or self.elements.size != 1:
            return None
        return bool(self.elements.item())


UNKNOWN = Fact()


@dataclass(frozen=True, slots=True)
class Scope:
    """Facts by name; those of the graphs around stand behind a graph's own."""

    types: Types = field(default_factory=ChainMap)
    values: Values = field(default_factory=ChainMap)
    place: str = ""
    """What tells the names of its graph from those of others: a prefix."""

    def inside(self, place: str) -> "Scope":
        """The scope of a subgraph."""
        return Scope(self.types.new_child(), self.values.new_child(), place)

    def fact(self, name: str) -> Fact:
        """What is known of a value."""
        return Fact(self.types.get(name), self.values.get(name))

    def learn(self, name: str, fact: Fact) -> None:
        """Enter what is known of a value; what is not known stays as it was."""
        if name and fact.kind is not None:
            self.types[name] = fact.kind
        if name and fact.elements is not None:
            self.values[name] = fact.elements


_ABSORBING: Final = {"And": False, "Or": True}
"""Operator -> the condition that makes the outcome, whatever the other one is."""


@dataclass(slots=True)
class Knowledge:
    """Asks what is known of single nodes of one model, and of what its graphs say beforehand."""

    model: onnx.ModelProto
    num_asked: int = 0
    """Nodes that had to be worked out."""
    _asker: NodeInference = field(init=False)
    _folder: Folder = field(init=False)
    _said: dict[str, Scope] = field(default_factory=dict)
    """By the place of a graph: what it says before its first node runs."""
    _last: dict[str, tuple[tuple[object, ...] | None, Mapping[str, Fact]]] = field(
        default_factory=dict
    )
    """By a node's first output: what the node was last fed, and what it made of that."""

    def __post_init__(self) -> None:
        self._asker = NodeInference(self.model)
        self._folder = Folder(self.model.opset_import)

    @property
    def opsets(self) -> Mapping[str, int]:
        """Versions of the operators by their domains."""
        return self._asker.opsets

    def tell(self, graph: onnx.GraphProto, scope: Scope, *, with_types: bool) -> None:
        """Enter what a graph says of itself: its constants, and the types that were inferred.

        These are of what the graph is fed first, and may differ in a later iteration.
        """
        if scope.place not in self._said:
            said = self._said[scope.place] = Scope()
            add_known(graph, said.types, said.values)
        said = self._said[scope.place]
        fed = {value.name for value in graph.input}
        fed.update(name for node in graph.node if node.input for name in node.output)
        scope.values.update(said.values)
        scope.types.update(
            (name, kind) for name, kind in said.types.items() if with_types or name not in fed
        )

    def work_out(self, node: onnx.NodeProto, scope: Scope) -> None:
        """Enter what is known of a node's outputs.

        A node whose types are known is asked for elements alone, and one that is fed the same as
        before not at all.
        """
        names = [name for name in node.output if name]
        is_open = not all(is_complete(scope.types.get(name)) for name in names)
        if not is_open and not self._may_be_folded(node, scope):
            return
        fed = tuple(scope.fact(name).key() for name in (*node.input, *names))
        key = scope.place + names[0]
        before, made = self._last.get(key, (None, {}))
        if before != fed:
            made = dict(self._made(node, scope, is_open=is_open))
            self._last[key] = (fed, made)
            self.num_asked += 1
        for name, fact in made.items():
            scope.learn(name, fact)

    def types_of(self, node: onnx.NodeProto, scope: Scope) -> Mapping[str, onnx.TypeProto]:
        """The types of a node's outputs as far as it is known what it does."""
        found = self._asker.output_types(node, scope.types, scope.values)
        return {name: merged(scope.types.get(name), kind) for name, kind in found.items()}

    def _may_be_folded(self, node: onnx.NodeProto, scope: Scope) -> bool:
        if onnx_op(node) in {"Shape", "Size"}:
            return True
        are_known = [name in scope.values for name in node.input if name]
        return any(are_known) if onnx_op(node) in _ABSORBING else all(are_known or [False])

    def _made(
        self, node: onnx.NodeProto, scope: Scope, *, is_open: bool
    ) -> Iterable[tuple[str, Fact]]:
        types: dict[str, onnx.TypeProto] = {}
        if is_open:
            types.update(self.types_of(node, scope))
        seen = scope.types.new_child(types)
        folded = self._folder.values_of(node, scope.values, seen) or _absorbed(node, scope, seen)
        for name in filter(None, node.output):
            elements = folded.get(name)
            kind = types.get(name)
            if elements is not None and not is_complete(seen.get(name)):
                number = onnx.helper.np_dtype_to_tensor_dtype(elements.dtype)
                kind = dense_type(number, elements.shape)
            yield name, Fact(kind, elements)


def _absorbed(
    node: onnx.NodeProto, scope: Scope, types: Mapping[str, onnx.TypeProto]
) -> dict[str, Array]:
    """What a condition makes of one that is not known."""
    outcome = _ABSORBING.get(onnx_op(node))
    dims = dims_of(types.get(node.output[0]))
    if outcome is None or dims is None or prod(dims) != 1:
        return {}
    is_made = any(scope.fact(name).truth is outcome for name in node.input)
    return {node.output[0]: np.full(dims, outcome)} if is_made else {}

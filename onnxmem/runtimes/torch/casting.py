"""A graph under autocast: every tensor in the type that it has there, every cast a node.

Autocast casts an operand each time that it is read, so three layers that read one tensor make three
copies; of a trained parameter it makes one, which it holds as long as it is on (``cached_cast`` of
aten/src/ATen/autocast_mode.cpp). The operands of one call are cast from the last to the first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from onnxmem.model.graph import DType, Graph, Node, Role, Tensor
from onnxmem.ops.registry import lookup
from onnxmem.ops.spec import Shape
from onnxmem.runtimes.torch.autocast import Lists, Policy
from onnxmem.runtimes.torch.composites.framework import FRAMEWORK
from onnxmem.runtimes.torch.precision import is_castable
from onnxmem.runtimes.torch.recurrent_layer import is_recurrent

_FLOAT_BITS = 32
_OF_FIRST = frozenset(
    {
        *("BatchNormalization", "GroupNormalization", "InstanceNormalization"),
        *("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"),
        *("MaxRoiPool", "Resize", "RoiAlign", "Upsample"),
    }
)
"""Operators that write the type of their data, whatever their parameters are."""

_VIEWS = frozenset({"Expand", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_ELEMENTWISE = frozenset({"Add", "Div", "Mul", "Sub"})


@dataclass(frozen=True, slots=True)
class CastGraph:
    """A graph with autocast's casts in it."""

    graph: Graph
    cached: frozenset[str]
    """The parameters' copies that autocast holds."""
    callers: Mapping[str, str]
    """Casts by the nodes that they are made for; until one is done its caller holds the operand."""
    packed: Mapping[str, tuple[str, ...]]
    """Weights that nodes put together, by what the framework reads instead: parameters' copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Autocast:
    """What autocast goes by."""

    low: DType
    """The type of 16 bits."""
    lists: Lists
    trained: frozenset[str]
    """Storage keys of the parameters."""
    constants: frozenset[str]
    """Tensors that a framework has before the step, in float32."""
    packed: Mapping[str, tuple[str, ...]]
    """Weights that nodes put together, by the parameters that recurrent layers read instead."""


def with_casts(graph: Graph, autocast: Autocast) -> CastGraph:
    """Put autocast's casts into a graph."""
    tensors = {
        name: replace(tensor, dtype=DType.FLOAT32) if is_castable(tensor) else tensor
        for name, tensor in graph.tensors.items()
    }
    weights = _weights(graph)
    trips = _round_trips(graph, autocast, weights)
    casting = _Casting(graph, autocast, tensors, weights, trips)
    for node in graph.nodes:
        casting.run(node)
    copies, packed = casting.copies, autocast.packed
    return CastGraph(
        replace(graph, nodes=tuple(casting.nodes), tensors=tensors),
        frozenset(casting.cached.values()),
        casting.callers,
        {name: tuple(copies.get(each, each) for each in read) for name, read in packed.items()},
    )


def _weights(graph: Graph) -> frozenset[str]:
    """Weights and what views make of them."""
    found = {name for name, tensor in graph.tensors.items() if tensor.role is Role.WEIGHT}
    for node in graph.nodes:
        if node.onnx_op in _VIEWS and node.inputs[0] in found:
            found.update(node.writes)
    return frozenset(found)


def _round_trips(graph: Graph, autocast: Autocast, weights: frozenset[str]) -> Mapping[str, str]:
    """Pairs of casts between equal types, by what they write.

    `x.float()` and the `.to(x.dtype)` that ends what is worked out in float32 are both written as
    casts from float32 to float32: of the first, the value is empty, of the second it is `x`.
    """
    trips: dict[str, str] = {}
    starts: dict[str, Node] = {}
    for node in graph.nodes:
        begun = next((starts[name] for name in node.reads if name in starts), None)
        is_idle = _is_idle(graph, node) and node.inputs[0] not in weights
        if is_idle and begun is not None:
            trips[begun.outputs[0]] = ""
            trips[node.outputs[0]] = begun.inputs[0]
        elif is_idle:
            starts[node.outputs[0]] = node
        elif begun is not None and autocast.lists.get(node.op_type) is not Policy.LOWER:
            starts.update(dict.fromkeys(node.writes, begun))
    return trips


def _is_idle(graph: Graph, node: Node) -> bool:
    """Whether it casts between types that are equal in the file."""
    if node.onnx_op != "Cast":
        return False
    before, after = (graph.tensors[names[0]].dtype for names in (node.reads, node.writes))
    return before == after


@dataclass(slots=True)
class _Casting:
    graph: Graph
    autocast: Autocast
    tensors: dict[str, Tensor]
    weights: frozenset[str]
    """And their views."""
    trips: Mapping[str, str]
    """See `_round_trips`."""
    nodes: list[Node] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    """What identifies a parameter, transposed or not, by the names that it has."""
    cached: dict[tuple[str, Shape | None], str] = field(default_factory=dict)
    callers: dict[str, str] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    """Copies of the parameters that recurrent layers read."""
    hanging: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Parameters behind a cast between equal types, by the names that have the type it gives."""

    def run(self, node: Node) -> None:
        """Take one node over, its operands cast and its outputs in their type."""
        self._follow(node)
        self._settle(node)
        if self.autocast.constants.issuperset(node.writes):
            self.nodes.append(node)
            return
        policy = self._policy(node)
        target = self._target(node, policy)
        if target is not None:
            node = self._with_operands_in(node, target)
        result = self._result(node, policy)
        for name in node.writes:
            if is_castable(self.tensors[name]):
                self.tensors[name] = replace(self.tensors[name], dtype=result)
        self.nodes.append(node)

    def _follow(self, node: Node) -> None:
        """Know the parameters that a node reads; a linear layer casts one before transposing it."""
        for name in node.reads:
            tensor = self.graph.tensors[name]
            if tensor.role is Role.WEIGHT and tensor.storage_key in self.autocast.trained:
                self.keys[name] = tensor.storage_key
        if node.onnx_op == "Transpose" and node.inputs[0] in self.keys:
            perm = node.attributes.get("perm", "")
            self.keys[node.outputs[0]] = f"{self.keys[node.inputs[0]]} {perm}"

    def _settle(self, node: Node) -> None:
        """Take the casts of parameters between equal types that are to a neighbour's type.

        A file writes `weight.to(x.dtype)` as a cast from float32 to float32. What an operator reads
        beside a tensor of 16 bits was cast to that tensor's type: no one casts a parameter to what
        it is already.
        """
        first = node.inputs[0] if node.inputs else ""
        if node.onnx_op in _VIEWS and first in self.hanging:
            self.hanging[node.outputs[0]] = (*self.hanging[first], node.outputs[0])
        elif node.onnx_op == "Cast" and first in self.weights and _is_idle(self.graph, node):
            self.hanging[node.outputs[0]] = (node.outputs[0],)
        elif node.onnx_op in _ELEMENTWISE:
            self._narrow(node)

    def _narrow(self, node: Node) -> None:
        low = self.autocast.low
        others = [self.tensors[name] for name in node.reads if name not in self.hanging]
        if any(tensor.dtype is low and tensor.shape != () for tensor in others):
            for name in (each for read in node.reads for each in self.hanging.pop(read, ())):
                self.tensors[name] = replace(self.tensors[name], dtype=low)

    def _policy(self, node: Node) -> Policy | None:
        is_known = node.domain in {"", FRAMEWORK}
        policy = self.autocast.lists.get(node.op_type) if is_known else None
        if policy is not Policy.HALF_TO_FLOAT:
            return policy
        is_half = self.autocast.low is DType.FLOAT16
        return Policy.FLOAT32_RESULT if is_half else Policy.FLOAT32

    def _target(self, node: Node, policy: Policy | None) -> DType | None:
        """The type that all operands are cast to, if they are."""
        if policy is Policy.LOWER:
            return self.autocast.low
        if policy is Policy.FLOAT32:
            return DType.FLOAT32
        return self._promoted(node.inputs) if policy is Policy.PROMOTE else None

    def _result(self, node: Node, policy: Policy | None) -> DType:
        """The type of what a node writes, where it is one that autocast speaks of."""
        if policy is Policy.LOWER:
            return self.autocast.low
        if policy in {Policy.FLOAT32, Policy.FLOAT32_RESULT} or node.subgraphs:
            return DType.FLOAT32
        if node.onnx_op == "Cast":
            return self._cast_type(node)
        if node.onnx_op == "CastLike":
            return self._promoted(node.inputs[1:])
        return self._promoted(node.inputs[:1] if node.onnx_op in _OF_FIRST else node.inputs)

    def _promoted(self, names: Iterable[str]) -> DType:
        """The widest type among operands; one of no dims counts only beside others like it."""
        found = [self.tensors[name] for name in names if name]
        floating = [tensor for tensor in found if is_castable(tensor)]
        counted = [tensor for tensor in floating if tensor.shape != ()] or floating
        low = self.autocast.low
        is_low = bool(counted) and all(tensor.dtype is low for tensor in counted)
        return low if is_low else DType.FLOAT32

    def _cast_type(self, node: Node) -> DType:
        """The type that the file's own cast gives: between equal types it hands on what it gets."""
        trip = self.trips.get(node.outputs[0])
        if trip is not None:
            return DType.FLOAT32 if trip == "" else self._promoted((trip,))
        if _is_idle(self.graph, node):
            return self._promoted(node.inputs)
        after = self.graph.tensors[node.writes[0]].dtype
        is_narrow = after is not None and (after.bits or 0) < _FLOAT_BITS
        return self.autocast.low if is_narrow else DType.FLOAT32

    def _with_operands_in(self, node: Node, target: DType) -> Node:
        inputs = list(node.inputs)
        for place, name in reversed(tuple(enumerate(node.inputs))):
            if name in self.autocast.packed and is_recurrent(node.onnx_op):
                self.tensors[name] = replace(self.tensors[name], dtype=target)
                for parameter in self.autocast.packed[name]:
                    self.copies[parameter] = self._copied(node, place, parameter, target)
            elif name and self._is_cast(name, target):
                inputs[place] = self._copied(node, place, name, target)
        return replace(node, inputs=tuple(inputs))

    def _is_cast(self, name: str, target: DType) -> bool:
        """Whether an operand is of the other type, and no number of the program."""
        tensor = self.tensors[name]
        is_number = tensor.shape == () and name in self.graph.values
        return is_castable(tensor) and tensor.dtype is not target and not is_number

    def _copied(self, node: Node, place: int, name: str, target: DType) -> str:
        """Put a cast before a node, unless the copy is there; say the copy's name."""
        tensor = self.tensors[name]
        key = self.keys.get(name)
        if key is not None and (key, tensor.shape) in self.cached:
            return self.cached[key, tensor.shape]
        maker, copy = f"{node.name}/Cast_{place}", f"{name} as {node.name} reads it"
        if copy in self.tensors:
            copy = f"{copy}, input {place}"
        if key is not None:
            maker, copy = f"{node.name}/Cast of {name}", f"copy of {name}"
            self.cached[key, tensor.shape] = copy
        self.tensors[copy] = Tensor(copy, target, tensor.shape, Role.ACTIVATION)
        self.nodes.append(Node(maker, "Cast", "", (name,), (copy,), lookup("Cast")))
        self.callers[maker] = node.name
        return copy

"""Precisions: how many bytes an element takes in each of its roles during training; autocast.

A precision applies to floating elements of at most 32 bits, whatever the file stores; float64,
integers and booleans have their own size.

- ``fp32``: everything float32.
- ``mixed-fp16``, ``mixed-bf16``: as PyTorch's autocast does it on a GPU. Weights, gradients and
  optimizer state are float32. The list that an operator is on (``autocast_lists``) decides what its
  operands are cast to: matmuls and convolutions read 16 bits, softmax, the normalizations and
  ``mse_loss`` float32, all others the type that they get. Cross entropy takes its log-softmax in
  the type of the outputs and casts that to float32. One 16-bit copy of each parameter that a matmul
  reads stays in autocast's cache through the forward pass and the loss, and then as long as a
  backward formula reads it; a parameter's gradient is computed in 16 bits and cast. The gradient
  scaler's few bytes are left out.
- ``bf16``: weights, gradients, state and activations all bfloat16, no float32 master copy.
- ``fp16-master``, ``bf16-master``: weights, gradients and activations of 16 bits, and an optimizer
  that has a float32 master copy of the weights, with float32 state, and steps that one: Apex O2,
  DeepSpeed, Megatron. It reads float32 copies of the gradients. They replace those of 16 bits
  tensor by tensor before the step, as in Megatron's ``_copy_model_grads_to_main_grads``, and are
  freed after it; DeepSpeed's ``FP16_Optimizer`` flattens its own, for a moment beside the copies.
  Gradients that are accumulated in float32 over passes are not covered: 20 bytes then.

Per parameter with Adam, without activations, between forward and backward: 16 bytes, in mixed
precision up to 2 more for its copy, 8, and 16; with master weights 18 while the optimizer steps,
and its temporaries.

Under autocast every tensor of a graph gets the type that it has there, and every cast is a node
(``with_casts``): an operand is cast each time that it is read, so three layers that read one tensor
make three copies; a trained parameter has one copy, which is cached while autocast is enabled.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from onnxmem.errors import UsageError
from onnxmem.model.graph import FX_NODE, DType, Graph, Node, Role, Tensor
from onnxmem.ops.registry import lookup
from onnxmem.ops.spec import Operand, Shape
from onnxmem.runtimes.torch.autocast_lists import Lists, Policy, lists_of
from onnxmem.runtimes.torch.framework import FRAMEWORK, MATH, RANDOM, SQUARE, is_idle_cast
from onnxmem.runtimes.torch.recurrent import are_cells, is_recurrent

_MATRICES_AND_BIASES = range(1, 4)
"""Their indices among the inputs of a recurrent layer."""
_FIRST_STATE = 5

_CASTABLE = frozenset(
    dtype
    for dtype in DType
    if dtype.is_floating and dtype.bits and dtype.bits <= 32  # noqa: PLR2004 - float64 is not cast
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bits per floating element, by what it is."""

    name: str
    weight_bits: int
    """Of parameters and floating buffers and their gradients."""
    activation_bits: int
    """Of activations that autocast does not cast."""
    loss_bits: int
    master_bits: int = 0
    """Of the copy of the parameters that the optimizer steps; 0 where it steps the weights."""
    autocast: DType | None = None
    """The lower-precision type of autocast, where it is enabled."""
    autocast_device: str = "cuda"
    """The device whose lists autocast follows."""
    torch: str = "latest"
    """The release of PyTorch whose lists autocast follows."""
    source: str

    @property
    def lists(self) -> Lists:
        """Which operators autocast casts the operands of."""
        return lists_of(self.autocast_device, self.torch)

    @property
    def stepped_bits(self) -> int:
        """Bits of the optimizer's state and temporaries, and of the gradients that it reads."""
        return self.master_bits or self.weight_bits

    @property
    def is_bfloat16(self) -> bool:
        """Whether elements of 16 bits are bfloat16."""
        return "bf16" in self.name

    def bits_in_step(self, tensor: Tensor) -> int | None:
        """Bits per element of a tensor in a pass; under autocast those of its type."""
        dtype = tensor.dtype
        if self.autocast is None and dtype in _CASTABLE:
            return self.activation_bits
        return dtype.bits if dtype else None


def is_castable(tensor: Tensor) -> bool:
    """Whether precisions, and autocast, apply to a tensor's type."""
    return tensor.dtype in _CASTABLE


def operand_in(tensor: Tensor, bits: int) -> Operand:
    """A tensor with elements of ``bits``, where precisions apply to its type."""
    known = bits if is_castable(tensor) else tensor.operand().bits
    return Operand(tensor.shape, known)


_MASTER = "ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054), section 3.1: 2 + 2 + 12 with Adam"
_AUTOCAST = "torch.amp.autocast: float32 parameters, casts cached while it is on"

_ALL = (
    Precision(
        name="fp32",
        weight_bits=32,
        activation_bits=32,
        loss_bits=32,
        source="one type throughout",
    ),
    Precision(
        name="mixed-fp16",
        weight_bits=32,
        activation_bits=32,
        loss_bits=32,
        autocast=DType.FLOAT16,
        source=_AUTOCAST,
    ),
    Precision(
        name="mixed-bf16",
        weight_bits=32,
        activation_bits=32,
        loss_bits=32,
        autocast=DType.BFLOAT16,
        source=_AUTOCAST,
    ),
    Precision(
        name="bf16",
        weight_bits=16,
        activation_bits=16,
        loss_bits=16,
        source="one type throughout",
    ),
    Precision(
        name="fp16-master",
        weight_bits=16,
        activation_bits=16,
        loss_bits=32,
        master_bits=32,
        source=_MASTER,
    ),
    Precision(
        name="bf16-master",
        weight_bits=16,
        activation_bits=16,
        loss_bits=32,
        master_bits=32,
        source=_MASTER,
    ),
)

PRECISIONS: Mapping[str, Precision] = MappingProxyType({known.name: known for known in _ALL})


def precision_named(name: str, torch: str = "latest") -> Precision:
    """Find a precision, as a release of PyTorch has it.

    :raises UsageError: there is none of that name.
    """
    if name not in PRECISIONS:
        message = f"precision {name!r}: not known; one of {', '.join(PRECISIONS)}"
        raise UsageError(message)
    return replace(PRECISIONS[name], torch=torch)


_FLOAT_BITS = 32
_OF_FIRST = frozenset(
    {
        *("BatchNormalization", "GroupNormalization", "InstanceNormalization"),
        *("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"),
        *("MaxRoiPool", "Resize", "RoiAlign", "Upsample"),
    }
)
"""Operators whose output has the type of their first input, whatever their parameters' is."""

_VIEWS = frozenset({"Expand", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_READ_HALF = frozenset({"LogSoftmax", "Softmax"})
_FILLED = frozenset({"ConstantOfShape", "Expand"})
_DRAWN_BY = frozenset({"Cast", "Floor"})
"""Operators that make numbers of what was drawn: of a comparison, or of a sum."""
_ELEMENTWISE = frozenset({"Add", "Div", "Max", "Min", "Mul", "Sub"})
_MADE_LIKE = re.compile(
    r"\[target=torch\.ops\.aten\.(?:new_(?:full|ones|zeros)|(?:full|ones|zeros)_like)\."
    r"\w+\]\(args = \(%(\w+)(?!.*dtype: )"
)
"""A call of torch.export whose result has the type of its first operand: ``x.new_zeros(2, 3)``."""


@dataclass(frozen=True, slots=True)
class CastGraph:
    """A graph with autocast's casts as nodes."""

    graph: Graph
    cached: frozenset[str]
    """The copies of parameters in autocast's cache."""
    callers: Mapping[str, str]
    """Casts by the nodes whose operands they cast."""
    packed: Mapping[str, tuple[str, ...]]
    """Weights that nodes pack, by what the framework reads instead: copies of parameters."""
    widening: tuple[str, ...] = ()
    """Constants that the step fills, taken for float32, which make a result float32 that would have
    16 bits without them: see ``_Casting.widening``."""
    narrowed: tuple[str, ...] = ()
    """Nodes whose result has 16 bits only because they are assumed to run in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Autocast:
    """What autocast's casts depend on."""

    low: DType
    """The lower-precision type, of 16 bits."""
    lists: Lists
    trained: frozenset[str]
    """Storage keys of the parameters."""
    constants: frozenset[str]
    """Tensors that a framework computes before the step, in float32."""
    packed: Mapping[str, tuple[str, ...]]
    """Weights that nodes pack, by the parameters that recurrent layers read instead."""
    in_place: Mapping[str, bool] = field(default_factory=dict)
    """The nodes that write over their first operand, each with whether that is assumed."""


def with_casts(graph: Graph, autocast: Autocast) -> CastGraph:
    """Insert autocast's casts into a graph."""
    # Every tensor starts as float32 and gets its type when its producer has run: nodes are in
    # running order, so that a node's operands have their final types when it is looked at.
    tensors = {
        name: replace(tensor, dtype=DType.FLOAT32) if is_castable(tensor) else tensor
        for name, tensor in graph.tensors.items()
    }
    weights = _weights(graph)
    # Found on the types of the export, before any of them changes.
    round_trips = _round_trips(graph, autocast, weights)
    casting = _Casting(graph, autocast, tensors, weights, round_trips)
    for node in graph.nodes:
        casting.run(node)
    copies, packed = casting.copies, autocast.packed
    return CastGraph(
        replace(graph, nodes=tuple(casting.nodes), tensors=tensors),
        frozenset(casting.cached.values()),
        casting.callers,
        {name: tuple(copies.get(each, each) for each in read) for name, read in packed.items()},
        tuple(casting.widening),
        tuple(casting.narrowed),
    )


def _weights(graph: Graph) -> frozenset[str]:
    """Weights and their views."""
    found = {name for name, tensor in graph.tensors.items() if tensor.role is Role.WEIGHT}
    for node in graph.nodes:
        if node.onnx_op in _VIEWS and node.inputs[0] in found:
            found.update(node.writes)
    return frozenset(found)


def _round_trips(graph: Graph, autocast: Autocast, weights: frozenset[str]) -> Mapping[str, str]:
    """Pairs of casts between equal types, by what they write.

    The value is empty for the first cast of a pair, and for the second the tensor to whose type it
    casts back.
    """
    # `x.float()` and the `.to(x.dtype)` that ends a computation in float32 are both exported as
    # casts from float32 to float32, for the export ran without autocast. In training they are real
    # casts. `x.square()` is float32 before the first cast; the second casts to the type of `x`.
    # `starts` has the tensors that depend on a first cast, up to the next cast or matmul.
    trips: dict[str, str] = {}
    starts: dict[str, Node] = {}
    squared = {n.outputs[0]: n.inputs[0] for n in graph.nodes if n.op_type == SQUARE.op_type}
    for node in graph.nodes:
        begun = next((starts[name] for name in node.reads if name in starts), None)
        is_own = MATH not in node.attributes
        is_idle = is_own and is_idle_cast(graph, node) and node.inputs[0] not in weights
        if is_idle and begun is not None:
            trips[begun.outputs[0]] = ""
            trips[node.outputs[0]] = squared.get(begun.inputs[0], begun.inputs[0])
        elif is_idle:
            starts[node.outputs[0]] = node
        elif begun is not None and autocast.lists.get(node.op_type) is not Policy.LOWER:
            starts.update(dict.fromkeys(node.writes, begun))
    return trips


@dataclass(slots=True)
class _Casting:
    graph: Graph
    autocast: Autocast
    tensors: dict[str, Tensor]
    weights: frozenset[str]
    """And their views."""
    round_trips: Mapping[str, str]
    """See `_round_trips`."""
    nodes: list[Node] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    """What identifies a parameter, by its names."""
    transposed: dict[str, Node] = field(default_factory=dict)
    """The nodes that transpose parameters, by what they write."""
    cached: dict[tuple[str, Shape | None], str] = field(default_factory=dict)
    callers: dict[str, str] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    """Copies of the parameters that recurrent layers read."""
    shaped_like: dict[str, str] = field(default_factory=dict)
    """Activations by their shapes."""
    filled: set[str] = field(default_factory=set)
    """Constants in the shape of an activation, and their views."""
    unlike: dict[str, str] = field(default_factory=dict)
    """Constants whose shape is written in dims, and their views, by the constant."""
    widening: dict[str, None] = field(default_factory=dict)
    """Those that alone make a result float32. ``torch.zeros(n)`` is float32, ``x.new_zeros(n)``
    has the type of ``x``, and a file without the names of calls has the same nodes of both."""
    narrowed: list[str] = field(default_factory=list)
    """See ``CastGraph.narrowed``."""
    drawn: set[str] = field(default_factory=set)
    """Random numbers, and what is computed of them alone."""
    untyped: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Parameters after a cast between equal types whose target type is not known yet, each with
    all tensors that have that type."""

    def run(self, node: Node) -> None:
        """Append one node with its operands cast, and give its outputs their types."""
        self._track_parameters(node)
        self._resolve_parameter_casts(node)
        # Constants are computed before the step, outside of autocast.
        if self.autocast.constants.issuperset(node.writes):
            self._type_constant(node)
            self.nodes.append(node)
            return
        policy = self._policy(node)
        if self.unlike and policy in {None, Policy.PROMOTE}:
            self._find_widening(node)
        target = self._target(node, policy)
        states = self._cell_type(node)
        if target is not None:
            node = self._with_operands_in(node, target)
        result = states or self._result(node, policy)
        if node.onnx_op in RANDOM or (self.drawn and self._reads_drawn_numbers(node)):
            self.drawn.update(node.writes)
        for name in node.writes:
            if is_castable(self.tensors[name]):
                self.tensors[name] = replace(self.tensors[name], dtype=result)
        self.nodes.append(node)

    def _type_constant(self, node: Node) -> None:
        """Give a constant in the shape of an activation that activation's type: `zeros_like`."""
        name, first = node.outputs[0], node.inputs[0] if node.inputs else ""
        if node.onnx_op == "Shape":
            self.shaped_like[name] = first
        like = self._type_source(node)
        if like is not None and is_castable(self.tensors[like]):
            self.filled.add(name)
            if is_castable(self.tensors[name]):
                self.tensors[name] = replace(self.tensors[name], dtype=self.tensors[like].dtype)
        elif node.onnx_op in _VIEWS and first in self.unlike:
            self.unlike[name] = self.unlike[first]

    def _type_source(self, node: Node) -> str | None:
        """The tensor whose type a constant has; ``None``: float32, or the file does not show it."""
        # `torch.zeros(x.shape)` is float32; exporters write the shape's dims apart for it.
        shape = node.inputs[-1] if node.inputs else ""
        if node.onnx_op == "CastLike":
            return shape or None
        is_table = node.onnx_op == "Expand" and self.tensors[node.inputs[0]].num_elements != 1
        if node.onnx_op in _FILLED and not is_table:
            made = _MADE_LIKE.search(node.metadata.get(FX_NODE, ""))
            like = self.shaped_like.get(shape)
            if made is not None and made[1] in self.tensors:
                like = made[1]
            elif like is None and FX_NODE not in node.metadata and shape not in self.graph.values:
                self.unlike[node.outputs[0]] = node.outputs[0]
            if like is not None:
                return like
        is_view = node.onnx_op in _VIEWS and node.inputs[0] in self.filled
        return node.inputs[0] if is_view else None

    def _find_widening(self, node: Node) -> None:
        """Note the constants beside which all other operands of a node have 16 bits."""
        wide = [self.unlike[name] for name in node.inputs if name in self.unlike]
        others = [name for name in node.inputs if name not in self.unlike]
        # It matters only where the constant makes a 16-bit result float32.
        if wide and self._promoted(others) is self.autocast.low:
            self.widening.update(dict.fromkeys(wide))

    def _track_parameters(self, node: Node) -> None:
        """Give keys to the parameters that a node reads, and note transposed ones."""
        for name in node.reads:
            tensor = self.graph.tensors[name]
            if tensor.role is Role.WEIGHT and tensor.storage_key in self.autocast.trained:
                self.keys[name] = tensor.storage_key
        if node.onnx_op == "Transpose" and node.inputs[0] in self.keys:
            self.transposed[node.outputs[0]] = node

    def _resolve_parameter_casts(self, node: Node) -> None:
        """Find the type of parameters that the network itself casts to an activation's type."""
        # `weight.to(x.dtype)` is exported as a cast from float32 to float32. An elementwise
        # operator that reads it beside a tensor of 16 bits shows that the cast is to that type:
        # nobody casts a parameter to the type that it has.
        first = node.inputs[0] if node.inputs else ""
        if node.onnx_op in _VIEWS and first in self.untyped:
            self.untyped[node.outputs[0]] = (*self.untyped[first], node.outputs[0])
        elif node.onnx_op == "Cast" and first in self.weights and is_idle_cast(self.graph, node):
            self.untyped[node.outputs[0]] = (node.outputs[0],)
        elif node.onnx_op in _ELEMENTWISE:
            self._lower_untyped(node)

    def _lower_untyped(self, node: Node) -> None:
        low = self.autocast.low
        others = [self.tensors[name] for name in node.reads if name not in self.untyped]
        if any(tensor.dtype is low and tensor.shape != () for tensor in others):
            for name in (each for read in node.reads for each in self.untyped.pop(read, ())):
                self.tensors[name] = replace(self.tensors[name], dtype=low)

    def _policy(self, node: Node) -> Policy | None:
        if MATH in node.attributes:
            return None if node.onnx_op == "Cast" else Policy.FLOAT32
        is_known = node.domain in {"", FRAMEWORK}
        policy = self.autocast.lists.get(node.op_type) if is_known else None
        # The kernel reads float16 and writes float32; bfloat16 is cast first (`softmax` of
        # aten/src/ATen/native/SoftMax.cpp: half_to_float).
        is_cast = node.op_type in _READ_HALF and self.autocast.low is not DType.FLOAT16
        return Policy.FLOAT32 if policy is Policy.FLOAT32_RESULT and is_cast else policy

    def _target(self, node: Node, policy: Policy | None) -> DType | None:
        """The type that all operands are cast to; ``None`` if they are not cast."""
        if policy is Policy.LOWER:
            return self.autocast.low
        if policy is Policy.FLOAT32:
            return DType.FLOAT32
        return self._promoted(node.inputs) if policy is Policy.PROMOTE else None

    def _result(self, node: Node, policy: Policy | None) -> DType:
        """The type of a node's outputs, where autocast applies to them."""
        # Stochastic depth draws a number for each sample in the type of what it scales (drop_path
        # of timm/layers/drop.py, torchvision/ops/stochastic_depth.py): it widens nothing.
        is_drawn = node.onnx_op in _DRAWN_BY and node.inputs[0] in self.drawn
        if policy is Policy.LOWER or is_drawn:
            return self.autocast.low
        if policy in {Policy.FLOAT32, Policy.FLOAT32_RESULT} or node.subgraphs:
            return DType.FLOAT32
        if node.onnx_op == "Cast":
            return self._cast_type(node)
        if node.onnx_op == "CastLike":
            return self._promoted(node.inputs[1:])
        if node.name in self.autocast.in_place:
            return self._in_place(node)
        return self._promoted(node.inputs[:1] if node.onnx_op in _OF_FIRST else node.inputs)

    def _reads_drawn_numbers(self, node: Node) -> bool:
        """Whether a node reads random numbers, and constants beside them alone."""
        others = [name for name in node.reads if name not in self.drawn]
        return len(others) < len(node.reads) and self.autocast.constants.issuperset(others)

    def _cell_type(self, node: Node) -> DType | None:
        """The type of what cells return: that of their states; ``None`` for other nodes."""
        if not are_cells(node) or node.onnx_op == "RNN":
            return None
        # Initial states that the module makes itself are constants, of the type of its input.
        own = (n for n in node.inputs[_FIRST_STATE:] if n not in self.autocast.constants)
        return self._promoted((node.inputs[0], *own))

    def _in_place(self, node: Node) -> DType:
        """The type of a node's first operand, which its result is written to."""
        # add_ and its like cast the result to the type of `self` (TensorIterator's
        # enforce_safe_casting_to_output allows it between floating types).
        found = self._promoted(node.inputs[:1])
        if self.autocast.in_place[node.name] and found is not self._promoted(node.inputs):
            self.narrowed.append(node.name)
        return found

    def _promoted(self, names: Iterable[str]) -> DType:
        """The widest type among operands; scalars count only if all are."""
        # result_type of aten/src/ATen/native/TypeProperties.cpp: tensors with dims take precedence.
        found = [self.tensors[name] for name in names if name]
        floating = [tensor for tensor in found if is_castable(tensor)]
        counted = [tensor for tensor in floating if tensor.shape != ()] or floating
        low = self.autocast.low
        is_low = bool(counted) and all(tensor.dtype is low for tensor in counted)
        return low if is_low else DType.FLOAT32

    def _cast_type(self, node: Node) -> DType:
        """The type that a cast of the file returns; one between equal types returns its input's."""
        trip = self.round_trips.get(node.outputs[0])
        if trip is not None:
            return DType.FLOAT32 if trip == "" else self._promoted((trip,))
        if MATH in node.attributes:
            return self.autocast.low
        if is_idle_cast(self.graph, node):
            return self._promoted(node.inputs)
        after = self.graph.tensors[node.writes[0]].dtype
        is_narrow = after is not None and (after.bits or 0) < _FLOAT_BITS
        return self.autocast.low if is_narrow else DType.FLOAT32

    def _with_operands_in(self, node: Node, target: DType) -> Node:
        # The wrapper casts its arguments inside one call (WrapFunction_ of autocast_mode.h), whose
        # arguments GCC evaluates from the last to the first.
        inputs = list(node.inputs)
        for index, name in reversed(tuple(enumerate(node.inputs))):
            # Each product of a cell has a copy of its own: see `layer_of`.
            if are_cells(node) and index not in _MATRICES_AND_BIASES:
                continue
            if name in self.autocast.packed and is_recurrent(node):
                self.tensors[name] = replace(self.tensors[name], dtype=target)
                for parameter in self.autocast.packed[name]:
                    self.copies[parameter] = self._copied(node, index, parameter, target)
            elif name and self._is_cast(name, target):
                inputs[index] = self._copied(node, index, name, target)
        return replace(node, inputs=tuple(inputs))

    def _is_cast(self, name: str, target: DType) -> bool:
        """Whether an operand is cast: it has another type, and is not a number in the program."""
        tensor = self.tensors[name]
        is_number = tensor.shape == () and name in self.graph.values
        return is_castable(tensor) and tensor.dtype is not target and not is_number

    def _copied(self, node: Node, index: int, name: str, target: DType) -> str:
        """Insert a cast before a node, unless the copy is cached; return the copy's name."""
        # cached_cast of aten/src/ATen/autocast_mode.cpp: only float32 leaves that require a
        # gradient are cached, which are the trained parameters.
        tensor = self.tensors[name]
        if name in self.transposed:
            return self._transposed_copy(node, index, name, target)
        key = self.keys.get(name)
        if key is not None and (key, tensor.shape) in self.cached:
            return self.cached[key, tensor.shape]
        cast, copy = f"{node.name}/Cast_{index}", f"{name} as {node.name} reads it"
        if copy in self.tensors:
            copy = f"{copy}, input {index}"
        if key is not None:
            cast, copy = f"{node.name}/Cast of {name}", f"copy of {name}"
            self.cached[key, tensor.shape] = copy
        self.tensors[copy] = Tensor(copy, target, tensor.shape, Role.ACTIVATION)
        operator = lookup("Cast")
        self.nodes.append(
            Node(cast, "Cast", "", (name,), (copy,), operator, metadata=node.metadata)
        )
        self.callers[cast] = node.name
        return copy

    def _transposed_copy(self, node: Node, index: int, name: str, target: DType) -> str:
        """Cast the parameter and transpose the copy, as `linear` does; the file transposes first.

        Its gradient is cast last, so that the engine adds another one to it in place.
        """
        found = self.transposed[name]
        copy = self._copied(node, index, found.inputs[0], target)
        turned = f"{name} of {copy}"
        if turned not in self.tensors:
            self.tensors[turned] = replace(self.tensors[name], name=turned, dtype=target)
            inputs, name = (copy, *found.inputs[1:]), f"{found.name} of {copy}"
            self.nodes.append(replace(found, name=name, inputs=inputs, outputs=(turned,)))
        return turned

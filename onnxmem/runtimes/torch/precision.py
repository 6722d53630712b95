"""Precisions: how many bytes an element takes in each of its roles during training; autocast.

A precision speaks of floating elements of at most 32 bits, whatever the file stores; float64,
integers and truth values keep their size.

- ``fp32``: everything float32.
- ``mixed-fp16``, ``mixed-bf16``: as PyTorch's autocast does it on a GPU. Weights, gradients and
  optimizer state are float32. Each operator's list (``LISTS``) decides what its operands are
  cast to: products read 16 bits, softmax, the normalizations and the loss float32, all else what
  it is given. One 16-bit copy of each parameter that products read is held through the forward
  pass and the loss, and then as long as a backward formula reads it; a parameter's gradient is
  made in 16 bits and cast. The scaler's few bytes are left out.
- ``bf16``: weights, gradients, state and activations all bfloat16, no float32 master copy.
- ``fp16-master``, ``bf16-master``: weights, gradients and activations of 16 bits, and an optimizer
  that keeps a float32 copy of the weights, with float32 state, and steps that one: Apex O2,
  DeepSpeed, Megatron. It reads float32 copies of the gradients. They replace those of 16 bits
  tensor by tensor before the step, as in Megatron's ``_copy_model_grads_to_main_grads``, and are
  gone after it; DeepSpeed's ``FP16_Optimizer`` flattens its own, for a moment with the copies too.
  Gradients that are added up in float32 from pass to pass are no part of this: 20 bytes then.

Per parameter with Adam, without activations, between forward and backward: 16 bytes, in mixed
precision up to 2 more for its copy, 8, and 16; with masters 18 while the optimizer steps, and its
temporaries.

Under autocast every tensor of a graph gets the type that it has there, and every cast is a node
(``with_casts``): an operand is cast each time that it is read, so three layers that read one tensor
make three copies; of a trained parameter it makes one, which it holds as long as it is on
(``cached_cast`` of aten/src/ATen/autocast_mode.cpp). The operands of one call are cast from the
last to the first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from onnxmem.errors import UsageError
from onnxmem.model.graph import DType, Graph, Node, Role, Tensor
from onnxmem.ops.registry import lookup
from onnxmem.ops.spec import Operand, Shape
from onnxmem.runtimes.torch.framework import FRAMEWORK, SQUARE, is_idle_cast
from onnxmem.runtimes.torch.recurrent import RECURRENT, is_recurrent
from onnxmem.runtimes.torch.strides import MATMUL_LIKE

_CASTABLE = frozenset(
    dtype
    for dtype in DType
    if dtype.is_floating and dtype.bits and dtype.bits <= 32  # noqa: PLR2004
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bits per floating element, by what it is."""

    name: str
    weight_bits: int
    """Of parameters and floating buffers and their gradients."""
    activation_bits: int
    """Of what no cast of autocast changes."""
    loss_bits: int
    master_bits: int = 0
    """Of the copy of the parameters that the optimizer steps; 0 where it steps the weights."""
    autocast: DType | None = None
    """The type that autocast lowers to, where it is on."""
    autocast_device: str = "cuda"
    """Whose lists autocast goes by: a key of ``autocast.LISTS``."""
    source: str

    @property
    def stepped_bits(self) -> int:
        """Of what the optimizer works on: its state, its temporaries, its gradients in the step."""
        return self.master_bits or self.weight_bits

    def bits_in_step(self, tensor: Tensor) -> int | None:
        """Bits per element of a tensor in a pass; under autocast its type says them."""
        dtype = tensor.dtype
        if self.autocast is None and dtype in _CASTABLE:
            return self.activation_bits
        return dtype.bits if dtype else None


def is_castable(tensor: Tensor) -> bool:
    """Whether a precision, and autocast, speak of a tensor's type."""
    return tensor.dtype in _CASTABLE


def operand_in(tensor: Tensor, bits: int) -> Operand:
    """A tensor with elements of ``bits``, where precisions speak of its type."""
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

_OLD_LISTS = frozenset({"1.12", "2.0"})
"""Releases whose lists of autocast are shorter."""

PRECISIONS: Mapping[str, Precision] = MappingProxyType({known.name: known for known in _ALL})


def precision_named(name: str, torch: str = "latest") -> Precision:
    """Find a precision, as a release of PyTorch has it.

    :raises UsageError: there is none of that name.
    """
    if name not in PRECISIONS:
        message = f"precision {name!r}: not known; one of {', '.join(PRECISIONS)}"
        raise UsageError(message)
    found = PRECISIONS[name]
    if torch in _OLD_LISTS and found.autocast_device == "cuda":
        return replace(found, autocast_device="cuda of 2.0")
    return found


class Policy(StrEnum):
    """How an operator's floating operands are cast."""

    LOWER = "lower_precision_fp"
    """To 16 bits."""
    FLOAT32 = "fp32"
    """To float32."""
    FLOAT32_RESULT = "fp32_set_opt_dtype"
    """Not at all: the kernel reads 16 bits and writes float32."""
    HALF_TO_FLOAT = "half_to_float"
    """The same where the 16 bits are float16; bfloat16 is cast (``softmax`` of
    aten/src/ATen/native/SoftMax.cpp), and the gradient comes in 16 bits at once."""
    PROMOTE = "promote"
    """To the widest among them."""


Lists = Mapping[str, Policy]
"""Policies by operator."""

_LOWERED = (*MATMUL_LIKE, "PRelu")
_LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")


def _lists(*named: tuple[Policy, tuple[str, ...]]) -> Lists:
    return MappingProxyType({name: policy for policy, names in named for name in names})


# Each list of ``torch.amp.autocast`` names the framework's operators; here stand the operators of
# ONNX that exporters write for them (and the framework's own, for composites). An operator of no
# list runs in the type that its operands promote to. float64, integers and truth values are never
# cast.
CUDA_LISTS = _lists(
    # cuDNN's recurrent layers: `_cudnn_rnn_cast_reflatten` of aten/src/ATen/native/cudnn/RNN.cpp
    (Policy.LOWER, (*_LOWERED, *RECURRENT)),
    (Policy.FLOAT32, ("Acos", "Asin", "Cosh", "Exp", "Log", "Reciprocal", "Sinh", "Tan")),
    (Policy.FLOAT32, ("Pow", "ReduceLogSumExp", "Resize", "Softplus", "Upsample")),
    (Policy.FLOAT32, ("rsqrt", "square")),
    (Policy.FLOAT32, ("GroupNormalization", "LayerNormalization", "RMSNormalization")),
    (Policy.FLOAT32, ("SimplifiedLayerNormalization", *_LOSSES)),
    # torchvision/csrc/ops/autocast/deform_conv2d_kernel.cpp; what casts its result back is left out
    (Policy.FLOAT32, ("DeformConv",)),
    # sum, prod, cumsum and vector norms; the last two divide by what norm and pow give
    (Policy.FLOAT32_RESULT, ("CumProd", "CumSum", "ReduceL1", "ReduceL2", "ReduceLogSum")),
    (Policy.FLOAT32_RESULT, ("ReduceProd", "ReduceSum", "ReduceSumSquare")),
    (Policy.FLOAT32_RESULT, ("LpNormalization", "LRN")),
    (Policy.HALF_TO_FLOAT, ("LogSoftmax", "Softmax")),
    (Policy.PROMOTE, ("GridSample", "ScatterND")),
)
"""Source: aten/src/ATen/autocast_mode.h, ``AT_FORALL_LOWER_PRECISION_FP`` and what follows it."""

CPU_LISTS = _lists(
    (Policy.LOWER, _LOWERED),
    (Policy.FLOAT32, ("GridSample", "ReduceProd", *_LOSSES)),
    (Policy.PROMOTE, ("Concat",)),
)
"""Source: aten/src/ATen/autocast_mode.cpp, ``TORCH_LIBRARY_IMPL(aten, AutocastCPU, m)``.

Recurrent layers run gate by gate there, and pools of volumes and reflecting pads go to float32:
neither is listed."""

_OLD_CUDA_LISTS = MappingProxyType(
    {name: policy for name, policy in CUDA_LISTS.items() if name not in {"Resize", "Upsample"}}
)
"""Before they had ``upsample_*``: libtorch_cpu of 2.0.1 and of 2.1.2 registers none for CUDA, that
of 2.5.1 does."""

LISTS: Mapping[str, Lists] = MappingProxyType(
    {"cuda": CUDA_LISTS, "cuda of 2.0": _OLD_CUDA_LISTS, "cpu": CPU_LISTS}
)
"""By device. Steps can be measured without a GPU by the CPU's; a product's user trains on a GPU."""


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
_ELEMENTWISE = frozenset({"Add", "Div", "Max", "Min", "Mul", "Sub"})


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

    `x.float()` and the `.to(x.dtype)` that ends what is computed in float32 are both written as
    casts from float32 to float32: of the first, the value is empty, of the second it is `x`.
    `x.square()` is float32 before it is cast; the second cast still goes back to the type of `x`.
    """
    trips: dict[str, str] = {}
    starts: dict[str, Node] = {}
    squared = {n.outputs[0]: n.inputs[0] for n in graph.nodes if n.op_type == SQUARE.op_type}
    for node in graph.nodes:
        begun = next((starts[name] for name in node.reads if name in starts), None)
        is_idle = is_idle_cast(graph, node) and node.inputs[0] not in weights
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
        """Take the casts of parameters between equal types that are to a neighbor's type.

        A file writes `weight.to(x.dtype)` as a cast from float32 to float32. What an operator reads
        beside a tensor of 16 bits was cast to that tensor's type: no one casts a parameter to what
        it is already.
        """
        first = node.inputs[0] if node.inputs else ""
        if node.onnx_op in _VIEWS and first in self.hanging:
            self.hanging[node.outputs[0]] = (*self.hanging[first], node.outputs[0])
        elif node.onnx_op == "Cast" and first in self.weights and is_idle_cast(self.graph, node):
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
        if is_idle_cast(self.graph, node):
            return self._promoted(node.inputs)
        after = self.graph.tensors[node.writes[0]].dtype
        is_narrow = after is not None and (after.bits or 0) < _FLOAT_BITS
        return self.autocast.low if is_narrow else DType.FLOAT32

    def _with_operands_in(self, node: Node, target: DType) -> Node:
        inputs = list(node.inputs)
        for index, name in reversed(tuple(enumerate(node.inputs))):
            if name in self.autocast.packed and is_recurrent(node.onnx_op):
                self.tensors[name] = replace(self.tensors[name], dtype=target)
                for parameter in self.autocast.packed[name]:
                    self.copies[parameter] = self._copied(node, index, parameter, target)
            elif name and self._is_cast(name, target):
                inputs[index] = self._copied(node, index, name, target)
        return replace(node, inputs=tuple(inputs))

    def _is_cast(self, name: str, target: DType) -> bool:
        """Whether an operand is of the other type, and no number of the program."""
        tensor = self.tensors[name]
        is_number = tensor.shape == () and name in self.graph.values
        return is_castable(tensor) and tensor.dtype is not target and not is_number

    def _copied(self, node: Node, index: int, name: str, target: DType) -> str:
        """Put a cast before a node, unless the copy is there; say the copy's name."""
        tensor = self.tensors[name]
        key = self.keys.get(name)
        if key is not None and (key, tensor.shape) in self.cached:
            return self.cached[key, tensor.shape]
        maker, copy = f"{node.name}/Cast_{index}", f"{name} as {node.name} reads it"
        if copy in self.tensors:
            copy = f"{copy}, input {index}"
        if key is not None:
            maker, copy = f"{node.name}/Cast of {name}", f"copy of {name}"
            self.cached[key, tensor.shape] = copy
        self.tensors[copy] = Tensor(copy, target, tensor.shape, Role.ACTIVATION)
        self.nodes.append(Node(maker, "Cast", "", (name,), (copy,), lookup("Cast")))
        self.callers[maker] = node.name
        return copy

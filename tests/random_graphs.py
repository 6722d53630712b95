"""Random valid graphs whose every shape is a number: any of a score of operators over any tensors.

Each input is read, and what nobody reads is an output: tools differ on how long such tensors live.
No tensor is a scalar, and no operator has a body in ONNX's own definition, which some tools write
out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Final

import onnx
from onnx import TensorProto
from onnx.helper import make_attribute, make_graph, make_model, make_node, make_opsetid, make_tensor
from onnx.helper import make_tensor_value_info as typed

SIDES: Final = (1, 2, 3, 5, 7, 11, 13)
FLOATS: Final = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
OTHERS: Final = (TensorProto.INT8, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)
UNARY: Final = ("Sigmoid", "Tanh", "Neg", "Abs", "Exp", "Identity", "Erf")
BINARY: Final = ("Add", "Sub", "Mul", "Div", "Max")
MAX_RANK: Final = 4

Shape = tuple[int, ...]


@dataclass(slots=True)
class Sketch:
    """Mutable: a graph while nodes are drawn onto it."""

    draws: Random
    shapes: dict[str, Shape] = field(default_factory=dict)
    dtypes: dict[str, int] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)

    def tensor(self, name: str, shape: Shape, dtype: int) -> str:
        """A tensor that later nodes may read."""
        self.shapes[name], self.dtypes[name] = shape, dtype
        return name

    def weight(self, shape: Shape, dtype: int) -> str:
        """A weight of zeros."""
        return self.constant([0] * math.prod(shape), shape, dtype)

    def constant(self, values: Sequence[int], shape: Shape, dtype: int = TensorProto.INT64) -> str:
        """A weight of these values, shapes and axes among them."""
        name = f"w{len(self.weights)}"
        self.weights.append(make_tensor(name, dtype, shape, values))
        return name

    def node(
        self, op_type: str, inputs: Sequence[str], *outputs: Shape, **attributes: int | list[int]
    ) -> None:
        """A node whose outputs have these shapes, and the first input's type."""
        names = [f"t{len(self.shapes) + place}" for place in range(len(outputs))]
        node = make_node(op_type, inputs, names)
        node.attribute.extend(make_attribute(name, value) for name, value in attributes.items())
        self.nodes.append(node)
        for name, shape in zip(names, outputs, strict=True):
            self.tensor(name, shape, self.dtypes[inputs[0]])

    def like(self, x: str) -> str:
        """A tensor of the same shape and type, perhaps itself."""
        kinds = self.shapes[x], self.dtypes[x]
        same = [name for name in self.shapes if (self.shapes[name], self.dtypes[name]) == kinds]
        return self.draws.choice(same)


def unary(sketch: Sketch, x: str) -> None:
    sketch.node(sketch.draws.choice(UNARY), [x], sketch.shapes[x])


def binary(sketch: Sketch, x: str) -> None:
    shape = sketch.shapes[x]
    row = sketch.weight(shape[-1:], sketch.dtypes[x])
    other = sketch.draws.choice((sketch.like(x), row))
    sketch.node(sketch.draws.choice(BINARY), [x, other], shape)


def cast(sketch: Sketch, x: str) -> None:
    dtype = sketch.draws.choice(FLOATS + OTHERS)
    sketch.node("Cast", [x], sketch.shapes[x], to=dtype)
    sketch.dtypes[sketch.nodes[-1].output[0]] = dtype


def transpose(sketch: Sketch, x: str) -> None:
    perm = list(range(len(sketch.shapes[x])))
    sketch.draws.shuffle(perm)
    turned = tuple(sketch.shapes[x][axis] for axis in perm)
    sketch.node("Transpose", [x], turned, perm=perm)


def matmul(sketch: Sketch, x: str) -> None:
    shape, width = sketch.shapes[x], sketch.draws.choice(SIDES)
    weight = sketch.weight((shape[-1], width), sketch.dtypes[x])
    sketch.node("MatMul", [x, weight], (*shape[:-1], width))


def concat(sketch: Sketch, x: str) -> None:
    shape = sketch.shapes[x]
    axis = sketch.draws.randrange(len(shape))
    joined = (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :])
    sketch.node("Concat", [x, sketch.like(x)], joined, axis=axis)


def split(sketch: Sketch, x: str) -> None:
    shape = sketch.shapes[x]
    axis = sketch.draws.randrange(len(shape))
    if shape[axis] > 1:
        parts = [1, shape[axis] - 1]
        pieces = [(*shape[:axis], part, *shape[axis + 1 :]) for part in parts]
        sketch.node("Split", [x, sketch.constant(parts, (2,))], *pieces, axis=axis)


def reshape(sketch: Sketch, x: str) -> None:
    shape = sketch.shapes[x]
    cut = sketch.draws.randrange(len(shape))
    flat = (math.prod(shape[: cut + 1]), *shape[cut + 1 :])
    sketch.node("Reshape", [x, sketch.constant(flat, (len(flat),))], flat)


def unsqueeze(sketch: Sketch, x: str) -> None:
    shape = sketch.shapes[x]
    if len(shape) < MAX_RANK:
        sketch.node("Unsqueeze", [x, sketch.constant([0], (1,))], (1, *shape))


def gather(sketch: Sketch, x: str) -> None:
    shape, count = sketch.shapes[x], sketch.draws.choice(SIDES)
    sketch.node("Gather", [x, sketch.constant([0] * count, (count,))], (count, *shape[1:]))


def expand(sketch: Sketch, x: str) -> None:
    shape, count = sketch.shapes[x], sketch.draws.choice(SIDES)
    if len(shape) < MAX_RANK:
        wide = (count, *shape)
        sketch.node("Expand", [x, sketch.constant(wide, (len(wide),))], wide)


def pad(sketch: Sketch, x: str) -> None:
    shape = sketch.shapes[x]
    pads = [sketch.draws.randrange(3) for _ in range(2 * len(shape))]
    ends = zip(pads[: len(shape)], shape, pads[len(shape) :], strict=True)
    sketch.node("Pad", [x, sketch.constant(pads, (len(pads),))], tuple(map(sum, ends)))


def reduce(sketch: Sketch, x: str) -> None:
    shape = sketch.shapes[x]
    axis = sketch.draws.randrange(len(shape))
    retained = (*shape[:axis], 1, *shape[axis + 1 :])
    sketch.node("ReduceMax", [x, sketch.constant([axis], (1,))], retained)


def top(sketch: Sketch, x: str) -> None:
    shape = (*sketch.shapes[x][:-1], 1)
    sketch.node("TopK", [x, sketch.constant([1], (1,))], shape, shape)
    sketch.dtypes[sketch.nodes[-1].output[1]] = TensorProto.INT64


def convolution(sketch: Sketch, x: str) -> None:
    shape = sketch.shapes[x]
    if len(shape) == MAX_RANK:
        channels = sketch.draws.choice(SIDES)
        weight = sketch.weight((channels, shape[1], 1, 1), sketch.dtypes[x])
        sketch.node("Conv", [x, weight], (shape[0], channels, *shape[2:]))


Draw = Callable[[Sketch, str], None]
ON_FLOATS: Final[tuple[Draw, ...]] = (
    *(unary, unary, unary, binary, binary, binary, matmul, matmul),
    *(reduce, top, pad, convolution),
)
ON_ANY: Final[tuple[Draw, ...]] = (
    *(cast, transpose, concat, split, reshape, unsqueeze, gather, expand),
)
NUM_NODES: Final[Mapping[str, int]] = MappingProxyType({"least": 1, "most": 40})
MAX_ELEMENTS: Final = 10_000


def static_graph(seed: int) -> onnx.ModelProto:
    """The graph of a seed: 1 to 3 inputs, 1 to 40 nodes."""
    draws = Random(seed)  # noqa: S311 - the same graph each time
    sketch = Sketch(draws)
    for place in range(draws.randint(1, 3)):
        shape = tuple(draws.choice(SIDES) for _ in range(draws.randint(1, MAX_RANK)))
        sketch.tensor(f"x{place}", shape, draws.choice(FLOATS))
    num_inputs = len(sketch.shapes)
    for _ in range(draws.randint(*NUM_NODES.values())):
        small = [name for name, dims in sketch.shapes.items() if math.prod(dims) < MAX_ELEMENTS]
        # Late tensors twice as often: chains are more telling than stars.
        x = draws.choice(small + small[-4:])
        is_float = sketch.dtypes[x] in FLOATS
        draws.choice(ON_FLOATS + ON_ANY if is_float else ON_ANY)(sketch, x)
    if not sketch.nodes:
        unary(sketch, "x0")
    return _finished(sketch, num_inputs)


def _finished(sketch: Sketch, num_inputs: int) -> onnx.ModelProto:
    """The model without unused inputs; tensors without a reader are outputs."""
    names = list(sketch.shapes)
    read = {name for node in sketch.nodes for name in node.input}
    inputs = [name for name in names[:num_inputs] if name in read]
    made = names[num_inputs:]
    others = sketch.draws.sample(made, min(2, len(made)))
    outputs = [name for name in made if name not in read or name in others]
    graph = make_graph(
        sketch.nodes,
        "drawn",
        [typed(name, sketch.dtypes[name], sketch.shapes[name]) for name in inputs],
        [typed(name, sketch.dtypes[name], sketch.shapes[name]) for name in outputs],
        [weight for weight in sketch.weights if weight.name in read],
    )
    return make_model(graph, opset_imports=[make_opsetid("", 18)], ir_version=8)

"""Time and memory of an analysis by kind of graph: no kind may be far slower than the others.

Usage: python tools/benchmarks/families.py [--nodes 1000 10000] [--only NAME ...] [-- OPTIONS]

Every family makes graphs of any size from blocks of one kind; weights lie in a file that is not
there. Nodes of subgraphs count, and those of a function once for each call. Each analysis is a
process of its own, imports included. The last two columns are the CPU time and the memory of one
node, less those of a graph of 200 nodes, so that imports are left out. OPTIONS are those of
``onnxmem``: ``-- --train``.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import onnx
from onnx import NodeProto, TensorProto, helper
from scale import measured

FEW = 200
WIDTH = 64


@dataclass
class Builder:
    """A graph in the making: nodes, weights and functions; names are unique."""

    nodes: list[NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    count: int = 0
    size: int = 0
    """The number of nodes, those of subgraphs and of called functions included."""

    def name(self, stem: str) -> str:
        """A new name."""
        self.count += 1
        return f"{stem}_{self.count}"

    def weight(self, *dims: int, stem: str = "w") -> str:
        """A float weight whose bytes are absent."""
        name = self.name(stem)
        self.weights.append(_absent(TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims)))
        return name

    def constant(self, values: Sequence[int] | Sequence[float], *dims: int) -> str:
        """A small constant in the file: int64 or float."""
        kind = TensorProto.INT64 if isinstance(values[0], int) else TensorProto.FLOAT
        name = self.name("c")
        self.weights.append(helper.make_tensor(name, kind, dims or [len(values)], values))
        return name

    def node(self, op_type: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        """Add a node of one output, whose name comes out."""
        output = self.name(op_type.lower())
        made = helper.make_node(op_type, inputs, [output], domain=domain, **attributes)
        self.add(made)
        return output

    def add(self, *nodes: NodeProto) -> None:
        """Add nodes."""
        self.nodes.extend(nodes)
        self.size += sum(map(_size_of, nodes))

    def linear(self, x: str, rows: int = WIDTH, columns: int = WIDTH) -> str:
        """A matrix product with a bias."""
        return self.node(
            "Add", self.node("MatMul", x, self.weight(rows, columns)), self.weight(columns)
        )


def _absent(weight: TensorProto) -> TensorProto:
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="absent.bin")
    return weight


CALLED = 4
"""Nodes of a function."""


def _size_of(node: NodeProto) -> int:
    bodies = (each.g for each in node.attribute if each.HasField("g"))
    inside = sum(_size_of(each) for body in bodies for each in body.node)
    return (CALLED if node.domain == "local" else 1) + inside


Block = Callable[[Builder, str, int], str]
"""From the builder, a tensor [batch, sequence, WIDTH] and a number to a tensor of that shape."""


def layer_norm(b: Builder, x: str) -> str:
    """One node."""
    return b.node("LayerNormalization", x, b.weight(WIDTH), b.weight(WIDTH), axis=-1)


def gated(b: Builder, x: str, _: int) -> str:
    """A gated block with two transposes, ten nodes."""
    y = layer_norm(b, x)
    gate = b.node("Sigmoid", b.node("MatMul", y, b.weight(WIDTH, WIDTH)))
    y = b.node("Mul", b.node("MatMul", y, b.weight(WIDTH, WIDTH)), gate)
    y = b.node("Transpose", b.node("Transpose", y, perm=[0, 2, 1]), perm=[0, 2, 1])
    return b.node("Add", x, b.node("Identity", b.node("Add", y, b.weight(WIDTH))))


def attention(b: Builder, x: str, _: int) -> str:
    """Attention as exporters write it, and a feed-forward part."""
    y = layer_norm(b, x)
    heads = b.constant([0, 0, 4, WIDTH // 4])
    q, k, v = (
        b.node("Transpose", b.node("Reshape", b.linear(y), heads), perm=[0, 2, 1, 3])
        for _ in range(3)
    )
    scores = b.node("MatMul", q, b.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = b.node("Softmax", b.node("Mul", scores, b.constant([0.125], 1)), axis=-1)
    y = b.node("Transpose", b.node("MatMul", scores, v), perm=[0, 2, 1, 3])
    x = b.node("Add", x, b.linear(b.node("Reshape", y, b.constant([0, 0, WIDTH]))))
    y = b.linear(layer_norm(b, x), WIDTH, 4 * WIDTH)
    return b.node("Add", x, b.linear(b.node("Gelu", y), 4 * WIDTH, WIDTH))


def dense(b: Builder, x: str, _: int) -> str:
    """Six layers, each of which reads all before it."""
    parts = [x]
    for _ in range(6):
        joined = parts[0] if len(parts) == 1 else b.node("Concat", *parts, axis=-1)
        parts.append(b.node("Relu", b.node("MatMul", joined, b.weight(len(parts) * WIDTH, WIDTH))))
    joined = b.node("Concat", *parts, axis=-1)
    return b.node("MatMul", joined, b.weight(len(parts) * WIDTH, WIDTH))


def gru_step(b: Builder, x: str, _: int) -> str:
    """One step of a recurrent cell written out."""
    z = b.node("Sigmoid", b.linear(x))
    r = b.node("Sigmoid", b.linear(x))
    h = b.node("Tanh", b.linear(b.node("Mul", r, x)))
    kept = b.node("Mul", b.node("Sub", b.constant([1.0], 1), z), x)
    return b.node("Add", kept, b.node("Mul", z, h))


def branches(b: Builder, x: str, _: int) -> str:
    """Eight parallel branches that are summed."""
    return b.node("Sum", *(b.node("Relu", b.linear(x)) for _ in range(8)))


def experts(b: Builder, x: str, _: int) -> str:
    """64 experts, each with its gate."""
    gates = b.node("Softmax", b.node("MatMul", x, b.weight(WIDTH, 64)), axis=-1)
    split = [b.name("gate") for _ in range(64)]
    b.add(helper.make_node("Split", [gates], split, axis=-1, num_outputs=64))
    return b.node("Sum", *(b.node("Mul", b.node("Relu", b.linear(x)), gate) for gate in split))


def quantized(b: Builder, x: str, _: int) -> str:
    """A linear layer between quantize and dequantize nodes, its weight quantized too."""
    zero = b.name("zero")
    b.weights.append(helper.make_tensor(zero, TensorProto.UINT8, [], [0]))
    scale = b.constant([0.02], 1)
    weight = TensorProto(name=b.name("w8"), data_type=TensorProto.UINT8, dims=[WIDTH, WIDTH])
    b.weights.append(_absent(weight))
    wide = b.node("DequantizeLinear", weight.name, scale, zero)
    x = b.node("DequantizeLinear", b.node("QuantizeLinear", x, scale, zero), scale, zero)
    return b.node("Relu", b.node("MatMul", x, wide))


def all_different(b: Builder, x: str, number: int) -> str:
    """No two layers are alike: every block has a width of its own."""
    width = WIDTH + number
    return b.node("Tanh", b.linear(b.node("Relu", b.linear(x, WIDTH, width)), width, WIDTH))


def computed_shapes(b: Builder, x: str, _: int) -> str:
    """A reshape whose target is computed from the shape of its input."""
    shape = b.node("Shape", x)
    batch = b.node("Gather", shape, b.constant([0]), axis=0)
    length = b.node("Gather", shape, b.constant([1]), axis=0)
    flat = b.node("Concat", b.node("Mul", batch, length), b.constant([WIDTH]), axis=0)
    y = b.linear(b.node("Reshape", x, flat))
    back = b.node("Concat", batch, length, b.constant([WIDTH]), axis=0)
    return b.node("Reshape", b.node("Relu", y), back)


def branching(b: Builder, x: str, _: int) -> str:
    """An If whose branches read a tensor from outside."""
    condition = b.node("Less", b.node("ReduceMax", x, keepdims=0), b.constant([1.0], 1))
    condition = b.node("Squeeze", condition)
    bodies = []
    for op_type in ("Relu", "Tanh"):
        inner, output = b.name("in"), b.name("out")
        nodes = [
            helper.make_node("Neg", [x], [inner]),
            helper.make_node(op_type, [inner], [output]),
        ]
        ends = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        bodies.append(helper.make_graph(nodes, b.name("branch"), [], ends))
    return b.node("If", condition, then_branch=bodies[0], else_branch=bodies[1])


def looping(b: Builder, x: str, _: int) -> str:
    """A Loop of eight iterations over a small body."""
    i, condition, state, kept, output = (b.name(n) for n in ("i", "c", "s", "k", "o"))
    nodes = [
        helper.make_node("Identity", [condition], [kept]),
        helper.make_node("Relu", [state], [output]),
    ]
    ends = [
        helper.make_tensor_value_info(i, TensorProto.INT64, []),
        helper.make_tensor_value_info(condition, TensorProto.BOOL, []),
        helper.make_tensor_value_info(state, TensorProto.FLOAT, None),
        helper.make_tensor_value_info(kept, TensorProto.BOOL, []),
        helper.make_tensor_value_info(output, TensorProto.FLOAT, None),
    ]
    body = helper.make_graph(nodes, b.name("body"), ends[:3], ends[3:])
    trips = b.name("trips")
    b.weights.append(helper.make_tensor(trips, TensorProto.INT64, [], [8]))
    always = b.name("always")
    b.weights.append(helper.make_tensor(always, TensorProto.BOOL, [], [True]))
    return b.node("Loop", trips, always, x, body=body)


def nested(b: Builder, x: str, _: int) -> str:
    """An If whose branch has an If and a Loop inside."""
    inner = Builder(count=b.count)
    looping(inner, branching(inner, x, 0), 0)
    b.count = inner.count
    b.weights += inner.weights
    ends = [helper.make_tensor_value_info(inner.nodes[-1].output[0], TensorProto.FLOAT, None)]
    branch = helper.make_graph(inner.nodes, b.name("branch"), [], ends)
    name = b.name("out")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
    other = helper.make_graph([helper.make_node("Tanh", [x], [name])], b.name("branch"), [], ends)
    condition = b.node("Less", b.node("ReduceMax", x, keepdims=0), b.constant([1.0], 1))
    condition = b.node("Squeeze", condition)
    return b.node("If", condition, then_branch=branch, else_branch=other)


def lstm_step(b: Builder, x: str, _: int) -> str:
    """One step of an LSTM written out, without its cell state."""
    gates = b.linear(x, WIDTH, 4 * WIDTH)
    parts = [b.name("gate") for _ in range(4)]
    b.add(helper.make_node("Split", [gates], parts, axis=-1, num_outputs=4))
    i, f, o = (b.node("Sigmoid", part) for part in parts[:3])
    cell = b.node("Add", b.node("Mul", f, x), b.node("Mul", i, b.node("Tanh", parts[3])))
    return b.node("Mul", o, b.node("Tanh", cell))


def decoder(b: Builder, x: str, _: int) -> str:
    """A layer of a decoder as torch.export writes it: norms and rotations in single steps."""

    def norm(y: str) -> str:
        mean = b.node("ReduceMean", b.node("Pow", y, b.constant([2.0], 1)), b.constant([-1]))
        root = b.node("Sqrt", b.node("Add", mean, b.constant([1e-6], 1)))
        return b.node("Mul", b.weight(WIDTH), b.node("Mul", y, b.node("Reciprocal", root)))

    def rotated(y: str) -> str:
        starts, middle, ends = b.constant([0]), b.constant([8]), b.constant([16])
        last = b.constant([-1])
        first = b.node("Slice", y, starts, middle, last)
        second = b.node("Neg", b.node("Slice", y, middle, ends, last))
        turned = b.node("Mul", b.node("Concat", second, first, axis=-1), b.constant([0.1], 1))
        return b.node("Add", b.node("Mul", y, b.constant([0.9], 1)), turned)

    y, heads = norm(x), b.constant([0, 0, 4, WIDTH // 4])
    q, k, v = (
        b.node("Transpose", b.node("Reshape", b.node("MatMul", y, w), heads), perm=[0, 2, 1, 3])
        for w in (b.weight(WIDTH, WIDTH) for _ in range(3))
    )
    keys = b.node("Transpose", rotated(k), perm=[0, 1, 3, 2])
    scores = b.node("Softmax", b.node("MatMul", rotated(q), keys), axis=-1)
    y = b.node("Transpose", b.node("MatMul", scores, v), perm=[0, 2, 1, 3])
    y = b.node("Reshape", y, b.constant([0, 0, WIDTH]))
    x = b.node("Add", x, b.node("MatMul", y, b.weight(WIDTH, WIDTH)))
    y = norm(x)
    gate = b.node("MatMul", y, b.weight(WIDTH, 3 * WIDTH))
    gate = b.node("Mul", gate, b.node("Sigmoid", gate))
    y = b.node("Mul", gate, b.node("MatMul", y, b.weight(WIDTH, 3 * WIDTH)))
    return b.node("Add", x, b.node("MatMul", y, b.weight(3 * WIDTH, WIDTH)))


def many_shapes(b: Builder, x: str, number: int) -> str:
    """Weights are alike and no two activations are: each block has a length of its own."""
    padded = b.node("Pad", x, b.constant([0, 0, 0, 0, number + 1, 0]))
    y = b.node("Relu", padded)
    return b.node("Slice", y, b.constant([0]), b.constant([-number - 1]), b.constant([1]))


def pieces(b: Builder, x: str, _: int) -> str:
    """32 slices, each with a node of its own, joined again."""
    names = [b.name("piece") for _ in range(32)]
    b.add(helper.make_node("Split", [x], names, axis=-1, num_outputs=32))
    return b.node("Concat", *(b.node("Relu", name) for name in names), axis=-1)


def constant_nodes(b: Builder, x: str, _: int) -> str:
    """Constants are nodes, as exporters write them."""
    for op_type in ("Add", "Mul", "Sub"):
        value = helper.make_tensor(b.name("value"), TensorProto.FLOAT, [1], [0.5])
        x = b.node(op_type, x, b.node("Constant", value=value))
    return x


def functions(b: Builder, x: str, _: int) -> str:
    """A call of one local function of four nodes."""
    if not b.functions:
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Relu", ["m"], ["r"]),
            helper.make_node("Sigmoid", ["r"], ["s"]),
            helper.make_node("Add", ["x", "s"], ["y"]),
        ]
        opsets = [helper.make_opsetid("", 20)]
        b.functions.append(helper.make_function("local", "block", ["x", "w"], ["y"], nodes, opsets))
    return b.node("block", x, b.weight(WIDTH, WIDTH), domain="local")


def chain(b: Builder, x: str, _: int) -> str:
    """MatMul, Add, Relu, Sigmoid."""
    return b.node("Sigmoid", b.node("Relu", b.linear(x)))


def _repeated(block: Block) -> "Family":
    def build(b: Builder, x: str, num_nodes: int) -> str:
        number = 0
        while b.size < num_nodes:
            x = block(b, x, number)
            number += 1
        return x

    return build


def u_shape(b: Builder, x: str, num_nodes: int) -> str:
    """Half of the tensors wait for their reader on the way up."""
    skipped = []
    while b.size < num_nodes * 3 // 7:
        x = b.node("Relu", b.linear(x))
        skipped.append(x)
    for each in reversed(skipped):
        x = b.node("Relu", b.node("Add", b.linear(x), each))
    return x


def convolutions(b: Builder, x: str, num_nodes: int) -> str:
    """Residual blocks of convolutions over the sequence."""
    x = b.node("Transpose", x, perm=[0, 2, 1])
    while b.size < num_nodes:
        y = b.node("Conv", x, b.weight(WIDTH, WIDTH, 3), pads=[1, 1])
        y = b.node("BatchNormalization", y, *(b.weight(WIDTH) for _ in range(4)))
        y = b.node("Conv", b.node("Relu", y), b.weight(WIDTH, WIDTH, 3), pads=[1, 1])
        x = b.node("Relu", b.node("Add", x, y))
    return b.node("Transpose", x, perm=[0, 2, 1])


def scan(b: Builder, x: str, num_nodes: int) -> str:
    """A selective scan written out: the state of each step, and what all steps read of it."""
    decay, state, outputs, number = b.node("Exp", b.linear(x)), x, [], 0
    while b.size < num_nodes:
        step = b.constant([number % 16])
        part = b.node("Gather", x, step, axis=2)
        state = b.node("Add", b.node("Mul", state, decay), b.node("Mul", part, x))
        outputs.append(b.node("ReduceSum", b.node("Mul", state, x), b.constant([-1])))
        number += 1
    joined = b.node("Concat", *outputs, axis=-1)
    return b.node("Mul", x, b.node("ReduceSum", joined, b.constant([-1])))


def fan_out(b: Builder, x: str, num_nodes: int) -> str:
    """One tensor has all readers, and their results one."""
    parts = []
    while b.size < num_nodes:
        parts.append(b.node("Relu", b.linear(x)))
    return b.node("Sum", *parts)


def random_skips(b: Builder, x: str, num_nodes: int) -> str:
    """Each layer reads the one before it and one of the 1,000 before that."""
    made, state = [x], 12345
    while b.size < num_nodes:
        state = (1103515245 * state + 12345) % 2**31
        other = made[-1 - state % min(len(made), 1000)]
        made.append(b.node("Relu", b.node("Add", b.linear(made[-1]), other)))
    return made[-1]


Family = Callable[[Builder, str, int], str]
FAMILIES: dict[str, Family] = {
    **{
        name: _repeated(block)
        for name, block in {
            "chain": chain,
            "gated blocks": gated,
            "attention": attention,
            "dense blocks": dense,
            "unrolled GRU": gru_step,
            "branches": branches,
            "64 experts": experts,
            "quantized": quantized,
            "all different": all_different,
            "computed shapes": computed_shapes,
            "an If in each block": branching,
            "a Loop in each block": looping,
            "functions": functions,
            "nested subgraphs": nested,
            "unrolled LSTM": lstm_step,
            "decoder": decoder,
            "many shapes": many_shapes,
            "pieces": pieces,
            "constant nodes": constant_nodes,
        }.items()
    },
    "U-shape": u_shape,
    "convolutions": convolutions,
    "scan written out": scan,
    "fan-out": fan_out,
    "random skips": random_skips,
}


def model(family: Family, num_nodes: int) -> onnx.ModelProto:
    """A model of one family, of at least so many nodes."""
    b = Builder()
    last = family(b, "x", num_nodes)
    dims = ["batch", "sequence", WIDTH]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in ("x", last)]
    graph = helper.make_graph(b.nodes, "family", ends[:1], ends[1:], b.weights)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=b.functions, ir_version=9)


def main() -> None:
    """Print a row for each family and size, and the spread over the families."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="+", default=[2_000, 20_000])
    parser.add_argument("--only", nargs="+", default=list(FAMILIES))
    parser.add_argument("options", nargs="*")
    asked = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(
        f"{'family':<22}{'nodes':>9}{'wall s':>9}{'CPU s':>9}{'MiB':>8}{'us/node':>10}"
        f"{'KiB/node':>10}",
        flush=True,
    )
    found: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.only:
            few = [_measured(name, FEW, Path(folder), asked.options) for _ in range(3)]
            floor = [min(column) for column in zip(*few, strict=True)]
            for num_nodes in asked.nodes:
                wall, cpu, mebibytes = _measured(name, num_nodes, Path(folder), asked.options)
                each = 1e6 * (cpu - floor[1]) / (num_nodes - FEW)
                found.setdefault(num_nodes, []).append(each)
                memory = 1024 * (mebibytes - floor[2]) / (num_nodes - FEW)
                times = f"{wall:>9.2f}{cpu:>9.2f}{mebibytes:>8.0f}{each:>10.1f}{memory:>10.1f}"
                print(f"{name:<22}{num_nodes:>9,}{times}", flush=True)
    for num_nodes, all_each in found.items():
        worst, middle = max(all_each), median(all_each)
        print(f"{num_nodes:,} nodes: worst {worst:.0f}, median {middle:.0f} us/node", end="")
        print(f", ratio {worst / middle:.1f}")


def _measured(
    name: str, num_nodes: int, folder: Path, options: list[str]
) -> tuple[float, float, float]:
    path = folder / "model.onnx"
    path.write_bytes(model(FAMILIES[name], num_nodes).SerializeToString())
    code = "import sys; from onnxmem.cli import main; sys.exit(main())"
    return measured([sys.executable, "-c", code, str(path), *options])


if __name__ == "__main__":
    main()

"""Small files of which something grows without bound when it is computed."""

from collections.abc import Callable
from typing import Final

import onnx
from graphs import model_of
from onnx.helper import make_node, make_tensor

from hostile.hostile_file import ANALYZED, HostileFile, files_of

LARGE: Final = 2**26


def sized(nodes: str, size: int = LARGE) -> str:
    """Write nodes that can read ``s``, a size, and end in ``v``, a shape or a value."""
    return f"agraph (float[2] x) => (y) <int64[1] s = {{{size}}}> {{ {nodes}  y = Expand(x, v) }}"


def chain(op_type: str, times: int, start: int = 3) -> Callable[[], onnx.ModelProto]:
    """Apply an operator of two operands to its own output, again and again."""

    def make() -> onnx.ModelProto:
        model = model_of("agraph (float[2] x) => (y) { y = Expand(x, v) }")
        model.graph.initializer.append(make_tensor("v0", 7, [1], [start]))
        for i in range(times):
            node = make_node(op_type, [f"v{i}", f"v{i}"], [f"v{i + 1}"])
            if op_type == "Concat":
                node.attribute.append(onnx.helper.make_attribute("axis", 0))
            model.graph.node.append(node)
        model.graph.node[0].input[1] = f"v{times}"
        return model

    return make


def untyped(size: int) -> onnx.ModelProto:
    """Join lists without an element type and with a known length only; found by fuzzing."""
    model = model_of(
        "agraph (float[2] x) => (y) { h = Concat <axis = 0> (s, s)  y = Expand(x, h) }"
    )
    model.graph.initializer.add(name="s", dims=[size])
    return model


def unsqueezed(times: int) -> onnx.ModelProto:
    """Add a dim, again and again."""
    model = model_of("agraph (float[2] t0) => (y) <int64[1] a = {0}> { y = Relu(t0) }")
    for i in range(times):
        model.graph.node.append(make_node("Unsqueeze", [f"t{i}", "a"], [f"t{i + 1}"]))
    return model


def attributes(num_values: int) -> onnx.ModelProto:
    """Give a node a long list."""
    model = model_of("agraph (float[2] x) => (y) { y = Relu(x) }")
    node = make_node("Transpose", ["x"], ["z"], perm=list(range(num_values)))
    model.graph.node.append(node)
    return model


def fan(num_readers: int) -> onnx.ModelProto:
    """Let every node read every tensor before it."""
    model = model_of("agraph (float[2] t0) => (y) { y = Relu(t0) }")
    for i in range(num_readers):
        names = [f"t{k}" for k in range(i + 1)]
        model.graph.node.append(make_node("Sum", names, [f"t{i + 1}"]))
    return model


def many_outputs(num_outputs: int) -> onnx.ModelProto:
    """Let one node write very many tensors."""
    model = model_of("agraph (float[2] x) => (y) { y = Relu(x) }")
    names = [f"o{i}" for i in range(num_outputs)]
    model.graph.node.append(make_node("Split", ["x"], names, num_outputs=num_outputs))
    return model


def many_weights(num_weights: int) -> onnx.ModelProto:
    """Let one node read very many weights."""
    model = model_of("agraph (float[2] x) => (y) { y = Sum(x) }")
    for i in range(num_weights):
        model.graph.initializer.add(name=f"w{i}", data_type=1, dims=[2])
        model.graph.node[0].input.append(f"w{i}")
    return model


FILES: Final[tuple[HostileFile, ...]] = (
    *files_of("value bomb", {
        "constant of shape": sized("a = ConstantOfShape(s)  v = Add(a, a)"),
        "constant of shape, larger": sized("a = ConstantOfShape(s)  v = Add(a, a)", 2**40),
        "constant of shape, cast": sized(
            "a = ConstantOfShape(s)  b = Cast <to = 1> (a)  v = Cast <to = 7> (b)"),
        "range": sized("z = Constant <value_int = 0> ()  o = Constant <value_int = 1> () "
                       "e = Squeeze(s)  v = Range(z, e, o)"),
        "range backwards": sized("z = Constant <value_int = 0> ()  o = Constant <value_int = -1> ()"
                                 "  e = Squeeze(s)  n = Neg(e)  v = Range(z, n, o)"),
        "expand": sized("o = Constant <value_ints = [1]> ()  v = Expand(o, s)"),
        "tile": sized("o = Constant <value_ints = [1]> ()  v = Tile(o, s)"),
        "pad": sized("o = Constant <value_ints = [1]> ()  z = Constant <value_ints = [0]> () "
                     "p = Concat <axis = 0> (z, s)  v = Pad(o, p)"),
        "one hot": sized("o = Constant <value_ints = [1]> ()  t = Constant <value_ints = [0, 1]> ()"
                         "  h = OneHot(o, s, t)  v = Squeeze(h)"),
        "eye": sized("h = Concat <axis = 0> (s, s)  a = ConstantOfShape(h)  b = EyeLike(a) "
                     "v = NonZero(b)"),
        "shape of a shape": sized("a = ConstantOfShape(s)  b = Shape(a)  c = Expand(s, b) "
                                  "v = Mul(c, c)"),
        "concat doubling": chain("Concat", 40),
        "concat to 4097": chain("Concat", 13, 1),
        "squaring": chain("Mul", 64),
        "squaring 2000 times": chain("Mul", 2_000, -(2**62)),
        "adding": chain("Add", 400),
        "power": chain("Pow", 30),
        "shift": sized('b = Cast <to = 13> (s)  c = BitShift <direction = "LEFT"> (b, b) '
                       "v = Cast <to = 7> (c)"),
        "division by zero": sized("z = Sub(s, s)  v = Div(s, z)"),
        "remainder by zero": sized("z = Sub(s, s)  v = Mod(s, z)"),
        "least integer by -1": sized("o = Constant <value_ints = [-1]> ()  v = Div(s, o)",
                                     -(2**63)),
        "infinity to integer": sized("o = Constant <value_floats = [0.0]> ()  l = Log(o) "
                                     "v = Cast <to = 7> (l)"),
        # Their outputs are declared small; found by fuzzing.
        "tile, declared small": f"agraph (float[2] x) => (int64[3] y) <int64[1] o = {{1}}, "
                                f"int64[2] s = {{{LARGE}, {LARGE}}}> {{ y = Tile(o, s) }}",
        "sum, declared small": "agraph (float[2] x) => (y) <int64[1] o = {1}, "
                               "int64[2] s = {4096, 1}, int64[2] t = {1, 4096}> "
                               "{ a = Expand(o, s)  b = Expand(o, t)  c = Add(a, b)  "
                               "d = Mul(c, c)  y = Expand(x, d) }",
        "untyped": lambda: untyped(LARGE),
    }, ANALYZED),
    *files_of("rank bomb", {
        "constant of shape": f"agraph (float[2] x, int64[{LARGE}] s) => (y)"
                             " { y = ConstantOfShape(s) }",
        "expand": f"agraph (float[2] x, int64[{LARGE}] s) => (y) {{ y = Expand(x, s) }}",
        "expand, old": f'<ir_version: 8, opset_import: ["": 11]> '
                       f"agraph (float[2] x, int64[{LARGE}] s) => (y) {{ y = Expand(x, s) }}",
        "reshape": f"agraph (float[2] x, int64[{LARGE}] s) => (y) {{ y = Reshape(x, s) }}",
        "unsqueeze": f"agraph (float[2] x, int64[{LARGE}] s) => (y) {{ y = Unsqueeze(x, s) }}",
        "tile": f"agraph (float[2] x, int64[{LARGE}] s) => (y) {{ y = Tile(x, s) }}",
        "resize": f"agraph (float[2] x, int64[{LARGE}] s) => (y) {{ y = Resize(x, , , s) }}",
        "random": f"agraph (float[2] x, int64[{LARGE}] s) => (y)"
                  " { a = ConstantOfShape(s)  y = RandomNormalLike(a) }",
        "split in 900 million": "agraph (float[2] x) => (y)"
                                " { y, z = Split <num_outputs = 900000000> (x) }",
    }, ANALYZED),
    *files_of("rank bomb", {"unsqueezed 1000 times": lambda: unsqueezed(1_000)}, "partial",
              "bound_reached"),
    *files_of("size bomb", {
        "a million attributes": lambda: attributes(1_000_000),
        "every tensor read by all": lambda: fan(300),
        "10000 outputs": lambda: many_outputs(10_000),
        "10000 weights": lambda: many_weights(10_000),
    }, ANALYZED),
)  # fmt: skip

"""Sound graphs, written oddly: as hundreds of onnxruntime's own models are.

Each oddity is put on each of a few graphs that hold what the fusions look for.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import onnx

from runtime_kinds.kind import Kind, Numbers, header, text_maker

Oddity = Callable[[onnx.ModelProto], None]

_BERT: Final = """agraph (float[2,5,8] x, int64[2,5] m) => (y)
    <float[8,8] q, float[8,8] k, float[8,8] v, float[8] g, float[8] b, float d = {2},
     int64[4] s = {0, 0, 2, 4}, int64[3] t = {0, 0, 8}> {
    n = LayerNormalization <axis = -1> (x, g, b)  qa = MatMul(n, q)  qr = Reshape(qa, s)
    qt = Transpose <perm = [0, 2, 1, 3]> (qr)  ka = MatMul(n, k)  kr = Reshape(ka, s)
    kt = Transpose <perm = [0, 2, 3, 1]> (kr)  va = MatMul(n, v)  vr = Reshape(va, s)
    vt = Transpose <perm = [0, 2, 1, 3]> (vr)  c = Cast <to = 1> (m)
    u1 = Unsqueeze <axes = [1]> (c)  u2 = Unsqueeze <axes = [2]> (u1)  p = MatMul(qt, kt)
    o = Div(p, d)  a = Add(o, u2)  w = Softmax <axis = 3> (a)  z = MatMul(w, vt)
    zt = Transpose <perm = [0, 2, 1, 3]> (z)  y = Reshape(zt, t) }"""
_EMBED: Final = """agraph (int64[B,5] i) => (y, r)
    <float[13,8] w, float[7,8] e, int64 zero = {0}, int64 one = {1}, float[8] g, float[8] b> {
    s = Shape(i)  n = Gather <axis = 0> (s, one)  a = Range(zero, n, one)
    a1 = Unsqueeze <axes = [0]> (a)  f = Expand(a1, s)  p = Gather(e, f)  t = Gather(w, i)
    h = Add(t, p)  y, r = LayerNormalization <axis = -1> (h, g, b) }"""
_IMAGE: Final = """agraph (float[1,3,11,13] x) => (y)
    <float[8,3,3,3] w, float[8] b, float[8,8,1,1] u, float lo = {0}, float hi = {6}> {
    c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w, b)  r = Clip(c, lo, hi)
    p = MaxPool <kernel_shape = [2, 2], auto_pad = "SAME_UPPER"> (r)  d = Conv(p, u)
    s = Add(d, r)  m = GlobalAveragePool(s)  y = Flatten(m) }"""
_MIXED: Final = """agraph (float[2,5,8] x) => (y)
    <float[8] b, float[8,8] w, float[8] g, float[8] o> {
    f = com.microsoft.FastGelu(x, b)  m = com.microsoft.FusedMatMul <transB = 1> (f, w)
    n = com.microsoft.SkipLayerNormalization(m, x, g, o)  q = com.microsoft.QuickGelu(n)
    y = Transpose <perm = [1, 0, 2]> (q) }"""
_OLD: Final = """agraph (float[2,5,8] x) => (y) <float[8] g, float e = {0.00001}, float two = {2}> {
    p = Pow(x, two)  m = ReduceMean <axes = [-1]> (p)  a = Add(m, e)  r = Sqrt(a)  d = Div(x, r)
    s = Mul(g, d)  q = Squeeze <axes = [0]> (h)  h = Slice
            <axes = [0], starts = [0], ends = [1]> (s)
    y = Flatten <axis = 1> (q) }"""
GRAPHS: Final[Mapping[str, tuple[str, str]]] = {
    "attention": (header(12, ms=1), _BERT),
    "embedding": (header(11), _EMBED),
    "image": (header(12, ir_version=6), _IMAGE),
    "mixed": (header(12, ms=1), _MIXED),
    "old": (header(9, ir_version=4), _OLD),
}


def backwards(model: onnx.ModelProto) -> None:
    """Put the nodes in the reverse order."""
    nodes = [*model.graph.node][::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def untold(model: onnx.ModelProto) -> None:
    """Import nothing."""
    del model.opset_import[:]


def lying_inside(model: onnx.ModelProto) -> None:
    """Declare shapes of inner tensors that they do not have."""
    for node in model.graph.node:
        for name in filter(None, node.output[:1]):
            model.graph.value_info.add(name=name).type.tensor_type.elem_type = 1
            dims = model.graph.value_info[-1].type.tensor_type.shape.dim
            for size in (3, 17):
                dims.add(dim_value=size)


def lying_outside(model: onnx.ModelProto) -> None:
    """Declare the outputs to be scalars, as some tools do for unknown shapes."""
    for value in model.graph.output:
        value.type.tensor_type.elem_type = 1
        value.type.tensor_type.shape.SetInParent()


def symbols_outside(model: onnx.ModelProto) -> None:
    """Declare outputs with one symbol for all their dims."""
    for value in model.graph.output:
        value.type.tensor_type.elem_type = 1
        for _ in range(2):
            value.type.tensor_type.shape.dim.add(dim_param="batch")


def untyped(model: onnx.ModelProto) -> None:
    """Declare no types of outputs."""
    for value in model.graph.output:
        value.ClearField("type")


def weights_as_inputs(model: onnx.ModelProto) -> None:
    """List every weight among the inputs, as the first version of the format requires."""
    model.ir_version = 3
    for tensor in model.graph.initializer:
        dims = [*tensor.dims]
        value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, dims)
        model.graph.input.append(value)


def weights_in_nodes(model: onnx.ModelProto) -> None:
    """Store every weight in a Constant at the end of the file."""
    for tensor in model.graph.initializer:
        model.graph.node.append(onnx.helper.make_node("Constant", [], [tensor.name], value=tensor))
    del model.graph.initializer[:]


def all_imported(model: onnx.ModelProto) -> None:
    """Import every domain of onnxruntime, as it does when it saves a model."""
    have = {entry.domain for entry in model.opset_import}
    for domain, version in (
        *(("ai.onnx.ml", 4), ("com.microsoft", 1), ("com.microsoft.nchwc", 1)),
        *(("com.ms.internal.nhwc", 19), ("ai.onnx.training", 1), ("org.pytorch.aten", 1)),
    ):
        if domain not in have:
            model.opset_import.add(domain=domain, version=version)


def renamed_domain(model: onnx.ModelProto) -> None:
    """Call ONNX's own domain by its long name."""
    for entry in model.opset_import:
        entry.domain = entry.domain or "ai.onnx"
    for node in model.graph.node:
        node.domain = node.domain or "ai.onnx"


def unread_parts(model: onnx.ModelProto) -> None:
    """Add nodes and weights that nothing reads."""
    first = model.graph.node[0].output[0]
    model.graph.node.append(onnx.helper.make_node("Identity", [first], ["unread"]))
    weight = onnx.helper.make_tensor("spare", onnx.TensorProto.FLOAT, [3], [1, 2, 3])
    model.graph.initializer.append(weight)


def twice_out(model: onnx.ModelProto) -> None:
    """Make an inner tensor with readers an output."""
    name = model.graph.node[0].output[0]
    if all(value.name != name for value in model.graph.output):
        model.graph.output.add(name=name)


ODDITIES: Final[tuple[Oddity, ...]] = (
    *(backwards, untold, lying_inside, lying_outside, symbols_outside, untyped),
    *(weights_as_inputs, weights_in_nodes, all_imported, renamed_domain, unread_parts, twice_out),
)

_REFUSED: Final = frozenset({untold, lying_inside})
"""By onnxruntime, at least on some graphs."""


def _kinds() -> Iterator[Kind]:
    for name, (head, text) in GRAPHS.items():
        feeds: dict[str, Numbers] = {"i": [0, 1, 2, 3, 4], "m": [1, 0]}
        yield Kind(f"{name}, plain", text_maker(head, text), feeds)
        for oddity in ODDITIES:
            plain = text_maker(head, text) if oddity in _REFUSED else None
            odd = _maker(head, text, oddity)
            yield Kind(f"{name}, {oddity.__name__}", odd, feeds, plain=plain)


def _maker(head: str, text: str, oddity: Oddity) -> Callable[[], onnx.ModelProto]:
    def make() -> onnx.ModelProto:
        model = text_maker(head, text)()
        oddity(model)
        return model

    return make


KINDS: Final = tuple(_kinds())

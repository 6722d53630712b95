"""Operators with attributes and operands that make no sense: the node's figure is unknown."""

from collections.abc import Callable, Mapping
from typing import Final

import onnx
import onnx.helper
from graphs import model_of

from hostile.hostile_file import EITHER, HostileFile, files_of

CONV: Final = "float[5,3,3,3] w"


def node(call: str, weights: str = "", opset: int = 21) -> str:
    """Write a graph of one node between two sound ones."""
    declared = f"<{weights}>" if weights else ""
    return (
        f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1, "ai.onnx.ml": 5]> '
        f"agraph (float[2,3,8,8] x) => (y, z) {declared} {{ h = Relu(x)  y = {call}  z = Neg(h) }}"
    )


def attribute_of(kind: int) -> onnx.ModelProto:
    """Give kernel_shape another type, or remove it."""
    model = model_of(node("MaxPool <kernel_shape = [2, 2]> (h)"))
    attribute = model.graph.node[1].attribute[0]
    attribute.type = kind  # type: ignore[assignment]
    return model


def attribute_twice() -> onnx.ModelProto:
    """Give one attribute two values."""
    model = model_of(node("MaxPool <kernel_shape = [2, 2]> (h)"))
    model.graph.node[1].attribute.add(name="kernel_shape", type=7, ints=[3, 3])
    return model


def attribute_nameless() -> onnx.ModelProto:
    """Remove the name of an attribute."""
    model = attribute_twice()
    model.graph.node[1].attribute[0].name = ""
    return model


def reference() -> onnx.ModelProto:
    """Refer, outside any function, to an attribute of the call."""
    model = model_of(node("MaxPool <kernel_shape = [2, 2]> (h)"))
    model.graph.node[1].attribute[0].ref_attr_name = "kernel"
    return model


def einsum_of_bytes() -> onnx.ModelProto:
    """Write an equation that is not a string: onnx would parse it forever. Found by fuzzing."""
    model = model_of(node('Einsum <equation = "i"> (h)'))
    model.graph.node[1].attribute[0].s = b"\xd0\xc1\xd2\xc1....,,(("
    return model


def einsum_of_a_call(version: int) -> Callable[[], onnx.ModelProto]:
    """Pass such an equation to a function, which can be of another version."""

    def make() -> onnx.ModelProto:
        inner = onnx.helper.make_node("Einsum", ["a"], ["b"])
        inner.attribute.add(name="equation", type=3, ref_attr_name="how")
        opsets = [onnx.helper.make_opsetid("", version)]
        function = onnx.helper.make_function("f", "A", ["a"], ["b"], [inner], opsets, ["how"])
        model = model_of(node("f.A (h)"))
        model.graph.node[1].attribute.add(name="how", type=3, s=b"....")
        model.opset_import.add(domain="f", version=1)
        model.functions.append(function)
        return model

    return make


BROKEN: Final[Mapping[str, str | Callable[[], onnx.ModelProto]]] = {
    "conv stride 0": node("Conv <strides = [0, 0]> (h, w)", CONV),
    "conv stride -1": node("Conv <strides = [-1, -1]> (h, w)", CONV),
    "conv group 0": node("Conv <group = 0> (h, w)", CONV),
    "conv group -3": node("Conv <group = -3> (h, w)", CONV),
    "conv group 7": node("Conv <group = 7> (h, w)", CONV),
    "conv dilation 2^62": node(f"Conv <dilations = [{2**62}, {2**62}]> (h, w)", CONV),
    "conv pads 2^62": node(f"Conv <pads = [{2**62}, {2**62}, {2**62}, {2**62}]> (h, w)", CONV),
    "conv pads negative": node("Conv <pads = [-9, -9, -9, -9]> (h, w)", CONV),
    "conv pads of 3": node("Conv <pads = [1, 1, 1]> (h, w)", CONV),
    "conv kernel 0": node("Conv <kernel_shape = [0, 0]> (h, w)", CONV),
    "conv without weights": node("Conv (h)"),
    "conv of rank 1": node("Conv (h, w)", "float[5] w"),
    "conv auto pad": node('Conv <auto_pad = "NOWHERE"> (h, w)', CONV),
    "transposed conv output": node(
        "ConvTranspose <output_padding = [-5, -5], strides = [0, 0]> (h, w)", "float[3,5,3,3] w"
    ),
    "pool kernel 0": node("MaxPool <kernel_shape = [0, 0]> (h)"),
    "pool kernel 99": node("MaxPool <kernel_shape = [99, 99]> (h)"),
    "pool no kernel": node("AveragePool (h)"),
    "pool stride 0": node("MaxPool <kernel_shape = [2, 2], strides = [0, 0]> (h)"),
    "transpose 9": node("Transpose <perm = [0, 1, 2, 9]> (h)"),
    "transpose -1": node("Transpose <perm = [0, 1, 2, -1]> (h)"),
    "transpose twice 0": node("Transpose <perm = [0, 0, 0, 0]> (h)"),
    "transpose short": node("Transpose <perm = [0]> (h)"),
    "softmax axis 99": node("Softmax <axis = 99> (h)"),
    "concat axis": node("Concat <axis = -77> (h, h)"),
    "concat no axis": node("Concat (h, h)"),
    "concat of nothing": node("Concat <axis = 0> ()"),
    "flatten axis": node(f"Flatten <axis = {2**62}> (h)"),
    "gather axis": node("Gather <axis = 9> (h, i)", "int64[2] i = {99, -99}"),
    "gather nd": node("GatherND <batch_dims = 77> (h, i)", "int64[2] i = {99, -99}"),
    "squeeze axis": node("Squeeze(h, i)", "int64[2] i = {99, -99}"),
    "unsqueeze axis": node("Unsqueeze(h, i)", "int64[2] i = {3, 3}"),
    "slice step 0": node("Slice(h, i, i, i, j)", "int64[1] i = {0}, int64[1] j = {0}"),
    "slice far": node(
        "Slice(h, i, j)", f"int64[1] i = {{{-(2**63)}}}, int64[1] j = {{{2**63 - 1}}}"
    ),
    "split uneven": node("Split <axis = 1> (h, i)", "int64[2] i = {-5, 99}"),
    "topk": node("TopK(h, i)", "int64[1] i = {-7}"),
    "one hot": node("OneHot(h, i, h)", "int64[1] i = {-7}"),
    "tile": node("Tile(h, i)", "int64[4] i = {-1, -1, 0, 99}"),
    "pad": node("Pad(h, i)", "int64[8] i = {-99, -99, -99, -99, 0, 0, 0, 0}"),
    "expand": node("Expand(h, i)", "int64[2] i = {-5, 7}"),
    "resize nan": node("Resize(h, , s)", "float[4] s = {nan, inf, -1.0, 0.0}"),
    "resize huge": node("Resize(h, , s)", "float[4] s = {1e38, 1e38, 1e38, 1e38}"),
    "upsample nan": node("Upsample(h, s)", "float[4] s = {nan, nan, nan, nan}", 9),
    "range nan": node("Range(s, s, s)", "float s = {nan}"),
    "range step 0": node("Range(a, b, a)", "int64 a = {0}, int64 b = {9}"),
    "einsum empty": node('Einsum <equation = ""> (h)'),
    "einsum junk": node('Einsum <equation = "->->...,,(("> (h, h)'),
    "einsum ellipses": node('Einsum <equation = "....,,(("> (h)'),
    "einsum digit": node('Einsum <equation = "abcd1->abcd"> (h)'),
    "einsum of bytes": einsum_of_bytes,
    "einsum in a function": einsum_of_a_call(21),
    "einsum in an old function": einsum_of_a_call(12),
    "einsum in a function of no version": einsum_of_a_call(9999),
    "einsum short": node('Einsum <equation = "ab,bc->ac"> (h)'),
    "einsum unknown letter": node('Einsum <equation = "abcd->z"> (h)'),
    "einsum long": node(f'Einsum <equation = "{"a" * 100_000}"> (h)'),
    "depth to space": node("DepthToSpace <blocksize = 0> (h)"),
    "space to depth": node("SpaceToDepth <blocksize = -3> (h)"),
    "eye": node("EyeLike <k = -9223372036854775808> (i)", "int64[2,2] i = {0, 1, 2, 3}"),
    "lstm": node("LSTM <hidden_size = -5> (h, h, h)"),
    "gru no weights": node("GRU (h)"),
    "matmul": node("MatMul(h, w)", "float[9,9] w"),
    "gemm": node("Gemm(h, h)"),
    "broadcast": node("Add(h, w)", "float[7] w"),
    "normalization": node("LayerNormalization <axis = -99> (h, h)"),
    "group normalization": node("GroupNormalization <num_groups = 0> (h, h, h)"),
    "lrn": node("LRN <size = 0> (h)"),
    "cast 99": node("Cast <to = 99> (h)"),
    "cast no type": node("Cast (h)"),
    "quantize": node("QuantizeLinear <axis = 99, block_size = -5> (h, h, h)"),
    "dequantize blocks of 0": node(
        "DequantizeLinear <block_size = 0> (q, s)", "int8[4,4] q, float[4,4] s"
    ),
    "attention": node("Attention <q_num_heads = 0, kv_num_heads = 0> (h, h, h)", "", 23),
    "attention of microsoft": node("com.microsoft.Attention <num_heads = 0> (h, h, h)"),
    "grouped attention": node(
        "com.microsoft.GroupQueryAttention <num_heads = 0, kv_num_heads = -1> (h, h, h)"
    ),
    "matmul of bits": node(
        "com.microsoft.MatMulNBits <K = -1, N = 0, bits = 0, block_size = 0> (h)"
    ),
    "affine grid": node("AffineGrid(h, i)", "int64[1] i = {-9}"),
    "stft": node("STFT(h, i)", "int64 i = {0}"),
    "dft": node("DFT <onesided = 7> (h)"),
    "mel": node("MelWeightMatrix(i, i, i, i, i)", "int64 i = {-7}"),
    "hann": node("HannWindow(i)", f"int64 i = {{{2**62}}}"),
    "nll": node("NegativeLogLikelihoodLoss(h, h)"),
    "label encoder": node("ai.onnx.ml.LabelEncoder (h)"),
    "trees": node("ai.onnx.ml.TreeEnsemble (h)"),
    "no operands": node("Add ()"),
    "77 operands": node(f"Relu ({', '.join(['h'] * 77)})"),
    "constant of nothing": node("Constant ()"),
}

FILES: Final[tuple[HostileFile, ...]] = (
    *files_of("operator", BROKEN, EITHER),
    *files_of("attribute", {
        **{f"type {kind}": lambda kind=kind: attribute_of(kind)  # type: ignore[misc]
           for kind in (0, 1, 3, 4, 5, 9, 13)},
        "twice": attribute_twice,
        "nameless": attribute_nameless,
        "reference": reference,
    }, EITHER),
)  # fmt: skip

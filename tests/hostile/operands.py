"""Constants that are no axis, size, count or scale, where operators look for one."""

from collections.abc import Callable, Iterator
from typing import Final

import onnx
from graphs import model_of
from onnx.helper import make_tensor

from hostile.hostile_file import EITHER, HostileFile, files_of

FLOAT: Final = onnx.TensorProto.FLOAT
INT64: Final = onnx.TensorProto.INT64

CALLS: Final = {
    "reshape": "y = Reshape(h, k)",
    "expand": "y = Expand(h, k)",
    "tile": "y = Tile(h, k)",
    "slice": "y = Slice(h, k, k, k, k)",
    "gather": "s = Shape(h)  g = Gather(s, k)  y = Expand(h, g)",
    "gather of elements": "s = Shape(h)  g = GatherElements(s, k)  y = Expand(h, g)",
    "scatter": "s = Shape(h)  g = ScatterElements(s, k, k)  y = Expand(h, g)",
    "topk": "y, i = TopK(h, k)",
    "split": "y, i = Split <axis = 1> (h, k)",
    "squeeze": "y = Squeeze(h, k)",
    "unsqueeze": "y = Unsqueeze(h, k)",
    "pad": "y = Pad(h, k)",
    "pad axes": "y = Pad(h, k, , k)",
    "one hot": "y = OneHot(k, k, k)",
    "constant of shape": "y = ConstantOfShape(k)",
    "resize": "y = Resize(h, , , k)",
    "resize scales": "y = Resize(h, , k)",
    "upsample": "y = Upsample(h, k)",
    "reduce": "y = ReduceSum(h, k)",
    "range": "y = Range(k, k, k)",
    "clip": "y = Clip(h, k, k)",
    "dropout": "y = Dropout(h, k)",
    "cumulated": "y = CumSum(h, k)",
    "trilu": "y = Trilu(h, k)",
    "quantize": "q = QuantizeLinear(h, k, k)  y = DequantizeLinear(q, k, k)",
    "quantize after relu": "q = QuantizeLinear(h, v, k)  y = DequantizeLinear(q, v, k)",
    "power": "y = Pow(h, k)",
    "divided": "y = Div(h, k)",
    "multiplied": "y = MatMul(h, k)",
    "normalized": "y = LayerNormalization(h, k)",
    "batch normalized": "y = BatchNormalization(h, k, k, k, k)",
    "convolved": "y = Conv(h, k)",
    "if": """y = If (k) < then_branch = t () => (o) { o = Relu(h) },
             else_branch = e () => (p) { p = Neg(h) }>""",
    "loop": """y, z = Loop (k, k, h) < body = b (int64 i, bool c, float[2,3,8,8] a)
               => (bool d, float[2,3,8,8] e, float[2,3,8,8] f)
               { d = Identity(c)  e = Relu(a)  f = Neg(a) }>""",
    "center crop": "y = CenterCropPad(h, k)",
    "affine grid": "y = AffineGrid(h, k)",
    "max unpool": "y = MaxUnpool <kernel_shape = [2, 2]> (h, h, k)",
    "window": "y = HannWindow(k)",
    "fourier": "y = DFT(h, k, k)",
    "pooled": "y = com.microsoft.CropAndResize(h, h, h, k)",
}  # fmt: skip
OPSETS: Final = {"upsample": 9}


def constants() -> Iterator[tuple[str, onnx.TensorProto]]:
    """Tensors other than a small integer or a list of them."""
    yield "nan", make_tensor("k", FLOAT, [1], [float("nan")])
    yield "infinities", make_tensor("k", FLOAT, [4], [float("inf"), float("-inf"), 1e38, 0.0])
    yield "nothing", make_tensor("k", INT64, [0], [])
    yield "zero", make_tensor("k", INT64, [], [0])
    yield "table", make_tensor("k", INT64, [2, 2], [1, 2, 3, 4])
    yield "ends of integers", make_tensor("k", INT64, [4], [2**63 - 1, -(2**63), -1, 2**62])
    strings = onnx.TensorProto.STRING
    yield "text", onnx.TensorProto(name="k", data_type=strings, dims=[2], string_data=[b"a", b"b"])
    yield "without elements", onnx.TensorProto(name="k", data_type=INT64, dims=[4])


def with_constant(call: str, constant: onnx.TensorProto) -> Callable[[], onnx.ModelProto]:
    """Pass a constant to a call."""

    def make() -> onnx.ModelProto:
        model = model_of(
            f'<ir_version: 8, opset_import: ["": {OPSETS.get(call, 21)}, "com.microsoft": 1]> '
            "agraph (float[2,3,8,8] x) => (y) <float v = {0.5}> "
            f"{{ h = Relu(x)  {CALLS[call]} }}"
        )
        model.graph.initializer.append(constant)
        return model

    return make


FILES: Final[tuple[HostileFile, ...]] = files_of(
    "operand",
    {
        f"{call}, {name}": with_constant(call, constant)
        for call in CALLS
        for name, constant in constants()
    },
    EITHER,
)

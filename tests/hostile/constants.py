"""Constants at the ends of their types, read as a length, a shape, a position or a shift."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hostile.hostile_file import ANALYZED, EITHER, HostileFile, files_of

MOST, LEAST = 2**63 - 1, -(2**63)
INF, NAN = float("inf"), float("nan")
HUGE: Final = 1e308
TINY: Final = 5e-324
"""The least double above 0."""


def whole(*numbers: int) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.int64)


def scalar(number: float, dtype: str = "int64") -> np.ndarray[Any, Any]:
    return np.array(number, dtype)


def of_constants(
    op_type: str,
    *operands: np.ndarray[Any, Any] | str,
    opset: int = 17,
    **attributes: Any,  # noqa: ANN401 - as make_node has them
) -> onnx.ModelProto:
    """Apply an operator to constants and to ``x`` or ``image``, and read its result as a shape."""
    nodes, names = [], []
    for index, operand in enumerate(operands):
        if isinstance(operand, str):
            names.append(operand)
            continue
        names.append(f"c{index}")
        nodes.append(
            helper.make_node("Constant", [], names[-1:], value=numpy_helper.from_array(operand))
        )
    nodes += [
        helper.make_node(op_type, names, ["y"], **attributes),
        helper.make_node("Cast", ["y"], ["shape"], to=onnx.TensorProto.INT64),
        helper.make_node("ConstantOfShape", ["shape"], ["filled"]),
    ]
    float32 = onnx.TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info("x", float32, [1, 2, 3]),
        helper.make_tensor_value_info("image", float32, [1, 1, 3, 4]),
    ]
    outputs = [helper.make_tensor_value_info(name, float32, None) for name in ("y", "filled")]
    graph = helper.make_graph(nodes, "constants", inputs, outputs)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def ranges() -> Mapping[str, Callable[[], onnx.ModelProto]]:
    """Each type with ends and steps without a valid length, or with one beyond every integer."""
    ends = {
        "double": ((0, HUGE, TINY), (-HUGE, HUGE, 1), (HUGE, 0, -1), (0, INF, 1), (NAN, 1, 1)),
        "float": ((0, 3e38, 1e-45), (-3e38, 3e38, 1), (0, INF, 1), (0, 1, NAN), (0, 1, 0)),
        "int64": ((LEAST, MOST, 1), (MOST, LEAST, -1), (0, MOST, 0), (LEAST, MOST, MOST)),
        "int16": ((-(2**15), 2**15 - 1, 1), (0, 1, 0)),
    }
    return {
        f"{dtype} {' '.join(map(str, numbers))}": lambda dtype=dtype, numbers=numbers: of_constants(  # type: ignore[misc]
            "Range", *(scalar(each, dtype) for each in numbers)
        )
        for dtype, cases in ends.items()
        for numbers in cases
    }


FILES: Final[tuple[HostileFile, ...]] = (
    *files_of("constants of Range", ranges(), ANALYZED),
    *files_of("constant", {
        "ConstantOfShape of 2^120": lambda: of_constants("ConstantOfShape", whole(*[2**40] * 3)),
        "ConstantOfShape, negative": lambda: of_constants("ConstantOfShape", whole(-5, MOST, 2)),
        "Expand to 2^252": lambda: of_constants("Expand", whole(1), whole(*[MOST] * 4)),
        "Tile of 2^65": lambda: of_constants("Tile", whole(1, 2, 3, 4), whole(MOST)),
        "Tile, negative": lambda: of_constants("Tile", whole(1, 2, 3, 4), whole(LEAST)),
        "Pad by 2^64": lambda: of_constants("Pad", whole(1, 2), whole(MOST, MOST)),
        "Pad, negative": lambda: of_constants("Pad", whole(1, 2), whole(LEAST, LEAST)),
        "Mul beyond 64 bits": lambda: of_constants("Mul", whole(MOST), whole(MOST)),
        "Add beyond 64 bits": lambda: of_constants("Add", whole(MOST), whole(MOST)),
        "Sub below 64 bits": lambda: of_constants("Sub", whole(LEAST), whole(MOST)),
        "Neg of the least": lambda: of_constants("Neg", whole(LEAST)),
        "Abs of the least": lambda: of_constants("Abs", whole(LEAST)),
        "Pow of integers": lambda: of_constants("Pow", whole(10), whole(MOST)),
        "Pow, negative": lambda: of_constants("Pow", whole(0), whole(LEAST)),
        "Pow of floats": lambda: of_constants("Pow", np.array([HUGE]), np.array([HUGE])),
        "Exp of floats": lambda: of_constants("Exp", np.array([HUGE])),
        "Log of 0": lambda: of_constants("Log", np.array([0.0, -1.0])),
        "Div by 0": lambda: of_constants("Div", whole(LEAST), whole(0)),
        "Div of the least": lambda: of_constants("Div", whole(LEAST), whole(-1)),
        "Div of floats by 0": lambda: of_constants("Div", np.array([HUGE]), np.array([0.0])),
        "Mod by 0": lambda: of_constants("Mod", whole(LEAST), whole(0)),
        "Mod of the least": lambda: of_constants("Mod", whole(LEAST), whole(-1)),
        "BitShift by 2^63": lambda: of_constants(
            "BitShift", np.array([1], np.uint64), np.array([2**63], np.uint64), direction="LEFT"),
        "Cast of floats": lambda: of_constants(
            "Cast", np.array([NAN, INF, HUGE]), to=onnx.TensorProto.INT64),
        "ReduceProd": lambda: of_constants("ReduceProd", whole(*[MOST] * 64)),
        "ReduceSum of floats": lambda: of_constants(
            "ReduceSum", np.array([HUGE] * 64), whole(LEAST)),
        "CumSum": lambda: of_constants("CumSum", whole(MOST, MOST), scalar(LEAST)),
        "Gather, far away": lambda: of_constants("Gather", whole(1, 2, 3), whole(LEAST)),
        "Concat": lambda: of_constants("Concat", whole(1), whole(MOST), axis=LEAST),
        "Squeeze": lambda: of_constants("Squeeze", whole(1), whole(MOST)),
        "Unsqueeze": lambda: of_constants("Unsqueeze", whole(1), whole(LEAST, MOST, 0)),
        "Where": lambda: of_constants("Where", np.array([True]), whole(MOST), whole(LEAST)),
        "Reshape": lambda: of_constants("Reshape", "x", whole(MOST, MOST, -1)),
        "Resize by scales": lambda: of_constants(
            "Resize", "x", "", np.array([3e38, -3e38, NAN], np.float32)),
        "Resize to sizes": lambda: of_constants("Resize", "x", "", "", whole(MOST, MOST, LEAST)),
        "Upsample": lambda: of_constants(
            "Upsample", "x", np.array([3e38, -3e38, INF], np.float32), opset=9),
        "Slice by the least": lambda: of_constants(
            "Slice", "x", whole(LEAST), whole(MOST), whole(LEAST), whole(LEAST)),
        "Slice by 0": lambda: of_constants(
            "Slice", "x", whole(LEAST), whole(MOST), whole(0), whole(0)),
        "OneHot of floats": lambda: of_constants(
            "OneHot", whole(LEAST, MOST), scalar(HUGE, "float64"), np.array([0, 1], np.float32)),
        "EyeLike": lambda: of_constants("EyeLike", np.ones((1, 1), np.float32), k=MOST),
        "TopK": lambda: of_constants("TopK", "x", whole(MOST)),
        "Split": lambda: of_constants("Split", "x", whole(MOST, LEAST), axis=1),
        "Trilu": lambda: of_constants("Trilu", "x", scalar(LEAST)),
        "DFT": lambda: of_constants("DFT", "x", scalar(MOST)),
        "STFT": lambda: of_constants("STFT", "x", scalar(MOST), "", scalar(MOST)),
        "HannWindow": lambda: of_constants("HannWindow", scalar(MOST)),
        "BlackmanWindow, negative": lambda: of_constants("BlackmanWindow", scalar(LEAST)),
        "MelWeightMatrix": lambda: of_constants(
            "MelWeightMatrix", *[scalar(MOST)] * 3, *[scalar(3e38, "float32")] * 2),
        "CenterCropPad": lambda: of_constants("CenterCropPad", "x", whole(*[MOST] * 3), opset=18),
        "Col2Im": lambda: of_constants("Col2Im", "x", *[whole(MOST, MOST)] * 2, opset=18),
        "AffineGrid": lambda: of_constants("AffineGrid", "x", whole(*[MOST] * 4), opset=20),
        "RoiAlign": lambda: of_constants(
            "RoiAlign", "image", np.ones((1, 4), np.float32), whole(0),
            output_height=MOST, output_width=MOST),
        "Conv": lambda: of_constants(
            "Conv", "image", np.ones((1, 1, 1, 1), np.float32),
            pads=[MOST] * 4, dilations=[MOST] * 2),
        "ConvTranspose": lambda: of_constants(
            "ConvTranspose", "image", np.ones((1, 1, 1, 1), np.float32),
            strides=[MOST] * 2, output_padding=[MOST] * 2),
        "MaxPool": lambda: of_constants(
            "MaxPool", "image", kernel_shape=[MOST] * 2, pads=[MOST] * 4, ceil_mode=1),
        "DepthToSpace": lambda: of_constants("DepthToSpace", "image", blocksize=MOST),
        "SpaceToDepth by 0": lambda: of_constants("SpaceToDepth", "image", blocksize=0),
    }, EITHER),
)  # fmt: skip

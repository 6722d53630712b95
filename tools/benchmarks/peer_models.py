"""The models on which onnxmem is held beside its peers: weights inside, numbers for every dim.

Peers need both. Values of weights are random: no figure depends on them.
"""

import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import onnx
import onnx.inliner
import onnx.parser
from onnx import TensorProto, numpy_helper
from onnx.helper import tensor_dtype_to_np_dtype

MODELS = Path(__file__).parents[2] / "models"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

_LENGTH = 128
_IMAGE_SIDE = 736
_NUM_LAYERS = 200

_PP_OCR = ("rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx")
"""A package whose wheel holds PP-OCR's detector, and the place in it."""

_DECODER = """
    <ir_version: 8, opset_import: ["": 17, "own": 1]>
    decoder (float[1,128,64] x0) => (float[1,128,64] x200) { CALLS }
    <opset_import: ["": 17], domain: "own">
    Layer (x, g, h, q_w, q_b, k_w, k_b, v_w, v_b, o_w, o_b, e, f, u_w, u_b, d_w, d_b) => (y) {
        n = LayerNormalization<axis = -1>(x, g, h)
        shape = Shape(n)
        zero = Constant<value = int64 {0}>()
        one = Constant<value = int64 {1}>()
        first = Constant<value = int64[1] {0}>()
        heads = Constant<value = int64[1] {4}>()
        head = Constant<value = int64[1] {16}>()
        width = Constant<value = int64[1] {64}>()
        batch = Gather(shape, zero)
        length = Gather(shape, one)
        batches = Unsqueeze(batch, first)
        lengths = Unsqueeze(length, first)
        split = Concat<axis = 0>(batches, lengths, heads, head)
        joined = Concat<axis = 0>(batches, lengths, width)
        q_m = MatMul(n, q_w)
        q_a = Add(q_m, q_b)
        q_r = Reshape(q_a, split)
        q = Transpose<perm = [0, 2, 1, 3]>(q_r)
        k_m = MatMul(n, k_w)
        k_a = Add(k_m, k_b)
        k_r = Reshape(k_a, split)
        k = Transpose<perm = [0, 2, 3, 1]>(k_r)
        v_m = MatMul(n, v_w)
        v_a = Add(v_m, v_b)
        v_r = Reshape(v_a, split)
        v = Transpose<perm = [0, 2, 1, 3]>(v_r)
        scores = MatMul(q, k)
        root = Constant<value = float {4.0}>()
        scaled = Div(scores, root)
        chances = Softmax<axis = -1>(scaled)
        mixed = MatMul(chances, v)
        mixed_t = Transpose<perm = [0, 2, 1, 3]>(mixed)
        mixed_r = Reshape(mixed_t, joined)
        o_m = MatMul(mixed_r, o_w)
        o = Add(o_m, o_b)
        z = Add(o, x)
        z_n = LayerNormalization<axis = -1>(z, e, f)
        u_m = MatMul(z_n, u_w)
        u = Add(u_m, u_b)
        two = Constant<value = float {1.414}>()
        unit = Constant<value = float {1.0}>()
        half = Constant<value = float {0.5}>()
        u_d = Div(u, two)
        u_e = Erf(u_d)
        u_p = Add(u_e, unit)
        u_x = Mul(u, u_p)
        u_g = Mul(u_x, half)
        d_m = MatMul(u_g, d_w)
        d = Add(d_m, d_b)
        y = Add(d, z)
    }
"""
"""200 decoder layers of 50 nodes as exporters write them, lengths read off shapes and all."""
_SIDES = {
    **dict.fromkeys(("q_w", "k_w", "v_w", "o_w"), (64, 64)),
    "u_w": (64, 256),
    "u_b": (256,),
    "d_w": (256, 64),
}


def made(name: str, folder: Path) -> Path:
    """A model of the set as a file in a folder, written unless it is there."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        unfinished = path.with_suffix(".part")
        onnx.save(MAKERS[name](folder), str(unfinished))
        unfinished.replace(path)
    return path


def filled(_: Path, *, name: str) -> onnx.ModelProto:
    """One of ``models/`` with its absent weights written in."""
    model = onnx.load(str(MODELS / f"{name}.onnx"), load_external_data=False)
    constants = [value.t for node in model.graph.node for value in node.attribute]
    for tensor in (*model.graph.initializer, *constants):
        if tensor.data_location == TensorProto.EXTERNAL:
            dtype = tensor_dtype_to_np_dtype(tensor.data_type)
            tensor.CopyFrom(_weight(tensor.name, tuple(tensor.dims), dtype))
    return bound(model, _LENGTH)


def lit(_: Path, *, name: str) -> onnx.ModelProto:
    """One of onnx's own ``light_*`` models, weights in place of the nodes that stand for them."""
    graph = (model := onnx.load(str(LIGHT / f"light_{name}.onnx"))).graph
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    fills = [n for n in graph.node if n.op_type == "ConstantOfShape" and n.input[0] in shapes]
    for node in fills:
        shape = tuple(int(dim) for dim in shapes[node.input[0]])
        graph.initializer.append(_weight(node.output[0], shape, np.dtype(np.float32)))
        graph.node.remove(node)
    return model


def pp_ocr(folder: Path) -> onnx.ModelProto:
    """PP-OCR's text detector out of the wheel that carries it."""
    package, place = _PP_OCR
    words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), package]
    subprocess.run(words, check=True)  # noqa: S603 - this interpreter's pip
    wheel = next(folder.glob("rapidocr_onnxruntime-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        return bound(onnx.load_from_string(archive.read(place)), _IMAGE_SIDE)


def decoder(_: Path) -> onnx.ModelProto:
    """10,000 nodes and few bytes: calls of one layer, written out."""
    model = onnx.parser.parse_model(_DECODER.replace("CALLS", ""))
    (layer,) = model.functions
    for i in range(_NUM_LAYERS):
        weights = [f"{name}.{i}" for name in layer.input[1:]]
        node = onnx.helper.make_node("Layer", [f"x{i}", *weights], [f"x{i + 1}"], domain="own")
        model.graph.node.append(node)
        for name in weights:
            shape = _SIDES.get(name.partition(".")[0], (64,))
            model.graph.initializer.append(_weight(name, shape, np.dtype(np.float32)))
    return onnx.inliner.inline_local_functions(model)


def bound(model: onnx.ModelProto, length: int) -> onnx.ModelProto:
    """Write numbers over the symbols of the inputs, in place: 1 for the first dim, or a length."""
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.dim_value:
                dim.dim_value = length if axis else 1
    return model


def _weight(name: str, shape: tuple[int, ...], dtype: np.dtype) -> TensorProto:
    values = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    return numpy_helper.from_array(values.astype(dtype), name)


SET: Final = ("resnet50", "vgg19", "densenet121", "pp_ocr_det", "bert_base", "decoder_10k")
"""Those that are run if none is named."""
MAKERS: Final[Mapping[str, Callable[[Path], onnx.ModelProto]]] = MappingProxyType(
    {
        **{path.stem: partial(filled, name=path.stem) for path in sorted(MODELS.glob("*.onnx"))},
        "vgg19": partial(lit, name="vgg19"),
        "pp_ocr_det": pp_ocr,
        "decoder_10k": decoder,
    }
)
"""Name to what makes it; a folder is for what has to be fetched."""

"""Which weights kernels prepack, in which order, and which are packed transiently."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import graph_of, model_of
from onnx import numpy_helper

from onnxmem.measuring.measurement import Measurement
from onnxmem.measuring.measuring import measure
from onnxmem.model.binding import Request
from onnxmem.model.building import prepare
from onnxmem.model.files import ModelFile, load
from onnxmem.runtimes.from_settings import predict
from onnxmem.runtimes.onnxruntime.cpu import AVX512
from onnxmem.runtimes.onnxruntime.kernels.prepacking import SessionFacts, prepacked
from onnxmem.runtimes.onnxruntime.memory import SessionRequest
from onnxmem.runtimes.onnxruntime.optimizer.constants import content_of, forget_content
from onnxmem.runtimes.onnxruntime.providers import CPU
from onnxmem.runtimes.onnxruntime.session_graph.optimization import emulated
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

PACKED = 4 * 7 * 16
"""Bytes of a packed float[7,11]: panels of 16 columns."""
PRODUCTS = """agraph (float[5,7] x) => (y, z, s) <float[7,11] u, float[7,11] v, float[7,11] w> {
    y = MatMul(x, u)  z = MatMul(x, v)  s = Gemm(x, w)
}"""


def test_a_weight_equal_to_an_earlier_one_of_the_operator_is_packed_transiently() -> None:
    graph = graph_of(PRODUCTS)
    found = prepacked(graph, SessionFacts(dict.fromkeys("uvw", "same")))
    assert [(each.size_bytes, each.transient_bytes) for each in found] == [
        (PACKED, 0),
        (0, PACKED),
        (PACKED, 0),
    ]
    assert [
        each.size_bytes for each in prepacked(graph, SessionFacts({"u": "one", "v": "other"}))
    ] == [PACKED] * 3


def test_transient_packing_adds_to_the_bytes_packed_so_far() -> None:
    graph = graph_of(PRODUCTS.replace("Gemm", "MatMul"))

    def transient_bytes(*equal: str) -> int:
        made = CPU.packing(graph, SessionOptions(), SessionFacts(dict.fromkeys(equal, "same")))
        assert sum(made.reserved_bytes) == (3 - len(equal[1:])) * PACKED
        return made.transient_bytes

    assert transient_bytes() == 0
    assert transient_bytes("u", "v") == 0  # the next one takes as much, and stays
    assert transient_bytes("u", "w") == PACKED


def test_kernels_pack_in_order_of_node_index_and_unindexed_ones_last() -> None:
    graph = graph_of(PRODUCTS)
    assert [each.weight for each in prepacked(graph)] == ["u", "v", "w"]
    numbered = SessionFacts(dict.fromkeys("uvw", "same"), {"s": 2, "z": 1})
    found = prepacked(graph, numbered)
    assert [(each.weight, each.size_bytes) for each in found] == [
        ("v", PACKED),
        ("w", PACKED),
        ("u", 0),
    ]


def test_kernels_of_a_graph_pack_before_those_of_its_subgraphs() -> None:
    text = """agraph (float[5,7] x, bool c) => (y, z) <float[7,11] u, float[7,11] v> {
        y = If(c) <
            then_branch = one () => (t) { t = MatMul(x, u) },
            else_branch = two () => (e) { e = Sin(x) }
        >
        z = MatMul(x, v)
    }"""
    assert [each.weight for each in prepacked(graph_of(text))] == ["v", "u"]


QGEMM = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
agraph (uint8[3,5] a, float s, uint8 p) => (y) <uint8[IN,OUT] b, float t = {0.5}, uint8 q = {3}> {
    y = com.microsoft.QGemm <transB = TRANS_B> (a, s, p, b, t, q)
}"""


@pytest.mark.parametrize("a_type", ["uint8", "int8"])
@pytest.mark.parametrize(("trans_b", "dims"), [(0, ("5", "7")), (1, ("7", "5"))])
def test_an_8_bit_matrix_is_transposed_in_the_arena_before_mlas_refuses_signed_bytes(
    trans_b: int, dims: tuple[str, str], a_type: str
) -> None:
    text = QGEMM.replace("TRANS_B", str(trans_b)).replace("IN,OUT", ",".join(dims))
    text = text.replace("uint8[3,5]", f"{a_type}[3,5]").replace("uint8 p", f"{a_type} p")
    assert len(prepacked(graph_of(text))) == int(a_type == "uint8" or trans_b)
    assert all(each.drops_original == (a_type == "uint8") for each in prepacked(graph_of(text)))
    made = CPU.packing(graph_of(text), SessionOptions(), SessionFacts())
    assert made.transposed == ((0, 35),) * trans_b
    assert made.allocated_bytes == ()


BRANCHES = """agraph (float[5,7] x, bool c) => (y) <float[11,7] v, float[11,7] w> {
    y = If(c) <
        then_branch = one () => (t) { a = THEN  p = MatMul(x, a)  t = Exp(p) },
        else_branch = two () => (e) { b = ELSE  q = MatMul(x, b)  e = Neg(q) }
    >
}"""
TRANSPOSED = "Transpose <perm = [1, 0]> (w)"


def of_branches(then: str, other: str) -> str:
    return BRANCHES.replace("THEN", then).replace("ELSE", other)


@pytest.mark.parametrize(
    ("then", "other", "are_equal"),
    [
        (TRANSPOSED, TRANSPOSED, True),
        (TRANSPOSED, TRANSPOSED.replace("w", "v"), False),
        ("Transpose(w)", TRANSPOSED, False),  # equal, but not by their attributes
        ("Reshape(w, s)", "Reshape(w, r)", True),
        ("Reshape(w, s)", "Reshape(v, r)", False),
    ],
)
def test_constants_that_branches_fold_from_the_same_constants_are_equal(
    then: str, other: str, *, are_equal: bool
) -> None:
    numbers = ", int64[2] s = {7, 11}, int64[2] r = {7, 11}> {"
    text = of_branches(then, other).replace("> {", numbers, 1)
    found = emulated(prepare(ModelFile("", model_of(text), 0)), "all", {}, AVX512).contents
    one, two = found["y/then_branch"], found["y/else_branch"]
    assert (one["a"] == two["b"]) is are_equal


def test_equality_follows_chains_of_folded_constants() -> None:
    halves = ("Concat <axis = 1> (h, v)", "Concat <axis = 1> (g, v)", "Concat <axis = 1> (v, g)")
    heads = [f"{name} = Transpose(w)" for name in "hg"]
    contents = []
    for first, second in ((halves[0], halves[1]), (halves[0], halves[2])):
        text = of_branches(first, second).replace("a = Concat", f"{heads[0]}  a = Concat")
        text = text.replace("b = Concat", f"{heads[1]}  b = Concat").replace("[11,7]", "[7,7]")
        found = emulated(prepare(ModelFile("", model_of(text), 0)), "all", {}, AVX512).contents
        contents.append((found["y/then_branch"]["a"], found["y/else_branch"]["b"]))
    assert [one == two for one, two in contents] == [True, False]


def test_constants_are_equal_by_their_elements_if_these_are_present() -> None:
    one, two, wide = (
        numpy_helper.from_array(np.array(values, np.float32).reshape(shape), name)
        for name, values, shape in (
            ("a", [3, 5], (2,)),
            ("b", [3, 5], (2,)),
            ("c", [3, 5], (1, 2)),
        )
    )
    assert content_of(one) == content_of(two) != content_of(wide)
    absent = onnx.TensorProto(name="d", data_type=1, dims=[2])
    texts = numpy_helper.from_array(np.array(["q"], object), "e")
    assert content_of(absent) is content_of(texts) is None


def test_a_constant_changed_in_place_loses_its_content_number() -> None:
    tensor = onnx.TensorProto(name="a", data_type=1, dims=[7, 7])
    tensor.metadata_props.add(key="mine", value="kept")
    tensor.metadata_props.add(key="onnxmem.content", value="3")
    assert content_of(tensor) is not None
    forget_content(tensor)
    assert content_of(tensor) is None
    assert [entry.key for entry in tensor.metadata_props] == ["mine"]


# Compared with onnxruntime


CHAIN = """agraph (float[5,67] x) => (y) <float[67,67] u, float[67,67] v, float[67,67] w> {
    a = MatMul(x, u)  b = MatMul(a, v)  y = MatMul(b, w)
}"""


def with_equal_weight(name: str) -> onnx.ModelProto:
    """A model with three weights, one of which equals the first."""
    model = model_of(CHAIN)
    noise = np.random.default_rng(0)
    first = noise.random((67, 67), np.float32)
    for tensor in model.graph.initializer:
        is_first = tensor.name in {"u", name}
        values = first if is_first else noise.random((67, 67), np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return model


@pytest.mark.usefixtures("without_children")
@pytest.mark.measure
@pytest.mark.parametrize("asks_onnxruntime", [True, False])
def test_onnxruntime_packs_equal_constants_of_branches_once(
    tmp_path: Path, *, asks_onnxruntime: bool
) -> None:
    pytest.importorskip("onnxruntime")
    check_figures(
        tmp_path, model_of(of_branches(TRANSPOSED, TRANSPOSED)), asks_onnxruntime=asks_onnxruntime
    )


@pytest.mark.usefixtures("without_children")
@pytest.mark.measure
@pytest.mark.parametrize("asks_onnxruntime", [True, False])
def test_the_region_of_the_freed_transposed_copy_stays(
    tmp_path: Path, *, asks_onnxruntime: bool
) -> None:
    """It is larger than the first region would be, and later regions are sized by it."""
    pytest.importorskip("onnxruntime")
    model = model_of(QGEMM.replace("TRANS_B", "1").replace("IN,OUT", "1031,2053"))
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 2053
    check_figures(tmp_path, model, asks_onnxruntime=asks_onnxruntime)


@pytest.mark.usefixtures("without_children")
@pytest.mark.measure
@pytest.mark.parametrize("name", ["v", "w"])
def test_onnxruntime_packs_equal_weights_of_the_file_once(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    check_figures(tmp_path, with_equal_weight(name), asks_onnxruntime=True)


def check_figures(folder: Path, model: onnx.ModelProto, *, asks_onnxruntime: bool) -> None:
    onnx.save(model, folder / "m.onnx")
    found = measure(folder / "m.onnx", Request())
    assert isinstance(found, Measurement)
    request = SessionRequest(asks_onnxruntime=asks_onnxruntime, values=found.fed)
    reported = predict(load(folder / "m.onnx"), Request(), request).arena
    for figure in ("base_bytes", "in_use_peak_bytes", "held_bytes", "held_steady_bytes"):
        assert getattr(reported, figure) == getattr(found, figure), figure

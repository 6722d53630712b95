"""Filling absent weights: sizes to the byte, values that disturb no runtime."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import model_of
from onnx.numpy_helper import to_array

from onnxmem.model.filling import (
    WEIGHTS_FILE,
    absent_tensors,
    is_hollow,
    stored_bytes,
    stored_tensors,
    write_filled,
)

ABSENT = """agraph (float[N,5] x) => (float[N,7] y) <float[5,7] w, float[7] b> {
    h = MatMul(x, w)
    y = Add(h, b)
}"""


def filled(text: str, folder: Path) -> dict[str, np.ndarray]:
    """The weights of a model in ONNX text after filling, read back as a runtime would."""
    model = model_of(text)
    written = write_filled(model, absent_tensors(model, folder), folder)
    read = onnx.load(written.path)
    return {tensor.name: to_array(tensor) for tensor in stored_tensors(read) if tensor.name}


def test_filled_weights_have_the_sizes_that_were_absent(tmp_path: Path) -> None:
    weights = filled(ABSENT, tmp_path)
    assert {name: value.shape for name, value in weights.items()} == {"w": (5, 7), "b": (7,)}


def test_no_two_float_weights_are_equal(tmp_path: Path) -> None:
    types = ("float", "double", "float16", "bfloat16")
    names = [f"{kind}_{place}" for kind in types for place in (1, 2)]
    declared = ", ".join(f"{name.split('_')[0]}[3] {name}" for name in names)
    made = " ".join(f"y{place} = Identity({name})" for place, name in enumerate(names))
    weights = filled(f"agraph (float x) => (float y0) <{declared}> {{ {made} }}", tmp_path)
    for kind in types:
        first, second = (weights[f"{kind}_{place}"] for place in (1, 2))
        assert first.tobytes() != second.tobytes()
        assert np.isfinite(first.astype(np.float32)).all()


def test_matrices_of_bytes_are_unique_and_vectors_stay_zero(tmp_path: Path) -> None:
    weights = filled(
        """agraph (float x) => (int8[2,4] a) <int8[2,4] m, int8[2,4] n, int8[4] v, int64[3] i> {
            a = Add(m, n)
            b = Identity(v)
            c = Identity(i)
        }""",
        tmp_path,
    )
    assert weights["m"].tobytes() != weights["n"].tobytes()
    assert not weights["v"].any()
    assert not weights["i"].any()


def test_scales_and_zero_points_stay_zero(tmp_path: Path) -> None:
    weights = filled(
        """agraph (float[4,2] x) => (float[4,2] y) <float[2] s, float[4,2] w> {
            q = QuantizeLinear <axis = 1> (x, s)
            d = DequantizeLinear <axis = 1> (q, s)
            y = Add(d, w)
        }""",
        tmp_path,
    )
    assert not weights["s"].any()
    assert weights["w"].any()


def test_the_file_is_sparse(tmp_path: Path) -> None:
    text = "agraph (float x) => (float[3,1000003] y) <float[3,1000003] w> { y = Identity(w) }"
    filled(text, tmp_path)
    status = (tmp_path / WEIGHTS_FILE).stat()
    assert status.st_size >= 3 * 1_000_003 * 4
    assert status.st_blocks * 512 < 100_000


def test_only_absent_weights_are_reported_as_absent(tmp_path: Path) -> None:
    model = model_of(ABSENT)
    assert len(absent_tensors(model, tmp_path)) == 2
    (tmp_path / "absent.weights").write_bytes(bytes(5 * 7 * 4 - 1))
    assert [tensor.name for tensor in absent_tensors(model, tmp_path)] == ["w"]
    (tmp_path / "absent.weights").write_bytes(bytes(5 * 7 * 4))
    assert absent_tensors(model, tmp_path) == []


@pytest.mark.parametrize(("key", "value"), [("offset", "x"), ("location", "no/such\0file")])
def test_a_weight_with_an_invalid_offset_or_length_is_absent(
    tmp_path: Path, key: str, value: str
) -> None:
    model = model_of(ABSENT)
    (tmp_path / "absent.weights").write_bytes(bytes(1000))
    tensor = model.graph.initializer[0]
    for entry in [*tensor.external_data]:
        if entry.key == key:
            tensor.external_data.remove(entry)
    tensor.external_data.add(key=key, value=value)
    assert absent_tensors(model, tmp_path) == [tensor]


def test_a_tensor_without_its_payload_is_incomplete() -> None:
    whole = onnx.numpy_helper.from_array(np.zeros((3, 5), np.float32), "w")
    assert not is_hollow(whole)
    whole.ClearField("raw_data")
    assert is_hollow(whole)
    assert stored_bytes(whole) == 60
    whole.dims[0] = 0
    assert not is_hollow(whole)
    assert not is_hollow(onnx.TensorProto(data_type=onnx.TensorProto.STRING, dims=[3]))


def test_tensors_of_subgraphs_functions_and_sparse_ones_are_stored() -> None:
    model = model_of(
        """agraph (bool c) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] a) <float[2] i = {1, 2}> { a = Identity(i) },
                else_branch = e () => (float[2] b) { b = Constant <value = float[2] {3, 4}> () }
            >
        }"""
    )
    body = onnx.parser.parse_function(
        """<domain: "d", opset_import: ["" : 21]>
        f (x) => (y) { y = Constant <value = float[1] {5}> () }"""
    )
    model.functions.append(body)
    sparse = model.graph.sparse_initializer.add()
    sparse.values.CopyFrom(onnx.numpy_helper.from_array(np.array([6], np.float32), "v"))
    sparse.indices.CopyFrom(onnx.numpy_helper.from_array(np.array([0]), "i"))
    values = sorted(float(to_array(tensor)[0]) for tensor in stored_tensors(model))
    assert values == [0, 1, 3, 5, 6]

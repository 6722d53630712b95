"""What a file really is, told by its first bytes, and what to do about it."""

import gzip
import io
import json
import pickle
import zipfile

import onnx
import pytest
from graphs import model_of

from onnxmem.model.files import HEAD_BYTES, other_kind

PICKLE = "a Python pickle (PyTorch or scikit-learn); export it to ONNX first"
HTML = "an HTML page; the download went to a web page instead of the file"
TEXT = "a text file; name the .onnx file"


def zip_archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"weights")
    return buffer.getvalue()


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(8)


KINDS = {
    "empty": (b"", "an empty file"),
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 102\n",
        "a git-lfs pointer, not the model itself; run `git lfs pull`",
    ),
    "html": (b"\n <!DOCTYPE html><title>404</title>", HTML),
    "html with a byte order mark": (b"\xef\xbb\xbf<HTML lang=en>", HTML),
    "xml": (b"<?xml version='1.0'?><Error/>", HTML),
    "zip": (
        zip_archive(),
        "a zip archive (a PyTorch .pt file, perhaps); export or unpack the model first",
    ),
    "pickle 2": (pickle.dumps({"w": 1}, protocol=2), PICKLE),
    "pickle 5": (pickle.dumps({"w": 1}, protocol=5), PICKLE),
    "gguf": (b"GGUF\x03\x00\x00\x00", "a GGUF file of llama.cpp; onnxmem reads ONNX"),
    "ort": (
        b"\x18\x00\x00\x00ORTM\x00",
        "onnxruntime's own .ort format; keep the .onnx file that it was made from",
    ),
    "tflite": (
        b"\x1c\x00\x00\x00TFL3\x00",
        "a TensorFlow Lite model; convert it to ONNX first",
    ),
    "gzip": (gzip.compress(b"model"), "a gzip file; unpack it first"),
    "xz": (b"\xfd7zXZ\x00", "an xz file; unpack it first"),
    "bzip2": (b"BZh91AY", "a bzip2 file; unpack it first"),
    "zstd": (b"\x28\xb5\x2f\xfd\x00", "a zstd file; unpack it first"),
    "tar": (bytes(257) + b"ustar\x00", "a tar archive; unpack it first"),
    "hdf5": (b"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras); convert it to ONNX first"),
    "safetensors": (
        safetensors(),
        "a safetensors file: weights without a graph; export the model to ONNX",
    ),
    "png": (b"\x89PNG\r\n\x1a\n", "a PNG picture; check the path"),
    "pdf": (b"%PDF-1.7\n\xff", "a PDF document; check the path"),
    "elf": (b"\x7fELF\x02\x01", "a program (ELF); check the path"),
    "text": (b"import onnx\n\tprint('hello')\r\n", TEXT),
    "json": (b'{"graph": []}', TEXT),
}


@pytest.mark.parametrize(("data", "kind"), KINDS.values(), ids=KINDS)
def test_a_file_of_another_kind_is_named_by_its_kind(data: bytes, kind: str) -> None:
    assert other_kind(data[:HEAD_BYTES]) == kind


def test_the_head_reaches_the_farthest_mark() -> None:
    assert len(b"ustar") + 257 <= HEAD_BYTES


@pytest.mark.parametrize("ir_version", range(1, onnx.IR_VERSION + 1))
def test_a_model_of_any_ir_version_is_none_of_them(ir_version: int) -> None:
    model = model_of("agraph (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.ir_version = ir_version
    assert other_kind(model.SerializeToString()[:HEAD_BYTES]) is None


def test_a_model_that_begins_with_its_graph_is_none_of_them() -> None:
    model = model_of("agraph (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.ClearField("ir_version")
    model.ClearField("opset_import")
    assert other_kind(model.SerializeToString()) is None


def test_one_byte_that_no_text_holds_makes_a_file_possibly_a_model() -> None:
    assert other_kind(b"plain text") == TEXT
    assert other_kind(b"plain\x08text") is None
    assert other_kind(b"plain\xfftext") is None

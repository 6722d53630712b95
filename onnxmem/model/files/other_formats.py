"""What a file that is no ONNX model really is, told by its first bytes."""

from typing import Final

HEAD_BYTES: Final = 512

_LFS = "a git-lfs pointer, not the model itself; run `git lfs pull`"
_ZIP = "a zip archive (a PyTorch .pt file, perhaps); export or unpack the model first"
_HTML = "an HTML page; the download went to a web page instead of the file"
_PICKLE = "a Python pickle (PyTorch or scikit-learn); export it to ONNX first"

_MAGIC: Final[tuple[tuple[int, bytes, str], ...]] = (
    (0, b"version https://git-lfs", _LFS),
    (0, b"PK\x03\x04", _ZIP),
    (0, b"GGUF", "a GGUF file of llama.cpp; onnxmem reads ONNX"),
    (4, b"ORTM", "onnxruntime's own .ort format; keep the .onnx file that it was made from"),
    (4, b"TFL3", "a TensorFlow Lite model; convert it to ONNX first"),
    (0, b"\x1f\x8b", "a gzip file; unpack it first"),
    (0, b"\xfd7zXZ", "an xz file; unpack it first"),
    (0, b"BZh", "a bzip2 file; unpack it first"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd file; unpack it first"),
    (257, b"ustar", "a tar archive; unpack it first"),
    (0, b"\x89HDF", "an HDF5 file (Keras); convert it to ONNX first"),
    (0, b"\x89PNG", "a PNG picture; check the path"),
    (0, b"%PDF", "a PDF document; check the path"),
    (0, b"\x7fELF", "a program (ELF); check the path"),
    *((0, b"\x80" + bytes([protocol]), _PICKLE) for protocol in range(2, 6)),
)
_HTML_STARTS: Final = (b"<!doctype html", b"<html", b"<head", b"<?xml", b"<!--")
_SAFETENSORS_BRACE: Final = 8


def other_kind(head: bytes) -> str | None:
    """Name the kind of a file from its first bytes; ``None`` where it may be a model.

    ``head`` is the first ``HEAD_BYTES`` of the file, or all of a shorter one.
    """
    if not head:
        return "an empty file"
    for offset, magic, kind in _MAGIC:
        if head.startswith(magic, offset):
            return kind
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith(_HTML_STARTS):
        return _HTML
    if head[_SAFETENSORS_BRACE : _SAFETENSORS_BRACE + 2] == b'{"':
        return "a safetensors file: weights without a graph; export the model to ONNX"
    if _is_text(head):
        return "a text file; name the .onnx file"
    return None


def _is_text(head: bytes) -> bool:
    """Printable ASCII only: a model's first field is its IR version, a control byte."""
    return all(byte in b"\t\n\r" or 0x20 <= byte < 0x7F for byte in head)  # noqa: PLR2004

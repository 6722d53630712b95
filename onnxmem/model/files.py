"""Read a model without its weights from a path, a URL, bytes or a ModelProto.

Only the model file itself is opened: external data may be missing, 30 GB large, or a path outside
the model's folder, and sizes follow from dims. Files of other formats are recognized by their first
bytes. Names must be UTF-8, as protobuf requires of strings
(https://protobuf.dev/programming-guides/proto2/#scalar); a file with other names is damaged.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias, overload

import onnx
from google.protobuf.message import DecodeError

from onnxmem.errors import MissingFileError, ModelFileError, shortened
from onnxmem.files import SpecialFileError, missing_file_text, opened, reason_of
from onnxmem.model.traversal import graphs_in
from onnxmem.model.wire import LIMIT_BYTES, ByteSource, without_payloads

if TYPE_CHECKING:
    from onnxmem.model.remote import Fetched, RemoteWindow

_WINDOW_BYTES = 1 << 14
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class FileWindow:
    """The bytes of a file by offset, through one small window.

    A memory map would be simpler, but the kernel maps many cached pages around each byte that is
    read, and they count as memory of the process: 48 MiB for the 300 tensor headers of a 102 MB
    model, compared with 16 KiB here.
    """

    fetched: Final = None
    validator: Final = None

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self.descriptor = descriptor
        self._size_bytes = size_bytes
        self._start = 0
        self._window = b""

    def __len__(self) -> int:
        return self._size_bytes

    @overload
    def __getitem__(self, offset: int) -> int: ...

    @overload
    def __getitem__(self, offset: slice) -> bytes: ...

    def __getitem__(self, offset: int | slice) -> int | bytes:
        """Read one byte, or the bytes of a slice.

        :raises IndexError: the byte is beyond the end of the file.
        :raises ModelFileError: the file was truncated since it was opened.
        """
        if isinstance(offset, slice):
            start, stop, _ = offset.indices(self._size_bytes)
            return self._read(start, max(stop - start, 0))
        # Tags and lengths are read forwards, so a window that starts at a byte serves the next
        # ones.
        index = offset - self._start
        if not 0 <= index < len(self._window):
            self._start, index = offset, 0
            self._window = self._read(offset, min(_WINDOW_BYTES, self._size_bytes - offset))
        return self._window[index]

    def _read(self, start: int, num_bytes: int) -> bytes:
        """Read a range; one system call may return less (Linux stops at 2 GiB)."""
        os.lseek(self.descriptor, start, os.SEEK_SET)
        pieces = []
        while num_bytes > 0 and (piece := os.read(self.descriptor, num_bytes)):
            pieces.append(piece)
            num_bytes -= len(piece)
        if num_bytes > 0:
            message = "truncated: the file became shorter while it was read; wait and try again"
            raise ModelFileError(message)
        return b"".join(pieces)


# Enough for every format below: the magic of tar ends at byte 262.
HEAD_BYTES: Final = 512

_LFS = "a git-lfs pointer, not the model itself; run `git lfs pull`"
_ZIP = "a zip archive (a PyTorch .pt file, perhaps); export or unpack the model first"
_HTML = "an HTML page; the download went to a web page instead of the file"
_PICKLE = "a Python pickle (PyTorch or scikit-learn); export it to ONNX first"

# Where each format has it: FlatBuffers (ORTM, TFL3) after the offset of the root table, tar in the
# header of the first member, pickle after the opcode PROTO.
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
_LARGEST_WIRE_TYPE: Final = 7
"""A tag up to this is of field 0, which no message has."""


def other_kind(head: bytes) -> str | None:
    """The format of a file by its first bytes; ``None`` if it may be a model.

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
    # The length of the header, 8 bytes, and the header, which is JSON.
    if head[_SAFETENSORS_BRACE : _SAFETENSORS_BRACE + 2] == b'{"':
        return "a safetensors file: weights without a graph; export the model to ONNX"
    if _is_text(head):
        return "a text file; name the .onnx file"
    return None


def may_begin_model(head: bytes) -> bool:
    """Whether a file that begins so may be a model: its first byte is the tag of a field."""
    return other_kind(head[:HEAD_BYTES]) is None and head[0] > _LARGEST_WIRE_TYPE


def _is_text(head: bytes) -> bool:
    """Whether all bytes are printable ASCII; the first byte of a model, a tag, is not."""
    return all(byte in b"\t\n\r" or 0x20 <= byte < 0x7F for byte in head)  # noqa: PLR2004 - the ends of printable ASCII


_Message = onnx.GraphProto | onnx.NodeProto | onnx.TensorProto | onnx.ValueInfoProto


def _check_names(model: onnx.ModelProto) -> None:
    """Check that every name that is read later is UTF-8.

    :raises ModelFileError: a name is not UTF-8.
    """
    # Python's protobuf returns a string field that is not UTF-8 as bytes, which would raise
    # TypeErrors in many places later.
    for name in chain(
        (entry.domain for entry in model.opset_import),
        *(_names_of_function(function) for function in model.functions),
        *(_names_in(graph) for graph in _all_graphs(model)),
    ):
        if isinstance(name, bytes):
            message = f"not an ONNX model: the name {name[:40]!r} is not UTF-8; download it again"
            raise ModelFileError(message)


def _all_graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    graphs = graphs_in(model.graph)
    yield next(graphs)
    # A small subgraph is checked as a whole: a model may have one in every block.
    yield from filter(_is_not_ascii, graphs)
    for function in model.functions:
        yield from graphs_in(onnx.GraphProto(node=function.node))


def _names_of_function(function: onnx.FunctionProto) -> Iterator[str]:
    yield from (function.name, function.domain, function.overload)
    yield from chain(function.input, function.output, function.attribute)
    yield from (entry.name for entry in function.attribute_proto)
    yield from (entry.domain for entry in function.opset_import)


def _names_in(graph: onnx.GraphProto) -> Iterator[str]:
    yield graph.name
    for value in filter(_is_not_ascii, chain(graph.input, graph.output, graph.value_info)):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    yield from _names_of_tensors(graph.initializer)
    yield from _names_of_tensors(sparse.values for sparse in graph.sparse_initializer)
    for node in filter(_has_bytes, filter(_is_not_ascii, graph.node)):
        yield node.name
        yield node.op_type
        yield node.domain
        yield from node.input
        yield from node.output
        for attribute in node.attribute:
            yield attribute.name
            yield attribute.ref_attr_name


def _names_of_tensors(tensors: Iterable[onnx.TensorProto]) -> Iterator[str]:
    for tensor in filter(_is_not_ascii, tensors):
        yield tensor.name
        for entry in tensor.external_data:
            yield entry.key
            yield entry.value


def _has_bytes(node: onnx.NodeProto) -> bool:
    """Whether a name of a node is not UTF-8.

    A node that is not ASCII may only contain a number above 127. Joining its names is much faster
    than checking each.
    """
    attributes = [text for a in node.attribute for text in (a.name, a.ref_attr_name)]
    try:
        "".join([node.name, node.op_type, node.domain, *node.input, *node.output, *attributes])
    except TypeError:
        return True
    return False


def _is_not_ascii(message: _Message) -> bool:
    """Whether a byte of a message is not ASCII; if all are, all of its names are UTF-8.

    Serializing a small message is much faster than reading its fields one by one.
    """
    return not message.SerializeToString().isascii()


ModelSource = str | os.PathLike[str] | bytes | onnx.ModelProto
ModelWindow: TypeAlias = "FileWindow | RemoteWindow"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model without the payloads of its large tensors."""

    path: str
    """The path as the caller wrote it; ``<bytes>`` or ``<ModelProto>`` without one."""
    proto: onnx.ModelProto
    file_bytes: int
    """The size of the file or of the serialized model, with the weights in it."""
    fetched: "Fetched | None" = None
    """``None``: the model is not at a URL."""


def load(source: ModelSource) -> ModelFile:
    """Read a model without its weights.

    :raises MissingFileError: the file cannot be opened.
    :raises ModelFileError: it is not an ONNX model, or an incomplete one.
    :raises OnnxmemError: a URL cannot be read.
    """
    if isinstance(source, onnx.ModelProto):
        return _from_bytes(_serialized(source), "<ModelProto>")
    if isinstance(source, bytes):
        return _from_bytes(source, "<bytes>")
    path = os.fspath(source)
    with opened_model(path) as window:
        return model_in(window, path)


def model_in(window: "ModelWindow", path: str) -> ModelFile:
    """Read a model without its weights from an opened file.

    :raises ModelFileError: it is not an ONNX model, or an incomplete one.
    :raises OnnxmemError: bytes of a URL cannot be read.
    """
    return replace(_from_bytes(window, path), fetched=window.fetched)


def _serialized(model: onnx.ModelProto) -> bytes:
    if model.ByteSize() > LIMIT_BYTES:
        message = "the ModelProto is over 2 GiB; save it with external data and pass the path"
        raise ModelFileError(message)
    return model.SerializeToString()


def _from_bytes(data: ByteSource, path: str) -> ModelFile:
    kind = other_kind(bytes(data[:HEAD_BYTES]))
    if kind is not None:
        message = f"not an ONNX model: this is {kind}"
        raise ModelFileError(message)
    return ModelFile(path, _parsed(without_payloads(data)), len(data))


def _parsed(stripped: bytes) -> onnx.ModelProto:
    try:
        proto = onnx.ModelProto.FromString(stripped)
    except DecodeError as fault:
        message = "not an ONNX model: the bytes do not parse; export or download it again"
        raise ModelFileError(message) from fault
    graph = proto.graph
    if not (graph.node or graph.input or graph.output or graph.initializer):
        message = "not an ONNX model: a protobuf without a graph; export or download it again"
        raise ModelFileError(message)
    _check_names(proto)
    return proto


def _in_folder(path: str) -> str:
    """What to name in place of a folder."""
    try:
        with os.scandir(path) as entries:
            name = min(each.name for each in entries if each.name.endswith(".onnx"))
    except (OSError, ValueError):
        return "no .onnx file is in it; check the path"
    return f"name the .onnx file in it, as {shortened(os.path.join(path, name))}"


def is_remote(name: str) -> bool:
    """Whether a name is a URL; a drive letter of Windows is not a scheme.

    >>> is_remote("s3://bucket/net.onnx"), is_remote("C://net.onnx")
    (True, False)
    """
    return _URL.match(name) is not None


@contextmanager
def opened_model(path: str) -> "Iterator[ModelWindow]":
    """The bytes of a model's file, or of what is at a URL, of which only ranges are fetched.

    :raises OnnxmemError: it cannot be opened, or is not a regular file.
    """
    if not is_remote(path):
        with regular_file(path) as window:
            yield window
        return
    from onnxmem.model.remote import remote_window

    with remote_window(path) as remote:
        yield remote


@contextmanager
def regular_file(path: str) -> Iterator[FileWindow]:
    """The bytes of a model's file; nothing that would wait or never end is read.

    :raises MissingFileError: the path names nothing that can be opened.
    :raises ModelFileError: it names a folder, a FIFO or a device.
    """
    try:
        descriptor = opened(path)
    except SpecialFileError as fault:
        hint = _in_folder(path) if fault.is_folder else "onnxmem reads regular files"
        message = f"not an ONNX model: this is {fault.kind}; {hint}"
        raise ModelFileError(message) from fault
    except FileNotFoundError:
        raise MissingFileError(missing_file_text(path)) from None
    except OSError as fault:
        message = f"cannot be opened: {reason_of(fault)}; check the path"
        raise MissingFileError(message) from fault
    try:
        yield FileWindow(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)

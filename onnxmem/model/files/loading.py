"""From a path, bytes or a ModelProto to a model without its weights.

The model file is opened once, and nothing else ever: external data may be absent, 30 GB large, or a
path out of the model's folder, and sizes follow from dims alone.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import onnx
from google.protobuf.message import DecodeError

from onnxmem.errors import MissingFileError, ModelFileError
from onnxmem.model.files.file_window import FileWindow
from onnxmem.model.files.other_formats import HEAD_BYTES, other_kind
from onnxmem.model.files.text_fields import refuse_names_that_are_no_text
from onnxmem.model.files.wire import without_payloads

ModelSource = str | os.PathLike[str] | bytes | onnx.ModelProto

_PROTOBUF_LIMIT_BYTES = 2**31 - 1
_SPECIAL_FILES = (
    (stat.S_ISDIR, "a directory; name the .onnx file in it"),
    (stat.S_ISFIFO, "a FIFO (named pipe); onnxmem reads regular files"),
    (stat.S_ISSOCK, "a socket; onnxmem reads regular files"),
    (stat.S_ISCHR, "a character device; onnxmem reads regular files"),
    (stat.S_ISBLK, "a block device; onnxmem reads regular files"),
)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model as it was given, less its large payloads."""

    path: str
    """As given; ``<bytes>`` or ``<ModelProto>`` where there was none."""
    proto: onnx.ModelProto
    file_bytes: int
    """Bytes of the file or of the serialised model, inline weights included."""


def load(source: ModelSource) -> ModelFile:
    """Read a model's graph without its weights.

    :raises MissingFileError: the path names nothing that can be opened.
    :raises ModelFileError: what is there is no ONNX model, or not a whole one.
    """
    if isinstance(source, onnx.ModelProto):
        return _from_bytes(_serialised(source), "<ModelProto>")
    if isinstance(source, bytes):
        return _from_bytes(source, "<bytes>")
    path = os.fspath(source)
    with _regular_file(path) as data:
        return _from_bytes(data, path)


def _serialised(model: onnx.ModelProto) -> bytes:
    if model.ByteSize() > _PROTOBUF_LIMIT_BYTES:
        message = "this ModelProto is over 2 GiB; save it with external data and pass the path"
        raise ModelFileError(message)
    return model.SerializeToString()


def _from_bytes(data: bytes | FileWindow, path: str) -> ModelFile:
    kind = other_kind(bytes(data[:HEAD_BYTES]))
    if kind is not None:
        message = f"no ONNX model but {kind}"
        raise ModelFileError(message)
    return ModelFile(path, _parsed(without_payloads(data)), len(data))


def _parsed(stripped: bytes) -> onnx.ModelProto:
    try:
        proto = onnx.ModelProto.FromString(stripped)
    except DecodeError as fault:
        message = "no ONNX model: the bytes do not parse as one; export or download it again"
        raise ModelFileError(message) from fault
    graph = proto.graph
    if not (graph.node or graph.input or graph.output or graph.initializer):
        message = "no ONNX model: protobuf without a graph; export or download it again"
        raise ModelFileError(message)
    refuse_names_that_are_no_text(proto)
    return proto


@contextmanager
def _regular_file(path: str) -> Iterator[FileWindow]:
    descriptor = _opened(path)
    try:
        status = os.fstat(descriptor)
        for is_kind, kind in _SPECIAL_FILES:
            if is_kind(status.st_mode):
                message = f"no ONNX model but {kind}"
                raise ModelFileError(message)
        yield FileWindow(descriptor, status.st_size)
    finally:
        os.close(descriptor)


def _opened(path: str) -> int:
    """Open without waiting on a FIFO and without becoming a terminal's owner."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    try:
        return os.open(path, flags | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        message = "no such file; check the path"
        raise MissingFileError(message) from None
    except (OSError, ValueError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        message = f"cannot be opened: {reason}; check the path"
        raise MissingFileError(message) from fault

"""The inputs of an inference: an array of the bound shape for each input of the graph.

Values are random, set by the caller, or read from a ``.npz`` file. This process reads only the
headers of such a file, and small arrays that may decide control flow. Pickled objects are never
loaded, neither here nor in the child.
"""

import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import IO, ClassVar, Final

import numpy as np
from numpy.lib import format as npy

from onnxmem.errors import UsageError, listed, shortened
from onnxmem.files import opened_to_its_end, reason_of
from onnxmem.measuring.run_request import Feed
from onnxmem.model.building import BoundModel
from onnxmem.model.graph import DType, Graph, Tensor
from onnxmem.model.input_values import input_arrays, may_be_setting
from onnxmem.ops.spec import known_dims
from onnxmem.runtimes.onnxruntime.session_files import RefusedError
from onnxmem.settings import Values

_SUFFIX: Final = ".npy"
_STRINGS: Final = "U"
_NO_VALUES: Final[Mapping[str, Values]] = MappingProxyType({})
_INDICES: Final = {"Gather": (0, 1), "GatherElements": (0, 1)}
"""Operator -> the input indices of its data and of its indices."""


class InputsFileError(UsageError):
    """The file of inputs cannot be read, or does not match the model."""

    code: ClassVar[str] = "inputs"


@dataclass(frozen=True, slots=True)
class Header:
    """Type and shape of an array of the file."""

    dtype: str
    """As ``DType`` names it."""
    shape: tuple[int, ...]


def feeds_of(bound: BoundModel, values: Mapping[str, Values] = _NO_VALUES) -> tuple[Feed, ...]:
    """Feeds for every input of a graph.

    :raises RefusedError: an input is not a tensor of known rank.
    :raises InputValueError: a value does not match its input.
    """
    graph = bound.graph
    input_arrays(graph, values)
    return tuple(_feed(graph, graph.tensors[name], values.get(name, ())) for name in graph.inputs)


def fed_values(bound: BoundModel, feeds: Iterable[Feed]) -> dict[str, Values]:
    """The values fed to the inputs that may decide control flow."""
    tensors = bound.graph.tensors
    return {
        feed.name: feed.elements or (feed.number,)
        for feed in feeds
        if feed.elements or may_be_setting(tensors[feed.name])
    }


def read_headers(path: str) -> Mapping[str, Header]:
    """The header of each array, by name.

    :raises InputsFileError: the file is missing, not a ``.npz``, or has pickled objects.
    """
    try:
        with opened_to_its_end(path) as file, zipfile.ZipFile(file) as archive:
            return dict(_headers(archive))
    except OSError as fault:
        text = f"the inputs file {shortened(path)} cannot be opened: {reason_of(fault)}"
        message = f"{text}; check the path"
        raise InputsFileError(message) from fault
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError) as fault:
        message = f"not a .npz file of arrays: {fault}; write it with numpy.savez"
        raise InputsFileError(message) from fault


def read_settings(path: str, bound: BoundModel) -> dict[str, Values]:
    """The arrays of the inputs that may decide control flow.

    Arrays that cannot be read are omitted: the child that reads all of them reports why.
    """
    wanted = filter(may_be_setting, (bound.graph.tensors[name] for name in bound.graph.inputs))
    try:
        with (
            opened_to_its_end(path) as file,
            np.load(file, allow_pickle=False) as arrays,
        ):
            found = {tensor.name: arrays[tensor.name] for tensor in wanted}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return {}
    return {
        name: tuple(array.ravel().tolist())
        for name, array in found.items()
        if isinstance(array, np.ndarray)  # numpy returns other files as bytes
    }


def check_names(headers: Mapping[str, Header], inputs: Iterable[str]) -> None:
    """Refuse a file that lacks an input or has an array that is not an input.

    :raises InputsFileError: with the names.
    """
    expected = list(inputs)
    missing = [name for name in expected if name not in headers]
    surplus = [name for name in headers if name not in expected]
    if missing:
        message = f"the inputs file lacks {listed(missing)}"
        raise InputsFileError(message)
    if surplus:
        message = f"the inputs file has {listed(surplus)}; the inputs are {listed(expected)}"
        raise InputsFileError(message)


def check_feeds(headers: Mapping[str, Header], feeds: Iterable[Feed]) -> None:
    """Refuse arrays whose type or shape differs from that of the bound inputs.

    :raises InputsFileError: with the first input that differs.
    """
    for feed in feeds:
        header = headers[feed.name]
        if header.dtype != feed.dtype:
            message = f"input {feed.name!r} is {feed.dtype}, the inputs file has {header.dtype}"
            raise InputsFileError(message)
        if header.shape != feed.shape:
            message = f"input {feed.name!r} is {feed.shape}, the inputs file has {header.shape}"
            raise InputsFileError(message)


def _headers(archive: zipfile.ZipFile) -> Iterator[tuple[str, Header]]:
    for member in archive.namelist():
        if not member.endswith(_SUFFIX):
            message = f"{member!r} is not an array"
            raise ValueError(message)
        with archive.open(member) as stream:
            yield member.removesuffix(_SUFFIX), _header(stream)


def _header(stream: IO[bytes]) -> Header:
    # Headers only: an array may be larger than the memory of this process.
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(stream)
    if dtype.hasobject:
        message = "it has pickled objects, which are never loaded; save plain arrays"
        raise ValueError(message)
    return Header("string" if dtype.kind == _STRINGS else dtype.name, tuple(shape))


def _feed(graph: Graph, tensor: Tensor, elements: Values) -> Feed:
    dims = known_dims(tensor.shape)
    if tensor.dtype is None or dims is None:
        message = (
            f"input {tensor.name!r} is not a tensor of known rank: no array can be made for it"
        )
        raise RefusedError(message)
    elem_type = list(DType).index(tensor.dtype) + 1
    number = _number(graph, tensor)
    return Feed(tensor.name, tensor.dtype.value, elem_type, dims, number, elements)


def _number(graph: Graph, tensor: Tensor) -> int:
    """The value of non-float inputs: 1, a valid size and index, but 0 where an axis has length
    1.
    """
    return 0 if 1 in _indexed(graph, tensor.name) else 1


def _indexed(graph: Graph, name: str) -> Iterator[int | None]:
    """The lengths of the axes that an input indexes."""
    for node in graph.nodes:
        data, indices = _INDICES.get(node.onnx_op, (0, 0))
        if indices and node.inputs[indices : indices + 1] == (name,):
            shape, axis = graph.tensors[node.inputs[data]].shape, node.attributes.get("axis", 0)
            if shape is not None and isinstance(axis, int) and -len(shape) <= axis < len(shape):
                yield shape[axis]

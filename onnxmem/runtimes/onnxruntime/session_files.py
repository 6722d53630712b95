"""The file that a session loads: the model's own file, or a copy if that cannot run as requested.

A copy has all weights, a unique name for every node, and another batch if the file fixes one. A
child writes it (``write_runnable``). Models that must not be loaded are refused before.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Final

import onnx
from onnx.external_data_helper import (
    convert_model_to_external_data,
    load_external_data_for_model,
    write_external_data_tensors,
)
from onnx.numpy_helper import from_array, to_array

from onnxmem.children.running import JSON, ChildFault, ChildLimits, run_in_child
from onnxmem.errors import ShapeError, listed
from onnxmem.model.binding import input_dims, required_inputs
from onnxmem.model.building import BoundModel, Prepared, prepare
from onnxmem.model.files import ModelFile, ModelSource, load
from onnxmem.model.filling import (
    WEIGHTS_FILE,
    absent_tensors,
    is_hollow,
    stored_bytes,
    stored_tensors,
    write_filled,
)
from onnxmem.model.shapes.batch_rewrite import rewrite_batch
from onnxmem.model.shapes.inference import inferred, with_bound_inputs
from onnxmem.model.traversal import model_nodes
from onnxmem.runtimes.onnxruntime.session_options import Storage

_SOURCE: Final = "source.onnx"
_MOVED: Final = "moved.bin"
_WRITE: Final = "onnxmem.runtimes.onnxruntime.session_files:write_runnable"
_NOISE: Final = re.compile(
    r"(\w+: )?\[ONNXRuntimeError\] : \d+ : \w+ : "  # the kind of the fault, two times
    r"|/\S+\.(cc|h):\d+ [^()]*\([^()]*\) "  # the location in the source
)


@dataclass(frozen=True, slots=True)
class OnDisk:
    """A model's file, and whether it has the data of all its tensors."""

    file: ModelFile
    path: Path
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Runnable:
    """The file that a session loads."""

    path: Path
    num_filled: int = 0
    """Weights with random values."""
    mapped_bytes: int = 0
    """Bytes of external weights, which are mapped and need not be resident."""


def on_disk(source: ModelSource | ModelFile, folder: Path) -> OnDisk:
    """The model's own file, or a new one in ``folder`` if it has none.

    :raises OnnxmemError: what ``load`` raises.
    """
    path = folder / _SOURCE
    if isinstance(source, ModelFile):
        if Path(source.path).is_file():
            return OnDisk(source, Path(source.path))
        # Only the parsed model is left, without the data of its large tensors.
        path.write_bytes(source.proto.SerializeToString())
        return OnDisk(source, path, is_whole=False)
    file = load(source)
    if not isinstance(source, bytes | onnx.ModelProto):
        return OnDisk(file, Path(file.path))
    path.write_bytes(source if isinstance(source, bytes) else source.SerializeToString())
    return OnDisk(file, path)


def runnable(
    source: OnDisk,
    bound: BoundModel,
    folder: Path,
    limits: ChildLimits,
    weights: Storage | None = None,
) -> Runnable | ChildFault:
    """The file of a model at the batch of ``bound``, with all weights, which lie as requested.

    It is the model's own file if possible: a file of 30 GB is not copied. A fault is that of the
    child that writes the copy.
    """
    stored = list(stored_tensors(source.file.proto))
    in_files = [t for t in stored if t.data_location == onnx.TensorProto.EXTERNAL]
    own = Runnable(source.path, mapped_bytes=sum(map(stored_bytes, in_files)))
    absent = absent_tensors(source.file.proto, source.path.parent)
    moves = bound.binding.old_batch is not None
    must_write = moves or bool(absent) or not source.is_whole or weights is not None
    # For the names of nodes alone, a model with external files is not copied.
    if not must_write and (in_files or has_own_names(source.file.proto)):
        return own
    written = _written(source, bound, folder, limits, weights)
    # Unique names only serve to attribute scratch to nodes: without them, the file runs as well.
    return own if isinstance(written, ChildFault) and not must_write else written


def _written(
    source: OnDisk, bound: BoundModel, folder: Path, limits: ChildLimits, weights: Storage | None
) -> Runnable | ChildFault:
    binding = bound.binding
    arguments: dict[str, JSON] = {
        "source": str(source.path.absolute()),
        "folder": str(folder),
        "shapes": binding.shapes,
        "batches": [] if binding.old_batch is None else [binding.old_batch, binding.batch],
        "weights": weights,
    }
    reply = run_in_child(_WRITE, arguments, limits)
    if isinstance(reply, ChildFault):
        return reply
    files = (folder / WEIGHTS_FILE, folder / _MOVED)
    mapped_bytes = sum(each.stat().st_size for each in files if each.exists())
    return Runnable(Path(str(reply["path"])), int(str(reply["num_filled"])), mapped_bytes)


class RefusedError(Exception):
    """A model that is not run; the message becomes a finding."""


def refuse_other_dims(prepared: Prepared, bound: BoundModel) -> None:
    """Refuse dims that the file fixes to other numbers, except a batch that can be rewritten.

    :raises RefusedError: with the first such dim.
    """
    if not bound.follows_batch:
        messages = [each.message for each in bound.findings if each.code == "batch_fixed"]
        message = messages[0] if messages else "the requested batch is not that of the model"
        raise RefusedError(message)
    binding = bound.binding
    for value in prepared.inputs:
        dims, shape = input_dims(value) or (), binding.shapes.get(value.name, ())
        for axis, (declared, requested) in enumerate(zip(dims, shape, strict=False)):
            is_batch = axis == 0 and declared == binding.old_batch
            if isinstance(declared, int) and declared != requested and not is_batch:
                text = f"the file fixes dim {axis} of {value.name!r} at {declared}"
                message = f"{text}; onnxruntime does not accept {requested} there"
                raise RefusedError(message)


def refuse_data_elsewhere(tensors: Iterable[onnx.TensorProto], model: Path) -> None:
    """Refuse a model with external data outside its own folder.

    Links are resolved: data may also be next to the file that the model's own path resolves to, as
    in caches of downloads.

    :raises RefusedError: with the first tensor that does.
    """
    homes = (_resolved(model.parent), _resolved(model).parent)
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            where = next((e.value for e in tensor.external_data if e.key == "location"), "")
            if not _is_inside(where, model.parent, homes):
                text = f"the data of {tensor.name!r} is outside the model's folder: {where!r}"
                message = f"{text}; the model was not loaded"
                raise RefusedError(message)


def _is_inside(where: str, folder: Path, homes: Iterable[Path]) -> bool:
    # A file may be of another system: no kind of path may lead out of the folder.
    for path in (PurePosixPath(where), PureWindowsPath(where)):
        if path.is_absolute() or path.drive or ".." in path.parts:
            return False
    target = _resolved(folder / where)
    return any(target.is_relative_to(home) for home in homes)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):  # cyclic links, a null character
        return Path("/", "nowhere", "at", "all")


def without_noise(message: str) -> str:
    """The message without onnxruntime's codes and source locations."""
    return _NOISE.sub("", message)


def write_runnable(
    source: str,
    folder: str,
    shapes: Mapping[str, Sequence[int]],
    batches: Sequence[int],
    weights: Storage | None,
) -> dict[str, JSON]:
    """Write a copy of ``source`` to ``folder`` that runs there.

    ``batches`` is empty, or has the batch that the file fixes and the one that replaces it in the
    inputs with these ``shapes``. The result has the ``path`` and ``num_filled``, the number of
    weights with random values: all external ones, whose files are not next to the copy. ``weights``
    moves them into the copy, or into a file beside it as ``onnx.save_model`` does with raw data.

    :raises ShapeError: constants fix the batch of the graph.
    """
    model = onnx.ModelProto.FromString(Path(source).read_bytes())
    if batches:
        old, new = batches
        model = _at_batch(model, shapes, old, new)
    name_nodes(model)
    elsewhere = [tensor for tensor in stored_tensors(model) if _is_elsewhere(tensor)]
    if weights == "external":
        _store_raw(model)
        convert_model_to_external_data(model, location=_MOVED)
        write_external_data_tensors(model, folder)
    written = write_filled(model, elsewhere, Path(folder))
    if weights == "inline":
        # ``write_filled`` puts the weights that it fills into a file beside the model.
        load_external_data_for_model(model, folder)
        written.path.write_bytes(model.SerializeToString())
    return {"path": str(written.path), "num_filled": written.num_filled}


def _store_raw(model: onnx.ModelProto) -> None:
    """Store floats as raw data: ``onnx.save_model`` leaves ``float_data`` in the model file."""
    for tensor in stored_tensors(model):
        if tensor.float_data:
            tensor.CopyFrom(from_array(to_array(tensor), tensor.name))


def _is_elsewhere(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL or is_hollow(tensor)


def _at_batch(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], old: int, new: int
) -> onnx.ModelProto:
    """The model with another batch in its inputs and in constants that contain it.

    Weights with a dim of the batch are resized, with random values.
    """
    prepared = prepare(ModelFile("", model, 0)).proto
    at_new = with_bound_inputs(prepared, shapes)
    old_shapes = {name: [old, *dims[1:]] if dims else [] for name, dims in shapes.items()}
    at_old, _ = inferred(with_bound_inputs(prepared, old_shapes))
    failures = rewrite_batch(at_new, at_old, old, new).failures
    if failures:
        message = f"constants fix the batch at {old}: {listed(failures)}"
        raise ShapeError(message)
    _free_symbols(at_new, prepared)
    return at_new


def _free_symbols(model: onnx.ModelProto, before: onnx.ModelProto) -> None:
    """Restore the symbolic dims, because a runtime plans with what it knows at load."""
    pairs = zip(required_inputs(model.graph), required_inputs(before.graph), strict=True)
    for value, declared in pairs:
        dims = declared.type.tensor_type.shape.dim
        for dim, was in zip(value.type.tensor_type.shape.dim, dims, strict=True):
            if not was.HasField("dim_value"):
                dim.CopyFrom(was)


def has_own_names(model: onnx.ModelProto) -> bool:
    """Whether every node has a unique name."""
    names = [node.name for node in model_nodes(model)]
    return all(names) and len(set(names)) == len(names)


def name_nodes(model: onnx.ModelProto) -> None:
    """Give each node a unique name, in place, which does not change the memory."""
    # Names of the whole model: bodies count too, and a new name must not be one that a later node
    # has.
    taken = {node.name for node in model_nodes(model)}
    seen = {""}
    numbers: Counter[str] = Counter()
    for node in model_nodes(model):
        if node.name in seen:
            stem = node.name or node.op_type
            node.name = _free_name(stem, numbers, taken)
            taken.add(node.name)
        seen.add(node.name)


def _free_name(stem: str, numbers: Counter[str], taken: set[str]) -> str:
    while True:
        name = f"{stem}_{numbers[stem]}"
        numbers[stem] += 1
        if name not in taken:
            return name

"""A model as the file that a session opens: its own, or a copy that runs where its own will not.

A copy has all weights, a name of its own for every node, and another batch where the file fixes
one; a child writes it (``write_runnable``). What must not be opened at all is refused beforehand.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Final

import onnx

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
from onnxmem.model.traversal import nodes_in

_GIVEN: Final = "given.onnx"
_WRITE: Final = "onnxmem.runtimes.onnxruntime.session_files:write_runnable"
_NOISE: Final = re.compile(
    r"(\w+: )?\[ONNXRuntimeError\] : \d+ : \w+ : "  # the kind of the fault, two times
    r"|/\S+\.(cc|h):\d+ [^()]*\([^()]*\) "  # the place in its source
)


@dataclass(frozen=True, slots=True)
class OnDisk:
    """A model's file, and whether the payloads of its tensors are in it."""

    file: ModelFile
    path: Path
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Runnable:
    """What a session opens."""

    path: Path
    num_filled: int = 0
    """Weights that are made up."""
    mapped_bytes: int = 0
    """Of weights in files of their own, which a runtime maps and need not hold in memory."""


def on_disk(source: ModelSource | ModelFile, folder: Path) -> OnDisk:
    """The model's own file, or one in ``folder`` where it came without.

    :raises OnnxmemError: what ``load`` raises.
    """
    path = folder / _GIVEN
    if isinstance(source, ModelFile):
        if Path(source.path).is_file():
            return OnDisk(source, Path(source.path))
        # Its bytes are gone, and with them the payloads of its large tensors.
        path.write_bytes(source.proto.SerializeToString())
        return OnDisk(source, path, is_whole=False)
    file = load(source)
    if not isinstance(source, bytes | onnx.ModelProto):
        return OnDisk(file, Path(file.path))
    path.write_bytes(source if isinstance(source, bytes) else source.SerializeToString())
    return OnDisk(file, path)


def runnable(
    given: OnDisk, bound: BoundModel, folder: Path, limits: ChildLimits
) -> Runnable | ChildFault:
    """The model at the batch of ``bound``, whose weights are all there.

    It is the file itself wherever that will do: one of 30 GB is not copied. A fault is that of the
    process that writes the copy.
    """
    stored = list(stored_tensors(given.file.proto))
    in_files = [t for t in stored if t.data_location == onnx.TensorProto.EXTERNAL]
    own = Runnable(given.path, mapped_bytes=sum(map(stored_bytes, in_files)))
    absent = absent_tensors(given.file.proto, given.path.parent)
    moves = bound.binding.old_batch is not None
    must_write = moves or bool(absent) or not given.is_whole
    if not must_write and (in_files or has_own_names(given.file.proto)):
        return own
    written = _written(given, bound, folder, limits)
    # Names of nodes are only for the sake of their scratch.
    return own if isinstance(written, ChildFault) and not must_write else written


def _written(
    given: OnDisk, bound: BoundModel, folder: Path, limits: ChildLimits
) -> Runnable | ChildFault:
    binding = bound.binding
    arguments: dict[str, JSON] = {
        "source": str(given.path.absolute()),
        "folder": str(folder),
        "shapes": binding.shapes,
        "batches": [] if binding.old_batch is None else [binding.old_batch, binding.batch],
    }
    reply = run_in_child(_WRITE, arguments, limits)
    if isinstance(reply, ChildFault):
        return reply
    mapped_bytes = (folder / WEIGHTS_FILE).stat().st_size
    return Runnable(Path(str(reply["path"])), int(str(reply["num_filled"])), mapped_bytes)


class RefusedError(Exception):
    """The model is not run, and why; it becomes a finding."""


def refuse_other_dims(prepared: Prepared, bound: BoundModel) -> None:
    """Refuse dims that the file fixes otherwise, but for a batch that can be moved.

    :raises RefusedError: with the first such dim.
    """
    if not bound.follows_batch:
        told = [finding.message for finding in bound.findings if finding.code == "batch_fixed"]
        message = told[0] if told else "the batch asked for is not the model's"
        raise RefusedError(message)
    binding = bound.binding
    for value in prepared.inputs:
        dims, shape = input_dims(value) or (), binding.shapes.get(value.name, ())
        for axis, (declared, asked) in enumerate(zip(dims, shape, strict=False)):
            is_batch = axis == 0 and declared == binding.old_batch
            if isinstance(declared, int) and declared != asked and not is_batch:
                text = f"the file fixes dim {axis} of {value.name!r} at {declared}"
                message = f"{text}; onnxruntime takes no {asked} there"
                raise RefusedError(message)


def refuse_data_elsewhere(tensors: Iterable[onnx.TensorProto], model: Path) -> None:
    """Refuse a model whose external data lies outside its own folder.

    A link counts as the file that it leads to: it may lead next to the file that the model's own
    path leads to, as caches of downloads lay both out.

    :raises RefusedError: with the first tensor that does.
    """
    homes = (_resolved(model.parent), _resolved(model).parent)
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            where = next((e.value for e in tensor.external_data if e.key == "location"), "")
            if not _is_inside(where, model.parent, homes):
                text = f"the data of {tensor.name!r} lies outside the model's folder: {where!r}"
                message = f"{text}; the model was not opened"
                raise RefusedError(message)


def _is_inside(where: str, folder: Path, homes: Iterable[Path]) -> bool:
    for path in (PurePosixPath(where), PureWindowsPath(where)):
        if path.is_absolute() or path.drive or ".." in path.parts:
            return False
    target = _resolved(folder / where)
    return any(target.is_relative_to(home) for home in homes)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):  # links in a ring, a null character
        return Path("/", "nowhere", "at", "all")


def without_noise(message: str) -> str:
    """The fault alone."""
    return _NOISE.sub("", message)


def write_runnable(
    source: str, folder: str, shapes: Mapping[str, Sequence[int]], batches: Sequence[int]
) -> dict[str, JSON]:
    """Write the model of ``source`` into ``folder`` so that it runs there.

    ``batches`` is empty, or the batch that the file fixes and the one that takes its place in the
    inputs, whose ``shapes`` are given. Comes back: ``path``, and ``num_filled`` weights that were
    made up: all that lie outside the file, for what is next to a model is not next to its copy.

    :raises ShapeError: constants keep the graph at the batch that the file fixes.
    """
    model = onnx.ModelProto.FromString(Path(source).read_bytes())
    if batches:
        old, new = batches
        model = _at_batch(model, shapes, old, new)
    name_nodes(model)
    elsewhere = [tensor for tensor in stored_tensors(model) if _is_elsewhere(tensor)]
    written = write_filled(model, elsewhere, Path(folder))
    return {"path": str(written.path), "num_filled": written.num_filled}


def _is_elsewhere(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL or is_hollow(tensor)


def _at_batch(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], old: int, new: int
) -> onnx.ModelProto:
    """The model with another batch in its inputs and in the constants that carry it.

    Weights that are as long as the batch grow, and are made up.
    """
    prepared = prepare(ModelFile("", model, 0)).proto
    at_new = with_bound_inputs(prepared, shapes)
    old_shapes = {name: [old, *dims[1:]] if dims else [] for name, dims in shapes.items()}
    at_old, _ = inferred(with_bound_inputs(prepared, old_shapes))
    failures = rewrite_batch(at_new, at_old, old, new).failures
    if failures:
        message = f"constants keep the graph at batch {old}, at {listed(failures)}"
        raise ShapeError(message)
    _free_symbols(at_new, prepared)
    return at_new


def _free_symbols(model: onnx.ModelProto, before: onnx.ModelProto) -> None:
    """Let the dims that were symbols be symbols again: a runtime plans with what it knows."""
    pairs = zip(required_inputs(model.graph), required_inputs(before.graph), strict=True)
    for value, declared in pairs:
        dims = declared.type.tensor_type.shape.dim
        for dim, was in zip(value.type.tensor_type.shape.dim, dims, strict=True):
            if not was.HasField("dim_value"):
                dim.CopyFrom(was)


def has_own_names(model: onnx.ModelProto) -> bool:
    """Whether every node has a name that no other has."""
    names = [node.name for node in _nodes(model)]
    return all(names) and len(set(names)) == len(names)


def name_nodes(model: onnx.ModelProto) -> None:
    """Give the nodes without a name of their own one, in place; a name changes no memory."""
    taken = {node.name for node in _nodes(model)}
    seen = {""}
    numbers: Counter[str] = Counter()
    for node in _nodes(model):
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


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for body in (model.graph.node, *(function.node for function in model.functions)):
        yield from nodes_in(body)

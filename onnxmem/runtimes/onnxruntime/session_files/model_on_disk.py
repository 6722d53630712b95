"""A model as a file that a runtime can open: its own, or a copy in a folder that is removed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnx

from onnxmem.children.faults import ChildFault
from onnxmem.children.limits import ChildLimits
from onnxmem.children.running import run_in_child
from onnxmem.children.wire import JSON
from onnxmem.model import BoundModel, ModelFile, ModelSource, load
from onnxmem.model.filling import WEIGHTS_FILE, absent_tensors, stored_bytes, stored_tensors
from onnxmem.runtimes.onnxruntime.session_files.node_names import has_own_names

_GIVEN: Final = "given.onnx"
_WRITE: Final = "onnxmem.runtimes.onnxruntime.session_files.runnable:write_runnable"


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

"""Why a model is not run: what is known before anything is."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx

from onnxmem.model import BoundModel, Prepared
from onnxmem.model.binding import input_dims


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
    for value in prepared.given:
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

"""From what a command line names to the model files that are checked."""

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from onnxmem.errors import MissingFileError
from onnxmem.escaping import shortened

_SUFFIX = ".onnx"


def model_paths(named: Iterable[str]) -> tuple[str, ...]:
    """The models named: files as they are, what patterns match, and every .onnx file of a folder.

    Each once, in the order named; those of one folder or pattern in the order of their names. A
    name of a file that isn't there stays: reading it tells what is wrong.

    :raises MissingFileError: a folder without a model, a pattern that matches nothing.
    """
    return tuple(dict.fromkeys(path for name in named for path in _paths_of(name)))


def models_below(folder: Path) -> Iterator[str]:
    """Every .onnx file of a folder and of those in it, hidden ones left out, in order."""
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.endswith(_SUFFIX) and not name.startswith("."):
                yield os.path.join(here, name)  # noqa: PTH118 - Path would drop a leading "./"


def relative_path(path: str, folder: Path) -> str:
    """A model's path from a folder, parts joined by ``/``, as patterns see it.

    A model outside the folder keeps its whole path.
    """
    whole = Path(os.path.abspath(path))  # noqa: PTH100 - links are not followed
    base = Path(os.path.abspath(folder))  # noqa: PTH100
    try:
        return whole.relative_to(base).as_posix()
    except ValueError:
        return whole.as_posix()


def _paths_of(name: str) -> Iterator[str]:
    if Path(name).is_dir():
        found = tuple(models_below(Path(name)))
        what = "holds no .onnx file"
    elif glob.has_magic(name) and not os.path.lexists(name):
        found = tuple(sorted(glob.iglob(name, recursive=True)))  # noqa: PTH207 - keeps "./"
        what = "no file matches"
    else:
        yield name
        return
    if not found:
        message = f"{shortened(name)}: {what}; check the path"
        raise MissingFileError(message)
    yield from found

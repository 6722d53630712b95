"""What names stand for: folders and patterns for the models in them, ``@list`` for its lines.

The order is that of the names; within a folder or a pattern that of the files' names, so that two
runs tell the same in the same order.
"""

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from onnxmem.collection.sources.remote import is_remote, remote_names
from onnxmem.errors import MissingFileError, UsageError, shortened

SUFFIX: Final = ".onnx"
_LIST: Final = "@"
_COMMENT: Final = "#"


def model_names(named: Iterable[str]) -> tuple[str, ...]:
    """The models named, one by one, as often as they are named.

    What is no folder, pattern or list stays, and so does one that holds no model: reading it tells
    what is wrong, and costs no other model its row.

    :raises UsageError: a list that cannot be read.
    """
    return tuple(path for name in with_lists(named) for path in expanded(name) or (name,))


def with_lists(named: Iterable[str]) -> Iterator[str]:
    """The names, each ``@list`` replaced by its lines; a file that is named so wins.

    :raises UsageError: a list that cannot be read.
    """
    for name in named:
        if name.startswith(_LIST) and not os.path.lexists(name):
            yield from _lines(name.removeprefix(_LIST))
        else:
            yield name


def expanded(name: str) -> tuple[str, ...] | None:
    """The models of a folder or a pattern, maybe none; ``None``: the name stands for itself."""
    if is_remote(name):
        return remote_names(name, SUFFIX)
    if Path(name).is_dir():
        return tuple(models_below(Path(name)))
    if glob.has_magic(name) and not os.path.lexists(name):
        return tuple(sorted(glob.iglob(name, recursive=True)))  # noqa: PTH207 - keeps "./"
    return None


def models_below(folder: Path) -> Iterator[str]:
    """Every .onnx file of a folder and of those in it, hidden ones left out, in order."""
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.endswith(SUFFIX) and not name.startswith("."):
                yield os.path.join(here, name)  # noqa: PTH118 - Path would drop a leading "./"


def _lines(path: str) -> Iterator[str]:
    """Names in a file, one a line; blank lines and lines that start with ``#`` say nothing.

    A path counts from the working folder, as on the command line; a list names no other lists.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors="surrogateescape")
    except FileNotFoundError:
        message = f"@{shortened(path)}: no such list; name a file with one model a line"
        raise MissingFileError(message) from None
    except (OSError, ValueError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        message = f"@{shortened(path)}: the list cannot be read: {reason}"
        raise UsageError(message) from fault
    for line in text.splitlines():
        name = line.strip()
        if name and not name.startswith(_COMMENT):
            yield name

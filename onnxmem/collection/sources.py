"""Find the model files that a command line names: folders, patterns, lists, stdin, URLs.

Files are in the order of the names, and sorted within a folder or pattern, so that two runs report
them in the same order. A model from stdin, or one at a URL whose weights a run reads, is copied to
a temporary file. External data of a remote model is not fetched.
"""

import errno
import glob
import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch, fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnxmem.errors import (
    MissingFileError,
    ModelFileError,
    OnnxmemError,
    UsageError,
    shortened,
)
from onnxmem.files import blocks, is_part, read_text, reason_of, temporary_folder
from onnxmem.model.files import is_remote, may_begin_model
from onnxmem.model.wire import LIMIT_BYTES

if TYPE_CHECKING:
    from onnxmem.decisions.check.budgets import Configuration

_MAGIC: Final = re.compile(r"[*?\[]")
SUFFIX: Final = ".onnx"
_ANY_PARTS: Final = "**"
_LIST: Final = "@"
_COMMENT: Final = "#"
STDIN: Final = "-"
"""The name of a model that is read from stdin."""


def model_names(named: Iterable[str]) -> tuple[str, ...]:
    """All models that the names stand for; a model that is named twice occurs twice.

    A name that is not a folder, pattern or list is returned as it is, and so is one that contains
    no model: reading it then reports the error, without affecting other models.

    :raises UsageError: a list that cannot be read.
    """
    return tuple(path for name in with_lists(named) for path in expanded(name) or (name,))


def model_paths(named: Iterable[str]) -> tuple[str, ...]:
    """All models that the names stand for, each once, in the order of the names.

    The name of a file that does not exist is returned as it is: reading it then reports the error.
    A name that stands for no model is an error, so that a gate does not pass without models.

    :raises MissingFileError: a folder without a model, a pattern that matches nothing.
    :raises UsageError: a list that cannot be read.
    """
    return tuple(dict.fromkeys(path for name in with_lists(named) for path in _paths_of(name)))


def covered_paths(configuration: "Configuration") -> tuple[str, ...]:
    """The models below the folder of a configuration that one of its budgets is of."""
    from onnxmem.decisions.check.checking import relative_path

    folder = configuration.folder
    return tuple(
        os.path.relpath(path)
        for path in models_below(folder)
        if any(budget.covers(relative_path(path, folder)) for budget in configuration.budgets)
    )


def with_lists(named: Iterable[str]) -> Iterator[str]:
    """The names, with each ``@list`` replaced by its lines unless a file has that name.

    :raises UsageError: a list that cannot be read.
    """
    for name in named:
        # A file of that name wins over the meaning of its first character.
        if name.startswith(_LIST) and not os.path.lexists(name):
            yield from _lines(name.removeprefix(_LIST))
        else:
            yield name


def expanded(name: str) -> tuple[str, ...] | None:
    """The models of a folder or pattern, perhaps none; ``None`` if the name is neither."""
    if is_remote(name):
        return remote_names(name, SUFFIX)
    if os.path.isdir(name):
        return tuple(models_below(Path(name)))
    if glob.has_magic(name) and not os.path.lexists(name):
        return tuple(sorted(_matching(name)))
    return None


def _matching(pattern: str) -> Iterator[str]:
    """The paths that a pattern matches, those of each folder once, in no order.

    ``glob.iglob`` follows links for ``**``: one to its own folder multiplies what is found, two
    never end. Here folders come before links to folders, and none is listed twice. Hidden names
    match a part that begins with a dot; the file of a result that is being written matches none.
    """
    pattern = pattern.replace(os.sep, "/")
    head = re.match(r"[^*?\[]*/", pattern)
    start = head[0] if head else ""
    parts = tuple(part for part in pattern[len(start) :].split("/") if part)
    slash = "/" if pattern.endswith("/") else ""
    seen: set[object] = set()
    folders = deque([(start, _positions(parts, {0}))])
    links: deque[tuple[str, frozenset[int]]] = deque()
    while folders or links:
        folder, positions = (folders or links).popleft()
        # By inode and position in the pattern: a link to a folder that was listed adds nothing.
        number = _inode(folder)
        if (number, positions) in seen:
            continue
        seen.add((number, positions))
        for name, is_folder, is_link in _entries(folder, parts, positions):
            following = _positions(parts, _matched(name, parts, positions))
            # With ``**`` a file that links reach too is listed once; without it both of its paths
            # were named.
            own = (number, name) if _ANY_PARTS in parts else (folder, name)
            # A pattern that ends in a slash matches folders alone.
            if len(parts) in following and is_folder >= bool(slash) and own not in seen:
                seen.add(own)
                yield f"{folder}{name}{slash}"
            if is_folder and following - {len(parts)}:
                (links if is_link else folders).append((f"{folder}{name}/", following))


def _positions(parts: Sequence[str], positions: Iterable[int]) -> frozenset[int]:
    """Positions in a pattern's parts, and those behind each ``**``, which may match no part."""
    found = set(positions)
    for at, part in enumerate(parts):
        if part == _ANY_PARTS and at in found:
            found.add(at + 1)
    return frozenset(found)


def _matched(name: str, parts: Sequence[str], positions: Iterable[int]) -> Iterator[int]:
    """The positions behind a name of an entry."""
    for at in positions:
        part = parts[at] if at < len(parts) else ""
        if part == _ANY_PARTS:
            if not name.startswith("."):
                yield at
        elif part and (part.startswith(".") or not name.startswith(".")) and fnmatch(name, part):
            yield at + 1


def _entries(
    folder: str, parts: Sequence[str], positions: Iterable[int]
) -> Iterator[tuple[str, bool, bool]]:
    """A folder's entries, whether each is a folder, and a link; without rights those with a name.

    ``.`` and ``..`` are entries where the pattern names them.
    """
    named = {parts[at] for at in positions if at < len(parts)}
    for name in named & {os.curdir, os.pardir}:
        yield name, True, False
    try:
        with os.scandir(folder or os.curdir) as entries:
            for entry in entries:
                if not is_part(entry.name):
                    yield entry.name, entry.is_dir(), entry.is_symlink()
    except OSError:
        for name in named:
            if name and not glob.has_magic(name) and os.path.lexists(folder + name):
                yield name, os.path.isdir(folder + name), False


def _inode(folder: str) -> tuple[int, int] | None:
    try:
        status = os.stat(folder or os.curdir)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def models_below(folder: Path) -> Iterator[str]:
    """The .onnx files of a folder and its subfolders, sorted, without hidden ones."""
    for here, folders, files in os.walk(folder):
        # In place: `os.walk` goes on with what is left in the list.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.endswith(SUFFIX) and not name.startswith("."):
                yield os.path.join(here, name)


@contextmanager
def local_file(name: str) -> Iterator[str]:
    """The path of a model with its weights; that of a URL is a temporary file, which the end of
    the context deletes.

    :raises OnnxmemError: a URL cannot be read.
    """
    if not is_remote(name):
        yield name
        return
    from onnxmem.model.remote import fetch

    with temporary_folder() as folder:
        path = Path(folder) / "model.onnx"
        with path.open("wb") as file:
            fetch(name, file)
        yield str(path)


@contextmanager
def staged_stdin() -> Iterator[str]:
    """What stdin holds, as a temporary file: a model is not read in one pass.

    Of what does not begin like a model only the beginning is read: a device may have no end.

    :raises MissingFileError: stdin cannot be read.
    :raises ModelFileError: it holds more than ``LIMIT_BYTES``.
    """
    with temporary_folder() as folder:
        path = Path(folder) / "model.onnx"
        with path.open("wb") as file:
            try:
                for block in blocks(sys.stdin.buffer, LIMIT_BYTES):
                    is_first = file.tell() == 0
                    file.write(block)
                    # What is no model is not read to its end, which a pipe may not have.
                    if is_first and not may_begin_model(block):
                        break
            except OSError as fault:
                message = f"stdin cannot be read: {reason_of(fault)}"
                is_long = fault.errno == errno.EFBIG
                raise (ModelFileError if is_long else MissingFileError)(message) from fault
        yield str(path)


def remote_names(url: str, suffix: str) -> tuple[str, ...] | None:
    """The models of a URL that has a pattern or ends in ``/``, sorted.

    ``None`` if the URL is neither, or if it cannot be listed: fetching it then reports the error.
    In ``http`` a ``?`` starts a query, so it is not a pattern.
    """
    is_folder = url.endswith("/")
    from onnxmem.model.remote import HUB, WEB_SCHEMES, hub_files, scheme_of

    scheme = scheme_of(url)
    # The question mark of an address begins its query.
    magic = re.search(r"[*\[]", url) if scheme in WEB_SCHEMES else _MAGIC.search(url)
    if not is_folder and magic is None:
        return None
    try:
        if scheme == HUB:
            names = [name for name in hub_files(url) if _is_below(name, url)]
        else:
            names = _stored_names(url, is_folder=is_folder)
    except OnnxmemError:
        return None
    return tuple(sorted(name for name in names if not is_folder or name.endswith(suffix)))


def _is_below(name: str, url: str) -> bool:
    """Whether a file of a hub is in a folder, or matches a pattern; ``*`` matches no ``/``."""
    if url.endswith("/"):
        return name.startswith(url)
    parts, patterns = name.split("/"), url.split("/")
    pairs = zip(parts, patterns, strict=False)
    return len(parts) == len(patterns) and all(fnmatchcase(*pair) for pair in pairs)


def _stored_names(url: str, *, is_folder: bool) -> list[str]:
    from onnxmem.model.remote import filesystem_of, store_faults

    with store_faults():
        files, path = filesystem_of(url)
        found = files.find(path) if is_folder else files.glob(path)
        return [str(files.unstrip_protocol(name)) for name in found]


def _lines(path: str) -> list[str]:
    """Names in a file, one per line; blank lines and lines that start with ``#`` are skipped.

    Paths are relative to the working directory, as on the command line. Lists are not nested.

    :raises MissingFileError: there is no such list, or it names nothing.
    :raises UsageError: it cannot be read.
    """
    try:
        text = read_text(path, "utf-8-sig", "surrogateescape")
    except FileNotFoundError:
        message = f"@{shortened(path)}: no such list; name a file with one model per line"
        raise MissingFileError(message) from None
    except OSError as fault:
        message = f"@{shortened(path)}: the list cannot be read: {reason_of(fault)}"
        raise UsageError(message) from fault
    lines = (line.strip() for line in text.splitlines())
    names = [line for line in lines if line and not line.startswith(_COMMENT)]
    if not names:
        message = f"@{shortened(path)}: the list names no model; name one per line"
        raise MissingFileError(message)
    return names


def _paths_of(name: str) -> tuple[str, ...]:
    found = expanded(name)
    if found is None:
        return (name,)
    if not found:
        is_pattern = glob.has_magic(name) and not os.path.lexists(name)
        what = "no file matches" if is_pattern else "contains no .onnx file"
        message = f"{shortened(name)}: {what}; check the path"
        raise MissingFileError(message)
    return found

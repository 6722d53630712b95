"""Files that a user names: read if they are regular and small, written whole or not at all.

A name may be of a FIFO that nobody writes to, a device without an end, a folder or a link to
itself; a small file may hold lists nested a million deep. Each is an ``OSError`` or a
``ValueError`` here, of which ``reason_of`` makes a line. A result takes the place of an older one
once it is on the disk: until then it lies beside it, and what a killed process left there is
removed by the next one that writes to the folder. So is a temporary folder, by the next one that
makes one.

Every command imports this module: what takes milliseconds to import is imported where it is used.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, ClassVar, Final, Self

from onnxmem.errors import UsageError, shortened

MOST_BYTES: Final = 2**24
"""Of a list, a table or a configuration."""
_MOST_DEPTH: Final = 100
"""Of lists and tables in each other."""
_BLOCK_BYTES: Final = 2**20
_MOST_NAMES: Final = 10_000
"""Of a folder that are searched for one like a missing file's."""
_SPECIAL: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO (named pipe)"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)
_PART: Final = re.compile(r"\.onnxmem-[a-z0-9_]{8}\.part")
_TEMPORARY: Final = re.compile(r"onnxmem-run-[a-z0-9_]{8}")
_HAS_OWNERS: Final = hasattr(os, "geteuid")
"""Not on Windows, nor in a browser (Python on WebAssembly)."""


class SpecialFileError(OSError):
    """What was opened is not a regular file."""

    def __init__(self, kind: str, *, is_folder: bool) -> None:
        super().__init__(errno.EINVAL, f"{kind} is there, not a regular file")
        self.kind = kind
        self.is_folder = is_folder


def opened(path: str) -> int:
    """A descriptor of a regular file; opening waits for no writer and makes no terminal ours.

    :raises OSError: the file cannot be opened.
    :raises SpecialFileError: it is not a regular one.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    try:
        descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0))
    except ValueError as fault:  # a NUL in the name
        raise OSError(errno.EINVAL, str(fault)) from fault
    mode = os.fstat(descriptor).st_mode
    for is_kind, kind in _SPECIAL:
        if is_kind(mode):
            os.close(descriptor)
            raise SpecialFileError(kind, is_folder=stat.S_ISDIR(mode))
    return descriptor


def opened_to_its_end(path: str) -> io.BufferedReader:
    """A regular file that ends where it ends now: readers that seek its end get no further.

    :raises OSError: the file cannot be opened, or is not a regular one.
    """
    return io.BufferedReader(_UpToSize(opened(path)))


class _UpToSize(io.RawIOBase):
    """A file up to the size that it has when it is opened."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._file = io.FileIO(descriptor)
        self._size_bytes = os.fstat(descriptor).st_size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any buffer, which readers pass as this
        left_bytes = max(self._size_bytes - self._file.tell(), 0)
        return self._file.readinto(memoryview(buffer)[:left_bytes]) or 0

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if whence == os.SEEK_END:
            return self._file.seek(self._size_bytes + offset)
        return self._file.seek(offset, whence)

    def close(self) -> None:
        self._file.close()
        super().close()


def missing_file_text(path: str) -> str:
    """The message on a path at which nothing is, with the nearest name that is there."""
    if not path:
        return "no such file; the name is empty: a variable that is not set?"
    near = _nearest_path(path)
    return "no such file; check the path" if near is None else f"no such file; did you mean {near}?"


def _nearest_path(path: str) -> str | None:
    """The path with its first missing part replaced by the most similar name in its folder."""
    from difflib import get_close_matches

    folder, missing = os.path.split(path)
    rest: list[str] = []
    while folder and not os.path.isdir(folder):
        parent, name = os.path.split(folder)
        if parent == folder:
            return None
        rest.insert(0, missing)
        folder, missing = parent, name
    stem = os.path.splitext(missing)[0]
    with suppress(OSError, ValueError), os.scandir(folder or os.curdir) as entries:
        names = [entry.name for entry in islice(entries, _MOST_NAMES)]
        # All models end alike, which makes two of them no more similar.
        like = [name for name in names if get_close_matches(stem, [os.path.splitext(name)[0]])]
        for name in get_close_matches(missing, like, n=1):
            near = os.path.join(folder, name, *rest)
            return shortened(near) if os.path.exists(near) else None
    return None


def blocks(stream: IO[bytes], most_bytes: int) -> Iterator[bytes]:
    """What is left of a stream, block by block; a file may grow while it is read.

    :raises OSError: it is longer than that, or cannot be read.
    """
    left_bytes = most_bytes
    while block := stream.read(_BLOCK_BYTES):
        left_bytes -= len(block)
        if left_bytes < 0:
            raise OSError(errno.EFBIG, f"is over {most_bytes:,} bytes")
        yield block


def read_text(
    path: str, encoding: str = "utf-8", errors: str = "strict", most_bytes: int = MOST_BYTES
) -> str:
    """The text of a small regular file.

    :raises OSError: it is not regular, not small, or cannot be read.
    :raises ValueError: it is not text.
    """
    with open(opened(path), "rb") as file:
        # A large file is refused before it is read; the blocks are counted too, since it may grow.
        if os.fstat(file.fileno()).st_size > most_bytes:
            raise OSError(errno.EFBIG, f"is over {most_bytes:,} bytes")
        return b"".join(blocks(file, most_bytes)).decode(encoding, errors)


def text_or_empty(path: os.PathLike[str]) -> str:
    """A small file of the system; empty where it cannot be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def parsed_toml(text: str) -> dict[str, Any]:
    """A document of TOML.

    :raises ValueError: it is none, or is nested too deeply.
    """
    import tomllib

    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise _too_deep() from None
    _refuse_depth(document)
    return document


def parsed_json(text: str) -> object:
    """A document of JSON.

    :raises ValueError: it is none, or is nested too deeply.
    """
    import json

    try:
        document: object = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    _refuse_depth(document)
    return document


@dataclass(frozen=True, slots=True)
class Table:
    """A table of TOML or an object of JSON, with its file and key for error messages.

    The file is not trusted: a value of another type than the requested one raises ``error``. What
    is missing, or null, is ``None`` or empty.
    """

    file: str
    key: str
    values: Mapping[str, object]
    error: ClassVar[type[UsageError]] = UsageError
    hint: ClassVar[str] = ""
    """The end of each message."""
    not_text: ClassVar[str] = "is not a string"
    not_table: ClassVar[str] = "is not an object"
    not_tables: ClassVar[str] = "is not a list of objects"

    def fault(self, key: str, what: str) -> UsageError:
        """The error for a key, for the caller to raise."""
        parts = (shortened(self.file), shortened(self._key_of(key)), f"{what}{self.hint}")
        return self.error(": ".join(part for part in parts if part))

    def text(self, key: str) -> str | None:
        """The string at a key."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.fault(key, self.not_text)
        return value

    def table(self, key: str) -> Self | None:
        """The table at a key."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.fault(key, self.not_table)
        return None if value is None else type(self)(self.file, self._key_of(key), value)

    def tables(self, key: str) -> tuple[Self, ...]:
        """The tables of the list at a key."""
        value = self.values.get(key)
        value = [] if value is None else value
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self.fault(key, self.not_tables.format(self._key_of(key)))
        own = self._key_of(key)
        return tuple(type(self)(self.file, f"{own}[{n}]", each) for n, each in enumerate(value))

    def _key_of(self, key: str) -> str:
        return ".".join(part for part in (self.key, key) if part)


def reason_of(fault: OSError | ValueError) -> str:
    """Why a file cannot be read or written, in one line."""
    reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
    return " ".join(reason.split())


def _refuse_depth(document: object) -> None:
    """Refuse what recursive code could not follow.

    :raises ValueError: it is nested too deeply.
    """
    # Level by level, not by recursion, which the same document would exhaust.
    level = [document]
    for _ in range(_MOST_DEPTH):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return
    raise _too_deep()


def _inside(value: object) -> list[object]:
    """The lists and tables that a value holds."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return []
    return [each for each in value if isinstance(each, dict | list)]


def _too_deep() -> ValueError:
    return ValueError(f"is nested more than {_MOST_DEPTH} deep")


def is_stream(path: str) -> bool:
    """Whether a path names a device, a FIFO or a descriptor: written to, and never replaced."""
    if path.startswith(("/dev/std", "/dev/fd/", "/proc/")):
        return True
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def is_part(name: str) -> bool:
    """Whether a file's name is that of a result which is being written."""
    return _PART.fullmatch(name) is not None


@contextmanager
def replaced(path: str, *, is_durable: bool = True) -> Iterator[IO[bytes]]:
    """A file to write, which takes the place of a path's once it is whole and on the disk.

    It lies beside the target under a hidden name until then; any fault removes it, and an older
    file stays. A link stays, and its target is replaced. A device or a FIFO is written to directly.
    Without ``is_durable`` nothing waits for the disk: where a loss of power may cost the file.
    """
    if is_stream(path):
        with open(path, "wb") as file:
            yield file
        return
    target = os.path.realpath(path)
    for is_in_the_way, number in ((os.path.isdir, errno.EISDIR), (os.path.islink, errno.ELOOP)):
        if is_in_the_way(target):
            raise OSError(number, os.strerror(number))
    folder = os.path.dirname(target)
    remove_stale_parts(folder)
    part = _new_part(folder)
    try:
        yield part
        part.flush()
        if is_durable:
            os.fsync(part.fileno())
        if os.name == "nt":  # where an open file cannot be moved
            part.close()
        # Before it is moved, so that nobody sees the target with other permissions.
        os.chmod(part.name, _mode_for(target))
        os.replace(part.name, target)
        part.close()
    # Also at an interrupt or exit: nothing may be left beside the target.
    except BaseException:
        with suppress(OSError):
            part.close()
        with suppress(FileNotFoundError):
            os.unlink(part.name)
        raise


@contextmanager
def temporary_folder() -> Iterator[str]:
    """An empty folder, which is removed at the end; if its process is killed, by the next one.

    :raises UsageError: there is no place for it.
    """
    import shutil

    try:
        folder, descriptor = _new_folder()
    except OSError as fault:
        message = f"no temporary folder can be made: {reason_of(fault)}; set TMPDIR"
        raise UsageError(message) from fault
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def is_temporary_folder(path: str) -> bool:
    """Whether a path is that of a folder which ``temporary_folder`` made."""
    return _TEMPORARY.fullmatch(os.path.basename(path)) is not None


def _new_folder() -> tuple[str, int]:
    """A folder and a descriptor that holds its lock."""
    import tempfile

    _remove_stale_folders(tempfile.gettempdir())
    while True:
        folder = tempfile.mkdtemp(prefix="onnxmem-run-")
        # Before the lock another process may have taken the folder for one that was left.
        with suppress(FileNotFoundError):
            # Windows opens no folders and has no such locks: there any descriptor will do.
            descriptor = os.open(os.devnull if os.name == "nt" else folder, os.O_RDONLY)
            if _lock(descriptor, without_locks=True) and os.path.isdir(folder):
                return folder, descriptor
            os.close(descriptor)


def _remove_stale_folders(parent: str) -> None:
    """Remove what killed processes left; a process that lives holds a lock on its own."""
    import shutil

    if not _HAS_OWNERS:
        return
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if is_temporary_folder(entry.path) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError), _lock_of_stale(entry.path, os.O_RDONLY | os.O_DIRECTORY):
                    shutil.rmtree(entry.path, ignore_errors=True)


def remove_stale_parts(folder: str) -> None:
    """Remove what killed processes left of results; a process that lives holds a lock on its own.

    Only files of this user that are named so go. Windows and the browser have no users and no such
    locks: there all stay.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if is_part(entry.name) and entry.is_file(follow_symlinks=False):
                _remove_if_stale(entry.path)


def _remove_if_stale(path: str) -> None:
    if not _HAS_OWNERS:
        return
    with suppress(OSError), _lock_of_stale(path, os.O_RDWR):
        os.unlink(path)


@contextmanager
def _lock_of_stale(path: str, flags: int) -> Iterator[None]:
    """Hold the lock of what a killed process of this user left.

    :raises OSError: it is another's, or its process lives.
    """
    # In a folder where others write, the name may be of a link or a FIFO that was put there.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        is_own = os.fstat(descriptor).st_uid == os.geteuid()
        if not (is_own and _lock(descriptor, without_locks=False)):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        yield
    finally:
        os.close(descriptor)


def _new_part(folder: str) -> IO[bytes]:
    import tempfile

    while True:
        part = tempfile.NamedTemporaryFile(  # noqa: SIM115 - the caller closes it
            dir=folder, prefix=".onnxmem-", suffix=".part", delete=False
        )
        # Before the lock another process may have taken the file for one that was left.
        if _lock(part.fileno(), without_locks=True) and os.path.exists(part.name):
            return part
        part.close()


def _lock(descriptor: int, *, without_locks: bool) -> bool:
    """Lock a file until it is closed, or its process ends; false: another process has the lock.

    Windows and some file systems have no such locks: there the result is ``without_locks``.
    """
    if os.name == "nt":
        return without_locks
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return without_locks
    return True


def _mode_for(target: str) -> int:
    """Permissions of the file that is replaced, else those of any new file."""
    with suppress(OSError):
        return stat.S_IMODE(os.stat(target).st_mode)
    # The mask can only be read by setting it.
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask

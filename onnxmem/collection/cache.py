"""A cache of results, so that an interrupted run continues where it stopped.

The key of an entry is a hash of everything that its figures depend on: the content of the file, the
settings, and the versions of the packages that compute them. An entry is written to a temporary
file and moved, so it is complete or absent; a damaged one is computed again. Failures are not
cached.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Protocol, TypedDict

from onnxmem.analysis.json_rows import KEYS, JsonDict
from onnxmem.errors import UsageError, shortened
from onnxmem.files import read_text, reason_of, replaced
from onnxmem.model.files import FileWindow, ModelWindow, is_remote
from onnxmem.model.wire import without_payloads
from onnxmem.version import __version__

_HASHED_WHOLE_BYTES: Final = 2**26
"""Hashing more bytes takes longer than the analysis, which skips the weights."""

_HASHED_IN_A_RUN_BYTES: Final = 2**20
"""The same without a cache, where a file that is never seen again costs the hash."""
_MOST_CHARACTERS: Final = 2**23
"""Of all results that a run keeps: some 1,000 models."""

_BLOCK_BYTES: Final = 2**20

_PACKAGES: Final = ("onnx", "onnx-ir", "onnx-shape-inference")
_RUNTIME: Final = ("onnxruntime", "onnxruntime-gpu")
_DIGEST: Final = "sha256"
MOST_BYTES: Final = 2**28
"""Of an entry: a row for each node of a model of a million nodes is smaller."""


class Entry(TypedDict):
    """The cached result of one model."""

    row: JsonDict
    text: str | None
    text_of: str | None
    """The name of the model in the text."""


class Results(Protocol):
    """Results by the content of a file and the settings."""

    def key(self, window: ModelWindow, path: str, settings: Mapping[str, Any]) -> str:
        """The key of the entry of an opened file; it does not depend on the name of the file.

        :raises OnnxmemError: the file cannot be read.
        """

    def get(self, key: str) -> Entry | None:
        """The entry; ``None`` if there is none."""

    def put(self, key: str, entry: Entry) -> None:
        """Keep an entry."""


@dataclass(slots=True)
class RunResults:
    """The results of one process in one run: equal files are analyzed once."""

    texts: dict[str, str] = field(default_factory=dict)
    """Entries as JSON by their keys, the last used at the end."""
    num_characters: int = 0

    def key(self, window: ModelWindow, path: str, settings: Mapping[str, Any]) -> str:
        """As in a cache, without the versions, which no run changes."""
        content = content_hash(window, path, most_bytes=_HASHED_IN_A_RUN_BYTES)
        return f"{content} {json.dumps(settings, sort_keys=True, default=_as_json)}"

    def get(self, key: str) -> Entry | None:
        """The entry; ``None`` if there is none, or if many others came after it."""
        text = self.texts.pop(key, None)
        if text is None:
            return None
        self.texts[key] = text
        entry: Entry = json.loads(text)
        return entry

    def put(self, key: str, entry: Entry) -> None:
        """Keep an entry, and forget those that were not used for longest."""
        self.texts[key] = text = json.dumps(entry)
        self.num_characters += len(text)
        while self.num_characters > _MOST_CHARACTERS:
            self.num_characters -= len(self.texts.pop(next(iter(self.texts))))


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of entries; processes may share it."""

    folder: str

    def key(self, window: ModelWindow, path: str, settings: Mapping[str, Any]) -> str:
        """The key of the entry of an opened file; it does not depend on the name of the file.

        :raises OnnxmemError: the file cannot be read.
        """
        # Only figures of a session depend on the version of onnxruntime.
        needs_runtime = any(settings.get(each) for each in ("runtimes", "graph", "measure"))
        parts = {
            "content": content_hash(window, path, whole=bool(settings.get("measure"))),
            "settings": settings,
            "versions": _versions((*_PACKAGES, *_RUNTIME) if needs_runtime else _PACKAGES),
            "keys": KEYS,
        }
        text = json.dumps(parts, sort_keys=True, default=_as_json)
        return hashlib.sha256(text.encode()).hexdigest()

    def get(self, key: str) -> Entry | None:
        """A complete and undamaged entry; ``None`` if there is none."""
        try:
            written = json.loads(read_text(str(self._path(key)), most_bytes=MOST_BYTES))
            entry: Entry = written["entry"]
            is_whole = written[_DIGEST] == _digest(key, entry)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return entry if is_whole else None

    def put(self, key: str, entry: Entry) -> None:
        """Write an entry; if the disk is full, the entry is lost and nothing else."""
        path = self._path(key)
        text = json.dumps({_DIGEST: _digest(key, entry), "entry": entry})
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            # One that a loss of power cuts does not have its digest: it is computed again.
            with replaced(str(path), is_durable=False) as file:
                file.write(text.encode())

    def _path(self, key: str) -> Path:
        return Path(self.folder, key[:2], f"{key[2:]}.json")


def open_cache(folder: str) -> Cache:
    """A cache in a folder, which is created if necessary.

    :raises UsageError: the folder cannot be written to.
    """
    if not folder:
        message = "--cache: the name is empty: a variable that is not set?"
        raise UsageError(message)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as fault:
        message = f"{shortened(folder)}: cannot be written to as a cache: {reason_of(fault)}"
        raise UsageError(message) from fault
    return Cache(os.path.abspath(folder))


def stamp_of(window: FileWindow) -> tuple[int, int, int]:
    """Size, modification time and inode: they change when a file is written again."""
    status = os.fstat(window.descriptor)
    return status.st_size, status.st_mtime_ns, status.st_ino


def content_hash(
    window: ModelWindow, path: str, *, whole: bool = False, most_bytes: int | None = None
) -> str:
    """A hash of the bytes of an opened file that the figures of a model depend on.

    Of a large file, one above ``most_bytes``, only its length and the parts that an analysis reads
    are hashed, not the weights; with ``whole`` all bytes are, because a measurement reads the
    weights. Of a file at a URL it is the URL and the version that the server names, where it names
    one.

    :raises ModelFileError: the file is large and not a model.
    :raises OnnxmemError: bytes of a URL cannot be read.
    """
    most_bytes = _HASHED_WHOLE_BYTES if most_bytes is None else most_bytes
    size_bytes = len(window)
    if is_remote(path) and not whole and window.validator is not None:
        return f"{size_bytes} {hashlib.sha256(f'{path} {window.validator}'.encode()).hexdigest()}"
    if whole or (size_bytes <= most_bytes and not is_remote(path)):
        # A file that grows is hashed up to the end that it had: the analysis reads no more.
        found = hashlib.sha256()
        for start in range(0, size_bytes, _BLOCK_BYTES):
            found.update(window[start : start + _BLOCK_BYTES])
        return found.hexdigest()
    return f"{size_bytes} {hashlib.sha256(without_payloads(window)).hexdigest()}"


@cache
def _versions(packages: tuple[str, ...]) -> dict[str, str | None]:
    return {"onnxmem": __version__, **{name: _version(name) for name in packages}}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _digest(key: str, entry: Entry) -> str:
    return hashlib.sha256(f"{key} {json.dumps(entry, sort_keys=True)}".encode()).hexdigest()


def _as_json(value: object) -> object:
    """The value of a setting that has no JSON type."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return repr(value)

"""Rows of models that were computed before, so that a run that was stopped goes on.

An entry is found by what its figures follow from: the file's content, the settings, and the
versions of the packages that compute them. It is written to a temporary file and moved, so it is
whole or absent; one that is not what was written is computed again. Failures are not cached.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, TypedDict

from onnxmem.analysis.json_rows import KEYS, JsonDict
from onnxmem.errors import UsageError, shortened
from onnxmem.files import read_text, reason_of, replaced
from onnxmem.model.files import regular_file
from onnxmem.model.wire import without_payloads
from onnxmem.version import __version__

_HASHED_WHOLE_BYTES: Final = 2**26
"""SHA-256 of more takes longer than the analysis, which jumps over the weights."""

_ANSWERING: Final = ("onnx", "onnx-ir", "onnx-shape-inference")
_RUNTIME: Final = ("onnxruntime", "onnxruntime-gpu")
_DIGEST: Final = "sha256"
MOST_BYTES: Final = 2**28
"""Of an entry: a row for each node of a model of a million nodes is smaller."""


class Entry(TypedDict):
    """The cached result of one model."""

    row: JsonDict
    text: str | None
    text_of: str | None
    """The name that the text is written for."""


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of entries; processes may share it."""

    folder: str

    def key(self, path: str, settings: Mapping[str, Any]) -> str:
        """The name of an entry; the model's own name is no part of it.

        :raises OnnxmemError: the file cannot be read.
        """
        asks_runtime = any(settings.get(each) for each in ("runtimes", "graph", "measure"))
        parts = {
            "content": content_hash(path, whole=bool(settings.get("measure"))),
            "questions": settings,
            "versions": _versions((*_ANSWERING, *_RUNTIME) if asks_runtime else _ANSWERING),
            "keys": KEYS,
        }
        text = json.dumps(parts, sort_keys=True, default=_as_json)
        return hashlib.sha256(text.encode()).hexdigest()

    def get(self, key: str) -> Entry | None:
        """An entry that is whole and unchanged; else ``None``."""
        try:
            written = json.loads(read_text(str(self._path(key)), most_bytes=MOST_BYTES))
            entry: Entry = written["entry"]
            is_whole = written[_DIGEST] == _digest(key, entry)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return entry if is_whole else None

    def put(self, key: str, entry: Entry) -> None:
        """Keep an entry; a disk that is full costs the entry alone."""
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
    """A cache whose folder is there and can be written to.

    :raises UsageError: it cannot.
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
    return Cache(os.path.abspath(folder))  # noqa: PTH100 - workers may work in another folder


def stamp_of(path: str) -> tuple[int, int, int]:
    """What changes when a file is written again.

    :raises OnnxmemError: there is no regular file.
    """
    with regular_file(path) as window:
        status = os.fstat(window.descriptor)
    return status.st_size, status.st_mtime_ns, status.st_ino


def content_hash(path: str, *, whole: bool = False) -> str:
    """What the figures of a model follow from: its bytes.

    Of a large file only what an analysis reads of it counts, which leaves the weights out, and how
    long it is; ``whole`` takes those in too, for a run may read them.

    :raises MissingFileError: the file cannot be opened.
    :raises ModelFileError: it is not a regular file, or it is large and not a model.
    """
    with regular_file(path) as window:
        size_bytes = len(window)
        if whole or size_bytes <= _HASHED_WHOLE_BYTES:
            with open(window.descriptor, "rb", closefd=False) as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
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
    """A setting's value that JSON has no form for."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return repr(value)

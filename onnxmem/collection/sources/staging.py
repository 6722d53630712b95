"""A file of this machine for every name: what comes from a pipe or a URL is put in one first."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from onnxmem.collection.sources.remote import fetch, is_remote

STDIN: Final = "-"
"""The name of a model whose bytes come on stdin."""


@contextmanager
def local_file(name: str) -> Iterator[str]:
    """The path of a model: a URL's is a temporary file, which the end removes; others stay.

    :raises OnnxmemError: what is behind a URL cannot be had.
    """
    if not is_remote(name):
        yield name
        return
    with _folder() as folder:
        path = folder / "model.onnx"
        with path.open("wb") as file:
            fetch(name, file)
        yield str(path)


@contextmanager
def staged_stdin() -> Iterator[str]:
    """What stdin holds, as a temporary file: a model is read at many places of it."""
    with _folder() as folder:
        path = folder / "model.onnx"
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield str(path)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="onnxmem-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)

"""Models behind URLs, through fsspec: found there, and fetched to a file that is soon removed.

Only the model's own file is fetched, never its external data.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any, ClassVar, Final

from onnxmem.errors import EXIT_USAGE, MissingFileError, OnnxmemError, shortened

MAX_BYTES: Final = 2**31 - 1
"""Of a model that is fetched: protobuf's own limit of a message, so no runtime reads a larger one
(https://protobuf.dev/programming-guides/proto-limits/)."""

_BLOCK_BYTES: Final = 2**22
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_MAGIC: Final = re.compile(r"[*?\[]")
_LONGEST: Final = 300
_OPENING: Final = {"http": {"block_size": 0}, "https": {"block_size": 0}}
"""How a scheme is opened: block_size 0 reads a page from start to end, which servers that know no
ranges of bytes can do too."""


class RemoteError(OnnxmemError):
    """What is behind a URL cannot be had."""

    code: ClassVar[str] = "remote"


class MissingExtraError(OnnxmemError):
    """A package that the URL's scheme needs is not installed."""

    code: ClassVar[str] = "missing_extra"
    exit_code: ClassVar[int] = EXIT_USAGE


def is_remote(name: str) -> bool:
    """Whether a name is a URL; a drive of Windows has one letter and is none.

    >>> is_remote("s3://bucket/net.onnx"), is_remote("C://net.onnx")
    (True, False)
    """
    return _URL.match(name) is not None


def remote_names(url: str, suffix: str) -> tuple[str, ...] | None:
    """The models that a URL with a pattern, or one that ends in ``/``, stands for, in order.

    ``None``: the URL stands for itself, also where its place cannot be listed: fetching it tells
    what is wrong. In ``http`` a ``?`` starts a query and is no pattern.
    """
    is_folder = url.endswith("/")
    scheme = url.partition("://")[0]
    magic = re.search(r"[*\[]", url) if scheme in _OPENING else _MAGIC.search(url)
    if not is_folder and magic is None:
        return None
    try:
        with _faults():
            files, path = _filesystem(url)
            found = files.find(path) if is_folder else files.glob(path)
            names = [str(files.unstrip_protocol(name)) for name in found]
    except OnnxmemError:
        return None
    return tuple(sorted(name for name in names if not is_folder or name.endswith(suffix)))


def fetch(url: str, into: IO[bytes], limit_bytes: int = MAX_BYTES) -> None:
    """Copy what is behind a URL to an open file.

    :raises MissingFileError: there is nothing.
    :raises MissingExtraError: fsspec, or what it needs for the scheme, is not installed.
    :raises RemoteError: it cannot be read, or is larger than the limit.
    """
    left_bytes = limit_bytes
    with _faults():
        files, path = _filesystem(url)
        options = _OPENING.get(url.partition("://")[0].lower(), {})
        with files.open(path, "rb", **options) as stream:
            while block := stream.read(_BLOCK_BYTES):
                left_bytes -= len(block)
                if left_bytes < 0:
                    message = f"over {limit_bytes:,} bytes, which no runtime reads; not fetched"
                    raise RemoteError(message)
                into.write(block)


def _filesystem(url: str) -> tuple[Any, str]:
    """What fsspec reads a URL with, and the path in there; any type, for fsspec has none."""
    try:
        url_to_fs = import_module("fsspec.core").url_to_fs
    except ImportError as fault:
        message = "a URL needs fsspec: pip install 'onnxmem[remote]'"
        raise MissingExtraError(message) from fault
    files, path = url_to_fs(url)
    return files, path


@contextmanager
def _faults() -> Iterator[None]:
    """Any fault of any store as one of ours: stores raise what their libraries do."""
    try:
        yield
    except (OnnxmemError, MemoryError):
        raise
    except FileNotFoundError:
        message = "no such file there, or no server; check the URL"
        raise MissingFileError(message) from None
    except ImportError as fault:
        message = f"its scheme needs another package: {shortened(str(fault), _LONGEST)}"
        raise MissingExtraError(message) from fault
    except Exception as fault:
        message = f"cannot be fetched: {_text(fault)}; check the URL and the credentials"
        raise RemoteError(message) from fault


def _text(fault: Exception) -> str:
    words = " ".join(str(fault).split())
    return shortened(
        f"{type(fault).__name__}: {words}" if words else type(fault).__name__, _LONGEST
    )

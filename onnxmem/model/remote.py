"""A model at a URL: its graph is fetched by byte ranges, and its weights are skipped.

``https://``, ``http://`` and ``hf://`` (a file of the Hugging Face hub) need nothing but the
standard library, every other scheme, as ``s3://`` and ``gs://``, is a store of fsspec. External
data is never fetched. Nothing here is imported for a model of this machine.
"""

import os
import re
from bisect import bisect_right, insort
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from typing import IO, Any, ClassVar, Final, Protocol, overload
from urllib.parse import quote

from onnxmem.errors import EXIT_USAGE, MissingFileError, OnnxmemError, UsageError, listed, shortened
from onnxmem.files import parsed_json
from onnxmem.model.http_ranges import CHANGED, HttpFile, RemoteError, over_limit_text
from onnxmem.model.wire import LIMIT_BYTES

WEB_SCHEMES: Final = frozenset({"http", "https"})
HUB: Final = "hf"
_HUB_ADDRESS: Final = "https://huggingface.co"
_HUB_NAME: Final = re.compile(
    r"hf://(?P<kind>datasets/|spaces/)?(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[^/]+))?"
    r"(/(?P<file>.*))?",
    re.IGNORECASE,
)
_MOST_LISTED_BYTES: Final = 2**24
# A request costs a round trip, in which most connections carry far more than a short range: only
# what comes after weights is requested in short ranges, and what is near is fetched with the rest.
_HEAD_BYTES: Final = 2**16
_LEAST_BYTES: Final = 2**12
_SHORT_BYTES: Final = 2**15
_MOST_BYTES: Final = 2**20
_SKIPPED_PER_FETCHED: Final = 128
_NEAR_BYTES: Final = 2**14
_ONE_READ_BYTES: Final = 2**23
_MOST_KEPT_BYTES: Final = 2**28
_LONGEST: Final = 300


class MissingExtraError(OnnxmemError):
    """A package that the scheme of a URL needs is not installed."""

    code: ClassVar[str] = "missing_extra"
    exit_code: ClassVar[int] = EXIT_USAGE


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was fetched of a file at a URL."""

    num_bytes: int
    """Bytes of the replies, those of repeated requests included."""
    num_requests: int


class RangeSource(Protocol):
    """A file of which any range can be read."""

    size_bytes: int | None
    validator: str | None
    """What identifies this version of the file; ``None``: the server does not say."""
    num_requests: int
    num_bytes: int

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from ``start`` up to ``stop``."""
        ...


class RemoteWindow:
    """The bytes of a file at a URL by offset; what was fetched is kept.

    Tags and lengths are read forwards. While they follow each other closely, as in the nodes of a
    graph, each request is twice as long as the last one. After weights were skipped it is short
    again: at most 1/128 of what was skipped, so that large weights cost less than 1 % of them.
    """

    def __init__(self, source: RangeSource, head: bytes) -> None:
        self._source = source
        self._size_bytes = source.size_bytes or 0
        self._starts = [0]
        self._pieces = {0: head}
        self._start, self._piece = 0, head
        self._end = len(head)
        """The end of the last range that was fetched."""
        self._last_bytes = _LEAST_BYTES

    def __len__(self) -> int:
        return self._size_bytes

    @property
    def validator(self) -> str | None:
        """What identifies this version of the file; ``None``: the server does not say."""
        return self._source.validator

    @property
    def fetched(self) -> Fetched:
        """What was fetched so far."""
        return Fetched(self._source.num_bytes, self._source.num_requests)

    @overload
    def __getitem__(self, offset: int) -> int: ...

    @overload
    def __getitem__(self, offset: slice) -> bytes: ...

    def __getitem__(self, offset: int | slice) -> int | bytes:
        """Read one byte, or the bytes of a slice.

        :raises IndexError: the byte is beyond the end of the file.
        :raises OnnxmemError: the bytes cannot be fetched.
        """
        if isinstance(offset, slice):
            start, stop, _ = offset.indices(self._size_bytes)
            return b"".join(self._parts(start, stop))
        index = offset - self._start
        if not 0 <= index < len(self._piece):
            if not 0 <= offset < self._size_bytes:
                raise IndexError(offset)
            self._start, self._piece = self._kept(offset) or self._fetched(offset)
            index = offset - self._start
        return self._piece[index]

    def _kept(self, offset: int) -> tuple[int, bytes] | None:
        """The start and the bytes of the piece with a byte."""
        # ``_starts`` is sorted and begins with 0, the start of the head: some piece starts at or
        # before every offset.
        start = self._starts[bisect_right(self._starts, offset) - 1]
        piece = self._pieces[start]
        return (start, piece) if offset < start + len(piece) else None

    def _fetched(self, offset: int) -> tuple[int, bytes]:
        """Fetch the byte and those that are likely to be read next."""
        skipped = offset - self._end
        if 0 <= skipped <= max(_NEAR_BYTES, self._last_bytes):
            num_bytes = min(2 * self._last_bytes, _MOST_BYTES)
        else:
            num_bytes = abs(skipped) // _SKIPPED_PER_FETCHED
            num_bytes = max(min(num_bytes, _SHORT_BYTES), _LEAST_BYTES)
        # Close by, the bytes between are of the graph too: the copy of it will read them.
        start = self._end if 0 <= skipped <= _NEAR_BYTES else offset
        stop = min(offset + num_bytes, self._size_bytes, self._next_start(offset))
        self._last_bytes, self._end = num_bytes, stop
        piece = self._source.read(start, stop)
        self._keep(start, piece)
        return start, piece

    def _keep(self, start: int, piece: bytes) -> None:
        if sum(map(len, self._pieces.values())) + len(piece) > _MOST_KEPT_BYTES:
            # A graph of this size is rare: what it reads again is fetched again.
            head = self._pieces[0]
            self._starts, self._pieces = [0], {0: head}
        insort(self._starts, start)
        self._pieces[start] = piece

    def _next_start(self, offset: int) -> int:
        """The start of the next piece that was kept."""
        index = bisect_right(self._starts, offset)
        return self._starts[index] if index < len(self._starts) else self._size_bytes

    def _parts(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes of a range, those that were not kept fetched exactly."""
        # Kept pieces do not overlap: what is fetched ends where the next one starts, so that no
        # byte of the file is fetched twice.
        while start < stop:
            kept = self._kept(start)
            if kept is not None:
                first, piece = kept
                part = piece[start - first : stop - first]
            else:
                end = min(stop, self._next_start(start), start + _ONE_READ_BYTES)
                part = self._source.read(start, end)
                # A longer part is of weights or of a copy of the whole file, which is read once.
                if len(part) <= _MOST_BYTES:
                    self._keep(start, part)
            yield part
            start += len(part)


class _StoreFile:
    """A file of a store of fsspec, which has no types."""

    def __init__(self, url: str) -> None:
        with store_faults():
            self._files, self._path = filesystem_of(url)
            self._info = self._files.info(self._path)
        self.size_bytes: int | None = self._info.get("size")
        tag = self._info.get("ETag") or self._info.get("etag")
        self.validator: str | None = None if tag is None else str(tag)
        self._version = self._version_now()
        self.num_requests = 1
        self.num_bytes = 0

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from ``start`` up to ``stop``.

        :raises OnnxmemError: they cannot be read, or the file has other bytes by now.
        """
        self.num_requests += 1
        with store_faults():
            found: bytes = self._files.cat_file(self._path, start=start, end=stop)
        self.num_bytes += len(found)
        if len(found) != stop - start:
            raise RemoteError(CHANGED)
        return found

    def refuse_change(self) -> None:
        """Refuse a file of which not all ranges are of one version.

        :raises RemoteError: it changed.
        """
        with store_faults():
            self._files.invalidate_cache()
            self._info = self._files.info(self._path)
        self.num_requests += 1
        if self._version_now() != self._version:
            raise RemoteError(CHANGED)

    def _version_now(self) -> list[str]:
        # Each filesystem of fsspec has the names of its store; what it lacks is equal both times.
        names = ("size", "ETag", "etag", "generation", "mtime", "LastModified", "created")
        return [str(self._info.get(name)) for name in names]


@contextmanager
def remote_window(url: str) -> Iterator[RemoteWindow]:
    """The bytes of the file at a URL.

    :raises OnnxmemError: it cannot be read.
    """
    if is_of_web(url):
        with closing(_web_file(url)) as web:
            with _listing_models(url):
                head = web.head(_HEAD_BYTES)
            yield RemoteWindow(web, head)
        return
    # A read of fsspec has no condition (as ``If-Range`` of HTTP is one), so versions are compared
    # before the first range and after the last.
    store = _StoreFile(url)
    if store.size_bytes is None:
        message = "the store does not say how large the file is; download it first"
        raise RemoteError(message)
    num_bytes = min(_HEAD_BYTES, store.size_bytes)
    yield RemoteWindow(store, store.read(0, num_bytes) if num_bytes else b"")
    if store.size_bytes > num_bytes:
        store.refuse_change()


def fetch(url: str, into: IO[bytes], limit_bytes: int = LIMIT_BYTES) -> None:
    """Copy the whole file at a URL to an open file.

    :raises MissingFileError: the file does not exist.
    :raises MissingExtraError: fsspec, or a package that the scheme needs, is not installed.
    :raises RemoteError: it cannot be read, or is larger than the limit.
    """
    if is_of_web(url):
        with closing(_web_file(url)) as web, _listing_models(url):
            web.copy(into, limit_bytes)
        return
    with remote_window(url) as window:
        if len(window) > limit_bytes:
            raise RemoteError(over_limit_text(limit_bytes))
        for start in range(0, len(window), _ONE_READ_BYTES):
            into.write(window[start : start + _ONE_READ_BYTES])


def is_of_web(url: str) -> bool:
    """Whether a URL is read over HTTP by this package itself."""
    return scheme_of(url) in {*WEB_SCHEMES, HUB}


def scheme_of(url: str) -> str:
    """The scheme of a URL, in lower case."""
    return url.partition("://")[0].lower()


def _web_file(url: str) -> HttpFile:
    if scheme_of(url) != HUB:
        return HttpFile(url)
    if not _names_file(url):
        message = f"names no file; {_models_text(url)}"
        raise MissingFileError(message)
    return HttpFile(hub_address(url), _hub_token())


@contextmanager
def _listing_models(url: str) -> Iterator[None]:
    """Add the models of a hub's repository to the error of a file that it does not have."""
    try:
        yield
    except MissingFileError as fault:
        if scheme_of(url) != HUB:
            raise
        message = f"no such file; {_models_text(url)}"
        raise MissingFileError(message) from fault


def _models_text(url: str) -> str:
    """The models of a repository.

    :raises OnnxmemError: the hub does not list them.
    """
    files = (file[len(_repository_of(url)) :] for file in hub_files(url))
    names = sorted(shortened(file) for file in files if file.endswith(".onnx"))
    return f"the repository has {listed(names) if names else 'no .onnx file'}"


def _hub_token() -> str | None:
    """The token of the hub, which no message shows.

    :raises UsageError: it could not be sent.
    """
    token = os.environ.get("HF_TOKEN", "").strip()
    # A line feed would end the header in which it is sent.
    if not (token.isascii() and token.isprintable()):
        message = "HF_TOKEN has characters that no token has; set it again"
        raise UsageError(message)
    return token or None


def hub_address(url: str) -> str:
    """The address of a file of the Hugging Face hub, or of the one that ``HF_ENDPOINT`` names.

    :raises UsageError: the URL names no file.

    >>> hub_address("hf://org/model@v2/onnx/model.onnx")
    'https://huggingface.co/org/model/resolve/v2/onnx/model.onnx'
    """
    if not _names_file(url):
        raise UsageError(_NO_HUB_FILE)
    kind, repository, revision, file = _hub_parts(url)
    return f"{_hub()}/{kind}{repository}/resolve/{revision}/{quote(file)}"


def hub_files(url: str) -> list[str]:
    """The URLs of all files in the repository of a URL.

    :raises OnnxmemError: the hub does not list them.
    """
    kind, repository, revision, _ = _hub_parts(url)
    address = f"{_hub()}/api/{kind or 'models/'}{repository}/revision/{revision}"
    with closing(HttpFile(address, _hub_token())) as web:
        web.copy(reply := BytesIO(), _MOST_LISTED_BYTES)
    try:
        document: Any = parsed_json(reply.getvalue().decode())
        return [f"{_repository_of(url)}{each['rfilename']}" for each in document["siblings"]]
    except (ValueError, KeyError, TypeError) as fault:
        message = "the hub sends no list of files; name one, as hf://ORG/MODEL/FILE"
        raise RemoteError(message) from fault


_NO_HUB_FILE: Final = (
    "not a file of a hub; write hf://ORG/MODEL/FILE or hf://ORG/MODEL@REVISION/FILE"
)


def _hub() -> str:
    return (os.environ.get("HF_ENDPOINT") or _HUB_ADDRESS).rstrip("/")


def _hub_parts(url: str) -> tuple[str, str, str, str]:
    """The kind of a repository, its name, the revision, and the path of a file or folder."""
    found = _hub_match(url)
    # A revision such as refs/pr/1 is written refs%2Fpr%2F1.
    revision = quote(found["revision"] or "main", safe="%")
    return (found["kind"] or "").lower(), found["repository"], revision, found["file"] or ""


def _names_file(url: str) -> bool:
    """Whether a URL names a file, and not a repository or a folder."""
    return not (_hub_parts(url)[3] or "/").endswith("/")


def _repository_of(url: str) -> str:
    """A URL up to the path of its file."""
    return f"{url.removesuffix(_hub_parts(url)[3]).rstrip('/')}/"


def _hub_match(url: str) -> re.Match[str]:
    found = _HUB_NAME.fullmatch(url)
    if found is None:
        raise UsageError(_NO_HUB_FILE)
    return found


def filesystem_of(url: str) -> tuple[Any, str]:
    """The fsspec filesystem of a URL, and the path in it; fsspec has no types.

    :raises MissingExtraError: fsspec is not installed.
    """
    try:
        url_to_fs = import_module("fsspec.core").url_to_fs
    except ImportError as fault:
        message = f"{scheme_of(url)}:// needs fsspec: pip install 'onnxmem[remote]'"
        raise MissingExtraError(message) from fault
    files, path = url_to_fs(url)
    return files, path


@contextmanager
def store_faults() -> Iterator[None]:
    """Convert the exceptions of filesystems, which can be of any type, to ours."""
    try:
        yield
    except (OnnxmemError, MemoryError):
        raise
    except FileNotFoundError:
        message = "file or server not found; check the URL"
        raise MissingFileError(message) from None
    except ImportError as fault:
        message = f"the URL scheme needs another package: {shortened(str(fault), _LONGEST)}"
        raise MissingExtraError(message) from fault
    except Exception as fault:
        message = f"cannot be fetched: {_text(fault)}; check the URL and the credentials"
        raise RemoteError(message) from fault


def _text(fault: Exception) -> str:
    words = " ".join(str(fault).split())
    return shortened(
        f"{type(fault).__name__}: {words}" if words else type(fault).__name__, _LONGEST
    )

"""A file on a web server, read by byte ranges over a connection that is kept open.

The standard library suffices: what counts here is which bytes cross the network, when a request
is repeated, and who sees a token. Range requests are section 14 of RFC 9110, ``If-Range``, by which
a server says that the file changed since the first range, is section 13.1.5.
"""

import base64
import http.client
import re
import socket
import ssl
import zlib
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from time import sleep, time
from typing import IO, ClassVar, Final, TypeVar
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from onnxmem.errors import MissingFileError, OnnxmemError, shortened
from onnxmem.units import format_bytes
from onnxmem.version import __version__

SMALL_BYTES: Final = 2**26
"""A file up to this size is read whole from a server that ignores byte ranges."""
_BACKOFF_SECONDS: Final = (0.5, 1.0, 2.0, 4.0)
"""Waits before a request is repeated."""
_LONGEST_WAIT_SECONDS: Final = 60.0
"""If a server requests a longer wait, by ``Retry-After``, the file is not read."""
_SILENCE_SECONDS: Final = 30.0
_MAX_REDIRECTS: Final = 10
_BLOCK_BYTES: Final = 2**20
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_BUSY: Final = frozenset({429, 500, 502, 503, 504})
_OK, _PARTIAL, _UNAUTHORIZED, _FORBIDDEN, _OUT_OF_RANGE = 200, 206, 401, 403, 416
_MISSING: Final = frozenset({404, 410})
_RANGE: Final = re.compile(r"bytes (\d{1,15})-(\d{1,15})/(\d{1,15})")
_SAFE: Final = "/%:=&?~#+!$,;'@()*[]"
"""Characters of a path or query that are not quoted, or are quoted already."""
_PORTS: Final = {"http": 80, "https": 443}

_T = TypeVar("_T")


class RemoteError(OnnxmemError):
    """A URL cannot be read."""

    code: ClassVar[str] = "remote"


class _TransientError(Exception):
    """A request that may succeed if it is repeated."""

    def __init__(self, what: str, wait_seconds: float = 0.0) -> None:
        super().__init__(what)
        self.wait_seconds = wait_seconds


class HttpFile:
    """One file on a server. A token goes to the host of the URL alone, never on to another one."""

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urlsplit(url)
        self._named = self._url = _with_safe_path(parts._replace(netloc=_host_of(parts)).geturl())
        self._authorization = f"Bearer {token}" if token else _basic(parts)
        self._connection: http.client.HTTPConnection | None = None
        self._connected: tuple[str, str] | None = None
        self._is_whole = False
        self._date: str | None = None
        self.size_bytes: int | None = None
        """Known once the first range was read."""
        self.validator: str | None = None
        """The strong ETag of the version of which the first range is."""
        self.num_requests = 0
        self.num_bytes = 0
        """Bytes of bodies, those of repeated requests included."""

    def close(self) -> None:
        """Close the connection; a later request opens another."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._connected = None

    def head(self, num_bytes: int) -> bytes:
        """The first bytes; all of a small file if the server ignores byte ranges.

        :raises OnnxmemError: the file cannot be read, or is not small and cannot be read in part.
        """
        return self._repeated(lambda: self._head(num_bytes))

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from ``start`` up to ``stop``, of the version of which the head is.

        :raises OnnxmemError: they cannot be read.
        """
        return self._repeated(lambda: self._part(start, stop))

    def copy(self, into: IO[bytes], most_bytes: int) -> None:
        """Write the whole file, whether or not the server supports byte ranges.

        :raises OnnxmemError: it cannot be read, or is longer.
        """
        self._repeated(lambda: self._copy(into, most_bytes))

    def _repeated(self, attempt: Callable[[], _T]) -> _T:
        """Repeat an attempt, with longer and longer waits, while its failures may be transient."""
        for wait_seconds in _BACKOFF_SECONDS:
            try:
                return self._attempted(attempt)
            except _TransientError as fault:
                self.close()
                if fault.wait_seconds > _LONGEST_WAIT_SECONDS:
                    message = f"{fault}; try again in {fault.wait_seconds:.0f} s"
                    raise RemoteError(message) from None
                sleep(max(wait_seconds, fault.wait_seconds))
        try:
            return self._attempted(attempt)
        except _TransientError as fault:
            self.close()
            times = len(_BACKOFF_SECONDS) + 1
            message = f"{fault}, {times} times in a row; try again later"
            raise RemoteError(message) from None

    def _attempted(self, attempt: Callable[[], _T]) -> _T:
        is_first = self.num_requests == 0
        try:
            return attempt()
        except (_TransientError, OnnxmemError, MemoryError):
            raise
        # From the special to the general: all of these but the last are kinds of OSError.
        except socket.gaierror:
            message = "file or server not found; check the URL"
            raise MissingFileError(message) from None
        except ConnectionRefusedError:
            message = "file or server not found; check the URL"
            # At the first request, nobody listens at that address; later the server may be starting
            # again.
            if is_first:
                raise MissingFileError(message) from None
            again = "the server refused the connection"
            raise _TransientError(again) from None
        except TimeoutError:
            message = f"the server was silent for {_SILENCE_SECONDS:g} s"
            raise _TransientError(message) from None
        except (ConnectionError, http.client.IncompleteRead, ssl.SSLEOFError):
            message = "the connection was cut"
            raise _TransientError(message) from None
        except (OSError, http.client.HTTPException, ValueError, zlib.error) as fault:
            self.close()
            words = shortened(" ".join(str(fault).split()), 300)
            message = f"cannot be fetched: {type(fault).__name__}: {words}; check the URL"
            raise RemoteError(message) from fault

    def _head(self, num_bytes: int) -> bytes:
        reply = self._reply({"Range": f"bytes=0-{num_bytes - 1}"})
        if reply.status == _OUT_OF_RANGE:  # an empty file has no first byte
            self._drop(reply)
            self.size_bytes = 0
            return b""
        if reply.status == _OK:
            body = b"".join(self._whole(reply, SMALL_BYTES, _IGNORES_RANGES))
            self._is_whole, self.size_bytes = True, len(body)
            return body
        first, last, self.size_bytes = _range_of(reply)
        if first != 0 or last != min(num_bytes, self.size_bytes) - 1:
            raise self._refused(_OTHER_RANGE)
        # A weak tag does not say that bytes are equal, and must not be in an If-Range (RFC 9110,
        # 13.1.5).
        tag = reply.getheader("ETag")
        self.validator = tag if tag and not tag.startswith("W/") else None
        self._date = reply.getheader("Last-Modified")
        return self._body_of_part(reply, last + 1)

    def _part(self, start: int, stop: int) -> bytes:
        if self._is_whole:
            raise self._refused(CHANGED)
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        # Where there is no strong tag, the date of the last change is the condition.
        condition = self.validator or self._date
        if condition is not None:
            headers["If-Range"] = condition
        reply = self._reply(headers)
        if reply.status == _OUT_OF_RANGE:
            message = "the file is shorter than its server said; try again"
            raise self._refused(message)
        # With If-Range the whole file comes if it is another version.
        if reply.status != _PARTIAL or self._is_other_version(reply):
            raise self._refused(CHANGED)
        first, last, size_bytes = _range_of(reply)
        if size_bytes != self.size_bytes:
            raise self._refused(CHANGED)
        if (first, last) != (start, stop - 1):
            raise self._refused(_OTHER_RANGE)
        return self._body_of_part(reply, stop - start)

    def _is_other_version(self, reply: http.client.HTTPResponse) -> bool:
        """Whether a reply is of another version, for servers that ignore ``If-Range``."""
        pairs = ((self.validator, "ETag"), (self._date, "Last-Modified"))
        return any(
            before is not None and reply.getheader(name) not in {None, before}
            for before, name in pairs
        )

    def _copy(self, into: IO[bytes], most_bytes: int) -> None:
        # A repeated attempt begins again.
        into.seek(0)
        into.truncate()
        reply = self._reply({})
        if reply.status != _OK:
            message = f"the server replied {reply.status} to a request of the file"
            raise self._refused(message)
        for block in self._whole(reply, most_bytes, over_limit_text(most_bytes)):
            into.write(block)

    def _reply(self, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """The reply to a request, after redirects: a status of 200, 206 or 416."""
        for _ in range(_MAX_REDIRECTS):
            reply = self._sent(headers)
            if reply.status in _REDIRECTS:
                self._follow(reply)
            elif (
                reply.status in {_UNAUTHORIZED, _FORBIDDEN}
                and self._url != self._named
                and self.size_bytes is not None
            ):
                # The address to which a hub redirects expires.
                self._drop(reply)
                self._url = self._named
            else:
                self._refuse_status(reply)
                return reply
        message = f"the server redirects over {_MAX_REDIRECTS} times; check the URL"
        raise self._refused(message)

    def _sent(self, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        parts = urlsplit(self._url)
        if parts.scheme not in _PORTS or not parts.hostname:
            message = "the URL names no server of http or https; check it"
            raise self._refused(message)
        connection, prefix = self._connection_to(parts)
        sent = {
            "User-Agent": f"onnxmem/{__version__}",
            "Accept": "*/*",
            # Ranges of a packed body are no ranges of the file.
            "Accept-Encoding": "identity",
            **headers,
        }
        if self._authorization and _origin(self._url) == _origin(self._named):
            sent["Authorization"] = self._authorization
        path = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
        self.num_requests += 1
        connection.request("GET", prefix + (path if path[:1] == "/" else f"/{path}"), headers=sent)
        return connection.getresponse()

    def _connection_to(self, parts: SplitResult) -> tuple[http.client.HTTPConnection, str]:
        """A connection to a server or to its proxy, and what precedes a path in a request."""
        origin = (parts.scheme, parts.netloc)
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        proxy = None if proxy_bypass(host) else getproxies().get(parts.scheme)
        is_plain = parts.scheme == "http"
        # A proxy is sent whole URLs for http, and paths through a tunnel for https (RFC 9110,
        # 9.3.6).
        prefix = f"http://{parts.netloc}" if proxy and is_plain else ""
        if self._connection is not None and self._connected == origin:
            return self._connection, prefix
        self.close()
        made: Callable[..., http.client.HTTPConnection]
        made = http.client.HTTPConnection if is_plain else http.client.HTTPSConnection
        if proxy:
            to = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
            self._connection = made(to.hostname or "", to.port or 80, timeout=_SILENCE_SECONDS)
            if not is_plain:
                word = _basic(to)
                self._connection.set_tunnel(
                    host, port, {"Proxy-Authorization": word} if word else {}
                )
        else:
            self._connection = made(host, port, timeout=_SILENCE_SECONDS)
        self._connected = origin
        return self._connection, prefix

    def _follow(self, reply: http.client.HTTPResponse) -> None:
        """Go where a redirect leads; never from an encrypted connection to an open one."""
        target = reply.getheader("Location")
        self._drop(reply)
        if not target:
            message = "the server redirects to no address; check the URL"
            raise self._refused(message)
        before, after = self._url, _with_safe_path(urljoin(self._url, target))
        if before.startswith("https:") and not after.startswith("https:"):
            message = "the server redirects from https to another scheme; check the URL"
            raise self._refused(message)
        self._url = after

    def _refuse_status(self, reply: http.client.HTTPResponse) -> None:
        """Refuse a status without the file.

        :raises OnnxmemError: there is one.
        """
        status = reply.status
        if status in {_OK, _PARTIAL, _OUT_OF_RANGE}:
            return
        code = reply.getheader("X-Error-Code") or ""
        wait = reply.getheader("Retry-After") or ""
        self._drop(reply)
        if status in _BUSY:
            what = "limits requests" if status == 429 else "is not available"  # noqa: PLR2004 - too many requests
            message = f"the server {what} ({status})"
            raise _TransientError(message, _seconds_until(wait))
        if status in _MISSING:
            message = f"file or server not found ({status}); check the URL"
            raise MissingFileError(message)
        if code == "GatedRepo":
            message = "the model is gated: accept its conditions on its page and set HF_TOKEN"
        elif code == "RepoNotFound":
            message = "no such model, or a private one: check the name, or set HF_TOKEN"
        elif status == _UNAUTHORIZED:
            message = "the server requires credentials (401)"
        elif status == _FORBIDDEN:
            message = "the server refuses access (403); check the URL and the credentials"
        else:
            message = f"the server replied {status}; check the URL"
        raise self._refused(message)

    def _whole(
        self, reply: http.client.HTTPResponse, most_bytes: int, too_long: str
    ) -> Iterator[bytes]:
        """The whole file from a reply, block by block, unpacked if it was packed on the way."""
        # Refused unread where the server says the length, else counted while it is read.
        if (reply.length or 0) > most_bytes:
            raise self._refused(too_long.format(size=format_bytes(reply.length or 0)))
        encoding = (reply.getheader("Content-Encoding") or "identity").lower()
        if encoding not in {"identity", "gzip"}:
            message = f"the server packs the file as {shortened(encoding, 20)}"
            raise self._refused(message)
        unpack = zlib.decompressobj(zlib.MAX_WBITS | 16) if encoding == "gzip" else None
        left_bytes = most_bytes
        while block := self._block(reply):
            # One more than is left: a few packed bytes may hold gigabytes.
            data = unpack.decompress(block, left_bytes + 1) if unpack else block
            left_bytes -= len(data)
            if left_bytes < 0:
                raise self._refused(too_long.format(size="it"))
            yield data
        if reply.length or (unpack and not unpack.eof):
            message = "the connection was cut"
            raise _TransientError(message)

    def _block(self, reply: http.client.HTTPResponse) -> bytes:
        block = reply.read(_BLOCK_BYTES)
        self.num_bytes += len(block)
        return block

    def _body_of_part(self, reply: http.client.HTTPResponse, num_bytes: int) -> bytes:
        if (reply.getheader("Content-Encoding") or "identity").lower() != "identity":
            message = "the server packs parts of the file, which cannot be unpacked"
            raise self._refused(message)
        if reply.length not in {None, num_bytes}:
            raise self._refused(_OTHER_RANGE)
        body = reply.read(num_bytes)
        self.num_bytes += len(body)
        if len(body) < num_bytes:
            message = "the connection was cut"
            raise _TransientError(message)
        # Also reads the end of a chunked body, without which the connection serves no other
        # request.
        if reply.read(1):
            raise self._refused(_OTHER_RANGE)
        return body

    def _drop(self, reply: http.client.HTTPResponse) -> None:
        """Read the rest of a short body, so that the connection serves the next request."""
        if reply.length is None or reply.length > _BLOCK_BYTES:
            self.close()
        else:
            self.num_bytes += len(reply.read())

    def _refused(self, message: str) -> RemoteError:
        self.close()
        return RemoteError(message)


CHANGED: Final = "the file changed while it was read; try again"
_OTHER_RANGE: Final = "the server sends other bytes than were requested; download the file first"
_IGNORES_RANGES: Final = (
    "the server ignores byte ranges and would send {size} whole; download the file first"
)


def over_limit_text(most_bytes: int) -> str:
    """Why a file of more bytes is not copied."""
    return f"larger than {most_bytes:,} bytes, the limit of an ONNX file"


def _range_of(reply: http.client.HTTPResponse) -> tuple[int, int, int]:
    """First and last byte of a part, and the size of the file.

    :raises RemoteError: the server does not say.
    """
    found = _RANGE.fullmatch(reply.getheader("Content-Range") or "")
    if found is None:
        message = "the server does not say which bytes it sends, of how many; download the file"
        raise RemoteError(message)
    first, last, size_bytes = map(int, found.groups())
    return first, last, size_bytes


def _seconds_until(retry_after: str) -> float:
    """The wait of a ``Retry-After``: seconds, or a date; 0 if it is neither."""
    if re.fullmatch(r"\d{1,9}", retry_after):
        return float(retry_after)
    try:
        return parsedate_to_datetime(retry_after).timestamp() - time()
    except (ValueError, OverflowError):
        return 0.0


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def _host_of(parts: SplitResult) -> str:
    """The host and port, without a name and password."""
    return parts.netloc.rpartition("@")[2]


def _basic(parts: SplitResult) -> str | None:
    """The credentials of a URL that has some, as ``https://name:password@host``."""
    if parts.username is None:
        return None
    text = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Basic {base64.b64encode(text.encode()).decode()}"


def _with_safe_path(url: str) -> str:
    """The URL with what no URL may have, as spaces, quoted."""
    parts = urlsplit(url)
    return parts._replace(
        path=quote(parts.path, _SAFE), query=quote(parts.query, _SAFE), fragment=""
    ).geturl()

"""A web server on loopback that serves byte ranges, counts bytes, and fails as a test requests."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

Fault = Callable[["Handler"], bool]
"""Replies in place of the server, and returns true; false: the server replies."""


@dataclass
class RangeServer:
    """What is served at any path, and what was requested."""

    path: Path
    url: str = ""
    etag: str | None = '"v1"'
    faults: list[Fault] = field(default_factory=list)
    """The fault of the next request, of the one after it, and so on."""
    every: Fault | None = None
    """A fault of all requests."""
    num_bytes: int = 0
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Path and headers, the names in lower case."""

    @property
    def ranges(self) -> list[str | None]:
        """The range that each request named."""
        return [headers.get("range") for _, headers in self.requests]


class Handler(BaseHTTPRequestHandler):
    """Replies with the range of a file."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 5
    served: RangeServer

    def log_message(self, *_: object) -> None:
        """Write no log."""

    def handle(self) -> None:
        """Serve a connection; a client may end it at any time."""
        with suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        served = self.served
        headers = {name.lower(): value for name, value in self.headers.items()}
        served.requests.append((self.path, headers))
        fault = served.faults.pop(0) if served.faults else served.every
        if fault is None or not fault(self):
            self.serve()

    def requested(self) -> tuple[int, int] | None:
        """The requested range, up to the end of the file; ``None``: the whole file."""
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        condition = self.headers.get("If-Range")
        if found is None or condition not in {None, self.served.etag}:
            return None
        return int(found[1]), min(int(found[2]) + 1, self.served.path.stat().st_size)

    def serve(self) -> None:
        size, found = self.served.path.stat().st_size, self.requested()
        if found is None:
            self.reply(200, self.read(0, size))
        elif found[0] >= size:
            self.reply(416, headers={"Content-Range": f"bytes */{size}"})
        else:
            start, stop = found
            headers = {"Content-Range": f"bytes {start}-{stop - 1}/{size}"}
            self.reply(206, self.read(start, stop), headers)

    def read(self, start: int, stop: int) -> bytes:
        with self.served.path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        if self.served.etag is not None:
            self.send_header("ETag", self.served.etag)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        # Counted first: a client that has the body may read the count before this thread goes on.
        self.served.num_bytes += len(body)
        self.wfile.write(body)


def replies(status: int, body: bytes = b"", **headers: str) -> Fault:
    """A fault that replies with a status; ``_`` in the name of a header stands for ``-``."""

    def fault(handler: Handler) -> bool:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        handler.reply(status, body, named)
        return True

    return fault


def cuts(num_bytes: int) -> Fault:
    """A fault that ends the connection after so many bytes of the reply."""

    def fault(handler: Handler) -> bool:
        start, stop = handler.requested() or (0, handler.served.path.stat().st_size)
        size = handler.served.path.stat().st_size
        handler.send_response(206 if handler.requested() else 200)
        handler.send_header("ETag", handler.served.etag or "")
        handler.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        handler.send_header("Content-Length", str(stop - start))
        handler.end_headers()
        handler.wfile.write(handler.read(start, min(start + num_bytes, stop)))
        handler.close_connection = True
        return True

    return fault


@contextmanager
def range_server(path: Path) -> Iterator[RangeServer]:
    """A server of one file, whose ``url`` has no path."""
    served = RangeServer(path)
    handler = type("OwnHandler", (Handler,), {"served": served})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        served.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()

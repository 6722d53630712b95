"""A model at a URL: which bytes cross the network, and what a server may do wrong."""

import gzip
import io
import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from email.utils import formatdate
from pathlib import Path

import numpy as np
import onnx
import pytest
from models_on_disk import write_square
from range_server import Fault, Handler, RangeServer, cuts, range_server, replies

from onnxmem.cli import main
from onnxmem.collection.sources import expanded
from onnxmem.errors import MissingFileError, OnnxmemError, UsageError
from onnxmem.model import http_ranges, remote
from onnxmem.model.files import is_remote, load
from onnxmem.model.http_ranges import HttpFile, RemoteError
from onnxmem.model.remote import fetch, hub_address, remote_window
from onnxmem.model.wire import bytes_field, num_bytes
from onnxmem.units import format_bytes

Capture = pytest.CaptureFixture[str]

SIDE = 1600
NUM_LAYERS = 200


def write_sparse_model(path: Path) -> None:
    """A model of 2 GB with its weights in the file, which are holes: 200 matrices and biases."""
    names = [f"h{layer}" for layer in range(NUM_LAYERS + 1)]
    nodes = [
        onnx.helper.make_node("Gemm", [names[n], f"w{n}", f"b{n}"], [names[n + 1]])
        for n in range(NUM_LAYERS)
    ]
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", SIDE])
        for name in (names[0], names[-1])
    ]
    graph = onnx.helper.make_graph(nodes, "deep", ends[:1], ends[1:]).SerializeToString()
    pieces: list[bytes | slice] = [graph]
    for n in range(NUM_LAYERS):
        for name, dims in ((f"w{n}", (SIDE, SIDE)), (f"b{n}", (SIDE,))):
            tensor = onnx.TensorProto(name=name, dims=dims, data_type=onnx.TensorProto.FLOAT)
            hole = slice(0, 4 * int(np.prod(dims)))
            pieces += bytes_field(5, [tensor.SerializeToString(), *bytes_field(9, [hole])])
    opsets = [onnx.helper.make_opsetid("", 20)]
    head = onnx.ModelProto(ir_version=9, opset_import=opsets).SerializeToString()
    with path.open("wb") as file:
        for piece in (head, *bytes_field(7, pieces)):
            if isinstance(piece, bytes):
                file.write(piece)
            else:
                file.seek(num_bytes([piece]), io.SEEK_CUR)
        file.truncate()


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sparse") / "deep.onnx"
    write_sparse_model(path)
    assert path.stat().st_size > 2e9
    return path


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A model over one first range, and small enough to be read whole."""
    return write_square(tmp_path / "large.onnx", 500)


@pytest.fixture
def server(large: Path) -> Iterator[RangeServer]:
    with range_server(large) as served:
        yield served


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What is waited before a request is repeated, in no time."""
    found: list[float] = []
    monkeypatch.setattr(http_ranges, "sleep", found.append)
    for name in ("HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    return found


def same(path: Path, url: str) -> bool:
    local, read = load(path), load(url)
    return (local.proto, local.file_bytes) == (read.proto, read.file_bytes)


def test_a_model_of_2_gb_is_read_by_less_than_one_percent(sparse: Path, capsys: Capture) -> None:
    with range_server(sparse) as served:
        url = f"{served.url}/deep.onnx"
        assert main([url, "--batch", "8", "-v"]) == 0
        fetched_bytes, num_requests = served.num_bytes, len(served.requests)
        report = capsys.readouterr()
        assert same(sparse, url)
    assert fetched_bytes <= sparse.stat().st_size / 100
    assert num_requests <= NUM_LAYERS + 5
    size = format_bytes(fetched_bytes)
    assert report.err == f"Fetched {size} of 1.91 GiB in {num_requests} requests\n"
    assert main([str(sparse), "--batch", "8", "-v"]) == 0
    local = capsys.readouterr().out.replace(str(sparse), url)
    assert report.out.split() == local.split()
    print(f"{fetched_bytes:,} of {sparse.stat().st_size:,} bytes in {num_requests} requests")


def test_external_data_is_not_fetched(server: RangeServer, large: Path, capsys: Capture) -> None:
    model = onnx.load(large)
    weight = model.graph.initializer[0]
    weight.dims[:] = [2**15, 2**15]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="large.data")
    large.write_bytes(model.SerializeToString())
    assert main([f"{server.url}/large.onnx", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["models"][0]
    assert row["weights"]["bytes"] == 4 * 2**30
    assert [path for path, _ in server.requests] == ["/large.onnx"]


def test_what_was_fetched_is_a_key_of_the_row(server: RangeServer, capsys: Capture) -> None:
    assert main([f"{server.url}/net.onnx", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["models"][0]
    assert row["fetched"] == {"bytes": server.num_bytes, "requests": len(server.requests)}


def test_what_was_fetched_is_one_line_on_stderr(server: RangeServer, capsys: Capture) -> None:
    assert main([f"{server.url}/a.onnx", "-q"]) == 0
    assert capsys.readouterr().err == ""
    server.num_bytes = 0
    server.requests.clear()
    assert main([f"{server.url}/a.onnx", f"{server.url}/b.onnx", "--jobs", "1"]) == 0
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"Fetched [\d.]+ KiB of 1\.91 MiB in 4 requests", said), said
    assert len(server.requests) == 4


def test_the_model_is_that_of_the_file(server: RangeServer, large: Path) -> None:
    assert same(large, f"{server.url}/large.onnx?token=1")
    assert server.ranges[0] == "bytes=0-65535"
    assert server.num_bytes < large.stat().st_size / 10


def test_each_command_reads_a_url(server: RangeServer, capsys: Capture, tmp_path: Path) -> None:
    url = f"{server.url}/net.onnx"
    for words in (
        ["fit", url, "--device", "1GiB"],
        ["advise", url],
        ["check", url, "--budget-peak", "1GiB"],
        ["diff", url, url],
        ["explain", "peak", url],
        ["reorder", url],
        ["export", url, "--format", "csv"],
        ["annotate", url, "-o", str(tmp_path / "copy.onnx")],
    ):
        assert main(words) == 0, capsys.readouterr().err
    assert onnx.load(tmp_path / "copy.onnx").graph.initializer[0].raw_data == bytes(10**6)


def test_a_cached_result_costs_one_request(server: RangeServer, tmp_path: Path) -> None:
    words = [f"{server.url}/net.onnx", "--json", "--cache", str(tmp_path / "cache")]
    rows = []
    for _ in range(2):
        server.requests.clear()
        assert main([*words, "-o", str(tmp_path / "row.json"), "--force"]) == 0
        rows.append(json.loads((tmp_path / "row.json").read_text())["models"][0])
    assert server.ranges == ["bytes=0-65535"]
    assert "fetched" not in rows[1]
    assert {**rows[1], "fetched": rows[0]["fetched"]} == rows[0]
    assert os.listdir(tmp_path / "cache")
    server.etag = '"v2"'
    server.requests.clear()
    assert main([*words, "-o", str(tmp_path / "row.json"), "--force"]) == 0
    assert len(server.requests) == 2


@pytest.mark.parametrize("etag", ['"v1"', None])
def test_a_cache_opens_a_url_once(sparse: Path, tmp_path: Path, etag: str | None) -> None:
    words = ["--quiet", "--cache", str(tmp_path / "cache")]
    fetched = []
    with range_server(sparse) as served:
        served.etag = etag
        for more in ([], words, words):
            served.requests.clear()
            served.num_bytes = 0
            assert main([f"{served.url}/net.onnx", *more, "--json"]) == 0
            fetched.append((len(served.requests), served.num_bytes))
            assert served.ranges.count("bytes=0-65535") == 1
    without, first, again = fetched
    assert first == without
    # Without a name for the version, the graph itself is compared.
    assert again == (without if etag is None else (1, 2**16))


@pytest.mark.parametrize("fault", [replies(429), replies(503), cuts(0), cuts(100)])
def test_a_transient_fault_is_repeated_after_longer_and_longer_waits(
    server: RangeServer, large: Path, waits: list[float], fault: Fault
) -> None:
    server.faults = [fault, fault, fault]
    assert same(large, f"{server.url}/net.onnx")
    assert waits == [0.5, 1.0, 2.0]


def test_a_server_sets_the_wait(server: RangeServer, waits: list[float]) -> None:
    soon = formatdate(time.time() + 20, usegmt=True)
    server.faults = [replies(429, Retry_After="7"), replies(503, Retry_After=soon)]
    load(f"{server.url}/net.onnx")
    assert waits[0] == 7
    assert 15 < waits[1] <= 20


def test_a_wait_that_is_too_long_is_said_at_once(server: RangeServer, waits: list[float]) -> None:
    late = formatdate(time.time() + 7200, usegmt=True)
    for status, wait in ((429, "86400"), (503, late)):
        server.every = replies(status, Retry_After=wait)
        with pytest.raises(RemoteError, match=rf"\({status}\); try again in (86400|7\d\d\d) s"):
            load(f"{server.url}/net.onnx")
    assert waits == []
    server.every = replies(429, Retry_After="soon")
    with pytest.raises(RemoteError, match=r"limits requests \(429\), 5 times in a row"):
        load(f"{server.url}/net.onnx")
    assert waits == [0.5, 1.0, 2.0, 4.0]


REFUSALS = {
    "401": (replies(401), RemoteError, "the server requires credentials (401)"),
    "403": (replies(403), RemoteError, "the server refuses access (403)"),
    "404": (replies(404, b"<html>"), MissingFileError, "file or server not found (404)"),
    "410": (replies(410), MissingFileError, "file or server not found (410)"),
    "418": (replies(418), RemoteError, "the server replied 418"),
    "429": (replies(429), RemoteError, "the server limits requests (429), 5 times in a row"),
    "503": (replies(503), RemoteError, "the server is not available (503), 5 times in a row"),
    "cut": (cuts(9), RemoteError, "the connection was cut, 5 times in a row"),
    "gated": (replies(403, X_Error_Code="GatedRepo"), RemoteError, "the model is gated: accept"),
    "private": (replies(401, X_Error_Code="RepoNotFound"), RemoteError, "no such model, or a priv"),
    "loop": (replies(302, Location="/again"), RemoteError, "redirects over 10 times"),
    "nowhere": (replies(302), RemoteError, "redirects to no address"),
    "scheme": (replies(302, Location="file:///etc/passwd"), RemoteError, "no server of http"),
    "no range": (replies(206, b"x"), RemoteError, "does not say which bytes it sends"),
    "no size": (replies(206, b"x", Content_Range="bytes 0-0/*"), RemoteError, "does not say which"),
    "shifted": (replies(206, b"x", Content_Range="bytes 1-1/9"), RemoteError, "sends other bytes"),
    "short": (replies(206, b"x", Content_Range="bytes 0-8/9"), RemoteError, "sends other bytes"),
    "long": (replies(206, b"xyz", Content_Range="bytes 0-0/1"), RemoteError, "sends other bytes"),
    "packed": (
        replies(206, b"x", Content_Range="bytes 0-0/1", Content_Encoding="gzip"),
        RemoteError,
        "packs parts of the file",
    ),
    "brotli": (replies(200, b"x", Content_Encoding="br"), RemoteError, "packs the file as br"),
    "noise": (replies(200, b"noise", Content_Encoding="gzip"), RemoteError, "cannot be fetched"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_a_server_refuses_is_one_line(server: RangeServer, name: str, capsys: Capture) -> None:
    server.every, kind, words = REFUSALS[name]
    with pytest.raises(OnnxmemError, match=re.escape(words)) as raised:
        load(f"{server.url}/net.onnx")
    assert type(raised.value) is kind
    assert main([f"{server.url}/net.onnx"]) == kind.exit_code
    assert capsys.readouterr().err.count("\n") == 1


def whole(handler: Handler) -> bool:
    """Ignore the range, as Python's own server does."""
    handler.reply(200, handler.read(0, handler.served.path.stat().st_size))
    return True


def test_a_small_file_is_read_whole_if_the_server_ignores_ranges(
    server: RangeServer, large: Path
) -> None:
    server.every = whole
    assert same(large, f"{server.url}/net.onnx")
    assert len(server.requests) == 1


def test_a_large_file_is_not(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_ranges, "SMALL_BYTES", 2**16)
    server.every = whole
    with pytest.raises(RemoteError, match="ignores byte ranges and would send 977 KiB whole"):
        load(f"{server.url}/net.onnx")


def test_a_file_that_is_packed_on_the_way_is_unpacked(server: RangeServer, large: Path) -> None:
    def packs(handler: Handler) -> bool:
        body = gzip.compress(large.read_bytes())
        handler.reply(200, body, {"Content-Encoding": "gzip"})
        return True

    server.every = packs
    assert same(large, f"{server.url}/net.onnx")
    assert server.requests[0][1]["accept-encoding"] == "identity"


def test_a_packed_bomb_is_refused(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_ranges, "SMALL_BYTES", 10**6)
    server.every = replies(200, gzip.compress(bytes(2 * 10**6)), Content_Encoding="gzip")
    with pytest.raises(RemoteError, match="ignores byte ranges"):
        load(f"{server.url}/net.onnx")


@pytest.mark.parametrize("etag", ['"v1"', 'W/"v1"', None])
def test_a_file_that_changes_between_ranges_is_refused(
    server: RangeServer, large: Path, etag: str | None
) -> None:
    server.etag = etag
    with remote_window(f"{server.url}/net.onnx") as window:
        content = large.read_bytes()
        assert window[-9:] == content[-9:]
        large.write_bytes(content + b"more")
        server.etag = '"v2"'
        with pytest.raises(RemoteError, match="the file changed while it was read"):
            _ = window[-20:]


def test_a_server_that_ignores_if_range_is_believed_by_its_etag(server: RangeServer) -> None:
    with remote_window(f"{server.url}/net.onnx") as window:
        server.etag = None
        told = f"bytes 100000-100002/{len(window)}"
        server.every = replies(206, b"abc", Content_Range=told)
        assert window[100000:100003] == b"abc"
        told = f"bytes 200000-200002/{len(window)}"
        server.every = replies(206, b"abc", Content_Range=told, ETag='"v2"')
        with pytest.raises(RemoteError, match="the file changed while it was read"):
            _ = window[200000:200003]


def test_a_server_that_lies_about_the_length_is_refused(server: RangeServer, large: Path) -> None:
    size = large.stat().st_size
    first = large.read_bytes()[:65536]
    for told in (size + 10**9, size - 10**5):
        server.faults = [replies(206, first, Content_Range=f"bytes 0-65535/{told}")]
        with pytest.raises(OnnxmemError, match=r"shorter than its server|changed|truncated"):
            load(f"{server.url}/net.onnx")
    server.faults = [replies(206, first, Content_Range=f"bytes 0-65535/{size}")]
    with remote_window(f"{server.url}/net.onnx") as window:
        large.write_bytes(first)
        with pytest.raises(RemoteError, match="shorter than its server said"):
            _ = window[-9:]


def test_an_empty_file_and_one_that_is_no_model(server: RangeServer, large: Path) -> None:
    for content, words in ((b"", "an empty file"), (b"<html>", "an HTML page")):
        large.write_bytes(content)
        with pytest.raises(OnnxmemError, match=words):
            load(f"{server.url}/net.onnx")


def test_a_redirect_is_followed_once(server: RangeServer, large: Path) -> None:
    server.faults = [replies(302, Location="/cdn/net.onnx?signed=1")]
    assert same(large, f"{server.url}/net.onnx")
    paths = [path for path, _ in server.requests]
    assert paths[:2] == ["/net.onnx", "/cdn/net.onnx?signed=1"]
    assert set(paths[1:]) == {"/cdn/net.onnx?signed=1"}


def test_an_address_that_expires_is_requested_again(server: RangeServer, large: Path) -> None:
    move = replies(302, Location="/cdn/net.onnx")
    server.faults = [move, lambda _: False, replies(403), move]
    assert same(large, f"{server.url}/net.onnx")
    paths = [path for path, _ in server.requests]
    assert paths[:6] == ["/net.onnx", "/cdn/net.onnx", "/cdn/net.onnx", *paths[:2], *paths[5:6]]


def test_a_redirect_does_not_leave_an_encrypted_connection(
    monkeypatch: pytest.MonkeyPatch, server: RangeServer
) -> None:
    file = HttpFile("https://hub.test/net.onnx")
    plain = HttpFile(f"{server.url}/net.onnx")
    server.faults = [replies(302, Location=f"{server.url}/other")]
    monkeypatch.setattr(file, "_sent", plain._sent)  # noqa: SLF001 - in place of an encrypted server
    with pytest.raises(RemoteError, match="redirects from https to another scheme"):
        file.head(9)
    plain.close()


def listing(names: Iterable[str]) -> bytes:
    return json.dumps({"siblings": [{"rfilename": name} for name in names]}).encode()


class TestHub:
    """A hub that redirects to another host, as the one of Hugging Face does."""

    @pytest.fixture(autouse=True)
    def hub(self, server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")

    def test_a_token_is_sent_to_the_hub_alone(
        self, server: RangeServer, large: Path, capsys: Capture
    ) -> None:
        with range_server(large) as cdn:
            server.every = replies(302, Location=f"{cdn.url}/blob")
            assert main(["hf://org/model@v2/onnx/a b.onnx", "--json"]) == 0
        assert [path for path, _ in server.requests] == ["/org/model/resolve/v2/onnx/a%20b.onnx"]
        assert server.requests[0][1]["authorization"] == "Bearer hf_secret"
        assert len(cdn.requests) > 1
        assert not any("authorization" in headers for _, headers in cdn.requests)
        assert "hf_secret" not in "".join(capsys.readouterr())

    def test_a_token_that_cannot_be_sent_is_not_shown(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_secret\nX-Other: 1")
        assert main(["hf://org/model/net.onnx"]) == 2
        said = capsys.readouterr().err
        assert "HF_TOKEN has characters that no token has" in said
        assert "hf_secret" not in said

    def test_a_repository_is_a_folder(self, server: RangeServer, capsys: Capture) -> None:
        names = ("read.me", "a.onnx", "onnx/c.onnx", "onnx/b.onnx", "onnx/deep/d.onnx")
        server.every = replies(200, listing(names))
        assert expanded("hf://org/net@v2/onnx/") == tuple(
            f"hf://org/net@v2/onnx/{name}" for name in ("b.onnx", "c.onnx", "deep/d.onnx")
        )
        assert server.requests[0][0] == "/api/models/org/net/revision/v2"
        assert server.requests[0][1]["authorization"] == "Bearer hf_secret"
        assert expanded("hf://org/net/onnx/*.onnx") == (
            "hf://org/net/onnx/b.onnx",
            "hf://org/net/onnx/c.onnx",
        )
        server.every = replies(401)
        assert main(["hf://org/net/"]) == 3
        assert "the server requires credentials (401)" in capsys.readouterr().err
        server.every = replies(200, b"[]")
        assert main(["hf://org/net/"]) == 3
        assert "the hub sends no list of files" in capsys.readouterr().err

    def test_a_repository_without_a_file_lists_its_models(
        self, server: RangeServer, capsys: Capture
    ) -> None:
        names = ["read.me", "onnx/b.onnx", "a.onnx", *(f"c/{n}.onnx" for n in range(9))]
        server.every = replies(200, listing(names))
        listed = "'a.onnx', 'c/0.onnx', 'c/1.onnx', 'c/2.onnx', 'c/3.onnx' and 6 more"
        for name in ("hf://org/net", "hf://org/net@v2"):
            assert main([name]) == 2
            said = capsys.readouterr().err
            assert said.endswith(
                f"{name}: missing_file: names no file; the repository has {listed}\n"
            )
            assert said.count("\n") == 1
        for name in ("hf://org/net/", "hf://org/net/none/"):
            server.every = replies(200, listing(["read.me"]))
            assert main([name]) == 2
            assert "the repository has no .onnx file" in capsys.readouterr().err

    def test_a_file_that_a_repository_lacks_is_reported_with_its_models(
        self, server: RangeServer, capsys: Capture
    ) -> None:
        for words in ([], ["--measure", "cpu"]):
            server.faults = [replies(404), replies(200, listing(["onnx/model.onnx"]))]
            assert main(["hf://org/net/model.onnx", *words]) == 2
            said = capsys.readouterr().err
            assert "no such file; the repository has 'onnx/model.onnx'\n" in said

    def test_a_token_does_not_go_to_other_urls(self, server: RangeServer) -> None:
        load(f"{server.url}/net.onnx")
        assert "authorization" not in server.requests[0][1]


def test_names_of_files_of_a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = "https://huggingface.co"
    assert hub_address("hf://a/b/c/d.onnx") == f"{hub}/a/b/resolve/main/c/d.onnx"
    assert hub_address("HF://datasets/a/b@refs%2Fpr%2F1/d") == (
        f"{hub}/datasets/a/b/resolve/refs%2Fpr%2F1/d"
    )
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.test/hub/")
    assert hub_address("hf://a/b/d.onnx") == "https://mirror.test/hub/a/b/resolve/main/d.onnx"
    for name in ("hf://a/b", "hf://a/b/", "hf://d.onnx", "hf://a/b/c/"):
        with pytest.raises(UsageError, match="not a file of a hub"):
            hub_address(name)


def test_credentials_in_a_url_are_sent_as_such(server: RangeServer) -> None:
    load(server.url.replace("//", "//me:pass%40word@") + "/net.onnx")
    assert server.requests[0][1]["authorization"] == "Basic bWU6cGFzc0B3b3Jk"
    assert server.requests[0][0] == "/net.onnx"


def test_a_proxy_of_the_environment_is_used(
    server: RangeServer, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "")
    assert same(large, "http://models.test/net.onnx")
    assert server.requests[0][0] == "http://models.test/net.onnx"
    assert server.requests[0][1]["host"] == "models.test"


def test_no_such_server_and_no_such_host() -> None:
    for url in ("http://127.0.0.1:1/a.onnx", "https://nosuch.invalid/a.onnx"):
        with pytest.raises(MissingFileError, match="file or server not found"):
            load(url)
    with pytest.raises(RemoteError, match="names no server of http"):
        load("http:///a.onnx")
    with pytest.raises(RemoteError, match="cannot be fetched: ValueError"):
        load("http://127.0.0.1:port/a.onnx")


def slow(handler: Handler) -> bool:
    """Reply after longer than a test waits."""
    time.sleep(5)
    return bool(handler.close_connection)


def test_a_slow_server_is_skipped_by_the_time_limit(server: RangeServer, capsys: Capture) -> None:
    server.every = slow
    start = time.monotonic()
    assert main([f"{server.url}/net.onnx", "--timeout", "1"]) == 3
    assert time.monotonic() - start < 5
    assert "timed out after 1 s" in capsys.readouterr().err


def test_a_silent_server_is_one_line(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_ranges, "_SILENCE_SECONDS", 0.02)
    server.every = slow
    with pytest.raises(RemoteError, match=r"was silent for 0\.02 s, 5 times in a row"):
        load(f"{server.url}/net.onnx")


def test_a_model_that_runs_is_fetched_whole(server: RangeServer, large: Path) -> None:
    fetch(f"{server.url}/net.onnx", into := io.BytesIO())
    assert into.getvalue() == large.read_bytes()
    server.faults = [cuts(10), replies(503)]
    fetch(f"{server.url}/net.onnx", into := io.BytesIO())
    assert into.getvalue() == large.read_bytes()
    with pytest.raises(RemoteError, match=r"larger than 10 bytes, the limit of an ONNX file"):
        fetch(f"{server.url}/net.onnx", io.BytesIO(), 10)


def test_bytes_are_those_of_the_file_in_any_order(server: RangeServer, large: Path) -> None:
    large.write_bytes(content := np.random.default_rng(7).bytes(3 * 10**6))
    generator = np.random.default_rng(11)
    with remote_window(f"{server.url}/net.onnx") as window:
        for start in generator.integers(0, len(content), 150):
            assert window[int(start)] == content[start]
            stop = start + generator.integers(0, 10**5)
            assert window[start:stop] == content[start:stop]
        assert window[:] == content
        with pytest.raises(IndexError):
            _ = window[len(content)]


def test_what_is_kept_has_a_limit(
    server: RangeServer, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_MOST_KEPT_BYTES", 10**5)
    large.write_bytes(content := np.random.default_rng(5).bytes(10**6))
    with remote_window(f"{server.url}/net.onnx") as window:
        assert bytes(window[offset] for offset in range(0, 10**6, 999)) == content[::999]
        assert window[:] == content


@pytest.mark.parametrize("name", ["s3://a/b.onnx", "HTTP://a/b", "memory://b", "abfs+x://y"])
def test_a_url_is_remote(name: str) -> None:
    assert is_remote(name)


@pytest.mark.parametrize("name", ["C://b.onnx", "b.onnx", "a:/b", "://x", "zoo//a"])
def test_a_local_path_is_not_remote(name: str) -> None:
    assert not is_remote(name)


class TestStores:
    """Stores of fsspec."""

    def test_a_store_is_read_by_ranges(self, large: Path) -> None:
        fsspec = pytest.importorskip("fsspec")
        fsspec.filesystem("memory").pipe("/remote/large.onnx", large.read_bytes())
        assert same(large, "memory://remote/large.onnx")
        fetched = load("memory://remote/large.onnx").fetched
        assert fetched is not None
        assert fetched.num_bytes < large.stat().st_size / 10

    def test_a_file_of_a_store_that_changes_is_refused(self, large: Path) -> None:
        files = pytest.importorskip("fsspec").filesystem("memory")
        files.pipe("/remote/large.onnx", large.read_bytes())
        with (
            pytest.raises(RemoteError, match="the file changed while it was read"),
            remote_window("memory://remote/large.onnx"),
        ):
            files.pipe("/remote/large.onnx", large.read_bytes() + b"more")

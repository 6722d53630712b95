"""From names to models: folders, patterns, lists, stdin, and URLs on a server of loopback."""

import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from range_server import range_server, replies

from onnxmem.collection.sources import expanded, local_file, model_names, staged_stdin
from onnxmem.errors import MissingFileError, OnnxmemError, UsageError
from onnxmem.model import remote
from onnxmem.model.http_ranges import RemoteError
from onnxmem.model.remote import MissingExtraError, fetch


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models, one of them in a subfolder, a hidden one and a file that is not a model."""
    monkeypatch.chdir(tmp_path)
    for name in ("b.onnx", "zoo/z.onnx", "zoo/a.onnx", "zoo/deep/m.onnx", "zoo/.hidden.onnx"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(b"\x08\x0a")
    Path("zoo/read.me").touch()
    Path("empty").mkdir()
    return tmp_path


ZOO = ("zoo/a.onnx", "zoo/z.onnx", "zoo/deep/m.onnx")


def test_folders_and_patterns_expand_to_their_models_in_order() -> None:
    assert model_names(["zoo", "b.onnx"]) == (*ZOO, "b.onnx")
    assert model_names(["zoo/*.onnx"]) == ZOO[:2]
    assert model_names(["zoo/**/*.onnx"]) == ("zoo/a.onnx", "zoo/deep/m.onnx", "zoo/z.onnx")
    assert model_names(["zoo/deep/"]) == ("zoo/deep/m.onnx",)


def test_a_source_named_twice_counts_twice_and_an_empty_one_stays() -> None:
    names = ["b.onnx", "b.onnx", "gone.onnx", "gone/*.onnx", "empty", "-"]
    assert model_names(names) == tuple(names)


def test_a_list_has_one_name_per_line() -> None:
    Path("list.txt").write_bytes(
        b"\xef\xbb\xbf# models\n\n  zoo/deep \r\nb.onnx\n@other\n\xff.onnx"
    )
    names = model_names(["@list.txt", "b.onnx"])
    assert names == ("zoo/deep/m.onnx", "b.onnx", "@other", "\udcff.onnx", "b.onnx")


def test_a_file_whose_name_starts_with_the_list_prefix_is_not_a_list() -> None:
    Path("@b.onnx").touch()
    assert model_names(["@b.onnx"]) == ("@b.onnx",)


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [("@gone.txt", MissingFileError, "no such list"), ("@empty", UsageError, "cannot be read")],
)
def test_a_list_that_cannot_be_read_is_reported(
    name: str, error: type[OnnxmemError], words: str
) -> None:
    with pytest.raises(error, match=words):
        model_names([name])


def test_stdin_is_a_file_for_as_long_as_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"model")))
    with staged_stdin() as path:
        assert Path(path).read_bytes() == b"model"
    assert not os.path.lexists(path)


def test_a_local_name_is_its_own_file() -> None:
    with local_file("b.onnx") as path:
        assert path == "b.onnx"


def test_without_fsspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "fsspec"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'onnxmem\[remote\]'"):
        fetch("memory://a.onnx", io.BytesIO())
    assert expanded("memory://zoo/") is None


@pytest.fixture
def stored() -> None:
    pytest.importorskip("fsspec")


@pytest.mark.usefixtures("stored")
class TestStores:
    """With fsspec."""

    def test_folders_and_patterns_of_a_store_expand(self) -> None:
        fsspec = pytest.importorskip("fsspec")

        files = fsspec.filesystem("memory")
        for name in ("z.onnx", "a.onnx", "deep/m.onnx", "read.me"):
            files.pipe(f"/zoo/{name}", b"model")
        assert expanded("memory://zoo/") == tuple(
            f"memory:///zoo/{name}" for name in ("a.onnx", "deep/m.onnx", "z.onnx")
        )
        assert expanded("memory://zoo/*.onnx") == ("memory:///zoo/a.onnx", "memory:///zoo/z.onnx")
        assert expanded("memory://zoo/a.onnx") is None
        with local_file("memory://zoo/a.onnx") as path:
            assert Path(path).read_bytes() == b"model"
        assert not os.path.lexists(path)

    def test_an_unknown_store_is_left_as_it_is(self) -> None:
        assert model_names(["nosuch://zoo/", "nosuch://zoo/*.onnx"]) == (
            "nosuch://zoo/",
            "nosuch://zoo/*.onnx",
        )
        with pytest.raises(RemoteError, match="Protocol not known: nosuch"):
            fetch("nosuch://zoo/a.onnx", io.BytesIO())

    def test_a_missing_and_an_oversized_remote_file_are_reported(self) -> None:
        fsspec = pytest.importorskip("fsspec")

        fsspec.filesystem("memory").pipe("/large.onnx", bytes(101))
        fetch("memory://large.onnx", into := io.BytesIO(), 101)
        assert len(into.getvalue()) == 101
        with pytest.raises(RemoteError, match="larger than 100 bytes"):
            fetch("memory://large.onnx", io.BytesIO(), 100)
        with pytest.raises(MissingFileError, match="file or server not found"):
            fetch("memory://gone.onnx", io.BytesIO())

    def test_a_scheme_that_needs_a_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def filesystem(_: str) -> None:
            message = "Please install gcsfs"
            raise ImportError(message)

        monkeypatch.setattr(remote, "filesystem_of", filesystem)
        with pytest.raises(MissingExtraError, match="the URL scheme needs another package: Please"):
            fetch("gs://zoo/a.onnx", io.BytesIO())

    def test_running_out_of_memory_is_reported_as_such(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def filesystem(_: str) -> None:
            raise MemoryError

        monkeypatch.setattr(remote, "filesystem_of", filesystem)
        with pytest.raises(MemoryError):
            fetch("memory://a.onnx", io.BytesIO())

    def test_a_file_of_a_server_is_fetched_whole(self, folder: Path) -> None:
        content = bytes(range(100))
        (folder / "net.onnx").write_bytes(content)
        with range_server(folder / "net.onnx") as served:
            with local_file(f"{served.url}/net.onnx?token=1") as path:
                assert Path(path).read_bytes() == content
            served.every = replies(404)
            with pytest.raises(MissingFileError):
                fetch(f"{served.url}/gone.onnx", io.BytesIO())
            assert expanded(f"{served.url}/net.onnx?token=1") is None

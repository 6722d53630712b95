"""A model file: opened once, read through a window, and refused where it is not a model."""

import gzip
import io
import json
import os
import pickle
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import pytest
from graphs import model_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import onnxmem
from onnxmem.errors import MissingFileError, ModelFileError
from onnxmem.model.files import HEAD_BYTES, FileWindow, ModelSource, load, other_kind

MODEL = model_of("agraph (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }")
DATA = MODEL.SerializeToString()


@pytest.fixture(name="file")
def file_of_model(tmp_path: Path) -> Path:
    file = tmp_path / "model.onnx"
    file.write_bytes(DATA)
    return file


# What it takes


def test_a_path_as_text_or_path_bytes_and_a_proto_load_the_same_model(file: Path) -> None:
    loaded = [load(source) for source in (str(file), file, DATA, MODEL)]
    assert [model.proto for model in loaded] == [MODEL] * 4
    assert [model.file_bytes for model in loaded] == [len(DATA)] * 4
    assert [model.path for model in loaded] == [str(file)] * 2 + ["<bytes>", "<ModelProto>"]


def test_a_link_to_a_model_is_the_model(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.onnx"
    link.symlink_to(file)
    assert load(link).proto == MODEL


def test_a_given_proto_is_never_changed() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
    agraph (float[n] x) => (float[n] y) { y = Relu(a)  a = own.f(x) }
    <domain: "own", opset_import: ["": 20, "far": 2]> f (x) => (y) { y = Neg(x) }"""
    proto = onnx.parser.parse_model(text)
    before = proto.SerializeToString(deterministic=True)
    onnxmem.analyze(proto, batch=5)
    assert proto.SerializeToString(deterministic=True) == before


def test_the_file_is_closed_whether_it_loads_or_not(file: Path, tmp_path: Path) -> None:
    (tmp_path / "page.onnx").write_bytes(b"<html>")
    before = set(Path("/dev/fd").iterdir())
    load(file)
    for refused in (tmp_path, tmp_path / "page.onnx"):
        with pytest.raises(ModelFileError):
            load(refused)
    assert set(Path("/dev/fd").iterdir()) == before


# What it refuses


def refusal(source: ModelSource) -> str:
    with pytest.raises(ModelFileError) as caught:
        load(source)
    return str(caught.value)


def missing(path: str | Path) -> str:
    with pytest.raises(MissingFileError) as caught:
        load(path)
    return str(caught.value)


OTHERS = {
    b"": "not an ONNX model: this is an empty file",
    b"version https://git-lfs.github.com/spec/v1\n": "not an ONNX model: this is a git-lfs "
    "pointer, not the model itself; run `git lfs pull`",
    b"<!doctype html>": "not an ONNX model: this is an HTML page; "
    "the download went to a web page instead of the file",
    b"PK\x03\x04\x14": "not an ONNX model: this is a zip archive (a PyTorch .pt file, perhaps); "
    "export or unpack the model first",
    b"\x1f\x8b\x08": "not an ONNX model: this is a gzip file; unpack it first",
    b"hello\n": "not an ONNX model: this is a text file; name the .onnx file",
}


@pytest.mark.parametrize(("data", "message"), OTHERS.items())
def test_a_file_of_another_kind_is_rejected_with_its_kind(
    tmp_path: Path, data: bytes, message: str
) -> None:
    (tmp_path / "other.onnx").write_bytes(data)
    assert refusal(tmp_path / "other.onnx") == message
    assert refusal(data) == message


class Planted:
    """Creates a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.mark,)


def test_a_pickle_is_named_and_never_unpickled(tmp_path: Path) -> None:
    data = pickle.dumps(Planted(tmp_path / "mark"), protocol=4)
    assert refusal(data) == (
        "not an ONNX model: this is a Python pickle (PyTorch or scikit-learn); export it to ONNX "
        "first"
    )
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "proto",
    [
        onnx.ModelProto(ir_version=10, producer_name="nobody"),
        onnx.ModelProto(ir_version=10, graph=onnx.GraphProto(name="empty")),
    ],
    ids=["no graph", "an empty graph"],
)
def test_protobuf_without_a_graph_is_rejected(proto: onnx.ModelProto) -> None:
    assert refusal(proto) == (
        "not an ONNX model: a protobuf without a graph; export or download it again"
    )


def test_unknown_fields_alone_are_not_a_graph() -> None:
    assert refusal(b"\xfa\x07\x03abc") == (
        "not an ONNX model: a protobuf without a graph; export or download it again"
    )


def test_a_proto_over_2_gib_is_advised_to_use_external_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onnx.ModelProto, "ByteSize", lambda _: 2**31, raising=False)
    assert refusal(onnx.ModelProto()) == (
        "the ModelProto is over 2 GiB; save it with external data and pass the path"
    )


def test_a_directory_is_rejected_with_a_hint(tmp_path: Path) -> None:
    refused = "not an ONNX model: this is a directory; "
    assert refusal(tmp_path) == refused + "no .onnx file is in it; check the path"
    (tmp_path / "net.onnx").touch()
    assert refusal(tmp_path) == f"{refused}name the .onnx file in it, as {tmp_path}/net.onnx"


def test_a_fifo_is_rejected_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    assert refusal(tmp_path / "pipe.onnx") == (
        "not an ONNX model: this is a FIFO (named pipe); onnxmem reads regular files"
    )


def test_a_link_to_an_endless_device_is_rejected_unread(tmp_path: Path) -> None:
    (tmp_path / "zero.onnx").symlink_to("/dev/zero")
    assert refusal(tmp_path / "zero.onnx") == (
        "not an ONNX model: this is a character device; onnxmem reads regular files"
    )


def test_a_socket_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.onnx")
        assert (
            missing("socket.onnx") == "cannot be opened: No such device or address; check the path"
        )


def test_a_missing_path_is_reported(tmp_path: Path) -> None:
    (tmp_path / "dangling.onnx").symlink_to(tmp_path / "gone.onnx")
    assert missing(tmp_path / "gone.onnx") == "no such file; check the path"
    assert missing(tmp_path / "dangling.onnx") == "no such file; check the path"
    assert missing("").endswith("the name is empty: a variable that is not set?")


def test_a_loop_of_links_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").symlink_to(tmp_path / "b.onnx")
    (tmp_path / "b.onnx").symlink_to(tmp_path / "a.onnx")
    assert missing(tmp_path / "a.onnx") == (
        "cannot be opened: Too many levels of symbolic links; check the path"
    )


def test_a_path_through_a_file_or_with_a_nul_cannot_be_opened(file: Path) -> None:
    assert missing(file / "inner.onnx") == "cannot be opened: Not a directory; check the path"
    assert missing("model\0.onnx") == "cannot be opened: embedded null byte; check the path"


# External data

ANALYZE_AND_WATCH = """
import sys
import onnxmem
onnxmem.analyze(sys.argv[2], train=True)
opened = []
def watch(event, arguments):
    if event == "open" and not str(arguments[0]).endswith((".py", ".pyc")):
        opened.append(arguments[0])
sys.addaudithook(watch)
analysis = onnxmem.analyze(sys.argv[1], train=True)
print(analysis.weight_bytes, *opened, sep="\\n")
"""


def test_analysis_opens_only_the_models_file(file: Path, tmp_path: Path) -> None:
    places = ["../up.bin", "/etc/passwd", "here.bin", "pipe", "model.onnx", "absent.bin"]
    (tmp_path / "here.bin").write_bytes(bytes(4 * 7))
    os.mkfifo(tmp_path / "pipe")
    model = model_of("agraph (float[7] x) => (float[7] y) { y = Sum(x, a, b, c, d, e, f) }")
    for name, place in zip("abcdef", places, strict=True):
        weight = model.graph.initializer.add(name=name, data_type=1, dims=[7])
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=place)
        weight.external_data.add(key="offset", value="-3")
    external = tmp_path / "external.onnx"
    external.write_bytes(model.SerializeToString())
    command = [sys.executable, "-c", ANALYZE_AND_WATCH, str(external), str(file)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.split("\n") == [str(6 * 7 * 4), str(external), ""]
    assert run.stderr == ""


NUM_BYTES = 3 * (1 << 14) + 17
"""Three windows and a bit."""

CONTENT = (bytes(range(251)) * (NUM_BYTES // 251 + 1))[:NUM_BYTES]
"""A period that divides no window."""

CUT = "truncated: the file became shorter while it was read; wait and try again"

places = st.one_of(
    st.integers(0, NUM_BYTES - 1),
    st.sampled_from([edge + off for edge in (1 << 14, 1 << 15, 3 << 14) for off in (-1, 0, 1)]),
)
bounds = st.one_of(st.none(), st.integers(-NUM_BYTES - 3, NUM_BYTES + 3))


@contextmanager
def window(file: Path) -> Iterator[FileWindow]:
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        yield FileWindow(descriptor, file.stat().st_size)
    finally:
        os.close(descriptor)


@pytest.fixture(name="content_file", scope="module")
def file_of_content(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("window") / "content"
    file.write_bytes(CONTENT)
    return file


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(places, st.builds(slice, bounds, bounds)), max_size=30))
def test_reads_in_any_order_equal_the_bytes(content_file: Path, reads: list[int | slice]) -> None:
    with window(content_file) as data:
        assert len(data) == NUM_BYTES
        for place in reads:
            assert data[place] == CONTENT[place]


def test_the_bytes_one_by_one_are_the_file(content_file: Path) -> None:
    with window(content_file) as data:
        assert bytes(data[place] for place in range(len(data))) == CONTENT


def test_a_byte_beyond_the_end_is_an_index_error(content_file: Path) -> None:
    with window(content_file) as data, pytest.raises(IndexError):
        data[NUM_BYTES]


def test_a_slice_stops_at_the_size_that_the_file_had(tmp_path: Path) -> None:
    file = tmp_path / "grows"
    file.write_bytes(b"abc")
    with window(file) as data:
        file.write_bytes(b"abcdef")
        assert data[1:6] == b"bc"
        assert data[2] == ord("c")
        with pytest.raises(IndexError):
            data[3]


@pytest.mark.parametrize("place", [11, slice(3, 13)], ids=["byte", "slice"])
def test_a_file_truncated_during_reading_is_rejected(tmp_path: Path, place: int | slice) -> None:
    file = tmp_path / "shrinks"
    file.write_bytes(b"0123456789abc")
    with window(file) as data:
        os.truncate(file, 7)
        with pytest.raises(ModelFileError) as caught:
            data[place]
    assert str(caught.value) == CUT


def test_a_read_that_returns_parts_is_continued(
    content_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, count: whole(descriptor, min(count, 1000)))
    with window(content_file) as data:
        assert data[5:7919] == CONTENT[5:7919]


PICKLE = "a Python pickle (PyTorch or scikit-learn); export it to ONNX first"
HTML = "an HTML page; the download went to a web page instead of the file"
TEXT = "a text file; name the .onnx file"


def zip_archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"weights")
    return buffer.getvalue()


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(8)


KINDS = {
    "empty": (b"", "an empty file"),
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 102\n",
        "a git-lfs pointer, not the model itself; run `git lfs pull`",
    ),
    "html": (b"\n <!DOCTYPE html><title>404</title>", HTML),
    "html with a byte order mark": (b"\xef\xbb\xbf<HTML lang=en>", HTML),
    "xml": (b"<?xml version='1.0'?><Error/>", HTML),
    "zip": (
        zip_archive(),
        "a zip archive (a PyTorch .pt file, perhaps); export or unpack the model first",
    ),
    "pickle 2": (pickle.dumps({"w": 1}, protocol=2), PICKLE),
    "pickle 5": (pickle.dumps({"w": 1}, protocol=5), PICKLE),
    "gguf": (b"GGUF\x03\x00\x00\x00", "a GGUF file of llama.cpp; onnxmem reads ONNX"),
    "ort": (
        b"\x18\x00\x00\x00ORTM\x00",
        "onnxruntime's own .ort format; keep the .onnx file that it was made from",
    ),
    "tflite": (
        b"\x1c\x00\x00\x00TFL3\x00",
        "a TensorFlow Lite model; convert it to ONNX first",
    ),
    "gzip": (gzip.compress(b"model"), "a gzip file; unpack it first"),
    "xz": (b"\xfd7zXZ\x00", "an xz file; unpack it first"),
    "bzip2": (b"BZh91AY", "a bzip2 file; unpack it first"),
    "zstd": (b"\x28\xb5\x2f\xfd\x00", "a zstd file; unpack it first"),
    "tar": (bytes(257) + b"ustar\x00", "a tar archive; unpack it first"),
    "hdf5": (b"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras); convert it to ONNX first"),
    "safetensors": (
        safetensors(),
        "a safetensors file: weights without a graph; export the model to ONNX",
    ),
    "png": (b"\x89PNG\r\n\x1a\n", "a PNG picture; check the path"),
    "pdf": (b"%PDF-1.7\n\xff", "a PDF document; check the path"),
    "elf": (b"\x7fELF\x02\x01", "a program (ELF); check the path"),
    "text": (b"import onnx\n\tprint('hello')\r\n", TEXT),
    "json": (b'{"graph": []}', TEXT),
}


@pytest.mark.parametrize(("data", "kind"), KINDS.values(), ids=KINDS)
def test_a_file_of_another_kind_is_reported_by_its_kind(data: bytes, kind: str) -> None:
    assert other_kind(data[:HEAD_BYTES]) == kind


def test_the_head_covers_the_farthest_signature() -> None:
    assert len(b"ustar") + 257 <= HEAD_BYTES


@pytest.mark.parametrize("ir_version", range(1, onnx.IR_VERSION + 1))
def test_a_model_of_any_ir_version_is_not_another_kind(ir_version: int) -> None:
    model = model_of("agraph (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.ir_version = ir_version
    assert other_kind(model.SerializeToString()[:HEAD_BYTES]) is None


def test_a_model_that_begins_with_its_graph_is_not_another_kind() -> None:
    model = model_of("agraph (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.ClearField("ir_version")
    model.ClearField("opset_import")
    assert other_kind(model.SerializeToString()) is None


def test_a_file_with_a_non_text_byte_may_be_a_model() -> None:
    assert other_kind(b"plain text") == TEXT
    assert other_kind(b"plain\x08text") is None
    assert other_kind(b"plain\xfftext") is None

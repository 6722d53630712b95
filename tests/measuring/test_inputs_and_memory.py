"""What comes before and beside a run: names, refusals, feeds, inputs files, copies, memory."""

import io
import os
import sys
import threading
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from fake_nvml import FakeNvml
from graphs import model_of
from models_on_disk import CONVNET
from onnx.numpy_helper import from_array, to_array

from onnxmem.children import running
from onnxmem.errors import ShapeError
from onnxmem.measuring import memory
from onnxmem.measuring.inputs import (
    InputsFileError,
    check_feeds,
    check_names,
    fed_values,
    feeds_of,
    read_headers,
    read_settings,
)
from onnxmem.measuring.run_request import Feed
from onnxmem.model.binding import Request
from onnxmem.model.building import BoundModel, Prepared, build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.input_values import InputValueError
from onnxmem.runtimes.onnxruntime.session_files import (
    RefusedError,
    has_own_names,
    name_nodes,
    refuse_data_elsewhere,
    refuse_other_dims,
    write_runnable,
)


def bound_of(text: str, request: Request | None = None) -> tuple[Prepared, BoundModel]:
    prepared = prepare(ModelFile("<text>", model_of(text), 0))
    return prepared, build(prepared, request or Request())


KEEPS_ITS_BATCH = """agraph (float[4,6] x) => (float[2,12] y) <int64[2] s = {2, 12}> {
    y = Reshape(x, s)
}"""


# Names of nodes.


def test_nodes_without_a_name_of_their_own_get_one() -> None:
    model = model_of(
        """agraph (float[2] x, bool c) => (float[2] y) {
            [Relu_0] a = Relu(x)
            b = Relu(a)
            [twice] d = Neg(b)
            [twice] e = Neg(d)
            y = If (c) <then_branch = t () => (float[2] f) { f = Relu(e) },
                        else_branch = l () => (float[2] g) { g = Neg(e) }>
        }"""
    )
    assert not has_own_names(model)
    name_nodes(model)
    assert has_own_names(model)
    assert [node.name for node in model.graph.node] == [
        "Relu_0",
        "Relu_1",
        "twice",
        "twice_0",
        "If_0",
    ]
    name_nodes(before := onnx.ModelProto.FromString(model.SerializeToString()))
    assert before == model


# Refusals.


def external(location: str) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name="w", data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


@pytest.mark.parametrize(
    "location",
    ["/etc/passwd", "../w.bin", "a/../../w.bin", "C:\\w.bin", "..\\w.bin", "link", "ring"],
)
def test_data_outside_the_models_folder_is_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "ring").symlink_to("ring")
    with pytest.raises(RefusedError, match="the data of 'w' is outside the model's folder"):
        refuse_data_elsewhere([external(location)], folder / "m.onnx")


def test_data_in_the_models_folder_is_not_refused(tmp_path: Path) -> None:
    inline = onnx.TensorProto(name="v")
    tensors = [inline, external("w.bin"), external("parts/w.bin"), external("")]
    refuse_data_elsewhere(tensors, tmp_path / "m.onnx")


def test_a_cache_may_link_the_model_and_its_data_to_one_place(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    for name in ("m.onnx", "w.bin"):
        (blobs / f"hash of {name}").touch()
        (snapshot / name).symlink_to(blobs / f"hash of {name}")
    refuse_data_elsewhere([external("w.bin")], snapshot / "m.onnx")


def test_a_dim_that_the_file_fixes_is_refused_but_for_the_batch() -> None:
    text = "agraph (float[2,3,N] x) => (float[2,3,N] y) { y = Relu(x) }"
    refuse_other_dims(*bound_of(text, Request(batch=5, dims={"N": 7})))
    with pytest.raises(
        RefusedError, match="the file fixes dim 1 of 'x' at 3; onnxruntime does not accept 4"
    ):
        refuse_other_dims(*bound_of(text, Request(shapes={"x": (2, 4, 7)})))


def test_a_batch_that_constants_keep_is_refused() -> None:
    with pytest.raises(RefusedError, match="the batch size is fixed at 4 by constants"):
        refuse_other_dims(*bound_of(KEEPS_ITS_BATCH, Request(batch=7)))


# Feeds.


def test_feeds_have_the_bound_shapes() -> None:
    _, bound = bound_of("agraph (float16[N,3] x) => (float16[N,3] y) { y = Relu(x) }", Request(5))
    assert feeds_of(bound) == (Feed("x", "float16", onnx.TensorProto.FLOAT16, (5, 3), 1),)


@pytest.mark.parametrize(("rows", "number"), [(1, 0), (2, 1)])
def test_an_index_is_one_that_the_table_has(rows: int, number: int) -> None:
    text = "agraph (int64[3] i) => (y) <float[%d,4] table> { y = Gather(table, i) }" % rows  # noqa: UP031
    _, bound = bound_of(text)
    assert [feed.number for feed in feeds_of(bound)] == [number]


def test_what_is_no_tensor_is_not_fed() -> None:
    _, bound = bound_of("agraph (seq(float[3]) s) => (int64 n) { n = SequenceLength(s) }")
    with pytest.raises(RefusedError, match="input 's' is not a tensor"):
        feeds_of(bound)


def test_given_values_are_fed_and_small_inputs_are_reported() -> None:
    text = """agraph (float[2] x, int64[3] n, bool c, int32[2000] many, string s) => (y) {
        y = Identity(x) }"""
    _, bound = bound_of(text)
    feeds = feeds_of(bound, {"n": (3, 5, 7), "x": (0.5,), "nobody": (1,)})
    assert [feed.elements for feed in feeds] == [(0.5,), (3, 5, 7), (), (), ()]
    assert fed_values(bound, feeds) == {"x": (0.5,), "n": (3, 5, 7), "c": (1,)}
    with pytest.raises(InputValueError):
        feeds_of(bound, {"c": (3,)})


def test_settings_are_read_from_a_file_of_inputs(tmp_path: Path) -> None:
    text = "agraph (float[2] x, int64[1,3] n, bool c, int32[2000] many) => (y) { y = Identity(x) }"
    _, bound = bound_of(text)
    arrays = {"x": np.ones(2, np.float32), "n": np.array([[3, 5, 7]]), "c": np.zeros((), bool)}
    whole = saved(tmp_path / "in.npz", **arrays, many=np.ones(2000, np.int32))
    assert read_settings(whole, bound) == {"n": (3, 5, 7), "c": (False,)}
    assert read_settings(saved(tmp_path / "some.npz", x=np.ones(2)), bound) == {}
    (tmp_path / "bad.npz").write_bytes(zipped("n.npy", b"garbage"))
    assert read_settings(str(tmp_path / "bad.npz"), bound) == {}


# Files of inputs.

FEEDS = (Feed("x", "float32", 1, (2, 3), 1), Feed("s", "string", 8, (1,), 1))


def saved(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


def test_arrays_that_fit_are_taken(tmp_path: Path) -> None:
    arrays = {"x": np.zeros((2, 3), np.float32), "s": np.array(["text"])}
    headers = read_headers(saved(tmp_path / "in.npz", **arrays))
    check_names(headers, ["x", "s"])
    check_feeds(headers, FEEDS)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 3), np.float64)}, "input 'x' is float32, the inputs file has float64"),
        ({"x": np.zeros((3, 2), np.float32)}, r"is \(2, 3\), the inputs file has \(3, 2\)"),
        ({"z": np.zeros(3)}, "the inputs file lacks 'x'"),
        ({"x": np.zeros(3), "z": np.zeros(3)}, "has 'z'; the inputs are 'x'"),
        ({"x": np.array([None])}, "pickled objects"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    path = saved(tmp_path / "in.npz", **arrays)
    with pytest.raises(InputsFileError, match=message):  # noqa: PT012 - each step may refuse
        headers = read_headers(path)
        check_names(headers, ["x"])
        check_feeds(headers, FEEDS[:1])


def zipped(name: str, data: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(name, data)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not a zip", "not a .npz file of arrays"),
        (zipped("x.txt", b"text"), "'x.txt' is not an array"),
        (zipped("x.npy", b"garbage"), "not a .npz file of arrays"),
        (zipped("x.npy", b"\x93NUMPY\x01\x00\x05\x00ab"), "not a .npz file of arrays"),
    ],
)
def test_what_is_no_file_of_arrays_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "in.npz"
    path.write_bytes(data)
    with pytest.raises(InputsFileError, match=message):
        read_headers(str(path))


def test_a_file_of_inputs_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InputsFileError, match="cannot be opened"):
        read_headers(str(tmp_path / "gone.npz"))


# Copies that run.


def written(tmp_path: Path, model: onnx.ModelProto, **more: object) -> onnx.ModelProto:
    source, folder = tmp_path / "source.onnx", tmp_path / "copy"
    folder.mkdir()
    onnx.save(model, source)
    arguments = {"shapes": {}, "batches": [], "weights": None, **more}
    reply = write_runnable(str(source), str(folder), **arguments)  # type: ignore[arg-type]
    return onnx.load(str(reply["path"]))


def test_a_copy_has_its_weights_and_names(tmp_path: Path) -> None:
    model = model_of(CONVNET)
    for node in model.graph.node:
        node.name = ""
    copy = written(tmp_path, model)
    assert has_own_names(copy)
    assert {t.name: to_array(t).shape for t in copy.graph.initializer}["weight"] == (10, 512)


def test_a_copy_keeps_the_weights_that_are_there(tmp_path: Path) -> None:
    model = model_of(
        "agraph (float[3] x) => (float[3] y) <float[3] w = {3, 5, 7}> { y = Add(x, w) }"
    )
    copy = written(tmp_path, model)
    assert to_array(copy.graph.initializer[0]).tolist() == [3, 5, 7]


@pytest.mark.parametrize("is_raw", [True, False])
def test_a_copy_has_its_weights_in_the_file_or_beside_it(tmp_path: Path, is_raw: bool) -> None:
    values = ", ".join(map(str, range(509)))
    model = model_of(
        f"agraph (float[509] x) => (float[509] y) <float[509] w = {{{values}}}, float[3] b = "
        "{3, 5, 7}, float[307] absent> { h = Add(x, w) i = Identity(b) j = Identity(absent) "
        "y = Identity(h) }"
    )
    if is_raw:  # as exporters write it
        raw = from_array(np.arange(509, dtype=np.float32), "w")
        model.graph.initializer[0].CopyFrom(raw)
    assert bool(model.graph.initializer[0].float_data) is not is_raw
    for storage, elsewhere in (("external", {"w", "absent"}), ("inline", set())):
        folder = tmp_path / storage
        folder.mkdir()
        written(folder, model, weights=storage)
        copy = onnx.load(folder / "copy" / "model.onnx", load_external_data=False)
        outside = {t.name for t in copy.graph.initializer if t.data_location}
        assert outside == elsewhere
        whole = onnx.load(folder / "copy" / "model.onnx")
        (weight,) = (t for t in whole.graph.initializer if t.name == "w")
        assert to_array(weight).tolist() == [*range(509)]


FIXED = """agraph (float[2,6,N] x) => (float[2,3,2,N] y)
    <int64[4] s = {2, 3, 2, -1}, float[2,1,1,1] each> {
    h = Reshape(x, s)
    y = Add(h, each)
}"""


def test_a_copy_may_have_another_batch_than_the_file(tmp_path: Path) -> None:
    copy = written(tmp_path, model_of(FIXED), shapes={"x": [5, 6, 7]}, batches=[2, 5])
    dims = [d.dim_value or d.dim_param for d in copy.graph.input[0].type.tensor_type.shape.dim]
    assert dims == [5, 6, "N"]
    target = next(t for t in copy.graph.initializer if t.name == copy.graph.node[0].input[1])
    assert to_array(target).tolist() == [5, 3, 2, 7]  # written out, the symbol too
    grown = next(t for t in copy.graph.initializer if t.name == copy.graph.node[1].input[1])
    assert to_array(grown).shape == (5, 1, 1, 1)


def test_a_copy_at_a_batch_that_constants_keep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="constants fix the batch at 4: 'y'"):
        written(tmp_path, model_of(KEEPS_ITS_BATCH), shapes={"x": [7, 6]}, batches=[4, 7])


# Memory of the machine, of the process, of a GPU.


def test_the_smaller_of_machine_and_container_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo, group = tmp_path / "meminfo", tmp_path / "memory.max"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:       7 kB\n")
    monkeypatch.setattr(running, "_MEMINFO", meminfo)
    monkeypatch.setattr(running, "_GROUP_LIMITS", (group, tmp_path / "gone"))
    group.write_text("max\n")
    assert running.available_bytes() == 7 * 1024
    group.write_text("5000\n")
    assert running.available_bytes() == 5000
    meminfo.unlink()
    group.unlink()
    assert running.available_bytes() is None


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux alone says it there")
def test_a_process_reads_its_resident_memory() -> None:
    resident, peak = memory.resident_bytes(), memory.peak_resident_bytes()
    assert resident is not None
    assert peak is not None
    assert peak > 10_000_000


def test_without_proc_the_process_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_PROCESS", str(tmp_path / "proc"))
    assert memory.resident_bytes() is None
    assert not memory.restart_peak()


def test_the_highest_of_what_was_seen_is_the_peak() -> None:
    seen, is_seen = iter([3, 11, 7]), threading.Event()

    def read() -> int:
        size = next(seen, 5)
        if size == 5:
            is_seen.set()
        return size

    with memory.sampled(read) as sampler:
        assert is_seen.wait(10)
    assert sampler.peak_bytes == 11


@pytest.mark.parametrize(("visible", "used"), [(None, 13), ("1,0", 17), ("GPU-a", 19)])
def test_the_gpu_read_is_the_first_that_is_visible(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, used: int
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(has_driver=True))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", visible)
    read = memory.device_reader()
    assert read is not None
    assert read() == used


def test_without_nvml_or_driver_no_gpu_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert memory.device_reader() is None
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(has_driver=False))
    assert memory.device_reader() is None


def test_the_utilization_is_the_mean_since_it_was_restarted() -> None:
    percents = iter([100, 10, 20, 60])
    sampler = memory.PeakSampler(lambda: 7, lambda: next(percents))
    sampler.sample()
    assert sampler.peak_percent == 100
    sampler.restart_utilization()
    for _ in range(3):
        sampler.sample()
    assert (sampler.mean_percent, sampler.peak_percent) == (30, 60)


def test_how_busy_a_gpu_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(has_driver=True))
    read = memory.utilization_reader()
    assert read is not None
    assert read() == 37
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert memory.utilization_reader() is None
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(has_driver=False))
    assert memory.utilization_reader() is None

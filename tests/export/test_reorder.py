"""``--order`` and ``onnxmem reorder``: the copy runs in the new order and is the same otherwise."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import model_of
from paths import MODELS

from onnxmem import Settings, analyze
from onnxmem.cli import main
from onnxmem.cli.rewrite import write_copy
from onnxmem.decisions.advise.advising import advised
from onnxmem.errors import UsageError
from onnxmem.model.files import FileWindow

TEXT = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 5] x) => (float[n, 5] y) <float[1, 5] w = {2, 3, 5, 7, 11}> {
        wide = Concat <axis = 1> (x, x, x, x)
        wider = Concat <axis = 1> (x, x, x, x, x)
        narrow = Slice (wide, one, six, one)
        narrower = Slice (wider, one, six, one)
        scaled = Mul (narrow, w)
        y = Sum (x, scaled, narrower)
        one = Constant <value_ints = [1]> ()
        six = Constant <value_ints = [6]> ()
    }
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    proto = model_of(TEXT)
    nodes = [proto.graph.node[i] for i in (6, 7, 0, 1, 2, 3, 4, 5)]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)
    onnx.save(proto, path)
    return path


def run(*words: object) -> int:
    return main([str(word) for word in words])


def test_a_reordered_copy_has_the_same_content(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy.onnx"
    assert run("reorder", model, "-o", copy, "--batch", 3) == 0
    captured = capsys.readouterr()
    assert "optimal" in captured.out
    assert "saved" in captured.out
    assert f"Wrote {copy}" in captured.err
    before, after = onnx.load(model), onnx.load(copy)
    onnx.checker.check_model(after, full_check=True)
    assert model.stat().st_size == copy.stat().st_size
    assert after.graph.initializer == before.graph.initializer
    assert [n.output[0] for n in after.graph.node] != [n.output[0] for n in before.graph.node]
    best = analyze(str(model), batch=3, order="best")
    plain = analyze(str(copy), batch=3)
    assert plain.activations.in_place_peak_bytes == best.activations.in_place_peak_bytes
    file_peak = analyze(str(model), batch=3).activations.in_place_peak_bytes
    assert best.schedule is not None
    assert best.schedule.file_in_place_peak_bytes == file_peak
    assert best.schedule.peak_bytes < best.schedule.file_in_place_peak_bytes


@pytest.mark.measure
def test_onnxruntime_gives_the_same_figures_for_the_copy(model: Path, tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    copy = tmp_path / "copy.onnx"
    assert run("reorder", model, "-o", copy, "-q") == 0
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    outputs = [
        ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})
        for path in (model, copy)
    ]
    np.testing.assert_array_equal(outputs[0][0], outputs[1][0])


def test_no_copy_is_written_without_a_gain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chain.onnx"
    onnx.save(model_of("g (float[3] x) => (float[3] y) { a = Relu (x) y = Sigmoid (a) }"), path)
    assert run("reorder", path) == 0
    assert run("reorder", path, "-o", tmp_path / "copy.onnx") == 0
    captured = capsys.readouterr()
    assert "nothing" in captured.out
    assert captured.err.endswith("not written: nothing is gained\n")
    assert not (tmp_path / "copy.onnx").exists()


def test_external_weights_are_read_beside_the_copy(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = onnx.load(model)
    weight = proto.graph.initializer[0]
    weight.ClearField("float_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="absent.bin")
    onnx.save(proto, model)
    (tmp_path / "other").mkdir()
    assert run("reorder", model, "-o", tmp_path / "copy.onnx") == 0
    assert "beside itself" not in capsys.readouterr().err
    copy = tmp_path / "other" / "copy.onnx"
    assert run("reorder", model, "-o", copy) == 0
    assert "beside itself" in capsys.readouterr().err
    after = onnx.load(copy, load_external_data=False).graph.initializer[0]
    assert after.external_data[0].value == "absent.bin"


def test_a_model_that_cannot_be_reordered_is_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy.onnx"
    assert run("reorder", tmp_path / "absent.onnx", "-o", copy) == 2
    assert run("reorder", model, "-o", model, "--force") == 2
    graph = onnx.load(model).graph.SerializeToString()
    parts = onnx.ModelProto(ir_version=8, opset_import=[onnx.helper.make_opsetid("", 17)])
    field = b"\x3a" + bytes([len(graph) & 0x7F | 0x80, len(graph) >> 7]) + graph
    model.write_bytes(parts.SerializeToString() + field + b"\x3a\x00")
    capsys.readouterr()
    assert run("reorder", model, "-o", copy) == 3
    captured = capsys.readouterr()
    assert "several parts" in captured.err
    assert captured.err.count("\n") == 1
    assert not copy.exists()


def test_nodes_of_local_functions_are_not_reordered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[1, 5] x) => (float[1, 5] y) {
            narrow = own.there_and_back (x)
            wide = Concat <axis = 1> (x, x, x, x)
            wider = own.there_and_back (narrow)
            back = ReduceSum (wide)
            y = Sum (wider, back)
        }
        <domain: "own", opset_import: ["" : 17]>
        there_and_back (a) => (c) {
            b = Concat <axis = 1> (a, a, a)
            c = ReduceSum (b)
        }
    """)
    path, copy = tmp_path / "model.onnx", tmp_path / "copy.onnx"
    onnx.save(proto, path)
    assert run("reorder", path, "-o", copy) == 3
    assert "inline" in capsys.readouterr().err


def test_a_worse_order_of_onnxruntimes_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = MODELS
    assert run("reorder", models / "mobilenet_v2.int8.onnx", "-o", tmp_path / "copy.onnx") == 0
    assert "onnxruntime by default takes more of the copy" in capsys.readouterr().err


@pytest.mark.parametrize("order", ["best", "onnxruntime"])
def test_an_order_is_reported_with_its_figures(
    order: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model, "--order", order) == 0
    assert f"order {order}" in (text := capsys.readouterr().out)
    assert "the file's order" in text
    assert run(model, "--order", order, "--json") == 0
    row = json.loads(capsys.readouterr().out)["models"][0]
    assert row["settings"]["order"] == order
    found = row["activations"]["order"]
    assert found["lower_bound_bytes"] <= row["activations"]["in_place_peak_bytes"]
    assert found["is_proven"] is (order == "best")
    assert run(model, "--json") == 0
    plain = json.loads(capsys.readouterr().out)["models"][0]
    assert plain["settings"]["order"] == "file"
    assert plain["activations"]["order"] is None
    assert plain["activations"]["in_place_peak_bytes"] == found["file_in_place_peak_bytes"]


def test_training_and_unknown_orders_are_rejected() -> None:
    with pytest.raises(UsageError, match="a training step runs in the order of the file"):
        Settings(train=True, order="best")
    with pytest.raises(UsageError, match="order 'best of' is not known"):
        Settings(order="best of")


def test_a_better_order_is_suggested(model: Path) -> None:
    plain, best = analyze(str(model)), analyze(str(model), order="best")
    proposals = {each.suggestion.id: each for each in advised(plain.request).proposals}
    assert proposals["order"].after_bytes == best.total_bytes
    assert all(each.suggestion.id != "order" for each in advised(best.request).proposals)


def test_a_copy_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"0123456789")
    with source.open("rb") as file:
        window = FileWindow(file.fileno(), 10)
        write_copy([slice(5, 10), b"-", slice(0, 5)], window, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b"56789-01234"
        (tmp_path / "taken").mkdir()
        with pytest.raises(UsageError, match="cannot be written"):
            write_copy([b"x"], window, tmp_path / "taken")
    assert {path.name for path in tmp_path.iterdir()} == {"source", "copy", "taken"}

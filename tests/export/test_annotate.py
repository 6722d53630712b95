"""``onnxmem annotate``: figures in the file, and nothing else changed."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest
from export.small_exports import IF_MODEL, hostile_model, saved
from graphs import model_of
from models_on_disk import MYSTERY, write_model
from paths import DATA

import onnxmem
from onnxmem.cli import main
from onnxmem.errors import ModelFileError
from onnxmem.export import rewriting
from onnxmem.export.rewriting import annotated

READER = DATA / "netron" / "read.mjs"
INLINE = """<ir_version: 10, opset_import: ["" : 21], producer_name: "tests">
g (float[N,3] x) => (float[N,5] y) <float[3,5] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6}, float[N,5] h> {
    [product] h = MatMul(x, w)
    [bend] y = Relu(h)
}"""


def run(*words: str) -> int:
    return main(["annotate", *words])


def props(holder: Any) -> dict[str, str]:  # noqa: ANN401 - several messages have them
    return {entry.key: entry.value for entry in holder.metadata_props}


def inline_model(folder: Path) -> str:
    model = onnx.parser.parse_model(INLINE)
    model.metadata_props.add(key="author", value="someone")
    model.graph.node[0].metadata_props.add(key="origin", value="here")
    return saved(model, folder / "m.onnx")


def without_figures(model: onnx.ModelProto) -> bytes:
    """The model without annotations."""
    graph = model.graph
    holders: tuple[Any, ...] = (model, *graph.node, *graph.input, *graph.output, *graph.value_info)
    for holder in holders:
        retained = [
            entry for entry in holder.metadata_props if not entry.key.startswith("onnxmem.")
        ]
        del holder.metadata_props[:]
        holder.metadata_props.extend(retained)
    return model.SerializeToString(deterministic=True)


def test_annotation_adds_figures_and_changes_nothing_else(tmp_path: Path) -> None:
    path = inline_model(tmp_path)
    target = tmp_path / "out.onnx"
    assert run(path, "-o", str(target), "--batch", "7") == 0
    model = onnx.load(target)
    onnx.checker.check_model(model, full_check=True)
    analysis = onnxmem.analyze(path, batch=7)
    figures = props(model)
    assert figures["author"] == "someone"
    assert figures["onnxmem.total_bytes"] == str(analysis.total_bytes)
    assert figures["onnxmem.assumes"] == "inference, batch 7, graph raw"
    assert props(model.graph.node[0]) == {
        "origin": "here",
        "onnxmem.step": "0",
        "onnxmem.output_bytes": str(7 * 5 * 4),
        "onnxmem.live_bytes": str(7 * 5 * 4),
        "onnxmem.weight_bytes": str(15 * 4),
        "onnxmem.macs": str(7 * 15),
    }
    assert props(model.graph.input[0]) == {"onnxmem.bytes": str(7 * 3 * 4)}
    assert props(model.graph.value_info[0]) == {"onnxmem.bytes": str(7 * 5 * 4)}
    before = onnx.load(path).SerializeToString(deterministic=True)
    assert without_figures(model) == before


def test_a_second_annotation_replaces_the_first(tmp_path: Path) -> None:
    path = inline_model(tmp_path)
    first, second, again = (str(tmp_path / name) for name in ("1.onnx", "2.onnx", "3.onnx"))
    assert run(path, "-o", first, "--batch", "7") == 0
    assert run(first, "-o", second, "--batch", "7") == 0
    assert Path(first).read_bytes() == Path(second).read_bytes()
    assert run(first, "-o", again, "--batch", "2", "--train") == 0
    figures = props(onnx.load(again))
    assert figures["onnxmem.batch"] == "2"
    assert int(figures["onnxmem.training.peak_bytes"]) > 0
    assert len(onnx.load(again).metadata_props) == len(figures)


@pytest.mark.measure
def test_an_annotated_model_gives_the_same_outputs(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    numpy = pytest.importorskip("numpy")
    path = inline_model(tmp_path)
    target = str(tmp_path / "out.onnx")
    assert run(path, "-o", target) == 0
    fed = {"x": numpy.arange(6, dtype="float32").reshape(2, 3)}
    before, after = (
        ort.InferenceSession(name, providers=["CPUExecutionProvider"]).run(None, fed)[0]
        for name in (path, target)
    )
    assert (before == after).all()


def test_netron_shows_the_figures(tmp_path: Path) -> None:
    netron = pytest.importorskip("netron")
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    folder = tmp_path / "netron"
    folder.mkdir()
    for name in ("onnx", "onnx-proto", "protobuf", "text", "base"):
        shutil.copy(Path(netron.__file__).parent / f"{name}.js", folder)
    shutil.copy(Path(netron.__file__).parent / "onnx-metadata.json", folder)
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    target = str(tmp_path / "out.onnx")
    assert run(inline_model(tmp_path), "-o", target, "--batch", "7") == 0
    words = [node, str(READER), str(folder), target]
    made = subprocess.run(words, capture_output=True, check=True, encoding="utf-8")
    shown = json.loads(made.stdout)
    assert shown["model"]["onnxmem.batch"] == "7"
    names = dict(shown["nodes"])
    assert names["product"]["onnxmem.macs"] == str(7 * 15)
    assert shown["inputs"] == [["x", {"onnxmem.bytes": str(7 * 3 * 4)}]]


def test_external_weights_are_still_referenced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / write_model(tmp_path / "m.onnx"))
    beside, elsewhere = tmp_path / "a.onnx", tmp_path / "folder" / "a.onnx"
    elsewhere.parent.mkdir()
    assert run(path, "-o", str(beside)) == 0
    assert capsys.readouterr().err == f"Wrote {beside}: figures of the model and of 5 nodes\n"
    assert run(path, "-o", str(elsewhere)) == 0
    assert "looks for them beside itself" in capsys.readouterr().err
    assert run(path, "-o", str(elsewhere), "--force", "-q") == 0
    assert capsys.readouterr().err == ""
    model = onnx.load(elsewhere, load_external_data=False)
    before = onnx.load(path, load_external_data=False)
    assert without_figures(model) == before.SerializeToString(deterministic=True)


@pytest.mark.parametrize("text", [IF_MODEL, MYSTERY])
def test_nodes_in_subgraphs_and_unknown_values_have_no_figure(text: str, tmp_path: Path) -> None:
    path = str(tmp_path / write_model(tmp_path / "m.onnx", text))
    target = tmp_path / "out.onnx"
    assert run(path, "-o", str(target)) == 0
    nodes = onnx.load(target, load_external_data=False).graph.node
    if text == MYSTERY:
        assert set(props(nodes[1])) == {"onnxmem.step", "onnxmem.live_bytes"}
    else:
        assert props(nodes[1])["onnxmem.step"] == "1"
        inside = nodes[1].attribute[0].g.node
        assert [props(node) for node in inside] == [{} for _ in inside]


def test_constants_and_calls_have_no_figure(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
    g (float[3] x) => (float[3] y) { c = Constant <value_floats = [1.0, 2.0, 3.0]> ()
        h = own.twice(x) y = Add(h, c) }
    <domain: "own", opset_import: ["" : 21]> twice (x) => (z) { z = Add(x, x) }"""
    path = saved(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    target = tmp_path / "out.onnx"
    assert run(path, "-o", str(target)) == 0
    constant, call, add = onnx.load(target).graph.node
    assert (props(constant), props(call)) == ({}, {})
    assert props(add)["onnxmem.output_bytes"] == "12"


def test_names_are_unchanged_and_figures_are_plain_numbers(tmp_path: Path) -> None:
    path = saved(hostile_model(), tmp_path / "m.onnx")
    target = tmp_path / "out.onnx"
    assert run(path, "-o", str(target)) == 0
    model = onnx.load(target)
    assert all(value.isprintable() for value in props(model).values())
    assert without_figures(model) == onnx.load(path).SerializeToString(deterministic=True)


def test_unknown_fields_are_preserved(tmp_path: Path) -> None:
    fixed = bytes([0xF9, 0x3E, *range(8), 0xFD, 0x3E, *range(4)])  # field 1007 of 8 and of 4 bytes
    path = Path(inline_model(tmp_path))
    path.write_bytes(path.read_bytes() + fixed)
    target = tmp_path / "out.onnx"
    assert run(str(path), "-o", str(target)) == 0
    assert fixed in target.read_bytes()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("m.onnx",), "name its file: -o FILE.onnx"),
        (("m.onnx", "-o", "m.onnx", "--force"), "is a model"),
        (("m.onnx", "-o", "there.onnx"), "exists; pass --force"),
        (("m.onnx", "there.onnx", "-o", "x"), "annotate writes one at a time"),
        (("absent.onnx", "-o", "x"), "no such file"),
        (("m.onnx", "-o", "folder", "--force"), "folder: is a folder"),
    ],
)
def test_wrong_usage_is_one_line(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    inline_model(tmp_path)
    (tmp_path / "there.onnx").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    before = sorted(path.name for path in tmp_path.iterdir())
    assert run(*words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_file_that_would_be_too_large_or_has_changed_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Path(inline_model(tmp_path)).read_bytes()
    analysis = onnxmem.analyze(data)
    with pytest.raises(ModelFileError, match="changed while it was read"):
        annotated(data + b"\x82", analysis)
    with pytest.raises(ModelFileError, match="changed while it was read"):
        annotated(data[:-1], analysis)
    monkeypatch.setattr(rewriting, "MOST_BYTES", len(data))
    with pytest.raises(ModelFileError, match="over 2 GiB"):
        annotated(data, analysis)


def test_large_payloads_are_copied_without_reading_them_into_memory(tmp_path: Path) -> None:
    model = model_of("g (float[2] x) => (float[2] y) { y = Exp(x) }")
    model.graph.initializer.add(name="unread", data_type=1, dims=[1 << 20], raw_data=bytes(1 << 22))
    path = saved(model, tmp_path / "m.onnx")
    analysis = onnxmem.analyze(path)
    made = annotated(Path(path).read_bytes(), analysis)
    assert sum(len(piece) for piece in made.pieces if isinstance(piece, bytes)) < 10_000
    target = tmp_path / "out.onnx"
    assert run(path, "-o", str(target)) == 0
    assert without_figures(onnx.load(target)) == model.SerializeToString(deterministic=True)

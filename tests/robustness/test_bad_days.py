"""What is not lost, does not hang, and is no fault of onnxmem: outputs, special files, names."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import networkx as nx
import numpy as np
import onnx
import pytest
from hostile.running import MODEL
from models_on_disk import write_model

from onnxmem.cli import main
from onnxmem.collection.sources import model_names
from onnxmem.decisions.check.budgets import matches
from onnxmem.files import opened_to_its_end
from onnxmem.measuring.inputs import read_headers
from onnxmem.model.wire import without_payloads

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.timeout(60)
resource = pytest.importorskip("resource", reason="limits as POSIX has them")

OUTPUTS = (
    ("--json", "-o", "old.out"),
    ("--format", "jsonl", "-o", "old.out"),
    ("--html", "old.out"),
    ("export", "--format", "chrome", "-o", "old.out"),
    ("annotate", "-o", "old.out"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a sound model."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / MODEL)
    return tmp_path


@contextmanager
def files_of_at_most(limit_bytes: int) -> Iterator[None]:
    """Let this process write no larger file, nor compiled modules, which Python would truncate."""
    is_compiling, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = is_compiling


def with_model(words: Sequence[str]) -> list[str]:
    command = [words[0]] if not words[0].startswith("-") else []
    return [*command, MODEL, *words[len(command) :]]


@pytest.mark.parametrize("words", OUTPUTS, ids=" ".join)
def test_an_older_result_survives_a_full_disk(
    folder: Path, words: Sequence[str], capsys: Capture
) -> None:
    old = folder / "old.out"
    old.write_bytes(b"o" * 8000)
    with files_of_at_most(64):
        code = main([*with_model(words), "--force"])
    err = capsys.readouterr().err
    assert (code, err.count("\n")) == (2, 1), err
    assert "old.out: cannot be written: File too large" in err
    assert old.read_bytes() == b"o" * 8000
    assert sorted(each.name for each in folder.iterdir()) == ["old.out", MODEL]


def test_the_target_of_a_link_is_replaced(folder: Path) -> None:
    (folder / "target").write_text("old")
    (folder / "link").symlink_to("target")
    assert main([MODEL, "--json", "-o", "link", "--force"]) == 0
    assert (folder / "link").is_symlink()
    assert json.loads((folder / "target").read_text())["schema"] == "onnxmem.report"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("words", OUTPUTS, ids=" ".join)
def test_a_device_is_written_to_without_force(words: Sequence[str], capsys: Capture) -> None:
    names = [os.devnull if word == "old.out" else word for word in with_model(words)]
    assert main([*names, "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize("flags", [(), ("--cache", "rows")], ids=["plain", "cache"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.onnx", "missing_file: no such file"),
        ("pipe.onnx", "a FIFO"),
        ("/dev/zero", "a character device"),
        ("", "the name is empty"),
        ("n" * 300, "File name too long"),
        ("loop.onnx", "cannot be opened"),
    ],
)
def test_a_name_of_no_model_costs_its_own_row(
    folder: Path, name: str, message: str, flags: Sequence[str], capsys: Capture
) -> None:
    os.mkfifo(folder / "pipe.onnx")
    (folder / "loop.onnx").symlink_to("loop.onnx")
    code = main([MODEL, name, "--format", "jsonl", *flags])
    out, err = capsys.readouterr()
    rows = [json.loads(line)["status"] for line in out.splitlines()]
    assert rows == ["ok", "error"]
    assert message in err
    assert err.count("\n") == 1
    assert code in {2, 3}


def test_a_list_with_a_name_that_is_too_long_keeps_the_other_rows(
    folder: Path, capsys: Capture
) -> None:
    (folder / "list").write_text(f"{MODEL}\n{'n' * 300}\n{MODEL}\n")
    code = main(["@list", "--format", "jsonl"])
    out, err = capsys.readouterr()
    assert [json.loads(line)["status"] for line in out.splitlines()] == ["ok", "error", "ok"]
    assert (code, err.count("\n")) == (2, 1)


# Models


@pytest.mark.parametrize(
    "ends",
    [("-1e308", "1e308", "1"), ("0", "1e308", "1e-308"), ("0", "1e308", "1"), ("1e308", "0", "-1")],
    ids=" ".join,
)
@pytest.mark.parametrize("elem_type", ["double", "float"])
@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_a_range_of_huge_floats_is_unknown(
    folder: Path, ends: Sequence[str], elem_type: str, domain: str, capsys: Capture
) -> None:
    numbers = [
        onnx.helper.make_tensor("", _TYPES[elem_type], [], [_of(elem_type, end)]) for end in ends
    ]
    nodes = [
        onnx.helper.make_node("Constant", [], [f"c{index}"], value=number)
        for index, number in enumerate(numbers)
    ]
    nodes.append(onnx.helper.make_node("Range", ["c0", "c1", "c2"], ["y"], domain=domain))
    output = onnx.helper.make_tensor_value_info("y", _TYPES[elem_type], ["n"])
    graph = onnx.helper.make_graph(nodes, "ranges", [], [output])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "r.onnx")
    assert main(["r.onnx", "--json", "--train"]) in {0, 3}
    assert "internal" not in capsys.readouterr().err


_TYPES = {"double": onnx.TensorProto.DOUBLE, "float": onnx.TensorProto.FLOAT}


def _of(elem_type: str, text: str) -> float:
    return float(text) if elem_type == "double" else float(text.replace("308", "38"))


# Folders and patterns


@pytest.mark.timeout(20)
def test_a_pattern_finds_each_real_folder_once(folder: Path) -> None:
    (folder / "deep" / "deeper").mkdir(parents=True)
    write_model(folder / "deep" / "deeper" / "net.onnx")
    for link in ("self", "deep/self", "deep/deeper/a", "deep/deeper/b"):
        (folder / link).symlink_to(folder)
    (folder / "deep" / ".onnxmem-abcd1234.part").touch()
    assert model_names(["**/*.onnx"]) == ("deep/deeper/net.onnx", MODEL)
    assert model_names(["./**/net.onnx"]) == ("./deep/deeper/net.onnx",)
    assert model_names(["**/deep/**/*.onnx"]) == ("deep/deeper/net.onnx", f"deep/self/{MODEL}")
    assert model_names(["de*/"]) == model_names(["d*p/"]) == ("deep/",)
    assert model_names(["*/deeper/*"]) == ("deep/deeper/a", "deep/deeper/b", "deep/deeper/net.onnx")
    assert model_names(["self/*.onnx"]) == (f"self/{MODEL}",)
    assert model_names(["deep/.*"]) == ("deep/.*",)


@pytest.mark.timeout(20)
def test_a_budget_s_pattern_is_matched_in_linear_time() -> None:
    path = "a/" * 2000 + "net.onnx"
    assert not matches("**/a/" * 12 + "other.onnx", path)
    assert matches("**/a/" * 12 + "*.onnx", path)
    assert not matches("a*" * 30 + "b", "a" * 4000)


@pytest.mark.parametrize(
    "words",
    [
        ("--json",),
        ("fit", "--device", "1GiB"),
        ("export", "--format", "chrome"),
        ("check", "--budget-peak", "1GiB"),
        ("explain", "weights"),
        ("reorder",),
    ],
    ids=" ".join,
)
def test_what_follows_two_hyphens_is_a_name(
    folder: Path, words: Sequence[str], capsys: Capture
) -> None:
    write_model(folder / "-dash.onnx")
    assert main([*words, "--", "-dash.onnx"]) == 0
    assert "-dash.onnx" in capsys.readouterr().out


# What a model holds


def test_a_document_in_a_model_is_not_read(folder: Path) -> None:
    model = onnx.load(folder / MODEL, load_external_data=False)
    text = "d" * 2**20
    for place in (model, model.graph, model.graph.node[0], model.graph.node[0].attribute[0]):
        place.doc_string = text
    for named in (model.graph.input[0], model.graph.output[0], model.graph.initializer[0]):
        named.doc_string = text
    model.functions.add(name="f", domain="d", doc_string=text).node.add(op_type="Relu")
    assert len(without_payloads(model.SerializeToString())) < 2**16


def test_graphml_has_strings_for_numbers_beyond_a_long(folder: Path, capsys: Capture) -> None:
    text = f"agraph (float[{2**40},{2**40}] x) => (float[{2**40},{2**40}] y) {{ y = Relu(x) }}"
    write_model(folder / "wide.onnx", text)
    assert main(["export", "wide.onnx", "--format", "graphml"]) == 0
    graph = nx.parse_graphml(capsys.readouterr().out)
    assert graph.nodes["n0"]["output_bytes"] == str(4 * 2**80)
    assert graph.nodes["n0"]["step"] == 0


def test_a_growing_file_ends_where_it_ended_when_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "grows"
    path.write_bytes(b"12345")
    with opened_to_its_end(str(path)) as file:
        os.truncate(path, 2**20)
        assert file.read() == b"12345"
        assert file.seek(-2, os.SEEK_END) == 3
        assert file.read() == b"45"
        assert file.seek(1) == 1
        assert file.read(2) == b"23"
        with pytest.raises(OSError, match="Invalid argument"):
            file.seek(-6, os.SEEK_END)
    assert file.closed


def test_an_inputs_file_that_grows_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "inputs.npz"
    np.savez(path, x=np.zeros(7, np.float32))
    size_bytes = path.stat().st_size
    with path.open("ab") as growing, opened_to_its_end(str(path)) as file:
        growing.write(bytes(2**20))
        growing.flush()
        with np.load(file) as arrays:
            assert arrays["x"].shape == (7,)
    os.truncate(path, size_bytes)
    assert read_headers(str(path))["x"].shape == (7,)

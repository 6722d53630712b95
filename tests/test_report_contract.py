"""The JSON report against its schema, and its figures against the analysis."""

import json
from importlib.resources import files
from pathlib import Path

import pytest
from golden_text import assert_golden
from jsonschema import Draft202012Validator
from models_on_disk import HOSTILE, MYSTERY, write_hostile_model, write_model

from onnxmem import Analysis, analyze
from onnxmem.report.contract import as_json, report
from onnxmem.rows import KEYS, Failure

SCHEMA = json.loads(
    (files("onnxmem.report") / "schema" / "report-1.0.schema.json").read_text(encoding="utf-8")
)


def closed(schema: dict[str, object]) -> dict[str, object]:
    """The schema, but without leave to add keys: every key written must be described."""
    within = {
        key: closed(value) if isinstance(value, dict) else value for key, value in schema.items()
    }
    return within | ({"additionalProperties": False} if "required" in schema else {})


def validated(*entries: Analysis | Failure, with_layers: bool = False) -> list[dict[str, object]]:
    """The rows of a report that the schema allows, in its open and in its closed form."""
    written = json.loads(as_json(entries, with_layers=with_layers))
    for schema in (SCHEMA, closed(SCHEMA)):
        Draft202012Validator(schema).validate(written)
    rows: list[dict[str, object]] = written["models"]
    return rows


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_every_key_of_a_row_is_required_and_described() -> None:
    row = SCHEMA["$defs"]["row"]
    assert tuple(row["required"]) == tuple(row["properties"]) == KEYS


def test_inference(folder: Path) -> None:
    path = write_model(folder / "net.onnx")
    (row,) = validated(analyze(path))
    assert tuple(row) == KEYS
    assert (row["status"], row["error"], row["training"], row["layers"]) == ("ok", None, None, None)


def test_everything_asked_for(folder: Path) -> None:
    path = write_model(folder / "net.onnx")
    analysis = analyze(
        path, batch=128, train=True, budget_bytes=8 * 2**20, shapes={}, optimizer="momentum"
    )
    validated(analysis, with_layers=True)
    assert_golden(as_json([analysis], with_layers=True), "training.json")


def test_a_partial_row(folder: Path) -> None:
    path = write_model(folder / "mystery.onnx", MYSTERY)
    (row,) = validated(analyze(path, train=True), with_layers=True)
    assert row["status"] == "partial"
    assert row["coverage"] == {
        "nodes": 2,
        "assumed_nodes": 1,
        "unknown_tensors": 1,
        "assumed_node_names": ["strange"],
        "unknown_tensor_names": ["y"],
    }


def test_no_batch_fits(folder: Path) -> None:
    path = write_model(folder / "net.onnx")
    (row,) = validated(analyze(path, budget_bytes=0))
    limit = row["max_batch"]
    assert isinstance(limit, dict)
    assert (limit["batch"], limit["peak_bytes"]) == (0, None)


def test_a_failure_is_a_row_of_nulls() -> None:
    (row,) = validated(Failure("gone.onnx", "missing_file", "no such file; check the path"))
    assert tuple(row) == KEYS
    assert row["error"] == {"code": "missing_file", "message": "no such file; check the path"}
    assert {key for key, value in row.items() if value is not None} == {"path", "status", "error"}


def test_rows_stand_in_the_order_asked(folder: Path) -> None:
    path = write_model(folder / "net.onnx")
    gone = Failure("gone.onnx", "missing_file", "no such file")
    rows = validated(gone, analyze(path), gone)
    assert [row["path"] for row in rows] == ["gone.onnx", "net.onnx", "gone.onnx"]


def test_a_path_is_escaped_and_json_is_ascii(folder: Path) -> None:
    (row,) = validated(Failure("a\x1b\udce9.onnx", "missing_file", "no such file"))
    assert row["path"] == r"a\x1b\xe9.onnx"
    analysis = analyze(write_hostile_model(folder / "net.onnx"))
    text = as_json([analysis], with_layers=True)
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    (row,) = json.loads(text)["models"]
    assert row["activations"]["peak_node"].endswith(HOSTILE)


def test_the_row_of_an_analysis_is_its_dict(folder: Path) -> None:
    analysis = analyze(write_model(folder / "net.onnx"))
    assert report([analysis])["models"] == [analysis.to_dict()]
    assert report([analysis], with_layers=True)["models"] == [analysis.to_dict(layers=True)]


def test_layers_add_up_to_the_model(folder: Path) -> None:
    analysis = analyze(write_model(folder / "net.onnx"), batch=5)
    (row,) = json.loads(as_json([analysis], with_layers=True))["models"]
    layers = row["layers"]
    assert sum(layer["output_bytes"] for layer in layers) == row["activations"]["naive_bytes"]
    assert sum(layer["weight_bytes"] for layer in layers) == row["weights"]["bytes"]
    assert sum(layer["parameters"] for layer in layers) == row["weights"]["parameters"]
    assert sum(layer["macs"] for layer in layers) == row["compute"]["forward_macs"]

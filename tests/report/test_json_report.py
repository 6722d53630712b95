"""The JSON report against its schema, and its figures against the analysis."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from golden_text import assert_golden
from jsonschema import Draft202012Validator, ValidationError
from measured_runs import MEASUREMENT
from models_on_disk import HOSTILE, MYSTERY, write_hostile_model, write_model
from predicted_runtimes import FIGURES, NODE, runtime_of

from onnxmem import Analysis, analyze
from onnxmem.analysis.json_rows import KEYS, Failure
from onnxmem.errors import Finding
from onnxmem.report.registry import json_head, json_row, json_tail
from onnxmem.runtimes.onnxruntime.memory import RuntimeMemory
from onnxmem.runtimes.onnxruntime.prediction import Unknowns

SCHEMA = json.loads(
    (files("onnxmem.report") / "schema" / "report-1.0.schema.json").read_text(encoding="utf-8")
)


def closed(schema: dict[str, object]) -> dict[str, object]:
    """The schema, but without leave to add keys: every key written must be described."""
    within = {
        key: closed(value) if isinstance(value, dict) else value for key, value in schema.items()
    }
    return within | ({"additionalProperties": False} if "required" in schema else {})


def json_report(entries: Iterable[Analysis | Failure], *, with_layers: bool = False) -> str:
    """The document as it is written, piece by piece."""
    rows = [
        each.to_dict() if isinstance(each, Failure) else each.to_dict(layers=with_layers)
        for each in entries
    ]
    pieces = [json_row(row, is_first=number == 0) for number, row in enumerate(rows)]
    return "".join((json_head(), *pieces, json_tail(None)))


def validated(*entries: Analysis | Failure, with_layers: bool = False) -> list[dict[str, Any]]:
    """The rows of a report that the schema allows, in its open and in its closed form."""
    written = json.loads(json_report(entries, with_layers=with_layers))
    for schema in (SCHEMA, closed(SCHEMA)):
        Draft202012Validator(schema).validate(written)
    rows: list[dict[str, Any]] = written["models"]
    return rows


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_every_key_of_a_row_is_required_and_described() -> None:
    row = SCHEMA["$defs"]["row"]
    assert tuple(row["required"]) == KEYS
    # Dims, branches and iterations that data decide, observed runs, bytes fetched of a URL, and
    # runtimes that were given as objects, are in no other report.
    optional = set(row["properties"]) - set(KEYS)
    assert optional == {"control_flow", "data_dependent", "fetched", "observed", "replays"}
    assert [key for key in row["properties"] if key not in optional] == list(KEYS)


def test_a_row_of_inference_has_every_key_in_order(folder: Path) -> None:
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
    assert_golden(json_report([analysis], with_layers=True), "training.json")


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
    text = json_report([analysis], with_layers=True)
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    (row,) = json.loads(text)["models"]
    assert row["activations"]["peak_node"].endswith(HOSTILE)


def test_the_row_of_an_analysis_is_its_dict(folder: Path) -> None:
    analysis = analyze(write_model(folder / "net.onnx"))
    assert json.loads(json_report([analysis]))["models"] == [analysis.to_dict()]
    rows = json.loads(json_report([analysis], with_layers=True))["models"]
    assert rows == [analysis.to_dict(layers=True)]


def test_layers_add_up_to_the_model(folder: Path) -> None:
    analysis = analyze(write_model(folder / "net.onnx"), batch=5)
    (row,) = json.loads(json_report([analysis], with_layers=True))["models"]
    layers = row["layers"]
    assert sum(layer["output_bytes"] for layer in layers) == row["activations"]["naive_bytes"]
    assert sum(layer["weight_bytes"] for layer in layers) == row["weights"]["bytes"]
    assert sum(layer["parameters"] for layer in layers) == row["weights"]["parameters"]
    assert sum(layer["macs"] for layer in layers) == row["compute"]["forward_macs"]


# Runtimes and runs.

CUDA = runtime_of(
    name="ort-cuda",
    load_peak_bytes=None,
    process_bytes=None,
    context_bytes=3,
    workspace_bytes=5,
    arena=replace(FIGURES, peak_node=None),
)


def test_a_runtime_s_row(folder: Path) -> None:
    unknown = Unknowns(("h", "k"), Counter({"Mystery": 2, "Riddle": 5}), ())
    runtime = runtime_of(unknown=unknown, findings=(Finding("unverified_runtime", "1.99"),))
    runtime = replace(
        runtime,
        requested_peak_lower_bytes=2_150_011,
        requested_peak_upper_bytes=2_150_027,
        process_range=(4_099, 4_111),
    )
    analysis = analyze(write_model(folder / "net.onnx"))
    (row,) = validated(replace(analysis, runtimes=(runtime, CUDA)))
    cpu, cuda = row["runtimes"]
    assert row["runtime"] == cpu
    assert tuple(cpu) == tuple(SCHEMA["$defs"]["runtime"]["properties"])
    assert cpu == {
        "name": "ort-cpu",
        "graph": "ort-all",
        "graph_optimizer": "onnxruntime 1.31.1",
        "cpu": "avx512",
        "base_bytes": 1_009,
        "requested_peak_bytes": 2_100_013,
        "requested_peak_lower_bytes": 2_150_011,
        "requested_peak_upper_bytes": 2_150_027,
        "with_scratch_peak_bytes": 2_200_013,
        "pattern_block_bytes": 2_300_013,
        "in_use_peak_bytes": 3_000_017,
        "held_bytes": 4_000_037,
        "held_steady_bytes": 8_000_009,
        "load_peak_bytes": 20_000_003,
        "process_first_run_bytes": 60_000_029,
        "process_bytes": 70_000_027,
        "process_least_bytes": 4_099,
        "process_most_bytes": 4_111,
        "context_bytes": None,
        "workspace_bytes": None,
        "peak_node": "relu",
        "unknown_tensors": 2,
        "unknown_scratch": 7,
        "findings": [{"code": "unverified_runtime", "message": "1.99"}],
    }
    assert (cuda["context_bytes"], cuda["workspace_bytes"], cuda["peak_node"]) == (3, 5, None)


def test_what_was_asked_of_runtimes_is_in_the_settings(folder: Path) -> None:
    path = write_model(folder / "net.onnx")
    asked = analyze(
        path,
        runtimes=("ort-cuda", "ort-cpu"),
        graph="raw",
        fixed_dims=True,
        asks_onnxruntime=False,
    )
    (row,) = validated(asked)
    assert (row["settings"]["runtime"], row["settings"]["graph"]) == ("ort-cuda", "raw")
    assert row["settings"]["fixed_dims"] is True
    assert [runtime["name"] for runtime in row["runtimes"]] == ["ort-cuda", "ort-cpu"]
    (row,) = validated(analyze(path))
    assert (row["runtime"], row["runtimes"], row["measured"]) == (None, [], None)


@pytest.mark.parametrize(
    ("runtimes", "error_percent"),
    [
        ((), None),
        ((CUDA,), None),
        ((CUDA, runtime_of()), pytest.approx(5.00065)),
    ],
)
def test_a_run_s_row_has_the_error_of_what_was_said_of_it(
    folder: Path, runtimes: tuple[RuntimeMemory, ...], error_percent: float | None
) -> None:
    analysis = analyze(write_model(folder / "net.onnx"))
    run = replace(analysis, runtimes=runtimes, measured=MEASUREMENT)
    (row,) = validated(run)
    measured = row["measured"]
    assert tuple(measured) == tuple(SCHEMA["$defs"]["measured"]["properties"])
    assert measured["error_percent"] == error_percent
    assert measured["requested_peak_bytes"] == 2_000_000
    assert measured["weights_made_up"] == 2


def test_a_run_that_came_to_nothing_is_null_and_a_finding(folder: Path) -> None:
    finding = Finding("measure_crash", "the run crashed")
    analysis = analyze(write_model(folder / "net.onnx"))
    (row,) = validated(replace(analysis, measured=finding, findings=(finding,)))
    assert (row["status"], row["measured"]) == ("ok", None)
    assert row["findings"] == [
        {"code": "measure_crash", "message": "the run crashed", "node": None}
    ]


@pytest.mark.parametrize(
    ("key", "value"), [("backend", "cpu"), ("held_bytes", -1), ("runs", None), ("runs", 2.5)]
)
def test_the_schema_refuses_what_is_no_run(folder: Path, key: str, value: object) -> None:
    analysis = replace(analyze(write_model(folder / "net.onnx")), measured=MEASUREMENT)
    written = json.loads(json_report([analysis]))
    written["models"][0]["measured"][key] = value
    with pytest.raises(ValidationError):
        Draft202012Validator(SCHEMA).validate(written)


def test_a_hostile_node_is_escaped(folder: Path) -> None:
    hostile = runtime_of(arena=replace(FIGURES, peak_node=replace(NODE, name=HOSTILE)))
    analysis = analyze(write_model(folder / "net.onnx"))
    (row,) = validated(replace(analysis, runtimes=(hostile,)))
    (runtime,) = row["runtimes"]
    assert runtime["peak_node"].isprintable()

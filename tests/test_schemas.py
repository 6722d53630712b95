"""The shipped JSON Schemas: what the commands write validates, with no key undescribed."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from graphs import model_of
from jsonschema import Draft202012Validator
from kv_cache_graphs import GROUPED, HYBRID, MERGED, growing
from models_on_disk import MYSTERY, write_model

from onnxmem import analyze
from onnxmem.cli import main
from onnxmem.report.registry import json_head, json_row, json_tail

Capture = pytest.CaptureFixture[str]
FOLDER = files("onnxmem.report") / "schema"
NAMES = sorted(
    entry.name.partition("-")[0]
    for entry in FOLDER.iterdir()
    if entry.name.endswith(".schema.json")
)


def schema(name: str) -> dict[str, Any]:
    text = (FOLDER / f"{name}-1.0.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def closed(node: object) -> object:
    """The schema with additional keys forbidden, except in alternatives, which list no keys."""
    if isinstance(node, list):
        return [closed(each) for each in node]
    if not isinstance(node, dict):
        return node
    within = {key: value if key == "oneOf" else closed(value) for key, value in node.items()}
    is_object = "required" in node and "properties" in node
    return within | ({"additionalProperties": False} if is_object else {})


def validated(name: str, text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text)
    found = schema(name)
    Draft202012Validator(found).validate(document)
    shut = closed(found)
    assert isinstance(shut, dict)
    Draft202012Validator(shut).validate(document)
    return document


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return write_model(tmp_path / "net.onnx")


@pytest.mark.parametrize("name", NAMES)
def test_each_schema_is_valid_and_printed_by_its_name(name: str, capsys: Capture) -> None:
    Draft202012Validator.check_schema(schema(name))
    assert main(["schema", name]) == 0
    assert json.loads(capsys.readouterr().out) == schema(name)
    assert schema(name)["title"] == f"onnxmem.{name} 1.0"


def test_the_schema_of_the_report_is_the_default_and_unknown_names_are_rejected(
    capsys: Capture,
) -> None:
    assert {"check", "devices", "diff", "fit", "report"} <= {*NAMES}
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema("report")
    assert main(["schema", "nothing"]) == 2
    assert "choose one of check, " in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["--device", "1MiB", "--batch", "2"],
        ["--device", "RTX 3060", "--train"],
        ["--device", "1GiB", "--dim", "N=?", "--instances", "2"],
        ["--which-device"],
        ["--which-device", "--rank", "memory-per-dollar", "--cards", "1,2"],
        ["--device", "1GiB", "--context", "8"],
    ],
)
def test_the_json_of_fit_matches_its_schema(net: str, flags: list[str], capsys: Capture) -> None:
    assert main(["fit", net, *flags, "--json"]) == 0
    assert validated("fit", capsys.readouterr().out)["status"] == "ok"


def test_the_json_of_fit_with_contexts_matches_its_schema(
    net: str, tmp_path: Path, capsys: Capture
) -> None:
    del net
    write_model(tmp_path / "decoder.onnx", growing())
    assert main(["fit", "decoder.onnx", "--device", "1MiB", "--context", "64", "--json"]) == 0
    row = validated("fit", capsys.readouterr().out)
    assert row["contexts"]["rows"][0]["context"] == 64


def test_the_json_of_fit_with_unknown_figures_matches_its_schema(
    net: str, tmp_path: Path, capsys: Capture
) -> None:
    del net
    write_model(tmp_path / "mystery.onnx", MYSTERY)
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    for name, status in (("mystery.onnx", "partial"), ("broken.onnx", "error")):
        assert main(["fit", name, "--device", "1MiB", "--json"]) == 3
        assert validated("fit", capsys.readouterr().out)["status"] == status


@pytest.mark.parametrize("flags", [[], ["T4", "RTX 3060"], ["--model", "net.onnx"]])
def test_the_json_of_devices_matches_its_schema(
    net: str, flags: list[str], capsys: Capture
) -> None:
    del net
    assert main(["devices", *flags, "--json"]) == 0
    assert validated("devices", capsys.readouterr().out)["devices"]


@pytest.mark.parametrize("flags", [[], ["--device", "T4", "--train"], ["--device", "1MiB"]])
def test_the_json_of_sweep_matches_its_schema(net: str, flags: list[str], capsys: Capture) -> None:
    assert main(["sweep", net, "--batch", "1..4", *flags, "--json"]) == 0
    assert len(validated("sweep", capsys.readouterr().out)["points"]) >= 3


@pytest.mark.parametrize("flags", [[], ["--concurrency", "2"], ["--runtime", "ort-cuda"]])
def test_the_json_of_simulate_matches_its_schema(
    net: str, flags: list[str], capsys: Capture
) -> None:
    words = ["--requests", "batch=1..9", "--num-requests", "7", "--emulate-optimizer"]
    assert main(["simulate", net, *words, *flags, "--json"]) == 0
    (row,) = validated("simulation", capsys.readouterr().out)["models"]
    assert row["simulation"]["num_requests"] == len(row["simulation"]["timeline"]) == 7
    Path("broken.onnx").write_bytes(b"no model")
    assert main(["simulate", "broken.onnx", *words, *flags, "--json"]) == 3
    (row,) = validated("simulation", capsys.readouterr().out)["models"]
    assert (row["status"], row["simulation"]) == ("error", None)


@pytest.mark.parametrize(
    ("written_at", "flags"), [("8", ["--train"]), ("4", ["--train"]), ("8", [])]
)
def test_the_json_of_a_recorded_run_matches_its_schema(
    net: str, written_at: str, flags: list[str], capsys: Capture
) -> None:
    export = ["export", net, "--batch", written_at, "--format", "torch-snapshot", *flags]
    assert main([*export, "-q", "-o", "s.pickle"]) == 0
    assert main(["diff", net, "--batch", "8", *flags, "--snapshot", "s.pickle", "--json"]) == 0
    row = validated("recorded_run", capsys.readouterr().out)
    assert bool(row["only_recorded"]) == (written_at == "4")
    assert row["allocator"]["is_same"] == bool(flags)


@pytest.mark.usefixtures("without_children")
def test_the_json_of_a_pod_matches_its_schema(net: str, capsys: Capture) -> None:
    simulated = ["simulate", net, "--requests", "N=1..3", "--num-requests", "5"]
    assert main([*simulated, "--json", "-q", "-o", "one.json"]) == 0
    assert main([*simulated, "--beside", "one.json", "--emit", "json"]) == 0
    row = validated("sizing", capsys.readouterr().out)
    assert row["models"][0] == row["models"][1]
    assert row["request_bytes"] < row["limit_bytes"]


def test_the_json_of_two_releases_matches_its_schema(net: str, capsys: Capture) -> None:
    assert (
        main(["diff", net, "--onnxruntime", "1.29", "1.31", "--emulate-optimizer", "--json"]) == 0
    )
    row = validated("upgrade", capsys.readouterr().out)
    assert row["before"]["verified"]
    assert row["after"]["measured"] == "1.31.1"


@pytest.mark.parametrize("text", [growing(), GROUPED, HYBRID, MERGED])
@pytest.mark.parametrize("context", [None, 1, 100])
def test_the_json_report_of_a_cache_matches_its_schema(text: str, context: int | None) -> None:
    analysis = analyze(model_of(text), context=context, batch=2)
    pieces = json_head(), json_row(analysis.to_dict(), is_first=True), json_tail(None)
    row = validated("report", "".join(pieces))["models"][0]["kv_cache"]
    assert row["context"] == context
    assert (row["decode"] is None) == (context is None)
    if context is not None:
        assert sum(row["bytes_by_kind"].values()) == row["bytes"]
        for step in (row["decode"], row["prefill"]):
            parts = ("weight_bytes", "cache_bytes", "other_inputs_bytes", "in_place_peak_bytes")
            assert sum(step[key] for key in parts) == step["total_bytes"]


def test_the_json_of_upper_figures_matches_its_schema(
    net: str, tmp_path: Path, capsys: Capture
) -> None:
    del net
    rows = "agraph (float[13,7] x) => (y) { z = NonZero(x)  y = Cast<to = 1>(z) }"
    write_model(tmp_path / "rows.onnx", rows)
    assert main(["rows.onnx", "--budget", "1MiB", "--json"]) == 0
    (row,) = validated("report", capsys.readouterr().out)["models"]
    assert row["data_dependent"]["dims"] == ["z:1"]

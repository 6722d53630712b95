"""``onnxmem export``: the formats as text, and the command."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from export.small_exports import (
    IF_MODEL,
    analysis_of,
    exported,
    hostile_analysis,
    hostile_model,
    saved,
)
from hostile.outputs import CHECKS
from models_on_disk import MYSTERY, write_model
from paths import ROOT

from onnxmem.cli import main
from onnxmem.cli.export import FORMATS
from onnxmem.errors import UsageError
from onnxmem.export.exporters import EXPORTERS
from onnxmem.export.figures import to_metrics
from onnxmem.settings import TrainingConfig

KEEPS_MARKUP = frozenset({"csv", "dot"})
"""Formats whose readers take no markup for markup: their names are left as they are."""
TEXTS = [name for name, known in FORMATS.items() if not (known.is_binary or known.is_of_session)]


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_format_is_complete() -> None:
    """An exporter, a row of the command, a check for hostile names, a row of the command's page."""
    page = (ROOT / "docs" / "commands" / "export.md").read_text("utf-8")
    rows_of_page = [line for line in page.splitlines() if line.startswith("| `")]
    shown = set(re.findall(r"`([\w-]+)`", " ".join(row.split("|")[1] for row in rows_of_page)))
    for place, names in {
        "FORMATS of cli/export.py": set(FORMATS),
        "CHECKS of tests/hostile/outputs.py": set(CHECKS) & set(EXPORTERS),
        "the table of docs/commands/export.md": shown,
    }.items():
        assert names == set(EXPORTERS), place


def test_a_table_has_a_row_for_every_node() -> None:
    analysis = analysis_of(batch=5)
    table = rows(exported(analysis, "csv"))
    assert [row["node"] for row in table] == ["conv", "relu", "pool", "flat", "gemm"]
    assert table[0] == {
        "step": "0",
        "node": "conv",
        "op_type": "Conv",
        "output_shape": "5x8x16x16",
        "dtype": "float32",
        "output_bytes": str(5 * 8 * 16 * 16 * 4),
        "live_bytes": str(5 * 8 * 16 * 16 * 4),
        "parameters": str(8 * 27 + 8),
        "weight_bytes": str((8 * 27 + 8) * 4),
        "macs": str(5 * 16 * 16 * 8 * 27),
        "flops": str(2 * 5 * 16 * 16 * 8 * 27 + 5 * 8 * 16 * 16),
    }
    peak = analysis.activations.in_place_peak_bytes
    assert max(int(row["live_bytes"]) for row in table) == peak
    output = [int(row["output_bytes"]) for row in table]
    assert sum(output) == analysis.activations.naive_bytes


def test_a_node_in_a_branch_has_no_step() -> None:
    table = rows(exported(analysis_of(IF_MODEL), "csv"))
    steps = {row["node"].rpartition("/")[2]: row["step"] for row in table}
    assert steps == {"root": "0", "fork": "1", "left": "", "sum": "", "right": "", "end": "2"}


def test_an_unknown_value_is_an_empty_cell() -> None:
    table = rows(exported(analysis_of(MYSTERY), "csv"))
    assert table[1]["output_bytes"] == table[1]["macs"] == table[1]["output_shape"] == ""
    mystery = '<ir_version: 10, opset_import: ["" : 21, "acme" : 1]> g (x) => (y) {y=acme.M(x)}'
    assert [row["live_bytes"] for row in rows(exported(analysis_of(mystery), "csv"))] == [""]


def test_a_scalar_and_a_dynamic_dim_differ() -> None:
    table = rows(
        exported(analysis_of("g (float[2,3] x) => (y) {y=ReduceSum<keepdims=0>(x)}"), "csv")
    )
    assert table[0]["output_shape"] == "scalar"


# Model Explorer finds nodes by their names as they are: test_overlays.py has them.
@pytest.mark.parametrize("name", [each for each in TEXTS if each != "model-explorer"])
def test_hostile_names_are_inert(name: str) -> None:
    text = exported(hostile_analysis(), name)
    assert len(text) < 100_000
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "<img" not in text or name in KEEPS_MARKUP, "escape `<` as chrome_trace.py does"


def test_no_cell_is_a_spreadsheet_formula() -> None:
    table = rows(exported(hostile_analysis(), "csv"))
    assert len(table) == 8
    cells = [cell for row in table for cell in row.values()]
    assert [cell for cell in cells if re.match(r"[=+@-]", cell)] == []
    assert "'=cmd|' /C calc'!A0" in cells


def test_metrics_are_flat_numbers_by_names_that_trackers_take() -> None:
    analysis = analysis_of(batch=3, train=True, runtimes=("ort-cpu",), asks_onnxruntime=False)
    metrics = to_metrics(analysis)
    assert analysis.training is not None
    assert metrics["batch"] == 3
    assert metrics["total_bytes"] == analysis.total_bytes
    assert metrics["training.peak_bytes"] == analysis.training.peak_bytes
    held = analysis.runtimes[0].arena.held_steady_bytes
    assert metrics["runtime.ort-cpu.held_steady_bytes"] == held
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+", name) for name in metrics)
    assert all(type(value) in {int, float} for value in metrics.values())
    assert json.loads(exported(analysis, "metrics")) == metrics


def test_an_unknown_value_is_not_a_metric() -> None:
    metrics = to_metrics(analysis_of(MYSTERY))
    assert None not in metrics.values()
    assert "outputs_bytes" not in metrics


def test_a_model_card_has_figures_assumptions_and_the_command() -> None:
    analysis = analysis_of(
        batch=3, shapes={"image": (3, 3, 16, 16)}, train=True, optimizer="sgd", precision="bf16"
    )
    card = exported(analysis, "model-card")
    assert analysis.total_bytes is not None
    assert f"{analysis.total_bytes:,} |" in card
    assert "`optimizer sgd`, `precision bf16`, `loss cross-entropy`, `batch 3`" in card
    assert "--batch 3 --shape image:3,3,16,16 --train --optimizer sgd --precision bf16" in card
    assert card.startswith("<!-- onnxmem begin -->\n")
    assert card.endswith("<!-- onnxmem end -->\n")
    assert "ort-cpu" not in card


def test_a_model_card_of_a_session_and_of_a_part() -> None:
    analysis = analysis_of(dims={"N": 2}, runtimes=("ort-cpu",), asks_onnxruntime=False)
    assert "| ort-cpu: arena reserved (steady state) |" in exported(analysis, "model-card")
    assert "lower bounds" in exported(analysis_of(MYSTERY), "model-card")


def test_a_model_card_lists_settings_other_than_the_defaults_of_a_step() -> None:
    recipe = TrainingConfig(freeze=("conv", "gemm"), weight_decay=True)
    card = exported(analysis_of(batch=2, train=True, recipe=recipe, graph="raw"), "model-card")
    assert "--freeze conv --freeze gemm" in card
    assert "--weight-decay" in card
    assert "`weight decay on`" in card
    assert "--graph raw" in card
    recipe = TrainingConfig(assume_batchnorm=False)
    card = exported(analysis_of(batch=2, train=True, recipe=recipe), "model-card")
    assert "--no-assume-batchnorm" in card
    assert "`assume batchnorm off`" in card


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["export", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    "name", sorted(name for name, known in FORMATS.items() if not known.is_binary)
)
def test_the_command_writes_text(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / write_model(tmp_path / "m.onnx"))
    words = (path, "--format", name, "--emulate-optimizer")
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    assert out
    target = tmp_path / "out.txt"
    assert run(capsys, *words, "-o", str(target)) == (0, "", f"Wrote {target}\n")
    assert target.read_text(encoding="utf-8") == out
    assert run(capsys, *words, "-o", str(target))[0] == 2
    assert run(capsys, *words, "-o", path, "--force")[0] == 2


def test_several_pieces_are_written_to_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = " ".join(f"t{n + 1} = Exp(t{n})" for n in range(999))
    text = f"g (float[7] t0) => (float[7] t999) {{ {chain} }}"
    path = tmp_path / write_model(tmp_path / "m.onnx", text)
    code, out, _ = run(capsys, str(path), "--format", "chrome")
    assert code == 0
    assert len(json.loads(out)["traceEvents"]) == 2 + 2 * 999


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("m.onnx", "--format", "csv", "--train"), "leave --train out"),
        (("m.onnx", "m.onnx", "--format", "csv"), "2 models; export writes one at a time"),
        (("m.onnx",), "--format"),
        (("absent.onnx", "--format", "csv"), "absent.onnx: missing_file: no such file"),
        (("m.onnx", "--format", "csv", "-o", "nowhere/x"), "its folder does not exist"),
        (("m.onnx", "--format", "torch-snapshot", "-o", "."), "exists"),
        (("m.onnx", "--format", "torch-snapshot", "-o", "folder", "--force"), "is a folder"),
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
    write_model(tmp_path / "m.onnx")
    (tmp_path / "folder").mkdir()
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_partial_figure_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / write_model(tmp_path / "m.onnx", MYSTERY))
    _, _, err = run(capsys, path, "--format", "csv")
    assert err == f"{path}: 1 tensor of unknown size left out\n"
    assert run(capsys, path, "--format", "csv", "-q")[2] == ""


def test_a_snapshot_goes_to_a_pipe_and_to_no_terminal(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / write_model(tmp_path / "m.onnx"))
    assert main(["export", path, "--format", "torch-snapshot"]) == 0
    assert capfdbinary.readouterr().out.startswith(b"\x80\x04")
    target = tmp_path / "s.pickle"
    assert main(["export", path, "--format", "torch-snapshot", "-o", str(target), "-q"]) == 0
    assert capfdbinary.readouterr().err == b""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["export", path, "--format", "torch-snapshot"]) == 2


def test_a_training_step_has_no_node_statistics() -> None:
    with pytest.raises(UsageError, match="omit --train"):
        exported(analysis_of(batch=1, train=True), "ort-node-stats")


def test_hostile_names_are_escaped_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(hostile_model(), tmp_path / "m.onnx")
    for name in TEXTS:
        code, out, err = run(capsys, path, "--format", name)
        assert (code, err) == (0, "")
        assert "\x1b" not in out

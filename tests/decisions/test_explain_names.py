"""A tensor or a node of the model that is named is explained."""

import json
from pathlib import Path
from typing import Any

import pytest
from models_on_disk import write_model
from paths import MODELS

from onnxmem.cli import main

Capture = pytest.CaptureFixture[str]
TEXT = """agraph (float[3,64] x) => (float[3,64] y) {
    a = Exp(x)
    b = Identity(a)
    c = Exp(b)
    d = Exp(c)
    y = Add(d, d)
}"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A chain with a view."""
    write_model(tmp_path / "net.onnx", TEXT)
    return str(tmp_path / "net.onnx")


def explained(name: str, model: str, capsys: Capture) -> dict[str, Any]:
    """The row of a name."""
    assert main(["explain", name, model, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["explained"]
    assert isinstance(row, dict)
    return row


def test_a_tensor_has_its_bytes_its_life_and_its_buffer(model: str, capsys: Capture) -> None:
    row = explained("a", model, capsys)
    assert (row["kind"], row["role"], row["element_type"]) == (
        "model_tensor",
        "activation",
        "float32",
    )
    assert (row["shape"], row["bytes"]) == ([3, 64], 3 * 64 * 4)
    assert "b" in row["shares_with"]
    assert row["first_node"] == row["node"]
    assert row["last_node"] is not None


def test_an_output_is_live_to_the_end_and_an_input_always(model: str, capsys: Capture) -> None:
    output = explained("y", model, capsys)
    assert output["last_node"] is None
    assert output["readers"] == []
    given = explained("x", model, capsys)
    assert (given["role"], given["first_node"], given["node"]) == ("input", None, None)
    assert given["is_live_at_peak"] is True


def test_a_node_has_what_it_reads_and_writes(capsys: Capture) -> None:
    row = explained("/Concat_3", str(MODELS / "unet.onnx"), capsys)
    assert (row["kind"], row["op_type"], row["is_at_peak"]) == ("model_node", "Concat", True)
    assert row["reads"] == ["/stem/stem.5/Relu_output_0", "/up.3/ConvTranspose_output_0"]
    (written,) = row["writes"]
    assert written["tensor"] == "/Concat_3_output_0"
    assert written["bytes"] == 128 * 128 * 128 * 4
    assert written["is_live_at_peak"] is True
    assert written["last_node"] == "/merge.3/merge.3.0/Conv"


def test_the_text_says_when_a_tensor_is_live(capsys: Capture) -> None:
    assert main(["explain", "/Concat_3_output_0", str(MODELS / "unet.onnx"), "--batch", "2"]) == 0
    text = capsys.readouterr().out
    assert "unet.onnx, batch 2" in text
    assert "2x128x128x128 float32" in text
    assert "live at the peak          yes" in text


def test_a_figure_wins_over_a_tensor_of_its_name(tmp_path: Path, capsys: Capture) -> None:
    text = "agraph (float[3] x) => (float[3] y) { weights = Exp(x) y = Exp(weights) }"
    write_model(tmp_path / "net.onnx", text)
    assert explained("weights", str(tmp_path / "net.onnx"), capsys)["kind"] == "metric"

"""The page of a batch curve: both answers, two charts, the table of the text."""

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from models_on_disk import write_model
from pages import read, section
from paths import MODELS

from onnxmem.cli import main
from onnxmem.report.charts.curves import curve_svg
from onnxmem.report.charts.drawing import Frame

Capture = pytest.CaptureFixture[str]
MLP = str(MODELS / "mlp.onnx")


def page(folder: Path, *words: str) -> str:
    file = folder / "page.html"
    assert main(["sweep", *words, "--html", str(file), "--force", "--quiet"]) == 0
    return file.read_text(encoding="utf-8")


def test_a_page_has_the_answers_and_the_rows_of_the_text(tmp_path: Path, capsys: Capture) -> None:
    text = page(tmp_path, MLP, "--batch", "1..1024", "--device", "T4")
    printed = capsys.readouterr().out
    reader = read(text)
    assert not reader.faults
    told = " ".join(" ".join(reader.text).split())
    for question in ("Is memory proportional?", "Is a larger batch faster?"):
        answer = printed.split(question)[1].split("\n\n")[0].split("Is a larger")[0]
        assert " ".join(answer.split()) in told
    table = section(text, "batches")
    for row in ("1", "1,024", "0.51 MiB", "knee"):
        assert row in table


def test_each_chart_has_a_point_for_each_batch_at_both_widths(tmp_path: Path) -> None:
    text = page(tmp_path, MLP, "--batch", "1..64")
    for name in ("memory", "cost"):
        chart = section(text, name)
        assert chart.count("<circle") == 2 * 7
        assert "batch 64: " in chart
    assert "Bytes moved per sample" in section(text, "cost")
    assert "Time per sample" in page(tmp_path, MLP, "--batch", "1..4", "--device", "T4")


def test_the_memory_of_the_device_is_a_line_where_it_is_near(tmp_path: Path) -> None:
    """A limit that is far above the curve would only flatten it."""
    for size, is_drawn in (("600KiB", True), ("16GiB", False)):
        text = page(tmp_path, MLP, "--batch", "1..64", "--device", size)
        assert (f"{size}: " in section(text, "memory")) is is_drawn
        assert f"{size}: " not in section(text, "cost")


def test_one_batch_has_no_chart(tmp_path: Path) -> None:
    assert "<circle" not in page(tmp_path, MLP, "--batch", "8")


def test_the_page_is_the_result_where_the_file_is_named_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    beside = page(tmp_path, MLP, "--batch", "1..2")
    capsys.readouterr()
    assert main(["sweep", MLP, "--batch", "1..2", "-o", "curve.html", "-q"]) == 0
    assert Path("curve.html").read_text(encoding="utf-8") == beside
    assert capsys.readouterr().out == ""
    words = ["sweep", MLP, "-o", "a.html", "--html", "./a.html"]
    assert main(words) == 2
    assert "is requested twice" in capsys.readouterr().err


def test_a_name_is_inert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "<img src=x onerror=alert(1)>.onnx")
    text = page(tmp_path, "<img src=x onerror=alert(1)>.onnx", "--batch", "1..2")
    reader = read(text)
    assert not reader.faults
    assert not [tag for tag, _ in reader.elements if tag == "img"]


def test_labels_of_an_axis_do_not_overlap() -> None:
    points = [(batch, 7.0) for batch in range(1, 200)]
    svg = curve_svg(points, [(7.0, "7")], str, {199: "the knee 199"}, Frame("c", "t", "d", 366))
    root = ET.fromstring(svg)  # noqa: S314 - what this project wrote itself
    words = [each for each in root.iter() if each.tag.endswith("text") and each.text]
    axis = [each for each in words if (each.text or "").isdigit() and each.get("y") == "262"]
    places = [float(each.get("x") or 0) for each in axis]
    assert axis[0].text == "1"
    assert len(places) > 3
    assert min(b - a for a, b in pairwise(places)) > 8
    (mark,) = (each for each in words if each.text == "the knee 199")
    assert mark.get("text-anchor") == "end"

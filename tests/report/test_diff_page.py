"""The page of a difference: the figures of the text, both timelines on one scale, bars that sum."""

import re
from pathlib import Path

import pytest
from models_on_disk import CONVNET, MYSTERY, write_hostile_model, write_model
from pages import section

from onnxmem.cli import main

Capture = pytest.CaptureFixture[str]
WIDER = CONVNET.replace("[8,3,3,3]", "[11,3,3,3]").replace("float[8]", "float[11]")
WIDER = WIDER.replace("[10,512]", "[10,704]")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "a.onnx")
    write_model(tmp_path / "b.onnx", WIDER)
    write_model(tmp_path / "mystery.onnx", MYSTERY)
    return tmp_path


def page(*words: str) -> str:
    assert main(["diff", *words, "--html", "page.html", "--force", "--quiet"]) == 0
    return Path("page.html").read_text(encoding="utf-8")


def test_a_page_comes_beside_the_text(capsys: Capture) -> None:
    text = page("a.onnx", "b.onnx", "--train", "--batch", "4")
    printed = capsys.readouterr().out
    assert printed.startswith("A  a.onnx")
    figures = section(text, "figures")
    for change in re.findall(r"[+-][\d,]+ B(?= )", printed.split("Why")[0]):
        assert f">{change}<" in figures
    assert "weights" in figures


def test_both_timelines_have_one_scale() -> None:
    text = page("a.onnx", "b.onnx", "--train", "--batch", "4")
    for name in ("run", "step"):
        one, other = section(text, name).split("<figure>")[1:]
        for anchor in ("end", "middle"):
            pattern = rf'text-anchor="{anchor}" opacity[^>]*>([^<]*)<'
            ticks = [re.findall(pattern, each) for each in (one, other)]
            assert ticks[0] == ticks[1]
        assert f'id="onnxmem-{name}-a"' in one
        assert f'id="onnxmem-{name}-b"' in other


def test_the_bars_sum_to_the_change() -> None:
    why = section(page("a.onnx", "b.onnx", "--batch", "4"), "activations")
    changes = [int(each) for each in re.findall(r'data-value="(-?\d+)"[^>]*>[+-]', why)]
    total = re.search(r'class="remark">([+-][\d,]+) B', why)
    assert total is not None
    assert sum(changes) == int(total[1].replace(",", ""))


def test_layers_are_a_table() -> None:
    layers = section(page("a.onnx", "b.onnx"), "layers")
    assert "grown" in layers
    assert "3 layers changed" in layers or "4 layers changed" in layers or "5 layers" in layers


def test_layers_that_are_too_many_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxmem.report.page.diff_page._MOST_ROWS", 1)
    layers = section(page("a.onnx", "b.onnx"), "layers")
    assert layers.count("<tr>") == 2
    assert "The 1 that changed the most" in layers


def test_a_layer_on_one_side_alone_has_no_size_on_the_other() -> None:
    text = page("a.onnx", "mystery.onnx")
    assert "removed" in section(text, "layers")
    assert "added" in section(text, "layers")
    assert "lower bound" in section(text, "sides")
    assert "unknown" in section(text, "layers")


def test_nothing_moves_between_a_model_and_itself() -> None:
    text = page("a.onnx", "a.onnx")
    assert 'id="activations"' not in text
    assert "0 layers changed, 5 unchanged" in section(text, "layers")
    assert text.count("<title>Difference: a.onnx</title>") == 1


def test_a_saved_report_has_figures_and_no_timeline() -> None:
    assert main(["a.onnx", "--json", "-o", "saved.json", "--quiet"]) == 0
    text = page("saved.json", "b.onnx")
    assert "a saved report" in section(text, "sides")
    assert section(text, "run").count("<figure>") == 1
    assert "A: a saved report" in section(text, "run")
    assert "save it with --layers" in section(text, "layers")


def test_two_saved_reports_have_no_timelines() -> None:
    assert main(["a.onnx", "--json", "-o", "saved.json", "--quiet"]) == 0
    assert 'id="run"' not in page("saved.json", "saved.json")


def test_names_are_inert(folder: Path) -> None:
    write_hostile_model(folder / "hostile.onnx")
    text = page("a.onnx", "hostile.onnx", "--train")
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_page_is_not_written_over_a_file_or_a_model(folder: Path, capsys: Capture) -> None:
    (folder / "there.html").write_text("mine")
    for words, told in (
        (["--html", "there.html"], "exists; pass --force"),
        (["--html", "a.onnx", "--force"], "is a model"),
        (["--html", "new", "-o", "new"], "is requested twice"),
    ):
        assert main(["diff", "a.onnx", "b.onnx", *words]) == 2
        assert told in capsys.readouterr().err
    assert (folder / "there.html").read_text() == "mine"
    assert not (folder / "new").exists()

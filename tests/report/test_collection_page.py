"""The page of a model collection: every model is there, once, with its figures or its fault."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from models_on_disk import CONVNET, HOSTILE, MYSTERY, write_model
from pages import section

import onnxmem
from onnxmem.analysis.json_rows import Failure, JsonDict
from onnxmem.cli import main
from onnxmem.collection.summary import Accuracies, Tally, read_accuracies, targets_of
from onnxmem.decisions.devices import catalog
from onnxmem.errors import UsageError
from onnxmem.report.page.collection_page import render_collection_page

DEVICES = catalog(None)


def rows_of(folder: Path, **settings: object) -> list[JsonDict]:
    """Two that are complete, one lower bound, one that failed."""
    for name, text in (
        ("small.onnx", CONVNET),
        ("wide.onnx", CONVNET.replace("[8,3,3,3]", "[11,3,3,3]").replace("float[8]", "float[11]")),
        ("odd.onnx", MYSTERY),
    ):
        write_model(folder / name, text)
    found = [
        onnxmem.analyze(folder / name, **settings).to_dict()  # type: ignore[arg-type]
        for name in ("small.onnx", "odd.onnx")
    ]
    return [*found, Failure(f"{HOSTILE}<script>.onnx", "not_onnx", "no <b>model</b>").to_dict()]


def page(
    rows: Sequence[JsonDict], names: Sequence[str] = (), accuracies: Accuracies | None = None
) -> str:
    tally = Tally()
    for row in rows:
        tally.add(row)
    held = targets_of(names, DEVICES) if names else ()
    return render_collection_page(iter(rows), lambda: tally.summary(held), held, accuracies)


def test_each_model_has_a_row_and_a_bubble(tmp_path: Path) -> None:
    text = page(rows_of(tmp_path, batch=8))
    models = section(text, "models")
    assert models.count("<tr>") == 1 + 2
    assert "small.onnx" in models
    assert "<td>partial</td>" in models
    # Each chart is drawn for a screen and for a phone.
    assert section(text, "chart").count("<circle") == 2 * 2
    assert "1 of 3 models are not in it" in section(text, "chart")
    assert "2 ok" not in section(text, "totals")
    assert "1 ok, 1 partial, 1 error" in section(text, "totals")


def test_a_failure_is_reported_and_inert(tmp_path: Path) -> None:
    text = page(rows_of(tmp_path))
    failures = section(text, "failures")
    assert "not_onnx" in failures
    assert "no &lt;b&gt;model&lt;/b&gt;" in failures
    assert "<script>.onnx" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_notes_are_shown_with_the_first_model(tmp_path: Path) -> None:
    notes = section(page(rows_of(tmp_path)), "notes")
    assert "<code>unbound_dims</code>" in notes
    assert "small.onnx" in notes
    assert 'data-value="2"' in notes


def test_figures_are_those_of_the_rows(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, batch=8, train=True)
    models = section(page(rows), "models")
    for row in rows[:2]:
        assert f'data-value="{row["total_bytes"]}"' in models
        assert f'data-value="{row["training"]["peak_bytes"]}"' in models  # type: ignore[index]
    assert "training step" in models
    assert ">memory of a training step</text>" in section(page(rows), "chart")


def test_devices_and_budgets_are_lines(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, batch=8, budget_bytes=60_000)
    text = page(rows, ["RTX 4090", "1GiB"])
    chart = section(text, "chart")
    assert "budget 58.6 KiB" in chart
    assert "1GiB" in chart
    fits = section(text, "fits")
    assert "RTX 4090" in fits
    assert "Compared" in fits


def test_what_fits_has_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.onnx", "b.onnx"):
        write_model(tmp_path / name)
    step = ["a.onnx", "b.onnx", "--train", "--batch", "2", "--html", "page.html"]
    assert main([*step, "--device", "H100", "--device", "24GiB"]) == 0
    fits = section(Path("page.html").read_text("utf-8"), "fits")
    assert "Accuracy (H100 SXM): +-9 %" in fits
    assert "Accuracy (24GiB): +-11 %" in fits


def test_without_devices_there_is_no_section_of_them(tmp_path: Path) -> None:
    assert 'id="fits"' not in page(rows_of(tmp_path))


def test_accuracy_is_across_where_a_table_has_it(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    chart = section(page(rows, accuracies=Accuracies({"small": 76.13})), "chart")
    assert chart.count("<circle") == 1 * 2
    assert "accuracy 76.13" in chart
    models = section(page(rows, accuracies=Accuracies({"small": 76.13})), "models")
    assert 'data-value="76.13"' in models
    assert "unknown" in models


def test_all_failed_is_a_page_too() -> None:
    text = page([Failure("a.onnx", "not_onnx", "no model").to_dict()])
    assert "<circle" not in text
    assert "0 ok, 0 partial, 1 error" in text


def test_of_very_many_models_the_heaviest_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxmem.report.page.collection_page._MOST_ROWS", 3)
    monkeypatch.setattr("onnxmem.report.page.collection_page._MOST_BUBBLES", 2)
    row = rows_of(tmp_path)[0]
    rows = [{**row, "path": f"m{n}.onnx", "total_bytes": 1000 + n} for n in range(7)]
    text = page(rows)
    assert section(text, "models").count("<tr>") == 1 + 3
    assert "The 3 heaviest of 7 models" in section(text, "models")
    assert "m6.onnx" in section(text, "models")
    assert section(text, "chart").count("<circle") == 2 * 2
    assert "5 of 7 models are not in it" in section(text, "chart")


def test_a_model_leads_to_its_page_or_to_its_row(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    tally = Tally()
    for row in rows:
        tally.add(row)
    path = str(rows[0]["path"])
    text = render_collection_page(rows, tally.summary, pages={path: "small.html"})
    assert section(text, "chart").count('<a href="small.html"') == 2
    assert f'<a href="small.html">{path}</a>' in section(text, "models")
    # The other one, which has no page.
    (row_id,) = set(re.findall('<a href="#([^"]+)"', section(text, "chart")))
    assert f'id="{row_id}"' in section(text, "models")


def test_with_a_folder_each_model_has_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        names.append(str(tmp_path / folder / "net.onnx"))
        write_model(tmp_path / folder / "net.onnx", CONVNET)
    names.append(str(tmp_path / "none.onnx"))
    arguments = [*names, "--html", f"{tmp_path}/pages/", "--no-progress", "--jobs", "1"]
    assert main(arguments) == 2
    files = sorted(each.name for each in (tmp_path / "pages").iterdir())
    assert files == ["index.html", "net-2.html", "net.html"]
    index = (tmp_path / "pages" / "index.html").read_text(encoding="utf-8")
    assert index.count('<a href="net.html">') == index.count('<a href="net-2.html">') == 1
    assert "onnxmem-data" in (tmp_path / "pages" / "net-2.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(arguments) == 2
    assert "has files; pass --force" in capsys.readouterr().err
    (tmp_path / "file").write_text("mine")
    assert main([*names, "--html", f"{tmp_path}/file/"]) == 2
    assert "no folder can be made there" in capsys.readouterr().err


# The table of accuracies.


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("models/net.onnx", "models/net.onnx"),
        ("net.onnx", "models/net.onnx"),
        ("net", "models/net.onnx"),
        ("net.int8", "s3://zoo/net.int8.onnx"),
        ("net", "models\\net.onnx"),
    ],
)
def test_a_model_is_found_by_path_file_or_stem(tmp_path: Path, name: str, path: str) -> None:
    table = tmp_path / "a.csv"
    table.write_text(f"top5,model,accuracy\n99,{name}, 76.13\n", encoding="utf-8-sig")
    assert read_accuracies(str(table)).of(path) == 76.13
    assert read_accuracies(str(table)).of("other.onnx") is None


def test_the_longest_name_wins() -> None:
    assert Accuracies({"net": 1.0, "a/net.onnx": 2.0}).of("a/net.onnx") == 2.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column model and no accuracy"),
        ("model,top1\nnet,3\n", "has no column accuracy"),
        ("model,accuracy\nnet,3\nnet,4\n", "line 3: net occurs twice"),
        ("model,accuracy\nnet,good\n", "line 2: accuracy 'good' is not a number"),
        ("model,accuracy\nnet\n", "line 2: accuracy '' is not a number"),
        ("model,accuracy\nnet,nan\n", "line 2: accuracy 'nan' is not a number"),
    ],
)
def test_what_is_wrong_with_a_table_is_reported_in_a_line(
    tmp_path: Path, text: str, message: str
) -> None:
    table = tmp_path / "a.csv"
    table.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=re.escape(message)) as found:
        read_accuracies(str(table))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "content", [None, b"\xff\xfe\x00", b"model,accuracy\n" + b'"' + b"x" * 200_000]
)
def test_a_table_that_cannot_be_read_is_said(tmp_path: Path, content: bytes | None) -> None:
    table = tmp_path / "a.csv"
    if content is not None:
        table.write_bytes(content)
    with pytest.raises(UsageError, match="cannot be read as CSV"):
        read_accuracies(str(table))

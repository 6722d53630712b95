"""The table of questions: each command is run, and prints the figure that stands beside it."""

import re
import shlex

import pytest
from paths import ROOT

from onnxmem.cli import main

PAGE = ROOT / "docs" / "guides" / "questions.md"
ROW = re.compile(
    r"^\| [^|]+ \| `(?P<command>[^`]+)`[^|]* \| (?:`(?P<prints>[^`]+)` )?\| `(?P<tests>[^`]+)` \|$",
    re.MULTILINE,
)
ROWS = [match.groupdict() for match in ROW.finditer(PAGE.read_text(encoding="utf-8"))]
RUN = [row for row in ROWS if row["prints"]]
VERDICTS = {0, 1}
"""What fits and what does not are both answers."""


def test_every_row_is_read_and_names_its_tests() -> None:
    head = 1
    assert len(ROWS) == PAGE.read_text(encoding="utf-8").count("\n| ") - head
    assert [row["tests"] for row in ROWS if not (ROOT / "tests" / row["tests"]).exists()] == []


DOCUMENTS = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*/*.md")]


def printed_by_a_page(command: str) -> str | None:
    """What a page shows under the command: ``test_command_pages.py`` has run it."""
    shown = (text.partition(f"\n$ {command}\n")[2].partition("```")[0] for text in DOCUMENTS)
    return next(filter(None, shown), None)


@pytest.mark.usefixtures("without_children")
@pytest.mark.parametrize("row", RUN, ids=lambda row: row["command"][8:60])
def test_a_command_prints_its_answer(
    row: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if (text := printed_by_a_page(row["command"])) is not None:
        assert row["prints"] in text
        return
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "200")
    words = shlex.split(row["command"])[1:]
    if words[0] == "measure":
        pytest.importorskip("onnxruntime")
    assert main(words) in VERDICTS
    assert row["prints"] in capsys.readouterr().out

"""The README and the accuracy page stay true: their outputs are made again and compared."""

import pytest
from paths import ROOT, script_module

from onnxmem.cli import main

README = (ROOT / "README.md").read_text()
ACCURACY = (ROOT / "docs" / "accuracy.md").read_text()


def block(page: str, marker: str) -> str:
    """The text after a marker, up to the next blank line outside a code fence."""
    after = page.split(f"<!-- {marker} -->\n", 1)[1]
    return after.split("```\n", 2)[1] if after.startswith("```") else after.split("\n\n", 1)[0]


def test_the_report_in_the_readme_is_the_output_of_its_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    command = block(README, "run").splitlines()[-1].split()
    assert command[0] == ".venv/bin/onnxmem"
    assert main(command[1:]) == 0
    assert capsys.readouterr().out.rstrip() == block(README, "report").rstrip()


def test_the_readme_is_at_most_200_lines() -> None:
    assert len(README.splitlines()) <= 200


@pytest.mark.slow
def test_the_accuracy_tables_are_the_output_of_their_tool() -> None:
    tables = script_module(ROOT / "tools" / "accuracy.py").tables()
    groups = ("seen", "unseen", "fresh", "worked", "apart")
    for name in ("accuracy", "methods", "exporters", "autocast", *groups):
        assert tables[name] == block(ACCURACY, name).rstrip(), name
    assert tables["more than 1 % off"] == ""

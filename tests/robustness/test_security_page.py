"""SECURITY.md names the tests that hold each promise, and they are there."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest
from paths import ROOT

PAGE: Final = (ROOT / "SECURITY.md").read_text()
NAMED: Final = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def promises() -> list[str]:
    """The items of the section of promises, each with its tests."""
    section = PAGE.partition("## What is promised\n")[2].partition("\n## ")[0]
    return re.split(r"\n(?=- \*\*)", section)[1:]


def functions(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }


def test_each_promise_names_a_test() -> None:
    assert len(promises()) >= 10
    for promise in promises():
        assert any(name for _, name in NAMED.findall(promise)), promise


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED.findall(PAGE))))
def test_each_test_is_there(file: str, name: str) -> None:
    assert (ROOT / file).is_file()
    assert not name or name in functions(ROOT / file), f"{file} has no {name}"

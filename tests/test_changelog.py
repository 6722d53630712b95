"""A change that a user sees has an entry in the changelog."""

import re

import pytest
from paths import ROOT

import onnxmem
from onnxmem.cli import COMMANDS
from onnxmem.cli.export import FORMATS
from onnxmem.settings import OPTIMIZERS, PRECISIONS, RUNTIMES

NAMES = {
    "command": COMMANDS,
    "public name": [name for name in onnxmem.__all__ if not name.startswith("_")],
    "export format": FORMATS,
    "runtime": RUNTIMES,
    "precision": PRECISIONS,
    "optimizer": OPTIMIZERS,
    "schema": [
        path.name.partition("-")[0] for path in (ROOT / "onnxmem/report/schema").glob("*.json")
    ],
}


@pytest.mark.parametrize("kind", NAMES)
def test_each_name_that_a_user_writes_is_in_the_changelog(kind: str) -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    # As code: many of them are common words too.
    code = "\n".join(re.findall(r"`([^`]+)`", text))
    missing = [each for each in NAMES[kind] if not re.search(rf"\b{re.escape(each)}\b", code)]
    assert not missing, f"no entry with `name` as code for {kind} {', '.join(missing)}"

"""Folders to work in: one of the hostile files, made once, and one for what may be killed."""

import tempfile
from pathlib import Path

import pytest
from hostile.running import MODEL, make_all
from models_on_disk import write_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of them, and a sound model."""
    return make_all(tmp_path_factory.mktemp("hostile"))


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a sound model, and have temporary files in another."""
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    write_model(work / MODEL)
    return work

"""The hostile files, made once for all tests that only read them."""

from pathlib import Path

import pytest
from hostile.running import make_all


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of them, and a sound model."""
    return make_all(tmp_path_factory.mktemp("hostile"))

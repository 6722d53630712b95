"""The public face of the package."""

import tomllib

import pytest
from paths import ROOT

import onnxmem


def test_every_public_name_is_there() -> None:
    for name in onnxmem.__all__:
        assert getattr(onnxmem, name) is not None
        assert name in dir(onnxmem)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="analyse"):
        _ = onnxmem.analyse


def test_the_version_is_said_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project.get("version", onnxmem.__version__) == onnxmem.__version__

"""Faces of one checkup: a module per format, each a function from a checkup to text."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from onnxmem.decisions.check.checking import Checkup
from onnxmem.report.check import as_json, github, junit, markdown, sarif, text

FORMATS: Final[Mapping[str, Callable[[Checkup], str]]] = MappingProxyType(
    {
        "text": text.render,
        "json": as_json.render,
        "markdown": markdown.render,
        "github": github.render,
        "sarif": sarif.render,
        "junit": junit.render,
    }
)

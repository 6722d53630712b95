"""What is wrong with a file that a command wrote: it is none of its kind, or a name got out."""

import csv
import io
import json
import pickletools
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from typing import Final

import onnx
import pages

_CSP: Final = "default-src 'none'"
_FORMULAS: Final = ("=", "+", "@", "\t", "\r")
_BUILDS_AN_OBJECT: Final = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "INST", "OBJ", "NEWOBJ", "BUILD"}
"""Instructions with which a pickle runs something."""


def _text(data: bytes) -> str:
    """Read it as text.

    :raises ValueError: there are control or direction characters in it.
    """
    text = data.decode()
    if not all(char.isprintable() or char in "\n\t" for char in text):
        message = "raw control characters"
        raise ValueError(message)
    return text


def page(data: bytes) -> list[str]:
    """Check a page: tags match, names are neither elements nor handlers, CSP forbids the rest."""
    read = pages.read(_text(data))
    wrong = list(read.faults)
    tags = {tag for tag, _ in read.elements}
    handlers = {name for _, given in read.elements for name in given if name.startswith("on")}
    images = [given for tag, given in read.elements if tag in {"img", "iframe", "object", "embed"}]
    metas = [given.get("content") or "" for tag, given in read.elements if tag == "meta"]
    if handlers or images or "base" in tags:
        wrong.append(f"{handlers} {images}")
    if not any(_CSP in content for content in metas):
        wrong.append("no policy")
    if "alert(1)" in "".join(_scripts(_text(data))):
        wrong.append("a name in a script that runs")
    return wrong


def _scripts(text: str) -> list[str]:
    """Scripts that run: those with a type are data."""
    return [part.partition("</script>")[0] for part in text.split("<script>")[1:]]


def as_json(data: bytes) -> list[str]:
    """Check that it is JSON without NaN."""
    json.loads(_text(data), parse_constant=_refuse)
    return []


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def table(data: bytes) -> list[str]:
    """Check a table: rows of one length, no cell that a spreadsheet would evaluate."""
    rows = list(csv.reader(io.StringIO(_text(data))))
    wrong = [] if len({len(row) for row in rows}) == 1 else ["rows of several lengths"]
    if any(cell.startswith(_FORMULAS) for row in rows for cell in row):
        wrong.append("a formula")
    return wrong


def graphml(data: bytes) -> list[str]:
    """Check that it is XML of this format, and that each long has 64 bits."""
    root = ET.fromstring(_text(data))  # noqa: S314 - our own writing
    if not root.tag.endswith("graphml"):
        return [root.tag]
    longs = {each.get("id") for each in root.iter() if each.get("attr.type") == "long"}
    values = (each.text or "" for each in root.iter() if each.get("key") in longs)
    return [f"{value} is not a long" for value in values if not -(2**63) <= int(value) < 2**63]


def dot(data: bytes) -> list[str]:
    """Check that every string is closed, and that there is one graph."""
    text = _text(data).replace("\\\\", "").replace('\\"', "")
    outside = "".join(text.split('"')[::2])
    wrong = ["a string without an end"] if text.count('"') % 2 else []
    return wrong + (["another graph"] if outside.count("digraph") != 1 else [])


def snapshot(data: bytes) -> list[str]:
    """Check that a pickle builds no objects."""
    names = {opcode.name for opcode, _, _ in pickletools.genops(data)}
    return sorted(names & _BUILDS_AN_OBJECT)


def text(data: bytes) -> list[str]:
    """Check only for control characters."""
    _text(data)
    return []


def model(data: bytes) -> list[str]:
    """Check that it is a model."""
    onnx.ModelProto().ParseFromString(data)
    return []


Check = Callable[[bytes], list[str]]

CHECKS: Final[Mapping[str, Check]] = {
    "html": page,
    "json": as_json,
    "chrome": as_json,
    "metrics": as_json,
    "model-explorer": as_json,
    "csv": table,
    "ort-node-stats": text,
    "graphml": graphml,
    "dot": dot,
    "torch-snapshot": snapshot,
    "model-card": text,
    "onnx": model,
}
"""By the end of a file's name, which for an export is its format's name."""


def faults(name: str, data: bytes) -> list[str]:
    """Checks of a file, by the end of its name."""
    form = name.rpartition(".")[2]
    if form not in CHECKS:
        return [f"{name}: nothing checks a {form} file: add a function to CHECKS of {__name__}"]
    check = CHECKS[form]
    try:
        return [f"{name}: {fault}" for fault in check(data)]
    except (ValueError, ET.ParseError) as fault:
        return [f"{name}: {fault}"]

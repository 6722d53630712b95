"""Test cases of the emulated optimizer, read from text: small graphs and the expected operators.

A file in ``tests/data/optimizer`` has cases, separated by empty lines::

    # Transpose: other scales
    uint8[2,3] x => uint8[3,2] y
    weights: float other = {0.5}
    a = DequantizeLinear(x, s, z)
    b = Transpose<perm = [1, 0]>(a)
    y = QuantizeLinear(b, other, z)
    extended: DequantizeLinear Transpose QuantizeLinear

``opset: 13`` before the inputs is the operator set, if not 21; ``onnxruntime: 1.32`` before that is
the version from which the case holds. Some constants need no declaration: scales ``s``, ``s2`` and
``s3``; zero points ``z``, ``z2`` and ``z0`` (uint8), ``n``, ``n3`` (int8), ``h`` (uint16) and
``i0`` (int32); for shapes the numbers ``c0`` and ``c1``, and ``k0``, ``k1``, ``two`` and ``m1``
with one element each.
"""

import re
from dataclasses import dataclass

from paths import DATA

FOLDER = DATA / "optimizer"
_CONSTANTS = {
    text.split()[1]: text
    for text in (
        *("float s = {0.05}", "float s2 = {0.03}", "float s3 = {0.02}"),
        *("uint8 z = {7}", "uint8 z2 = {9}", "uint8 z0 = {0}", "uint16 h = {7}"),
        *("int8 n = {0}", "int8 n3 = {3}", "int32 i0 = {0}"),
        *("int64 c0 = {0}", "int64 c1 = {1}", "int64[1] k0 = {0}", "int64[1] k1 = {1}"),
        *("int64[1] two = {2}", "int64[1] m1 = {-1}"),
    )
}


@dataclass(frozen=True, slots=True)
class Case:
    """One graph and the expected result."""

    title: str
    text: str
    """The graph with a header."""
    level: str
    expected: str
    """The last line: operators in order of execution, or shapes."""
    since: str = ""
    """Version of onnxruntime from which the case holds."""


def cases(name: str) -> list[Case]:
    """The cases of a file."""
    blocks = (FOLDER / f"{name}.txt").read_text().strip().split("\n\n")
    return [_case(block.splitlines()) for block in blocks]


def _case(lines: list[str]) -> Case:
    title, *lines, last = lines
    since = ""
    if lines[0].startswith("onnxruntime: "):
        since = lines.pop(0).removeprefix("onnxruntime: ")
    opset = 21
    if lines[0].startswith("opset: "):
        opset = int(lines.pop(0).removeprefix("opset: "))
    inputs, outputs = lines.pop(0).split(" => ")
    declared = lines.pop(0).removeprefix("weights: ") if lines[0].startswith("weights: ") else ""
    written = " ".join(re.findall(r"([\w, ]+?) ?= ?[\w.]+ ?[<(]", " ".join(lines)))
    produced = set(re.findall(r"\w+", written))
    known = produced | set(re.findall(r"\w+", f"{inputs} {declared}"))
    read = set(re.findall(r"\w+", " ".join([outputs, *lines]))) - known
    weights = [text for name, text in _CONSTANTS.items() if name in read] + [declared] * bool(
        declared
    )
    header = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    within = f"<{', '.join(weights)}>" if weights else ""
    text = f"{header}\nagraph ({inputs}) => ({outputs}) {within} {{ {' '.join(lines)} }}"
    level, expected = last.split(":", 1)
    return Case(title.removeprefix("# "), text, level, expected.strip(), since)


def title(case: Case) -> str:
    """The name of its test."""
    return case.title

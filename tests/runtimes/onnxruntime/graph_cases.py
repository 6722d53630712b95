"""Cases of the emulated optimizer, read from text: small graphs, and the nodes that are left.

A file in ``tests/data/optimizer`` holds cases with an empty line between them::

    # Transpose: other scales
    uint8[2,3] x => uint8[3,2] y
    weights: float other = {0.5}
    a = DequantizeLinear(x, s, z)
    b = Transpose<perm = [1, 0]>(a)
    y = QuantizeLinear(b, other, z)
    extended: DequantizeLinear Transpose QuantizeLinear

``opset: 13`` in front of the inputs says which operator set is meant, if not 21; before that,
``onnxruntime: 1.32`` from which version on the rule is this one. Some constants are
there without being stated: scales ``s``, ``s2`` and ``s3``; zero points ``z``, ``z2`` and ``z0``
(uint8), ``n``, ``n3`` (int8), ``h`` (uint16) and ``i0`` (int32); for shapes the numbers ``c0`` and
``c1``, and ``k0``, ``k1``, ``two`` and ``m1`` with one element each.
"""

import re
from dataclasses import dataclass

from paths import DATA

FOLDER = DATA / "optimizer"
_STATED = {
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
    """One graph, and what comes of it."""

    title: str
    text: str
    """With a header."""
    level: str
    left: str
    """What the last line says: operators in running order."""
    since: str = ""
    """Version of onnxruntime that changed the rule to what is written here."""


def cases(name: str) -> list[Case]:
    """The cases of a file; titles are told apart."""
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
    stated = lines.pop(0).removeprefix("weights: ") if lines[0].startswith("weights: ") else ""
    written = " ".join(re.findall(r"([\w, ]+?) ?= ?[\w.]+ ?[<(]", " ".join(lines)))
    made = set(re.findall(r"\w+", written))
    known = made | set(re.findall(r"\w+", f"{inputs} {stated}"))
    read = set(re.findall(r"\w+", " ".join([outputs, *lines]))) - known
    weights = [text for name, text in _STATED.items() if name in read] + [stated] * bool(stated)
    header = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    within = f"<{', '.join(weights)}>" if weights else ""
    text = f"{header}\nagraph ({inputs}) => ({outputs}) {within} {{ {' '.join(lines)} }}"
    level, left = last.split(":", 1)
    return Case(title.removeprefix("# "), text, level, left.strip(), since)

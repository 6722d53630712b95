"""Names that would move a cursor, turn text, forge a line, or run in a page, a sheet or a graph."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import onnx
from graphs import model_of

from hostile.hostile_file import ANALYZED, HostileFile, files_of
from hostile.not_models import SOUND

EVIL: Final = {
    "color": "a\x1b[31mb",
    "clear": "\x1b[2J\x1b[H",
    "title": "\x1b]0;owned\x07",
    "link": "\x1b]8;;http://evil\x1b\\text\x1b]8;;\x1b\\",
    "c1": "a\x9b31m\x90\x9c",
    "bell and backspace": "\x07\x08\x7f",
    "newline": "a\nerror: forged.onnx: line\r\n",
    "separators": "a\u2028b\u2029c\x85d\x0be\x0cf",
    "bidi": "a\u202egnp.exe\u202c\u2066b\u2069",
    "invisible": "a\u200b\u200d\ufeff\u2060b\U000e0001",
    "nul": "a\0b",
    "surrogate pair": "a\U0001f600\U0010ffff",
    "combining": "a" + "\u0301" * 300,
    "script": "<script>alert(1)</script>",
    "attribute": "\"><img src=x onerror=alert(1)>'",
    "json in html": '</script><!--"}]',
    "markdown": "|a|`b`|[x](javascript:alert(1))\n# c",
    "formula": "=cmd|' /C calc'!A0",
    "formulas": "@SUM(1)+1-1\tx",
    "dot": '"];digraph{"a"->"b"}',
    "github": "::error::forged%0A::set-output name=x::y",
    "rich": "[bold red]a[/bold red][link=http://evil]b[/link]",
    "format": "{0.__class__}%s%n$HOME`id`$(id)",
    "path": "../../../../etc/passwd",
    "slashes": "a//b/./c#2",
    "megabyte": "n" * 2**20,
    "spaces": " " * 300,
}


def everywhere(text: str) -> Callable[[], onnx.ModelProto]:
    """Put a text into every name of a sound model."""

    def make() -> onnx.ModelProto:
        model = model_of(SOUND)
        graph = model.graph
        for node in graph.node:
            node.name += text
            node.input[:] = [name + text for name in node.input]
            node.output[:] = [name + text for name in node.output]
        for value in (*graph.input, *graph.output):
            value.name += text
        for weight in graph.initializer:
            weight.name += text
        graph.input[0].type.tensor_type.shape.dim[0].dim_param += text
        graph.name = graph.doc_string = model.producer_name = text
        graph.node.add(op_type=f"Odd{text}", domain=f"own{text}", input=[graph.node[0].output[0]],
                       output=[f"odd{text}"])  # fmt: skip
        return model

    return make


def undefined(text: str) -> Callable[[], onnx.ModelProto]:
    """Let a node read an undefined name, so that the name is in a message."""

    def make() -> onnx.ModelProto:
        model = everywhere(text)()
        model.graph.node[0].input.append(f"nowhere{text}")
        return model

    return make


def not_utf8() -> bytes:
    """Replace a name by bytes that are not text."""
    return model_of(SOUND).SerializeToString().replace(b"relu", b"\xff\xfe\xc3\x28")


FILE_NAMES: Final = (
    b"name-\x1b[2J.onnx",
    b"name-a\nerror: forged.onnx",
    b"name-caf\xe9\xff.onnx",
    "name-\u202exnno.exe.onnx".encode(),
    b"name-<script>alert(1)<|script>.onnx",
    b"name-=cmd|calc.onnx",
    b"name-" + b"n" * 240 + b".onnx",
    b"name- .onnx",
    b"name-[a]*?.onnx",
    b"name-;id;$(id)`id`.onnx",
)
"""Names of files, as bytes."""


def write_sound(path: Path) -> None:
    """Write a valid model."""
    path.write_bytes(model_of(SOUND).SerializeToString())


FILES: Final[tuple[HostileFile, ...]] = (
    *files_of("name", {name: everywhere(text) for name, text in EVIL.items()}, ANALYZED),
    *files_of("name in a message", {name: undefined(text) for name, text in EVIL.items()}, "graph"),
    *files_of("name", {"not utf-8": not_utf8}, "model_file"),
    *(
        HostileFile("file name", str(place), write_sound, ANALYZED, own_name=name)
        for place, name in enumerate(FILE_NAMES)
    ),
)

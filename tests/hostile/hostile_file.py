"""One hostile file: its name, how it is made, and how it must end."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from graphs import model_of

Contents = bytes | str | onnx.ModelProto
"""Bytes as they are, ONNX text, or a model."""

ANALYSED = frozenset({"ok", "partial"})
REFUSED = frozenset({"model_file", "graph"})
EITHER = ANALYSED | REFUSED


@dataclass(frozen=True, slots=True)
class HostileFile:
    """A file that is made when it is asked for."""

    kind: str
    """The row of the table of threats."""
    name: str
    write: Callable[[Path], None]
    """Make it at a path."""
    ends: frozenset[str]
    """The status of its row, or the code of its error, any of these."""
    finding: str | None = None
    """The code of a finding that its row must have."""
    own_name: bytes | None = None
    """The file's name, where that is what is hostile."""

    @property
    def file_name(self) -> str:
        """Name the file for its kind."""
        if self.own_name is not None:
            return os.fsdecode(self.own_name)
        return f"{self.kind}-{self.name}.onnx".replace(" ", "_")


def files_of(
    kind: str,
    contents: Mapping[str, Contents | Callable[[], Contents]],
    ends: frozenset[str] | str,
    finding: str | None = None,
) -> tuple[HostileFile, ...]:
    """Make one file for each of the contents; what is callable is called when it is written."""
    allowed = frozenset({ends}) if isinstance(ends, str) else ends
    return tuple(
        HostileFile(kind, name, _writer(content), allowed, finding)
        for name, content in contents.items()
    )


def _writer(content: Contents | Callable[[], Contents]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        made = content() if callable(content) else content
        if isinstance(made, str):
            made = model_of(made)
        path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())

    return write

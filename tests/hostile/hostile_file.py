"""One hostile file: its name, how it is made, and how it must end."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from graphs import model_of

Contents = bytes | str | onnx.ModelProto
"""Bytes as they are, ONNX text, or a model."""

ANALYZED = frozenset({"ok", "partial"})
REFUSED = frozenset({"model_file", "graph"})
EITHER = ANALYZED | REFUSED


@dataclass(frozen=True, slots=True)
class HostileFile:
    """A file that is written on request."""

    kind: str
    """The row of the table of threats."""
    name: str
    write: Callable[[Path], None]
    """Write the file to a path."""
    ends: frozenset[str]
    """Allowed statuses of its JSON object, or codes of its error."""
    finding: str | None = None
    """The code of a warning that its JSON object must have."""
    own_name: bytes | None = None
    """The file's name, if that is hostile."""

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
    """One file for each of the contents; a callable is called when the file is written."""
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

"""A report written by ``onnxmem MODEL --json``, read back: what a model took before.

The file is any file: what is looked at is checked, and an error names the key.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from onnxmem.errors import MissingFileError, UsageError, shortened

SCHEMA: Final = "onnxmem.report"
_HINT: Final = "write one with onnxmem MODEL --json -o FILE"


class SavedReportError(UsageError):
    """The file is no report of onnxmem, or not one that can be compared with."""

    code: ClassVar[str] = "saved_report"


@dataclass(frozen=True, slots=True)
class Saved:
    """One object of a report, by the file and the key that it stands under."""

    file: str
    key: str
    values: Mapping[str, object]

    def part(self, key: str) -> "Saved | None":
        """An object within; ``None`` where there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fault(key, "is no object")
        return Saved(self.file, self._key(key), value)

    def parts(self, key: str) -> "tuple[Saved, ...] | None":
        """The objects of a list; ``None`` where there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self.fault(key, "is no list of objects")
        place = self._key(key)
        return tuple(Saved(self.file, f"{place}[{n}]", each) for n, each in enumerate(value))

    def size_bytes(self, key: str) -> int | None:
        """A count; ``None`` is unknown."""
        value = self.values.get(key)
        if value is not None and (type(value) is not int or value < 0):
            raise self.fault(key, "is no count")
        return value

    def text(self, key: str) -> str | None:
        """A text; ``None`` where there is none."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.fault(key, "is no text")
        return value

    def fault(self, key: str, what: str) -> SavedReportError:
        """What to raise for a value that is not what it should be."""
        message = f"{shortened(self.file)}: {self._key(key)}: {what}; {_HINT}"
        return SavedReportError(message)

    def _key(self, key: str) -> str:
        return ".".join(part for part in (self.key, key) if part)


def read_saved(file: str) -> tuple[Saved, ...]:
    """Read the rows of a report.

    :raises MissingFileError: the file cannot be opened.
    :raises SavedReportError: it is no report of onnxmem 1.x.
    """
    report = Saved(file, "", _document(file))
    if report.values.get("schema") != SCHEMA:
        fault = report.fault("schema", f"is not {SCHEMA}")
        raise fault
    if (report.text("schema_version") or "").partition(".")[0] != "1":
        fault = report.fault("schema_version", "is not 1.x, which this onnxmem reads")
        raise fault
    return report.parts("models") or ()


def _document(file: str) -> dict[str, object]:
    try:
        if Path(file).exists() and not Path(file).is_file():
            message = f"{shortened(file)}: is no regular file; {_HINT}"
            raise SavedReportError(message)
        text = Path(file).read_text(encoding="utf-8")
        document = json.loads(text)
    except OSError as fault:
        message = f"{shortened(file)}: cannot be opened: {fault.strerror}; {_HINT}"
        raise MissingFileError(message) from fault
    except (ValueError, RecursionError) as fault:
        message = f"{shortened(file)}: is no JSON; {_HINT}"
        raise SavedReportError(message) from fault
    if not isinstance(document, dict):
        message = f"{shortened(file)}: is no report of onnxmem; {_HINT}"
        raise SavedReportError(message)
    return document

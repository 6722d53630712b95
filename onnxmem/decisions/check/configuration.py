"""Budgets from a file: ``[tool.onnxmem]`` of pyproject.toml, or onnxmem.toml.

The nearest folder upwards that has one decides, and onnxmem.toml is read before pyproject.toml. In
onnxmem.toml the tables may stand at the top, without ``tool.onnxmem``. A key that is not known is
an error: a budget that is misspelt must not pass.
"""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from onnxmem.decisions.check.budgets import Budget
from onnxmem.decisions.check.settings_table import TOP, Table, budget_of
from onnxmem.errors import MissingFileError, shortened

_OWN_FILE: Final = "onnxmem.toml"
_PROJECT_FILE: Final = "pyproject.toml"
_TOP_KEYS: Final = (
    *("batch", "dims", "shapes", "train", "recipe", "basis", "accept"),
    *("baseline", "budgets"),
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a file says of budgets."""

    file: str
    folder: Path
    """Of the file: patterns and the baseline are told from there."""
    budgets: tuple[Budget, ...]
    baseline: Path | None = None


def find_configuration(start: Path) -> Configuration | None:
    """Read the nearest configuration from a folder upwards; ``None`` where there is none.

    :raises ConfigError: it makes no sense.
    """
    for folder in (start, *start.parents):
        for name in (_OWN_FILE, _PROJECT_FILE):
            file = folder / name
            if file.is_file() and (found := _table(file)) is not None:
                return _configuration(file, found)
    return None


def read_configuration(file: str) -> Configuration:
    """Read the configuration that a user names.

    :raises MissingFileError: there is no such file.
    :raises ConfigError: it makes no sense, or has no word on onnxmem.
    """
    path = Path(file)
    if not path.is_file():
        message = f"{shortened(file)}: no such file; check the path of --config"
        raise MissingFileError(message)
    found = _table(path)
    if found is None:
        fault = Table(file, "", {}).fault(TOP, "is not there; write [[tool.onnxmem.budgets]]")
        raise fault
    return _configuration(path, found)


def _table(file: Path) -> Table | None:
    """The table of onnxmem; ``None`` where a pyproject.toml has none."""
    name = os.path.relpath(file)
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        line = str(error).partition("\n")[0] or "nested too deeply"
        fault = Table(name, "", {}).fault("", f"cannot be read as TOML: {line}; mend the file")
        raise fault from error
    tool = document.get("tool")
    own = tool.get("onnxmem") if isinstance(tool, dict) else None
    if isinstance(own, dict):
        return Table(name, TOP, own)
    if own is not None:
        fault = Table(name, "", {}).fault(TOP, "is no table; write [[tool.onnxmem.budgets]]")
        raise fault
    if file.name == _PROJECT_FILE:
        return None
    return Table(name, "", document)


def _configuration(file: Path, table: Table) -> Configuration:
    table.refuse_unknown(_TOP_KEYS)
    defaults = table.without(("baseline", "budgets"))
    budgets = [
        budget_of(each, defaults, str(number))
        for number, each in enumerate(table.tables("budgets"), start=1)
    ]
    names = [budget.name for budget in budgets]
    for number, name in enumerate(names):
        if name in names[:number]:
            fault = table.fault(
                f"budgets[{number}].name",
                f"{shortened(name)!r} names another budget already; choose another name",
            )
            raise fault
    return Configuration(os.path.relpath(file), file.parent, tuple(budgets), table.path("baseline"))

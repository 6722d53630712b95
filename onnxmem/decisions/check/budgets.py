"""Budgets, and the configuration files that define them.

A budget has a pattern of model paths, the settings of the analysis, and limits. Budgets are defined
in ``[tool.onnxmem]`` of pyproject.toml or in onnxmem.toml, where the tables may also be at the top
level. The file of the nearest parent folder is read, and onnxmem.toml wins over pyproject.toml.
An unknown key is an error, so that a misspelled limit does not pass as no limit. An error names the
file, the key, what is wrong, and what to write instead.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeVar

from onnxmem.errors import MissingFileError, UsageError, shortened
from onnxmem.files import Table, parsed_toml, read_text, reason_of
from onnxmem.settings import BASES, LEFT_OPEN, TrainingConfig, listed_shape
from onnxmem.units import format_bytes, parse_size

_OWN_FILE: Final = "onnxmem.toml"
_PROJECT_FILE: Final = "pyproject.toml"
_TOP: Final = "tool.onnxmem"
_LIMITS: Final = ("peak", "weights", "training", "growth")
_KEYS: Final = (
    *("name", "path", "batch", "dims", "shapes", "max", "observed", "train", "recipe", "basis"),
    *("accept", "baseline", *_LIMITS),
)
_TOP_KEYS: Final = (
    *("batch", "dims", "shapes", "max", "observed", "train", "recipe", "basis", "accept"),
    *("baseline", "budgets"),
)
_PERCENT: Final = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*%\s*")
_LONGEST: Final = 40
"""The longest text that is read as a size."""
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Growth:
    """The allowed growth of a figure: a percentage of the baseline, or bytes."""

    percent: Fraction | None = None
    size_bytes: int | None = None

    def limit_bytes(self, baseline_bytes: int) -> int:
        """The limit that follows from a baseline; whole bytes, rounded down."""
        if self.percent is None:
            return baseline_bytes + (self.size_bytes or 0)
        return baseline_bytes + int(baseline_bytes * self.percent / 100)

    def __str__(self) -> str:
        if self.percent is None:
            return format_bytes(self.size_bytes)
        return f"{float(self.percent):g} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits on the memory of models; ``None`` sets no limit."""

    name: str
    path: str = "**"
    """Pattern of model paths, relative to the configuration's folder."""
    batch: int | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)
    """The upper ends of dims that the data of a run decide, by ``TENSOR:AXIS``."""
    observed: tuple[Path, ...] = ()
    """Files of observed runs, each of one model."""
    train: bool = False
    recipe: TrainingConfig = field(default_factory=TrainingConfig)
    basis: str | None = None
    """The compared figure of a training step: ``tensors`` or ``process``, which is the default."""
    accepted: tuple[str, ...] = ()
    """Codes of findings that do not make a verdict unknown."""
    peak_bytes: int | None = None
    """The limit on weights, inputs and in-place peak."""
    weight_bytes: int | None = None
    training_bytes: int | None = None
    """The limit on a training step."""
    growth: Growth | None = None
    """The limit on the growth of the peak, and of the training peak if there is a step."""
    baseline: Path | None = None
    """The saved report that ``growth`` starts from; ``None``: that of the configuration."""

    @property
    def trains(self) -> bool:
        """Whether a training step has to be analyzed."""
        return self.train or self.training_bytes is not None

    @property
    def is_empty(self) -> bool:
        """Whether it has no limit."""
        limits = (self.peak_bytes, self.weight_bytes, self.training_bytes, self.growth)
        return all(limit is None for limit in limits)

    def covers(self, path: str) -> bool:
        """Whether it applies to a model; ``path`` is relative, its parts joined by ``/``."""
        return matches(self.path, path)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The budgets of a file."""

    file: str
    folder: Path
    """The file's folder: patterns and the baseline are relative to it."""
    budgets: tuple[Budget, ...]
    baseline: Path | None = None


class ConfigError(UsageError):
    """An invalid configuration."""

    code: ClassVar[str] = "config"


def find_configuration(start: Path) -> Configuration | None:
    """Read the nearest configuration of a folder and its parents; ``None`` if there is none.

    :raises ConfigError: it is invalid.
    """
    for folder in (start, *start.parents):
        for name in (_OWN_FILE, _PROJECT_FILE):
            file = folder / name
            if file.is_file() and (found := _table(file)) is not None:
                return _configuration(file, found)
    return None


def read_configuration(file: str) -> Configuration:
    """Read a configuration file.

    :raises MissingFileError: there is no such file.
    :raises ConfigError: it is invalid, or has no table of onnxmem.
    """
    path = Path(file)
    if not os.path.lexists(path):
        message = f"{shortened(file)}: no such file; check the path of --config"
        raise MissingFileError(message)
    found = _table(path)
    if found is None:
        message = "is missing; write [[tool.onnxmem.budgets]]"
        raise ConfigTable(file, "", {}).fault(_TOP, message)
    return _configuration(path, found)


def _read_size(text: str, likely: str = "GiB") -> int:
    """Read a size in bytes; ``likely`` is the unit to suggest for a small number without one.

    :raises UsageError: it is not a size.
    """
    if len(text) > _LONGEST:
        message = "is not a size; it is too long"
        raise UsageError(message)
    return parse_size(text, likely)


def read_percent(text: str) -> Fraction:
    """Read a percentage, as in ``5%`` or ``2.5 %``.

    :raises UsageError: it is not one.
    """
    found = _PERCENT.fullmatch(text if text.rstrip().endswith("%") else f"{text}%")
    if found is None:
        message = f"{text[:_LONGEST]!r} is not a percentage; write 5% or 2.5%"
        raise UsageError(message)
    return Fraction(found[1])


def read_growth(text: str) -> Growth:
    """Read an allowed growth: ``5%`` or a size, as in ``10MiB``.

    :raises UsageError: it is neither.
    """
    if text.rstrip().endswith("%"):
        return Growth(percent=read_percent(text))
    return Growth(size_bytes=_read_size(text, "%"))


@dataclass(frozen=True, slots=True)
class ConfigTable(Table):
    """One table of a configuration file."""

    error: ClassVar[type[UsageError]] = ConfigError
    not_text: ClassVar[str] = "is not a string; write it in quotes"
    not_table: ClassVar[str] = "is not a table; write { name = value }"
    not_tables: ClassVar[str] = "is not an array of tables; write [[{}]]"

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Check that every key is known.

        :raises ConfigError: one is not.
        """
        known = tuple(known)
        for key in self.values:
            if key not in known:
                raise self.fault(key, f"unknown key; choose one of {', '.join(known)}")

    def without(self, keys: Iterable[str]) -> "ConfigTable":
        """The table without some keys."""
        left = {key: value for key, value in self.values.items() if key not in set(keys)}
        return ConfigTable(self.file, self.key, left)

    def text(self, key: str) -> str | None:
        """A string that is not empty; ``None`` if the key is missing."""
        found = Table.text(self, key)
        if found is not None and not found:
            raise self.fault(key, self.not_text)
        return found

    def texts(self, key: str, example: str = "unbound_dims") -> tuple[str, ...]:
        """A list of strings; empty if the key is missing."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.fault(key, f'is not a list of strings; write ["{example}"]')
        return tuple(value)

    def path(self, key: str) -> Path | None:
        """A path, relative to the file's folder; ``None`` if the key is missing."""
        text = self.text(key)
        return None if text is None else Path(self.file).parent / text

    def paths(self, key: str) -> tuple[Path, ...]:
        """Paths, relative to the file's folder; empty if the key is missing."""
        return tuple(Path(self.file).parent / text for text in self.texts(key, "seen.json"))

    def switch(self, key: str) -> bool | None:
        """A boolean; ``None`` if the key is missing."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.fault(key, "is not a boolean; write true or false without quotes")
        return value

    def count(self, key: str) -> int | None:
        """A positive integer; ``None`` if the key is missing."""
        value = self.values.get(key)
        if value is not None and (type(value) is not int or value < 1):
            raise self.fault(key, "is not a positive integer; write one without quotes")
        return value

    def size_bytes(self, key: str) -> int | None:
        """A size: a string with a unit, or a number of bytes; ``None`` if the key is missing."""
        return self._read(key, _read_size)

    def growth(self, key: str) -> Growth | None:
        """An allowed growth: a percentage or a size; ``None`` if the key is missing."""
        return self._read(key, read_growth)

    def _read(self, key: str, read: Callable[[str], _Read]) -> _Read | None:
        value = self.values.get(key)
        if value is None:
            return None
        if type(value) is int and value >= 0:
            value = str(value)
        if not isinstance(value, str):
            raise self.fault(key, 'is not a size; write "256MiB" in quotes, or a number of bytes')
        try:
            return read(value)
        except UsageError as error:
            fault = self.fault(key, str(error))
            raise fault from error


def _table(file: Path) -> ConfigTable | None:
    """The table of onnxmem; ``None`` if a pyproject.toml has none."""
    name = os.path.relpath(file)
    try:
        document = parsed_toml(read_text(str(file)))
    except (OSError, ValueError) as error:
        reason = reason_of(error)
        fault = ConfigTable(name, "", {}).fault(
            "", f"cannot be read as TOML: {reason}; correct the file"
        )
        raise fault from error
    tool = document.get("tool")
    own = tool.get("onnxmem") if isinstance(tool, dict) else None
    if isinstance(own, dict):
        return ConfigTable(name, _TOP, own)
    if own is not None:
        fault = ConfigTable(name, "", {}).fault(
            _TOP, "is not a table; write [[tool.onnxmem.budgets]]"
        )
        raise fault
    if file.name == _PROJECT_FILE:
        return None
    return ConfigTable(name, "", document)


def _configuration(file: Path, table: ConfigTable) -> Configuration:
    table.refuse_unknown(_TOP_KEYS)
    defaults = table.without(("baseline", "budgets"))
    budgets = [
        _budget_of(each, defaults, str(number))
        for number, each in enumerate(table.tables("budgets"), start=1)
    ]
    names = [budget.name for budget in budgets]
    for number, name in enumerate(names):
        if name in names[:number]:
            fault = table.fault(
                f"budgets[{number}].name",
                f"{shortened(name)!r} is the name of another budget; choose another name",
            )
            raise fault
    return Configuration(os.path.relpath(file), file.parent, tuple(budgets), table.path("baseline"))


def _budget_of(table: ConfigTable, defaults: ConfigTable, name: str) -> Budget:
    """Read one budget; ``defaults`` has the settings that it does not set itself.

    :raises ConfigError: it is invalid, or has no limit.
    """
    table.refuse_unknown(_KEYS)
    budget = Budget(
        name=table.text("name") or name,
        path=table.text("path") or "**",
        batch=table.count("batch") or defaults.count("batch"),
        dims=_counts(defaults, "dims") | _counts(table, "dims"),
        shapes=_shapes(defaults) | _shapes(table),
        most=_counts(defaults, "max") | _counts(table, "max"),
        observed=table.paths("observed") or defaults.paths("observed"),
        train=_first(table.switch("train"), defaults.switch("train")),
        recipe=_recipe(table, defaults),
        basis=_basis(table) or _basis(defaults),
        accepted=(*defaults.texts("accept"), *table.texts("accept")),
        peak_bytes=table.size_bytes("peak"),
        weight_bytes=table.size_bytes("weights"),
        training_bytes=table.size_bytes("training"),
        growth=table.growth("growth"),
        baseline=table.path("baseline"),
    )
    if budget.is_empty:
        fault = table.fault("", f"has no limit; set one of {', '.join(_LIMITS)}")
        raise fault
    if budget.baseline is not None and budget.growth is None:
        fault = table.fault("baseline", 'has no effect without growth; write growth = "5%"')
        raise fault
    return budget


def _first(own: bool | None, default: bool | None) -> bool:  # noqa: FBT001 - values of two tables
    return bool(default if own is None else own)


def _counts(table: ConfigTable, key: str) -> dict[str, int]:
    inner = table.table(key)
    return {} if inner is None else {name: inner.count(name) or 1 for name in inner.values}


def _shapes(table: ConfigTable) -> dict[str, tuple[int | str, ...]]:
    inner = table.table("shapes")
    return {} if inner is None else {name: _shape(inner, name) for name in inner.values}


def _shape(table: ConfigTable, name: str) -> tuple[int | str, ...]:
    shape = listed_shape(table.values[name])
    if shape is None:
        raise table.fault(name, "is not a list of dims; write [1, 3, 224, 224]")
    return shape


def _basis(table: ConfigTable) -> str | None:
    name = table.text("basis")
    if name is not None and name not in BASES:
        fault = table.fault("basis", f"unknown basis; choose one of {', '.join(BASES)}")
        raise fault
    return name


def _recipe(table: ConfigTable, defaults: ConfigTable) -> TrainingConfig:
    """The training configuration: the fields of ``TrainingConfig`` by name."""
    values: dict[str, Any] = {}
    for each in (defaults.table("recipe"), table.table("recipe")):
        if each is not None:
            each.refuse_unknown(field.name for field in fields(TrainingConfig))
            values |= {key: _recipe_value(each, key) for key in each.values}
    try:
        return TrainingConfig().with_fields(**values)
    except UsageError as error:
        fault = table.fault("recipe", str(error))
        raise fault from error


def _recipe_value(table: ConfigTable, key: str) -> object:
    """A value, which must have the type of the field's default."""
    default = getattr(TrainingConfig(), key)
    if isinstance(default, bool) or key in LEFT_OPEN:
        return table.switch(key)
    if isinstance(default, str):
        return table.text(key)
    if isinstance(default, tuple):
        value = table.values[key]
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise table.fault(key, 'is not a list of strings; write ["encoder.*"]')
        return tuple(value)
    return table.count(key)


_TOKEN: Final = re.compile(r"\*\*/|/\*\*$|\*\*|\*|\?|\[!?[^]/]+\]|.", re.DOTALL)
# Patterns are those of .gitignore: * and ? match within one part of a path, ** matches any number
# of parts, and a pattern without a slash matches the file's name in any folder. fnmatch would let *
# cross a slash, and pathlib matches ** only from Python 3.13 on.


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern matches a path; both are relative, their parts joined by ``/``.

    >>> matches("edge/**/*.onnx", "edge/a/b/net.onnx"), matches("*.onnx", "edge/net.onnx")
    (True, True)
    """
    pattern = pattern.removeprefix("./")
    subject = path if "/" in pattern else path.rpartition("/")[2]
    return _automaton(pattern).matches(subject)


@dataclass(frozen=True, slots=True)
class _Step:
    """A part of a pattern that consumes characters; ``accepts`` tests each of them."""

    accepts: Callable[[str], object]
    repeats: bool = False
    """Any number of them, none too; else one."""
    is_optional: bool = False
    """This step and the next one may be left out together."""


_ANY: Final = _Step(lambda _: True, repeats=True)
_SLASH: Final = _Step("/".__eq__)
_NOT_SLASH: Final = "/".__ne__
_STEPS: Final[Mapping[str, tuple[_Step, ...]]] = MappingProxyType(
    {
        "**/": (replace(_ANY, is_optional=True), _SLASH),
        "/**": (_SLASH, replace(_ANY, repeats=False), _ANY),
        "**": (_ANY,),
        "*": (_Step(_NOT_SLASH, repeats=True),),
        "?": (_Step(_NOT_SLASH),),
    }
)


class _Automaton:
    """A pattern as a finite automaton: a path is matched in time linear in its length.

    A regular expression of several ``**/`` backtracks: eight of them took seconds for a path that
    they do not match. A state is the set of steps that may come next; what follows from a state and
    a character is computed once.
    """

    def __init__(self, pattern: str) -> None:
        self._steps = tuple(step for token in _TOKEN.findall(pattern) for step in _steps_of(token))
        self._next: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._start = self._reachable([(0, True)])

    def matches(self, path: str) -> bool:
        state = self._start
        for char in path:
            key = (state, char)
            if key not in self._next:
                self._next[key] = self._after(state, char)
            state = self._next[key]
        return len(self._steps) in state

    def _after(self, state: frozenset[int], char: str) -> frozenset[int]:
        steps = [(index, self._steps[index]) for index in state if index < len(self._steps)]
        taken = [(index, step) for index, step in steps if step.accepts(char)]
        # A step that repeats was entered before: only where it is entered may it be left out.
        return self._reachable(
            (index, False) if step.repeats else (index + 1, True) for index, step in taken
        )

    def _reachable(self, entered: Iterable[tuple[int, bool]]) -> frozenset[int]:
        """The steps entered, or repeated, and those that follow without a character."""
        # A pattern may be hostile: states are finite and each is visited once, where a regular
        # expression could backtrack for as long as the path is deep.
        found: set[tuple[int, bool]] = set()
        waiting = list(entered)
        while waiting:
            index, is_new = waiting.pop()
            if (index, is_new) in found:
                continue
            found.add((index, is_new))
            if index == len(self._steps):
                continue
            step = self._steps[index]
            if step.repeats:
                waiting.append((index + 1, True))
            if step.is_optional and is_new:
                waiting.append((index + 2, True))
        return frozenset(index for index, _ in found)


_automaton = cache(_Automaton)


def _steps_of(token: str) -> tuple[_Step, ...]:
    if token in _STEPS:
        return _STEPS[token]
    if len(token) > 1:
        return (_Step(re.compile(_class(token), re.DOTALL).fullmatch),)
    return (_Step(token.__eq__),)


def _class(token: str) -> str:
    """A set of characters, as in ``[!a-c]``, as a regular expression."""
    inside = token[1:-1]
    sign, inside = ("^", inside[1:]) if inside.startswith("!") else ("", inside)
    # A hyphen is a range. re refuses a backward one such as [z-a], so it is escaped there.
    escaped = re.sub(r"([\\^\[\]&~|])", r"\\\1", inside)
    backwards = any(a > b for a, b in re.findall(r"(.)-(.)", inside))
    escaped = escaped.replace("-", r"\-") if backwards else escaped
    return f"[{sign}{escaped}]"

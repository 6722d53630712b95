"""A table of a TOML file, read key by key; an error names file, key, what is wrong, what to do."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from onnxmem.decisions.check.budgets import Budget, Growth, read_growth, read_size
from onnxmem.errors import UsageError, shortened
from onnxmem.settings import BASES, LEFT_OPEN, Recipe

TOP: Final = "tool.onnxmem"
_LIMITS: Final = ("peak", "weights", "training", "growth")
_KEYS: Final = (
    *("name", "path", "batch", "dims", "shapes", "train", "recipe", "basis", "accept"),
    *("baseline", *_LIMITS),
)
_Read = TypeVar("_Read")


class ConfigError(UsageError):
    """A configuration that makes no sense."""

    code: ClassVar[str] = "config"


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a file."""

    file: str
    key: str
    values: Mapping[str, object]

    def fault(self, key: str, what: str) -> ConfigError:
        """What to raise for a key."""
        place = ".".join(part for part in (self.key, key) if part)
        return ConfigError(
            ": ".join(p for p in (shortened(self.file), shortened(place), what) if p)
        )

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Refuse a key that means nothing.

        :raises ConfigError: there is one.
        """
        known = tuple(known)
        for key in self.values:
            if key not in known:
                fault = self.fault(key, f"is not known; choose one of {', '.join(known)}")
                raise fault

    def without(self, keys: Iterable[str]) -> "Table":
        """The table less some keys."""
        left = {key: value for key, value in self.values.items() if key not in set(keys)}
        return Table(self.file, self.key, left)

    def text(self, key: str) -> str | None:
        """A text; ``None`` where there is none."""
        value = self.values.get(key)
        if value is not None and (not isinstance(value, str) or not value):
            fault = self.fault(key, "is no text; write it in quotes")
            raise fault
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty where there is none."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            fault = self.fault(key, 'is no list of texts; write ["unbound_dims"]')
            raise fault
        return tuple(value)

    def path(self, key: str) -> Path | None:
        """A path, told from the file's folder; ``None`` where there is none."""
        text = self.text(key)
        return None if text is None else Path(self.file).parent / text

    def switch(self, key: str) -> bool | None:
        """True or false; ``None`` where there is neither."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            fault = self.fault(key, "is neither true nor false; write one of them, without quotes")
            raise fault
        return value

    def count(self, key: str) -> int | None:
        """A number from 1 on; ``None`` where there is none."""
        value = self.values.get(key)
        if value is not None and (type(value) is not int or value < 1):
            fault = self.fault(key, "is no whole number from 1 on; write one without quotes")
            raise fault
        return value

    def size_bytes(self, key: str) -> int | None:
        """A size as a text with its unit, or as a number of bytes; ``None`` where there is none."""
        return self._read(key, read_size)

    def growth(self, key: str) -> Growth | None:
        """What may be added: a share or a size; ``None`` where there is none."""
        return self._read(key, read_growth)

    def table(self, key: str) -> "Table | None":
        """A table within; ``None`` where there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            fault = self.fault(key, "is no table; write { name = value }")
            raise fault
        return Table(self.file, self._place(key), value)

    def tables(self, key: str) -> "tuple[Table, ...]":
        """The tables of an array."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            fault = self.fault(key, f"is no array of tables; write [[{self._place(key)}]]")
            raise fault
        place = self._place(key)
        return tuple(Table(self.file, f"{place}[{n}]", each) for n, each in enumerate(value))

    def _place(self, key: str) -> str:
        return ".".join(part for part in (self.key, key) if part)

    def _read(self, key: str, read: Callable[[str], _Read]) -> _Read | None:
        value = self.values.get(key)
        if value is None:
            return None
        if type(value) is int and value >= 0:
            value = str(value)
        if not isinstance(value, str):
            fault = self.fault(key, 'is neither a text nor bytes; write "256MiB" in quotes')
            raise fault
        try:
            return read(value)
        except UsageError as error:
            fault = self.fault(key, str(error))
            raise fault from error


def budget_of(table: Table, defaults: Table, name: str) -> Budget:
    """Read one budget; what it does not say of the setting stands in the defaults.

    :raises ConfigError: it makes no sense, or holds nothing.
    """
    table.refuse_unknown(_KEYS)
    budget = Budget(
        name=table.text("name") or name,
        path=table.text("path") or "**",
        batch=table.count("batch") or defaults.count("batch"),
        dims=_dims(defaults) | _dims(table),
        shapes=_shapes(defaults) | _shapes(table),
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
    if budget.holds_nothing:
        fault = table.fault("", f"holds nothing; give one of {', '.join(_LIMITS)}")
        raise fault
    if budget.baseline is not None and budget.growth is None:
        fault = table.fault("baseline", 'has no effect without growth; write growth = "5%"')
        raise fault
    return budget


def _first(own: bool | None, default: bool | None) -> bool:  # noqa: FBT001 - what two tables say
    return bool(default if own is None else own)


def _dims(table: Table) -> dict[str, int]:
    inner = table.table("dims")
    return {} if inner is None else {name: inner.count(name) or 1 for name in inner.values}


def _shapes(table: Table) -> dict[str, tuple[int, ...]]:
    inner = table.table("shapes")
    return {} if inner is None else {name: _shape(inner, name) for name in inner.values}


def _shape(table: Table, name: str) -> tuple[int, ...]:
    value = table.values[name]
    if not isinstance(value, list) or any(type(dim) is not int or dim < 1 for dim in value):
        fault = table.fault(name, "is no list of dims; write [1, 3, 224, 224]")
        raise fault
    return tuple(value)


def _basis(table: Table) -> str | None:
    name = table.text("basis")
    if name is not None and name not in BASES:
        fault = table.fault("basis", f"is not known; choose one of {', '.join(BASES)}")
        raise fault
    return name


def _recipe(table: Table, defaults: Table) -> Recipe:
    """How a model is trained: the fields of ``Recipe`` by name."""
    given: dict[str, Any] = {}
    for each in (defaults.table("recipe"), table.table("recipe")):
        if each is not None:
            each.refuse_unknown(field.name for field in fields(Recipe))
            given |= {key: _recipe_value(each, key) for key in each.values}
    try:
        return Recipe().with_fields(**given)
    except UsageError as error:
        fault = table.fault("recipe", str(error))
        raise fault from error


def _recipe_value(table: Table, key: str) -> object:
    """A value of the kind that the field's default is of."""
    default = getattr(Recipe(), key)
    if isinstance(default, bool) or key in LEFT_OPEN:
        return table.switch(key)
    if isinstance(default, str):
        return table.text(key)
    if isinstance(default, tuple):
        value = table.values[key]
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            fault = table.fault(key, 'is no list of texts; write ["encoder.*"]')
            raise fault
        return tuple(value)
    return table.count(key)

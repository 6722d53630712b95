"""What a card costs: a user's own prices, from a CSV or TOML file, or the catalog's launch prices.

Nothing else is known of prices. A file is refused in one message that has all of its faults and a
file that works, as the format is nobody's but this tool's.
"""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from types import MappingProxyType
from typing import Final

from onnxmem.decisions.devices import Catalog, Device
from onnxmem.errors import UsageError, shortened
from onnxmem.files import parsed_toml, read_text, reason_of

_SAMPLE: Final = ("device,price_per_hour,date", "RTX 4090,0.69,2026-11-26", "T4,0.35,2026-11-26")
"""A whole file: one name of the catalog needs no quotes, and a date can be left out."""
_PER: Final = ("card", "hour")
_AMOUNTS: Final[Mapping[str, str | None]] = MappingProxyType(
    {"amount": None, "price_per_card": "card", "price_per_hour": "hour"}
)
"""Keys of an amount, with what it is for; ``None``: the key ``per`` says so."""
_SHARED_KEYS: Final = ("currency", "per", "date", "source")
_OWN_KEYS: Final = ("device", *_AMOUNTS, *_SHARED_KEYS)
_CURRENCY: Final = "USD"
"""Where a file names none: that of the launch prices."""
_LAUNCH: Final = "at launch"
_FAULTS_SHOWN: Final = 6
_MOST: Final = 10**12

Entry = tuple[str, Mapping[str, object]]
"""A price as its file has it, and where."""


class PriceError(UsageError):
    """A file of prices that cannot be read, or makes no sense."""


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one card."""

    amount: float
    date: str | None
    """When it was asked for; ``at launch`` of the catalog's own, ``None`` where nothing says so."""
    source: str | None


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices by the name of the device, all in one currency and for the same thing."""

    currency: str
    per: str
    """``card``: to buy one; ``hour``: to rent one."""
    by_device: Mapping[str, Price]

    @property
    def unit(self) -> str:
        """``USD`` or ``USD per hour``."""
        return self.currency if self.per == "card" else f"{self.currency} per hour"


def launch_prices(devices: Iterable[Device]) -> Prices:
    """The launch prices that the catalog has a source for."""
    return Prices(
        _CURRENCY,
        "card",
        {
            device.name: Price(device.price_usd, _LAUNCH, device.sources.get("price_usd", ""))
            for device in devices
            if device.price_usd is not None
        },
    )


def read_prices(path: str, known: Catalog) -> Prices:
    """Read a user's file of prices.

    :raises PriceError: it cannot be read, or with all that is wrong in it.
    """
    faults: list[str] = []
    try:
        entries = tuple(_entries(read_text(path, "utf-8-sig"), faults))
    except (OSError, ValueError) as fault:
        raise _refusal(path, [f"cannot be read as a file of prices: {reason_of(fault)}"]) from fault
    found: dict[str, Price] = {}
    units: set[tuple[str, str]] = set()
    if not entries and not faults:
        faults.append("has no price")
    for where, entry in entries:
        own: list[str] = []
        name, price, unit = _device(entry, known, own), _price(entry, own), _unit(entry, own)
        if name in found:
            own.append("the device has a price already")
        faults += (f"{where}: {fault}" for fault in own)
        if not own:
            found[name] = price
            units.add(unit)
    if len(units) > 1:
        names = " and ".join(sorted(f"{currency} per {per}" for currency, per in units))
        faults.append(f"has prices in {names}, which nothing compares")
    if faults:
        raise _refusal(path, faults)
    ((currency, per),) = units
    return Prices(currency, per, found)


def _refusal(path: str, faults: list[str]) -> PriceError:
    """All faults of a file in one line, and a file without any."""
    shown = [*faults[:_FAULTS_SHOWN]]
    if len(faults) > _FAULTS_SHOWN:
        shown.append(f"{len(faults) - _FAULTS_SHOWN:,} more")
    sample = ", ".join(f"'{line}'" for line in _SAMPLE)
    return PriceError(
        f"{shortened(path)}: {'; '.join(shown)}; a file that works has these "
        f"{len(_SAMPLE)} lines: {sample}"
    )


def _entries(text: str, faults: list[str]) -> Iterator[Entry]:
    """The prices of a CSV or TOML file.

    The first line of a CSV names columns; that of a TOML is a table or a key with its value.

    :raises ValueError: it is neither.
    """
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    is_toml = first.startswith("[") or "=" in first
    return _of_toml(text, faults) if is_toml else _of_csv(text, faults)


def _of_csv(text: str, faults: list[str]) -> Iterator[Entry]:
    """The lines of a table; a cell without text is no value.

    :raises ValueError: a quote is not closed.
    """
    rows = csv.reader(text.splitlines(), strict=True, skipinitialspace=True)
    try:
        table = [(rows.line_num, [cell.strip() for cell in row]) for row in rows]
    except csv.Error as fault:
        raise ValueError(str(fault)) from fault
    header: list[str] | None = None
    # `line_num` rather than a count of rows: a quoted cell may have line breaks.
    for line, cells in table:
        if not any(cells) or cells[0].startswith("#"):
            continue
        if header is None:
            header = [cell.lower() for cell in cells]
            faults += _faults_of_keys(header, _OWN_KEYS, "column")
            faults += [f"has no column {name}" for name in ("device",) if name not in header]
            if not _AMOUNTS.keys() & set(header):
                faults.append(f"has no column {' or '.join(_AMOUNTS)}")
            if faults:
                return
        elif len(cells) != len(header):
            faults.append(f"line {line} has {len(cells)} cells, the header {len(header)}")
        else:
            filled = {name: cell for name, cell in zip(header, cells, strict=True) if cell}
            yield f"line {line}", filled


def _of_toml(text: str, faults: list[str]) -> Iterator[Entry]:
    """The tables ``[[price]]``, with what the file says of all prices."""
    document = parsed_toml(text)
    tables = document.pop("price", [])
    faults += _faults_of_keys(document, _SHARED_KEYS, "key")
    if not isinstance(tables, list) or not tables or not all(isinstance(x, dict) for x in tables):
        faults.append("has no [[price]] table")
        return
    for number, table in enumerate(tables, 1):
        device = table.get("device")
        where = f"price of {shortened(device)}" if isinstance(device, str) else f"price {number}"
        faults += (f"{where}: {fault}" for fault in _faults_of_keys(table, _OWN_KEYS, "key"))
        # A table's own keys override those of the document.
        yield where, {**document, **table}


def _faults_of_keys(keys: Iterable[str], known: tuple[str, ...], what: str) -> list[str]:
    unknown = [key for key in keys if key not in known]
    if not unknown:
        return []
    names = ", ".join(repr(shortened(key)) for key in unknown[:_FAULTS_SHOWN])
    return [f"unknown {what} {names} (known: {', '.join(known)})"]


def _device(entry: Mapping[str, object], known: Catalog, faults: list[str]) -> str:
    name = entry.get("device")
    if not isinstance(name, str):
        faults.append("has no device")
        return ""
    device = known.get(name)
    if device is None:
        faults.append(
            f"there is no device {shortened(name)}; onnxmem devices lists all, --devices adds one"
        )
        return ""
    return device.name


def _price(entry: Mapping[str, object], faults: list[str]) -> Price:
    keys = [key for key in _AMOUNTS if key in entry]
    amount = _number(entry[keys[0]]) if keys else None
    if len(keys) != 1:
        names = " or ".join(_AMOUNTS)
        faults.append("has two amounts" if keys else f"has no {names}")
    elif amount is None:
        faults.append(f"{keys[0]} is not a positive number")
    day, source = entry.get("date"), entry.get("source")
    written = None if day is None else _day(day)
    if day is not None and written is None:
        faults.append("the date is not one, as in 2026-11-26")
    if source is not None and not isinstance(source, str):
        faults.append("the source is not a text")
    return Price(amount or 0.0, written, shortened(str(source)) if source else None)


def _unit(entry: Mapping[str, object], faults: list[str]) -> tuple[str, str]:
    """The currency, and what an amount is for."""
    currency, per = entry.get("currency", _CURRENCY), entry.get("per")
    if not isinstance(currency, str) or not currency:
        faults.append("the currency is not a text, as in 'USD'")
    said = next((_AMOUNTS[key] for key in _AMOUNTS if key in entry), None)
    if per is not None and per not in _PER:
        faults.append(f"per is not {' or '.join(_PER)}")
    elif said is None and per is None and "amount" in entry:
        faults.append(f"amount needs per, which is {' or '.join(_PER)}")
    elif said is not None and per not in {None, said}:
        faults.append(f"is per {said}, and per says {per}")
    return shortened(str(currency)), said or str(per)


def _number(value: object) -> float | None:
    """A positive number, of a cell too; ``None``: it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    # `float` also reads `nan` and `inf`.
    return number if math.isfinite(number) and 0 < number < _MOST else None


def _day(value: object) -> str | None:
    """A day as ISO writes it, quoted or not; ``None``: it is none."""
    # A `datetime` is a `date` as well, so it is tested first.
    if isinstance(value, datetime):
        return value.date().isoformat()
    if isinstance(value, date):
        return value.isoformat()
    try:
        return (
            None if not isinstance(value, str) else datetime.fromisoformat(value).date().isoformat()
        )
    except ValueError:
        return None

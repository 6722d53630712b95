"""Format and parse bytes and counts, and add them up if some are unknown (``None``).

Sizes are printed in IEC units; SI, IEC and Kubernetes units are parsed.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from onnxmem.errors import UsageError

_LEAST: Final = 0.01
"""Of a unit: what is written with two decimals."""
_SI = ("k", "M", "G", "T", "P", "E")
_IEC = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")

_FACTORS: Final[Mapping[str, int]] = {
    "": 1,
    "b": 1,
    **{prefix + "b": int(1000**power) for power, prefix in enumerate("kmgtp", start=1)},
    **{prefix + "ib": int(1024**power) for power, prefix in enumerate("kmgtp", start=1)},
    **{prefix + "i": int(1024**power) for power, prefix in enumerate("kmgtp", start=1)},
}
_SIZE = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)\s*")


def format_bytes(num_bytes: int | None) -> str:
    """A byte count in IEC units with at least three significant digits; ``None`` is unknown.

    >>> format_bytes(1_863_680)
    '1.78 MiB'
    """
    if num_bytes is None:
        return "unknown"
    if abs(num_bytes) < 1024:  # noqa: PLR2004 - the first IEC step
        return f"{num_bytes} B"
    value = float(num_bytes)
    unit = 0
    # 1023.995 would round to "1024": step on to the next unit first.
    while abs(value) >= 1023.5 and unit + 1 < len(_IEC):  # noqa: PLR2004 - rounds up to the next unit
        value /= 1024
        unit += 1
    decimals = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0  # noqa: PLR2004 - three digits in all
    return f"{value:.{decimals}f} {_IEC[unit]}"


def format_limit(num_bytes: int | None) -> str:
    """A size that somebody gave: in the decimal unit that it is whole in, and in IEC units.

    >>> format_limit(16_000_000_000), format_limit(16 * 1024**3)
    ('16 GB (14.9 GiB)', '16.0 GiB')
    """
    given = in_decimal_unit(num_bytes)
    size = format_bytes(num_bytes)
    return f"{given} ({size})" if given else size


def in_decimal_unit(num_bytes: int | None) -> str:
    """A size that is whole in MB and not in MiB, as it was given; empty: any other size.

    >>> in_decimal_unit(1_500_000_000)
    '1.5 GB'
    """
    if num_bytes is None or num_bytes % 1000**2 or num_bytes % 1024**2 == 0:
        return ""
    power = min((len(str(num_bytes)) - 1) // 3, len(_SI))
    return f"{num_bytes / 1000**power:g} {_SI[power - 1]}B"


def format_ends(least_bytes: int | None, most_bytes: int | None) -> str:
    """What is taken at least and at most; without an end above, only at least.

    >>> format_ends(1_024, None)
    'at least 1.00 KiB'
    """
    most = "" if most_bytes is None else f", at most {format_bytes(most_bytes)}"
    return f"at least {format_bytes(least_bytes)}{most}"


def unit_power(num_bytes: int) -> int:
    """The IEC unit in which a size is written, as a power of 1024.

    >>> unit_power(1_863_680)
    2
    """
    return min(max(num_bytes.bit_length() - 1, 0) // 10, len(_IEC) - 1)


def common_power(sizes: Iterable[int | None]) -> int:
    """The IEC unit of a table, as a power of 1024: the largest in which no size rounds to nothing.

    >>> common_power([6 * 1024**3, 256 * 1024, None])
    2
    """
    known = [abs(size) for size in sizes if size]
    power = unit_power(max(known, default=0))
    while power and min(known) < _LEAST * 1024**power:
        power -= 1
    return power


def in_unit(num_bytes: int | None, power: int) -> str:
    """Write a byte count in a given IEC unit; what rounds to nothing is written as less.

    >>> in_unit(1_863_680, 3), in_unit(186_368_000, 3)
    ('<0.01 GiB', '0.17 GiB')
    """
    if num_bytes is None:
        return "unknown"
    if power == 0:
        return f"{num_bytes:,} B"
    value = num_bytes / 1024**power
    if 0 < abs(value) < _LEAST:
        return f"{'-' if value < 0 else ''}<{_LEAST} {_IEC[power]}"
    return f"{value:,.2f} {_IEC[power]}"


def format_count(count: int | None) -> str:
    """A count in short SI form: ``25.6 M``; ``None`` is unknown."""
    if count is None:
        return "unknown"
    if abs(count) < 10_000:  # noqa: PLR2004 - four digits are read at a glance
        return f"{count:,}"
    power = 1
    # 999.5 would round to 1000: step on to the next prefix.
    while abs(count) >= 999.5 * 1000**power and power < len(_SI):
        power += 1
    return f"{count / 1000**power:.3g} {_SI[power - 1]}"


def parse_size(text: str, likely: str = "GiB") -> int:
    """Read a size in bytes: ``24GiB``, ``16 GB``, ``512Mi``, ``1000000``.

    GB is 10^9 and GiB is 2^30. ``24G`` is rejected because it is ambiguous, and so is a number
    below 1024 without a unit, which is hardly ever meant in bytes: ``likely`` is the unit to
    suggest.

    :raises UsageError: it is not a size.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match["unit"].lower()) if match else None
    if match is None or factor is None:
        hint = "write GB for 10^9 or GiB for 2^30 bytes, as in 24GiB or 512MiB"
        message = f"size {text!r}: not understood; {hint}"
        raise UsageError(message)
    if not match["unit"] and 0 < float(match["number"]) < 1024:  # noqa: PLR2004 - the first IEC step
        number = match["number"]
        message = f"{number} means {number} bytes; write {number}{likely}, or {number}B for bytes"
        raise UsageError(message)
    whole, _, fraction = match["number"].partition(".")
    # Integer arithmetic: a float would lose bytes above 2^53.
    scale = int("1" + "0" * len(fraction))
    return int(whole + fraction) * factor // scale


def plural(count: int, noun: str) -> str:
    """A count with its noun: ``1 node``, ``2 nodes``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def sum_known(counts: Iterable[int | None]) -> int | None:
    """Sum the known counts: a lower bound if some are unknown, ``None`` if all are.

    The sum of no counts is 0.
    """
    every = list(counts)
    known = [count for count in every if count is not None]
    return sum(known) if known or not every else None


def sum_if_known(counts: Iterable[int | None]) -> int | None:
    """Sum the counts; ``None`` if one of them is unknown."""
    every = list(counts)
    known = [count for count in every if count is not None]
    return sum(known) if len(known) == len(every) else None

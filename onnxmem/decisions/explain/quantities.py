"""Read quantities of memory in a text of any program and language, and what each of them is.

The grammar has parts that don't depend on a wording:

1. A **number with a unit** (``1,234,567 bytes``, ``12,5 Go``, ``216.8 МБ``), or a bare integer
   beside a word that makes it bytes.
2. A **cue**: a word that says what a quantity is (requested, free, in use, reserved, at the peak,
   total). Cues that follow each other are one: ``total free`` is free, ``maximum buffer size`` is
   a total. ``words.toml`` is the lexicon.
3. A **clause**, which ends at a full stop, a semicolon or a bar. A cue names one quantity of its
   clause, the nearest, before it or behind it; in ``used: 3 GiB`` only the one behind it.
4. A **pair**: ``3 of 4 GiB``, ``3 GiB / 4 GiB`` and ``3 GiB > 4 GiB`` compare a quantity with a
   total; ``5.5 MiB (5760000 bytes)`` is one quantity.

A quantity without a cue has no role: it is reported as unknown, and nothing is concluded from it.
"""

import re
import tomllib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from importlib.resources import files
from itertools import pairwise
from math import ceil, floor, inf
from typing import Any, Final


class Role(StrEnum):
    """What a quantity of memory is, by the words around it."""

    REQUESTED = "requested"
    FREE = "free"
    USED = "in use"
    ALLOCATED = "allocated"
    """Handed out by an allocator; by a message that names no use of the process, what is in use."""
    RESERVED = "reserved"
    UNALLOCATED = "reserved and not allocated"
    PEAK = "at the peak"
    TOTAL = "total or limit"
    OTHER = "something else"
    """A cue says that it is none of these: the excess over a limit, virtual memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """Bytes that a text names. A rounded number stands for all sizes that are printed so."""

    least_bytes: int
    most_bytes: int
    size_bytes: int
    """The number as it is printed."""
    text: str
    start: int
    end: int
    factor: int
    """The bytes of its unit."""
    step_bytes: int
    """The bytes of its last decimal."""
    has_unit: bool
    """A bare integer is a quantity only if its words make it bytes."""
    role: Role | None = None
    """``None``: no word says it."""
    rank: int = 0
    """How plainly the words say it; of two quantities in one role the plainer one counts."""
    is_keyed: bool = False
    """Whether it is the value of a key, as in ``limit: 8``."""
    is_sized: bool = False
    """Whether a noun such as ``size`` names it, so that a small integer is a size too."""

    def overlaps(self, other: "Quantity") -> bool:
        """Whether both may be the same size."""
        return self.least_bytes <= other.most_bytes and other.least_bytes <= self.most_bytes


@dataclass(frozen=True, slots=True)
class _Cue:
    start: int
    end: int
    role: Role
    rank: int
    is_limit: bool
    """Whether it is a total that qualifies a request: ``max alloc size`` is no request."""
    is_key: bool
    """Whether a colon or an equals sign follows: then it names nothing before it."""


# The lexicon.

_WORDS: Final[dict[str, Any]] = tomllib.loads(
    files("onnxmem.decisions.explain").joinpath("words.toml").read_text(encoding="utf-8")
)


def words(name: str) -> str:
    """A list of the lexicon as one regular expression; ``<memory>`` stands for its list."""
    alternatives = "|".join(_WORDS[name])
    return alternatives.replace("<memory>", f"(?:{'|'.join(_WORDS['memory'])})")


# Numbers with units.

_NUMBER: Final = (
    # English and Indian groups: 12,345,678 and 1,23,45,678.
    r"\d{1,3}(?:,\d{2,3}){2,8}(?:\.\d{1,9})?"
    # One group is a thousand only if neither digit nor comma follows: 1,234.
    r"|\d{1,3},\d{3}(?:\.\d{1,9})?(?![\d,])"
    # German groups need two points, because 1.234 is a decimal: 1.234.567,8.
    r"|\d{1,3}(?:\.\d{3}){2,8}(?:,\d{1,9})?"
    # Groups after a narrow or no-break space or an apostrophe: 1'234.
    "|\\d{1,3}(?:[\u00a0\u2009\u202f'\u2019]\\d{3}){1,8}(?:[.,]\\d{1,9})?"
    # A plain space also separates numbers, so one group is not enough.
    r"|\d{1,3}(?: \d{3}){2,8}"
    # As Python writes them: 1_234_567.
    r"|\d{1,3}(?:_\d{3}){1,8}"
    # Everything else: 12345, 1.5, 1,5, 1e9. Possessive, so that no prefix of the digits is tried.
    r"|\d{1,24}+(?:[.,]\d{1,12}|\.(?=\s?[KMGTP]i?B))?(?:[eE][+-]?\d{1,2})?"
)
_UNIT: Final = words("units")
_QUANTITY: Final = re.compile(
    rf"(?<![A-Za-z0-9_.$#@-])(?<![A-Za-z0-9_]\*)(?P<number>{_NUMBER})"
    rf"(?:[\s-]?(?P<unit>{_UNIT})(?![A-Za-z0-9_\u0430-\u044f\u0451])(?!/s|ps))?"
    r"(?![A-Za-z0-9_%]|\.\d)"
)
_FACTORS: Final = {
    "k": 1, "\u043a": 1, "m": 2, "\u043c": 2, "g": 3, "\u0433": 3,
    "t": 4, "\u0442": 4, "p": 5, "e": 6, "キ": 1, "メ": 2, "ギ": 3, "テ": 4,
}  # fmt: skip
_PLAIN_UNITS: Final = ("byte", "octet", "bayt", "bajt", "байт", "バ", "字", "바")
_LARGEST_BYTES: Final = 1 << 70
_UNIT_BEFORE: Final = re.compile(
    r"(?i)(?:\b|_)(bytes|[kmgt]i?b)(?:\b|_)[\s)\]:=\w]{0,14}?(?:of|is|[:=])?\s?[\"'(\[]?$"
)
_LONG: Final = 6
_SHARED_UNIT: Final = re.compile(
    r"(?:\s?/\s?|\s(?:out )?of\s)(\d{1,12}(?:[.,]\d{1,6})?)"
    rf"\s?({_UNIT})(?![A-Za-z0-9_])(?!/s|ps)"
)
_BYTES_BEHIND: Final = re.compile(r"\s(?:free|used|available|total|allocated|reserved) bytes\b")


def _factor_of(unit: str | None) -> int:
    """Bytes of a unit. Programs that print GB or G mean 2^30 bytes, as those that print GiB."""
    name = (unit or "").lower().strip()
    if not name or name in {"b", "o"} or name.startswith(_PLAIN_UNITS):
        return 1
    return int(1 << 10 * _FACTORS[name[0]])


def _value(number: str) -> tuple[Fraction, Fraction]:
    """The number, and half a unit of its last decimal."""
    mantissa, _, exponent = number.lower().partition("e")
    digits = re.sub("[ _'\u00a0\u2009\u202f\u2019]", "", mantissa).rstrip(".")
    if re.fullmatch(r"\d{1,3}(\.\d{3}){2,}(,\d+)?", digits):
        digits = digits.replace(".", "").replace(",", ".")
    # A comma with other than three digits behind it, or four or more before it, is a decimal one.
    elif re.fullmatch(r"\d+,(\d{1,2}|\d{4,})|\d{4,},\d+", digits):
        digits = digits.replace(",", ".")
    digits = digits.replace(",", "")
    scale = Fraction(10) ** int(exponent or 0)
    decimals = len(digits.partition(".")[2])
    # numpy prints three digits: ``926.`` is rounded, ``926`` is not.
    is_rounded = decimals or mantissa.endswith(".")
    half = Fraction(1, 2 * 10**decimals) if is_rounded else Fraction(0)
    return Fraction(digits) * scale, half * scale


def _quantity(number: str, unit: str | None, match: re.Match[str]) -> Quantity | None:
    value, half = _value(number)
    factor = _factor_of(unit)
    # No memory is that large: it is an address or an identifier.
    if value * factor > _LARGEST_BYTES:
        return None
    return Quantity(
        # Rounded inwards: only sizes that are printed as this number.
        least_bytes=ceil((value - half) * factor),
        most_bytes=floor((value + half) * factor),
        size_bytes=round(value * factor),
        text=" ".join(match[0].split()),
        start=match.start(),
        end=match.end(),
        factor=factor,
        step_bytes=max(round(2 * half * factor) or factor, 1),
        has_unit=unit is not None,
    )


_COUNTED: Final = re.compile(rf"\s?(?:{words('counted')})")
_OF_CPU: Final = re.compile(r"(?i)cpus?\W{1,12}$")
"""Kubernetes' ``cpu: 100m`` is a tenth of a core."""
_MODEL: Final = re.compile(r"(?i)\b(?:gtx|rtx|gt|mx|rx|quadro|radeon|geforce)\s?$")
"""``GTX 960M`` is the name of a card."""
_NUMBERED: Final = re.compile(rf"(?i)(?:{words('numbered')})\s?[#:=(]?\s?$")


def _numbers(text: str) -> Iterator[Quantity]:
    for match in _QUANTITY.finditer(text):
        number, unit = match["number"], match["unit"]
        start = max(match.start() - 24, 0)
        if unit == "m" and _OF_CPU.search(text, start, match.start()):
            continue
        if _MODEL.search(text, start, match.start()):
            continue
        if unit is None:
            before = text[start : match.start()]
            is_index = number.isdigit() and _NUMBERED.search(before)
            is_item = len(number) == 1 and before.endswith("(") and text[match.end() :][:1] == ")"
            # `(1)` is an item of a list, `007` a padded index.
            is_padded = len(number) > 1 and number.isdigit() and number.startswith("0")
            if is_index or is_item or is_padded or _COUNTED.match(text, match.end()):
                continue
            unit = _distant_unit(number, before, text, match.end())
            if unit is None and not number.isdigit() and "," not in number:
                continue
        found = _quantity(number, unit, match)
        if found is not None:
            yield found


def _distant_unit(number: str, before: str, text: str, end: int) -> str | None:
    """The unit of a number that it does not stand beside."""
    # ``20.5/24.0 GiB``, but not ``3844551592/3.5gb``.
    is_short = len(number.partition(".")[0]) < _LONG
    shared = _SHARED_UNIT.match(text, end) if is_short else None
    named = _UNIT_BEFORE.search(before) or shared
    if named is shared is not None and number.isdigit():
        # ``3362/3.2kb`` is one size, in bytes.
        rounded = Fraction(shared[1].replace(",", ".")) * _factor_of(shared[2])
        if abs(int(number) - rounded) < _factor_of(shared[2]) / 2:
            return "bytes"
    if named is not None:
        return named[named.re.groups]
    return "bytes" if _BYTES_BEHIND.match(text, end) else None


# Cues.

_FAILED: Final = re.compile(rf"(?i){words('failed')}")

_NOUNS: Final = words("nouns")
_CUES: Final = tuple(
    (
        Role(each["role"]),
        int(each["rank"]),
        "|".join(each.get("words", _WORDS.get(each.get("words_of")))),
    )
    for each in _WORDS["cues"]
)

_CUE: Final = re.compile(
    r"(?i)(?:(?<![A-Za-z\u0410-\u044f\u0401\u0451])|(?-i:(?<=[a-z])(?=[A-Z]))"
    # Chinese and Japanese have no spaces: a cue stands behind any letter.
    r"|(?=[\u3040-\u9fff]))"
    rf"(?:(?P<neutral>{words('neutral')})|"
    + "|".join(f"(?P<cue{at}>{alternatives})" for at, (_, _, alternatives) in enumerate(_CUES))
    # ``grow`` is no word of ``MEMORY_GROWTH=1``.
    + r")(?-i:(?![a-z\u0430-\u044f\u0451])(?!(?<=[A-Z])[A-Z]))"
)
_KEY: Final = re.compile(
    r"(?:[\w.]{0,12}|\s?\([^()]{0,30}\)|\s(?:to|so far|memory reported))\s?[\"']?\s?[:=]"
)
_FIRST: Final = r"[A-Za-z0-9_]{0,12}\((?:(?:0x[0-9a-f]{1,16}|[^()\d]{0,30}),\s?)?"
_CALL: Final = re.compile(rf"{_FIRST}(?=\d{{4,}})")
"""``malloc(92274696``, ``hipMalloc(&ptr, 92274696``, where the size is an argument."""
_ARGUMENTS: Final = re.compile(_FIRST)
_JOINED: Final = re.compile(rf"(?i)(?:{words('joined')})*")
_LONGEST_JOINT: Final = 40
_BROKEN: Final = re.compile(r"\b([a-z]{1,12})\n([a-z]{1,12})\b")
_PRECEDENCE: Final = (
    Role.PEAK, Role.FREE, Role.UNALLOCATED, Role.RESERVED, Role.USED, Role.ALLOCATED, Role.OTHER,
    Role.REQUESTED, Role.TOTAL,
)  # fmt: skip
"""Of a phrase of cues, the role that prevails: ``total`` and ``maximum`` qualify the others."""


def rejoined(text: str) -> str:
    r"""A text without the line breaks that a terminal put into cues: ``alloca\nted``."""
    return _BROKEN.sub(
        lambda match: match[1] + match[2] if _CUE.fullmatch(match[1] + match[2]) else match[0], text
    )


def _cues(text: str, stops: Sequence[int], quantities: Sequence[Quantity]) -> list[_Cue]:
    found: list[_Cue] = []
    starts = [each.start for each in quantities]
    for match in _CUE.finditer(text):
        if match.lastgroup == "neutral":
            continue
        role, rank, _ = _CUES[int((match.lastgroup or "")[3:])]
        # ``alloc()`` is a function, whose size is not printed.
        if role is Role.REQUESTED and text.startswith("()", match.end()):
            continue
        is_limit = role is Role.TOTAL and match[0].lower().startswith(
            ("max", "limit", "最大", "上限")
        )
        is_called = role is Role.REQUESTED and _CALL.match(text, match.end()) is not None
        is_key = is_called or _KEY.match(text, match.end()) is not None
        cue = _Cue(match.start(), match.end(), role, rank, is_limit, is_key)
        last = found[-1] if found else None
        if (
            # Two cues are one phrase if only joining words are between them, and neither quantity
            # nor stop.
            last is None
            or last.is_key
            or (last.role is Role.OTHER and "\n" in text[last.end : cue.start])
            or cue.start - last.end > _LONGEST_JOINT
            or not _JOINED.fullmatch(text, last.end, cue.start)
            or _count(starts, last.end, cue.start)
            or _count(stops, last.end, cue.start)
        ):
            found.append(cue)
        else:
            found[-1] = _joined(last, cue)
    return found


def _joined(one: _Cue, two: _Cue) -> _Cue:
    """A phrase of two cues, such as ``total free`` or ``maximum buffer size``."""
    by_role = sorted((one, two), key=lambda each: _PRECEDENCE.index(each.role))
    prevails = by_role[0]
    nouns = (Role.REQUESTED, 0)
    if (prevails.role, prevails.rank) == nouns:
        prevails = by_role[1]
    if {one.role, two.role} == {Role.REQUESTED, Role.FREE} and (two.role, two.rank) != nouns:
        prevails = two
    if one.is_limit and two.role is Role.REQUESTED:
        prevails = one
    rank = max(each.rank for each in (one, two) if each.role is prevails.role)
    return _Cue(one.start, two.end, prevails.role, rank, prevails.is_limit, two.is_key)


# Clauses: which cue names which quantity.

_STOP: Final = re.compile(
    r"[.!?](?=[\s\"')\]]|$)(?!\s[KMGTP]i?B)|[;|\u3002\uff1b\uff01\uff1f]",
)
_SOFT: Final = re.compile(r"[,()\[\]{}\uff0c\uff08\uff09\u3001]|(?<![a-z])\n|\n(?![a-z0-9])")
"""A line break between a small letter and another or a digit is one within a sentence."""
_WORD: Final = re.compile(r"[^\W\d]\w*")
_FILLER: Final = frozenset(
    "is are was be been of to the a an at only just about already currently still memory mem for "
    "gpu device physical system exactly approximately least most bytes byte size by with which "
    "buffer chunk block vector array and so far set ist sind war von der die das de la le les du "
    "des un une est el es del do da di il è sebesar".split()
)
_FARTHEST: Final = 7.0
_FARTHEST_BEHIND: Final = 4.5
_UNNAMED: Final = 7.5
_NEAR: Final = 0.95
"""As far as a cue may be from a bare integer."""
_LOOK: Final = 3
"""Cues on each side of a quantity that are tried."""
_LARGEST_GROUP: Final = 32
_LONGEST_KEY: Final = 48
_LONGEST_CLAUSE: Final = 120
_LONGEST_COMPARISON: Final = 60
_KEYED: Final = re.compile(
    r"(?:[\w.]{0,12}|\s?\([^()]{0,30}\)|\s(?:to|so far|(?:\[\w{1,12}\]\s)?memory(?: reported)?))?"
    r"\s?[\"'\]]?\s?[:=]\s?[\"'\[(]?\s?"
)


def _count(positions: Sequence[int], start: int, end: int) -> int:
    return bisect_left(positions, end) - bisect_left(positions, start)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where stops, soft boundaries and words of a text are, as sorted positions."""

    text: str
    stops: tuple[int, ...]
    softs: tuple[int, ...]
    starts: tuple[int, ...]
    """Of the quantities."""

    def before(self, cue: _Cue, quantity: Quantity) -> float:
        """How far a cue is before a quantity."""
        start, end = cue.end, quantity.start
        if start > end:
            return inf
        gap = self.text[start:end]
        if end - start <= _LONGEST_KEY and (_KEYED.fullmatch(gap) or _ARGUMENTS.fullmatch(gap)):
            return 0.0
        distance = self._distance(start, end)
        # A quantity in parentheses belongs to what is before them.
        return distance - 1.5 if gap.rstrip().endswith(("(", "[", "\uff08")) else distance

    def behind(self, cue: _Cue, end: int) -> float:
        """How far a cue is behind the end of a quantity, or of its pair."""
        if cue.is_key or cue.start < end:
            return inf
        # A cue before a quantity wins over one that is as far behind.
        return self._distance(end, cue.start) + 0.1

    def _distance(self, start: int, end: int) -> float:
        if end - start > _LONGEST_CLAUSE or _count(self.stops, start, end):
            return inf
        words = _WORD.findall(self.text[start:end].lower())
        fillers = sum(word in _FILLER for word in words)
        softs = _count(self.softs, start, end)
        # In words: fillers hardly count, a comma or parenthesis counts as two, and a quantity in
        # between puts a cue nearly out of reach.
        return len(words) - 0.8 * fillers + 2 * softs + 5 * _count(self.starts, start, end)


def quantities(text: str) -> tuple[Quantity, ...]:
    """All quantities of memory in a text, in order, each with its role if a word says it."""
    stops = tuple(match.start() for match in _STOP.finditer(text))
    numbers = _merged(list(_numbers(text)), text)
    layout = _Layout(
        text,
        stops,
        tuple(match.start() for match in _SOFT.finditer(text)),
        tuple(each.start for each in numbers if each.has_unit),
    )
    named = _named(numbers, _cues(text, stops, numbers), layout)
    return tuple(_kept(_of_cards(_compared(_asserted(named, text), text), text), text))


def _merged(numbers: Sequence[Quantity], text: str) -> list[Quantity]:
    """One quantity for a size that is printed twice, rounded and exactly."""
    merged: list[Quantity] = []
    for each in numbers:
        last = merged[-1] if merged else None
        gap = "" if last is None else text[last.end : each.start]
        if last is not None and _ALIAS.fullmatch(gap):
            # ``2.00 GiB (2147483648 bytes)``: the finer step is the exact one.
            # Either order occurs: the rounded size first, or the exact one.
            exact, rounded = (last, each) if last.step_bytes <= each.step_bytes else (each, last)
            if (
                (last.has_unit or each.has_unit)
                and exact.step_bytes == 1
                and _is_alias(exact, rounded)
            ):
                merged[-1] = replace(exact, start=last.start, end=each.end, has_unit=True)
                continue
        if last is not None and gap == " of " and _is_element(each, last):
            # R: ``could not allocate memory (298833518 of 8 bytes)``.
            size = last.size_bytes // last.factor * each.size_bytes
            merged[-1] = replace(
                each, least_bytes=size, most_bytes=size, size_bytes=size, start=last.start
            )
            continue
        if last is not None and re.fullmatch(r"\s?\(rounded to\s", gap):
            merged[-1] = replace(each, start=last.start, has_unit=True)
            continue
        merged.append(each)
    return merged


def _is_element(one: Quantity, many: Quantity) -> bool:
    """Whether a size is that of an element, of many."""
    return one.has_unit and one.size_bytes <= _LARGEST_ELEMENT < many.size_bytes


_LARGEST_ELEMENT: Final = 16
_ALIAS: Final = re.compile(r"\s?[(\[/]\s?(?:=|~|≈|about|or|i\.e\.)?\s?")


def _is_alias(exact: Quantity, rounded: Quantity) -> bool:
    """Whether a size of full precision is printed as the other one, rounded or cut off."""
    power = (rounded.factor.bit_length() - 1) // 10
    # Some programs divide by powers of 1000 under the same unit.
    decimal = Fraction(1000**power, rounded.factor)
    return any(
        abs(exact.size_bytes - rounded.size_bytes * scale) <= rounded.step_bytes * scale
        for scale in (Fraction(1), decimal)
    )


_OF: Final = re.compile(
    r"\s(?:(?:is|are|out|left|free|used|available|in use) ){0,3}(?:of|von|de|sur|di|из)\s"
    r"(?:the |a |total )*(?:\w+ memory )?"
)
_SLASH: Final = re.compile(r"\s?/\s?")
_MORE: Final = re.compile(rf"(?i){words('more')}")
_NEAR_MEMORY: Final = re.compile(rf"(?i){words('near_memory')}")


def _named(numbers: Sequence[Quantity], cues: Sequence[_Cue], layout: _Layout) -> list[Quantity]:
    """Each quantity with the role of the cue that names it, if one does."""
    named = list(numbers)
    starts = [cue.start for cue in cues]
    group: list[tuple[int, dict[int, float]]] = []
    for at, quantity in enumerate(numbers):
        if at and _is_of_pair(numbers[at - 1], quantity, layout.text):
            named[at] = replace(quantity, role=Role.TOTAL)
            continue
        end = quantity.end
        if at + 1 < len(numbers) and _is_of_pair(quantity, numbers[at + 1], layout.text):
            end = numbers[at + 1].end
        middle = bisect_left(starts, quantity.start)
        near = range(max(middle - _LOOK, 0), min(middle + _LOOK, len(cues)))
        distances = {
            index: layout.before(cues[index], quantity)
            if cues[index].start < quantity.start
            else min(layout.behind(cues[index], at_end) for at_end in {quantity.end, end})
            for index in near
        }
        options = {
            index: cost
            for index, cost in distances.items()
            if cost <= _farthest(quantity, cues[index])
        }
        if not options:
            continue
        # A quantity whose cues all come after those of the one before shares none with it: what is
        # before can be assigned now.
        if len(group) >= _LARGEST_GROUP or (group and max(group[-1][1]) < min(options)):
            _assign(group, named, cues, layout)
            group = []
        group.append((at, options))
    _assign(group, named, cues, layout)
    return named


def _farthest(quantity: Quantity, cue: _Cue) -> float:
    """How far a cue may be from the quantity that it names."""
    # A bare integer may be anything, so a cue must stand right beside it.
    if not quantity.has_unit:
        return _NEAR
    return _FARTHEST if cue.start < quantity.start else _FARTHEST_BEHIND


def _is_of_pair(one: Quantity, two: Quantity, text: str) -> bool:
    """Whether two quantities are ``3 of 4 GiB`` or ``3 GiB / 4 GiB``."""
    if not two.has_unit or two.start - one.end > _LONGEST_JOINT:
        return False
    gap = text[one.end : two.start]
    if _OF.fullmatch(gap):
        return True
    around = text[max(one.start - 60, 0) : two.end + 10]
    is_near = _NEAR_MEMORY.search(around) or "memory usage" in text[two.end : two.end + 60]
    return bool(one.has_unit and _SLASH.fullmatch(gap) and is_near)


def _assign(
    group: Sequence[tuple[int, dict[int, float]]],
    named: list[Quantity],
    cues: Sequence[_Cue],
    layout: _Layout,
) -> None:
    """Give each quantity of a group a cue, or none, by the least distance in all.

    Cues and quantities keep their order, so the state is the last cue that is taken: for each, the
    cheapest assignment so far.
    """
    states: dict[int, tuple[float, tuple[int | None, ...]]] = {-1: (0.0, ())}
    for at, options in group:
        # An integer that no cue names is no loss, unless it stands right behind one.
        is_adjacent = min(options.values()) <= 0
        unnamed = _UNNAMED if named[at].has_unit or is_adjacent else _NEAR
        following: dict[int, tuple[float, tuple[int | None, ...]]] = {}
        for last, (cost, chain) in states.items():
            steps: list[tuple[int, float, int | None]] = [(last, cost + unnamed, None)]
            steps += [(index, cost + far, index) for index, far in options.items() if index > last]
            for state, total, index in steps:
                if state not in following or total < following[state][0]:
                    following[state] = (total, (*chain, index))
        states = following
    _, best = min(states.values(), key=lambda state: state[0])
    for (at, _), index in zip(group, best, strict=True):
        if index is not None:
            named[at] = _with_role(named[at], cues[index], layout.text)


_EQUALS: Final = (" to ", " of ", " is ")
_SIZED: Final = re.compile(rf"(?i){_NOUNS}|bytes|request|required|needed")


def _with_role(quantity: Quantity, cue: _Cue, text: str) -> Quantity:
    gap = text[cue.end : quantity.start]
    is_value = gap == " " and text[cue.start : cue.end].endswith(("value", "limit"))
    is_alone = gap == " (" and text.startswith(")", quantity.end)
    is_key = cue.is_key or gap in _EQUALS or _KEYED.fullmatch(gap) is not None
    is_keyed = cue.end <= quantity.start and (is_key or is_value or is_alone)
    if cue.role is not Role.REQUESTED:
        return replace(quantity, role=cue.role, rank=cue.rank, is_keyed=is_keyed)
    first = min(cue.start, quantity.start)
    last = max(cue.end, quantity.end)
    has_failed = bool(_FAILED.search(text, max(first - 50, 0), min(last + 30, len(text))))
    is_sized = bool(_SIZED.search(text, cue.start, cue.end))
    rank = cue.rank + 2 * has_failed if cue.rank else 1 + has_failed
    # A noun such as ``size`` is of a request only where something failed.
    if (
        cue.rank
        or has_failed
        or _FAILED.search(text, max(first - 90, 0), min(last + 40, len(text)))
    ):
        return replace(quantity, role=cue.role, rank=rank, is_keyed=is_keyed, is_sized=is_sized)
    return quantity


def _compared(named: Sequence[Quantity], text: str) -> list[Quantity]:
    """Quantities without a cue beside others, by what compares them: ``3 GiB > 4 GiB``."""
    compared = list(named)
    for at, (one, two) in enumerate(pairwise(named)):
        # ``a request (size=3) exceeds memory (size=2)``: the noun names neither.
        is_second = one.role is Role.REQUESTED and two.role is Role.REQUESTED and two.is_sized
        if not (two.has_unit or is_second) or two.start - one.end > _LONGEST_COMPARISON:
            continue
        gap = text[one.end : two.start]
        is_pair = _is_of_pair(one, two, text)
        if gap.strip() == "+" and at + 2 < len(named) and _exceeds(two, named[at + 2], text):
            # JavaCPP: what is allocated and the request exceed the limit.
            compared[at] = replace(one, role=Role.USED, rank=_STATED)
            compared[at + 1] = replace(two, role=Role.REQUESTED, rank=_STATED)
            continue
        if _SLASH.fullmatch(gap) and is_pair and one.role is None:
            compared[at] = replace(one, role=Role.USED, rank=3)
        elif not is_pair and _MORE.search(gap) and not _STOP.search(gap):
            if two.role is None or is_second:
                compared[at + 1] = replace(two, role=Role.TOTAL)
            if compared[at].role is None and compared[at + 1].role is Role.TOTAL:
                compared[at] = replace(one, role=Role.USED)
    return compared


def _asserted(named: Sequence[Quantity], text: str) -> list[Quantity]:
    """An assertion and what it found: ``enforce requested <= available failed, 30 > 20``."""
    asserted = list(named)
    for at, (one, two) in enumerate(pairwise(named)):
        roles = _asserted_roles(one, two, text)
        if None not in roles:
            asserted[at] = replace(one, role=roles[0], rank=_STATED)
            asserted[at + 1] = replace(two, role=roles[1], rank=_STATED)
    return asserted


def _asserted_roles(one: Quantity, two: Quantity, text: str) -> tuple[Role | None, Role | None]:
    if text[one.end : two.start].strip() not in {">", ">=", "vs", "vs."}:
        return None, None
    start = max(one.start - _LONGEST_COMPARISON, 0)
    words = _ASSERTED.search(text[start : one.start])
    if words is None:
        return None, None
    less, more = (_CUE.match(text, start + words.start(name)) for name in ("less", "more"))
    return _role_of(less), _role_of(more)


def _role_of(cue: re.Match[str] | None) -> Role | None:
    if cue is None or cue.lastgroup in {None, "neutral"}:
        return None
    return _CUES[int((cue.lastgroup or "")[3:])][0]


_ASSERTED: Final = re.compile(r"(?P<less>\w+)\s?<=?\s?(?P<more>\w+)\b[^\d<>\n]{0,40}$")
_CARD: Final = re.compile(
    rf"(?i)(?:{words('cards')})(?![a-z])[^.;\n]{{0,30}}?(?:\bwith|\bhas|\bof|[(,])\s?[*_`]{{0,3}}$"
)
_ITS_MEMORY: Final = re.compile(
    r"(?i)[*_`]{0,3}\s?(?:of )?(?:gpu )?(?:v?ram|memory|gddr\d?x?)\b|\)"
)
_OF_CARD: Final = re.compile(
    rf"(?i)\s?(?:nvidia )?(?:{words('cards')})(?![a-z])(?! (?:memory|v?ram))|的显存"
)
"""What stands behind the memory of a card: ``a 32 GB V100``."""


def _of_cards(named: Sequence[Quantity], text: str) -> list[Quantity]:
    """The memory of a card, where no other word says what a size is: ``RTX 3090 (24 GB VRAM)``."""
    return [
        replace(each, role=Role.TOTAL)
        if each.has_unit and each.role in _LOOSE and _is_of_card(each, text)
        else each
        for each in named
    ]


_LOOSE: Final = frozenset({None, Role.OTHER, Role.USED})
"""Roles by words that may stand there for something else: ``using LoRA on an A100 (80 GB)``."""


def _is_of_card(quantity: Quantity, text: str) -> bool:
    if _OF_CARD.match(text, quantity.end):
        return True
    start = max(quantity.start - _LONGEST_COMPARISON, 0)
    is_its = _ITS_MEMORY.match(text, quantity.end)
    return bool(is_its and _CARD.search(text, start, quantity.start))


_STATED: Final = 3
"""The rank of a role that a formula states."""


def _exceeds(one: Quantity, two: Quantity, text: str) -> bool:
    return bool(re.match(r"\s?>\s?[\w ]{0,24}=?\s?$", text[one.end : two.start]))


_LARGE: Final = 1 << 20
_LEAST_DIGITS: Final = 1000


def _kept(named: Sequence[Quantity], text: str) -> Iterator[Quantity]:
    """Drop bare integers, unless their words make them bytes.

    They do if they name a request, if a quantity of the same clause is in bytes, or if they are
    the large value of a key.
    """
    kept = [each.has_unit or _is_bytes(each) for each in named]
    for at, each in enumerate(named):
        neighbors = range(max(at - 2, 0), min(at + 3, len(named)))
        is_none = _is_none(each) and any(
            named[other].is_keyed and named[other].size_bytes >= _LARGE for other in neighbors
        )
        if (
            kept[at]
            or is_none
            or (
                each.role is not None
                and any(
                    kept[other] and _is_one_clause(each, named[other], text) for other in neighbors
                )
            )
        ):
            yield each


def _is_none(quantity: Quantity) -> bool:
    """Whether it may be no bytes at all, such as ``Reserved: 0`` among other keys."""
    roles = {Role.RESERVED, Role.FREE, Role.USED}
    return quantity.is_keyed and quantity.size_bytes == 0 and quantity.role in roles


def _is_bytes(quantity: Quantity) -> bool:
    if quantity.role is None:
        return False
    if quantity.role is Role.REQUESTED and quantity.rank > 1:
        return quantity.size_bytes >= _LEAST_DIGITS or quantity.is_sized
    return quantity.is_keyed and quantity.size_bytes >= _LARGE


def _is_one_clause(one: Quantity, two: Quantity, text: str) -> bool:
    first, second = sorted((one, two), key=lambda each: each.start)
    gap = text[first.end : second.start]
    return len(gap) < _LONGEST_CLAUSE and not _STOP.search(gap) and "\n" not in gap


# Which quantity counts.


def chosen(found: Iterable[Quantity], role: Role, near: int | None) -> Quantity | None:
    """Of the quantities in a role, the plainest; of equals the one nearest to a position."""
    candidates = [each for each in found if each.role is role]
    return min(
        candidates,
        key=lambda each: (-each.rank, 0 if near is None else abs(each.start - near) // 400),
        default=None,
    )


def requested(found: Iterable[Quantity], text: str) -> tuple[Quantity, ...]:
    """What was requested; several if a clause has several sizes, none of them more plainly so.

    A log may have several failures; the first one is the cause of the others.
    """
    candidates = [each for each in found if each.role is Role.REQUESTED]
    candidates = [each for each in candidates if each.size_bytes] or candidates
    if not candidates:
        return ()
    rank = max(each.rank for each in candidates)
    plain = [each for each in candidates if each.rank == rank]
    # A number with a unit is plainly one of bytes: ``limit(size = 8000)`` in a trace may be none.
    first = next((each for each in plain if each.has_unit), plain[0])
    # A bare number that stands elsewhere with its unit: ``request: 448MB``, ``size of 448``.
    first = next((each for each in candidates if _is_in_units(each, first)), first)
    rivals = [
        each for each in plain[1:] if _is_one_clause(first, each, text) and not first.overlaps(each)
    ]
    return (first, *rivals)


def _is_in_units(quantity: Quantity, bare: Quantity) -> bool:
    """Whether a quantity is the number of a bare one, with a unit."""
    is_same = quantity.size_bytes == bare.size_bytes * quantity.factor
    return quantity.factor > 1 and not bare.has_unit and is_same


# Shapes, element types and devices.

_DIMS: Final = r"\d{1,12}(?:\s?,\s?\d{1,12}){0,15}"

_SHAPE: Final = re.compile(
    rf"(?i:{words('of_shape')})[\"')\uff09]?(?:\s?(?:of|is|is:|为|為|が|は|の|가|은|=|:|s)){{0,2}}\s?"
    r"(?:(?:tf\.)?TensorShape|torch\.Size)?"
    rf"\(?(?:[\[(]\s?(?P<list>{_DIMS})\s?,?\s?[\])]|\[\s?\])"
    r"|(?:tf\.)?TensorShape\(\[(?P<tf>[Dimenso()\d, ]{1,200})\]\)"
    rf"|torch\.Size\(\[(?P<torch>{_DIMS})\]\)"
    rf"|(?<![A-Za-z])(?:f|bf|s|u|float|bfloat|int|uint)\d{{1,3}}\[(?P<xla>{_DIMS})\]"
    # JavaCPP, of DL4J: ``new FloatPointer(900)`` is one of 900 floats.
    # onnxruntime for Java: the size of a buffer of a type is in elements.
    r"|(?:\bsize (?P<elements>\d{1,18})(?=, type = [A-Z]))"
    r"|(?-i:new (?P<pointer>Float|Double|Byte|Short|Int|Long)Pointer\((?P<count>\d{1,18})\))"
    r"|(?<![\w.])(?P<by>\d{1,18}(?:\s?[x\u00d7]\s?\d{1,18}){1,7})"
    r"(?=\s(?:\([^()]{1,20}\)\s)?(?:array|matrix|tensor))"
)
_ABOUT_SHAPE: Final = re.compile(rf"(?i){words('about_shape')}")
_TYPE_WORD: Final = re.compile(
    rf"(?i)(?:{words('of_type')})\W{{0,3}}(?:of|is|für|为|是|の|が|=|:)?\s?[\"'<]?"
    r"(?:class )?(?:torch\.|tf\.|np\.|numpy\.|DT_)?([A-Za-z][A-Za-z0-9_]*)"
)
WIDTHS: Final = {
    **dict.fromkeys(("complex128", "c128"), 16),
    **dict.fromkeys(
        ("double", "float64", "int64", "uint64", "complex64", "long", "f64", "s64", "u64", "c64"), 8
    ),
    **dict.fromkeys(("float", "float32", "int32", "uint32", "int", "f32", "s32", "u32", "fp32"), 4),
    **dict.fromkeys(
        (
            *("half", "float16", "bfloat16", "int16", "uint16", "short"),
            *("f16", "bf16", "fp16", "s16", "u16"),
        ),
        2,
    ),
    **dict.fromkeys(
        (
            *("int8", "uint8", "bool", "s8", "u8", "pred", "qint8", "quint8"),
            *("float8_e4m3fn", "float8_e5m2"),
        ),
        1,
    ),
}
"""Bytes of an element, by the names that TensorFlow, numpy, PyTorch and XLA print."""
_TYPE_NAME: Final = re.compile(
    r"(?i)(?<![A-Za-z0-9])(?:torch\.|tf\.|np\.|numpy\.|DT_)?("
    + "|".join(sorted(WIDTHS, key=len, reverse=True))
    + r")(?![A-Za-z0-9_])"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a tensor, and its type as the text names it; ``None``: it names none."""

    dims: tuple[int, ...]
    element_type: str | None
    start: int


def requested_shape(text: str, asked: Quantity | None) -> Shape | None:
    """The first shape that stands in a clause with words of an allocation.

    A plainly requested size, if there is one, stands in the same clause: other shapes in a log are
    those of arguments.
    """
    is_plain = asked is not None and asked.rank > _PLAIN
    for match in _SHAPE.finditer(text):
        groups = match.groupdict()
        near = 40 if groups["xla"] else 160
        before = re.split(_STOP, text[max(match.start() - near, 0) : match.end()])[-1]
        if not _ABOUT_SHAPE.search(before) or "texture" in match[0].lower():
            continue
        if is_plain and asked is not None and not _ABOUT_SHAPE.search(before[-48:]):
            gap = text[min(asked.start, match.start()) : max(asked.start, match.start())]
            if len(gap) > near or _STOP.search(gap):
                continue
        if asked is not None and match.start() <= asked.start < match.end() and not asked.has_unit:
            # One number cannot be a size in bytes and a dim: ``Buffer size (3185049600)``.
            continue
        named = groups["count"] or next((value for value in groups.values() if value), "")
        dims = tuple(int(dim) for dim in re.findall(r"\d{1,18}", named))
        return Shape(dims, _element_type(text, match), match.start())
    return None


_PLAIN: Final = 3
"""The rank from which a size is plainly a request: a verb, and a word of failure."""


def _element_type(text: str, shape: re.Match[str]) -> str | None:
    if shape["xla"]:
        return shape[0].partition("[")[0].lower()
    if shape["pointer"]:
        return {"Byte": "int8"}.get(shape["pointer"], shape["pointer"].lower())
    behind = text[shape.end() : shape.end() + 60].partition("\n[[")[0]
    named = _TYPE_WORD.search(behind)
    if named is not None:
        return named[1].lower()
    close = _TYPE_NAME.search(behind[:16])
    before = text[max(shape.start() - 40, 0) : shape.start() + 8]
    known = close or _TYPE_NAME.search(before)
    return None if known is None else known[1].lower()


_DEVICES: Final = tuple((each["name"], "|".join(each["words"])) for each in _WORDS["devices"])
_DEVICE: Final = re.compile(
    # A word of CamelCase begins at its capital: ``IOGPUMetalError``.
    r"(?i)(?:(?<![A-Za-z])|(?-i:(?=[A-Z][a-z])))(?P<kind>"
    + "|".join(each for _, each in _DEVICES)
    + r")(?:(?:[ :_=#]|: |\s(?:device|index) | ?[\[(](?:id ?[:=] ?)?)?"
    r"(?P<index>\d{1,3})(?!\d|\.\d|\s?(?:[KMG]i?B|%|m\b|x\b|bytes)))?"
)
_OPTION: Final = re.compile(r"(?<!\S)--[\w-]{0,20}$")
"""``--cpu_mode`` is an option of a command."""
_COPY: Final = re.compile(r"(?i)\bcop\w{1,5} [^\n]{0,40}\bfrom \S{1,80} to \S{0,80}$")
"""A copy fails where it goes: ``copying input tensor from .../CPU:0 to .../``."""
_LIBRARY: Final = re.compile(r"[A-Za-z0-9_]+\.(?:dll|so|pyd)\b")
"""A library that could not be loaded for want of memory is no device: ``cublas64_11.dll``."""
_HOME: Final = re.compile(r"(?i)(?:home|users)[/\\]$")
"""The name of a user is no device: ``/home/nvidia/``."""
_KINDS: Final = tuple((kind, re.compile(rf"(?i)(?:{each})")) for kind, each in _DEVICES)


def device_of(text: str, near: int | None) -> str | None:
    """The device that a text names, with its number if it has one, nearest to a position."""
    found: list[tuple[tuple[bool, bool, bool, bool, int, int], str]] = []
    kinds: set[str] = set()
    for match in _DEVICE.finditer(text):
        is_option = _OPTION.search(text, max(match.start() - 24, 0), match.start())
        is_setting = is_option and text[match.end("kind") :][:1] in {"-", "_", "="}
        if is_setting or _LIBRARY.match(text, match.start()):
            continue
        if _HOME.search(text, max(match.start() - 12, 0), match.start()):
            continue
        index = match["index"]
        kind = next(kind for kind, pattern in _KINDS if pattern.match(text, match.start()))
        kinds.add(kind)
        if kind == "device" and index is None:
            continue
        name = kind if index is None else f"{kind} {int(index)}"
        far = 0 if near is None else abs(match.start() - near) // 300
        is_target = _COPY.search(text, max(match.start() - 240, 0), match.start()) is not None
        order = (not is_target, far > 0, index is None, kind == "device", far, match.start())
        found.append((order, name))
    name = min(found)[1] if found else None
    kinds.discard("device")
    # ``device 0`` of a message that speaks of CUDA alone is GPU 0.
    if name is not None and name.startswith("device ") and len(kinds) == 1:
        return name.replace("device", kinds.pop())
    return name

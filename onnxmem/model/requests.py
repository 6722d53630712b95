"""The requests of a server: numbers for the dims of a model, one request after another.

They come from a CSV file, whose header has the names of the dims; from a JSONL file, with an object
per line; or from ranges (``batch=1..8,seq=16..512:uniform``), of which they are drawn by a seed.
"""

import csv
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, ClassVar, Final

from onnxmem.errors import UsageError, listed, nearest, shortened
from onnxmem.files import parsed_json, read_text, reason_of
from onnxmem.model.binding import Request, input_symbols

if TYPE_CHECKING:
    from onnxmem.model.building import Prepared

DEFAULT_COUNT: Final = 500
MOST: Final = 100_000
"""Requests of one simulation."""
_MOST_DIGITS: Final = 18
"""Of a dim: larger numbers are no size of anything."""
_RANGE: Final = re.compile(r"([^=,]+)=(\d{1,18})(?:\.\.(\d{1,18}))?", re.ASCII)
BATCH: Final = "batch"
"""The batch whatever the file calls it, as in --batch."""
_UNIFORM: Final = ":uniform"
_SHOWN: Final = 40


class RequestsError(UsageError):
    """The requests cannot be read; the message names the file and the line."""

    code: ClassVar[str] = "requests"


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in order; each has the same dims."""

    rows: tuple[Mapping[str, int], ...]
    source: str
    """The name of the file, or the ranges."""
    lines: tuple[int, ...] = ()
    """The line of each row in the file; empty: there is no file."""
    ranges: Mapping[str, range] | None = None
    """What the requests were drawn from; ``None``: a file."""
    seed: int | None = None
    """Of the draw; ``None``: a file."""

    @property
    def shapes(self) -> tuple[Mapping[str, int], ...]:
        """The distinct requests, in the order in which they first occur."""
        return tuple({tuple(row.items()): row for row in self.rows}.values())

    @property
    def num_in_range(self) -> int:
        """The number of distinct requests that the ranges allow, or that the file has."""
        if self.ranges is None:
            return len(self.shapes)
        return prod(map(len, self.ranges.values()))

    def in_range(self, most: int) -> tuple[Mapping[str, int], ...]:
        """Distinct requests of the range: all of them, or if that is more than ``most`` those that
        were drawn, and the corners.
        """
        if self.ranges is None:
            return self.shapes
        names, ranges = tuple(self.ranges), tuple(self.ranges.values())
        found: Iterable[tuple[int, ...]] = product(*ranges)
        if self.num_in_range > most:
            # Peaks mostly grow with dims, so the largest are at corners, which a draw rarely has.
            corners = product(*(dict.fromkeys((each[0], each[-1])) for each in ranges))
            others = (tuple(row[name] for name in names) for row in self.shapes)
            found = dict.fromkeys((*corners, *others))
        return tuple(dict(zip(names, numbers, strict=True)) for numbers in found)

    def refuse_unknown(self, known: Sequence[str]) -> None:
        """Refuse a dim that the model does not have.

        :raises RequestsError: with its name, and the line.
        """
        if not known and self.rows[0]:
            message = (
                f"{self._where(0)}the model has no dynamic dims: all requests are the same; leave "
                "out --requests"
            )
            raise RequestsError(message)
        for index, row in enumerate(self.rows):
            for name in row:
                if name not in known:
                    hint = f"{nearest(name, known)}the dims are {listed(known)}"
                    message = f"{self._where(index)}the model has no dim {shortened(name)}; {hint}"
                    raise RequestsError(message)

    def binder(
        self, prepared: "Prepared", fixed: Request
    ) -> Callable[[Mapping[str, int]], Request]:
        """A function that has the dims of a model at one of these requests.

        ``fixed`` has what all requests have in common; the dims of a request win over it.

        :raises RequestsError: the model does not have a dim of the requests.
        """
        known = input_symbols(prepared.inputs)
        # ``batch`` means the batch whatever the file calls it, unless a dim has that very name.
        batch = () if BATCH in known else sorted(prepared.batch_symbols)
        self.refuse_unknown([*known, *([BATCH] if batch else [])])
        shaped = input_symbols(each for each in prepared.inputs if each.name in fixed.shapes)
        left = [name for name in known if name not in (*fixed.dims, *shaped)]
        if left and not self.rows[0]:
            hint = f"--requests {shortened(left[0])}=1..8, or --dim {shortened(left[0])}=8"
            message = f"the requests have no numbers for {listed(left)}: {hint}"
            raise RequestsError(message)

        def bound(row: Mapping[str, int]) -> Request:
            of_batch = dict.fromkeys(batch, row[BATCH]) if BATCH in row else {}
            own = {name: row[name] for name in row if name in known}
            return replace(fixed, dims={**fixed.dims, **of_batch, **own})

        return bound

    def _where(self, index: int) -> str:
        if not self.lines:
            return f"--requests {shortened(self.source)}: "
        # All rows of a table have the names of its header.
        line = 1 if self.lines[0] > 1 else self.lines[index]
        return f"{shortened(self.source)}, line {line}: "


def listed_requests(rows: Sequence[Mapping[str, int]]) -> Requests:
    """Requests of a program, each with a number for each dim that the model leaves free.

    :raises RequestsError: with the index of one that is not.
    """
    if not rows:
        message = "requests: the list is empty"
        raise RequestsError(message)
    if len(rows) > MOST:
        message = f"requests: {len(rows):,} are listed; at most {MOST:,} are simulated"
        raise RequestsError(message)
    found = []
    for index, row in enumerate(rows):
        where = f"requests[{index}]: "
        if row.keys() != rows[0].keys():
            names = f"the dims {listed(list(row))}, and the first {listed(list(rows[0]))}"
            message = f"{where}has {names}"
            raise RequestsError(message)
        found.append({name: _number(where, name, row[name]) for name in rows[0]})
    return Requests(tuple(found), "requests")


def read_requests(
    source: str | None, count: int | None = None, seed: int | None = None
) -> Requests:
    """Read a file of requests, or draw ``count`` of them from ranges; ``None``: all are equal.

    :raises RequestsError: neither, a row that is not a request, or a count of a file.
    """
    if source is None:
        num_requests = DEFAULT_COUNT if count is None else count
        return Requests(({},) * num_requests, f"{num_requests:,}, all equal")
    # A file whose name has an equals sign is a file.
    if "=" in source and not os.path.lexists(source):
        return drawn(source, DEFAULT_COUNT if count is None else count, seed or 0)
    if count is not None or seed is not None:
        message = f"{shortened(source)}: is a file; --num-requests and --seed are for ranges"
        raise RequestsError(message)
    try:
        text = read_text(source, encoding="utf-8-sig")
    except UnicodeDecodeError:
        message = f"{shortened(source)}: is not text; write a CSV or a JSONL file"
        raise RequestsError(message) from None
    except FileNotFoundError as fault:
        form = "a CSV or JSONL file, or ranges such as batch=1..8,seq=16..512:uniform"
        message = f"--requests {shortened(source)}: {reason_of(fault)}; name {form}"
        raise RequestsError(message) from None
    except (OSError, ValueError) as fault:
        message = f"--requests {shortened(source)}: {reason_of(fault)}"
        raise RequestsError(message) from None
    is_jsonl = text.lstrip().startswith(("{", "["))
    rows = list(_of_jsonl(source, text) if is_jsonl else _of_csv(source, text))
    if not rows:
        message = f"{shortened(source)}: has no requests"
        raise RequestsError(message)
    lines, requests = zip(*rows, strict=True)
    return Requests(requests, source, lines)


def drawn(text: str, count: int = DEFAULT_COUNT, seed: int = 0) -> Requests:
    """Draw requests from ranges, each number as likely as any other.

    :raises RequestsError: the ranges cannot be read.
    """
    if not 1 <= count <= MOST:
        message = f"{count:,} requests: draw between 1 and {MOST:,}"
        raise RequestsError(message)
    ranges: dict[str, range] = {}
    for part in text.removesuffix(_UNIFORM).split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None:
            hint = "write NAME=LOW..HIGH with commas between them"
            text = f"{_shown(part)!r} is not a range; {hint}, as in batch=1..8,seq=16..512"
            message = f"--requests: {text}"
            raise RequestsError(message)
        name, low, high = found[1].strip(), int(found[2]), int(found[3] or found[2])
        if low < 1 or high < low:
            text = f"{_shown(part)!r} is empty; LOW is at least 1, and HIGH at least LOW"
            message = f"--requests: {text}"
            raise RequestsError(message)
        if name in ranges:
            message = f"--requests: {shortened(name)} has two ranges"
            raise RequestsError(message)
        ranges[name] = range(low, high + 1)
    draw = random.Random(seed)  # noqa: S311 - reproducible requests, not a secret
    rows = (
        {name: draw.randint(each[0], each[-1]) for name, each in ranges.items()}
        for _ in range(count)
    )
    return Requests(tuple(rows), text, ranges=ranges, seed=seed)


def _of_csv(source: str, text: str) -> Iterator[tuple[int, dict[str, int]]]:
    """The rows of a table with their lines."""
    rows = csv.reader(text.splitlines(), strict=True, skipinitialspace=True)
    names: list[str] | None = None
    try:
        for row in rows:
            where = f"{shortened(source)}, line {rows.line_num}: "
            if not any(cell.strip() for cell in row):
                continue  # an empty line
            if names is None:
                names = _header(where, row)
                continue
            if len(row) != len(names):
                message = f"{where}has {len(row)} cells, and the header {len(names)}"
                raise RequestsError(message)
            numbers = zip(names, map(str.strip, row), strict=True)
            yield rows.line_num, {name: _number(where, name, cell) for name, cell in numbers}
            _refuse_many(source, rows.line_num)
    except csv.Error as fault:
        message = f"{shortened(source)}, line {rows.line_num}: {fault}"
        raise RequestsError(message) from None


def _header(where: str, row: Sequence[str]) -> list[str]:
    names = [cell.strip() for cell in row]
    if "" in names or len(set(names)) < len(names) or all(map(str.isdigit, names)):
        message = f"{where}the header must name the dims, each once, as in batch,seq"
        raise RequestsError(message)
    return names


def _of_jsonl(source: str, text: str) -> Iterator[tuple[int, dict[str, int]]]:
    """The objects of a file with their lines."""
    first: dict[str, int] = {}
    for line, content in enumerate(text.splitlines(), 1):
        if not content.strip():
            continue
        where = f"{shortened(source)}, line {line}: "
        try:
            found = parsed_json(content)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found:
            message = f'{where}is not an object of dims, as in {{"batch": 4, "seq": 128}}'
            raise RequestsError(message)
        row = {name: _number(where, name, value) for name, value in found.items()}
        first = first or row
        if row.keys() != first.keys():
            message = f"{where}has the dims {listed(list(row))}, and line 1 {listed(list(first))}"
            raise RequestsError(message)
        # In the order of the first line, so that equal requests are equal rows.
        yield line, {name: row[name] for name in first}
        _refuse_many(source, line)


def _number(where: str, name: str, value: object) -> int:
    """A dim from a cell, or from a value of JSON."""
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    # ``isdigit`` accepts digits of every script, and superscripts, which ``int`` rejects.
    if text.isascii() and text.isdigit() and text.strip("0") and len(text) <= _MOST_DIGITS:
        return int(text)
    if value == "":
        message = f"{where}{shortened(name)} is empty; each request has a number for each dim"
    else:
        message = f"{where}{shortened(name)} is {_shown(value)!r}, not a positive integer"
    raise RequestsError(message)


def _refuse_many(source: str, line: int) -> None:
    if line > MOST + 1:
        message = f"{shortened(source)}: has more than {MOST:,} lines"
        raise RequestsError(message)


def _shown(value: object) -> object:
    """A value of a file, at a length for a message."""
    if isinstance(value, int | float | bool | None):
        return value if len(str(value)) <= _SHOWN else f"{str(value)[:_SHOWN]}..."
    return shortened(str(value))

"""What inference needs as polynomials in a model's free dims."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from onnxmem.errors import printable
from onnxmem.program.polynomials import Polynomial, largest
from onnxmem.runtimes.ideal.symbolic import SymbolicPeaks

BATCH: Final = "batch"

_LONGEST_BEND: Final = 10_000
"""Batches that are looked at one by one for a line among rows that bend."""


@dataclass(frozen=True)
class SymbolicTerms:
    """Bytes at every point that ``speaks_of`` admits, without another walk of the stages.

    How far they are proven is what ``symbolic_terms`` of ``row_finding`` says.
    A point is a number for each symbol, in their order.
    """

    symbols: tuple[str, ...]
    """The batch, where it is free, is ``batch`` whatever the file calls it; others by name."""
    asked: tuple[int, ...]
    last: tuple[int, ...]
    """The rows hold from 1 to this number of each symbol."""
    fixed: Mapping[str, int]
    """The other dims, which stay as asked."""
    peaks: SymbolicPeaks
    weights: Polynomial
    inputs: Polynomial

    def speaks_of(self, numbers: Sequence[int]) -> bool:
        """Whether the rows hold at a point."""
        is_within = all(1 <= n <= last for n, last in zip(numbers, self.last, strict=True))
        return is_within and not self.peaks.meets_at(numbers)

    def total_bytes(self, numbers: Sequence[int]) -> int:
        """Weights, inputs and in-place peak."""
        others = self.weights.at(numbers) + self.inputs.at(numbers)
        return others + largest(self.peaks.in_place_peak_rows, numbers)

    @property
    def has_batch(self) -> bool:
        """Whether the batch is a symbol; it is the first then."""
        return self.symbols[:1] == (BATCH,)

    def at_batch(self, batch: int) -> tuple[int, ...]:
        """The point of a batch at the other dims asked for."""
        return (batch, *self.asked[1:])

    def speaks_of_batches(self, last: int) -> bool:
        """Whether the rows hold from batch 1 to the last, at the other dims asked for."""
        if not self.has_batch or not self.speaks_of(self.at_batch(last)):
            return False
        return not any(
            meeting.get(0, 1) <= last
            and all(self.asked[at] == n for at, n in meeting.items() if at)
            for meeting in self.peaks.meetings
        )

    def line_in_batch(self, last: int) -> tuple[int, int] | None:
        """Start and slope of the total from batch 1 to the last; ``None`` where it is no line.

        Where no row bends, the largest of them meets the line through its ends halfway only if it
        is that line all along: it is convex. Where one does, every batch is looked at, or none.
        """
        others = (self.weights + self.inputs).along(0, self.asked)
        rows = self.peaks.in_place_peak_rows or (Polynomial(()),)
        lines = {row.along(0, self.asked) + others for row in rows}
        bends = any(power > 1 for line in lines for (power,), _ in line.terms)
        first_bytes, last_bytes = (largest(lines, (n,)) for n in (1, last))
        slope, rest = divmod(last_bytes - first_bytes, last - 1)
        if rest or (bends and last > _LONGEST_BEND):
            return None
        start = first_bytes - slope
        between = range(2, last) if bends else ((1 + last) // 2,)
        return (start, slope) if _lies_on(lines, (start, slope), between) else None

    def to_dict(self) -> dict[str, object]:
        """What ``activations`` says of them in JSON."""
        return {"peak_rows": self._rows(), "no_peak_rows": None}

    def _rows(self) -> dict[str, object]:
        peaks, num_symbols = self.peaks, len(self.symbols)
        names = [printable(symbol) for symbol in self.symbols]
        return {
            "domain": {name: [1, last] for name, last in zip(names, self.last, strict=True)},
            "except": [{names[at]: n for at, n in each.items()} for each in peaks.meetings],
            "fixed": {printable(name): number for name, number in self.fixed.items()},
            "naive": self._monomials(peaks.naive(num_symbols)),
            "naive_in_place": self._monomials(peaks.naive_in_place(num_symbols)),
            "peak": [self._monomials(row) for row in peaks.peak_rows],
            "in_place_peak": [self._monomials(row) for row in peaks.in_place_peak_rows],
        }

    def _monomials(self, row: Polynomial) -> dict[str, object]:
        """``{"monomials": {"batch*sequence^2": 4, "1": 32}}``."""
        return {"monomials": {self.monomial(powers, "*") or "1": n for powers, n in row.terms}}

    def monomial(self, powers: Sequence[int], times: str) -> str:
        """A product of symbols, written out; nothing where there is none."""
        return times.join(
            printable(name) + (f"^{power}" if power > 1 else "")
            for name, power in zip(self.symbols, powers, strict=True)
            if power
        )


@dataclass(frozen=True, slots=True)
class NoRows:
    """Why there are no rows."""

    reason: str

    def to_dict(self) -> dict[str, object]:
        """What ``activations`` says of it in JSON."""
        return {"peak_rows": None, "no_peak_rows": printable(self.reason)}


def _lies_on(rows: Iterable[Polynomial], line: tuple[int, int], batches: Iterable[int]) -> bool:
    """Whether the largest of rows in the batch is on a line at all of some batches."""
    start, slope = line
    return all(largest(rows, (batch,)) == start + slope * batch for batch in batches)

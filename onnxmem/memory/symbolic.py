"""Peaks as exact lines in the batch: ``fixed_bytes + bytes_per_sample x batch``, the largest wins.

Where every tensor has the batch in one dim at most, as a multiple of it, each step's live bytes are
a line in the batch and the peak is the largest of the lines; only those that are largest at some
batch from 1 on are kept.

Two batches tell what holds at those between them: 1, and a prime that divides no dim of the graph
(``free_prime``). At the prime no dim meets the batch by chance, so that what fits there fits at
every batch, and a dim is a multiple of the prime only if the batch is in it. What is left are
batches at which two shapes become equal, so that one tensor may be written over the other there and
nowhere else; they are listed, and no line speaks of them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from onnxmem.memory import ActivationMemory
from onnxmem.memory.lifetimes import tensor_lifetimes
from onnxmem.memory.scopes import read_scope
from onnxmem.memory.sharing import buffer_lifetimes, candidates
from onnxmem.memory.timeline import Timeline
from onnxmem.model import DType, Graph, Role
from onnxmem.ops.spec import Dims, Shape, known_dims

_HAS_BYTES = frozenset({Role.INPUT, Role.ACTIVATION})

_PRIMES: Final = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)


@dataclass(frozen=True, slots=True, order=True)
class PeakRow:
    """Bytes as a line in the batch."""

    bytes_per_sample: int
    fixed_bytes: int

    def bytes_at(self, batch: int) -> int:
        """Bytes at a batch."""
        return self.fixed_bytes + self.bytes_per_sample * batch


@dataclass(frozen=True, slots=True)
class SymbolicPeaks:
    """The peaks of one graph at every batch up to the last but a few: each is its largest row."""

    in_place_peak_rows: tuple[PeakRow, ...]
    """Of the in-place peak (definition 4), by ``bytes_per_sample``."""
    inputs: PeakRow
    """Of the graph inputs."""
    last_batch: int
    other_batches: frozenset[int]
    """Batches of which the in-place rows do not speak."""

    def speaks_of(self, batch: int) -> bool:
        """Whether the rows hold at a batch."""
        return 1 <= batch <= self.last_batch and batch not in self.other_batches


def largest(rows: Iterable[PeakRow], batch: int) -> int:
    """Bytes of the largest row at a batch; 0 where there is none."""
    return max((row.bytes_at(batch) for row in rows), default=0)


def free_prime(graph: Graph, above: int) -> int:
    """The first prime above a number that divides no dim of any tensor."""
    dims = {dim for tensor in graph.tensors.values() for dim in tensor.shape or () if dim}
    number = above + 1
    while not _is_prime(number) or any(dim % number == 0 for dim in dims):
        number += 1
    return number


def symbolic_peaks(
    at_one: Graph, memory: ActivationMemory, at_prime: Graph, prime: int
) -> SymbolicPeaks | None:
    """Find the lines of a graph's in-place peak from the graph at batch 1 and at a ``free_prime``.

    ``memory`` is that of the graph at batch 1. ``None`` where a tensor's bytes are unknown or no
    line, where tensors share otherwise at the prime, or where the graph has subgraphs.
    """
    if any(node.subgraphs for node in at_one.nodes) or not _all_grow(at_one, at_prime, prime):
        return None
    later = read_scope(at_prime, buffer_lifetimes)
    pairs = zip_longest(memory.blocks, later.lifetimes)
    if any(not (a and b and a.buffer.tensors == b.buffer.tensors) for a, b in pairs):
        return None
    inputs_bytes, inputs_later = (
        sum(each.tensors[name].size_bytes or 0 for name in each.inputs)
        for each in (at_one, at_prime)
    )
    return SymbolicPeaks(
        _upper(memory.timeline, later.timeline, prime),
        line_through(inputs_bytes, inputs_later, prime),
        prime,
        frozenset(_meetings(at_one, at_prime)),
    )


def liveness_rows(at_one: Graph, at_prime: Graph, prime: int) -> tuple[PeakRow, ...]:
    """The lines of the liveness peak (definition 3), where there are ``symbolic_peaks``."""
    one, later = (read_scope(graph, tensor_lifetimes) for graph in (at_one, at_prime))
    return _upper(one.timeline, later.timeline, prime)


def _all_grow(at_one: Graph, at_prime: Graph, prime: int) -> bool:
    """Whether every tensor is as long at both batches, but for one dim, a multiple of them.

    A weight that stays as it is may be of any type: a constant that the batch is written into, as
    the places of the samples, grows like any other tensor.
    """
    both = ((one, at_prime.tensors[name]) for name, one in at_one.tensors.items())
    pairs = {
        (one.shape, one.dtype, other.shape, other.dtype)
        for one, other in both
        if one.role in _HAS_BYTES or one.shape != other.shape
    }
    return all(
        dtype is later_dtype and dtype is not None and _grows(shape, later, dtype, prime)
        for shape, dtype, later, later_dtype in pairs
    )


def _grows(shape: Shape | None, later: Shape | None, dtype: DType, prime: int) -> bool:
    one, other = known_dims(shape), known_dims(later)
    if one is None or other is None or len(one) != len(other) or dtype.bits is None:
        return False
    changed = [pair for pair in zip(one, other, strict=True) if pair[0] != pair[1]]
    if not changed:
        return True
    # Bytes of elements that are packed are no line: they are rounded up.
    return changed == [(changed[0][0], changed[0][0] * prime)] and dtype.bits % 8 == 0


def line_through(at_one: int, at_prime: int, prime: int) -> PeakRow:
    """The line through two points; its numbers are whole, for they are sums of whole ones."""
    slope = (at_prime - at_one) // (prime - 1)
    return PeakRow(slope, at_one - slope)


def _upper(one: Timeline, later: Timeline, prime: int) -> tuple[PeakRow, ...]:
    """The steps' lines that are largest at some batch from 1 on: the upper hull, by slope."""
    live = set(zip(one.live_bytes, later.live_bytes, strict=True))
    hull: list[PeakRow] = []
    for row in sorted(line_through(*sizes, prime) for sizes in live):
        while hull and _is_beaten(hull, row):
            hull.pop()
        hull.append(row)
    return tuple(hull)


def _is_beaten(hull: list[PeakRow], row: PeakRow) -> bool:
    """Whether a steeper row takes the place of the last one at every whole batch."""
    last = hull[-1]
    if row.bytes_at(1) >= last.bytes_at(1):
        return True
    if len(hull) == 1:
        return False
    before = hull[-2]
    # Where the last row overtakes the one before it, the new row is above both already.
    rise, fall = last.bytes_per_sample - before.bytes_per_sample, before.fixed_bytes
    first = -((last.fixed_bytes - fall) // rise)
    return row.bytes_at(first) >= last.bytes_at(first)


def _meetings(at_one: Graph, at_prime: Graph) -> Iterator[int]:
    """Batches at which a tensor may be written over another whose shape differs elsewhere."""
    ends = (at_one, at_prime)
    pairs = {
        tuple(known_dims(each.tensors[name].shape) or () for each in ends for name in pair)
        for pair in candidates(at_one)
    }
    for one, other, one_later, other_later in pairs:
        if len(one) == len(other) and one_later != other_later:
            yield from _meeting((one, one_later), (other, other_later))


def _meeting(one: tuple[Dims, Dims], other: tuple[Dims, Dims]) -> Iterator[int]:
    """The batch at which two shapes are equal, if there is one; 1 was seen."""
    needed: set[int] = set()
    for a, a_later, b, b_later in zip(*one, *other, strict=True):
        if a_later == b_later:
            continue
        per_sample, fixed = (a, b) if a != a_later else (b, a)
        if (a != a_later) == (b != b_later) or fixed % per_sample:
            return
        needed.add(fixed // per_sample)
    if len(needed) == 1:
        yield from needed - {0, 1}


def _is_prime(number: int) -> bool:
    """Miller and Rabin's test: dims of 2^62 leave no time to try divisors.

    With these bases it errs on no number below 3.3e24 (Sorenson and Webster, 2015, table 1).
    """
    if number in _PRIMES or number < 2 or not all(number % prime for prime in _PRIMES):  # noqa: PLR2004
        return number in _PRIMES
    twos = ((number - 1) & (1 - number)).bit_length() - 1
    odd = (number - 1) >> twos
    return all(
        pow(base, odd, number) == 1
        or any(pow(base, odd << n, number) == number - 1 for n in range(twos))
        for base in _PRIMES
    )

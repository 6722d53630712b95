"""What inference needs as lines in the batch: of a model, from two of its batches."""

from collections.abc import Callable
from dataclasses import dataclass

from onnxmem.collecting import without_collection
from onnxmem.errors import ShapeError
from onnxmem.memory.symbolic import (
    PeakRow,
    SymbolicPeaks,
    free_prime,
    largest,
    line_through,
    liveness_rows,
    symbolic_peaks,
)
from onnxmem.model import Graph
from onnxmem.terms import Terms


@dataclass(frozen=True, slots=True)
class SymbolicTerms:
    """Bytes at every batch that ``peaks`` speaks of, without another walk of the stages."""

    peaks: SymbolicPeaks
    weights: PeakRow
    ends: tuple[Graph, Graph]
    """The graph at batch 1 and at ``peaks.last_batch``."""

    def peak_rows(self) -> tuple[PeakRow, ...]:
        """The lines of the liveness peak."""
        return liveness_rows(*self.ends, self.peaks.last_batch)

    def total_bytes(self, batch: int) -> int:
        """Weights, inputs and in-place peak."""
        others = sum(row.bytes_at(batch) for row in (self.weights, self.peaks.inputs))
        return others + largest(self.peaks.in_place_peak_rows, batch)

    def only_row(self, last: int) -> PeakRow | None:
        """The line of the total from batch 1 to the last; ``None`` where it bends."""
        for row in self.peaks.in_place_peak_rows or (PeakRow(0, 0),):
            rows = (self.weights, self.peaks.inputs, row)
            line = PeakRow(
                sum(each.bytes_per_sample for each in rows), sum(each.fixed_bytes for each in rows)
            )
            if all(line.bytes_at(batch) == self.total_bytes(batch) for batch in (1, last)):
                return line
        return None


@without_collection()
def symbolic_terms(terms: Terms, at: Callable[[int], Terms], last: int) -> SymbolicTerms | None:
    """Find the lines that hold from batch 1 to ``last`` at least, and that meet what is known.

    ``terms`` are those of one batch, and ``at`` finds those of another. ``None`` where there are no
    lines: bytes that are unknown or grow otherwise, subgraphs, or a batch that the graph does not
    follow.
    """
    batch = terms.bound.binding.batch
    if batch is None or not terms.bound.follows_batch:
        return None
    at_one = terms if batch == 1 else at(1)
    prime = free_prime(at_one.bound.graph, max(batch, last))
    try:
        at_prime = at(prime)
    except ShapeError:
        # Past the largest dim that ONNX can write.
        return None
    if not (at_one.bound.follows_batch and at_prime.bound.follows_batch):
        return None
    peaks = symbolic_peaks(at_one.bound.graph, at_one.activations, at_prime.bound.graph, prime)
    if peaks is None:
        return None
    ends = (at_one.bound.graph, at_prime.bound.graph)
    weights = line_through(at_one.weight_bytes or 0, at_prime.weight_bytes or 0, prime)
    found = SymbolicTerms(peaks, weights, ends)
    # What stands in neither of the two batches would show at the one asked for.
    is_met = not peaks.speaks_of(batch) or found.total_bytes(batch) == terms.total_bytes
    return found if is_met else None

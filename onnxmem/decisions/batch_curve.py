"""A model at one batch after another: memory, arithmetic, and the time per sample that they allow.

Memory is the figure that ``fit`` compares, with its verdict. FLOPs and bytes moved are those of the
roofline (``decisions.roofline``), and so is the time: a lower bound. The *knee* is the first batch
whose time per sample is within a tenth of the least in the range, or without a device the first
whose bytes moved per sample are; above it a larger batch gains little. Where the last batch still
gains a tenth over half of it, the knee is beyond the range.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Final

from onnxmem.analysis.fitting.assessing import FitRequest, FitResult, assess, fit
from onnxmem.analysis.fitting.verdicts import Comparison, Verdict
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.analysis.rules_of_thumb import model_size, rule_of_thumb_batch, tensor_elements
from onnxmem.decisions.devices import Device
from onnxmem.decisions.roofline import Bound, Work, bound, samples_of, work_of
from onnxmem.errors import UsageError
from onnxmem.program.sizes import Affine
from onnxmem.units import format_bytes

_NEAR: Final = 1.1
"""Of the least time per sample: what counts as fast."""
_FEWEST: Final = 3
"""Two points always lie on a line."""
_BY_PARAMETERS: Final = ((10**6, 64), (2 * 10**6, 32), (10**7, 16), (10**8 + 1, 8))
"""``FindBatchSize``, copied in many projects, on a GPU in a machine of 16 CPUs or more
(https://stackoverflow.com/questions/46654424): below so many parameters such a batch, else 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPoint:
    """The figures of one batch; ``None`` is unknown."""

    batch: int
    samples: int
    """Of the work: a batch, in each pass of accumulation."""
    unlimited_bytes: int
    """What the run takes of a device where no allocation fails."""
    is_whole: bool
    """False: lower bounds."""
    upper_bytes: int | None
    """What the run takes at most; ``None``: where the data of a run decide, it has no end."""
    compared: Comparison | None
    """``None``: no device."""
    work: Work
    bound: Bound | None
    """``None``: no device of known peaks."""

    @property
    def num_bytes(self) -> int:
        """What the run takes of the device, where one is given; at least, where data decide."""
        # One kind of figure for all batches: a comparison has the upper end where that fits.
        taken_bytes = None if self.compared is None else self.compared.num_bytes
        return self.unlimited_bytes if taken_bytes is None or not self.is_whole else taken_bytes

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the batch; ``None``: no device."""
        return None if self.compared is None else self.compared.verdict

    @property
    def seconds_per_sample(self) -> float | None:
        """The least time that the device needs for one sample."""
        if self.bound is None or self.bound.seconds is None:
            return None
        return self.bound.seconds / self.samples

    @property
    def moved_per_sample(self) -> float | None:
        """Bytes moved for one sample."""
        moved = self.work.bytes_moved
        return None if moved is None else moved / self.samples

    @property
    def cost(self) -> float | None:
        """What the knee is found by: time per sample, or bytes moved where there is no time."""
        return self.moved_per_sample if self.bound is None else self.seconds_per_sample


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BatchCurve:
    """A model at several batches, in order."""

    setup: FitRequest
    points: tuple[BatchPoint, ...]
    memory_line: Affine | None
    """Memory as a line through all points, or through all but the first; ``None``: it is none."""
    knee: BatchPoint | None
    """``None``: it is beyond the range, or the cost is unknown."""
    result: FitResult | None
    """The largest batch that fits; ``None``: no device."""
    by_parameters: int
    """The batch of ``FindBatchSize``."""
    by_free_memory: int | None
    """Memory / 4 / (tensor elements + parameters); ``None``: no device, or sizes are unknown."""

    @property
    def status(self) -> str:
        """``ok``, or ``partial`` if a figure is a lower bound."""
        return "ok" if all(point.is_whole for point in self.points) else "partial"

    @property
    def basis(self) -> str:
        """The figure that is compared with memory."""
        return self.setup.basis.value

    @property
    def limit_bytes(self) -> int | None:
        """The memory that it is compared with; ``None``: no device."""
        return None if self.result is None else self.result.limit_bytes

    @property
    def largest(self) -> int | None:
        """The largest batch that fits."""
        return None if self.result is None else self.result.fits_up_to

    @property
    def power_of_two(self) -> int | None:
        """The largest power of two that fits."""
        power = None if self.result is None else self.result.power_of_two
        return None if power is None else power.number

    def __repr__(self) -> str:
        """A line for each batch: the fields hold every figure."""
        lines = [f"<BatchCurve of {len(self.points)} batches"]
        for point in self.points:
            mark = "  knee" if point is self.knee else ""
            verdict = "" if point.verdict is None else f"  {point.verdict}"
            lines.append(f"  {point.batch}: {format_bytes(point.num_bytes)}{verdict}{mark}")
        return "\n".join(lines) + ">"

    @property
    def memory_growth(self) -> float | None:
        """Memory of the last batch as a multiple of the first's; ``None`` if that takes none."""
        first, last = self.points[0].unlimited_bytes, self.points[-1].unlimited_bytes
        return last / first if first else None

    @property
    def sample_growth(self) -> float:
        """The last batch as a multiple of the first."""
        return self.points[-1].batch / self.points[0].batch

    @property
    def added_bytes(self) -> tuple[float, ...]:
        """What one more sample takes, between each two neighbors."""
        return tuple(
            (after.unlimited_bytes - before.unlimited_bytes) / (after.batch - before.batch)
            for before, after in pairwise(self.points)
        )

    @property
    def cost_ratio(self) -> float | None:
        """Cost of a sample in the first batch as a multiple of that in the last."""
        first, last = self.points[0].cost, self.points[-1].cost
        return None if first is None or not last else first / last


def batch_curve(
    request: AnalysisRequest,
    batches: Sequence[int],
    setup: FitRequest,
    device: Device | None = None,
    *,
    has_limit: bool,
) -> BatchCurve:
    """The figures of a model at batches, which are in order, and what follows from them.

    ``has_limit``: ``setup`` has the memory of a device or a size.

    :raises OnnxmemError: the model cannot have one of the batches.
    """
    if request.results.bound.binding.batch is None:
        message = "the model has no batch to vary; see onnxmem MODEL --dim NAME=N"
        raise UsageError(message)

    @cache
    def at(batch: int) -> BatchPoint:
        return _point(request.at(batch), batch, setup, device, has_limit=has_limit)

    points = tuple(at(batch) for batch in batches)
    size = model_size(request.model, request.results)
    elements, parameters = tensor_elements(size), size.num_parameters
    return BatchCurve(
        setup=setup,
        points=points,
        memory_line=_line(points),
        knee=_knee(points, at),
        result=fit((request,), setup) if has_limit else None,
        by_parameters=batch_by_parameters(parameters or 0),
        by_free_memory=None
        if not has_limit or elements is None or parameters is None
        else rule_of_thumb_batch(setup.limit_bytes, elements, parameters),
    )


def batch_by_parameters(parameters: int) -> int:
    """The batch of ``FindBatchSize``, which looks at nothing of the model but its parameters."""
    return next((batch for below, batch in _BY_PARAMETERS if parameters < below), 1)


def _point(
    request: AnalysisRequest,
    batch: int,
    setup: FitRequest,
    device: Device | None,
    *,
    has_limit: bool,
) -> BatchPoint:
    assessment = assess((request,), setup)
    flash_bytes = None if device is None else device.flash_bytes
    work, at_most = work_of(request.results), assessment.footprint.at_most()
    found = None if device is None else bound(work, device)
    return BatchPoint(
        batch=batch,
        samples=samples_of(request),
        unlimited_bytes=assessment.footprint.total_bytes,
        compared=assessment.compared(setup.limit_bytes, flash_bytes) if has_limit else None,
        is_whole=assessment.footprint.is_whole and work.is_whole,
        upper_bytes=None if at_most is None else at_most.total_bytes,
        work=work,
        bound=found if found is not None and found.seconds is not None else None,
    )


def _line(points: Sequence[BatchPoint]) -> Affine | None:
    """The line through all points; at batch 1 some copies are left out, so it may be beside it."""
    known = [(point.batch, point.unlimited_bytes) for point in points]
    # Without the first point only if the line through all of them fails, and never through two.
    for start in (0, 1):
        if len(known) - start >= _FEWEST:
            line = Affine.through(known[start:])
            if line is not None:
                return line
    return None


def _knee(points: Sequence[BatchPoint], at: Callable[[int], BatchPoint]) -> BatchPoint | None:
    """The first batch near the least cost of a sample, between the points too."""
    costs = [point.cost for point in points]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return None
    enough = _NEAR * min(known)
    last = points[-1].batch
    # The cost falls by more than `_NEAR` in the last doubling, so the knee is beyond the range.
    if last > points[0].batch and (at(max(last // 2, 1)).cost or 0) > _NEAR * known[-1]:
        return None

    def is_near(batch: int) -> bool:
        cost = at(batch).cost
        return cost is not None and cost <= enough

    index = next(index for index, cost in enumerate(known) if cost <= enough)
    if index == 0:
        return points[0]
    # What a batch shares (weights) is spread over its samples, so the cost of one never rises
    # between two points of which the first is too high: the first that is near is between them.
    low, high = points[index - 1].batch, points[index].batch
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_near(middle) else (middle, high)
    return at(high)


def batches_between(first: int, last: int, step: int | None = None) -> tuple[int, ...]:
    """Both ends and the powers of two between them, or every ``step``.

    >>> batches_between(3, 20), batches_between(1, 9, 4)
    ((3, 4, 8, 16, 20), (1, 5, 9))
    """
    if step is not None:
        return tuple(sorted({*range(first, last + 1, step), last}))
    powers = (1 << power for power in range(last.bit_length()))
    return tuple(sorted({first, *(power for power in powers if first < power < last), last}))


def share_of_line(line: Affine, batch: int) -> Fraction:
    """The part of a batch's memory that does not grow with it."""
    return Fraction(line.fixed_bytes, line.at(batch) or 1)

"""A lower bound of the run time on a device: the roofline model of FLOPs and bytes moved.

1. *Bytes moved* by inference: every weight and graph input is read once; every activation is
   written once and read once. Views and outputs written in place share a buffer, which counts once.
   A training step writes and reads each of its allocations once, weights, gradients and optimizer
   state included.
2. *FLOPs*: forward; for a training step forward and backward, once per pass of gradient
   accumulation. Recomputation from checkpoints and the optimizer's arithmetic are left out.
3. The bound is the larger of FLOPs / peak and bytes / bandwidth. Real runs are slower, because no
   kernel reaches a peak. Caches and fusion may save bytes that are counted here, so the memory side
   is a bound for unfused execution.

The float16 peak counts if most bytes of weights are narrower than float32, or if the precision of a
training step is. TF32 tensor cores are not counted.
"""

from collections import Counter
from dataclasses import dataclass

from onnxmem.analysis.compute import compute
from onnxmem.analysis.request import AnalysisRequest, StageResults
from onnxmem.decisions.devices import Device
from onnxmem.model.graph import Graph
from onnxmem.units import sum_known

_WIDE_BITS = 32


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs and bytes moved of inference or of a training step; ``None`` is unknown."""

    flops: int | None
    bytes_moved: int | None
    is_half: bool
    """Whether its matrix products run at the float16 peak."""
    is_whole: bool
    """False: the figures are lower bounds."""

    @property
    def flops_per_byte(self) -> float | None:
        """Arithmetic intensity."""
        if self.flops is None or not self.bytes_moved:
            return None
        return self.flops / self.bytes_moved


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time that a device needs; ``None`` if a figure of it is unknown."""

    compute_seconds: float | None
    memory_seconds: float | None
    peak_flops: float | None
    """FLOPs in a second at which it computes."""
    bandwidth_bytes: float | None
    """Bytes in a second that it moves."""

    @property
    def seconds(self) -> float | None:
        """The larger of the two; if one is unknown, the other is a bound as well."""
        known = [side for side in (self.compute_seconds, self.memory_seconds) if side is not None]
        return max(known, default=None)

    @property
    def limited_by(self) -> str | None:
        """``compute`` or ``memory``; ``None`` if either is unknown."""
        if self.compute_seconds is None or self.memory_seconds is None:
            return None
        return "compute" if self.compute_seconds >= self.memory_seconds else "memory"


def work_of(results: StageResults) -> Work:
    """The work of a request, by the definitions of this module."""
    arithmetic = compute(results.bound.graph)
    is_whole = results.is_whole and not arithmetic.unknown_nodes
    training = results.training
    if training is None:
        buffers = results.activations.naive_in_place_bytes
        # Each buffer is written once and read once (1).
        moved = sum_known((results.weight_bytes, results.inputs_bytes, buffers, buffers))
        return Work(arithmetic.forward_flops, moved, _is_narrow(results.bound.graph), is_whole)
    passes = training.recipe.accumulate
    both = sum_known((arithmetic.forward_flops, arithmetic.backward_flops))
    return Work(
        None if both is None else passes * both,
        # Each allocation is written once and read once (1).
        2 * int(training.replay.sizes.fixed_bytes.sum()),
        training.recipe.precision != "fp32",
        is_whole,
    )


def samples_of(request: AnalysisRequest) -> int:
    """The samples that the work of a request is for: a batch, in each pass of accumulation."""
    batch = request.results.bound.binding.batch or 1
    return batch * (request.settings.recipe.accumulate if request.settings.train else 1)


def bound(work: Work, device: Device) -> Bound:
    """The roofline of a device over a piece of work."""
    peak = device.fp32_flops
    if work.is_half and device.fp16_flops is not None:
        # A catalog may know only the float16 peak, or a float32 peak that is higher.
        peak = max(device.fp16_flops, peak or 0)
    bandwidth = device.bandwidth_bytes
    return Bound(_ratio(work.flops, peak), _ratio(work.bytes_moved, bandwidth), peak, bandwidth)


def _ratio(amount: int | None, rate: int | None) -> float | None:
    return None if amount is None or not rate else amount / rate


def _is_narrow(graph: Graph) -> bool:
    """Whether most bytes of weights are of elements narrower than float32."""
    sizes: Counter[bool] = Counter()
    for weight in graph.weights:
        if weight.dtype is not None and weight.dtype.bits is not None:
            sizes[weight.dtype.bits < _WIDE_BITS] += weight.size_bytes or 0
    # By bytes, for a few float32 scales do not make a float16 model a float32 one.
    return sizes[True] > sizes[False]

"""A measurement beside what was predicted, as plain values.

``error_percent`` is 100 x (predicted / measured - 1).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from onnxmem.errors import printable

if TYPE_CHECKING:
    from onnxmem.measure.measurement import Measurement
    from onnxmem.runtimes.onnxruntime.memory import RuntimeMemory

FIGURES: Final = (
    ("requested_peak_bytes", "requested peak", "asked for by the nodes at once"),
    ("with_scratch_peak_bytes", "with scratch", "with the kernels' own blocks"),
    ("pattern_block_bytes", "pattern block", "one block for it, from run 2 on"),
    ("base_bytes", "base", "before the first node"),
    ("in_use_peak_bytes", "in use, peak", "chunks given out, base included"),
    ("held_bytes", "held", "by the arena after run 1"),
    ("held_steady_bytes", "held, steady", "by the arena after the last run"),
    ("load_peak_bytes", "load peak", "while the session is made"),
    ("process_peak_bytes", "process, peak", "the whole process at most"),
    ("process_steady_bytes", "process, steady", "the whole process after the runs"),
    ("process_floor_bytes", "process floor", "Python, numpy and onnxruntime"),
    ("process_added_bytes", "process, added", "by the model and its inputs"),
    ("device_peak_bytes", "GPU, peak", "on the device, by all processes"),
    ("device_steady_bytes", "GPU, steady", "on the device after the runs"),
)
"""Attribute of a measurement, its label, and what it is."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """What was said before the run, in bytes."""

    figures: Mapping[str, int | None] = field(default_factory=dict)
    """By the attributes of ``Measurement``; what is left out was not predicted."""
    nodes: tuple[int | None, ...] = ()
    """Requested at the end of each node, base included, in running order."""


def error_percent(predicted: int | None, measured: int | None) -> float | None:
    """How far a prediction is off; ``None`` where one side is unknown or nothing was measured."""
    if predicted is None or not measured:
        return 0.0 if predicted == measured == 0 else None
    return 100 * (predicted / measured - 1)


def measured_row(
    measurement: "Measurement", predicted: Predicted | None = None
) -> dict[str, object]:
    """The contract's ``measured``: every figure, and the error of the requested peak."""
    foretold = predicted.figures.get("requested_peak_bytes") if predicted else None
    return {
        "backend": measurement.backend,
        **{name: getattr(measurement, name) for name, _, _ in FIGURES},
        "process_baseline_bytes": measurement.process_baseline_bytes,
        "device_baseline_bytes": measurement.device_baseline_bytes,
        "runs": measurement.runs,
        "seconds_per_run": list(measurement.seconds_per_run),
        "onnxruntime_version": measurement.onnxruntime_version,
        "weights_made_up": measurement.num_filled,
        "error_percent": error_percent(foretold, measurement.requested_peak_bytes),
    }


def node_rows(measurement: "Measurement") -> list[dict[str, object]]:
    """A row for every node that ran; sizes are those of the arena, the base included."""
    return [
        {
            "node": printable(node.name),
            "op_type": printable(node.op_type),
            "provider": node.provider,
            "output_shapes": [list(shape) for shape in node.output_shapes],
            "requested_bytes": node.requested_bytes,
            "in_use_bytes": node.in_use_bytes,
            "held_bytes": node.held_bytes,
            "scratch_bytes": node.scratch_bytes,
        }
        for node in measurement.nodes
    ]


def predicted_by(runtime: "RuntimeMemory") -> Predicted:
    """What a prediction says of the figures that are measured."""
    # Where there is a prediction, its many rules have been imported already.
    from onnxmem.runtimes.onnxruntime.process.loading import MEASURED

    arena = runtime.arena
    names = (
        *("requested_peak_bytes", "with_scratch_peak_bytes", "pattern_block_bytes", "base_bytes"),
        *("in_use_peak_bytes", "held_bytes", "held_steady_bytes"),
    )
    figures: dict[str, int | None] = {name: getattr(arena, name) for name in names}
    figures["load_peak_bytes"] = runtime.load_peak_bytes
    figures["process_steady_bytes"] = runtime.process_bytes
    if runtime.process_bytes is not None:
        figures["process_floor_bytes"] = MEASURED.process_bytes
        figures["process_added_bytes"] = runtime.process_bytes - MEASURED.process_bytes
    return Predicted(figures, tuple(sample.requested_bytes for sample in arena.nodes))

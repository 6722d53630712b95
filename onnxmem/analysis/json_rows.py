"""The JSON objects of models in a report, and the reader of saved reports.

``Analysis.to_dict`` assembles the object of a model. Bytes are exact integers, ``None`` is unknown
or does not apply, and every object has every key. ``error_percent`` of a measurement is
100 x (predicted / measured - 1).

``read_saved`` reads a report that ``onnxmem MODEL --json`` wrote. The file is not trusted: every
value that is read is checked, and an error names its key.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from onnxmem.errors import Finding, MissingFileError, UsageError, printable, shortened
from onnxmem.files import Table, parsed_json, read_text, reason_of
from onnxmem.version import __version__

if TYPE_CHECKING:
    from onnxmem.analysis.cache_memory import CacheMemory
    from onnxmem.analysis.compute import Compute, Layer
    from onnxmem.analysis.coverage import Coverage
    from onnxmem.analysis.data_control_flow import DataBranches, DataLoop
    from onnxmem.analysis.fitting.assessing import BudgetBatch, FitResult
    from onnxmem.analysis.observed_memory import ObservedMemory, Spread
    from onnxmem.analysis.request import StageResults
    from onnxmem.analysis.rules_of_thumb import Elements, RulesOfThumb
    from onnxmem.analysis.training_figures import TrainingFigures
    from onnxmem.measuring.measurement import Measurement
    from onnxmem.model.remote import Fetched
    from onnxmem.program.sizes import Affine
    from onnxmem.runtimes.base import RuntimeReplay
    from onnxmem.runtimes.ideal.activation_memory import ActivationMemory
    from onnxmem.runtimes.ideal.schedules import Schedule
    from onnxmem.runtimes.onnxruntime.memory import RuntimeMemory
    from onnxmem.runtimes.torch.cuda import TorchMemory
    from onnxmem.runtimes.torch.folded import BatchNorms
    from onnxmem.runtimes.torch.memory import PeakRange
    from onnxmem.runtimes.torch.tensorflow import TensorflowMemory
    from onnxmem.settings import Settings, TrainingConfig


JsonDict = dict[str, object]
NO_PEAK_ROWS: Final[JsonDict] = {"peak_rows": None, "no_peak_rows": None}
"""The keys of a row without peaks as polynomials."""
KEYS: Final = (
    *("path", "status", "error", "settings", "file_bytes", "weights", "inputs_bytes"),
    *("outputs_bytes", "batch_law", "activations", "total_bytes", "training", "training_law"),
    *("rules_of_thumb", "runtime", "runtimes", "measured", "compute", "elements"),
    *("max_batch", "coverage", "layers", "findings", "kv_cache", "verdict", "devices"),
)
"""The keys of every row, in order."""
VERDICT_KEYS: Final = (
    *(
        "verdict",
        "basis",
        "bytes",
        "unlimited_bytes",
        "limit_bytes",
        "margin_bytes",
        "context_bytes",
    ),
    *("workspace_bytes", "accuracy", "doubts", "fits_up_to", "tight_from", "fits_again"),
)
"""The keys of every verdict, in order."""
_MOST_LIVE = 50
"""How many of the largest blocks at the peak of a training step a row lists."""
FIGURES: Final = (
    ("requested_peak_bytes", "peak requested by kernels", ""),
    ("with_scratch_peak_bytes", "with scratch", "with the scratch of kernels"),
    ("pattern_block_bytes", "memory-pattern buffer", "from run 2 on"),
    ("base_bytes", "arena initializers", "prepacked and copied weights"),
    ("in_use_peak_bytes", "allocated chunks", "peak, arena initializers included"),
    ("held_bytes", "arena reserved", "after run 1"),
    ("held_steady_bytes", "arena reserved (steady state)", "after the last run"),
    ("load_peak_bytes", "load peak", "while the session loads"),
    ("process_peak_bytes", "process, peak", "the whole process at most"),
    ("process_steady_bytes", "process, steady", "the whole process after the runs"),
    ("process_floor_bytes", "process floor", "Python, numpy and onnxruntime"),
    ("process_added_bytes", "process, added", "by the model and its inputs"),
    ("device_peak_bytes", "GPU, peak", "on the device, by all processes"),
    ("device_steady_bytes", "GPU, steady", "on the device after the runs"),
)
"""Attribute of a measurement, its label, and a description."""
SCHEMA: Final = "onnxmem.report"
_MOST_BYTES: Final = 2**28
"""Of a saved report: the layers of a million nodes are fewer."""
_HINT: Final = "write one with onnxmem MODEL --json -o FILE"


@dataclass(frozen=True, slots=True)
class Failure:
    """A model that could not be analyzed."""

    path: str
    code: str
    """A stable word for the kind of failure."""
    message: str

    def to_dict(self) -> JsonDict:
        """One row of the contract; all keys but path, status and error are null."""
        error = {"code": self.code, "message": printable(self.message)}
        row: JsonDict = dict.fromkeys(KEYS)
        return row | {"path": printable(self.path), "status": "error", "error": error}


def document(schema: str, schema_version: str, content: JsonDict) -> JsonDict:
    """A document with the name and version of its schema and of this tool in front."""
    return {
        "schema": schema,
        "schema_version": schema_version,
        "tool": {"name": "onnxmem", "version": __version__},
        **content,
    }


def document_text(written: JsonDict) -> str:
    """A document as text in ASCII, so that no name reaches a terminal as an escape sequence."""
    return json.dumps(written, indent=1) + "\n"


def bytes_at(row: JsonDict, keys: Sequence[str]) -> int | None:
    """A figure of a row; ``None`` if it or an object on the way to it is null."""
    value: Any = row
    for key in keys:
        if value is None:
            return None
        value = value.get(key)
    return value if isinstance(value, int) else None


def session_bytes(row: JsonDict, name: str, key: str) -> int | None:
    """A figure of the session of a runtime; ``None`` if it is unknown or not requested.

    >>> row = {"runtimes": [{"name": "ort-cpu", "process_bytes": 7}]}
    >>> session_bytes(row, "ort-cpu", "process_bytes")
    7
    """
    sessions = cast("Iterable[JsonDict]", row.get("runtimes") or ())
    return next((bytes_at(each, (key,)) for each in sessions if each["name"] == name), None)


def ends_of(row: Mapping[str, object], name: str = "total") -> tuple[int | None, int | None] | None:
    """A figure of a row at least and at most; ``None``: the data of a run do not decide it."""
    ends = both_ends_of(row, name)
    return None if ends is None or ends[0] == ends[1] else ends


def both_ends_of(row: Mapping[str, object], name: str) -> tuple[int | None, int | None] | None:
    """As ``ends_of``, and twice the same number where the data decide other figures alone."""
    data = row.get("data_dependent")
    if not isinstance(data, Mapping):
        return None
    least, most = (data.get(f"{name}_{end}_bytes") for end in ("lower", "upper"))
    return least if isinstance(least, int) else None, most if isinstance(most, int) else None


def findings_of(row: JsonDict) -> tuple[Finding, ...]:
    """The warnings of a row."""
    found: Any = row["findings"]
    return tuple(Finding(each["code"], each["message"], each["node"]) for each in found or ())


def guessed_dims(row: JsonDict) -> Sequence[str]:
    """The dims of a row that count as 1 because nothing sets them."""
    settings: Any = row["settings"]
    names: Sequence[str] = (settings or {}).get("guessed_dims") or ()
    return names


def findings_row(findings: Iterable[Finding]) -> list[JsonDict]:
    """The warnings of a model."""
    return [{"code": each.code, "message": each.message, "node": each.node} for each in findings]


def verdict_row(
    fit: "FitResult | None", budget_bytes: int | None, findings: Iterable[Finding]
) -> JsonDict | None:
    """The verdict on a budget; null without a budget."""
    if budget_bytes is None:
        return None
    # A requested budget always has a verdict: without one, a gate would read its absence as a model
    # that has no budget.
    if fit is None:
        missing = [each.message for each in findings if each.code == "no_figure"]
        return dict.fromkeys(VERDICT_KEYS) | {
            "verdict": "unknown",
            "doubts": [printable(each) for each in missing],
            "limit_bytes": budget_bytes,
        }
    return fit.to_dict()


def settings_row(settings: "Settings") -> JsonDict:
    """The settings in effect."""
    return {
        "batch": settings.batch,
        "dims": dict(settings.dims),
        "shapes": {name: list(shape) for name, shape in settings.shapes.items()},
        "train": settings.train,
        "optimizer": settings.optimizer,
        "precision": settings.precision,
        "loss": settings.loss,
        "values": {name: list(value) for name, value in settings.values.items()},
        "runtime": settings.runtime,
        "graph": settings.graph or "raw",
        "order": settings.order,
        "fixed_dims": settings.fixed_dims,
        "cpu": settings.cpu,
    }


def affine_row(line: "Affine | None") -> JsonDict | None:
    """Bytes that are linear in the batch."""
    if line is None:
        return None
    return {"fixed_bytes": line.fixed_bytes, "bytes_per_sample": line.bytes_per_sample}


def activations_row(memory: "ActivationMemory") -> JsonDict:
    """Activations: sums, peaks and the arena."""
    return {
        "naive_bytes": memory.naive_bytes,
        "naive_in_place_bytes": memory.naive_in_place_bytes,
        "peak_bytes": memory.peak_bytes,
        "in_place_peak_bytes": memory.in_place_peak_bytes,
        "arena_bytes": memory.arena_bytes,
        "arena_lower_bound_bytes": memory.arena_lower_bound_bytes,
        "arena_is_proven": memory.arena_is_proven,
        "peak_node": memory.peak_node,
        "peak_step": memory.peak_step,
        "live_at_peak": [
            {"tensor": live.label, "bytes": live.size_bytes} for live in memory.live_at_peak
        ],
        "order": None if memory.order is None else _order(memory.order),
    }


def _order(schedule: "Schedule") -> JsonDict:
    return {
        "file_in_place_peak_bytes": schedule.file_in_place_peak_bytes,
        "lower_bound_bytes": schedule.lower_bound_bytes,
        "is_proven": schedule.is_proven,
        "is_file_order": schedule.is_file_order,
    }


def training_row(
    training: "TrainingFigures | None",
    allocators: "tuple[TorchMemory | None, TensorflowMemory | None]",
    peaks: "PeakRange | None",
) -> JsonDict | None:
    """The training step, what two allocators take for it, and the range of peaks that the file
    allows.
    """
    if training is None:
        return None
    torch, tensorflow = allocators
    return {
        "optimizer": training.optimizer,
        "recipe": recipe_row(training.recipe),
        "weight_bytes": training.weight_bytes,
        "buffer_bytes": training.buffer_bytes,
        "gradient_bytes": training.gradient_bytes,
        "optimizer_state_bytes": training.optimizer_state_bytes,
        "saved_activation_bytes": training.saved_activation_bytes,
        "input_bytes": training.input_bytes,
        "forward_peak_bytes": training.forward_peak_bytes,
        "backward_peak_bytes": training.backward_peak_bytes,
        "optimizer_peak_bytes": training.optimizer_peak_bytes,
        "peak_bytes": training.peak_bytes,
        "peak_phase": training.peak_phase.value,
        "peak_node": training.peak_node and printable(training.peak_node),
        "live_by_kind": training.live_by_kind,
        "live_at_peak": [
            {"tensor": printable(each.label), "kind": each.category.value, "bytes": each.size_bytes}
            for each in training.live_at_peak()[:_MOST_LIVE]
        ],
        "checkpoints": [
            {
                "schedule": option.schedule,
                "peak_bytes": option.peak_bytes,
                "extra_flops": option.extra_flops,
            }
            for option in training.checkpoints
        ],
        "checkpointed_blocks": [
            {
                "blocks": [printable(name) for name in group.names],
                "kept_bytes": group.kept_bytes,
                "recomputed_bytes": group.recomputed_bytes,
            }
            for group in training.checkpointed
        ],
        "cuda": torch and _torch(torch),
        "tensorflow": tensorflow and _tensorflow(tensorflow),
        "batchnorm": _batchnorm(training.batchnorms, peaks),
    }


def _batchnorm(found: "BatchNorms", peaks: "PeakRange | None") -> JsonDict:
    """How many BatchNormalizations that an export folded are put back, and the range of peaks."""
    return {
        "put_back": len(found.put_back),
        "left_out": len(found.left_out),
        "unknown": len(found.unknown),
        "low_bytes": peaks and peaks.low_bytes,
        "high_bytes": peaks and peaks.high_bytes,
    }


def recipe_row(recipe: "TrainingConfig") -> JsonDict:
    """The fields of the training configuration."""
    from onnxmem.settings import H100_THREADS

    # Every field, so that a new one is in the JSON without a change here.
    values = {field.name: getattr(recipe, field.name) for field in fields(recipe)}
    # What the figures assume is written also where nobody set it.
    values["cublas_workspace_bytes"] = recipe.cublas_bytes()
    values["gpu_threads"] = recipe.gpu_threads or H100_THREADS
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def _torch(memory: "TorchMemory") -> JsonDict:
    return {
        "allocated_bytes": memory.allocated_bytes,
        "reserved_bytes": memory.reserved_bytes,
        "fragmentation_bytes": memory.fragmentation_bytes,
        "cublas_workspace_bytes": memory.cublas_workspace_bytes,
        "cudnn_workspace_bytes": memory.cudnn_workspace_bytes,
        "context_bytes": memory.context_bytes,
        "total_bytes": memory.total_bytes,
    }


def _tensorflow(memory: "TensorflowMemory") -> JsonDict:
    return {
        "allocated_bytes": memory.allocated_bytes,
        "reserved_bytes": memory.reserved_bytes,
        "context_bytes": memory.context_bytes,
        "total_bytes": memory.total_bytes,
    }


def rules_row(rules: "RulesOfThumb") -> JsonDict:
    """The rules of thumb."""
    return {
        "twice_file_bytes": rules.twice_file_bytes,
        "three_weights_bytes": rules.three_weights_bytes,
        "three_params_two_activations_bytes": rules.three_params_two_activations_bytes,
        "four_and_a_half_weights_bytes": rules.four_and_a_half_weights_bytes,
        "batch_times_tensors_and_params_bytes": rules.batch_times_tensors_and_params_bytes,
        "inputs_activations_and_gradients_bytes": rules.inputs_activations_and_gradients_bytes,
    }


def runtime_row(runtime: "RuntimeMemory") -> JsonDict:
    """The memory of a session of a runtime."""
    arena = runtime.arena
    ends: JsonDict = {}
    if runtime.requested_peak_lower_bytes is not None:
        ends["requested_peak_lower_bytes"] = runtime.requested_peak_lower_bytes
    if runtime.requested_peak_ends is not None:
        ends["requested_peak_upper_bytes"] = runtime.requested_peak_upper_bytes
    outcomes = {}
    if runtime.process_range is not None:
        outcomes = {
            "process_least_bytes": runtime.process_least_bytes,
            "process_most_bytes": runtime.process_most_bytes,
        }
    return {
        "name": runtime.name,
        "graph": runtime.graph,
        "graph_optimizer": runtime.graph_optimizer,
        "cpu": runtime.cpu,
        "base_bytes": arena.base_bytes,
        "requested_peak_bytes": arena.requested_peak_bytes,
        **ends,
        "with_scratch_peak_bytes": arena.with_scratch_peak_bytes,
        "pattern_block_bytes": arena.pattern_block_bytes,
        "in_use_peak_bytes": arena.in_use_peak_bytes,
        "held_bytes": arena.held_bytes,
        "held_steady_bytes": arena.held_steady_bytes,
        "load_peak_bytes": runtime.load_peak_bytes,
        "process_first_run_bytes": runtime.process_first_run_bytes,
        "process_bytes": runtime.process_bytes,
        **outcomes,
        "context_bytes": runtime.context_bytes,
        "workspace_bytes": runtime.workspace_bytes,
        "peak_node": arena.peak_node and printable(arena.peak_node.name),
        "unknown_tensors": runtime.unknown_tensors,
        "unknown_scratch": runtime.unknown_scratch,
        "findings": [{"code": f.code, "message": f.message} for f in runtime.findings],
    }


def replay_rows(replays: "Sequence[RuntimeReplay]") -> JsonDict:
    """The replays of runtimes that were passed as objects; no key without any."""
    if not replays:
        return {}
    return {"replays": [_replay_row(each) for each in replays]}


def fetched_row(fetched: "Fetched | None") -> JsonDict:
    """What was fetched of a file at a URL; no key without one."""
    if fetched is None:
        return {}
    return {"fetched": {"bytes": fetched.num_bytes, "requests": fetched.num_requests}}


def data_rows(results: "StageResults", without_end: Sequence[str] = ()) -> JsonDict:
    """What the data of a run decide, and the figures at least and at most; no key where they
    decide no figure.

    A figure is null if a dim has no upper end. ``without_end``: other figures that have none.
    """
    upper, at_most = results.upper, results.at_most
    dims, unbounded = ((), ()) if upper is None else (upper.data_dims, upper.unbounded)
    # Rules may bound a size although no dim is left to the data, as that of a sequence.
    if not dims and not results.data_nodes and (upper is None or at_most is None):
        return {}
    lower, higher = data_figures(results.at_least), data_figures(at_most)
    if not dims and lower == higher:
        return {}
    # No block is smaller than what is live at once.
    lower["arena"] = lower["in_place_peak"]
    return {
        "data_dependent": {
            "dims": [printable(name) for name in dims],
            "unbounded_dims": [printable(name) for name in unbounded],
            "nodes": [printable(name) for name in results.data_nodes],
            **{f"{name}_lower_bytes": size_bytes for name, size_bytes in lower.items()},
            **{f"{name}_upper_bytes": size_bytes for name, size_bytes in higher.items()},
            **({"without_upper_end": list(without_end)} if without_end else {}),
        }
    }


def data_figures(results: "StageResults | None") -> dict[str, int | None]:
    """The figures that have two ends, without their suffix in the report; ``None``: unknown."""
    if results is None:
        return dict.fromkeys(_TWO_ENDS)
    memory = results.activations
    figures = (
        *(results.total_bytes, memory.naive_bytes, memory.naive_in_place_bytes),
        *(memory.peak_bytes, memory.in_place_peak_bytes, memory.arena_bytes),
        results.training_peak_bytes,
    )
    return dict(zip(_TWO_ENDS, figures, strict=True))


_TWO_ENDS: Final = (
    *("total", "naive", "naive_in_place", "peak", "in_place_peak", "arena", "training_peak"),
)


def observed_rows(observed: "ObservedMemory | None") -> JsonDict:
    """The figures of observed runs; no key without any."""
    if observed is None:
        return {}
    return {
        "observed": {
            "runs": len(observed.sources),
            "sources": [printable(source) for source in observed.sources],
            **{name: spread_row(spread) for name, spread in observed.figures.items()},
            "runtimes": [
                {
                    "name": name,
                    "requested_peak_bytes": spread_row(spread),
                    **(
                        {"process_bytes": spread_row(observed.processes[name])}
                        if name in observed.processes
                        else {}
                    ),
                }
                for name, spread in observed.runtimes.items()
            ],
            "dims": {printable(name): spread_row(spread) for name, spread in observed.dims.items()},
            "iterations": {
                printable(name): spread_row(spread) for name, spread in observed.iterations.items()
            },
        }
    }


def control_flow_rows(branches: "Sequence[DataBranches]", loops: "Sequence[DataLoop]") -> JsonDict:
    """Branches and iterations that the data of a run decide; no key without any."""
    if not branches and not loops:
        return {}
    return {
        "control_flow": {
            "branches": [
                {
                    "node": printable(each.node),
                    **{
                        one.branch: {
                            "total_bytes": one.total_bytes,
                            "total_upper_bytes": one.total_upper_bytes,
                        }
                        for one in each.branches
                    },
                }
                for each in branches
            ],
            "loops": [_loop_row(each) for each in loops],
        }
    }


def _loop_row(loop: "DataLoop") -> JsonDict:
    line = loop.output_line
    return {
        "node": printable(loop.node),
        "most_iterations": loop.most,
        "output_bytes": line
        and {"fixed_bytes": line.fixed_bytes, "bytes_per_iteration": line.slope_bytes},
        "through_iterations": list(loop.counts),
        "total_upper_bytes": [
            {"iterations": count, "bytes": size_bytes} for count, size_bytes in loop.totals.items()
        ],
    }


def spread_row(spread: "Spread") -> JsonDict:
    """A figure in observed runs."""
    return {
        "min": spread.least,
        "median": spread.median,
        "p99": spread.p99,
        "max": spread.most,
    }


def _replay_row(each: "RuntimeReplay") -> JsonDict:
    peak, reserved = each.replay.peak, each.replay.reserved
    return {
        "name": printable(each.name),
        "peak_bytes": peak.size_bytes,
        "peak_node": printable(peak.node) or None,
        "reserved_bytes": None if reserved is None else reserved.peak_bytes,
        "outside_bytes": each.run.overheads.outside_bytes,
        "total_bytes": each.total_bytes,
        "live_at_peak": [
            {
                "tensor": printable(live.label),
                "kind": live.category.value,
                "bytes": live.size_bytes,
            }
            for live in each.replay.live_set(peak)[:_MOST_LIVE]
        ],
    }


def compute_row(compute: "Compute") -> JsonDict:
    """Arithmetic of the forward and the backward pass."""
    return {
        "forward_macs": compute.forward_macs,
        "forward_flops": compute.forward_flops,
        "backward_flops": compute.backward_flops,
        "unknown_nodes": compute.unknown_nodes,
    }


def elements_row(elements: "Elements") -> JsonDict:
    """Elements of inputs and activations, at the batch and of one sample."""
    return {
        "inputs": elements.inputs,
        "activations": elements.activations,
        "forward": elements.forward,
        "with_gradients": elements.with_gradients,
        "forward_per_sample": elements.forward_per_sample,
        "with_gradients_per_sample": elements.with_gradients_per_sample,
    }


def max_batch_row(found: "BudgetBatch | None") -> JsonDict | None:
    """The largest batch that fits the budget, and the one of the rule of thumb."""
    if found is None:
        return None
    return {
        "batch": found.batch,
        "budget_bytes": found.budget_bytes,
        "peak_bytes": found.peak_bytes,
        "over_bytes": found.over_bytes,
        "limiting_phase": found.limiting_phase,
        "rule_batch": found.rule_batch,
    }


def coverage_row(coverage: "Coverage") -> JsonDict:
    """How many nodes and tensors are assumed or unknown, and their names."""
    return {
        "nodes": coverage.nodes,
        "assumed_nodes": coverage.assumed_nodes,
        "unknown_tensors": coverage.unknown_tensors,
        "assumed_node_names": list(coverage.assumed_node_names),
        "unknown_tensor_names": list(coverage.unknown_tensor_names),
    }


def layer_row(layer: "Layer") -> JsonDict:
    """One node."""
    return {
        "node": layer.node,
        "op_type": layer.op_type,
        "output_shape": None if layer.output_shape is None else list(layer.output_shape),
        "dtype": layer.dtype,
        "output_bytes": layer.output_bytes,
        "parameters": layer.num_parameters,
        "weight_bytes": layer.weight_bytes,
        "macs": layer.macs,
        "flops": layer.flops,
    }


def kv_cache_row(memory: "CacheMemory | None") -> JsonDict | None:
    """The key-value cache; null if the model has none."""
    if memory is None:
        return None
    from onnxmem.analysis.cache_memory import cache_row

    return cache_row(memory)


def run_row(
    measurement: "Measurement | None", runtimes: Iterable["RuntimeMemory"]
) -> JsonDict | None:
    """A measurement, with the error of the prediction for the same backend."""
    if measurement is None:
        return None
    # A measurement names its backend `onnxruntime-cpu`, a prediction `ort-cpu`.
    name = measurement.backend.replace("onnxruntime", "ort")
    runtime = next((each for each in runtimes if each.name == name), None)
    return measured_row(measurement, None if runtime is None else predicted_by(runtime))


@dataclass(frozen=True, slots=True)
class Predicted:
    """A prediction, to be compared with a measurement; in bytes."""

    figures: Mapping[str, int | None] = field(default_factory=dict)
    """By the attributes of ``Measurement``; figures that are not predicted are left out."""
    nodes: tuple[int | None, ...] = ()
    """Requested bytes at the end of each node, base included, in order of execution."""
    findings: tuple[Finding, ...] = ()
    """Why a measurement may be another."""
    observed: "ObservedMemory | None" = None
    """The figures of the shapes that it had, and other runs; ``None``: no others are requested."""


def error_percent(predicted: int | None, measured: int | None) -> float | None:
    """The error of a prediction; ``None`` if a side is unknown or only the measured one is 0."""
    if predicted is None or not measured:
        return 0.0 if predicted == measured == 0 else None
    return 100 * (predicted / measured - 1)


def measured_row(measurement: "Measurement", predicted: Predicted | None) -> dict[str, object]:
    """The contract's ``measured``: every figure, and the error of the requested peak."""
    requested_bytes = predicted.figures.get("requested_peak_bytes") if predicted else None
    return {
        "backend": measurement.backend,
        **{name: getattr(measurement, name) for name, _, _ in FIGURES},
        "process_baseline_bytes": measurement.process_baseline_bytes,
        "device_baseline_bytes": measurement.device_baseline_bytes,
        "device_utilization_percent": measurement.device_utilization_percent,
        "device_utilization_peak_percent": measurement.device_utilization_peak_percent,
        "runs": measurement.runs,
        "seconds_per_run": list(measurement.seconds_per_run),
        "onnxruntime_version": measurement.onnxruntime_version,
        "weights_made_up": measurement.num_filled,
        "error_percent": error_percent(requested_bytes, measurement.requested_peak_bytes),
    }


def predicted_row(
    predicted: Predicted | None, measurement: "Measurement"
) -> dict[str, object] | None:
    """What was predicted of each measured figure, and its error; null: the prediction failed."""
    if predicted is None:
        return None
    return {
        name: {
            "bytes": predicted.figures.get(name),
            "error_percent": error_percent(predicted.figures.get(name), getattr(measurement, name)),
        }
        for name, _, _ in FIGURES
    }


def node_rows(
    measurement: "Measurement", predicted: Predicted | None = None
) -> list[dict[str, object]]:
    """A row for every node that ran; sizes are those of the arena, base included."""
    foretold = () if predicted is None else predicted.nodes
    return [
        {
            "node": printable(node.name),
            "op_type": printable(node.op_type),
            "provider": node.provider,
            "output_shapes": [list(shape) for shape in node.output_shapes],
            "requested_bytes": node.requested_bytes,
            # Both are in running order; nodes behind the predicted ones have no counterpart.
            "predicted_bytes": foretold[index] if index < len(foretold) else None,
            "in_use_bytes": node.in_use_bytes,
            "held_bytes": node.held_bytes,
            "scratch_bytes": node.scratch_bytes,
        }
        for index, node in enumerate(measurement.nodes)
    ]


def predicted_by(runtime: "RuntimeMemory") -> Predicted:
    """The predictions of the figures that a measurement has."""
    # Imported here: a report without a runtime must not load its rules.
    from onnxmem.runtimes.onnxruntime.process.baselines import baseline_of

    arena = runtime.arena
    names = (
        *("requested_peak_bytes", "with_scratch_peak_bytes", "pattern_block_bytes", "base_bytes"),
        *("in_use_peak_bytes", "held_bytes", "held_steady_bytes"),
    )
    figures: dict[str, int | None] = {name: getattr(arena, name) for name in names}
    figures["load_peak_bytes"] = runtime.load_peak_bytes
    figures["process_peak_bytes"] = runtime.process_peak_bytes
    figures["process_steady_bytes"] = runtime.process_bytes
    if runtime.process_bytes is not None:
        floor_bytes = baseline_of(runtime.graph_optimizer).process_bytes
        figures["process_floor_bytes"] = floor_bytes
        figures["process_added_bytes"] = runtime.process_bytes - floor_bytes
    nodes = tuple(sample.requested_bytes for sample in arena.nodes)
    outcomes = tuple(each for each in runtime.findings if each.code == "heap_outcomes")
    return Predicted(figures, nodes, outcomes)


class SavedReportError(UsageError):
    """The file is not a report of onnxmem, or not one that can be compared with."""

    code: ClassVar[str] = "saved_report"


@dataclass(frozen=True, slots=True)
class SavedObject(Table):
    """A JSON object of a saved report."""

    error: ClassVar[type[UsageError]] = SavedReportError
    hint: ClassVar[str] = f"; {_HINT}"

    def size_bytes(self, key: str) -> int | None:
        """The count at a key; ``None`` is unknown."""
        value = self.values.get(key)
        # A bool is an int to Python, and true is not a count.
        if value is not None and (type(value) is not int or value < 0):
            raise self.fault(key, "is not a count")
        return value


def read_saved(
    file: str, schema: str = SCHEMA, kind: type[SavedObject] = SavedObject
) -> tuple[SavedObject, ...]:
    """Read the rows of a report, or of another result with a row for each model.

    :raises MissingFileError: the file cannot be opened.
    :raises SavedReportError: it is not a report of onnxmem with schema 1.x.
    """
    report = kind(file, "", _document(file, kind.hint))
    if report.values.get("schema") != schema:
        fault = report.fault("schema", f"is not {schema}")
        raise fault
    # Within a major version keys are only added, so any 1.x has those that are read.
    if (report.text("schema_version") or "").partition(".")[0] != "1":
        fault = report.fault("schema_version", "is not 1.x, which this onnxmem reads")
        raise fault
    return report.tables("models")


def _document(file: str, hint: str) -> dict[str, object]:
    try:
        document = parsed_json(read_text(file, most_bytes=_MOST_BYTES))
    except OSError as fault:
        message = f"{shortened(file)}: cannot be opened: {reason_of(fault)}{hint}"
        raise MissingFileError(message) from fault
    except ValueError as fault:
        message = f"{shortened(file)}: is not JSON{hint}"
        raise SavedReportError(message) from fault
    if not isinstance(document, dict):
        message = f"{shortened(file)}: is not a report of onnxmem{hint}"
        raise SavedReportError(message)
    return document

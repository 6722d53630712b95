"""The memory measured in a run. ``None``: could not be measured; no figure replaces another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

from onnxmem.children.running import JSON
from onnxmem.errors import Finding
from onnxmem.settings import Values


@dataclass(frozen=True, slots=True)
class MeasuredNode:
    """A node of the optimized graph, with the arena's bytes at its end, arena initializers
    included.

    Its outputs and inputs are live at that time, and its scratch is freed.
    """

    name: str
    op_type: str
    provider: str
    """The execution provider that ran it."""
    output_shapes: tuple[tuple[int, ...], ...]
    requested_bytes: int | None
    """Requested by kernels and not freed."""
    in_use_bytes: int | None
    """Allocated chunks."""
    in_use_peak_bytes: int | None
    """The peak of the allocated chunks so far, within nodes too."""
    held_bytes: int | None
    """Reserved by the arena."""
    scratch_bytes: int | None
    """The sum of the blocks that the kernel allocates and frees while it runs."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The memory of one model on one backend."""

    backend: str
    """``onnxruntime-cpu`` or ``onnxruntime-cuda``."""
    requested_peak_bytes: int | None
    """Peak requested by kernels at the end of a node in run 1, above the arena initializers; memory
    pattern off."""
    with_scratch_peak_bytes: int | None
    """The same, with each node's own scratch."""
    pattern_block_bytes: int | None
    """The memory-pattern buffer of run 2; 0: there is none."""
    base_bytes: int | None
    """Arena initializers, requested before the first node: prepacked and copied weights."""
    in_use_peak_bytes: int | None
    """Peak of the allocated chunks in run 1, arena initializers and scratch included; memory
    pattern
    off."""
    held_bytes: int | None
    """Arena reserved after that run."""
    held_steady_bytes: int | None
    """Arena reserved after the last run, with the session's own settings."""
    load_peak_bytes: int | None
    """Peak resident memory while the session was created, above the baseline."""
    process_floor_bytes: int | None
    """Resident before the inputs: Python with numpy and onnxruntime imported."""
    process_baseline_bytes: int | None
    """Resident before the session was created: the floor and the inputs."""
    process_peak_bytes: int | None
    """Peak resident memory of the process."""
    process_steady_bytes: int | None
    """Resident memory of the process after the last run."""
    device_baseline_bytes: int | None
    """In use on the GPU before the session, by all processes."""
    device_peak_bytes: int | None
    """Peak in use on the GPU, of all samples."""
    device_steady_bytes: int | None
    """In use on the GPU after the last run."""
    device_utilization_percent: int | None
    """How busy the GPU was during the runs, the mean of all samples, as nvidia-smi shows it."""
    device_utilization_peak_percent: int | None
    """The same at most."""
    runs: int
    seconds_per_run: tuple[float, ...]
    """Wall time, the first run included."""
    onnxruntime_version: str
    num_filled: int
    """Weights with random values, because the model's files lack them."""
    nodes: tuple[MeasuredNode, ...]
    """In the order of execution; nodes of a subgraph precede its node, once per iteration."""
    findings: tuple[Finding, ...]
    fed: Mapping[str, Values] = field(default_factory=dict)
    """The elements fed to inputs that may decide control flow; a single one is that of all."""

    @property
    def process_added_bytes(self) -> int | None:
        """Memory that the model and its inputs add to the floor, after the last run."""
        floor, steady = self.process_floor_bytes, self.process_steady_bytes
        return None if floor is None or steady is None else steady - floor


_SIZES: Final = tuple(
    each.name for each in fields(Measurement) if each.name.endswith(("_bytes", "_percent"))
)
"""Fields that the children give as they are."""


def read_measurement(
    figures: Mapping[str, JSON],
    backend: str,
    num_filled: int,
    findings: Sequence[Finding],
    fed: Mapping[str, Values],
) -> Measurement:
    """A measurement from the figures of the children; missing figures are ``None``."""
    # The child's reply is JSON: whatever is not an integer in it is unknown.
    sizes = {name: whole(figures.get(name)) for name in _SIZES}
    seconds = tuple(float(str(second)) for second in listed(figures.get("seconds_per_run")))
    return Measurement(
        backend=backend,
        runs=len(seconds),
        seconds_per_run=seconds,
        onnxruntime_version=str(figures.get("onnxruntime_version")),
        num_filled=num_filled,
        nodes=tuple(_read_node(listed(row)) for row in listed(figures.get("nodes"))),
        findings=tuple(findings),
        fed=fed,
        **sizes,
    )


def _read_node(row: Sequence[JSON]) -> MeasuredNode:
    """Read a JSON row: name, operator, provider, shapes, then sizes in the order of the fields."""
    name, op_type, provider, shapes, *sizes = row
    return MeasuredNode(
        str(name),
        str(op_type),
        str(provider),
        tuple(tuple(whole(dim) or 0 for dim in listed(shape)) for shape in listed(shapes)),
        *(whole(size) for size in sizes),
    )


def whole(value: JSON) -> int | None:
    """A number of a reply; ``None``: it has none."""
    return value if isinstance(value, int) else None


def listed(value: JSON) -> Sequence[JSON]:
    """A list of a reply; empty: it has none."""
    return value if isinstance(value, list) else ()

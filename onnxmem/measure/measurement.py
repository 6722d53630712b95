"""What a run took. ``None`` is what could not be measured; no figure stands for another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Final

from onnxmem.children.running import JSON
from onnxmem.errors import Finding
from onnxmem.settings import Values


@dataclass(frozen=True, slots=True)
class MeasuredNode:
    """A node of the optimised graph when it ended: bytes of the arena, the base included.

    Its outputs and inputs are live then and its scratch is gone.
    """

    name: str
    op_type: str
    provider: str
    """The execution provider that ran it."""
    output_shapes: tuple[tuple[int, ...], ...]
    requested_bytes: int | None
    """Requested and not freed."""
    in_use_bytes: int | None
    """The chunks that were allocated for them."""
    in_use_peak_bytes: int | None
    """The most that ``in_use_bytes`` has been so far, within nodes too."""
    held_bytes: int | None
    """Reserved by the arena from the system."""
    scratch_bytes: int | None
    """The sum of the blocks that the kernel allocates and frees while it runs."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one model took on one backend."""

    backend: str
    """``onnxruntime-cpu`` or ``onnxruntime-cuda``."""
    requested_peak_bytes: int | None
    """The most that any node left requested in run 1, memory pattern off, above the base."""
    with_scratch_peak_bytes: int | None
    """The same with each node's own scratch."""
    pattern_block_bytes: int | None
    """The memory-pattern buffer of run 2; 0 if there is none."""
    base_bytes: int | None
    """Requested before the first node: prepacked weights, and weights that lie in the arena."""
    in_use_peak_bytes: int | None
    """The most in chunks in run 1, memory pattern off, base and scratch included."""
    held_bytes: int | None
    """Reserved by the arena from the system after that run."""
    held_steady_bytes: int | None
    """The same after the last run, with the session's own settings."""
    load_peak_bytes: int | None
    """The most that the process grew while the session was made: resident, above its baseline."""
    process_floor_bytes: int | None
    """Resident before the inputs: Python with numpy and onnxruntime imported."""
    process_baseline_bytes: int | None
    """Resident before the model was opened: the floor and the inputs."""
    process_peak_bytes: int | None
    """The most that the whole process had resident."""
    process_steady_bytes: int | None
    """What it has resident after the last run."""
    device_baseline_bytes: int | None
    """In use on the GPU before the session, by all processes."""
    device_peak_bytes: int | None
    """The most in use on the GPU in any sample."""
    device_steady_bytes: int | None
    """In use on the GPU after the last run."""
    runs: int
    seconds_per_run: tuple[float, ...]
    """Wall time, the first run included."""
    onnxruntime_version: str
    num_filled: int
    """Weights that are random, because the file lacks theirs."""
    nodes: tuple[MeasuredNode, ...]
    """In running order; nodes of a subgraph stand before its node, once an iteration."""
    findings: tuple[Finding, ...]
    fed: Mapping[str, Values] = field(default_factory=dict)
    """Elements of the inputs that may decide what a run does: what was fed, one standing for all.
    """

    @property
    def process_added_bytes(self) -> int | None:
        """What the model and its inputs add to the floor, after the last run."""
        floor, steady = self.process_floor_bytes, self.process_steady_bytes
        return None if floor is None or steady is None else steady - floor


_SIZES: Final = tuple(each.name for each in fields(Measurement) if each.name.endswith("_bytes"))


def read_measurement(
    figures: Mapping[str, JSON],
    backend: str,
    num_filled: int,
    findings: Sequence[Finding],
    fed: Mapping[str, Values] = MappingProxyType({}),
) -> Measurement:
    """A measurement from the figures of the children; what none of them knows is ``None``."""
    sizes = {name: _whole(figures.get(name)) for name in _SIZES}
    seconds = tuple(float(str(second)) for second in _listed(figures.get("seconds_per_run")))
    return Measurement(
        backend=backend,
        runs=len(seconds),
        seconds_per_run=seconds,
        onnxruntime_version=str(figures.get("onnxruntime_version")),
        num_filled=num_filled,
        nodes=tuple(_read_node(_listed(row)) for row in _listed(figures.get("nodes"))),
        findings=tuple(findings),
        fed=fed,
        **sizes,
    )


def _read_node(row: Sequence[JSON]) -> MeasuredNode:
    """Read a row: name, operator, provider, shapes, and the sizes in the order of the fields."""
    name, op_type, provider, shapes, *sizes = row
    return MeasuredNode(
        str(name),
        str(op_type),
        str(provider),
        tuple(tuple(_whole(dim) or 0 for dim in _listed(shape)) for shape in _listed(shapes)),
        *(_whole(size) for size in sizes),
    )


def _whole(value: JSON) -> int | None:
    return value if isinstance(value, int) else None


def _listed(value: JSON) -> Sequence[JSON]:
    return value if isinstance(value, list) else ()

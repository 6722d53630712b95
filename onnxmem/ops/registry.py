"""Lookup of an operator's record at an opset version, among the families of this package.

An operator without a record is ``UNKNOWN``: nothing is shared or overwritten, everything is saved
for backward, and its FLOPs are unknown. Reports count its uses.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from onnxmem.ops import (
    attention,
    data_movement,
    elementwise,
    linear,
    loss,
    microsoft,
    normalization,
    onnx_ml,
    quantized,
    recurrent,
    reduction,
    signal,
    spatial,
    structure,
)
from onnxmem.ops.spec import OpSpec, unknown

_FAMILIES = (
    attention.OPS,
    data_movement.OPS,
    elementwise.OPS,
    linear.OPS,
    loss.OPS,
    microsoft.OPS,
    normalization.OPS,
    onnx_ml.OPS,
    quantized.OPS,
    recurrent.OPS,
    reduction.OPS,
    signal.OPS,
    spatial.OPS,
    structure.OPS,
)

UNKNOWN = OpSpec(
    op_type="?",
    flops=unknown,
    macs=unknown,
    saved_extra_bytes=unknown,
    source="no record: conservative",
)


def lookup(op_type: str, domain: str = "", opset: int | None = None) -> OpSpec:
    """The record that is valid at an opset version, by default the newest.

    An opset older than an operator's oldest record gets that oldest one.
    """
    versions = OPERATORS.get((domain, op_type))
    if versions is None:
        return UNKNOWN
    if opset is None:
        return versions[-1]
    # The last version that is not newer than the opset; before the first one, that one.
    index = bisect_right(versions, opset, key=lambda spec: spec.since_version)
    return versions[max(index - 1, 0)]


def _join(families: Iterable[Iterable[OpSpec]]) -> Mapping[tuple[str, str], tuple[OpSpec, ...]]:
    """Group the records by domain and name, oldest version first.

    :raises ValueError: there are two records of one version.
    """
    table: dict[tuple[str, str], list[OpSpec]] = {}
    for family in families:
        for spec in family:
            versions = table.setdefault((spec.domain, spec.op_type), [])
            if any(known.since_version == spec.since_version for known in versions):
                message = f"{spec.domain}::{spec.op_type} v{spec.since_version} described twice"
                raise ValueError(message)
            versions.append(spec)
    return MappingProxyType(
        {key: tuple(sorted(v, key=lambda spec: spec.since_version)) for key, v in table.items()}
    )


OPERATORS = _join(_FAMILIES)
"""(domain, name) -> the records of an operator, oldest version first."""

"""What each operator does: one frozen record per operator, a file per family.

``lookup`` finds the record of an operator at an opset version. An operator without a record is
``UNKNOWN``: nothing is shared or overwritten, everything is kept for a backward pass, and its
arithmetic is unknown. Reports count its uses.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from onnxmem.ops import (
    activation,
    attention,
    contrib,
    contrib_attention,
    contrib_quantised,
    contrib_self_attention,
    convolution,
    elementwise,
    indexing,
    linear,
    linear_attention,
    loss,
    movement,
    nchwc,
    normalisation,
    onnx_ml,
    pooling,
    quantised,
    recurrent,
    reduction,
    resampling,
    signal,
    structure,
)
from onnxmem.ops.spec import OpSpec, unknown

UNKNOWN = OpSpec(
    op_type="?",
    flops=unknown,
    macs=unknown,
    saved_extra_bytes=unknown,
    source="no record: conservative",
)

_Key = tuple[str, str]


def _join(families: Iterable[Iterable[OpSpec]]) -> Mapping[_Key, tuple[OpSpec, ...]]:
    """Group the records by operator, oldest version first; a record given twice is refused."""
    table: dict[_Key, list[OpSpec]] = {}
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


OPERATORS = _join(
    (
        activation.OPS,
        attention.OPS,
        contrib.OPS,
        contrib_attention.OPS,
        contrib_quantised.OPS,
        contrib_self_attention.OPS,
        convolution.OPS,
        elementwise.OPS,
        indexing.OPS,
        linear.OPS,
        linear_attention.OPS,
        loss.OPS,
        movement.OPS,
        nchwc.OPS,
        normalisation.OPS,
        onnx_ml.OPS,
        pooling.OPS,
        quantised.OPS,
        recurrent.OPS,
        reduction.OPS,
        resampling.OPS,
        signal.OPS,
        structure.OPS,
    )
)


def lookup(op_type: str, domain: str = "", opset: int | None = None) -> OpSpec:
    """Find the record in force at an opset version; the newest where none is given.

    An opset older than an operator's oldest record gets that oldest one.
    """
    versions = OPERATORS.get((domain, op_type))
    if versions is None:
        return UNKNOWN
    if opset is None:
        return versions[-1]
    place = bisect_right(versions, opset, key=lambda spec: spec.since_version)
    return versions[max(place - 1, 0)]

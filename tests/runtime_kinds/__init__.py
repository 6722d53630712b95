"""Models in the style of those that onnxruntime is tested with, made when they are asked for."""

from typing import Final

from runtime_kinds import (
    contrib_attention,
    contrib_operators,
    control_flow,
    fusions,
    oddities,
    old_operators,
    quantized,
    values,
)
from runtime_kinds.kind import Kind

KINDS: Final[tuple[Kind, ...]] = (
    *contrib_attention.KINDS,
    *contrib_operators.KINDS,
    *control_flow.KINDS,
    *fusions.KINDS,
    *oddities.KINDS,
    *old_operators.KINDS,
    *quantized.KINDS,
    *values.KINDS,
)

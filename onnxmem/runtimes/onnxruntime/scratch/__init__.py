"""Kernel scratch: what a CPU kernel takes from the arena while it runs, a file per family.

``scratch`` answers for one use of an operator. ``None`` is an operator of which no rule is known,
or one whose rule needs a shape that is unknown; a kernel that is known to take nothing has an
empty ``Scratch``. Verified on onnxruntime 1.31.1 with one thread on an AVX-512 machine; a rule that
depends on MLAS, onnxruntime's library of kernels, and so on the CPU, says so.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from onnxmem.ops.spec import Call
from onnxmem.runtimes.onnxruntime.kernel_use import Site, UnknownError, Use
from onnxmem.runtimes.onnxruntime.scratch import (
    activation,
    attention,
    blockwise_matmul,
    broadcasting,
    control_flow,
    convolution,
    einsum,
    grouped_attention,
    normalisation,
    nothing,
    pooling,
    quantised_convolution,
    quantised_matmul,
    recurrent,
    resampling,
    sampling,
    signal,
    softmax,
)
from onnxmem.runtimes.onnxruntime.scratch.rule import Rule, Scratch

__all__ = ["RULES", "Rule", "Scratch", "Site", "scratch"]


def _join(families: Iterable[Iterable[Rule]]) -> Mapping[tuple[str, str], Rule]:
    table: dict[tuple[str, str], Rule] = {}
    for rule in (rule for family in families for rule in family):
        key = (rule.domain, rule.op_type)
        if key in table:
            message = f"scratch of {rule.domain}::{rule.op_type} described twice"
            raise ValueError(message)
        table[key] = rule
    return MappingProxyType(table)


RULES = _join(
    (
        activation.RULES,
        attention.RULES,
        blockwise_matmul.RULES,
        broadcasting.RULES,
        control_flow.RULES,
        convolution.RULES,
        einsum.RULES,
        grouped_attention.RULES,
        normalisation.RULES,
        nothing.RULES,
        pooling.RULES,
        quantised_convolution.RULES,
        quantised_matmul.RULES,
        recurrent.RULES,
        resampling.RULES,
        sampling.RULES,
        signal.RULES,
        softmax.RULES,
    )
)


_ANYWHERE = Site()


def scratch(op_type: str, domain: str, call: Call, site: Site = _ANYWHERE) -> Scratch | None:
    """What one use of an operator takes; ``None`` where no rule or a needed shape is unknown."""
    rule = RULES.get((domain, op_type))
    if rule is None:
        return None
    try:
        taken = rule.blocks(Use(call, site))
        # A rule may be a generator, which reads its shapes here.
        return taken if isinstance(taken, Scratch) else Scratch(tuple(filter(None, taken)))
    except (UnknownError, ValueError, IndexError, ArithmeticError):
        return None  # Ranks and counts that no kernel takes are as unknown as an open shape.

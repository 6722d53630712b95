"""Scan: two buffers for each state between its steps. If and Loop take nothing themselves."""

from onnxmem.runtimes.onnxruntime.kernel_use import UnknownError, Use
from onnxmem.runtimes.onnxruntime.scratch.rule import Rule

_FIRST_OPSET = 9
"""Before it, Scan had a batch of sequences."""
_NUM_BUFFERS = 2


def _scan(use: Use) -> tuple[int, ...]:
    """state_0, ..., scan_0: [T, *D], ...: the first state comes from the input, the last goes to
    the output; T - 1 lie between, in two buffers by turns. Axes other than 0 are unknown.
    """
    num_states = len(use.call.inputs) - use.integer("num_scan_inputs", 0)
    axes = (*use.integers("scan_input_axes"), *use.integers("scan_output_axes"))
    if not use.is_at_least(_FIRST_OPSET) or any(axes):
        raise UnknownError
    between = max(use.dims(num_states)[0] - 1, 0)
    sizes = (use.size_bytes(place) for place in range(num_states))
    return tuple(size for size in sizes for _ in range(min(between, _NUM_BUFFERS)))


RULES = (
    Rule("Scan", "", _scan, "core/providers/cpu/controlflow/scan_utils.cc: LoopStateVariable"),
)

"""Operators whose kernels have a rule of their own, which another version may have changed.

The rest take their outputs and nothing else: no scratch, no packed weights, no shared buffer.
"""

from onnxmem.model import Graph, Node
from onnxmem.runtimes.onnxruntime.allocation.kernels import Kernels
from onnxmem.runtimes.onnxruntime.prepacking import RULES as PREPACKING
from onnxmem.runtimes.onnxruntime.scratch import RULES as SCRATCH
from onnxmem.runtimes.onnxruntime.scratch import nothing

_NO_SCRATCH = frozenset((rule.domain, rule.op_type) for rule in nothing.RULES)


def ruled_operators(graph: Graph, kernels: Kernels) -> tuple[str, ...]:
    """Types of the nodes whose kernels have a rule; those that only share a buffer come last."""
    nodes = tuple(graph.all_nodes())
    taking = (node for node in nodes if _takes_memory(node, kernels))
    sharing = (node for node in nodes if kernels.aliases(node) or kernels.may_overwrite(node))
    return tuple(dict.fromkeys(node.op_type for found in (taking, sharing) for node in found))


def _takes_memory(node: Node, kernels: Kernels) -> bool:
    """Whether the kernel takes scratch, packs weights, or is onnxruntime's own."""
    if node.domain.startswith("com.microsoft"):
        return True
    operator = (node.domain, node.op_type)
    has_scratch = operator in SCRATCH and operator not in _NO_SCRATCH
    # Scratch and packing are those of the CPU: cuDNN's workspace is a term that a user sets.
    return kernels.provider == "cpu" and (has_scratch or operator in PREPACKING)

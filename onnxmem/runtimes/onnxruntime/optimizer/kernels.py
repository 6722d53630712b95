"""Which nodes onnxruntime's CPU provider runs as they stand: the records of the kernels say it.

A node without a kernel is replaced by the nodes of its ONNX function body; one without a kernel of
its type runs in float32 between casts.
"""

from onnxmem.runtimes.onnxruntime.cpu import Cpu
from onnxmem.runtimes.onnxruntime.kernels.kernel import Kernel
from onnxmem.runtimes.onnxruntime.kernels.registry import WITHOUT_KERNEL, kernel_of
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import BFLOAT16, FLOAT16


def has_kernel(graph: Graph, node: Node) -> bool:
    """Whether a CPU kernel runs a node as it stands."""
    if node.is_unassigned or (not node.domain and node.op_type in WITHOUT_KERNEL):
        return False
    halves = {graph.elem_type_of(name) for name in (*node.inputs, *node.outputs) if name}
    kernel = kernel_of(node.op_type, node.domain)
    halves &= {FLOAT16, BFLOAT16}
    return all(_runs(kernel, node.since_version, half, graph.cpu) for half in halves)


def _runs(kernel: Kernel, version: int, half: int, cpu: Cpu) -> bool:
    if half == BFLOAT16:
        return version in kernel.bfloat16
    return version in kernel.float16 or (cpu.is_arm and version in kernel.float16_on_arm)

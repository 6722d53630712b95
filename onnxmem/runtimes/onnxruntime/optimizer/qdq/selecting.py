"""Operators between DequantizeLinear and QuantizeLinear become integer operators.

Source: onnxruntime/core/optimizer/qdq_transformer/selectors_actions/
qdq_selector_action_transformer.cc: which selector and which action are registered for an operator.
"""

from collections.abc import Callable, Mapping
from typing import Final

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.qdq import moving, replacing
from onnxmem.runtimes.onnxruntime.optimizer.qdq.matmul_nbits import fuse_blocked_matmul
from onnxmem.runtimes.onnxruntime.optimizer.qdq.units import Unit, unit_of

_MOVING: Final = (
    "Expand Flatten Gather GatherElements Reshape Slice Squeeze Tile Transpose Unsqueeze".split()
)
_ORDERED: Final = ("MaxPool", "ReduceMax", "ReduceMin")
_ELEMENTWISE: Final = "Add AveragePool GlobalAveragePool LeakyRelu Mul Sigmoid Softmax".split()
_FIRST_MAX_POOL: Final = 12


def select_units(graph: Graph) -> bool:
    """Replace every unit that has an integer operator."""
    changed: list[bool] = []
    for node in walk(graph, select_units, changed):
        rules = () if node.domain else _RULES.get(node.op_type, ())
        if node.op_type == "MaxPool" and node.since_version != _FIRST_MAX_POOL:
            continue
        unit = unit_of(graph, node) if rules else None
        if unit is not None:
            changed.append(any(rule(graph, unit) for rule in rules))
    return any(changed)


_RULES: Final[Mapping[str, tuple[Callable[[Graph, Unit], bool], ...]]] = {
    **dict.fromkeys(_MOVING, (moving.drop_pair,)),
    **dict.fromkeys(_ORDERED, (moving.drop_ordered_pair,)),
    **dict.fromkeys(_ELEMENTWISE, (replacing.replace_elementwise,)),
    "ArgMax": (moving.drop_dequantiser,),
    "Concat": (replacing.replace_concat,),
    "Conv": (replacing.replace_conv,),
    "Gemm": (replacing.replace_gemm, fuse_blocked_matmul),
    "MatMul": (replacing.replace_matmul, fuse_blocked_matmul),
    "DepthToSpace": (moving.drop_byte_pair,),
    "Resize": (moving.drop_resized_pair,),
    "Split": (moving.drop_split,),
    "Where": (replacing.replace_where,),
}

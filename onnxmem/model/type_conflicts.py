"""Find nodes with contradictory element types, for which onnxruntime rejects a model.

Incomplete conversions to float16 have such nodes: an operand of another type than its neighbor, or
of a type that the operator does not accept, or an output that is declared with its former type.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import repeat
from typing import ClassVar, Final

import onnx
import onnx.defs

from onnxmem.errors import Finding, OnnxmemError
from onnxmem.model.graph import DType, Graph, Node, dtype_of
from onnxmem.model.traversal import opset_versions
from onnxmem.units import plural

_Types = tuple[DType | None, ...]
_ONNX_NAMES: Final = {DType.FLOAT32: "float", DType.FLOAT64: "double"}
"""Types with another name in ONNX than in numpy."""


class TypeConflictError(OnnxmemError):
    """onnxruntime rejects the types of a model."""

    code: ClassVar[str] = "type_conflict"


def type_conflicts(model: onnx.ModelProto, graph: Graph) -> Iterator[tuple[Node, str]]:
    """The nodes whose types onnxruntime rejects, and the reasons.

    ``graph`` is the graph of the model at any dims. Operators without a schema, such as those of
    ``com.microsoft``, and operands of unknown type are assumed to be valid.

    core/graph/graph.cc: ``Graph::InferAndVerifyTypeMatch``.
    """
    opsets = opset_versions(model)
    declared = {
        value.name: dtype_of(value.type.tensor_type.elem_type)
        for value in (*model.graph.value_info, *model.graph.output)
    }
    tensors = graph.tensors
    for node in graph.all_nodes():
        inputs = tuple([tensors[name].dtype if name else None for name in node.inputs])
        outputs = tuple([tensors[name].dtype if name else None for name in node.outputs])
        reason = _declared_otherwise(node, outputs, declared)
        if node.domain in opsets:
            operator = (node.op_type, opsets[node.domain], node.domain)
            reason = _conflict(operator, inputs, outputs) or reason
        if reason:
            yield node, reason


def conflict_findings(conflicts: Sequence[tuple[Node, str]]) -> Iterator[Finding]:
    """One finding, which names the first node; none without conflicts."""
    if conflicts:
        node, reason = conflicts[0]
        num_others = len(conflicts) - 1
        more = f", and {plural(num_others, 'node')} more" if num_others else ""
        text = f"onnxruntime rejects the types of the model: {reason}{more}"
        yield Finding("contradictory_types", text, node.name)


def _declared_otherwise(node: Node, outputs: _Types, declared: Mapping[str, DType | None]) -> str:
    """A message if an output is declared with another type than the node computes, else ``""``."""
    # Where the declared and the inferred type differ, the graph has the declared one
    # (``value_types.merged``); what a Cast computes is in its attribute too.
    target = node.attributes.get("to") if node.onnx_op == "Cast" else None
    computed = (dtype_of(target),) if isinstance(target, int) else outputs
    for name, dtype in zip(node.outputs, computed, strict=False):
        written = declared.get(name)
        if written is not None and dtype is not None and written is not dtype:
            return f"the output of {node.op_type} is {dtype}, but declared as {written}"
    return ""


# Most nodes of a model have the operator and the types of another one.
@cache
def _conflict(operator: tuple[str, int, str], inputs: _Types, outputs: _Types) -> str:
    """The conflict between the types of a node and its schema; ``""`` if there is none."""
    try:
        schema = onnx.defs.get_schema(*operator)
    except onnx.defs.SchemaError:
        return ""
    # ``bound`` has the type of each type variable, such as T: all operands of one variable must
    # have the type of the first one.
    bound: dict[str, DType] = {}
    for slots, types in ((schema.inputs, inputs), (schema.outputs, outputs)):
        for slot, dtype in zip(_repeated(slots), types, strict=False):
            if dtype is None:
                continue
            if f"tensor({_ONNX_NAMES.get(dtype, dtype)})" not in slot.types:
                return f"{schema.name} does not accept {dtype} as {slot.name}"
            if slot.is_homogeneous and bound.setdefault(slot.type_str, dtype) is not dtype:
                both = f"{bound[slot.type_str]} and {dtype}"
                return f"{schema.name} requires one type {slot.type_str}, but has {both}"
    return ""


def _repeated(
    slots: Sequence[onnx.defs.OpSchema.FormalParameter],
) -> Iterator[onnx.defs.OpSchema.FormalParameter]:
    """The operands of a schema, the last one repeated without end if it is variadic."""
    yield from slots
    if slots and slots[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic:
        yield from repeat(slots[-1])

"""Constants: folded, shared, compared; and equal nodes, which become one.

Payloads of large constants are absent. So a folded constant has elements where they are small and
dims alone otherwise, and whether two of the latter are equal is told by how they were made.
"""

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from math import prod

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper

from onnxmem.model.constants import Array, constant_value
from onnxmem.model.shapes.folding import (
    BOUNDED_BY_INPUT,
    SHAPE_ARITHMETIC,
    by_reference,
    ends_soon,
    extent,
)
from onnxmem.model.shapes.node_inference import NodeInference
from onnxmem.model.traversal import onnx_op
from onnxmem.model.value_types import dense_type, shape_of
from onnxmem.runtimes.onnxruntime.optimizer.functions import inline_branch
from onnxmem.runtimes.onnxruntime.optimizer.graph import (
    Graph,
    Node,
    TensorType,
    execution_order,
    walk,
)
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    has_kernel,
    has_single_reader,
    integer,
    is_constant,
    is_deterministic,
)
from onnxmem.runtimes.onnxruntime.optimizer.reading import write_node
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import redirect, remove_upwards
from onnxmem.runtimes.onnxruntime.optimizer.shape_inference import infer_node

# --------------------------------------------------------------------------------------------------
# Elements of a node's outputs, where its inputs are known and small.
#
# onnx's reference operators work them out; what they refuse stays unknown. They are not asked
# about operators of which a small file can ask for any amount of work: a regular expression, an
# image, a window of a length that is a value.


MAX_ELEMENTS = 4096
"""Larger values are not worked out; no shape or scale has more elements."""
_ELEMENTWISE = frozenset(
    "Acos Acosh Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cos Cosh "
    "DequantizeLinear Elu Erf Gelu HardSigmoid HardSwish IsInf IsNaN LeakyRelu LogSoftmax Mish "
    "PRelu QuantizeLinear Selu Sigmoid Sin Sinh Softmax Softplus Softsign Tan Tanh "
    "ThresholdedRelu".split()
)
_SIZED_BY_OUTPUT = SHAPE_ARITHMETIC | _ELEMENTWISE


def evaluated(graph: Graph, node: Node, values: Mapping[str, Array]) -> list[Array] | None:
    """Run one node; ``None`` where the reference refuses it, or may make or take too much."""
    written = write_node(node)
    opsets = [
        onnx.OperatorSetIdProto(domain=domain, version=version)
        for domain, version in graph.opsets.items()
    ]
    if not (_is_small(written, values, opsets) and ends_soon(written, values)):
        return None
    try:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
            made = by_reference(written, values, opsets)
    except Exception:  # noqa: BLE001 - whatever a reference kernel raises, the value is unknown
        return None
    arrays = [np.asarray(value) for value in made]
    return arrays if all(array.size <= MAX_ELEMENTS for array in arrays) else None


def _is_small(
    node: onnx.NodeProto, values: Mapping[str, Array], opsets: Sequence[onnx.OperatorSetIdProto]
) -> bool:
    """Whether a node is known beforehand to make few elements.

    That follows from the values alone: what a file says of the outputs may be a lie.
    """
    if onnx_op(node) in BOUNDED_BY_INPUT:
        return True
    if onnx_op(node) not in _SIZED_BY_OUTPUT:
        return False
    asker = NodeInference(onnx.ModelProto(opset_import=opsets))
    types = {name: dense_type(_elem_type(value), value.shape) for name, value in values.items()}
    made = asker.output_types(node, types, values)
    shapes = [shape_of(made[name]) if name in made else None for name in node.output if name]
    return max(map(extent, shapes), default=0) <= MAX_ELEMENTS


def _elem_type(value: Array) -> int:
    try:
        return onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    except (KeyError, ValueError):
        return onnx.TensorProto.UNDEFINED


# --------------------------------------------------------------------------------------------------
# Which constants have equal elements, where the elements themselves are not at hand.
#
# Two constants are equal where one operator folded both of the same constants: as the branches of
# an If do with a weight of the graph around them. Each that is folded carries the number of its
# content.


_KEY = "onnxmem.content"
"""Of a tensor's ``metadata_props``."""


def mark_folded(graph: Graph, node: Node) -> None:
    """Note what a node's outputs were folded of; they are constants of the graph already."""
    sources = tuple(_number(graph, name) for name in node.inputs)
    attributes = tuple(
        (name, attribute.SerializeToString(deterministic=True))
        for name, attribute in sorted(node.attributes.items())
    )
    for place, name in enumerate(node.outputs):
        if name in graph.initializers:
            key = (node.domain, node.op_type, attributes, sources, place)
            mark = str(_numbered(graph, key))
            graph.initializers[name].metadata_props.add(key=_KEY, value=mark)


def forget_content(tensor: onnx.TensorProto) -> None:
    """A constant is changed and no more what was folded."""
    kept = [entry for entry in tensor.metadata_props if entry.key != _KEY]
    del tensor.metadata_props[:]
    tensor.metadata_props.extend(kept)


def content_of(tensor: onnx.TensorProto) -> str | None:
    """What a constant has in common with its equals; ``None`` where that is not known."""
    mark = _mark(tensor)
    if mark is not None:
        return f"{tuple(tensor.dims)} folded {mark}"
    value = constant_value(tensor)
    if value is None or value.dtype.hasobject:
        return None
    return f"{tensor.data_type} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"


def _mark(tensor: onnx.TensorProto) -> int | None:
    marks = (int(entry.value) for entry in tensor.metadata_props if entry.key == _KEY)
    return next(marks, None)


def _number(graph: Graph, name: str) -> int | None:
    """The number of a constant's content: a stored one, whose elements are absent, has its own."""
    tensor = graph.constant(name)
    if tensor is None:
        return None
    mark, value = _mark(tensor), graph.array(name)
    if mark is not None:
        return mark
    if value is not None and not value.dtype.hasobject:
        return _numbered(graph, (value.dtype.str, value.shape, value.tobytes()))
    holder = graph
    while name not in holder.initializers and holder.outer is not None:
        holder = holder.outer
    return _numbered(graph, (holder, name, tuple(tensor.dims)))


def _numbered(graph: Graph, content: object) -> int:
    root = graph
    while root.outer is not None:
        root = root.outer
    return root.contents.setdefault(content, len(root.contents))


# --------------------------------------------------------------------------------------------------
# Nodes of which every input is constant become constants; so does Shape of a known shape.
#
# onnxruntime/core/optimizer/constant_folding.cc. Elements are worked out where they are small and
# the inputs' are known; else the new constant has dims alone.


_MAX_OUTPUT_BYTES = 2**30
"""A node whose outputs are larger is left alone."""
_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
"""Size of an element by its type."""


_UNFORESEEN = frozenset({"Compress", "NonMaxSuppression", "NonZero"})
"""Operators whose output's size follows from elements: measured on onnxruntime 1.31.1."""


def fold_constants(graph: Graph) -> bool:
    """Fold what can be folded; true if anything was."""
    changed: list[bool] = []
    is_updated = False
    for node in walk(graph, fold_constants, changed):
        if is_updated and not node.bodies:
            infer_node(graph, node)
        if node.op_type == "If" and not node.domain:
            is_folded = inline_branch(graph, node)
        else:
            is_folded = _fold(graph, node)
        is_updated |= is_folded
    return is_updated or any(changed)


def _fold(graph: Graph, node: Node) -> bool:
    made = _folded_shape(graph, node) if _is_shape(node) else _folded(graph, node)
    if made is None:
        return False
    for parent in dict.fromkeys(graph.parents(node)):
        remove_upwards(graph, parent)
    graph.remove(node)
    for tensor in made:
        graph.add_initializer(tensor)
    if not all(tensor.raw_data for tensor in made):
        mark_folded(graph, node)
    return True


def _is_shape(node: Node) -> bool:
    return node.op_type == "Shape" and not node.domain


def _folded_shape(graph: Graph, node: Node) -> list[onnx.TensorProto] | None:
    dims = graph.dims_of(node.inputs[0])
    if dims is None:
        return None
    known = [dim for dim in dims if isinstance(dim, int)]
    if len(known) != len(dims):
        return None
    end = node.attributes["end"].i if "end" in node.attributes else None
    asked = known[integer(node, "start") : end]
    return [onnx.numpy_helper.from_array(np.array(asked, np.int64), node.outputs[0])]


def _folded(graph: Graph, node: Node) -> list[onnx.TensorProto] | None:
    if not _can_fold(node) or not all(is_constant(graph, n) for n in node.inputs if n):
        return None
    if node.op_type == "DequantizeLinear" and not _whole_unit_folds(graph, node):
        return None
    infer_node(graph, node)
    if any(isinstance(graph.type_of(name), onnx.TypeProto) for name in node.outputs):
        return None  # a sequence or an optional
    if _output_bytes(graph, node) > _MAX_OUTPUT_BYTES or not has_kernel(graph, node):
        return None
    return _computed(graph, node) or _sized(graph, node)


def _can_fold(node: Node) -> bool:
    is_foreseen = is_deterministic(node.domain, node.op_type) and node.op_type not in _UNFORESEEN
    return is_foreseen and not node.bodies


def _whole_unit_folds(graph: Graph, node: Node) -> bool:
    """A DequantizeLinear folds only with the node and the QuantizeLinear that follow it."""
    if not has_single_reader(graph, node):
        return False
    reader = graph.children(node)[0]
    if len(reader.inputs) != 1 or len(reader.outputs) != 1 or not has_single_reader(graph, reader):
        return False
    last = graph.children(reader)[0]
    is_last = last.op_type == "QuantizeLinear"
    return is_last and _can_fold(reader) and _can_fold(last)


def _output_bytes(graph: Graph, node: Node) -> int:
    """Bytes of the outputs, as far as they are known."""
    total = 0
    for name in node.outputs:
        dims = _known_dims(graph, name) if name else ()
        if dims is not None and name:
            total += prod(dims) * _BYTES.get(graph.elem_type_of(name), 0)
    return total


def _known_dims(graph: Graph, name: str) -> Sequence[int] | None:
    dims = graph.dims_of(name)
    known = None if dims is None else [dim for dim in dims if isinstance(dim, int)]
    return known if known is not None and dims is not None and len(known) == len(dims) else None


def _computed(graph: Graph, node: Node) -> list[onnx.TensorProto] | None:
    """Constants with their elements; ``None`` where they are unknown or too many."""
    values: dict[str, Array] = {}
    for name in node.inputs:
        value = graph.array(name) if name else None
        if name and (value is None or value.size > MAX_ELEMENTS):
            return None
        if value is not None:
            values[name] = value
    made = evaluated(graph, node, values)
    if made is None:
        return None
    names = [name for name in node.outputs if name]
    return [onnx.numpy_helper.from_array(a, n) for n, a in zip(names, made, strict=True)]


def _sized(graph: Graph, node: Node) -> list[onnx.TensorProto] | None:
    """Constants with dims alone; ``None`` where the dims are unknown too."""
    tensors = []
    for name in node.outputs:
        known, dims = graph.type_of(name), _known_dims(graph, name)
        if name and (dims is None or not isinstance(known, TensorType)):
            return None
        if name and isinstance(known, TensorType) and dims is not None:
            tensors.append(onnx.TensorProto(name=name, data_type=known.elem_type, dims=dims))
    return tensors


# --------------------------------------------------------------------------------------------------
# Equal small constants become one, so that nodes that read them can be equal too.
#
# onnxruntime/core/optimizer/constant_sharing.cc. Which of the equal ones stays follows a hash
# table there; here it is the first.


_MAX_ELEMENTS = 8
_SHARED_TYPES = frozenset({10, 1, 11, 6, 7})
"""float16, float, double, int32 and int64."""


def share_constants(graph: Graph) -> bool:
    """Replace repeated constants of up to eight elements; subgraphs are left alone."""
    first: dict[Hashable, str] = {}
    changed = False
    for name in [name for name in graph.initializers if _may_be_shared(graph, name)]:
        value = graph.array(name)
        if value is None:
            continue
        key = (value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
        kept = first.setdefault(key, name)
        if kept != name:
            for reader in graph.readers(name):
                inputs = [kept if read == name else read for read in reader.inputs]
                graph.set_inputs(reader, inputs)
            graph.drop_initializer(name)
            changed = True
    return changed


def _may_be_shared(graph: Graph, name: str) -> bool:
    tensor = graph.constant(name)
    if tensor is None or name in graph.outputs or tensor.data_type not in _SHARED_TYPES:
        return False
    size = int(np.prod(tensor.dims, dtype=np.int64))
    readers = graph.readers(name)
    is_read_inside = any(name in reader.implicit for reader in readers)
    return bool(readers) and 0 < size <= _MAX_ELEMENTS and not is_read_inside


# --------------------------------------------------------------------------------------------------
# Nodes that compute the same of the same values become one.
#
# onnxruntime/core/optimizer/common_subexpression_elimination.cc: value numbering in execution
# order; a node with a graph among its attributes equals no other.


_COMPARED = frozenset(
    {
        onnx.AttributeProto.FLOAT,
        onnx.AttributeProto.INT,
        onnx.AttributeProto.STRING,
        onnx.AttributeProto.FLOATS,
        onnx.AttributeProto.INTS,
        onnx.AttributeProto.STRINGS,
        onnx.AttributeProto.TENSOR,
    }
)


def merge_equal_nodes(graph: Graph) -> bool:
    """Make the readers of a repeated node read the first one."""
    changed: list[bool] = []
    numbers: dict[str, Hashable] = {}
    chosen: dict[Hashable, str] = {}
    for node in walk(graph, merge_equal_nodes, changed):
        inputs = tuple(numbers.get(name, name) for name in node.inputs)
        for place, name in enumerate(node.outputs):
            key = _key(node, inputs, place)
            number: Hashable = (chosen[key], "output") if key in chosen else (name, "output")
            chosen.setdefault(key, name)
            numbers[name] = number
    return _merge(graph, numbers) or any(changed)


def _merge(graph: Graph, numbers: dict[str, Hashable]) -> bool:
    changed = False
    for node in execution_order(graph):
        is_replaced = False
        for name in node.outputs:
            number = numbers.get(name)
            first = number[0] if isinstance(number, tuple) else name
            if name and first != name and name not in graph.outputs:
                redirect(graph, name, str(first))
                is_replaced = True
        if is_replaced:
            changed = True
            if has_single_reader(graph, node, 0):
                graph.remove(node)
    return changed


def _key(node: Node, inputs: tuple[Hashable, ...], place: int) -> Hashable:
    attributes = _attributes(node)
    if attributes is None or node.bodies or not _is_compared(node):
        return (node.index, place)
    kept = list(inputs)
    while kept and kept[-1] == "":
        kept.pop()
    return (node.op_type, node.domain, tuple(kept), attributes, place)


def _is_compared(node: Node) -> bool:
    """Each QDQ unit keeps a DequantizeLinear of its own."""
    is_unit = node.op_type == "DequantizeLinear"
    return is_deterministic(node.domain, node.op_type) and not is_unit


def _attributes(node: Node) -> Hashable | None:
    """Attributes with the schema's defaults; ``None`` where one cannot be compared."""
    values: dict[str, bytes] = {}
    try:
        schema = onnx.defs.get_schema(node.op_type, node.since_version, node.domain)
    except onnx.defs.SchemaError:
        pass
    else:
        for name, attribute in schema.attributes.items():
            if attribute.default_value.name:
                values[name] = _bytes(attribute.default_value)
    for name, given in node.attributes.items():
        if given.type not in _COMPARED:
            return None
        values[name] = _bytes(given)
    return tuple(sorted(values.items()))


def _bytes(attribute: onnx.AttributeProto) -> bytes:
    plain = onnx.AttributeProto()
    plain.CopyFrom(attribute)
    plain.ClearField("doc_string")
    return plain.SerializeToString(deterministic=True)

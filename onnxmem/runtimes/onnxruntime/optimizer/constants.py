"""Constant folding, constant sharing and common subexpression elimination.

The data of large constants is absent. So a folded constant has elements if they are few and known,
and only dims otherwise. Whether two constants of the latter kind are equal follows from how they
were computed.
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
    has_cpu_kernel,
    has_edges,
    has_single_reader,
    integer,
    is_constant,
    is_deterministic,
)
from onnxmem.runtimes.onnxruntime.optimizer.reading import write_node
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import redirect, remove_upwards
from onnxmem.runtimes.onnxruntime.optimizer.shape_inference import infer_node

# --------------------------------------------------------------------------------------------------
# Elements of a node's outputs, if its inputs are known and small.
#
# onnxruntime runs its kernel (onnxruntime/core/optimizer/optimizer_execution_frame.cc). Here onnx's
# reference operators compute the elements; if they raise, the elements stay unknown. Operators with
# which a small file can cause any amount of work are not evaluated: a regular expression, an image,
# a window whose length is an element.


MAX_ELEMENTS = 4096
"""Larger values are not computed; shapes and scales are smaller."""
_ELEMENTWISE = frozenset(
    "Acos Acosh Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cos Cosh "
    "DequantizeLinear Elu Erf Gelu HardSigmoid HardSwish IsInf IsNaN LeakyRelu LogSoftmax Mish "
    "PRelu QuantizeLinear Selu Sigmoid Sin Sinh Softmax Softplus Softsign Tan Tanh "
    "ThresholdedRelu".split()
)
_SIZED_BY_OUTPUT = SHAPE_ARITHMETIC | _ELEMENTWISE


def evaluated(graph: Graph, node: Node, values: Mapping[str, Array]) -> list[Array] | None:
    """Run one node; ``None`` if the reference raises, or might need too much time or memory."""
    written = write_node(node)
    opsets = [
        onnx.OperatorSetIdProto(domain=domain, version=version)
        for domain, version in graph.opsets.items()
    ]
    if not (_is_small(written, values, opsets) and ends_soon(written, values)):
        return None
    try:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
            outputs = by_reference(written, values, opsets)
    except Exception:  # noqa: BLE001 - whatever a reference kernel raises, the value is unknown
        return None
    arrays = [np.asarray(value) for value in outputs]
    return arrays if all(array.size <= MAX_ELEMENTS for array in arrays) else None


def _is_small(
    node: onnx.NodeProto, values: Mapping[str, Array], opsets: Sequence[onnx.OperatorSetIdProto]
) -> bool:
    """Whether a node is sure to have small outputs, before it runs.

    Only the values decide: the shapes that a file declares for the outputs may be wrong.
    """
    if onnx_op(node) in BOUNDED_BY_INPUT:
        return True
    if onnx_op(node) not in _SIZED_BY_OUTPUT:
        return False
    inference = NodeInference(onnx.ModelProto(opset_import=opsets))
    types = {name: dense_type(_elem_type(value), value.shape) for name, value in values.items()}
    inferred = inference.output_types(node, types, values)
    shapes = [shape_of(inferred[n]) if n in inferred else None for n in node.output if n]
    return max(map(extent, shapes), default=0) <= MAX_ELEMENTS


def _elem_type(value: Array) -> int:
    try:
        return onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    except (KeyError, ValueError):
        return onnx.TensorProto.UNDEFINED


# --------------------------------------------------------------------------------------------------
# Which constants have equal elements, if the elements themselves are absent.
#
# Two constants are equal if the same operator folded them from the same constants, as both branches
# of an If may do with a weight of the outer graph. A folded constant carries the number of its
# content in its metadata. The session shares prepacked weights by it.


_KEY = "onnxmem.content"
"""Key of the number in a tensor's ``metadata_props``."""


def mark_folded(graph: Graph, node: Node) -> None:
    """Record what a node's outputs were folded from; they already are constants of the graph."""
    sources = tuple(_number(graph, name) for name in node.inputs)
    attributes = tuple(
        (name, attribute.SerializeToString(deterministic=True))
        for name, attribute in sorted(node.attributes.items())
    )
    for index, name in enumerate(node.outputs):
        if name in graph.initializers:
            key = (node.domain, node.op_type, attributes, sources, index)
            mark = str(_numbered(graph, key))
            graph.initializers[name].metadata_props.add(key=_KEY, value=mark)


def forget_content(tensor: onnx.TensorProto) -> None:
    """Remove the number of a constant's content, because the constant changed."""
    others = [entry for entry in tensor.metadata_props if entry.key != _KEY]
    del tensor.metadata_props[:]
    tensor.metadata_props.extend(others)


def content_of(tensor: onnx.TensorProto) -> str | None:
    """A text that equal constants share and others do not; ``None`` if it is unknown."""
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
    """The number of a constant's content; ``None`` if the value is not a constant.

    A stored constant with absent elements equals only itself.
    """
    tensor = graph.constant(name)
    if tensor is None:
        return None
    mark, value = _mark(tensor), graph.array(name)
    if mark is not None:
        return mark
    if value is not None and not value.dtype.hasobject:
        return _numbered(graph, (value.dtype.str, value.shape, value.tobytes()))
    owner = graph
    while name not in owner.initializers and owner.outer is not None:
        owner = owner.outer
    return _numbered(graph, (owner, name, tuple(tensor.dims)))


def _numbered(graph: Graph, content: object) -> int:
    root = graph
    while root.outer is not None:
        root = root.outer
    return root.contents.setdefault(content, len(root.contents))


# --------------------------------------------------------------------------------------------------
# Nodes with constant inputs become constants; so does Shape of a known shape.
#
# onnxruntime/core/optimizer/constant_folding.cc (``ConstantFolding::ApplyImpl``). The elements are
# computed if they are few and those of the inputs are known; else the new constant has dims only.


_MAX_OUTPUT_BYTES = 2**30
"""A node with larger outputs is not folded."""
_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
"""Size of an element by its type."""


_SHAPED_BY_ELEMENTS = frozenset({"Compress", "NonMaxSuppression", "NonZero"})
"""Operators whose output shape depends on elements; not folded (onnxruntime 1.31.1, measured)."""


def fold_constants(graph: Graph) -> bool:
    """Fold all nodes that can be folded."""
    changed: list[bool] = []
    is_updated = False
    for node in walk(graph, fold_constants, changed):
        # Once a node was folded, the shapes behind it may be known, and a Shape there folds too.
        if is_updated and not node.bodies:
            infer_node(graph, node)
        if node.op_type == "If" and not node.domain:
            is_folded = inline_branch(graph, node)
        else:
            is_folded = _fold(graph, node)
        is_updated |= is_folded
    return is_updated or any(changed)


def _fold(graph: Graph, node: Node) -> bool:
    folded = _folded_shape(graph, node) if _is_shape(node) else _folded(graph, node)
    if folded is None:
        return False
    # Parents go first, while the node's edges still count: they are removed if only it reads them.
    for parent in dict.fromkeys(graph.parents(node)):
        remove_upwards(graph, parent)
    graph.remove(node)
    for tensor in folded:
        graph.add_initializer(tensor)
    if not all(tensor.raw_data for tensor in folded):
        mark_folded(graph, node)
    return True


def _is_shape(node: Node) -> bool:
    return node.op_type == "Shape" and not node.domain


def _folded_shape(graph: Graph, node: Node) -> list[onnx.TensorProto] | None:
    dims = graph.dims_of(node.inputs[0])
    if dims is None:
        return None
    # ``ConstantFoldShapeNode``: dims decide the result, so the input itself need not be constant.
    known = [dim for dim in dims if isinstance(dim, int)]
    if len(known) != len(dims):
        return None
    end = node.attributes["end"].i if "end" in node.attributes else None
    selected = known[integer(node, "start") : end]
    return [onnx.numpy_helper.from_array(np.array(selected, np.int64), node.outputs[0])]


def _folded(graph: Graph, node: Node) -> list[onnx.TensorProto] | None:
    if not _can_fold(node) or not all(is_constant(graph, n) for n in node.inputs if n):
        return None
    if node.op_type == "DequantizeLinear" and not _whole_unit_folds(graph, node):
        return None
    infer_node(graph, node)
    if any(isinstance(graph.type_of(name), onnx.TypeProto) for name in node.outputs):
        return None  # a sequence or an optional
    if _output_bytes(graph, node) > _MAX_OUTPUT_BYTES or not has_cpu_kernel(graph, node):
        return None
    return _computed(graph, node) or _sized(graph, node)


def _can_fold(node: Node) -> bool:
    has_known_shape = node.op_type not in _SHAPED_BY_ELEMENTS
    return is_deterministic(node.domain, node.op_type) and has_known_shape and not node.bodies


def _whole_unit_folds(graph: Graph, node: Node) -> bool:
    """Whether the node and the QuantizeLinear behind a DequantizeLinear fold with it.

    Otherwise folding would replace an integer weight by a float one, four times its size, and break
    the QDQ unit.
    """
    # ``ConstantFolding::ApplyImpl`` has only this form of a unit: nothing else reads the node or
    # the one behind it, which has one input and one output. Whether that input is constant is left
    # out: it is once the DequantizeLinear is folded.
    if not has_single_reader(graph, node):
        return False
    reader = graph.children(node)[0]
    if len(reader.inputs) != 1 or len(reader.outputs) != 1 or not has_single_reader(graph, reader):
        return False
    last = graph.children(reader)[0]
    is_last = last.op_type == "QuantizeLinear"
    return is_last and _can_fold(reader) and _can_fold(last)


def _output_bytes(graph: Graph, node: Node) -> int:
    """Bytes of the outputs whose dims are known."""
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
    """The outputs as constants with elements; ``None`` if they are unknown or too many."""
    values: dict[str, Array] = {}
    for name in node.inputs:
        value = graph.array(name) if name else None
        if name and (value is None or value.size > MAX_ELEMENTS):
            return None
        if value is not None:
            values[name] = value
    arrays = evaluated(graph, node, values)
    if arrays is None:
        return None
    names = [name for name in node.outputs if name]
    return [onnx.numpy_helper.from_array(a, n) for n, a in zip(names, arrays, strict=True)]


def _sized(graph: Graph, node: Node) -> list[onnx.TensorProto] | None:
    """The outputs as constants with dims only; ``None`` if a dim is unknown."""
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
# onnxruntime/core/optimizer/constant_sharing.cc. Which of the equal constants stays depends on a
# hash table there; here it is the first.


# ``TENSOR_ELEM_COUNT_THRESHOLD`` of constant_sharing.h.
_MAX_ELEMENTS = 8
_SHARED_TYPES = frozenset({10, 1, 11, 6, 7})
"""float16, float, double, int32 and int64."""


def share_constants(graph: Graph) -> bool:
    """Replace repeated constants of up to eight elements, but not those of subgraphs."""
    first: dict[Hashable, str] = {}
    changed = False
    for name in [name for name in graph.initializers if _may_be_shared(graph, name)]:
        value = graph.array(name)
        if value is None:
            continue
        # By bytes: -0.0 and 0.0 differ, NaN equals itself.
        key = (value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
        shared = first.setdefault(key, name)
        if shared != name:
            for reader in graph.readers(name):
                inputs = [shared if read == name else read for read in reader.inputs]
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
# Nodes that compute the same outputs from the same values become one.
#
# onnxruntime/core/optimizer/common_subexpression_elimination.cc: value numbering in execution
# order. A node with a subgraph never equals another.


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
    # Producers come before readers, so the inputs of a node have their numbers already, and equal
    # nodes of equal nodes get one number too. The graph changes only after all values have theirs.
    for node in walk(graph, merge_equal_nodes, changed):
        inputs = tuple(numbers.get(name, name) for name in node.inputs)
        for index, name in enumerate(node.outputs):
            key = _key(node, inputs, index)
            number: Hashable = (chosen[key], "output") if key in chosen else (name, "output")
            chosen.setdefault(key, name)
            numbers[name] = number
    return _merge(graph, numbers) or any(changed)


def _merge(graph: Graph, numbers: dict[str, Hashable]) -> bool:
    # ``CommonSubexpressionElimination::ApplyImpl``, the second loop: all readers read the first
    # equal value, a graph output keeps its name and its node, and a node that nothing reads goes.
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
            if has_edges(graph, node, 0):
                graph.remove(node)
    return changed


def _key(node: Node, inputs: tuple[Hashable, ...], output_index: int) -> Hashable:
    attributes = _attributes(node)
    if attributes is None or node.bodies or not _is_compared(node):
        return (node.index, output_index)
    present = list(inputs)
    while present and present[-1] == "":
        present.pop()
    return (node.op_type, node.domain, tuple(present), attributes, output_index)


def _is_compared(node: Node) -> bool:
    """DequantizeLinear nodes never merge, since each QDQ unit has its own."""
    is_unit = node.op_type == "DequantizeLinear"
    return is_deterministic(node.domain, node.op_type) and not is_unit


def _attributes(node: Node) -> Hashable | None:
    """Attributes with the schema's defaults; ``None`` if one cannot be compared."""
    values: dict[str, bytes] = {}
    try:
        schema = onnx.defs.get_schema(node.op_type, node.since_version, node.domain)
    except onnx.defs.SchemaError:
        pass
    else:
        for name, attribute in schema.attributes.items():
            if attribute.default_value.name:
                values[name] = _bytes(attribute.default_value)
    for name, proto in node.attributes.items():
        if proto.type not in _COMPARED:
            return None
        values[name] = _bytes(proto)
    return tuple(sorted(values.items()))


def _bytes(attribute: onnx.AttributeProto) -> bytes:
    plain = onnx.AttributeProto()
    plain.CopyFrom(attribute)
    plain.ClearField("doc_string")
    return plain.SerializeToString(deterministic=True)

"""What PyTorch has and an ONNX file lacks: operators without an ONNX name, and constants.

The records are of operators that exporters write as several nodes (``composites``). A tensor that
depends neither on an input's data nor on a trained parameter is computed before a step, or never.
"""

from dataclasses import replace
from math import prod

from onnxmem.model.graph import Graph, Node, Role
from onnxmem.model.parameters import Parameters
from onnxmem.ops.formulas import bytes_of_input, bytes_of_output, per_element, shape_at
from onnxmem.ops.linear import MATMUL_FLOPS, MATMUL_MACS, MATMUL_SAVED
from onnxmem.ops.spec import Call, Gradient, GradientRule, OpSpec, Saved, known_dims

FRAMEWORK = "torch"
"""The domain of these records."""

CALL = "call"
"""The attribute of an operand's node that names the node at whose end the call returns."""

MATH = "math"
"""The attribute of a node of an attention that runs as matmuls: inside of it autocast is off."""

_HALF_BITS = 16
_LOG_SUM_BYTES = 4
_LOG_SUM_ALIGNMENT = 32
_RANDOM_STATE_BYTES = 16
_FLASH_RANDOM_STATE_BYTES = 24
"""Seed and offset in one tensor, and an unused one (``mha_fwd`` of flash_api.cpp)."""
_MASK_ALIGNMENT = 8
_BOOL_MASK = 4
"""Its index among the operands."""


def is_flash_attention(query_bits: int | None, *, has_mask: bool) -> bool:
    """Whether an attention runs in FlashAttention: on elements of 16 bits, without a mask.

    ``use_flash_attention`` of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
    """
    return query_bits == _HALF_BITS and not has_mask


def _log_sum_bytes(call: Call) -> int | None:
    """Bytes of the logsumexp of each row, and of the seed and offset of dropout's random numbers.

    Query [batch, heads, rows, width] -> [batch, heads, rows]; the memory-efficient kernel, which
    runs with a mask or in float32, rounds rows up to a multiple of 32.
    """
    dims, query = known_dims(shape_at(call)), call.input_at(0)
    if dims is None or len(dims) < 2:  # noqa: PLR2004 - rows and width
        return None
    has_mask = any(operand is not None for operand in call.inputs[3:])
    if is_flash_attention(None if query is None else query.bits, has_mask=has_mask):
        return _LOG_SUM_BYTES * prod(dims[:-1]) + _FLASH_RANDOM_STATE_BYTES
    rows = -(-dims[-2] // _LOG_SUM_ALIGNMENT) * _LOG_SUM_ALIGNMENT
    return _LOG_SUM_BYTES * prod(dims[:-2]) * rows + _RANDOM_STATE_BYTES


def _attention_saved_bytes(call: Call) -> int | None:
    """Bytes that the kernel saves besides its operands: of each row, and of a converted mask."""
    # aten/src/ATen/native/transformers/attention.cpp: convert_boolean_attn_mask converts a mask of
    # booleans to the query's type at each call; preprocess_mask pads its rows to a multiple of 8,
    # and expands it over the heads as a view.
    rows, mask, query = _log_sum_bytes(call), call.input_at(_BOOL_MASK), call.input_at(0)
    if mask is None:
        return rows
    dims = known_dims(mask.shape)
    if rows is None or dims is None or not dims or query is None or query.bits is None:
        return None
    width = -(-dims[-1] // _MASK_ALIGNMENT) * _MASK_ALIGNMENT
    return rows + prod(dims[:-1]) * width * query.bits // 8


def _score_bytes(call: Call) -> int | None:
    """Bytes of the scores [batch, heads, rows, columns] of a query [batch, heads, rows, width].

    `preprocess_mask` expands the bias to that shape, so its gradient is computed at it.
    """
    # Of the values [batch, heads, columns, width], for a file may have the key transposed.
    query, value = known_dims(shape_at(call)), known_dims(shape_at(call, 2))
    operand = call.input_at(0)
    if not query or not value or operand is None or operand.bits is None:
        return None
    return prod(query[:-1]) * value[-2] * operand.bits // 8


def _length_bytes(call: Call) -> int | None:
    """Bytes of the lengths of a weight norm, its second operand."""
    lengths = call.input_at(1)
    return None if lengths is None else lengths.size_bytes


RSQRT = OpSpec(
    op_type="rsqrt",
    domain=FRAMEWORK,
    inputs=("self",),
    outputs=("result",),
    saved=(Saved("result"),),  # dX = -0.5 * dY * Y^3
    gradients=(Gradient("self", GradientRule.NEW, bytes_of_output(2)),),
    preserves_strides=True,
    source="torch derivatives.yaml: rsqrt",
)

SQUARE = replace(
    RSQRT,
    op_type="square",
    saved=(Saved("self"),),  # dX = dY * (2 * X^1); beside it X^1 and 2 * X^1
    source="torch derivatives.yaml: pow, which square calls; FunctionsManual.cpp: pow_backward",
)

GLU = OpSpec(
    op_type="glu",
    domain=FRAMEWORK,
    inputs=("self",),
    outputs=("result",),
    saved=(Saved("self"),),  # with a, b the halves: da = dY * s(b), db = dY * a * s'(b)
    source="torch derivatives.yaml: glu",
)

ROLL = OpSpec(
    op_type="roll",
    domain=FRAMEWORK,
    inputs=("self",),
    outputs=("result",),
    source="torch derivatives.yaml: roll",  # dX = roll(dY) the other way
)

VARIANCE = OpSpec(
    op_type="var",
    domain=FRAMEWORK,
    inputs=("self",),
    outputs=("result",),
    saved=(Saved("self"),),  # dX = dY * 2 / n * (X - mean(X))
    gradients=(Gradient("self", GradientRule.NEW, bytes_of_input()),),  # X - mean(X)
    source="torch FunctionsManual.cpp: var_backward",
)

ATTENTION = OpSpec(
    op_type="scaled_dot_product_attention",
    domain=FRAMEWORK,
    inputs=("query", "key", "value", "attn_bias", "bool_mask"),
    outputs=("output",),
    # The fused kernels save no scores: they recompute them
    saved=(Saved("query"), Saved("key"), Saved("value"), Saved("attn_bias"), Saved("output")),
    saved_extra_bytes=_attention_saved_bytes,
    parameters=("attn_bias",),
    gradients=(Gradient("attn_bias", GradientRule.OF_EXPANDED, _score_bytes),),
    source="torch derivatives.yaml: _scaled_dot_product_efficient_attention, _flash_attention;"
    " attention.cpp: convert_boolean_attn_mask, preprocess_mask",
)

CUDNN_RNN = OpSpec(
    op_type="_cudnn_rnn",
    domain=FRAMEWORK,
    inputs=("input", "hx", "cx", "*weights"),
    outputs=("output", "*states"),
    parameters=("weights",),
    saved=(Saved("input"), Saved("hx"), Saved("cx"), Saved("weights"), Saved("output")),
    source="torch derivatives.yaml: _cudnn_rnn",
)
"""All layers of a module in one call; ``weights`` are W, R and B of each layer, as ONNX packs them.

Attributes: ``mode``, their operator, and ``has_dropout``, whether layers have a Dropout between.
"""

PADDED_HEADS = OpSpec(
    op_type="pad_last_dim",
    domain=FRAMEWORK,
    inputs=("self",),
    outputs=("result",),
    gradients=(Gradient("self", GradientRule.NEW),),  # a copy of the part without padding
    source="aten/src/ATen/native/transformers/attention.cpp: pad_last_dim",
)

ATTENTION_WEIGHTS = OpSpec(
    op_type="softmax",
    domain=FRAMEWORK,
    inputs=("self",),
    outputs=("result",),
    saved=(Saved("result"),),  # dX = Y * (dY - sum(dY * Y))
    source="aten/src/ATen/native/transformers/attention.cpp: _scaled_dot_product_attention_math,"
    " which adds its mask in place",
)

MAXIMA = OpSpec(
    op_type="max_dim",
    domain=FRAMEWORK,
    inputs=("self", "dim"),
    outputs=("values",),
    saved_extra_bytes=per_element(8),  # the indices: dX = zeros, dY scattered at them
    gradients=(Gradient("self", GradientRule.NEW),),
    source="torch derivatives.yaml: max.dim, min.dim, which return values and indices",
)

MIRRORED_PAD = OpSpec(
    op_type="reflection_pad",
    domain=FRAMEWORK,
    inputs=("self",),
    outputs=("result",),
    saved=(Saved("self"),),  # for its shape alone
    source="torch derivatives.yaml: reflection_pad1d to 3d, replication_pad1d to 3d",
)

INDEX_ADD = OpSpec(
    op_type="index_add",
    domain=FRAMEWORK,
    inputs=("self", "index", "source"),
    outputs=("result",),
    parameters=("self",),
    saved=(
        Saved("index", if_grad="source"),
        Saved("source", if_grad="source"),  # dsource = dY at index, expanded as the source is
    ),
    gradients=(Gradient("self", GradientRule.SAME),),
    source="torch derivatives.yaml: index_add",
)

WEIGHT_NORM = OpSpec(
    op_type="weight_norm",
    domain=FRAMEWORK,
    inputs=("v", "g"),
    outputs=("w",),
    parameters=("v", "g"),
    saved=(Saved("v"), Saved("g")),  # with n = |v|: dg = sum(dW * v) / n, dv = g / n * (...)
    saved_extra_bytes=_length_bytes,  # the norms n
    source="torch derivatives.yaml: _weight_norm_interface; aten/src/ATen/native/WeightNorm.cpp",
)

DETACH = OpSpec(
    op_type="detach",
    domain=FRAMEWORK,
    inputs=("self",),
    outputs=("result",),
    differentiable=False,
    autograd_view=(("self", "result"),),
    source="torch native_functions.yaml: detach",
)

CONTIGUOUS = OpSpec(
    op_type="contiguous",
    domain=FRAMEWORK,
    inputs=("self",),
    outputs=("result",),
    autograd_view=(("self", "result"),),  # where the elements are in row-major order already
    source="aten/src/ATen/native/TensorProperties.cpp: contiguous",
)

PARAMETER_FUNCTION = OpSpec(
    op_type="function_of_parameter",
    domain=FRAMEWORK,
    inputs=("self",),
    outputs=("result",),
    parameters=("self",),
    gradients=(Gradient("self", GradientRule.NEW),),
    source="torch derivatives.yaml: rsub, neg",  # what others save is as small as the parameter
)

EINSUM_OPERAND = OpSpec(
    op_type="einsum_operand",
    domain=FRAMEWORK,
    inputs=("self",),
    outputs=("result",),
    parameters=("self",),
    autograd_view=(("self", "result"),),
    gradients=(Gradient("self", GradientRule.RESHAPED),),
    source="aten/src/ATen/native/Linear.cpp: einsum, which unsqueezes and permutes its operands",
)

EINSUM_SUM = OpSpec(
    op_type="einsum_sum",
    domain=FRAMEWORK,
    inputs=("self",),
    outputs=("result",),
    gradients=(Gradient("self", GradientRule.EXPANDED),),
    source="aten/src/ATen/native/Linear.cpp: einsum, which sums what one operand alone has",
)

LINEAR = OpSpec(
    op_type="linear",
    domain=FRAMEWORK,
    inputs=("A", "B", "bias"),
    outputs=("Y",),
    parameters=("A", "B", "bias"),
    saved=MATMUL_SAVED,  # dbias = sum(dY)
    macs=MATMUL_MACS,
    flops=MATMUL_FLOPS,
    source="torch derivatives.yaml: addmm, of the input with its leading dims folded into one",
)


_OF_SHAPE_OR_TYPE = frozenset({"CastLike", "Shape", "Size"})
RANDOM = frozenset(
    {
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"),
        *("RandomUniform", "RandomUniformLike"),
    }
)
"""Operators that draw numbers, others in each step."""


def constant_tensors(graph: Graph, parameters: Parameters) -> frozenset[str]:
    """Name the tensors that depend neither on an input's data nor on a trained parameter.

    Exporters write a mask, a table of positions or a number cast to a type as nodes on constants;
    in the framework it is a buffer, or a number in the program.
    """
    # Constants propagate in running order, except through random numbers, which differ in each
    # step, and subgraphs, which may read a tensor that is not listed as an input.
    trained = {graph.tensors[name].storage_key for name in parameters.trained}
    found = {
        name
        for name, tensor in graph.tensors.items()
        if tensor.role is Role.WEIGHT and tensor.storage_key not in trained
    }
    for node in graph.nodes:
        is_fixed = found.issuperset(data_reads(node))
        if is_fixed and node.onnx_op not in RANDOM and not node.subgraphs:
            found.update(node.writes)
    return frozenset(found)


def data_reads(node: Node) -> tuple[str, ...]:
    """Name the inputs of which a node reads the data, not only the shape or the type."""
    if node.op_type not in _OF_SHAPE_OR_TYPE or node.domain:
        return node.reads
    return node.inputs[:1] if node.op_type == "CastLike" else ()


def is_idle_cast(graph: Graph, node: Node) -> bool:
    """Whether a Cast is between types that are equal in the file.

    In PyTorch it may still cast: under autocast, tensors have other types than in the file.
    """
    return node.onnx_op == "Cast" and keeps_type(graph, node)


def keeps_type(graph: Graph, node: Node) -> bool:
    """Whether a node's output is known to have the type of its first input in the file."""
    before, after = (graph.tensors[names[0]].dtype for names in (node.reads, node.writes))
    return before is not None and before == after

"""Matrix products."""

from onnxmem.ops.combining import dims, multiply_add
from onnxmem.ops.einsum import einsum_flops, einsum_macs
from onnxmem.ops.formulas import int_attribute, num_elements, one_per_element, times
from onnxmem.ops.spec import Call, Formula, Operand, OpSpec, Saved

_MATRIX_RANK = 2


def gemm_macs(a: int = 0, b: int = 1) -> Formula:
    """Count A: [M, K] @ B: [K, N] -> Y: [M, N]: M * K * N.

    A comes as [K, M] where ``transA`` is set, B as [N, K] where ``transB`` is.
    """

    def formula(call: Call) -> int | None:
        left, right = dims(call.input_at(a), _MATRIX_RANK), dims(call.input_at(b), _MATRIX_RANK)
        if left is None or right is None:
            return None
        rows, depth = reversed(left) if int_attribute(call, "transA", 0) else left
        inner, columns = reversed(right) if int_attribute(call, "transB", 0) else right
        return rows * depth * columns if depth == inner else None

    return formula


def matmul_macs(a: int = 0, b: int = 1) -> Formula:
    """Count A: [*batch, M, K] @ B: [*batch, K, N] -> Y: [*batch, M, N]: elements(Y) * K.

    A 1-D operand is a row on the left, a column on the right, and its 1 is taken out of Y again.
    Batch dims are broadcast; onnxruntime's fused products transpose either operand.
    """

    def formula(call: Call) -> int | None:
        transposed_a, transposed_b = (bool(int_attribute(call, n, 0)) for n in ("transA", "transB"))
        moved_a, moved_b = (bool(int_attribute(call, f"transBatch{n}", 0)) for n in "AB")
        depth = _depth(call.input_at(a), last=not transposed_a, moved=moved_a)
        inner = _depth(call.input_at(b), last=transposed_b, moved=moved_b)
        if depth is None or depth != inner:
            return None
        return times(depth, num_elements(call.output_at(0)))

    return formula


def packed_matmul_macs(call: Call) -> int | None:
    """Count A: [*batch, K], B: packed -> Y: [*batch, N]: elements(Y) * K."""
    left = call.input_at(0)
    if left is None or not left.shape:
        return None
    return times(left.shape[-1], num_elements(call.output_at(0)))


def _depth(operand: Operand | None, *, last: bool, moved: bool) -> int | None:
    """Size of the summed dim of an operand: the last, the one before, or the first where the
    batch dims were moved behind it.
    """
    shape = None if operand is None else operand.shape
    if not shape:
        return None
    if last or len(shape) == 1:
        return shape[-1]
    return shape[0] if moved else shape[-2]


def _bias_flops(call: Call) -> int | None:
    """C is added unless beta is zero; alpha and beta are folded into the product."""
    given = call.input_at(2) is not None and call.attributes.get("beta", 1.0) != 0
    return one_per_element(call) if given else 0


GEMM_MACS = gemm_macs()
GEMM_FLOPS = multiply_add(GEMM_MACS, _bias_flops)
MATMUL_MACS = matmul_macs()
MATMUL_FLOPS = multiply_add(MATMUL_MACS)
MATMUL_SAVED = (
    Saved("A", if_grad="B"),  # dB = A' @ dY
    Saved("B", if_grad="A"),  # dA = dY @ B'
)

OPS = (
    OpSpec(
        op_type="Gemm",
        inputs=("A", "B", "C"),
        outputs=("Y",),
        parameters=("A", "B", "C"),
        saved=MATMUL_SAVED,  # dC = beta * sum(dY)
        macs=GEMM_MACS,
        flops=GEMM_FLOPS,
        source="torch derivatives.yaml: addmm",
    ),
    OpSpec(
        op_type="MatMul",
        inputs=("A", "B"),
        outputs=("Y",),
        parameters=("A", "B"),
        saved=MATMUL_SAVED,
        macs=MATMUL_MACS,
        flops=MATMUL_FLOPS,
        source="torch derivatives.yaml: mm, bmm",
    ),
    OpSpec(
        op_type="Einsum",
        inputs=("*Inputs",),
        outputs=("Output",),
        parameters=("Inputs",),
        saved=(Saved("Inputs"),),  # each gradient is the product of dY and the other operands
        macs=einsum_macs,
        flops=einsum_flops,
        source="torch einsum: bmm",
    ),
)

"""Matmuls, and Einsum: one multiply-add for every combination of its labels' values.

An Einsum of two operands costs the product of the sizes of all distinct labels, summed or not.
Three or more are contracted pair by pair from the left; between two pairs, the labels that neither
a later operand nor the output has are summed. One operand is copied or summed, without a
multiplication. A label of size 1 is broadcast, as in numpy. Equations of more than 64 labels or
1,000 characters count as unknown.
"""

from collections import Counter
from dataclasses import dataclass
from math import prod

from onnxmem.ops.formulas import (
    dims,
    int_attribute,
    multiply_add,
    num_elements,
    one_per_element,
    str_attribute,
    times,
)
from onnxmem.ops.spec import Call, Formula, Operand, OpSpec, Saved

_MAX_LABELS = 64
_MAX_CHARACTERS = 1000

_Term = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contraction:
    """Labels of an Einsum's operands and of its output, and the size of each label."""

    terms: tuple[_Term, ...]
    output: _Term
    sizes: dict[str, int]

    @property
    def size(self) -> int:
        """Combinations of all labels' values."""
        return prod(self.sizes.values())


def _einsum_macs(call: Call) -> int | None:
    """``ij,jk->ik`` of [I, J] and [J, K]: I * J * K."""
    contraction = contraction_of(call)
    return None if contraction is None else _pairwise_macs(contraction)


def _einsum_flops(call: Call) -> int | None:
    """Two per multiply-add; one operand alone: an addition per element if anything is summed."""
    contraction = contraction_of(call)
    if contraction is None:
        return None
    if len(contraction.terms) > 1:
        return 2 * _pairwise_macs(contraction)
    return contraction.size if contraction.sizes.keys() - set(contraction.output) else 0


def _pairwise_macs(contraction: Contraction) -> int:
    later = Counter(label for term in contraction.terms for label in set(term))
    later.update(contraction.output)
    left: set[str] = set()
    macs = 0
    for index, term in enumerate(contraction.terms):
        # Operands are multiplied from left to right; what neither a later one nor the output reads
        # is summed at once.
        later.subtract(set(term))
        left |= set(term)
        if index:
            # Every combination of the labels of both operands is one multiply-add.
            macs += prod(contraction.sizes[label] for label in left)
            left = {label for label in left if later[label] > 0}
    return macs


def contraction_of(call: Call) -> Contraction | None:
    """The labels of an Einsum; ``None`` where they or their sizes are unknown.

    The dims of an ellipsis are named ``.1``, ``.2``, ... from the last.
    """
    equation = str_attribute(call, "equation", "").replace(" ", "")
    shapes = [shape for operand in call.inputs if (shape := dims(operand)) is not None]
    if not 0 < len(equation) <= _MAX_CHARACTERS or len(shapes) != len(call.inputs):
        return None
    left, arrow, right = equation.partition("->")
    texts = left.split(",")
    if len(texts) != len(shapes):
        return None
    terms = [_labels(text, len(shape)) for text, shape in zip(texts, shapes, strict=True)]
    known = tuple(term for term in terms if term is not None)
    sizes = _sizes(known, shapes) if len(known) == len(terms) else None
    if sizes is None:
        return None
    output = _explicit(right, sizes) if arrow else _implicit(known)
    return None if output is None else Contraction(known, output, sizes)


def _labels(text: str, rank: int) -> _Term | None:
    """Letters of a term; the dims of an ellipsis are named ``.1``, ``.2``, ... from the last."""
    before, dots, after = text.partition("...")
    letters = before + after
    # An ellipsis stands for the axes that no letter names.
    num_dotted = rank - len(letters)
    if letters and not (letters.isascii() and letters.isalpha()):
        return None
    if not 0 <= num_dotted <= (_MAX_LABELS if dots else 0):
        return None
    # Numbered from the right, so that ellipses of different ranks broadcast like shapes.
    return (*before, *(f".{axis}" for axis in range(num_dotted, 0, -1)), *after)


def _sizes(terms: tuple[_Term, ...], shapes: list[tuple[int, ...]]) -> dict[str, int] | None:
    """Size of each label; ``None`` if two operands disagree on one."""
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for label, dim in zip(term, shape, strict=True):
            known = sizes.get(label, 1)
            if dim not in (1, known) and known != 1:
                return None
            # A dim of 1 broadcasts to the others of its label.
            sizes[label] = dim if known == 1 else known
    return sizes if len(sizes) <= _MAX_LABELS else None


def _explicit(text: str, sizes: dict[str, int]) -> _Term | None:
    """Labels after ``->``: each once, each from an operand."""
    num_dotted = sum(label.startswith(".") for label in sizes) if "..." in text else 0
    output = _labels(text, len(text.replace("...", "", 1)) + num_dotted)
    if output is None or len(set(output)) != len(output) or not sizes.keys() >= set(output):
        return None
    return output


def _implicit(terms: tuple[_Term, ...]) -> _Term:
    """No ``->``: the dims of the ellipsis, then the letters that occur just once."""
    occurrences = Counter(label for term in terms for label in term)
    return tuple(
        sorted(label for label, count in occurrences.items() if count == 1 or label.startswith("."))
    )


_MATRIX_RANK = 2


def gemm_macs(b: int = 1) -> Formula:
    """Count A: [M, K] @ B: [K, N] -> Y: [M, N]: M * K * N.

    A comes as [K, M] where ``transA`` is set, B as [N, K] where ``transB`` is.
    """

    def formula(call: Call) -> int | None:
        left, right = dims(call.input_at(0), _MATRIX_RANK), dims(call.input_at(b), _MATRIX_RANK)
        if left is None or right is None:
            return None
        rows, depth = reversed(left) if int_attribute(call, "transA", 0) else left
        inner, columns = reversed(right) if int_attribute(call, "transB", 0) else right
        return rows * depth * columns if depth == inner else None

    return formula


def matmul_macs(b: int = 1) -> Formula:
    """Count A: [*batch, M, K] @ B: [*batch, K, N] -> Y: [*batch, M, N]: elements(Y) * K.

    A 1-D operand is a row on the left, a column on the right, and its dim of 1 is removed from Y.
    Batch dims are broadcast; onnxruntime's fused matmuls may transpose either operand.
    """

    def formula(call: Call) -> int | None:
        transposed_a, transposed_b = (bool(int_attribute(call, n, 0)) for n in ("transA", "transB"))
        moved_a, moved_b = (bool(int_attribute(call, f"transBatch{n}", 0)) for n in "AB")
        depth = _depth(call.input_at(0), last=not transposed_a, moved=moved_a)
        inner = _depth(call.input_at(b), last=transposed_b, moved=moved_b)
        if depth is None or depth != inner:
            return None
        # Y: [*batch, M, N], each element of it a sum over K.
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
    """C is added unless beta is zero; alpha and beta are not counted."""
    has_bias = call.input_at(2) is not None and call.attributes.get("beta", 1.0) != 0
    return one_per_element(call) if has_bias else 0


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
        saved=(Saved("Inputs"),),  # each gradient is an Einsum of dY and the other operands
        macs=_einsum_macs,
        flops=_einsum_flops,
        source="torch einsum: bmm",
    ),
)

"""Weights in 8 bits and less: panels with the sums of their columns, reordered filters, blocks."""

from collections.abc import Iterator

from onnxmem.runtimes.onnxruntime.kernel_use import Use, product
from onnxmem.runtimes.onnxruntime.mlas import (
    packed_8_bit_bytes,
    packed_blocks_bytes,
    packs_blocks,
    packs_weight,
)
from onnxmem.runtimes.onnxruntime.prepacking.rule import Packed, Packs, Rule
from onnxmem.runtimes.onnxruntime.scratch.blockwise_matmul import INT8_LEVEL
from onnxmem.runtimes.onnxruntime.scratch.quantised_convolution import (
    is_depthwise,
    symmetric_pack_bytes,
)

_FLOAT = 4
_HALF = 2
_MATRIX = 2
_FILTER_RANK = 3
_WEIGHT = 3
"""Place of a QLinearConv's weight."""


def _matrix(place: int) -> Packs:
    """B: [K, N], or [N, K] with ``transB``; A is in floats where it is quantised on the way."""

    def packs(use: Use) -> Iterator[Packed]:
        if not use.is_constant(place) or len(use.dims(place)) != _MATRIX:
            return
        if packs_weight(is_input_signed=use.type(0) == "int8"):
            rows, columns = use.dims(place)
            is_turned = use.integer("transB", 0) != 0
            depth, width = (columns, rows) if is_turned else (rows, columns)
            turned_bytes = rows * columns if is_turned else 0
            yield Packed(place, _panels(use, place, depth, width), turned_bytes=turned_bytes)

    return packs


def _panels(use: Use, place: int, depth: int, columns: int) -> int:
    return packed_8_bit_bytes(depth, columns, is_signed=use.type(place) == "int8")


def _recurrent(use: Use) -> Iterator[Packed]:
    """W: [D, I, 4H], R: [D, H, 4H]: each direction's matrix."""
    for place in (1, 2):
        if use.is_constant(place):
            directions, depth, width = use.dims(place)
            yield Packed(place, directions * _panels(use, place, depth, width))


def _attention(use: Use) -> Iterator[Packed]:
    """W: [I, 3 * N * H]: the matrix of each head, of Q, K and V."""
    heads = use.integer("num_heads", 0)
    if use.is_constant(1) and len(use.dims(1)) == _MATRIX and heads:
        depth, width = use.dims(1)
        yield Packed(1, 3 * heads * _panels(use, 1, depth, width // (3 * heads)))


def _filter(use: Use) -> Iterator[Packed]:
    """W: [M, C/g, *K]: for the symmetric kernel, taken like any buffer; each group's panels; else
    the elements reordered.
    """
    if not use.is_constant(_WEIGHT) or len(use.dims(_WEIGHT)) < _FILTER_RANK:
        return
    if symmetric := symmetric_pack_bytes(use):
        yield Packed(_WEIGHT, symmetric, is_reserved=False, is_shared=False)
    elif not is_depthwise(use) and packs_weight(is_input_signed=use.type(0) == "int8"):
        groups, filters = use.integer("group", 1), use.dims(_WEIGHT)[0]
        depth = product(use.dims(_WEIGHT)[1:])
        yield Packed(_WEIGHT, groups * _panels(use, _WEIGHT, depth, filters // groups))
    else:
        yield Packed(_WEIGHT, product(use.dims(_WEIGHT)))


def _blocks(use: Use) -> Iterator[Packed]:
    """B: [N, ceil(K / block), block * bits / 8]; scales and bias of a kernel in fp16 in floats too.

    Zero points in floats and a ``g_idx`` keep B as it is.
    """
    bits, block = use.integer("bits", 4), use.integer("block_size", 0)
    in_int8 = use.integer("accuracy_level", 0) >= INT8_LEVEL
    is_plain = not use.has(4) and not (use.has(3) and use.type(3) != "uint8")
    if use.is_constant(1) and is_plain and packs_blocks(bits, block, in_int8=in_int8):
        depth, columns = use.integer("K", 0), use.integer("N", 0)
        yield Packed(1, packed_blocks_bytes(depth, columns, bits, block, in_int8=in_int8))
    if not use.is_constant(1):  # onnxruntime 1.32: then nothing is converted beforehand
        return
    for place in (2, 5):
        if use.is_constant(place) and use.element_bytes(0) == _HALF:
            size = _FLOAT * product(use.dims(place))
            yield Packed(place, size, drops_original=False, is_shared=False)


_MATMUL = "core/providers/cpu/quantization/matmul_integer_base.h: PrePack"

RULES = (
    Rule("MatMulInteger", "", _matrix(1), _MATMUL),
    Rule("MatMulIntegerToFloat", "com.microsoft", _matrix(1), _MATMUL),
    Rule("DynamicQuantizeMatMul", "com.microsoft", _matrix(1), _MATMUL),
    Rule("QLinearMatMul", "", _matrix(3), _MATMUL),
    Rule("QGemm", "com.microsoft", _matrix(3), _MATMUL),
    Rule(
        "DynamicQuantizeLSTM",
        "com.microsoft",
        _recurrent,
        "contrib_ops/cpu/quantization/dynamic_quantize_lstm.cc: PrePack",
    ),
    Rule(
        "QAttention",
        "com.microsoft",
        _attention,
        "contrib_ops/cpu/quantization/attention_quant.cc: PrePack",
    ),
    *(
        Rule("QLinearConv", domain, _filter, "core/providers/cpu/nn/qlinearconv.cc: PrePack")
        for domain in ("", "com.microsoft")
    ),
    Rule(
        "MatMulNBits",
        "com.microsoft",
        _blocks,
        "contrib_ops/cpu/quantization/matmul_nbits.cc: PrePack",
    ),
)

"""Quantized graphs as onnxruntime's tests have them: QDQ, integer operators, packed weights."""

from typing import Final

from runtime_kinds.kind import Kind, header, kinds_of

_Q: Final = "float s = {0.1}, uint8 z = {1}, int8 i = {1}"
_CONV: Final = "int8[5,3,3,3] w, float[5] ws, int8[5] wz, int32[5] b"

KINDS: Final[tuple[Kind, ...]] = (
    *kinds_of(header(13), {
        "qdq convolution": f"""agraph (float[1,3,7,7] x) => (y) <{_Q}, {_CONV}> {{
            a = QuantizeLinear(x, s, z)  c = DequantizeLinear(a, s, z)
            d = DequantizeLinear <axis = 0> (w, ws, wz)  e = DequantizeLinear <axis = 0> (b, ws)
            f = Conv <pads = [1, 1, 1, 1]> (c, d, e)  g = QuantizeLinear(f, s, z)
            y = DequantizeLinear(g, s, z) }}""",
        "qdq transposed": f"""agraph (float[1,3,7,5] x) => (y) <{_Q}> {{
            a = QuantizeLinear(x, s, z)  c = DequantizeLinear(a, s, z)
            t = Transpose <perm = [0, 2, 3, 1]> (c)  g = QuantizeLinear(t, s, z)
            y = DequantizeLinear(g, s, z) }}""",
        "qdq pool and reshape": f"""agraph (float[1,3,8,8] x) => (y)
            <{_Q}, int64[2] n = {{1, -1}}> {{
            a = QuantizeLinear(x, s, z)  c = DequantizeLinear(a, s, z)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)  q = QuantizeLinear(p, s, z)
            r = DequantizeLinear(q, s, z)  y = Reshape(r, n) }}""",
        "integer convolution": """agraph (uint8[1,3,7,7] x) => (y)
            <uint8[5,3,3,3] w, uint8 z = {1}> { y = ConvInteger(x, w, z) }""",
        "integer product": """agraph (float[5,7] x) => (y) <int8[7,3] w, float ws = {0.1}> {
            a, s, z = DynamicQuantizeLinear(x)  p = MatMulInteger(a, w, z)
            f = Cast <to = 1> (p)  m = Mul(s, ws)  y = Mul(f, m) }""",
        "linear convolution": f"""agraph (uint8[1,3,7,7] x) => (y)
            <{_Q}, uint8[5,3,3,3] w, int32[5] b> {{
            y = QLinearConv <strides = [2, 2]> (x, s, z, w, s, z, s, z, b) }}""",
        "linear product": f"""agraph (uint8[2,5,7] x, uint8[7,3] w) => (y) <{_Q}> {{
            y = QLinearMatMul(x, s, z, w, s, z, s, z) }}""",
    }),
    *kinds_of(header(13, ms=1), {
        "qdq of microsoft, 16 bits": """agraph (float[5,7] x) => (y)
            <float s = {0.1}, uint16 z = {1}> { a = com.microsoft.QuantizeLinear(x, s, z)
            y = com.microsoft.DequantizeLinear(a, s, z) }""",
        "qdq of microsoft, by axis": """agraph (float[5,7] x) => (y) <float[7] s, int8[7] z> {
            a = com.microsoft.QuantizeLinear <axis = 1> (x, s, z)
            y = com.microsoft.DequantizeLinear <axis = 1> (a, s, z) }""",
        "sum, sigmoid and join": f"""agraph (uint8[5,7] x, uint8[7] u) => (y) <{_Q}> {{
            a = com.microsoft.QLinearAdd(x, s, z, u, s, z, s, z)
            b = com.microsoft.QLinearSigmoid(a, s, z, s, z)
            y = com.microsoft.QLinearConcat <axis = 0> (s, z, a, s, z, b, s, z) }}""",
        "where": f"""agraph (bool[5,7] c, uint8[5,1] x, uint8[7] u) => (y) <{_Q}> {{
            y = com.microsoft.QLinearWhere(c, x, s, z, u, s, z, s, z) }}""",
        "dynamic product with bias": """agraph (float[2,5,7] x) => (y)
            <int8[7,3] w, float[3] s, int8[3] z, float[3] b> {
            y = com.microsoft.DynamicQuantizeMatMul(x, w, s, z, b) }""",
        "integers to floats": """agraph (uint8[5,7] x) => (y) <int8[7,3] w, float s = {0.1},
            float[3] ws, uint8 z = {1}, int8[3] wz, float[3] b> {
            y = com.microsoft.MatMulIntegerToFloat(x, w, s, ws, z, wz, b) }""",
        "four bits": """agraph (float[2,5,64] x) => (y) <uint8[3,2,16] w, float[6] s, uint8[3] z> {
            y = com.microsoft.MatMulNBits
            <K = 64, N = 3, bits = 4, block_size = 32> (x, w, s, z) }""",
        "four bits with bias": """agraph (float[5,64] x) => (y)
            <uint8[3,2,16] w, float[3,2] s, float[3] b> {
            y = com.microsoft.MatMulNBits <K = 64, N = 3, bits = 4, block_size = 32>
                (x, w, s, , , b) }""",
        "four bits in blocks": """agraph (float[5,64] x) => (y)
            <uint8[120] w, int64[2] n = {64, 3}> {
            y = com.microsoft.MatMulFpQ4 <blk_quant_type = 0> (x, w, n) }""",
        "rows of four bits": """agraph (int64[2,3] k) => (y) <uint8[7,16] d, float[7,2] s> {
            y = com.microsoft.GatherBlockQuantized <block_size = 16, gather_axis = 0,
                quantize_axis = 1, bits = 4> (d, k, s) }""",
        "quantized mean": f"""agraph (uint8[2,3,5,5] x) => (y) <{_Q}> {{
            y = com.microsoft.QLinearGlobalAveragePool(x, s, z, s, z) }}""",
        "quantized gemm": f"""agraph (uint8[5,7] x) => (y) <{_Q}, int8[7,3] w, int32[3] c> {{
            y = com.microsoft.QGemm(x, s, z, w, s, i, c, s, z) }}""",
        "channels last": f"""agraph (uint8[1,7,9,3] x) => (y) <{_Q}, uint8[5,3,3,3] w> {{
            y = com.microsoft.QLinearConv <channels_last = 1, kernel_shape = [3, 3],
                pads = [1, 1, 1, 1], strides = [2, 2]> (x, s, z, w, s, z, s, z) }}""",
        "experts of four bits": """agraph (float[6,32] x, float[6,3] r) => (y)
            <uint8[3,64,16] w, float[3,64] ws, uint8[3,32,32] v, float[3,32] vs> {
            y = com.microsoft.QMoE <activation_type = "relu", k = 2, expert_weight_bits = 4>
                (x, r, w, ws, , v, vs) }""",
    }, {"k": [0, 1, 2, 3, 4, 5]}),
    *kinds_of(header(21, ir_version=10), {
        "int4 weights": """agraph (float[5,8] x) => (y) <int4[8,3] w, float[3] s, int4[3] z> {
            d = DequantizeLinear <axis = 1> (w, s, z)  y = MatMul(x, d) }""",
        "uint4 in blocks": """agraph (float[5,8] x) => (y) <uint4[8,3] w, float[2,3] s> {
            d = DequantizeLinear <axis = 0, block_size = 4> (w, s)  y = MatMul(x, d) }""",
        "int4 made": """agraph (float[5,8] x) => (y) <float s = {0.1}, int4 z = {1}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        "float8": """agraph (float[5,8] x) => (y) <float s = {0.1}, float8e4m3fn z> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        "a type by attribute": """agraph (float[5,8] x) => (y) <float s = {0.1}> {
            q = QuantizeLinear <output_dtype = 5> (x, s)  y = DequantizeLinear(q, s) }""",
    }),
)  # fmt: skip

"""Graphs of language models with caches, as exporters write them; sizes are distinct primes."""

_MS = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\n'


def growing(  # noqa: PLR0913 - one keyword per way of writing it
    layers: int = 2,
    *,
    past: str = "past",
    total: str = '"past + seq"',
    mask: str = '"past + seq"',
    dtype: str = "float",
    names: tuple[str, str] = ("past_key_values.{}.{}", "present.{}.{}"),
    seq: str = "seq",
) -> str:
    """``[batch, 3 heads, past, 5]``, by Concat: 2 x layers x 3 x 5 elements a token."""
    pairs = [(i, kind) for i in range(layers) for kind in ("key", "value")]
    ins = ", ".join(f'{dtype}[batch,3,{past},5] "{names[0].format(*p)}"' for p in pairs)
    outs = ", ".join(f'{dtype}[batch,3,{total},5] "{names[1].format(*p)}"' for p in pairs)
    lines = [
        f'"{names[1].format(*p)}" = Concat <axis = 2> ("{names[0].format(*p)}", new)\n'
        f'"read_{p[0]}_{p[1]}" = Identity ("{names[1].format(*p)}")'
        for p in pairs
    ]
    return f"""agraph (int64[batch,{seq}] input_ids, int64[batch,{mask}] attention_mask, {ins})
        => (float[batch,{seq},7] logits, {outs})
        <{dtype}[11,15] table, float[15,7] head> {{
        e = Gather (table, input_ids)
        shape = Constant <value_ints = [0, 0, 3, 5]> ()
        r = Reshape (e, shape)
        new = Transpose <perm = [0, 2, 1, 3]> (r)
        f = Cast <to = 1> (e)
        logits = MatMul (f, head)
        {chr(10).join(lines)} }}"""


GROUPED = (
    _MS
    + """agraph (float16[batch,seq,66] q, float16[batch,seq,22] k, float16[batch,seq,22] v,
    int32[batch] lens, int32 total, float16[batch,2,max,11] "past_key_values.0.key",
    float16[batch,2,max,11] "past_key_values.0.value")
    => (float16[batch,seq,66] y, float16[batch,2,max,11] "present.0.key",
    float16[batch,2,max,11] "present.0.value") {
    y, "present.0.key", "present.0.value" = com.microsoft.GroupQueryAttention
        <num_heads = 6, kv_num_heads = 2>
        (q, k, v, "past_key_values.0.key", "past_key_values.0.value", lens, total) }"""
)
"""One buffer for past and present; 3 query heads share a key-value head."""

ATTENTION = """<ir_version: 10, opset_import: ["" : 23]>
agraph (float16[b,S,66] q, float16[b,S,22] k, float16[b,S,22] v,
    float16[b,2,P,11] a, float16[b,2,P,11] c)
    => (float16[b,S,66] y, float16[b,2,T,11] d, float16[b,2,T,11] e) {
    y, d, e = Attention <q_num_heads = 6, kv_num_heads = 2> (q, k, v, "", a, c) }"""
"""Names say nothing: the operator does."""

SCATTER = """<ir_version: 11, opset_import: ["" : 24]>
agraph (float[batch,seq,6] input_ids, int64[batch] at, float[batch,13,2,3] cache_k)
    => (float[batch,13,2,3] cache_k_out) {
    shape = Constant <value_ints = [0, 0, 2, 3]> ()
    new = Reshape (input_ids, shape)
    cache_k_out = TensorScatter <axis = 1> (cache_k, new, at) }"""
"""A static buffer of 13 tokens: ``bsnh``."""

STACKED = """agraph (int64[batch,seq] input_ids, float[2,batch,3,past,5] past_0)
    => (float[2,batch,3,"past + seq",5] present_0) {
    shape = Constant <value_ints = [2, 1, 3, 1, 5]> ()
    f = Cast <to = 1> (input_ids)
    axes = Constant <value_ints = [0, 2, 4]> ()
    u = Unsqueeze (f, axes)
    new = Expand (u, shape)
    present_0 = Concat <axis = 3> (past_0, new) }"""
"""GPT-2's keys and values in one."""

MERGED = """agraph (float[batch,3,past,5] "past_key_values.0.decoder.key", bool use_cache_branch,
    float[batch,3,seq,5] new, int64[batch,seq] input_ids)
    => (float[batch,3,T,5] "present.0.decoder.key") {
    "present.0.decoder.key" = If (use_cache_branch) <
        then_branch = yes () => (float[batch,3,T,5] joined) {
            joined = Concat <axis = 2> ("past_key_values.0.decoder.key", new) },
        else_branch = no () => (float[batch,3,T,5] alone) { alone = Identity (new) }> }"""
"""A decoder that chooses whether it has a past."""

QUANTIZED = """agraph (int64[batch,seq] input_ids,
    int8[batch,3,past,5] "past_key_values.0.key",
    float16[batch,3,past,1] "past_key_values.0.key_scale",
    uint4[batch,3,past,5] "past_key_values.0.value")
    => (int8[batch,3,total,5] "present.0.key", float16[batch,3,total,1] "present.0.key_scale",
    uint4[batch,3,total,5] "present.0.value") {
    "present.0.key" = Identity ("past_key_values.0.key")
    "present.0.key_scale" = Identity ("past_key_values.0.key_scale")
    "present.0.value" = Identity ("past_key_values.0.value") }"""
"""Keys of a byte with scales, values of half a byte."""

HYBRID = """agraph (int64[batch,seq] input_ids, float[batch,3,past,5] "past_key_values.1.key",
    float[batch,3,17,5] "past_key_values.2.key", float[batch,19,4] "past_conv.0",
    float[batch,7,11,13] "past_key_values.0.ssm_state")
    => (float[batch,3,"past + seq",5] "present.1.key", float[batch,3,17,5] "present.2.key",
    float[batch,19,4] "present_conv.0", float[batch,7,11,13] "present.0.ssm_state") {
    "present.1.key" = Identity ("past_key_values.1.key")
    "present.2.key" = Identity ("past_key_values.2.key")
    "present_conv.0" = Identity ("past_conv.0")
    "present.0.ssm_state" = Identity ("past_key_values.0.ssm_state") }"""
"""One layer that grows, a window of 17 tokens, a convolution's state and a recurrence's."""

CROSS = """agraph (int64[batch,seq] input_ids,
    float[batch,3,past,5] "past_key_values.0.decoder.key",
    float[batch,3,enc,5] "past_key_values.0.encoder.key")
    => (float[batch,3,"past + seq",5] "present.0.decoder.key", float[batch,3,enc,5] y) {
    "present.0.decoder.key" = Identity ("past_key_values.0.decoder.key")
    y = Relu ("past_key_values.0.encoder.key") }"""
"""A decoder that reads its encoder's keys and hands none out."""

NO_CACHE = """agraph (float[batch,3,h,w] image, float[batch,3,h2,w] other)
    => (float[batch,3,h3,w] joined) {
    joined = Concat <axis = 2> (image, other)  z = Relu (joined) }"""
"""Images that are joined."""

QDQ = """agraph (int64[batch,seq] input_ids, int8[batch,3,past,5] a, int8[batch,3,past,5] c,
    float[batch,3,seq,5] new)
    => (int8[batch,3,"past + seq",5] d, int8[batch,3,"past + seq",5] e) <float s> {
    fa = DequantizeLinear (a, s)  ja = Concat <axis = 2> (fa, new)
    d = QuantizeLinear (ja, s)  ra = Relu (ja)  xd = Identity (d)
    fc = DequantizeLinear (c, s)  jc = Concat <axis = -2> (fc, new)
    e = QuantizeLinear (jc, s)  rc = Relu (jc)  xe = Identity (e) }"""
"""Keys and values of a byte, joined as floats; names say nothing."""

LINEAR = (
    _MS
    + """agraph (float[batch,seq,10] q, float[batch,seq,10] k, float[batch,seq,14] v,
    float[batch,2,5,7] s) => (float[batch,seq,14] y, float[batch,2,5,7] t) {
    y, t = com.microsoft.LinearAttention <q_num_heads = 2, kv_num_heads = 2> (q, k, v, s) }"""
)
"""A recurrence whose names say nothing."""

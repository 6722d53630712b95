"""If, Loop and Scan as onnxruntime's tests have them: captures, nesting, weights of a body."""

from typing import Final

from runtime_kinds.kind import Kind, header, kinds_of

HEAD: Final = header(11, ir_version=6)

KINDS: Final[tuple[Kind, ...]] = (
    *kinds_of(HEAD, {
        "if with captures": """agraph (float[2,5] x, bool c) => (float[2,5] y) {
            h = Relu(x)
            y = If (c) <then_branch = t () => (float[2,5] o) { o = Neg(h) },
                        else_branch = e () => (float[2,5] p) { p = Abs(h) }> }""",
        "if of two shapes, condition fed": """agraph (float[2,5] x, bool c) => (y) {
            y = If (c) <then_branch = t () => (float[] o) { o = Transpose(x) },
                        else_branch = e () => (float[] p) { p = Identity(x) }> }""",
        "if of two shapes, condition stored": """agraph (float[2,5] x) => (y) <bool c = {1}> {
            y = If (c) <then_branch = t () => (o) { o = Transpose(x) },
                        else_branch = e () => (p) { p = Identity(x) }> }""",
        "if of a shape's size": """agraph (float[2,5] x) => (y)
            <int64 five = {5}, int64 one = {1}> {
            s = Shape(x)  n = Gather(s, one)  c = Equal(n, five)
            y = If (c) <then_branch = t () => (o) { o = Flatten <axis = 0> (x) },
                        else_branch = e () => (p) { p = Identity(x) }> }""",
        "if in an if": """agraph (float[2,5] x, bool[1] c, bool[1] d) => (float[2,5] y) {
            y = If (c) <
                then_branch = t () => (float[2,5] o) {
                    o = If (d) <then_branch = a () => (float[2,5] m) { m = Neg(x) },
                                else_branch = b () => (float[2,5] n) { n = Identity(x) }> },
                else_branch = e () => (float[2,5] p) { p = Add(x, x) }> }""",
        "if of an outer weight": """agraph (bool c) => (y) <float[5] w = {1, 2, 3, 4, 5}> {
            y = If (c) <then_branch = t () => (o) { o = Relu(w) },
                        else_branch = e () => (p) { p = Neg(w) }> }""",
        "loop that counts": """agraph (float[2,5] x) => (y) <int64 n = {3}, bool c = {1}> {
            y = Loop (n, c, x) <body = b (int64 i, bool k, float[2,5] a) => (bool k2, float[2,5] o)
                { k2 = Identity(k)  o = Add(a, x) }> }""",
        "loop that stacks": """agraph (float[2,5] x) => (y, z) <int64 n = {3}, bool c = {1}> {
            y, z = Loop (n, c, x) <body = b (int64 i, bool k, float[2,5] a)
                => (bool k2, float[2,5] o, float[2] s)
                { k2 = Identity(k)  o = Add(a, x)  s = ReduceSum
            <axes = [1], keepdims = 0> (o) }> }""",
        "loop that grows": """agraph (float[2,5] x) => (y) <int64 n = {3}, bool c = {1}> {
            y = Loop (n, c, x) <body = b (int64 i, bool k, float[] a) => (bool k2, float[] o)
                { k2 = Identity(k)  o = Concat <axis = 0> (a, x) }> }""",
        "loop whose trips are fed": """agraph (float[2,5] x, int64 n) => (y, z) {
            y, z = Loop (n, , x) <body = b (int64 i, bool k, float[2,5] a)
                => (bool k2, float[2,5] o, float[2,5] s)
                { k2 = Identity(k)  o = Add(a, x)  s = Identity(o) }> }""",
        "loop with a weight of its body": """agraph (float[5] x) => (y) <int64 n = {2}> {
            y = Loop (n, , x) <body = b (int64 i, bool k, float[5] a) => (bool k2, float[5] o)
                <float[5] w = {1, 2, 3, 4, 5}> { k2 = Identity(k)  o = Mul(a, w) }> }""",
        "loop in a loop": """agraph (float[3] x) => (y) <int64 n = {2}, int64 m = {2}> {
            y = Loop (n, , x) <body = b (int64 i, bool k, float[3] a) => (bool k2, float[3] o) {
                k2 = Identity(k)
                o = Loop (m, , a) <body = d (int64 j, bool l, float[3] e) => (bool l2, float[3] q)
                    { l2 = Identity(l)  q = Add(e, x) }> }> }""",
        "if in a loop": """agraph (float[3] x) => (y) <int64 n = {2}> {
            y = Loop (n, , x) <body = b (int64 i, bool k, float[3] a) => (bool k2, float[3] o) {
                k2 = Identity(k)  z = Constant <value = int64 {0}> ()  c = Equal(i, z)
                o = If (c) <then_branch = t () => (float[3] p) { p = Add(a, x) },
                            else_branch = e () => (float[3] q) { q = Sub(a, x) }> }> }""",
        "scan that sums": """agraph (float[5] a, float[7,5] x) => (y, z) {
            y, z = Scan <num_scan_inputs = 1, body = b (float[5] s, float[5] e)
                => (float[5] t, float[5] o) { t = Add(s, e)  o = Identity(t) }> (a, x) }""",
        "scan of two inputs backwards": """agraph (float[2,7] u, float[7,3] v) => (y) {
            y = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
                body = b (float[2] p, float[3] q) => (float[5] o)
                { o = Concat <axis = 0> (p, q) }> (u, v) }""",
        "scan along another axis": """agraph (float[5] a, float[3,7,5] x) => (y, z) {
            y, z = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [-1],
                body = b (float[5] s, float[3,5] e) => (float[5] t, float[3,5] o)
                { t = Identity(s)  o = Add(e, s) }> (a, x) }""",
        "scan of a shape untold": """agraph (float[5] a, float[7,5] x) => (y, z) {
            y, z = Scan <num_scan_inputs = 1, body = b (s, e) => (t, o)
                { t = Add(s, e)  o = MatMul(w, t) }> (a, x)
            w0 = Constant <value_floats = [1.0, 2.0, 3.0, 4.0, 5.0]> ()
            w = Unsqueeze <axes = [0]> (w0) }""",
        "scan with a weight outside": """agraph (float[7,5] x) => (y) <float[5,3] w> {
            y = Scan <num_scan_inputs = 1, body = b (float[5] e) => (float[3] o)
                { o = MatMul(e, w) }> (x) }""",
    }, {"n": [3], "c": [True], "d": [False]}, {
        "if of two shapes, condition fed": "y",
        "loop that grows": "y",
        "loop whose trips are fed": "z",
    }),
    *kinds_of(header(8, ir_version=3), {
        "scan with a batch": """agraph (float[2,5] a, float[2,7,5] x)
            => (float[2,5] y, float[2,7,5] z) {
            y, z = Scan <num_scan_inputs = 1, body = b (float[5] s, float[5] e)
                => (float[5] t, float[5] o) { t = Add(s, e)  o = Identity(t) }> ("", a, x) }"""
            .replace('""', ""),
    }),
    *kinds_of(header(16, ir_version=8), {
        "loop of a sequence": """agraph (float[2,5] x) => (y) <int64 n = {3}> {
            s0 = SequenceEmpty <dtype = 1> ()
            s = Loop (n, , s0) <body = b (int64 i, bool k, seq(float[2,5]) a)
                => (bool k2, seq(float[2,5]) o)
                { k2 = Identity(k)  o = SequenceInsert(a, x) }>
            y = ConcatFromSequence <axis = 0> (s) }""",
        "if of sequences": """agraph (float[2,5] x, bool c) => (y) <int64 z = {0}> {
            s = If (c) <then_branch = t () => (seq(float[2,5]) o) { o = SequenceConstruct(x) },
                        else_branch = e () => (seq(float[2,5]) p) { p = SequenceConstruct(x, x) }>
            y = SequenceAt(s, z) }""",
        "if of an optional": """agraph (float[2,5] x) => (y) {
            o = Optional(x)  c = OptionalHasElement(o)
            y = If (c) <then_branch = t () => (float[2,5] a) { a = OptionalGetElement(o) },
                        else_branch = e () => (float[2,5] b) { b = Neg(x) }> }""",
    }, {"c": [True]}, {"loop of a sequence": "y", "if of an optional": "o"}),
)  # fmt: skip

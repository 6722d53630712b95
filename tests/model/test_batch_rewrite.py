"""Another batch for models that fix it, against the same networks exported at that batch."""

import json
import tracemalloc
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

import onnx
import pytest
from graphs import model_of
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from paths import DATA

import onnxmem
from onnxmem import Analysis, analyze
from onnxmem.errors import Finding
from onnxmem.model.binding import Request
from onnxmem.model.building import BoundModel, build, prepare
from onnxmem.model.files import load

GUESSES = {"batch_in_constants", "batch_of_one"}

Shape = tuple[int | None, ...] | None


def bound(model: str | onnx.ModelProto, batch: int | None) -> BoundModel:
    proto = model_of(model) if isinstance(model, str) else model
    return build(prepare(load(proto)), Request(batch))


def shapes(text: str, batch: int, names: str) -> list[Shape]:
    """The shapes of some tensors at another batch."""
    found = bound(text, batch)
    assert found.follows_batch
    assert {finding.code for finding in found.findings} <= GUESSES
    return [found.graph.tensors[name].shape for name in names.split()]


def weights(text: str, batch: int | None) -> dict[str, int | None]:
    return {weight.name: weight.size_bytes for weight in bound(text, batch).graph.weights}


def reshape(data: str, target: str, *, as_node: bool = False) -> str:
    """A model that reshapes ``x`` once, its target an initializer or a Constant node."""
    numbers = target.split(",")
    weights = "" if as_node else f"<int64[{len(numbers)}] s = {{{target}}}>"
    node = f"s = Constant <value_ints = [{target}]> ()" if as_node else ""
    return f"agraph (float[{data}] x) => (y) {weights} {{ {node} y = Reshape(x, s) }}"


# Reshape


@pytest.mark.parametrize("as_node", [False, True])
@pytest.mark.parametrize(
    ("data", "target", "batch", "shape"),
    [
        ("4,2,3", "4,6", 7, (7, 6)),
        ("4,6", "4,2,3", 7, (7, 2, 3)),
        ("4,6", "4,2,3", 1, (1, 2, 3)),
        # An old batch of 1
        ("1,2,3", "1,6", 5, (5, 6)),
        ("1,6", "1,1,6", 5, (5, 1, 6)),
        ("1,1,6", "1,6", 5, (5, 6)),
        ("1,6", "6", 5, (30,)),
        ("1,6", "2,3", 5, (10, 3)),
        # The batch flattened with what follows
        ("4,2,3", "24", 7, (42,)),
        ("4,2,3", "8,3", 7, (14, 3)),
        ("4,2,3", "1,24", 7, (1, 42)),
        ("4,2,3", "1,4,6", 7, (1, 7, 6)),
        # Another dim is as long as the batch
        ("4,4,4", "4,16", 7, (7, 16)),
        ("4,4,4", "16,4", 7, (28, 4)),
        # -1 is the rest, 0 copies
        ("4,2,3", "-1,6", 7, (7, 6)),
        ("4,2,3", "0,-1", 7, (7, 6)),
        ("4,2,3", "0,0,0", 7, (7, 2, 3)),
        ("4,2,3", "4,-1", 7, (7, 6)),
        ("4,6", "4,-1,2", 7, (7, 3, 2)),
        ("4,6", "-1,2,3", 7, (7, 2, 3)),
        ("4,6", "4,2,-1", 1, (1, 2, 3)),
        ("4,2,3", "-1", 7, (42,)),
        ("4,6", "4,0", 7, (7, 6)),
        ("1,6", "1,-1", 5, (5, 6)),
        ("1,6", "1,-1,2", 5, (5, 3, 2)),
    ],
)
def test_a_reshape_target_is_scaled_where_the_batch_is(
    data: str, target: str, batch: int, shape: Shape, *, as_node: bool
) -> None:
    text = reshape(data, target, as_node=as_node)
    assert shapes(text, batch, "y") == [shape]


@pytest.mark.parametrize("old", [1, 2, 3])
def test_attention_with_time_first(old: int) -> None:
    """[B, L, E] -> [L, B, E] -> [L, B*H, d] -> [B*H, L, d], and back."""
    text = f"""agraph (float[{old},5,12] x) => (y)
    <int64[3] heads = {{5, {old * 4}, 3}}, int64[3] whole = {{5, {old}, 12}}> {{
        a = Transpose <perm = [1, 0, 2]> (x)
        b = Reshape(a, heads)
        c = Transpose <perm = [1, 0, 2]> (b)
        d = Transpose <perm = [1, 0, 2]> (c)
        e = Reshape(d, whole)
        y = Transpose <perm = [1, 0, 2]> (e)
    }}"""
    at_four: list[Shape] = [(5, 4, 12), (5, 16, 3), (16, 5, 3), (5, 16, 3), (5, 4, 12), (4, 5, 12)]
    assert shapes(text, 4, "a b c d e y") == at_four


def test_a_batch_of_one_between_two_dims_joins_the_first() -> None:
    """The last dim is features: [L, B, E] -> [L*B, E]."""
    text = """agraph (float[1,5,12] x) => (y)
    <int64[2] flat = {5, 12}, int64[3] whole = {5, 1, 12}> {
        a = Transpose <perm = [1, 0, 2]> (x)
        b = Reshape(a, flat)
        y = Reshape(b, whole)
    }"""
    assert shapes(text, 3, "b y") == [(15, 12), (5, 3, 12)]


@pytest.mark.parametrize("old", [1, 2, 5])
def test_attention_scores_by_sample_and_head(old: int) -> None:
    """[B*H, L, L] -> [B, H, L, L], with a mask added, and back."""
    text = f"""agraph (float[{old},5,12] x) => (y) <float[1,1,5,5] mask,
    int64[3] heads = {{{old * 4}, 5, 3}}, int64[4] wide = {{{old}, 4, 5, 5}},
    int64[3] flat = {{{old * 4}, 5, 5}}> {{
        q = Reshape(x, heads)
        k = Transpose <perm = [0, 2, 1]> (q)
        s = MatMul(q, k)
        w = Reshape(s, wide)
        m = Add(w, mask)
        y = Reshape(m, flat)
    }}"""
    at_three: list[Shape] = [(12, 5, 3), (12, 5, 5), (3, 4, 5, 5), (3, 4, 5, 5), (12, 5, 5)]
    assert shapes(text, 3, "q s w m y") == at_three


def test_the_batch_is_split_from_a_longer_dim() -> None:
    """[T, B, E] -> [T*B, E] -> Gemm -> [T, B, F]: the batch is inside the leading dim."""
    text = """agraph (float[2,5,12] x) => (y) <float[12,7] w,
    int64[2] flat = {10, 12}, int64[3] whole = {5, 2, 7}> {
        a = Transpose <perm = [1, 0, 2]> (x)
        b = Reshape(a, flat)
        c = Gemm(b, w)
        y = Reshape(c, whole)
    }"""
    assert shapes(text, 3, "b c y") == [(15, 12), (15, 7), (5, 3, 7)]


def test_a_flatten_between_convolution_and_gemm() -> None:
    text = """agraph (float[2,3,4,4] x) => (y) <float[5,3,3,3] k, float[20,7] w,
    int64[2] flat = {2, 20}> {
        a = Conv(x, k)
        b = Reshape(a, flat)
        y = Gemm(b, w)
    }"""
    assert shapes(text, 6, "a b y") == [(6, 5, 2, 2), (6, 20), (6, 7)]


def test_a_shared_target_is_scaled_for_each_node_separately() -> None:
    text = """agraph (float[4,6] x) => (y, z) <float[6,4] w, int64[3] s = {4, 2, 3}> {
        a = Reshape(x, s)
        v = Reshape(w, s)
        b = Relu(x)
        c = Reshape(b, s)
        y = Add(a, c)
        z = Relu(v)
    }"""
    at_seven: list[Shape] = [(7, 2, 3), (4, 2, 3), (7, 2, 3), (7, 2, 3), (4, 2, 3)]
    found = bound(text, 7)
    assert [found.graph.tensors[name].shape for name in "a v c y z".split()] == at_seven


def test_a_reshaped_weight_is_unchanged() -> None:
    text = """agraph (float[4,6] x) => (y)
    <float[4,6] w, int64[2] s = {6, 4}, int64[3] t = {4, 2, 3}> {
        v = Reshape(w, s)
        u = Reshape(w, t)
        m = MatMul(x, v)
        n = Reshape(u, s)
        o = MatMul(m, w)
        y = MatMul(o, n)
    }"""
    at_nine: list[Shape] = [(6, 4), (4, 2, 3), (9, 4), (6, 4), (9, 4)]
    assert shapes(text, 9, "v u m n y") == at_nine


def test_a_shape_computed_at_run_time_is_unchanged() -> None:
    text = """agraph (float[4,2,3] x) => (y)
    <int64 zero = {0}, int64[1] rest = {-1}, int64[1] a = {0}> {
        dims = Shape(x)
        n = Gather(dims, zero)
        first = Unsqueeze(n, a)
        s = Concat <axis = 0> (first, rest)
        y = Reshape(x, s)
    }"""
    assert shapes(text, 9, "s y") == [(2,), (9, 6)]


# Other constants


@pytest.mark.parametrize("old", [1, 4])
def test_a_class_token_is_expanded_to_the_batch(old: int) -> None:
    text = f"""agraph (float[{old},8,3] x) => (y)
    <float[1,1,3] token, int64[3] s = {{{old}, 1, 3}}> {{
        t = Expand(token, s)
        y = Concat <axis = 1> (t, x)
    }}"""
    assert shapes(text, 7, "t y") == [(7, 1, 3), (7, 9, 3)]


def test_an_expand_of_a_tensor_with_the_batch_is_unchanged() -> None:
    text = """agraph (float[4,1,3] x) => (y) <int64[3] s = {1, 5, 3}> { y = Expand(x, s) }"""
    assert shapes(text, 7, "y") == [(7, 5, 3)]


def test_an_expand_with_the_batch_and_another_dim() -> None:
    text = """agraph (float[4,1,3] x) => (y) <int64[3] s = {4, 5, 3}> { y = Expand(x, s) }"""
    assert shapes(text, 7, "y") == [(7, 5, 3)]


@pytest.mark.parametrize("dims", ["3,1", "3,1,1,1"])
@pytest.mark.parametrize("as_node", [False, True])
def test_a_constant_that_counts_samples_is_extended(dims: str, *, as_node: bool) -> None:
    index = f"int64[{dims}] {{0, 1, 2}}"
    weights = "" if as_node else f"<{index.replace(' {', ' i = {')}>"
    node = f"i = Constant <value = {index}> ()" if as_node else ""
    text = f"agraph (float[3,4] x) => (y) {weights} {{ {node} y = Gather(x, i) }}"
    assert shapes(text, 5, "i y")[1] == (5, *(1 for _ in dims.split(",")[1:]), 4)


@pytest.mark.parametrize(
    ("dims", "numbers"),
    [("3,1", "0, 2, 1"), ("3", "0, 1, 2"), ("3,1", "1, 2, 3"), ("1,3", "0,1,2")],
)
def test_other_constants_are_not_extended(dims: str, numbers: str) -> None:
    text = f"""agraph (float[3,4] x) => (y) <float[4,5] w, int64[{dims}] i = {{{numbers}}}> {{
        v = Gather(w, i)
        y = MatMul(x, w)
    }}"""
    shape = bound(text, 6).graph.tensors["i"].shape
    assert shape == tuple(int(dim) for dim in dims.split(","))


def test_axes_are_not_extended() -> None:
    text = """agraph (float[2,3,4] x) => (y) <int64[2] axes = {0, 1}> {
        s = ReduceSum <keepdims = 0> (x, axes)
        y = Add(x, s)
    }"""
    assert shapes(text, 5, "s y") == [(4,), (5, 3, 4)]


# What stays


MODEL = """agraph (float[4,6] x) => (y)
<float[6,4] w, float[4,6] w2, int64[3] s = {4, 2, 3}, int64[2] t = {4, 6}> {
    c = Constant <value_ints = [4, 1, 6]> ()
    m = MatMul(x, w)
    n = MatMul(m, w2)
    a = Reshape(n, s)
    b = Reshape(a, t)
    y = Reshape(b, c)
}"""


def test_the_weights_and_their_bytes_are_those_of_the_file() -> None:
    assert shapes(MODEL, 9, "a b y") == [(9, 2, 3), (9, 6), (9, 1, 6)]
    of_the_file = {"w": 96, "w2": 96, "s": 24, "t": 16, "c": 24}
    assert weights(MODEL, 9) == weights(MODEL, None) == of_the_file


def test_the_given_model_is_not_changed() -> None:
    prepared = prepare(load(model_of(MODEL)))
    before = prepared.proto.SerializeToString()
    build(prepared, Request(9))
    assert prepared.proto.SerializeToString() == before


def test_the_batch_of_the_file_changes_nothing() -> None:
    assert bound(MODEL, 4).binding.old_batch is None
    assert shapes(MODEL, 4, "a b y") == [(4, 2, 3), (4, 6), (4, 1, 6)]


def test_an_input_without_dims_has_no_batch() -> None:
    text = """agraph (float[4, 6] x, float s) => (float[4, 3, 2] y) <int64[3] t = {4, 3, 2}> {
        a = Mul(x, s) y = Reshape(a, t) }"""
    assert shapes(text, 9, "s a y") == [(), (9, 6), (9, 3, 2)]


def test_computed_values_determine_shapes() -> None:
    """NonZero gives one index per element, and the Reshape target is scaled with it."""
    text = """agraph (float[3, 2] x) => (int64[1, 12, 1] y)
        <int64[3] t = {1, 12, 1}> {
            n = Shape(x) ones = ConstantOfShape<value = int64[1] {1}>(n)
            places = NonZero(ones) y = Reshape(places, t) }"""
    assert shapes(text, 5, "places y") == [(2, 10), (1, 20, 1)]


def test_a_mask_is_not_extended() -> None:
    text = """agraph (float[2, 6] x) => (float[a, 6] y) <bool[2, 1] m = {0, 1}> {
        y = Where(m, x, x) }"""
    assert bound(text, 5).graph.tensors["y"].shape == (5, 6)


def test_an_expanded_constant_is_scaled_along_one_axis() -> None:
    text = """agraph (float[2, 1] x) => (float[a, b] y)
        <float[2, 2] k = {0, 0, 0, 0}, int64[2] t = {1, 1}> { e = Expand(k, t) y = Add(x, e) }"""
    assert bound(text, 1).graph.tensors["x"].shape == (1, 1)


def test_a_rewritten_model_has_the_formula_of_a_symbolic_one() -> None:
    law = onnxmem.analyze(model_of(MODEL)).batch_law
    assert law is not None
    # x 6 and, live at once, m 4 and n 6 of 4 B each: in place, the views take nothing
    assert (law.fixed_bytes, law.slope_bytes) == (96 + 96 + 24 + 16 + 24, 4 * (6 + 4 + 6))


# What cannot follow


@pytest.mark.parametrize("target", ["2,12", "2,2,6", "6,4", "3,8"])
def test_a_batch_that_no_dim_has_completely_is_reported(target: str) -> None:
    text = reshape("4,6", target)
    found = bound(text, 7)
    message = (
        "the batch size is fixed at 4 by constants that cannot be changed to 7, at 'y'; export "
        "with a symbolic batch"
    )
    assert found.findings == (Finding("batch_fixed", message),)
    assert found.graph.tensors["y"].is_assumed


def test_a_fixed_batch_size_has_no_formula_and_no_largest_batch() -> None:
    model = model_of(reshape("4,6", "2,12"))
    found = onnxmem.analyze(model, budget_bytes=10**9)
    assert (found.batch_law, found.status) == (None, "ok")
    assert found.max_batch is None or found.max_batch.number in {None, 4}
    assert "batch_fixed" in [finding.code for finding in found.at(batch=7).findings]


def test_the_tensor_where_the_batch_is_fixed_is_reported_once() -> None:
    text = reshape("4,6", "2,12").replace("(y)", "(z)").replace("}", "z = Relu(y) }")
    (finding,) = bound(text.replace("s = {2,12z = Relu(y) }", "s = {2,12}"), 7).findings
    assert "changed to 7, at 'y';" in finding.message


# Any chain


@dataclass(frozen=True)
class Chain:
    """Reshapes, transposes and Relus of a tensor whose dims are products of factors.

    The factor 0 stands for the batch, so one chain can be built at any.
    """

    steps: tuple[tuple[str, tuple[int, ...], tuple[tuple[int, ...], ...]], ...]
    """Operator, permutation, and the groups of factors of the output's dims."""
    groups: tuple[tuple[int, ...], ...]
    """Those of the input."""

    def shapes(self, batch: int) -> list[tuple[int, ...]]:
        """Of the input and of every step's output."""
        each = [self.groups, *(groups for _, _, groups in self.steps)]
        return [tuple(prod(f or batch for f in group) for group in groups) for groups in each]

    def model(self, batch: int) -> onnx.ModelProto:
        """The chain as an exporter writes it for an example of this batch."""
        nodes, targets = [], []
        shapes = self.shapes(batch)
        for place, (op_type, perm, _) in enumerate(self.steps):
            inputs, output = [f"t{place}"], [f"t{place + 1}"]
            if op_type == "Reshape":
                shape = shapes[place + 1]
                inputs.append(f"s{place}")
                targets.append(helper.make_tensor(f"s{place}", 7, [len(shape)], shape))
            nodes.append(helper.make_node(op_type, inputs, output))
            if op_type == "Transpose":
                nodes[-1].attribute.append(helper.make_attribute("perm", perm))
        first = helper.make_tensor_value_info("t0", TensorProto.FLOAT, shapes[0])
        last = helper.make_tensor_value_info(f"t{len(nodes)}", TensorProto.FLOAT, shapes[-1])
        graph = helper.make_graph(nodes, "chain", [first], [last], targets)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


@st.composite
def chains(draw: st.DrawFn, *, from_one: bool = False) -> Chain:
    """Draw a chain; where it is to be built at a batch of 1, one whose shapes are unambiguous.

    At a batch of 1, [2, 1, 3] -> [2, 3] says nothing of where the batch has gone: there, the batch
    leads its dim, the last dim of all is features alone, and no other dim is 1.
    """
    factors = draw(st.lists(st.integers(2, 5), min_size=1, max_size=4))
    groups: tuple[tuple[int, ...], ...] = ((0,), *((factor,) for factor in factors))
    first, steps = groups, []
    for op_type in draw(st.lists(st.sampled_from(["Reshape", "Transpose", "Relu"]), max_size=8)):
        perm: tuple[int, ...] = ()
        if op_type == "Reshape":
            flat = tuple(factor for group in groups for factor in group)
            cuts = draw(st.sets(st.integers(1, len(flat) - 1)))
            batch = flat.index(0)
            if from_one and batch:
                cuts.add(batch)
                cuts.update({batch + 1} if max(cuts) == batch else ())
            places = sorted({0, *cuts, len(flat)})
            if not from_one:
                places = sorted([*places, *draw(st.lists(st.sampled_from(places), max_size=2))])
            groups = tuple(flat[a:b] for a, b in pairwise(places))
        elif op_type == "Transpose":
            perm = tuple(draw(st.permutations(range(len(groups)))))
            groups = tuple(groups[axis] for axis in perm)
        steps.append((op_type, perm, groups))
    return Chain(tuple(steps), first)


def rebound(chain: Chain, old: int, new: int) -> list[Shape]:
    found = bound(chain.model(old), new)
    assert found.findings == ()
    names = [f"t{place}" for place in range(len(chain.steps) + 1)]
    return [found.graph.tensors[name].shape for name in names]


@given(chains(), st.integers(2, 6), st.integers(1, 7))
def test_a_chain_at_another_batch_equals_the_chain_built_at_it(
    chain: Chain, old: int, new: int
) -> None:
    assert rebound(chain, old, new) == chain.shapes(new)


@given(chains(from_one=True), st.integers(1, 7))
def test_a_chain_built_at_batch_1_can_be_rewritten(chain: Chain, new: int) -> None:
    assert rebound(chain, 1, new) == chain.shapes(new)


CLASS_EMBEDDING = """agraph (float[{b},5,7] x) => (float[{b},6,7] y) <float[{b},1,7] token> {{
    y = Concat <axis = 1> (token, x) }}"""

FOLDED_TOKENS = """agraph (float[{b},6,8] x) => (float[{b},6,8] y)
    <int64[2] flat = {{{tb}, 8}}, int64[3] back = {{6, {b}, 8}}, float[8,8] w> {{
    t = Transpose <perm = [1, 0, 2]> (x)
    f = Reshape(t, flat)
    g = Gemm(f, w)
    r = Reshape(g, back)
    y = Transpose <perm = [1, 0, 2]> (r) }}"""

HEADS = """agraph (float[{b},6,8] x) => (float[{b},6,8] y)
    <int64[3] heads = {{6, {hb}, 2}}, int64[3] back = {{6, {b}, 8}}> {{
    t = Transpose <perm = [1, 0, 2]> (x)
    h = Reshape(t, heads)
    q = Transpose <perm = [1, 0, 2]> (h)
    k = Transpose <perm = [1, 2, 0]> (h)
    s = MatMul(q, k)
    p = Softmax <axis = -1> (s)
    o = MatMul(p, q)
    c = Transpose <perm = [1, 0, 2]> (o)
    r = Reshape(c, back)
    y = Transpose <perm = [1, 0, 2]> (r) }}"""

WINDOWS = """agraph (float[{b},4,4,3] x) => (float[{b},4,4,3] y)
    <int64[6] cut = {{{b}, 2, 2, 2, 2, 3}}, int64[4] flat = {{{wb}, 2, 2, 3}},
     int64[4] back = {{{b}, 4, 4, 3}}> {{
    c = Reshape(x, cut)
    t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (c)
    w = Reshape(t, flat)
    r = Relu(w)
    d = Reshape(r, cut)
    u = Transpose <perm = [0, 1, 3, 2, 4, 5]> (d)
    y = Reshape(u, back) }}"""

STATES = """agraph (float[{b},5,3] x) => (y, last)
    <float[1,44,3] w, float[1,44,11] r, float[1,{b},11] h> {{
    t = Transpose <perm = [1, 0, 2]> (x)
    s = Identity(h)
    y, last = LSTM <hidden_size = 11> (t, w, r, , , s, h) }}"""

MASK = """agraph (float[{b},5,5] x) => (float[{b},5,5] y)
    <float[{b},5,5] mask, int64 k = {{1}}, float[5,5] w> {{
    m = Trilu <upper = 1> (mask, k)
    h = MatMul(x, w)
    y = Add(h, m) }}"""

EXPANDED = """agraph (float[{b},5,7] x) => (float[{b},6,7] y)
    <int64[3] shape = {{{b}, 1, 7}}, float[1,1,7] token> {{
    t = Expand(token, shape)
    y = Concat <axis = 1> (t, x) }}"""

COUNTED = """agraph (float[{b},5] x) => (float[{b},1,5] y) <int64[{b},1] samples = {{{samples}}}> {{
    y = Gather(x, samples) }}"""

RESIZED = """agraph (float[{b},3,5,5] x) => (float[{b},3,10,10] y)
    <int64[4] sizes = {{{b}, 3, 10, 10}}> {{ y = Resize(x, , , sizes) }}"""

NETWORKS = {
    "class token": CLASS_EMBEDDING,
    "tokens folded into the batch": FOLDED_TOKENS,
    "heads folded into the batch": HEADS,
    "windows": WINDOWS,
    "recurrent states": STATES,
    "mask": MASK,
    "expanded token": EXPANDED,
    "counted samples": COUNTED,
    "resized": RESIZED,
}


def network(text: str, batch: int, requested: int | None = None) -> Analysis:
    samples = ", ".join(map(str, range(batch)))
    sizes = {"b": batch, "tb": 6 * batch, "hb": 4 * batch, "wb": 4 * batch, "samples": samples}
    return analyze(model_of(text.format(**sizes)), batch=requested)


def activations(found: Analysis) -> dict[str, object]:
    tensors = found.graph.tensors.values()
    return {tensor.name: tensor.shape for tensor in tensors if tensor.role == "activation"}


LEAVES_NO_TRACE = {("mask", 1), ("counted samples", 1)}
"""Constants of one sample serve any batch, or a single one: the tests below."""

CASES = [
    (name, old, new)
    for name, old, new in product(NETWORKS, (1, 2, 3), (1, 2, 3, 8))
    if (name, old) not in LEAVES_NO_TRACE
]


@pytest.mark.parametrize(("name", "old", "new"), CASES)
def test_another_batch_gives_the_shapes_of_a_new_export(name: str, old: int, new: int) -> None:
    moved, fresh = network(NETWORKS[name], old, new), network(NETWORKS[name], new)
    assert activations(moved) == activations(fresh)
    assert (moved.status, moved.settings.batch) == ("ok", new)


def test_a_mask_of_one_sample_is_broadcast() -> None:
    moved = network(MASK, 1, 7)
    assert moved.graph.tensors["y"].shape == (7, 5, 5)
    assert moved.graph.tensors["m"].shape == (1, 5, 5)


def test_an_output_without_the_batch_is_reported() -> None:
    """One sample is picked, whatever the batch: a dim of 1 that looks like a batch left behind."""
    moved = network(COUNTED, 1, 7)
    assert moved.status == "partial"
    assert [finding.code for finding in moved.findings] == ["batch_fixed"]
    assert moved.batch_law is None


# Where the batch of an operand comes from


def moved_text(text: str, old: int, new: int, names: str) -> tuple[Analysis, list[object]]:
    found = network(text, old, new)
    return found, [found.graph.tensors[name].shape for name in names.split()]


def weight_bytes(found: Analysis) -> dict[str, int | None]:
    return {weight.name: weight.size_bytes for weight in found.graph.weights}


def codes(found: Analysis | BoundModel) -> list[str]:
    return [finding.code for finding in found.findings]


STATE_IN_A_LOOP = """agraph (float[{b},2,13] x) => (float[{b},11] y)
    <float[{b},11] h = {{{zeros}}}, float[11,11] u, float[13,11] w, int64 one = {{1}}> {{
    s = Gather <axis = 1> (x, one)
    a = MatMul(s, w)
    g = Gemm(h, u)
    y = Add(a, g) }}"""
SLICED_STATE = """agraph (float[{b},5,3] x) => (y, last)
    <float[1,44,3] w, float[1,44,11] r, float[2,{b},11] h, int64[1] zero = {{0}},
     int64[1] one = {{1}}> {{
    s = Slice(h, zero, one, zero)
    t = Transpose <perm = [1, 0, 2]> (x)
    y, last = LSTM <hidden_size = 11> (t, w, r, , , s, s) }}"""
TILED = """agraph (float[{b},5,7] x) => (float[{b},5,7] y)
    <float[5,7] queries, int64[3] flat = {{1, 5, 7}}, int64[3] times = {{{b}, 1, 1}}> {{
    e = Expand(queries, flat)
    t = Tile(e, times)
    y = Add(x, t) }}"""
FILLED = """agraph (float[{b},5,7] x) => (float[{b},5,7] y) <int64[3] dims = {{{b}, 5, 7}}> {{
    z = ConstantOfShape(dims)
    n = Neg(z)
    y = Add(x, n) }}"""
INDEXED_TWICE = """agraph (float[{b},5,7] x) => (float[{b},5,7] y)
    <int64[1,5] table, int64[2] first = {{1, 5}}, int64[2] second = {{{b}, 5}}, float[3,7] rows> {{
    e = Expand(table, first)
    i = Expand(e, second)
    r = Gather(rows, i)
    y = Add(x, r) }}"""


def filled(text: str, batch: int) -> str:
    """A text with as many zeros as a state of this batch has elements."""
    return text.replace("{zeros}", ", ".join(["0"] * 11 * batch))


ORIGINS = {
    "state in a loop": (STATE_IN_A_LOOP, "g y"),
    "sliced state": (SLICED_STATE, "s y last"),
    "tiled": (TILED, "e t y"),
    "filled": (FILLED, "z n y"),
    "indexed twice": (INDEXED_TWICE, "e i r y"),
}


@pytest.mark.parametrize(("old", "new"), [(1, 7), (7, 1), (2, 3), (3, 2)])
@pytest.mark.parametrize("name", ORIGINS)
def test_an_operand_is_scaled_where_its_length_comes_from(name: str, old: int, new: int) -> None:
    text, names = ORIGINS[name]
    moved, shapes = moved_text(filled(text, old), old, new, names)
    fresh = network(filled(text, new), new)
    assert shapes == [fresh.graph.tensors[name].shape for name in names.split()]
    assert weight_bytes(moved) == weight_bytes(fresh)
    assert moved.total_bytes == fresh.total_bytes


def test_an_expand_to_a_separate_dim_of_1_is_unchanged() -> None:
    """TorchScript writes ``repeat(1, 1, 2)`` as an Expand that repeats nothing and a Tile."""
    text = """agraph (float[1,5,7,6] x) => (y)
        <float[1,5,1,3] k, int64[4] same = {{1, 5, 1, 3}}, int64[4] times = {{1, 1, 7, 2}}> {{
        e = Expand(k, same)
        t = Tile(e, times)
        y = Add(x, t) }}"""
    moved, shapes = moved_text(text, 1, 7, "t y")
    # The only one that repeats nothing: the batch, or no more than what ``repeat`` writes.
    assert shapes == [(7, 5, 7, 6), (7, 5, 7, 6)]
    assert codes(moved) == ["batch_of_one"]


def test_an_expand_along_another_axis_is_unchanged() -> None:
    text = """agraph (float[1,5,7] x) => (y) <float[1,1,7] k, int64[3] to = {{1, 5, 7}}> {{
        e = Expand(k, to)
        y = Add(x, e) }}"""
    moved, shapes = moved_text(text, 1, 7, "e y")
    assert shapes == [(1, 5, 7), (7, 5, 7)]
    assert codes(moved) == ["batch_of_one"]


def test_a_scaled_constant_is_a_weight_of_the_new_size() -> None:
    moved = network(STATES, 2, 3)
    assert weight_bytes(moved) == weight_bytes(network(STATES, 3))
    (finding,) = [each for each in moved.findings if each.code == "batch_in_constants"]
    assert "resized from 2 to 3: 'h'" in finding.message


def test_a_scaled_constant_with_other_readers_is_duplicated() -> None:
    text = """agraph (float[{b},11] x) => (y, z)
        <float[{b},11] mask, float[2,13] u, int64[2] swap = {{11, 2}}> {{
        y = Mul(x, mask)
        s = Reshape(mask, swap)
        z = MatMul(s, u) }}"""
    moved, shapes = moved_text(text, 2, 3, "mask y z")
    assert shapes == [(2, 11), (3, 11), (11, 13)]
    grown = sum(each or 0 for each in weight_bytes(moved).values())
    assert grown == sum(each or 0 for each in weight_bytes(network(text, 2)).values()) + 3 * 11 * 4


@pytest.mark.parametrize(
    ("mask", "is_said"),
    [
        ("bool[1,5,7] k", True),
        ("bool[1,1,7] k = {{1,0,1,1,0,1,1}}", True),
        ("bool[1,1,1] k = {{1}}", False),
        ("bool[7] k", False),
    ],
)
def test_a_constant_that_may_be_per_sample_is_reported(mask: str, is_said: bool) -> None:
    text = f"agraph (float[{{b}},5,7] x) => (y) <{mask}, float low> {{{{ y = Where(k, x, low) }}}}"
    assert codes(network(text, 1, 7)) == (["batch_of_one"] if is_said else [])


def test_a_scale_per_channel_is_broadcast() -> None:
    text = """agraph (float[1,3,5] x) => (y) <float[1,3,1] k = {{2, 3, 5}}> {{ y = Mul(x, k) }}"""
    assert codes(network(text, 1, 7)) == []


def test_a_matmul_with_one_matrix_per_sample() -> None:
    text = """agraph (float[{b},3,5] x) => (y) <float[{b},5,7] w> {{ y = MatMul(x, w) }}"""
    moved, shapes = moved_text(text, 7, 1, "w y")
    assert shapes == [(1, 5, 7), (1, 3, 7)]
    assert moved.follows_batch


def test_the_state_of_a_torchscript_layer_is_scaled_before_its_expand() -> None:
    """``zeros(1, batch, hidden)``, folded, and an Expand to the batch that is computed."""
    text = """agraph (float[{b},5,3] x) => (y, last)
        <float[1,33,3] w, float[1,33,11] r, float[1,{b},11] h, int64[1] one = {{1}},
         int64[1] two = {{2}}, int64[1] zero = {{0}}, int64[1] hidden = {{11}}> {{
        t = Transpose <perm = [1, 0, 2]> (x)
        dims = Shape(t)
        batch = Slice(dims, one, two, zero)
        to = Concat <axis = 0> (one, batch, hidden)
        s = Expand(h, to)
        y, last = GRU <hidden_size = 11> (t, w, r, , , s) }}"""
    for old, new in ((1, 7), (7, 1)):
        moved, fresh = network(text, old, new), network(text, new)
        assert weight_bytes(moved) == weight_bytes(fresh)
        assert activations(moved) == activations(fresh)


def test_an_operand_that_cannot_be_scaled_is_reported() -> None:
    text = """agraph (float[4,6] x) => (y) <float[2,2,6] k, int64[2] to = {{4, 6}}> {{
        r = Reshape(k, to)
        y = Add(x, r) }}"""
    moved = network(text, 4, 7)
    assert "batch_fixed" in codes(moved)
    assert moved.graph.tensors["y"].shape == (7, 6)


# Real exports


def test_no_figure_of_a_real_export_is_wrong_without_a_warning() -> None:
    """Both exporters of torch, batches 1 and 7 (``tools/batch_moves``).

    What is left are the bytes of a Reshape's target that two nodes share at one batch alone.
    """
    path = DATA / "batch_moves.json"
    rows = json.loads(path.read_text(encoding="utf-8"))
    assert len({row["network"] for row in rows if row["held_out"]}) >= 20
    silent = [row["moved_and_fresh"] for row in rows if row["result"] == "silent"]
    assert all(figures.keys() == {"total_bytes"} for figures in silent)
    assert all(abs(a - b) <= 64 for figures in silent for a, b in figures.values())
    assert sum(row["result"] == "equal" for row in rows) >= 0.7 * len(rows)


def test_a_scaled_constant_node_is_a_weight_of_the_new_size() -> None:
    text = """agraph (float[{b},3] x) => (y) {{
        m = Constant <value = float[{b},1] {{{ones}}}> ()
        y = Mul(x, m) }}"""
    moved, fresh = (
        network(text.replace("{ones}", ", ".join(["1"] * old)), old, 7) for old in (2, 7)
    )
    assert weight_bytes(moved) == weight_bytes(fresh) == {"m": 7 * 4}
    assert codes(moved) == ["batch_in_constants"]


def test_a_constant_that_grows_to_millions_of_samples_takes_no_memory() -> None:
    model = """agraph (float[2,3] x) => (int64[2,2] y, float[2,3] z) <int64[2,2] i = {0, 1, 2, 3}> {
        y = Neg(i)
        h = Relu(x)
        z = Neg(h)
    }"""
    batch = 7_000_003
    tracemalloc.start()
    try:
        found = bound(model, batch)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.graph.tensors["z"].size_bytes == 4 * 3 * batch
    assert peak_bytes < 8 * batch


# A symbolic batch beside constants that a trace made of it


TRACED = """
    agraph (float[N,11,5] x) => (float[N,{rows},5] y)
    <float[5] token, float[5,5] w, int64[3] once = {{3,1,5}}, int64[3] flat = {{3,-1,5}},
     int64[2] pair = {{7,5}}> {{
        first = Expand(token, once)
        tokens = Concat <axis = 1> (first, {rest})
        h = MatMul(tokens, w)
        y = Reshape(h, flat)
    }}"""


@pytest.mark.parametrize("batch", [1, 2, 7, 13])
def test_constants_of_a_trace_follow_a_symbolic_batch(batch: int) -> None:
    found = bound(TRACED.format(rows=12, rest="x"), batch)
    assert codes(found) == ["batch_of_trace"]
    assert found.graph.tensors["tokens"].shape == (batch, 12, 5)
    assert found.graph.tensors["y"].shape == (batch, 12, 5)


def test_the_batch_of_the_trace_needs_no_change() -> None:
    found = bound(TRACED.format(rows=12, rest="x"), 3)
    assert codes(found) == []
    assert found.graph.tensors["y"].shape == (3, 12, 5)


@pytest.mark.parametrize("batch", [2, 3])
def test_a_file_that_fits_no_batch_stays_contradictory(batch: int) -> None:
    text = TRACED.format(rows=12, rest="wrong").replace(
        "first =", "wrong = Expand(x, pair)  first ="
    )
    found = bound(text, batch)
    assert "contradictory_inputs" in codes(found)
    assert "batch_of_trace" not in codes(found)


def test_a_training_step_has_the_batch_in_all_of_it() -> None:
    """Twice and three times the samples: what is saved grows by the same bytes."""
    model = model_of(TRACED.format(rows=12, rest="x"))
    saved = [
        found.saved_activation_bytes or 0
        for batch in (5, 10, 15)
        if (found := analyze(model, batch=batch, train=True).training)
    ]
    assert len(saved) == 3
    assert saved[2] - saved[1] == saved[1] - saved[0] >= 4 * 5 * 12 * 5

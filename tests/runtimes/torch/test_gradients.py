"""The gradients of each rule: new, shared, summed, views and copies."""

from dataclasses import replace

import pytest
from graphs import graph_of
from runtimes.torch.training_steps import happenings, recipe_of, sizes, step

from onnxmem.model.parameters import Parameters
from onnxmem.runtimes.torch.step import training_memory
from onnxmem.runtimes.torch.tape import tensors_requiring_grad


def test_a_broadcast_factor_has_a_full_gradient_before_its_sum() -> None:
    """The small operand's first: it is the later input. The sum's bias needs no full one."""
    found = step("""
        agraph (float[2,3] x) => (float[2,5] y) <float[3,5] w, float[5] g, float[5] b> {
            h = MatMul(x, w)
            m = Mul(h, g)
            y = Add(m, b)
        }""")
    full = "gradient of g before reduction"
    assert happenings(found) == [
        *("+gradient of y", "+gradient of b"),
        *(f"+{full}", "+gradient of h", "+gradient of g", f"-{full}", "-gradient of y", "-h"),
        *("+gradient of w", "-gradient of h"),
    ]
    assert (sizes(found)[full], sizes(found)["gradient of g"]) == ([40], [20])


def test_a_factor_of_the_same_shape_needs_no_sum() -> None:
    found = step("""
        agraph (float[2,3] x) => (float[2,5] y) <float[3,5] w, float[2,5] g> {
            h = MatMul(x, w)
            y = Mul(h, g)
        }""")
    assert "+gradient of g before reduction" not in happenings(found)


def test_temporaries_of_a_formula_are_freed() -> None:
    """Pow takes two tensors as large as its output beside the gradient."""
    found = step("""
        agraph (float[2,3] x) => (float[2,5] y) <float[3,5] w, float p = {3.0}> {
            h = MatMul(x, w)
            y = Pow(h, p)
        }""")
    assert sizes(found)["temporaries of the gradient of h"] == [2 * 40]
    held = 4 * (6 + 15) + 2 * 40  # x, w, h and y
    assert found.backward_peak_bytes == held + 40 + 40 + 2 * 40


def test_an_add_shares_its_gradient() -> None:
    found = step("""
        agraph (float[2,3] x) => (float[2,5] y) <float[3,5] w, float[3,5] v> {
            h = MatMul(x, w)
            k = MatMul(x, v)
            y = Add(h, k)
        }""")
    assert happenings(found) == [
        *("+gradient of y", "+gradient of v", "+gradient of w", "-gradient of y"),
    ]


def test_gradients_of_a_concats_inputs_are_views() -> None:
    found = step("""
        agraph (float[2,3] x) => (float[2,12] y) <float[3,5] w, float[3,7] v> {
            h = MatMul(x, w)
            k = MatMul(x, v)
            y = Concat <axis = 1> (h, k)
        }""")
    assert happenings(found) == [
        *("+gradient of y", "+gradient of v", "+gradient of w", "-gradient of y"),
    ]


def test_a_split_output_without_a_gradient_has_zeros() -> None:
    """They are joined with what arrived, and gone when the split's formula is done."""
    found = step("""
        agraph (float[2,3] x) => (float[2,5] y) <float[3,12] w, int64[2] s = {5, 7}> {
            h = MatMul(x, w)
            a, b = Split <axis = 1> (h, s)
            y = Exp(a)
        }""")
    assert happenings(found) == [
        *("+gradient of y", "+gradient of a", "-gradient of y"),
        *("+zeros for b", "+gradient of h", "-zeros for b", "-gradient of a"),
        *("+gradient of w", "-gradient of h"),
    ]
    assert sizes(found)["zeros for b"] == [4 * 14]


def test_a_reductions_gradient_is_expanded_by_strides() -> None:
    """The first matmul reads the same row several times, without a copy."""
    found = step("""
        agraph (float[2,3] x) => (float[2] y) <float[3,5] w, int64[1] axes = {1}> {
            h = MatMul(x, w)
            y = ReduceSum <keepdims = 0> (h, axes)
        }""")
    assert happenings(found) == ["+gradient of y", "+gradient of w", "-gradient of y"]


@pytest.mark.parametrize(
    ("shape", "reduce"),
    [
        ("2,1", "ReduceSum <keepdims = 1> (h, axes)"),
        ("2", "ReduceSum <keepdims = 0> (h, axes)"),
        ("", "ReduceSum <keepdims = 0> (h)"),
    ],
)
def test_an_expanded_gradient_is_added_to_out_of_place(shape: str, reduce: str) -> None:
    """It is no storage of its own: the sum with the other reader's is new."""
    found = step(f"""
        agraph (float[2,3] x) => (float[{shape}] y, float[2,5] z)
        <float[3,5] w, int64[1] axes = {{1}}> {{
            h = MatMul(x, w)
            z = Exp(h)
            y = {reduce}
        }}""")
    assert happenings(found) == [
        *("+gradient of z", "+gradient of y"),
        *("+gradient of h", "-gradient of z"),
        *("+gradient of h", "-gradient of y", "-gradient of h"),  # the sum
        *("+gradient of w", "-gradient of h"),
    ]


def test_an_expanded_gradient_is_folded_by_a_copy() -> None:
    """Stride 0 along the first of three axes, which the matmul before it folds with the second."""
    found = step("""
        agraph (float[2,3,11] x) => (float[1,3,5] y) <float[11,5] w, int64[1] axes = {0}> {
            h = MatMul(x, w)
            y = ReduceSum <keepdims = 1> (h, axes)
        }""")
    assert happenings(found) == [
        *("+gradient of y", "+gradient of h, folded", "-gradient of y"),
        *("+gradient of w", "-gradient of h, folded"),
    ]


def test_no_gradient_passes_an_operator_without_derivative() -> None:
    """Random numbers as large as ``h``: their exponential is not saved."""
    found = step("""
        agraph (float[2,3] x) => (float[2,5] y) <float[3,5] w> {
            h = MatMul(x, w)
            noise = RandomNormalLike(h)
            e = Exp(noise)
            y = Add(h, e)
        }""")
    assert happenings(found) == ["+gradient of y", "+gradient of w", "-gradient of y"]
    assert found.saved_activation_bytes == 40


def test_axes_of_a_mean_may_be_an_attribute() -> None:
    """As before opset 18; a mean is divided, so its gradient is new."""
    found = step("""
        <ir_version: 8, opset_import: ["" : 17]>
        agraph (float[2,3] x) => (float[2] y) <float[3,5] w> {
            h = MatMul(x, w)
            y = ReduceMean <axes = [1], keepdims = 0> (h)
        }""")
    assert "gradient of h" in sizes(found)


def test_the_gradient_of_an_expand_is_summed() -> None:
    found = step("""
        agraph (float[1,3] x) => (float[7,5] y) <float[3,5] w, int64[2] s = {7, 5}> {
            h = MatMul(x, w)
            e = Expand(h, s)
            y = Exp(e)
        }""")
    assert sizes(found)["gradient of e"] == [4 * 35]
    assert sizes(found)["gradient of h"] == [4 * 5]


def test_a_reshape_of_a_transposed_tensor_copies_its_gradient_for_the_matmul() -> None:
    """In the forward pass it copies as well; in backward the transposed gradient is folded."""
    found = step("""
        agraph (float[2,3,11] x) => (float[2,15] y) <float[11,5] w, int64[2] s = {2, 15}> {
            h = MatMul(x, w)
            t = Transpose <perm = [0, 2, 1]> (h)
            r = Reshape(t, s)
            y = Exp(r)
        }""")
    assert happenings(found) == [
        *("+gradient of y", "+gradient of r", "-gradient of y"),
        *("+gradient of h, folded", "-gradient of r"),
        *("+gradient of w", "-gradient of h, folded"),
    ]


def test_a_transpose_without_an_order_reverses_the_axes() -> None:
    """In backward they are reversed again: the matmul reads the gradient by its strides."""
    found = step("""
        agraph (float[2,3] x) => (float[5,2] y) <float[3,5] w> {
            h = MatMul(x, w)
            y = Transpose(h)
        }""")
    assert happenings(found) == ["+gradient of y", "+gradient of w", "-gradient of y"]


def test_a_reshape_in_row_major_order_is_a_view() -> None:
    found = step("""
        agraph (float[2,3] x) => (float[10] y) <float[3,5] w, int64[1] s = {10}> {
            h = MatMul(x, w)
            r = Reshape(h, s)
            y = Exp(r)
        }""")
    assert happenings(found) == [
        *("+gradient of y", "+gradient of r", "-gradient of y"),
        *("+gradient of w", "-gradient of r"),
    ]


def test_the_gradient_of_a_broadcast_operand_of_a_batched_matmul_is_summed() -> None:
    found = step("""
        agraph (float[7,2,3] x) => (float[7,2,5] y) <float[1,3,5] w> {
            y = MatMul(x, w)
        }""")
    assert happenings(found) == [
        *("+gradient of y", "+gradient of w", "-gradient of y"),
        *("+gradient of w", "-gradient of w"),
    ]
    assert sizes(found)["gradient of w"] == [4 * 7 * 15, 4 * 15]


def test_a_vector_is_multiplied_without_folding() -> None:
    found = step("""
        agraph (float[3] x) => (float[5] y) <float[3,5] w> { y = MatMul(x, w) }""")
    assert happenings(found) == ["+gradient of y", "+gradient of w", "-gradient of y"]


def test_a_linear_layer_computes_its_bias_gradient_last() -> None:
    found = step("""
        agraph (float[2,7,3] x) => (float[2,7,5] y) <float[3,5] w, float[5] b> {
            m = MatMul(x, w)
            y = Add(m, b)
        }""")
    assert happenings(found) == [
        *("+gradient of y", "+gradient of w", "+gradient of b", "-gradient of y"),
    ]


def test_an_identity_passes_its_gradient_on() -> None:
    """A Cast to the same type, and Dropout of nothing."""
    found = step("""
        agraph (float[2,3] x) => (float[2,5] y) <float[3,5] w, float ratio = {0.0}, bool on = {1}> {
            h = MatMul(x, w)
            c = Cast <to = 1> (h)
            d = CastLike(c, x)
            y, mask = Dropout(d, ratio, on)
        }""")
    assert happenings(found) == ["+gradient of y", "+gradient of w", "-gradient of y"]


@pytest.mark.parametrize(
    "between",
    [
        "r = Reshape(h, shape)",
        "t = Reshape(h, shape)  r = Transpose(t)",
        "t = Reshape(h, shape)  r = ReduceSum <keepdims = 0> (t)",
        "t = Reshape(h, shape)  u = Exp(t)  a = Add(t, u)  r = MatMul(a, a)",
    ],
)
def test_gradients_of_unknown_shapes_pass_and_take_no_bytes(between: str) -> None:
    """The lower bound has all that is known: the parameter's gradient at least."""
    found = step(f"""
        agraph (float[2,3] x, int64[2] shape) => (float y) <float[3,5] w> {{
            h = MatMul(x, w)
            {between}
            y = ReduceMax <keepdims = 0> (r)
        }}""")
    assert found.gradient_bytes == 60
    assert "gradient of w" in sizes(found)
    assert found.backward_peak_bytes >= 60 + 60 + 24


def test_a_subgraph_passes_gradients_to_what_it_reads_outside() -> None:
    text = """
        agraph (bool c, float[2,3] x) => (float[2,5] y) <float[3,5] w> {
            h = MatMul(x, w)
            y = If (c) <
                then_branch = yes () => (float[2,5] a) { a = Exp(h) },
                else_branch = no () => (float[2,5] b) { b = Identity(h) }
            >
        }"""
    found = step(text)
    assert happenings(found)[-2:] == ["+gradient of w", "-gradient of h"]
    graph = graph_of(text)
    assert "y" in tensors_requiring_grad(graph, Parameters(("w",), (), (), 15))
    assert tensors_requiring_grad(graph, Parameters((), (), (), 0)) == frozenset()


@pytest.mark.parametrize("view", ["Cast <to = 1> (e)", "Transpose <perm = [0, 2, 1]> (e)"])
def test_a_view_that_is_declared_with_another_rank_has_no_strides(view: str) -> None:
    graph = graph_of(f"""
        agraph (float[2,3,5] x) => (y) <float[2,3,5] w> {{
            e = Mul(x, w)  v = {view}  n = Neg(v)  y = Relu(n)
        }}""")
    tensors = dict(graph.tensors)
    for name in ("v", "n", "y"):
        tensors[name] = replace(tensors[name], shape=(2, 3, 5, 7))
    found = training_memory(replace(graph, tensors=tensors), recipe_of())
    assert sizes(found)["n"] == [4 * 2 * 3 * 5 * 7]

"""The backward pass: gradients at forks, of shared weights, and what becomes of parameters'."""

import pytest
from runtimes.torch.training_steps import categories, found_before, happenings, sizes, step

from onnxmem.program.program import Category
from onnxmem.runtimes.torch.memory import Phase

FORK = """
    agraph (float[2,3] x) => (float[2,5] y) <float[3,5] w> {
        h = MatMul(x, w)
        a = Exp(h)
        b = Tanh(h)
        c = Sigmoid(h)
        ab = Mul(a, b)
        y = Mul(ab, c)
    }"""


def test_gradients_are_added_in_place_without_other_references() -> None:
    """Of three readers of ``h`` the last gives the first gradient, to which two are added."""
    assert happenings(step(FORK)) == [
        *("+gradient of y", "+gradient of c", "+gradient of ab", "-gradient of y", "-ab"),
        *("+gradient of b", "+gradient of a", "-gradient of ab"),
        *("+gradient of h", "-gradient of c", "-c"),
        *("+gradient of h", "-gradient of b", "-b", "-gradient of h"),
        *("+gradient of h", "-gradient of a", "-a", "-gradient of h"),
        *("+gradient of w", "-gradient of h"),
    ]


def test_a_shared_gradient_is_added_to_in_place_once_its_other_owner_is_done() -> None:
    """It went to both operands as it is; Exp has let go of it when its own result is added."""
    found = step("""
        agraph (float[2,3] x) => (float[2,5] y) <float[3,5] w> {
            h = MatMul(x, w)
            a = Exp(h)
            y = Add(h, a)
        }""")
    assert happenings(found) == [
        *("+gradient of y", "+gradient of h", "-a", "-gradient of h"),
        *("+gradient of w", "-gradient of y"),
    ]
    at_exp = 4 * (15 + 6 + 10 + 10 + 10 + 10)  # w, x, y, a, and the gradients of y and of h
    at_w = 4 * (15 + 6 + 10 + 10 + 15)
    assert found.backward_peak_bytes == max(at_exp, at_w)


def test_a_gradient_with_another_owner_is_added_to_out_of_place() -> None:
    """That of ``y`` is pending for Exp when Tanh's arrives; later ones are added in place."""
    found = step("""
        agraph (float[2,3] x) => (float[2,5] y) <float[3,5] w> {
            h = MatMul(x, w)
            a = Exp(h)
            b = Tanh(h)
            s = Add(h, a)
            y = Add(s, b)
        }""")
    assert happenings(found) == [
        *("+gradient of y", "+gradient of h", "-b"),  # through Tanh
        *("+gradient of h", "-gradient of h"),  # the sum: a new tensor
        *("+gradient of h", "-gradient of y", "-a", "-gradient of h"),  # through Exp
        *("+gradient of w", "-gradient of h"),
    ]
    assert sizes(found)["gradient of h"] == [40, 40, 40]


def test_a_view_of_a_gradient_is_not_added_to_in_place() -> None:
    """The reshape's gradient is a view of that of ``r``: the sum is a new tensor."""
    found = step("""
        agraph (float[2,3] x) => (float[10] y, float[2,5] z) <float[3,5] w, int64[1] s = {10}> {
            h = MatMul(x, w)
            z = Exp(h)
            r = Reshape(h, s)
            y = Exp(r)
        }""")
    assert happenings(found) == [
        *("+gradient of z", "+gradient of y"),
        *("+gradient of r", "-gradient of y"),  # Exp's result is an output: it is held
        "+gradient of h",
        "-gradient of z",
        "+gradient of h",  # the sum
        *("-gradient of r", "-gradient of h"),
        *("+gradient of w", "-gradient of h"),
    ]


TIED = """
    agraph (int64[3] i) => (float[3,7] y) <float[7,5] w> {
        e = Gather(w, i)
        t = Transpose <perm = [1, 0]> (w)
        y = MatMul(e, t)
    }"""


def test_a_tied_weight_has_the_sum_of_two_gradients() -> None:
    """The matmul's is transposed, so that it is a view: the sum is a third tensor."""
    found = step(TIED)
    assert found.gradient_bytes == 4 * 35
    assert happenings(found) == [
        *("+gradient of y", "+gradient of t", "+gradient of e", "-gradient of y", "-e"),
        *("+gradient of w", "-gradient of e"),
        *("+gradient of w", "-gradient of t", "-gradient of w"),
    ]
    held = 4 * 35 + 8 * 3 + 4 * 21
    assert found.backward_peak_bytes == held + 4 * 3 * 35


def test_a_weight_read_twice_accumulates_in_place() -> None:
    found = step("""
        agraph (float[2,5] x) => (float[2,5] y) <float[5,5] w> {
            h = MatMul(x, w)
            y = MatMul(h, w)
        }""")
    assert happenings(found) == [
        *("+gradient of y", "+gradient of w", "+gradient of h", "-gradient of y", "-h"),
        *("+gradient of w", "-gradient of h", "-gradient of w"),
    ]


def test_the_gradient_of_a_transposed_weight_has_the_weights_layout() -> None:
    """As in a linear layer: mm returns the transposed matrix directly."""
    found = step("""
        agraph (float[2,3] x) => (float[2,5] y) <float[5,3] w> {
            t = Transpose <perm = [1, 0]> (w)
            y = MatMul(x, t)
        }""")
    assert happenings(found) == ["+gradient of y", "+gradient of w", "-gradient of y"]


def test_a_gradient_of_another_layout_than_its_parameter_is_copied() -> None:
    """The sum's gradient is row-major, and transposed back it is not: a view will not do."""
    found = step("""
        agraph (float[2,3] x) => (float[2,3] y) <float[3,2] w> {
            t = Transpose <perm = [1, 0]> (w)
            y = Add(t, x)
        }""")
    assert happenings(found) == ["+gradient of y", "+gradient of w", "-gradient of y"]


def test_a_parameter_of_an_add_gets_a_copy_of_the_shared_gradient() -> None:
    """The sum's gradient goes on to ``h`` as well, so the parameter cannot have it."""
    found = step("""
        agraph (float[2,3] x) => (float[2,5] y) <float[3,5] w, float[2,5] table> {
            h = MatMul(x, w)
            y = Add(h, table)
        }""")
    assert happenings(found) == [
        *("+gradient of y", "+gradient of table"),
        *("+gradient of w", "-gradient of y"),
    ]


def test_an_output_without_a_gradient_starts_no_backward_pass() -> None:
    """It is computed from the inputs alone."""
    found = step("""
        agraph (float[2,3] x) => (float[2,3] y, float[2,5] z) <float[3,5] w> {
            y = Exp(x)
            z = MatMul(x, w)
        }""")
    assert happenings(found) == ["+gradient of z", "+gradient of w", "-gradient of z"]


def test_losses_start_from_the_last_output() -> None:
    """Each lets its log-probabilities go with its gradient; the loop's own one goes at the end."""
    found = step(
        """
        agraph (float[2,3] x) => (float[2,5] y, float[2,7] z) <float[3,5] w, float[3,7] v> {
            y = MatMul(x, w)
            z = MatMul(x, v)
        }""",
        loss="cross-entropy",
    )
    order = happenings(found)
    assert order[0] == "+gradient of the loss"
    assert order[-1] == "-gradient of the loss"
    assert order.index("+gradient of z") < order.index("+gradient of y")
    assert order.index("-loss of z") < order.index("-loss of y")


def test_without_trained_parameters_there_is_no_backward_pass() -> None:
    found = step("agraph (float[2,3] x) => (float[2,3] y) { y = Exp(x) }", loss="mse")
    assert found.gradient_bytes == 0
    assert sizes(found).keys() & {"gradient of y"} == set()


@pytest.mark.parametrize("accumulate", [2, 5])
def test_accumulated_gradients_are_alive_from_the_start(accumulate: int) -> None:
    """New ones are let go of, each as it is added."""
    found = step(TIED, accumulate=accumulate)
    assert found.replay.live_set(found.replay.phase_peaks[Phase.FORWARD])
    assert found_before(found)[-2:] == ["gradient of w", "y of the previous pass"]
    assert happenings(found)[-1].startswith("-gradient of")
    held = 4 * 35 + 8 * 3 + 4 * 21 + 4 * 35
    assert found.backward_peak_bytes == held + 4 * 3 * 35
    assert found.optimizer_peak_bytes == held


def test_parameter_gradients_have_their_own_category_at_the_peak() -> None:
    found = step(TIED)
    held = categories(found)
    assert held["gradient of w"] is Category.GRADIENT
    assert held["gradient of e"] is Category.ACTIVATION_GRADIENT


def test_gradients_of_16_bit_activations_are_cast_for_the_parameter() -> None:
    found = step(
        "agraph (float[2,3] x) => (float[2,5] y) <float[3,5] w> { y = MatMul(x, w) }",
        precision="mixed-bf16",
    )
    assert happenings(found) == [
        *("+gradient of y", "+gradient of copy of w", "-gradient of y"),
        "-x as MatMul_0 reads it",  # the input's copy is done with
        *("+gradient of w", "-gradient of copy of w"),
    ]
    assert (sizes(found)["gradient of copy of w"], sizes(found)["gradient of w"]) == ([30], [60])

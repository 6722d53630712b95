"""Einsum as a batched product of permuted operands, worked by hand with primes."""

import pytest
from graphs import graph_of
from runtimes.torch.training_steps import recipe_of, sizes, step

from onnxmem.runtimes.torch.einsum import with_contractions
from onnxmem.runtimes.torch.network import as_run
from onnxmem.runtimes.torch.step import training_memory


def text(equation: str, x: str = "2,3,5", w: str = "7,5,11", y: str = "2,3,7,11") -> str:
    return f"""
        agraph (float[{x}] x) => (float[{y}] y) <float[{w}] w> {{
            y = Einsum <equation = "{equation}"> (x, w)
        }}"""


def operators(equation: str, *shapes: str) -> list[str]:
    return [node.op_type for node in as_run(graph_of(text(equation, *shapes))).nodes]


def test_the_product_saves_a_copy_of_an_operand_that_no_view_can_fold() -> None:
    """``[7, 5, 11]`` is read as ``[5, 7 * 11]``, and ``x`` as it is."""
    found = training_memory(graph_of(text("btd,edf->btef")), recipe_of())
    made = [size for label, blocks in sizes(found).items() if "Reshape" in label for size in blocks]
    assert made == [4 * 7 * 5 * 11] * 2  # the copy and its gradient, before it is permuted back
    # x requires no gradient: of the copy and of x, only x is read by the formula of w.
    assert found.saved_activation_bytes == 4 * (2 * 3 * 7 * 11)


def test_operands_without_a_common_label_to_sum_are_multiplied() -> None:
    assert "Mul" in operators("abc,ab->abc", "2,3,5", "2,3", "2,3,5")
    assert "MatMul" not in operators("abc,ab->abc", "2,3,5", "2,3", "2,3,5")


def test_a_label_of_one_operand_is_summed_first() -> None:
    names = operators("abc,bd->bd", "2,3,5", "3,7", "3,7")
    assert names.index("einsum_sum") < names.index("Mul")


@pytest.mark.parametrize("equation", ["aa,ab->ab", "ab,bc,", "ab"])
def test_other_equations_stay_as_they_are(equation: str) -> None:
    graph = graph_of(text(equation, "3,3", "3,5", "3,5"))
    assert with_contractions(graph) is graph


def test_the_call_holds_its_operands_until_the_last_product() -> None:
    """Under autocast, the casts of both operands live as long as the product runs."""
    found = step(text("btd,edf->btef"), precision="mixed-bf16")
    made = sizes(found)
    assert made["copy of w"] == [2 * 7 * 5 * 11]
    assert [2 * 2 * 3 * 5] in [size for label, size in made.items() if label.startswith("x as")]

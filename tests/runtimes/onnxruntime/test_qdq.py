"""The emulated optimizer on quantized graphs, compared with onnxruntime.

The graphs are in ``data/optimizer``, in the format of ``graph_cases``. The last line of each has
the expected operators, so that a case in which no rule applies is noticed.
"""

import pytest
from installed_runtime import require_since
from runtimes.onnxruntime.graph_cases import Case, cases, title
from runtimes.onnxruntime.optimized_graphs import compare_with_onnxruntime

pytestmark = pytest.mark.measure

MOVING = cases("moving")
ELEMENTWISE = cases("elementwise")
PRODUCTS = cases("products")
CONVOLUTIONS = cases("convolutions")
PACKED_WEIGHTS = cases("packed_weights")
PROPAGATION = cases("propagation")
CLEANUP = cases("cleanup")
UNSIGNED = cases("unsigned")
DOUBLE_PAIRS = cases("double_pairs")
FLOAT_CONSTANTS = cases("float_constants")
INTEGER_PRODUCTS = cases("integer_products")
CHANNELS_LAST = cases("channels_last")


def check(case: Case) -> None:
    require_since(case.since)
    assert " ".join(compare_with_onnxruntime(case.text, case.level)) == case.expected


@pytest.mark.parametrize("case", MOVING, ids=title)
def test_operators_that_move_elements_drop_the_pair(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", ELEMENTWISE, ids=title)
def test_elementwise_operators_become_integer_operators(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", PRODUCTS, ids=title)
def test_matrix_products_become_integer_operators(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=title)
def test_convolutions_become_integer_operators(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", PACKED_WEIGHTS, ids=title)
def test_a_matmul_with_a_dequantized_weight_becomes_matmul_nbits(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", PROPAGATION, ids=title)
def test_pairs_are_inserted_around_operators_that_move_elements(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", CLEANUP, ids=title)
def test_pairs_that_cancel_are_removed(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", UNSIGNED, ids=title)
def test_signed_pairs_become_unsigned(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", DOUBLE_PAIRS, ids=title)
def test_consecutive_pairs_become_one(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", FLOAT_CONSTANTS, ids=title)
def test_float_weights_and_biases_are_quantized(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", INTEGER_PRODUCTS, ids=title)
def test_scaled_integer_products_become_one_operator(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", CHANNELS_LAST, ids=title)
def test_integer_convolutions_get_channels_last(case: Case) -> None:
    check(case)

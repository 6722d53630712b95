"""What the emulated optimizer makes of quantized graphs, beside what onnxruntime makes of them.

The graphs stand in ``data/optimizer``; ``graph_cases`` says how to read them. The last line of each
tells what is left, so that a rule which is not asked for anything shows.
"""

import pytest
from installed_runtime import require_since
from runtimes.onnxruntime.graph_cases import Case, cases
from runtimes.onnxruntime.optimized_graphs import agrees

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


def title(case: Case) -> str:
    return case.title


def holds(case: Case) -> None:
    require_since(case.since)
    assert " ".join(agrees(case.text, case.level)) == case.left


@pytest.mark.parametrize("case", MOVING, ids=title)
def test_operators_that_move_elements_move_integers(case: Case) -> None:
    holds(case)


@pytest.mark.parametrize("case", ELEMENTWISE, ids=title)
def test_elementwise_operators_have_integer_twins(case: Case) -> None:
    holds(case)


@pytest.mark.parametrize("case", PRODUCTS, ids=title)
def test_products_have_integer_twins(case: Case) -> None:
    holds(case)


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=title)
def test_convolutions_have_integer_twins(case: Case) -> None:
    holds(case)


@pytest.mark.parametrize("case", PACKED_WEIGHTS, ids=title)
def test_a_dequantized_weight_stays_packed(case: Case) -> None:
    holds(case)


@pytest.mark.parametrize("case", PROPAGATION, ids=title)
def test_pairs_are_put_around_operators_that_move_elements(case: Case) -> None:
    holds(case)


@pytest.mark.parametrize("case", CLEANUP, ids=title)
def test_pairs_that_undo_each_other_go(case: Case) -> None:
    holds(case)


@pytest.mark.parametrize("case", UNSIGNED, ids=title)
def test_signed_pairs_become_unsigned(case: Case) -> None:
    holds(case)


@pytest.mark.parametrize("case", DOUBLE_PAIRS, ids=title)
def test_two_pairs_become_one(case: Case) -> None:
    holds(case)


@pytest.mark.parametrize("case", FLOAT_CONSTANTS, ids=title)
def test_float_constants_among_integers_are_quantized(case: Case) -> None:
    holds(case)


@pytest.mark.parametrize("case", INTEGER_PRODUCTS, ids=title)
def test_scaled_integer_products_become_one_operator(case: Case) -> None:
    holds(case)


@pytest.mark.parametrize("case", CHANNELS_LAST, ids=title)
def test_integer_convolutions_get_channels_last(case: Case) -> None:
    holds(case)

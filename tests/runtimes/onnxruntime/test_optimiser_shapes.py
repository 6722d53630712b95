"""Shapes that the emulated optimizer infers, beside those that onnxruntime knows at load.

The graphs stand in ``data/optimizer``; ``graph_cases`` says how to read them. The last line of each
tells the shapes of what its nodes make.
"""

import pytest
from graph_cases import Case, cases
from installed_runtime import require_since
from shapes_at_load import by_onnxmem, by_onnxruntime, written

from onnxmem.runtimes.onnxruntime.cpu import AVX512

pytestmark = pytest.mark.measure

CONTROL_FLOW = cases("control_flow")
ELEMENTS = cases("elements_of_shapes")
OWN_OPERATORS = cases("own_operators")
BLOCKED_IMAGES = cases("blocked_images")
STATED = cases("stated_shapes")


def title(case: Case) -> str:
    return case.title


def holds(case: Case) -> None:
    assert written(by_onnxmem(case.text, case.level, cpu=AVX512)) == case.left
    require_since(case.since)
    known = by_onnxmem(case.text, case.level)
    truth = by_onnxruntime(case.text, case.level)
    assert known == {name: truth[name] for name in known}


@pytest.mark.parametrize("case", CONTROL_FLOW, ids=title)
def test_types_go_into_branches_and_loops_and_come_out(case: Case) -> None:
    holds(case)


@pytest.mark.parametrize("case", ELEMENTS, ids=title)
def test_elements_that_follow_from_shapes_tell_shapes(case: Case) -> None:
    holds(case)


@pytest.mark.parametrize("case", OWN_OPERATORS, ids=title)
def test_operators_of_onnxruntimes_own(case: Case) -> None:
    holds(case)


@pytest.mark.parametrize("case", BLOCKED_IMAGES, ids=title)
def test_blocked_images(case: Case) -> None:
    holds(case)


@pytest.mark.parametrize("case", STATED, ids=title)
def test_what_a_file_states_is_kept_and_filled_up(case: Case) -> None:
    holds(case)


def test_numbers_for_symbols_reach_what_no_value_states() -> None:
    text = "agraph (float[N, M] x) => (float[N, M] y) <float[N, 7] a> { a = Tanh(x) y = Sin(a) }"
    for dims in ({}, {"N": 3}, {"N": 3, "M": 7}, {"K": 5}):
        known, truth = by_onnxmem(text, "off", dims), by_onnxruntime(text, "off", dims)
        assert known == {name: truth[name] for name in known}

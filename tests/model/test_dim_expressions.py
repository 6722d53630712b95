"""Dims written as sums and products of others; hostile text is parsed, never run."""

import time
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmem.model.binding import evaluated, names_in

DIMS = {"past": 100, "length": 5, "batch": 2, "_x1": 3}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("past", 100),
        ("past + length", 105),
        ("past+length", 105),
        ("  past - length ", 95),
        ("2*batch", 4),
        ("batch*length*_x1", 30),
        ("past // _x1", 33),
        ("(past + 1) * (length - 2)", 303),
        ("past - 1 - 1", 98),
        ("length - 9 + past", 96),
        ("7", 7),
        ("0", 0),
        ("length - 5", 0),
        ("0 * past", 0),
    ],
)
def test_whole_numbers_and_known_names_have_a_value(expression: str, value: int) -> None:
    assert evaluated(expression, DIMS) == value


@pytest.mark.parametrize(
    "expression",
    [
        "other",
        "past + other",
        "past / length",
        "past % length",
        "past ** length",
        "past << length",
        "past // 0",
        "past // (length - 5)",
        "length - 6",
        "1.5 * batch",
        "True + batch",
        "'a' * batch",
        "floor(past)",
        "past if batch else length",
        "past, length",
        "past +",
        "past + + length)",
        "x[0]",
        "past.real",
        "",
        " ",
    ],
)
def test_what_is_no_whole_positive_number_has_none(expression: str) -> None:
    assert evaluated(expression, DIMS) is None


def test_a_name_that_is_bound_as_a_whole_is_not_taken_apart() -> None:
    assert evaluated("past + length", DIMS | {"past + length": 7}) == 7
    assert evaluated("x[0]", {"x[0]": 3}) == 3
    assert evaluated("while", {"while": 4}) == 4


def test_the_largest_dim_is_that_of_onnx() -> None:
    assert evaluated("n - 1", {"n": 2**63}) == 2**63 - 1
    assert evaluated("n * 1", {"n": 2**63}) is None
    assert evaluated("n * n // n", {"n": 2**62}) == 2**62


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("past + length", {"past", "length"}),
        ("2*batch", {"batch"}),
        ("a*a - b//c", {"a", "b", "c"}),
        ("floor(a/2)", {"floor", "a"}),
        ("1 + 2", set()),
        ("past", set()),
        (" past ", set()),
        ("7", set()),
        ("", set()),
        ("unk__12", set()),
        ("past +", set()),
        ("/model/Shape_output_0", set()),
    ],
)
def test_the_names_of_an_expression(expression: str, names: set[str]) -> None:
    assert names_in(expression) == names


HOSTILE = [
    "__import__('os').abort()",
    "__import__('os').abort() + past",
    "(lambda: exit())()",
    "[exit() for past in 'x']",
    "exit()",
    "f'{exit()}'",
    "(past := exit())",
    "9**9**9**9**9",
    "9**9**9 * past",
    "1 << 9**9",
    "past " + "+ past" * 100_000,
    "(" * 99 + "past" + ")" * 99 + "+1",
    "(" * 190 + "past",
    "[" * 200,
    "-" * 190 + "past",
    "~" * 190 + "past",
    "not " * 49 + "past",
    "lambda:" * 28 + "0",
    "past" + "()" * 98,
    "past\0",
    "past\n+ 1",
    "\ud800",
    "\\",
    "'''",
    "# past",
    "9" * 200,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_has_no_value_and_takes_no_time(text: str) -> None:
    start = time.perf_counter()
    assert evaluated(text, DIMS) is None
    assert names_in(text).isdisjoint({"exit()", "os"})
    assert time.perf_counter() - start < 1


def test_long_text_is_a_name() -> None:
    short, long = "past" + "+1" * 98, "past" + "+1" * 99
    assert (len(short), len(long)) == (200, 202)
    assert (evaluated(short, DIMS), evaluated(long, DIMS)) == (198, None)
    assert names_in(short) == {"past"}
    assert names_in(long) == frozenset()
    assert evaluated(long, {long: 3}) == 3


@pytest.mark.parametrize("text", [r"'\d'", "1if past else 2", r"b'\777'"])
def test_text_is_read_without_a_warning(text: str) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert evaluated(text, DIMS) is None
        names_in(text)
    assert heard == []


@given(st.text() | st.text("past+-*/() 19,.[]\"'\\"))
def test_any_text_has_a_value_or_none(text: str) -> None:
    value = evaluated(text, DIMS)
    assert value is None or 0 <= value < 2**63
    assert "" not in names_in(text)


@st.composite
def sums(draw: st.DrawFn, depth: int = 3) -> str:
    if not depth or draw(st.booleans()):
        return draw(st.sampled_from([*DIMS, "0", "1", "17"]))
    left, right = draw(sums(depth - 1)), draw(sums(depth - 1))
    return f"({left} {draw(st.sampled_from('+-*'))} {right})"


@given(sums())
def test_sums_and_products_are_those_of_python(text: str) -> None:
    value = eval(text, {}, dict(DIMS))  # noqa: S307 - drawn from names and numbers above
    assert evaluated(text, DIMS) == (value if value >= 0 and len(text) <= 200 else None)

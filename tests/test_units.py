"""Bytes to text and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmem.errors import UsageError
from onnxmem.units import (
    common_power,
    format_bytes,
    format_count,
    format_limit,
    in_unit,
    parse_size,
)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1_863_680, "1.78 MiB"),
        (10 * 1024, "10.0 KiB"),
        (1023 * 1024, "1023 KiB"),
        (1024 * 1024 - 1, "1.00 MiB"),
        (2**63, "8.00 EiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_bytes_are_written_in_iec_units(num_bytes: int | None, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("16GB", "16 GB (14.9 GiB)"),
        ("1.5 TB", "1.5 TB (1.36 TiB)"),
        ("500MB", "500 MB (477 MiB)"),
        ("16GiB", "16.0 GiB"),
        ("1000MiB", "1000 MiB"),
        ("0B", "0 B"),
    ],
)
def test_a_limit_has_the_unit_that_it_was_given_in(given: str, text: str) -> None:
    assert format_limit(parse_size(given)) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "unknown"), (9999, "9,999"), (10_000, "10 k"), (25_557_032, "25.6 M"), (10**9, "1 G")],
)
def test_counts_are_abbreviated(count: int | None, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1000000", 1_000_000),
        ("16 GB", 16 * 10**9),
        ("24GiB", 24 * 2**30),
        ("512Mi", 512 * 2**20),
        ("0.5 KiB", 512),
        ("7b", 7),
        ("9007199254740993", 9_007_199_254_740_993),
    ],
)
def test_sizes_are_parsed(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["24G", "", "GiB", "-1", "1e9", "1.5.2MB", "12 parsecs"])
def test_an_invalid_size_is_rejected_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError, match="as in 24GiB or 512MiB"):
        parse_size(text)


@pytest.mark.parametrize("number", ["1", "5", "24", "1023", "0.5", "1023.9", "007"])
def test_a_small_number_without_a_unit_is_rejected(number: str) -> None:
    with pytest.raises(UsageError) as reported:
        parse_size(f" {number} ")
    text = f"{number} means {number} bytes; write {number}GiB, or {number}B for bytes"
    assert str(reported.value) == text
    assert parse_size(f"{number}B") == int(float(number))


def test_zero_and_a_number_from_1024_on_need_no_unit() -> None:
    assert [parse_size(text) for text in ("0", "0.0", "1024", "1024.5")] == [0, 0, 1024, 1024]


@given(st.integers(1024, 2**62))
def test_a_number_without_a_unit_is_in_bytes(num_bytes: int) -> None:
    assert parse_size(str(num_bytes)) == num_bytes
    assert parse_size(f"{num_bytes}KiB") == num_bytes * 1024


@given(st.integers(0, 2**59))
def test_three_digits_are_exact_to_half_a_percent(num_bytes: int) -> None:
    text = format_bytes(num_bytes)
    assert abs(parse_size(text) - num_bytes) <= num_bytes * 0.005 + 1


@pytest.mark.parametrize(
    ("sizes", "texts"),
    [
        ((6 * 2**30, 256 * 2**10), ["6,144.00 MiB", "0.25 MiB"]),
        ((6 * 2**30, 2**29, None), ["6.00 GiB", "0.50 GiB", "unknown"]),
        ((2**31, -(2**30)), ["2.00 GiB", "-1.00 GiB"]),
        ((7, 0), ["7 B", "0 B"]),
    ],
)
def test_a_table_has_the_largest_unit_in_which_no_size_rounds_to_nothing(
    sizes: tuple[int | None, ...], texts: list[str]
) -> None:
    power = common_power(sizes)
    assert [in_unit(size, power) for size in sizes] == texts


def test_what_rounds_to_nothing_is_written_as_less() -> None:
    assert (in_unit(1, 3), in_unit(-1, 3), in_unit(0, 3)) == ("<0.01 GiB", "-<0.01 GiB", "0.00 GiB")

"""Names that would move the cursor, turn the text or forge a line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmem.errors import printable, shortened


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("/layer1/conv2d/Conv_output_0", "/layer1/conv2d/Conv_output_0"),
        ("größe/层/μ", "größe/层/μ"),
        ("a b", "a b"),
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("a\nb\tc\rd", r"a\x0ab\x09c\x0dd"),
        ("a\x9b31mb\x7f", r"a\x9b31mb\x7f"),
        ("a\u202eb\u2066c\u200b", r"a\u202eb\u2066c\u200b"),
        ("a\u2028b", r"a\u2028b"),
        ("a\U000e0001b", r"a\U000e0001b"),
        (b"caf\xe9.onnx".decode("utf-8", "surrogateescape"), r"caf\xe9.onnx"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_moves_hides_or_turns_text_is_written_out(name: str, text: str) -> None:
    assert printable(name) == text


@given(st.text())
def test_what_is_written_is_always_printable(name: str) -> None:
    assert printable(name).isprintable()
    assert printable(printable(name)) == printable(name)


def test_ordinary_names_are_never_cut() -> None:
    name = "x" * 200
    assert shortened(name) == name


def test_a_very_long_name_loses_its_middle_and_says_how_much() -> None:
    text = shortened("a" * 500 + "b" * 500)
    assert text == "a" * 100 + "...(800 more)..." + "b" * 100

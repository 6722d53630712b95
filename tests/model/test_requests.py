"""Requests of a server: files and ranges, and what is said of a row that is not a request."""

from pathlib import Path

import pytest

from onnxmem.model.requests import RequestsError, drawn, listed_requests, read_requests


def written(folder: Path, text: str) -> str:
    path = folder / "log"
    path.write_text(text, encoding="utf-8", newline="")
    return str(path)


@pytest.mark.parametrize(
    "text",
    [
        "batch,seq\n4,128\n1,7\n",
        "\ufeffbatch,seq\r\n4,128\r\n\r\n1,7",
        ' batch , "seq"\n 4 ,"128"\n\n1,7\n\n',
        '{"batch": 4, "seq": 128}\n{"seq": 7, "batch": 1}\n',
        '\n{"batch": "4", "seq": 128}\n\n{"batch": 1, "seq": 7}',
    ],
)
def test_a_table_and_objects_hold_the_same_requests(tmp_path: Path, text: str) -> None:
    found = read_requests(written(tmp_path, text))
    assert found.rows == ({"batch": 4, "seq": 128}, {"batch": 1, "seq": 7})
    assert found.seed is None
    assert found.num_in_range == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no requests"),
        ("batch,seq\n", "has no requests"),
        ("batch,batch\n1,2\n", "line 1: the header must name the dims"),
        ("4,128\n1,7\n", "line 1: the header must name the dims"),
        ("batch,seq\n4,128\n4\n", "line 3: has 1 cells, and the header 2"),
        ("batch,seq\n4,-1\n", "line 2: seq is '-1', not a positive integer"),
        ("batch,seq\n4,0\n", "line 2: seq is '0', not a positive integer"),
        ("batch,seq\n\n4,1.5\n", "line 3: seq is '1.5', not a positive integer"),
        ("batch,seq\n4,\n", "line 2: seq is empty"),
        ("batch,seq\n4,\u0663\n", "line 2: seq is "),
        ("batch,seq\n4," + "9" * 19 + "\n", "line 2: seq is "),
        ('{"batch": 4}\n{"batch": true}\n', "line 2: batch is True, not a positive integer"),
        ('{"batch": 4}\n{"batch": 1.5}\n', "line 2: batch is 1.5, not a positive integer"),
        ('{"batch": 4}\n{"seq": 4}\n', "line 2: has the dims 'seq', and line 1 'batch'"),
        ('{"batch": 4}\n{batch}\n', "line 2: is not an object of dims"),
        ("[1, 2]\n", "line 1: is not an object of dims"),
        ("{}\n", "line 1: is not an object of dims"),
    ],
)
def test_a_row_that_is_not_a_request_is_named_by_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(RequestsError) as caught:
        read_requests(written(tmp_path, text))
    assert said in str(caught.value)
    assert "log" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(range(255, 0, -1)))
    with pytest.raises(RequestsError, match="is not text"):
        read_requests(str(path))


def test_ranges_are_drawn_by_a_seed() -> None:
    found = drawn("batch=1..8, seq=16..512:uniform", 300, seed=3)
    assert found.rows == drawn("batch=1..8,seq=16..512", 300, seed=3).rows
    assert found.rows != drawn("batch=1..8,seq=16..512", 300, seed=4).rows
    assert {row["batch"] for row in found.rows} == set(range(1, 9))
    assert all(16 <= row["seq"] <= 512 for row in found.rows)
    assert found.num_in_range == 8 * 497
    assert drawn("batch=3", 2).rows == ({"batch": 3}, {"batch": 3})


def test_all_of_a_small_range_and_the_corners_of_a_wide_one() -> None:
    found = drawn("a=1..3,b=5..6", 4)
    assert len(found.in_range(6)) == len(found.in_range(100)) == 6
    some = found.in_range(5)
    corners = [{"a": a, "b": b} for a in (1, 3) for b in (5, 6)]
    assert all(row in some for row in (*corners, *found.shapes))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("batch=8..1", "'batch=8..1' is empty"),
        ("batch=0..1", "'batch=0..1' is empty"),
        ("batch=1..x", "'batch=1..x' is not a range"),
        ("batch=1..8:normal", "'batch=1..8:normal' is not a range"),
        ("batch=1,,seq=2", "'' is not a range"),
        (
            "batch=1..8 seq=1..9",
            "'batch=1..8 seq=1..9' is not a range; write NAME=LOW..HIGH with commas",
        ),
        ("batch=1,batch=2", "batch has two ranges"),
    ],
)
def test_ranges_that_cannot_be_read(text: str, said: str) -> None:
    with pytest.raises(RequestsError, match="--requests: ") as caught:
        read_requests(text)
    assert said in str(caught.value)


def test_a_count_and_a_seed_are_for_ranges(tmp_path: Path) -> None:
    path = written(tmp_path, "batch\n1\n")
    with pytest.raises(RequestsError, match="--num-requests and --seed are for ranges"):
        read_requests(path, 4)
    with pytest.raises(RequestsError, match="draw between 1 and 100,000"):
        read_requests("batch=1..2", 100_001)


def test_a_list_of_requests() -> None:
    assert listed_requests([{"a": 1, "b": 2}, {"b": 3, "a": 2}]).rows[1] == {"a": 2, "b": 3}
    for rows, said in (
        ([], "is empty"),
        ([{"a": 1}, {"b": 1}], r"requests\[1\]: has the dims 'b'"),
        ([{"a": 0}], r"requests\[0\]: a is 0"),
        ([{}, {"a": 1}], r"requests\[1\]: has the dims 'a', and the first"),
    ):
        with pytest.raises(RequestsError, match=said):
            listed_requests(rows)

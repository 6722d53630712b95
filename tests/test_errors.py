"""Exit codes: of each kind of error, and of several together."""

import pytest

from onnxmem.errors import (
    GraphError,
    MissingFileError,
    ModelFileError,
    OnnxmemError,
    ShapeError,
    UsageError,
    worst_exit_code,
)


@pytest.mark.parametrize(
    ("kind", "code", "exit_code"),
    [
        (UsageError, "usage", 2),
        (MissingFileError, "missing_file", 2),
        (ShapeError, "shape", 2),
        (ModelFileError, "model_file", 3),
        (GraphError, "graph", 3),
    ],
)
def test_an_error_has_a_stable_word_and_an_exit_code(
    kind: type[OnnxmemError], code: str, exit_code: int
) -> None:
    assert (kind.code, kind.exit_code) == (code, exit_code)


@pytest.mark.parametrize(
    ("codes", "worst"),
    [
        ([], 0),
        ([0, 0], 0),
        ([0, 1], 1),
        ([1, 3], 3),
        ([3, 2, 1], 2),
        ([2, 70, 3], 70),
        ([70, 130], 130),
    ],
)
def test_the_worst_of_several_exit_codes_is_returned(codes: list[int], worst: int) -> None:
    assert worst_exit_code(codes) == worst

"""Figures at least and at most where the data of a run decide dims, and the verdicts between.

At least: the 377 bytes of the inputs. At most, 13 rows of 28 bytes in three buffers more.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
import pytest
from graphs import model_of

import onnxmem
from onnxmem.analysis.analysis import Analysis
from onnxmem.cli import main

ROWS = """agraph (float[13,7] x, bool[13] c) => (float[rows,7] y) {
    z = Compress<axis = 0>(x, c)  w = Mul(z, z)  y = Sub(w, z)
}"""
INPUTS_BYTES = 13 * 7 * 4 + 13
ROW_BYTES = 3 * 7 * 4
"""Of z, w and y, all alive in the last step."""
AT_MOST_BYTES = INPUTS_BYTES + 13 * ROW_BYTES
ENDLESS = """agraph (float[5] x, int64 n) => (s) <bool going = {1}> {
    z, s = Loop(n, going, x) <
        body = iteration(int64 i, bool c, float[K] h) => (co, ho, so) {
            co = Identity(c)  ho = Relu(h)  so = Identity(h)
        }
    >
}"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    onnx.save(model_of(ROWS), tmp_path / "rows.onnx")
    return str(tmp_path / "rows.onnx")


def rows(text: str, most: Mapping[str, int] = MappingProxyType({})) -> Analysis:
    return onnxmem.analyze(model_of(text), most=most)


def test_the_figures_are_a_pair() -> None:
    analysis = rows(ROWS)
    assert analysis.status == "partial"
    assert analysis.total_bytes == INPUTS_BYTES
    assert analysis.at_most is not None
    assert analysis.at_most.total_bytes == AT_MOST_BYTES
    (text,) = analysis.doubts
    assert (
        text
        == "figures are lower bounds, of inference at most 1.43 KiB: the data of a run decide 'z:0'"
    )


def test_json_has_the_upper_figures() -> None:
    row = rows(ROWS).to_dict()
    assert row["data_dependent"] == {
        "dims": ["z:0"],
        "unbounded_dims": [],
        "nodes": [],
        "total_lower_bytes": INPUTS_BYTES,
        **dict.fromkeys(
            (
                *("naive_lower_bytes", "naive_in_place_lower_bytes", "peak_lower_bytes"),
                *("in_place_peak_lower_bytes", "arena_lower_bytes", "training_peak_lower_bytes"),
            )
        ),
        "total_upper_bytes": AT_MOST_BYTES,
        "naive_upper_bytes": 13 * ROW_BYTES,
        "naive_in_place_upper_bytes": 13 * ROW_BYTES,
        "peak_upper_bytes": 13 * ROW_BYTES,
        "in_place_peak_upper_bytes": 13 * ROW_BYTES,
        "arena_upper_bytes": 13 * ROW_BYTES,
        "training_peak_upper_bytes": None,
    }
    assert "data_dependent" not in rows("agraph (float[2] x) => (y) { y = Relu(x) }").to_dict()


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        (ROWS, {}, 13 * ROW_BYTES),
        (ROWS, {"z:0": 5}, 5 * ROW_BYTES),
        # In the branch that runs if ``b``: z, three times z, and y.
        (
            """agraph (float[13,7] x, bool[13] c, bool b) => (float[rows,7] y) {
            z = Compress<axis = 0>(x, c)
            y = If(b) <
                then_branch = three () => (o) { t = Concat<axis = 0>(z, z, z)  o = Neg(t) },
                else_branch = one () => (p) { p = Neg(z) }
            > }""",
            {},
            13 * 7 * 4 * (1 + 3 + 3),
        ),
        (ENDLESS, {}, None),
    ],
)
def test_the_peak_requested_by_kernels_has_an_upper_end(
    text: str, most: Mapping[str, int], expected: int | None
) -> None:
    analysis = onnxmem.analyze(
        model_of(text), runtimes=("ort-cpu",), graph="raw", most=most, asks_onnxruntime=False
    )
    rows = analysis.to_dict()["runtimes"]
    assert isinstance(rows, list)
    (row,) = rows
    assert isinstance(row, dict)
    assert row.get("requested_peak_upper_bytes") == expected


def test_a_dim_without_a_bound_leaves_the_upper_figures_unknown() -> None:
    analysis = rows(ENDLESS)
    assert analysis.at_most is None
    assert "'s:0'; set --max Loop_0:iterations=100" in analysis.doubts[0]
    found = analysis.to_dict()["data_dependent"]
    assert isinstance(found, dict)
    assert found["unbounded_dims"] == ["s:0"]
    assert found["total_upper_bytes"] is None
    at_most = rows(ENDLESS, {"s:0": 11}).at_most
    assert at_most is not None
    assert at_most.activations.naive_bytes == 5 * 4 + (1 + 5 * 4 + 5 * 4) + 11 * 5 * 4


@pytest.mark.parametrize(
    ("budget", "most", "code", "title"),
    [
        (f"{AT_MOST_BYTES}B", [], 0, "Fits"),
        (f"{AT_MOST_BYTES - 1}B", [], 3, "Depends on the data"),
        (f"{INPUTS_BYTES}B", [], 3, "Depends on the data"),
        (f"{INPUTS_BYTES - 1}B", [], 1, "Does not fit"),
        (f"{INPUTS_BYTES + 5 * ROW_BYTES}B", ["--max", "rows=5"], 0, "Fits"),
        (f"{INPUTS_BYTES + 5 * ROW_BYTES - 1}B", ["--max", "z:0=5"], 3, "Depends on the data"),
    ],
)
def test_a_budget_between_the_ends_depends_on_the_data(
    budget: str,
    most: list[str],
    code: int,
    title: str,
    path: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([path, "--budget", budget, *most]) == code
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith(f"{title}  ")]


def test_a_verdict_within_the_upper_figure_shows_it(path: str) -> None:
    found = onnxmem.analyze(path, budget_bytes=2048).to_dict()["verdict"]
    assert isinstance(found, dict)
    assert (found["verdict"], found["bytes"], found["unlimited_bytes"]) == ("fits", 1469, 1469)
    assert found["doubts"] == []


def test_strings_have_no_size_and_no_verdict() -> None:
    model = model_of("agraph (string[5] x) => (y) { y = Identity(x) }")
    fit = onnxmem.analyze(model, budget_bytes=2**30).fit
    assert fit is not None
    assert (fit.verdict, [each.code for each in fit.doubts]) == ("unknown", ["partial"])


def test_the_verdict_names_the_dim_to_set(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([path, "--budget", "1KiB"]) == 3
    words = " ".join(capsys.readouterr().out.split())
    assert "--max z:0=N bounds it, --observe or --observed shows what runs took" in words


def test_a_name_of_no_dim_is_one_line(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([path, "--max", "row=5"]) == 2
    assert "--max row: no dim of that name" in capsys.readouterr().err


def test_the_table_shows_both_ends_under_a_verdict(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", path, "--device", f"{AT_MOST_BYTES}B"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"13 1.43 KiB {AT_MOST_BYTES:,} B fits +0 B at most; at least 377 B" in words
    assert main(["fit", path, "--device", f"{AT_MOST_BYTES - 1}B"]) == 3
    words = " ".join(capsys.readouterr().out.split())
    assert f"13 1.43 KiB {AT_MOST_BYTES:,} B unknown -1 B at most; at least 377 B" in words
    assert main(["fit", path, "--device", f"{INPUTS_BYTES - 1}B"]) == 1


def test_fit_observes_and_the_answer_says_what_ran(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    few = str(tmp_path / "5.npz")
    np.savez(few, x=np.ones((13, 7), np.float32), c=np.arange(13) < 5)
    assert main(["fit", path, "--device", f"{AT_MOST_BYTES - 1}B", "--observe", few]) == 3
    words = " ".join(capsys.readouterr().out.split())
    assert f"takes 797 B {INPUTS_BYTES + 5 * ROW_BYTES} B" in words
    assert "at least 797 B (an observed run)" in words
    assert "--observed" not in words
    assert main([path, "--observe", "random"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "observed 1 run of random inputs: inference took" in words
    assert "at most 1.43 KiB for other inputs" in words


def test_check_names_a_mistyped_limit(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", path, "--budget-peak", "2KiB", "--max", "zz:0=5"])
    words = " ".join(capsys.readouterr().out.split())
    assert "unused_limit: --max zz:0: no dim of that name" in words

"""What inference takes by branch and by iterations, where the data of a run decide them."""

import gc
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import model_of

import onnxmem
from onnxmem.analysis.analysis import Analysis
from onnxmem.cli import main

TEXT = """agraph (float[4] x, int64 n) => (s, y)
    <bool going = {1}, float zero = {0}, int64 nine = {9}> {
    m = Min(n, nine)
    z, s = Loop(m, going, x) <
        body = iteration(int64 i, bool c, float[4] h) => (co, ho, so) {
            co = Identity(c)  ho = Relu(h)  so = Identity(h)
        }
    >
    total = ReduceSum<keepdims = 0>(z)  big = Greater(total, zero)
    y = If (big) <
        then_branch = one () => (a) { a = Concat<axis = 0>(s, s) },
        else_branch = two () => (b) { b = Relu(s) }
    >
}"""
S_BYTES, Z_BYTES, ROW_BYTES = 9 * 16, 16, 16
FED_BYTES, WEIGHT_BYTES = 16 + 8, 1 + 4 + 8


@pytest.fixture
def analysis() -> Analysis:
    return onnxmem.analyze(model_of(TEXT))


def test_an_if_has_the_figures_of_both_branches(analysis: Analysis) -> None:
    (found,) = analysis.data_branches
    then_branch, else_branch = found.branches
    assert (then_branch.branch, else_branch.branch) == ("then_branch", "else_branch")
    assert then_branch.total_upper_bytes is not None
    assert else_branch.total_upper_bytes is not None
    # The concatenation has s two times, Relu has it once.
    assert then_branch.total_upper_bytes - else_branch.total_upper_bytes == S_BYTES
    assert analysis.at_most is not None
    assert then_branch.total_upper_bytes == analysis.at_most.total_bytes


def test_an_analysis_of_undecided_branches_holds_no_cycle() -> None:
    """Many models in one process stay small without a collection."""
    model = model_of(TEXT)
    onnxmem.analyze(model).to_dict()
    gc.collect()
    gc.disable()
    try:
        onnxmem.analyze(model).to_dict()
        assert gc.collect() < 20
    finally:
        gc.enable()


def test_a_loop_that_need_not_run_takes_its_outputs_at_least(analysis: Analysis) -> None:
    # z and m are alive while it runs; the body, h' and s of one iteration, are not there.
    assert analysis.results.at_least.total_bytes == FED_BYTES + WEIGHT_BYTES + Z_BYTES + 8
    row = analysis.to_dict()["data_dependent"]
    assert isinstance(row, dict)
    assert (row["nodes"], row["in_place_peak_lower_bytes"]) == (["Loop_1", "If_4"], Z_BYTES + 8)


def test_a_loop_is_a_line_in_its_iterations(analysis: Analysis) -> None:
    (loop,) = analysis.data_loops
    assert (loop.most, loop.counts) == (9, (1, 2, 3, 9))
    assert loop.output_line is not None
    assert (loop.output_line.fixed_bytes, loop.output_line.slope_bytes) == (Z_BYTES, ROW_BYTES)
    assert analysis.at_most is not None
    assert loop.totals[9] == analysis.at_most.total_bytes


@pytest.mark.usefixtures("without_children")
def test_the_observed_count_has_a_figure(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    onnx.save(model_of(TEXT), tmp_path / "loop.onnx")
    npz = str(tmp_path / "5.npz")
    np.savez(npz, x=-np.ones(4, np.float32), n=np.int64(5))
    seen = onnxmem.observe(tmp_path / "loop.onnx", inputs=[npz])
    found = onnxmem.analyze(tmp_path / "loop.onnx", observed=seen)
    (loop,) = found.data_loops
    assert sorted(loop.totals) == [1, 2, 3, 5, 9]
    row = found.to_dict()["control_flow"]
    assert isinstance(row, dict)
    assert [each["iterations"] for each in row["loops"][0]["total_upper_bytes"]] == [1, 2, 3, 5, 9]


def test_a_loop_without_a_bound_has_a_line_through_a_far_count() -> None:
    found = onnxmem.analyze(model_of(TEXT.replace("m = Min(n, nine)", "m = Identity(n)")))
    (loop,) = found.data_loops
    assert (loop.most, loop.counts) == (None, (1, 2, 3, 50))
    assert loop.output_line is not None
    assert loop.output_line.slope_bytes == ROW_BYTES


def test_outputs_that_double_are_no_line() -> None:
    model = model_of("""agraph (float[4] x, int64 n) => (z) <bool going = {1}, int64 nine = {9}> {
        m = Min(n, nine)
        z = Loop(m, going, x) <
            body = iteration(int64 i, bool c, float[K] h) => (co, ho) {
                co = Identity(c)  ho = Concat<axis = 0>(h, h)
            }
        >
    }""")
    (loop,) = onnxmem.analyze(model).data_loops
    assert loop.output_line is None


def test_the_text_says_that_a_line_is_no_proof(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(model_of(TEXT), tmp_path / "loop.onnx")
    assert main([str(tmp_path / "loop.onnx"), "-v"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "16 B + 16 B x iterations: a line through 1, 2, 3 and 9 iterations, not a proof" in words
    assert "then_branch 61 B to 470 B; else_branch 61 B to 326 B" in words


def test_a_model_without_subgraphs_has_none() -> None:
    found = onnxmem.analyze(model_of("agraph (float[2] x) => (y) { y = Relu(x) }"))
    assert (found.data_branches, found.data_loops) == ((), ())
    assert "control_flow" not in found.to_dict()

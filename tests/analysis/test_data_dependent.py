"""Figures at least and at most where the data of a run decide dims, and the verdicts between.

At least: the 377 bytes of the inputs. At most, 13 rows of 28 bytes in three buffers more.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from data_dependent import requested_peak_of_run
from graphs import model_of
from jsonschema import Draft202012Validator

import onnxmem
from onnxmem import analyze_many
from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.json_rows import ends_of
from onnxmem.cli import main
from onnxmem.report.registry import table_row
from onnxmem.runtimes.onnxruntime.allocation.control_flow_trace import ControlFlowTrace
from onnxmem.runtimes.onnxruntime.memory import RuntimeMemory
from onnxmem.runtimes.onnxruntime.session_graph import loaded
from onnxmem.runtimes.onnxruntime.session_graph.control_flow import simulate_control_flow
from onnxmem.units import format_bytes

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
    bounds = "figures are lower bounds, of inference at most 1.43 KiB"
    assert text == f"{bounds}: the data of a run decide 'rows'"


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
    assert "--max rows=N bounds it, --observe or --observed shows what runs took" in words


def test_a_name_of_no_dim_is_one_line(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([path, "--max", "row=5"]) == 2
    assert "--max row: no dim of that name" in capsys.readouterr().err


def test_the_table_shows_both_ends_under_a_verdict(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", path, "--device", f"{AT_MOST_BYTES}B"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "13 1.43 KiB fits +0.00 KiB at most; at least 0.37 KiB" in words
    assert main(["fit", path, "--device", f"{AT_MOST_BYTES - 1}B"]) == 3
    words = " ".join(capsys.readouterr().out.split())
    assert "13 1.43 KiB unknown" in words
    assert main(["fit", path, "--device", f"{INPUTS_BYTES - 1}B"]) == 1


@pytest.mark.usefixtures("without_children")
def test_fit_observes_and_the_answer_says_what_ran(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    few = str(tmp_path / "5.npz")
    np.savez(few, x=np.ones((13, 7), np.float32), c=np.arange(13) < 5)
    assert main(["fit", path, "--device", f"{AT_MOST_BYTES - 1}B", "--observe", few]) == 3
    words = " ".join(capsys.readouterr().out.split())
    assert f"takes {INPUTS_BYTES + 5 * ROW_BYTES} B" in words
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


BRANCHES = """agraph (float[3,7] x) => (float[3,7] y) {
    s = ReduceSum <keepdims = 0> (x) z = Constant <value = float {0.0}> ()
    c = Greater(s, z)
    y = If (c) <then_branch = a () => (float[3,7] t) { e = Exp(x) f = Cos(e) t = Add(e, f) },
        else_branch = b () => (float[3,7] n) { n = Neg(x) }>
}"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A model whose data decide a branch, one whose data decide a dim, one of known dims."""
    for name, text in (("branches", BRANCHES), ("rows", ROWS), ("plain", PLAIN)):
        onnx.save(model_of(text), tmp_path / f"{name}.onnx")
    return str(tmp_path)


PLAIN = "agraph (float[5,11] x) => (y) { y = Exp(x) }"


def test_a_table_has_both_ends(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What counts the larger branch is no lower bound."""
    assert main([folder, "--summary"]) == 0
    text = capsys.readouterr().out
    words = " ".join(text.split())
    assert "incomplete" not in text
    least, most = 0, 0
    for name in ("branches", "rows", "plain"):
        row = onnxmem.analyze(f"{folder}/{name}.onnx").to_dict()
        ends = ends_of(row)
        assert (ends is None) is (name == "plain")
        low, high = ends or (row["total_bytes"],) * 2
        assert isinstance(low, int)
        assert isinstance(high, int)
        least, most = least + low, most + high
        if ends:
            assert f"at least {format_bytes(low)}, at most {format_bytes(high)}" in words
    assert f"at least {format_bytes(least)}, at most {format_bytes(most)}" in words
    paths = [f"{folder}/{name}.onnx" for name in ("branches", "plain", "rows")]
    rows_of = analyze_many(paths)
    lines = [" ".join(table_row(row, train=False).split()) for row in rows_of]
    assert ["at least" in line for line in lines] == [True, False, True]
    assert main([folder, "--json", "--summary"]) == 0
    figures = json.loads(capsys.readouterr().out)["summary"]["figures"]
    assert (figures["total"]["sum_lower_bytes"], figures["total"]["sum_upper_bytes"]) == (
        least,
        most,
    )
    assert "sum_lower_bytes" not in figures["weights"]


def test_a_total_of_larger_branches_is_no_lower_bound(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    strings = "agraph (string[5] q, float[3] x) => (r, y) { r = Identity(q)  y = Exp(x) }"
    onnx.save(model_of(strings), f"{folder}/strings.onnx")
    assert main([folder, "--summary"]) == 0
    totals, _, _ = " ".join(capsys.readouterr().out.split()).partition("Percentiles")
    assert totals.count("no upper end; 1 model incomplete") == 2
    assert "lower bound:" not in totals


def test_each_answer_names_the_end_of_its_figure(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = onnxmem.analyze(f"{folder}/branches.onnx")
    ends = ends_of(found.to_dict())
    assert ends is not None
    least, most = map(format_bytes, ends)
    path = f"{folder}/branches.onnx"
    assert main([path]) == 0
    text = capsys.readouterr().out
    assert "Inference, at least " in text
    assert f"Takes  at least {least}, at most {most}" in text
    budget = f"{(ends[0] or 0) + 1}B"
    assert main([path, "-q", "--budget", budget]) == 3
    assert f"depends on the data: at least {least}, at most {most} of" in capsys.readouterr().out
    assert main(["diff", path, f"{folder}/plain.onnx"]) == 0
    assert f"inference at least {least}, at most {most}" in capsys.readouterr().out.splitlines()[0]


def test_a_figure_of_an_allocator_has_no_upper_end(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing proves one, and no limit on a dim does; the report says what shows it."""
    path = f"{folder}/rows.onnx"
    runtimes = ["--runtime", "ort-cpu"]
    assert main([path, *runtimes, "--emulate-optimizer", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["models"][0]
    open_figures = row["data_dependent"]["without_upper_end"]
    assert "runtimes.ort-cpu.process_bytes" in open_figures
    assert "runtimes.ort-cpu.requested_peak_bytes" not in open_figures
    assert main([path, *runtimes, "--emulate-optimizer"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    peak_bytes = format_bytes(row["runtimes"][0]["requested_peak_upper_bytes"])
    assert f"no proven upper end, kernels request at most {peak_bytes}: --observe N" in words
    assert main([path, *runtimes, "--emulate-optimizer", "--budget", "1GiB"]) == 3
    words = " ".join(capsys.readouterr().out.split())
    assert "no proof gives an allocator's figure an upper end, --basis tensors has one" in words
    assert "--max" not in words


@pytest.mark.usefixtures("without_children")
@pytest.mark.parametrize("graph", ["raw", None])
@pytest.mark.parametrize("is_computed", [True, False])
def test_the_peak_of_a_loop_ends_at_its_bound(
    graph: str | None, is_computed: bool, tmp_path: Path
) -> None:
    """A bound that intervals find, or that the user knows, is one of the simulated iterations."""
    pytest.importorskip("onnxruntime")
    text = f"""agraph (float[5,7] x, int64 n) => (z, s) <bool on = {{1}}, int64 five = {{5}}> {{
        m = {"Min(n, five)" if is_computed else "Identity(n)"}
        z, s = Loop(m, on, x) <
            body = iteration(int64 i, bool c, float[5,7] h) => (co, ho, so) {{
                co = Identity(c)  e = Tanh(h)  ho = Add(e, h)  so = Sigmoid(h)
            }}
        >
    }}"""
    model = model_of(text)
    most = {} if is_computed else {"Loop_1:iterations": 5}
    found = onnxmem.analyze(model, runtimes=["ort-cpu"], graph=graph, most=most).runtime
    assert found is not None
    peaks = [
        requested_peak_of_run(
            model, {"x": np.ones((5, 7), np.float32), "n": np.array(count)}, tmp_path
        )
        for count in (0, 3, 5)
    ]
    assert peaks == sorted(peaks)
    assert found.requested_peak_upper_bytes == peaks[-1]


@pytest.mark.usefixtures("without_children")
def test_ifs_in_branches_and_loops_in_them_have_both_ends(tmp_path: Path) -> None:
    """Every combination is replayed: of an If in a branch, and of a Loop that data end there."""
    pytest.importorskip("onnxruntime")
    text = """agraph (float[50,70] x, bool first, bool second, int64 n) => (y)
        <bool on = {1}, int64 five = {5}> {
        w = Exp(x)  m = Min(n, five)
        y = If(first) <
            then_branch = one () => (a) {
                p = Tanh(w)
                a = If(second) <
                    then_branch = two () => (b) {
                        q = Concat<axis = 0>(p, w, p)  r = Sigmoid(q)  b = ReduceMax(r)
                    },
                    else_branch = three () => (c) { c = ReduceMax(p) }
                >
            },
            else_branch = four () => (d) {
                z, s = Loop(m, on, w) <
                    body = iteration(int64 i, bool g, float[50,70] h) => (go, ho, so) {
                        go = Identity(g)  ho = Tanh(h)  so = Sigmoid(h)
                    }
                >
                d = ReduceMax(s)
            }
        >
    }"""
    model = model_of(text)
    found = onnxmem.analyze(model, runtimes=["ort-cpu"], graph="raw").runtime
    assert found is not None
    peaks = [
        requested_peak_of_run(
            model,
            {
                "x": np.ones((50, 70), np.float32),
                "first": np.array(first),
                "second": np.array(second),
                "n": np.array(count),
            },
            tmp_path,
        )
        for first, second, count in (
            *((True, True, 0), (True, False, 0)),
            *((False, False, 0), (False, False, 2), (False, False, 5)),
        )
    ]
    assert found.requested_peak_lower_bytes is not None
    assert found.requested_peak_lower_bytes <= min(peaks) < max(peaks)
    assert found.requested_peak_upper_bytes == max(peaks)


@pytest.mark.usefixtures("without_children")
@pytest.mark.parametrize("count", [1, 2, 6])
def test_a_loop_with_an_if_and_a_loop_in_it_has_an_upper_end(count: int, tmp_path: Path) -> None:
    """No mix of branches has a higher peak than one branch in all iterations."""
    pytest.importorskip("onnxruntime")
    text = f"""agraph (float[50,70] x, bool[6] large, int64 n) => (z, s)
        <bool on = {{1}}, int64 m = {{{count}}}, int64 three = {{3}}> {{
        few = Min(n, three)
        z, s = Loop(m, on, x) <
            body = outer(int64 i, bool c, float[50,70] h) => (co, ho, so) {{
                co = Identity(c)  b = Gather(large, i)
                t = If(b) <
                    then_branch = one () => (u) {{
                        p = Concat<axis = 0>(h, x, h)  q = Sigmoid(p)  u = ReduceMax<keepdims=0>(q)
                    }},
                    else_branch = two () => (v) {{ v = ReduceMax<keepdims=0>(h) }}
                >
                w = Loop(few, on, h) <
                    body = inner(int64 j, bool g, float[50,70] k) => (go, ko) {{
                        go = Identity(g)  e = Tanh(k)  ko = Mul(e, k)
                    }}
                >
                ho = Add(w, t)  so = Relu(w)
            }}
        >
    }}"""
    model = model_of(text)
    found = onnxmem.analyze(model, runtimes=["ort-cpu"], graph="raw").runtime
    assert found is not None
    masks = [(0,) * 6, (1,) * 6, (1, 0, 1, 0, 1, 0), (0, 1, 0, 1, 0, 1), (1, 1, 0, 0, 1, 1)]
    peaks = [
        requested_peak_of_run(
            model,
            {
                "x": np.ones((50, 70), np.float32),
                "large": np.array(mask, np.bool_),
                "n": np.array(number),
            },
            tmp_path,
        )
        for mask in masks
        for number in (0, 1, 3)
    ]
    assert min(peaks) < max(peaks)
    assert found.requested_peak_upper_bytes == max(peaks)


@pytest.mark.usefixtures("without_children")
@pytest.mark.parametrize("count", [0, 1, 4, 5, 9])
def test_what_a_loop_lets_grow_ends_at_a_computed_bound(count: int, tmp_path: Path) -> None:
    """Each of five iterations has the rows of the last one, 15 of h and 18 of ho."""
    pytest.importorskip("onnxruntime")
    model = model_of("""agraph (float[3,7] x, int64 n) => (float[r,7] z)
            <bool on = {1}, int64 five = {5}> {
        m = Min(n, five)
        z = Loop(m, on, x) <body = iteration(int64 i, bool c, float[K,7] h) => (co, ho) {
            co = Identity(c)  ho = Concat <axis = 0> (h, x)
        }>
    }""")
    runtime = session_of(model)
    most_bytes = runtime.requested_peak_upper_bytes
    feeds = {"x": np.ones((3, 7), np.float32), "n": np.array(count)}
    measured = requested_peak_of_run(model, feeds, tmp_path)
    assert most_bytes is not None
    assert measured <= most_bytes
    # The iteration before the last one has three rows less in fact.
    assert count < 5 or most_bytes == measured + 3 * 28


@pytest.mark.usefixtures("without_children")
@pytest.mark.parametrize("count", [3, 400])
def test_what_a_known_number_of_iterations_adds_is_not_left_to_the_data(
    count: int, tmp_path: Path
) -> None:
    """An output grows by the rows of x in each iteration."""
    pytest.importorskip("onnxruntime")
    text = f"""agraph (float[3,7] x) => (z) <bool on = {{1}}, int64 m = {{{count}}}> {{
        z = Loop(m, on, x) <body = iteration(int64 i, bool c, float[K,7] h) => (co, ho) {{
            co = Identity(c)  ho = Concat <axis = 0> (h, x)
        }}>
    }}"""
    found = onnxmem.analyze(model_of(text), runtimes=["ort-cpu"], graph="raw")
    assert (found.status, found.doubts) == ("ok", ())
    assert found.at_most is not None
    assert found.at_most.total_bytes == found.total_bytes
    row_bytes = 3 * 7 * 4
    assert found.outputs_bytes == (count + 1) * row_bytes
    assert found.activations.in_place_peak_bytes == 2 * found.outputs_bytes
    assert found.runtime is not None
    feeds = {"x": np.ones((3, 7), np.float32)}
    requested_bytes = requested_peak_of_run(model_of(text), feeds, tmp_path)
    assert found.runtime.requested_peak_bytes == requested_bytes


def test_a_sequence_of_known_tensors_has_both_ends_in_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At least: the tensors; at most, the sequence has the bytes of both of them too."""
    text = """agraph (float[9,4] x) => (y) {
        a = Relu(x)  s = SequenceConstruct(a, x)  y = ConcatFromSequence<axis = 0>(s)
    }"""
    path = str(tmp_path / "sequence.onnx")
    onnx.save(model_of(text), path)
    ends = ends_of(onnxmem.analyze(path).to_dict())
    assert ends == (3 * 144, 5 * 144)
    assert main([str(tmp_path), "--summary"]) == 0
    assert "inference at least 432 B, at most 720 B" in " ".join(capsys.readouterr().out.split())


def test_a_list_that_a_loop_fills_has_an_upper_end() -> None:
    """The last iteration has its own list, that of the Loop, a piece and k."""
    text = """agraph (float[9,4] x, int64 n) => (z) <bool on = {1}, int64 ten = {10}> {
        k = Min(n, ten)  none = SequenceEmpty()
        s = Loop(k, on, none) <body = iteration(int64 i, bool c, seq(float[9,4]) q) => (co, qo) {
            co = Identity(c)  e = Exp(x)  qo = SequenceInsert(q, e)
        }>
        z = ConcatFromSequence<axis = 0>(s)
    }"""
    found = onnxmem.analyze(model_of(text))
    assert found.at_most is not None
    piece_bytes, number_bytes = 9 * 4 * 4, 8
    weights_bytes, inputs_bytes = number_bytes + 1, piece_bytes + number_bytes
    peak_bytes = 2 * 10 * piece_bytes + piece_bytes + number_bytes
    assert found.at_most.total_bytes == weights_bytes + inputs_bytes + peak_bytes


def test_a_sequence_that_the_caller_passes_leaves_a_lower_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """agraph (seq(float[9,4]) s) => (float[9,4] z) <int64 first = {0}> {
        y = SequenceAt(s, first)  z = Relu(y)
    }"""
    path = str(tmp_path / "sequence.onnx")
    onnx.save(model_of(text), path)
    assert onnxmem.analyze(path).at_most is None
    assert main([path]) == 0
    assert "Takes  at least 296 B: " in capsys.readouterr().out


def test_sizes_that_rules_alone_settle_are_between_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """K is five in every run, which no inference of shapes knows: no dim is left to the data."""
    text = """agraph (float[23] x, int64[1] k) => (float[K] v, int64[K] i)
        <int64[1] five = {5}> {
        a = Max(k, five) b = Min(a, five) v, i = TopK(x, b)
    }"""
    path = str(tmp_path / "five.onnx")
    onnx.save(model_of(text), path)
    assert onnxmem.analyze(path).at_most is not None
    assert main([path, "--budget", "1GiB"]) == 0
    assert "Fits  1.00 GiB: takes at most" in capsys.readouterr().out
    assert main([path, "--budget", "60B"]) == 1


def test_a_verdict_simulates_the_control_flow_of_a_request_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its report and its verdict are of one session, and so is the row of the table."""
    text = """agraph (float[N,7] x, bool c) => (float[a,7] z) {
        z = If (c) <
            then_branch = one () => (float[N,7] t) { t = Neg(x) },
            else_branch = two () => (float[M,7] e) { e = Concat<axis = 0>(x, x) }>
    }"""
    simulated = []

    def recorded(*asked: Any, **observed: Any) -> ControlFlowTrace:  # noqa: ANN401 - passed on
        simulated.append([asked[1].tensors[name].shape for name in asked[1].inputs])
        return simulate_control_flow(*asked, **observed)

    monkeypatch.setattr(loaded, "simulate_control_flow", recorded)
    analysis = onnxmem.analyze(
        model_of(text),
        batch=11,
        runtimes=("ort-cpu",),
        budget_bytes=10**9,
        asks_onnxruntime=False,
    )
    assert analysis.fit is not None
    assert simulated.count([(11, 7), ()]) == 1
    assert simulated.count([(1, 7), ()]) == 1


@pytest.mark.parametrize("precision", ["fp32", "mixed-bf16"])
def test_widths_that_autocast_gives_a_sequence_leave_no_upper_end(precision: str) -> None:
    text = """agraph (float[13,7] x, bool[13] c) => (y) <float[7,7] w> {
        z = Compress<axis = 0>(x, c)  m = MatMul(z, w)
        s = SequenceConstruct(m, m)  y = ConcatFromSequence<axis = 0>(s)
    }"""
    analysis = onnxmem.analyze(model_of(text), train=True, precision=precision, basis="tensors")
    row = analysis.to_dict()["data_dependent"]
    assert isinstance(row, dict)
    assert (row["training_peak_upper_bytes"] is None) == (precision != "fp32")
    assert row["total_upper_bytes"] is not None


def session_of(model: onnx.ModelProto) -> RuntimeMemory:
    """Its session as the file is, without onnxruntime."""
    runtime = onnxmem.analyze(
        model, runtimes=("ort-cpu",), graph="raw", asks_onnxruntime=False
    ).runtime
    assert runtime is not None
    return runtime


@pytest.mark.parametrize("count", [1, 3, 13])
def test_the_peak_of_a_scan_ends_at_the_dim_that_it_scans(count: int, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    text = """agraph (float[13,7] x, bool[13] c) => (float[7] h, float[n,7] y) <float[7] start> {
        z = Compress<axis = 0>(x, c)
        h, s = Scan(start, z) <num_scan_inputs = 1, body = added (float[7] a, float[7] b)
            => (float[7] t, float[7] u) { t = Add(a, b)  u = Neg(t) }>
        y = Exp(s)
    }"""
    model = model_of(text)
    model.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.zeros(7, np.float32), "start")
    )
    runtime = session_of(model)
    feeds = {"x": np.ones((13, 7), np.float32), "c": np.arange(13) < count}
    measured = requested_peak_of_run(model, feeds, tmp_path)
    assert runtime.requested_peak_lower_bytes is not None
    assert runtime.requested_peak_upper_bytes is not None
    assert runtime.requested_peak_lower_bytes <= measured <= runtime.requested_peak_upper_bytes
    assert (measured == runtime.requested_peak_upper_bytes) == (count == 13)


@pytest.mark.parametrize("count", [3, 64, 65, 100, 484])
def test_the_last_iteration_runs_beside_what_all_others_added(count: int, tmp_path: Path) -> None:
    """Of many iterations the first 64 are simulated."""
    pytest.importorskip("onnxruntime")
    model = model_of(f"""agraph (float[9] x) => (float[r] h, float[k,3] s)
            <bool on = {{1}}, int64 n = {{{count}}}, int64[1] zero = {{0}}, int64[1] end = {{3}}> {{
        h, s = Loop(n, on, x) <body = iteration (int64 i, bool c, float[9] a) => (co, ao, so) {{
            co = Identity(c)  e = Exp(a)  f = Concat<axis = 0>(e, e, e)
            g = ReduceMax<keepdims = 0>(f)  ao = Mul(a, g)  so = Slice(a, zero, end) }}>
    }}""")
    runtime = session_of(model)
    measured = requested_peak_of_run(model, {"x": np.zeros(9, np.float32)}, tmp_path)
    assert runtime.requested_peak_bytes == measured


@pytest.mark.parametrize("stop", [0.0, 40.0, 1000.0])
def test_a_loop_that_data_may_end_has_both_ends(stop: float, tmp_path: Path) -> None:
    """Its limit is known, and so are all sizes in it."""
    pytest.importorskip("onnxruntime")
    model = model_of("""agraph (float[7] x, float stop) => (float[7] y, float[r,7] s)
            <bool on = {1}, int64 limit = {150}, float one = {1}> {
        y, s = Loop(limit, on, x) <body = iteration (int64 i, bool c, float[7] a) => (co, ao, so) {
            ao = Add(a, one)  m = ReduceMax<keepdims = 0>(ao)
            co = Less(m, stop)  so = Exp(ao) }>
    }""")
    runtime = session_of(model)
    feeds = {"x": np.zeros(7, np.float32), "stop": np.array(stop, np.float32)}
    measured = requested_peak_of_run(model, feeds, tmp_path)
    assert runtime.requested_peak_lower_bytes is not None
    assert runtime.requested_peak_upper_bytes is not None
    assert runtime.requested_peak_lower_bytes <= measured <= runtime.requested_peak_upper_bytes
    assert (measured == runtime.requested_peak_upper_bytes) == (stop == 1000)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:  # noqa: ANN401 - of any command
    main([*words, "--json"])
    return json.loads(capsys.readouterr().out)


def schema_of(command: str) -> Draft202012Validator:
    text = (files("onnxmem.report") / "schema" / f"{command}-1.0.schema.json").read_text()
    return Draft202012Validator(json.loads(text))


def test_every_command_has_both_ends_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "agraph (float[N, 7] x) => (int64[a, b] y) { i = NonZero(x) y = Neg(i) }"
    path = str(tmp_path / "found.onnx")
    onnx.save(model_of(text), path)
    # Of each of the elements a float, and its two indices in two buffers.
    ends = {"lower_bytes": 28, "upper_bytes": 7 * (4 + 2 * 2 * 8)}
    fit = printed(capsys, "fit", path, "--device", "500B", "--batch", "1")
    schema_of("fit").validate(fit)
    assert ends.items() <= fit.items()
    first, second = fit["table"]
    assert ends.items() <= first.items()
    assert (second["verdict"], second["upper_bytes"]) == ("unknown", 2 * ends["upper_bytes"])
    ranking = printed(capsys, "fit", path, "--which-device", "--batch", "1")
    schema_of("fit").validate(ranking)
    assert all(ends.items() <= device.items() for device in ranking["devices"])
    sweep = printed(capsys, "sweep", path, "--batch", "1,2")
    schema_of("sweep").validate(sweep)
    assert ends.items() <= sweep["points"][0].items()
    (advice,) = printed(capsys, "advise", path, "--batch", "1")["models"]
    assert {f"before_{key}": size for key, size in ends.items()}.items() <= advice.items()
    main(["fit", path, "--which-device", "--batch", "1"])
    assert "at least, at most 252 B; " in " ".join(capsys.readouterr().out.split())
    main(["sweep", path, "--batch", "1,2"])
    assert "knee, at most 252 B" in capsys.readouterr().out


def test_an_exact_figure_has_no_ends_and_an_endless_one_null(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "model.onnx")
    onnx.save(model_of("agraph (float[N, 7] x) => (y) { y = Neg(x) }"), path)
    words = [path, "--batch", "1"]
    assert "upper_bytes" not in printed(capsys, "fit", *words, "--device", "500B")
    assert "upper_bytes" not in printed(capsys, "sweep", *words)["points"][0]
    onnx.save(
        model_of("agraph (float[N, 7] x, int64[2] k) => (float[N, b] y) { y = Expand(x, k) }"),
        path,
    )
    assert printed(capsys, "fit", *words, "--device", "500B")["upper_bytes"] is None
    assert printed(capsys, "sweep", *words)["points"][0]["upper_bytes"] is None


@pytest.mark.parametrize("is_observed", [False, True])
def test_what_runs_do_not_show_of_strings_leaves_a_verdict_unknown(
    is_observed: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No run's shapes have the bytes of a text, so what data are accepted says nothing of them."""
    pytest.importorskip("onnxruntime")
    path, npz = str(tmp_path / "named.onnx"), str(tmp_path / "one.npz")
    onnx.save(
        model_of("agraph (float[30] x) => (string[1,A] y) { i = NonZero(x)  y = Cast<to = 8>(i) }"),
        path,
    )
    np.savez(npz, x=np.ones(30, np.float32))
    words = ["fit", path, "--device", "100KiB", "--accept", "data_dependent"]
    words += ["--observe", npz] if is_observed else []
    assert main(words) == 3
    text = " ".join(capsys.readouterr().out.split())
    seen = ", which the observed runs do not show" if is_observed else ""
    left = f"a lower bound, without the bytes of the strings of 'y'{seen} (onnxmem measure"
    assert left in text
    assert main([*words, "--accept", "partial"]) == 0


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ("200B", "0 (1 needs 1.31 KiB more), whatever the data are"),
        ("700B", "0 whatever the data are (1 needs 837 B more at most)"),
    ],
)
def test_the_largest_batch_says_whether_data_decide_that_none_fits(
    limit: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "branches.onnx")
    onnx.save(
        model_of(
            """agraph (float[64,N] x, bool c) => (float[64,N] z) {
                z = If (c) <
                    then_branch = g1 () => (float[64,N] t) {
                        a = Exp(x) b = Exp(a) d = Mul(a, b) e = Sub(d, b) f = Mul(a, e)
                        t = Add(f, b)
                    },
                    else_branch = g2 () => (float[64,N] u) { u = Neg(x) }
                >
            }"""
        ),
        path,
    )
    main(["fit", path, "--device", limit, "--batch", "1"])
    assert text in capsys.readouterr().out


def test_the_process_of_a_run_that_data_decide_says_what_judges_it(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([path, "--runtime", "ort-cpu", "--emulate-optimizer", "--budget", "1GiB"]) == 3
    words = " ".join(capsys.readouterr().out.split())
    judged = "--observe or --observed with --accept data_dependent judges by what runs took"
    assert f"--basis tensors has one, {judged}" in words


def test_a_refused_limit_names_the_dims_that_data_decide(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([path, "--max", "rows:0=3"]) == 2
    said = "no dim of that name; rows is the name of a dim: --max rows=N; the data of a run decide"
    assert f"{said} 'rows'" in capsys.readouterr().err

"""The lower end of what a run takes, where data decide branches and iterations.

Random graphs of Ifs and Loops, in each other too: every combination of conditions and trip counts
is an analysis of its own, of a model in which nothing is left to the data.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from random import Random

import onnx
import pytest
from graphs import model_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import onnxmem
from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.fitting.assessing import FitRequest, assess
from onnxmem.analysis.fitting.footprints import request_of
from onnxmem.analysis.fitting.verdicts import Basis
from onnxmem.analysis.json_rows import data_rows
from onnxmem.report.sections.summary import answer
from onnxmem.report.verdict import assessment_lines, end_text, largest_text
from onnxmem.runtimes.onnxruntime import prediction
from onnxmem.settings import Settings

FIGURES = ("total", "naive", "naive_in_place", "peak", "in_place_peak", "arena", "training_peak")
SIZES = (3, 7, 13, 31)
MOST_TRIPS = 3
MOST_DECIDED = 3
"""Conditions and counts of a graph, whose combinations multiply."""


class Sketch:
    """Mutable: the text of a graph, whose names are unique in the model."""

    def __init__(self, draws: Random) -> None:
        self.draws = draws
        self.num_names = 0
        self.conditions: list[str] = []
        self.counts: list[str] = []

    def name(self, prefix: str = "t") -> str:
        self.num_names += 1
        return f"{prefix}{self.num_names}"

    def statement(self, known: list[str], depth: int) -> str:
        """A node that writes one tensor more."""
        kinds = ["plain", "plain", "If", "Loop"] if depth else ["plain"]
        kind = self.draws.choice(kinds)
        if kind == "If":
            return self.branches(known, depth)
        if kind == "Loop":
            return self.loop(known, depth)
        one, other, made = self.draws.choice(known), self.draws.choice(known), self.name()
        text = self.draws.choice(
            (f"Relu({one})", f"Identity({one})", f"Concat<axis = 0>({one}, {other})", f"Neg({one})")
        )
        known.append(made)
        return f"{made} = {text}"

    def body(self, known: list[str], depth: int) -> tuple[str, str]:
        """Statements of a subgraph, and the tensor that the last of them writes."""
        inner = list(known)
        rows = [self.statement(inner, depth - 1) for _ in range(self.draws.randint(1, 3))]
        return "  ".join(rows), inner[-1]

    def branches(self, known: list[str], depth: int) -> str:
        if not self.conditions or self.draws.random() < 0.7:
            self.conditions.append(self.name("c"))
        condition, made = self.draws.choice(self.conditions), self.name()
        (one, a), (two, b) = self.body(known, depth), self.body(known, depth)
        then, other = self.name("g"), self.name("g")
        known.append(made)
        return f"""{made} = If ({condition}) <
            then_branch = {then} () => ({a}) {{ {one} }},
            else_branch = {other} () => ({b}) {{ {two} }} >"""

    def loop(self, known: list[str], depth: int) -> str:
        self.counts.append(count := self.name("n"))
        i, going, carried, after = self.name("i"), self.name("k"), self.name("h"), self.name("k")
        text, result = self.body([*known, carried], depth)
        made, stacked, again = self.name(), self.name("s"), self.name("a")
        row = self.name()
        first = self.draws.choice(known)
        known.append(made)
        return f"""{made}, {stacked} = Loop ({count}, on, {first}) <
            body = {self.name("g")} (int64 {i}, bool {going}, float[{self.name("D")}] {carried})
                => ({after}, {again}, {row})
            {{ {after} = Identity({going})  {text}  {again} = Neg({carried})
               {row} = ReduceSum<keepdims = 0>({result}) }} >"""


def random_text(draws: Random) -> tuple[str, Sketch]:
    """A graph in text; what it is fed besides x are conditions and counts of iterations."""
    sketch, known = Sketch(draws), ["x"]
    rows = [sketch.statement(known, 2) for _ in range(draws.randint(2, 5))]
    rows.append(f"y = Concat<axis = 0>({known[-1]}, x)")
    fed = [*(f"bool {name}" for name in sketch.conditions)]
    fed += [f"int64 {name}" for name in sketch.counts]
    inputs = ", ".join((f"float[{draws.choice(SIZES)}] x", *fed))
    body = "\n".join(rows)
    return f"agraph ({inputs}) => (y) <bool on = {{1}}> {{ {body} }}", sketch


def possible_values(sketch: Sketch) -> Iterator[Mapping[str, int]]:
    """Every combination of conditions and of the numbers of iterations."""
    names = (*sketch.conditions, *sketch.counts)
    ranges = [*((0, 1) for _ in sketch.conditions), *((0, 1, MOST_TRIPS) for _ in sketch.counts)]
    for numbers in product(*ranges):
        yield dict(zip(names, numbers, strict=True))


def analyzed(model: onnx.ModelProto, values: Mapping[str, int], *, train: bool) -> Analysis:
    runtimes = () if train else ("ort-cpu",)
    return onnxmem.analyze(
        model,
        values=values,
        runtimes=runtimes,
        graph="raw",
        asks_onnxruntime=False,
        train=train,
    )


def figures(analysis: Analysis) -> dict[str, int | None]:
    memory, runtime = analysis.activations, analysis.runtime
    return {
        "total": analysis.total_bytes,
        "naive": memory.naive_bytes,
        "naive_in_place": memory.naive_in_place_bytes,
        "peak": memory.peak_bytes,
        "in_place_peak": memory.in_place_peak_bytes,
        "arena": memory.arena_bytes,
        "training_peak": analysis.results.training_peak_bytes,
        "requested": None if runtime is None else runtime.arena.requested_peak_bytes,
    }


def ends(analysis: Analysis) -> dict[str, tuple[int, int | None]]:
    """The lower and the upper end of each figure; equal where nothing is left to the data."""
    row, found = data_rows(analysis.results).get("data_dependent"), figures(analysis)
    pairs: dict[str, tuple[int, int | None]] = {
        name: (size_bytes, size_bytes)
        for name, size_bytes in found.items()
        if size_bytes is not None
    }
    if isinstance(row, dict):
        pairs |= {
            name: (row[f"{name}_lower_bytes"] or 0, row[f"{name}_upper_bytes"]) for name in FIGURES
        }
    runtime = analysis.runtime
    if runtime is not None and runtime.requested_peak_lower_bytes is not None:
        pairs["requested"] = (
            runtime.requested_peak_lower_bytes,
            runtime.requested_peak_upper_bytes,
        )
    return pairs


def check(draws: Random, *, train: bool = False) -> None:
    text, sketch = random_text(draws)
    model = model_of(text)
    if len(sketch.conditions) + len(sketch.counts) > MOST_DECIDED:
        return
    pairs = ends(analyzed(model, {}, train=train))
    for values in possible_values(sketch):
        for name, size_bytes in figures(analyzed(model, values, train=train)).items():
            least, most = pairs.get(name, (0, None))
            assert size_bytes is None or least <= size_bytes, (name, values, text)
            # A known number of iterations has one figure, and no figure of 0 iterations.
            assert most is None or size_bytes is None or size_bytes <= most, (name, values, text)


@settings(max_examples=12, deadline=None)
@given(st.randoms(use_true_random=False))
def test_no_combination_is_beyond_either_end(draws: Random) -> None:
    check(draws)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(st.randoms(use_true_random=False))
def test_no_combination_of_many_graphs_is_beyond_either_end(draws: Random) -> None:
    check(draws)


@pytest.fixture
def each_branch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No combination of branches is enumerated, as of a graph with many of them."""
    monkeypatch.setattr(prediction, "_MOST_RUNS", 1)


@pytest.mark.usefixtures("each_branch_once")
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.randoms(use_true_random=False))
def test_no_combination_is_beyond_the_end_of_each_branch_once(draws: Random) -> None:
    check(draws)


@pytest.mark.slow
@pytest.mark.usefixtures("each_branch_once")
@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.randoms(use_true_random=False))
def test_no_combination_of_many_graphs_is_beyond_that_end(draws: Random) -> None:
    check(draws)


def test_many_branches_have_an_upper_end() -> None:
    """Of six conditions with 64 combinations."""
    rows, last = [], "x"
    for number in range(6):
        rows.append(f"""y{number} = If (c{number}) <
            then_branch = g{number} () => (t{number}) {{
                u{number} = Concat<axis = 0>({last}, x, x, x, x, x)
                s{number} = ReduceSum<keepdims = 0>(u{number})  t{number} = Add(s{number}, x) }},
            else_branch = h{number} () => (e{number}) {{ e{number} = Concat<axis = 0>(x, x, x) }} >
        """)
        last = f"y{number}"
    conditions = [f"c{number}" for number in range(6)]
    fed = ", ".join(f"bool {name}" for name in conditions)
    text = f"agraph (float[53] x, {fed}) => (z) {{ {' '.join(rows)} z = Neg({last}) }}"
    model = model_of(text)
    found = analyzed(model, {}, train=False).runtime
    assert found is not None
    peaks = []
    for values in product((0, 1), repeat=6):
        runtime = analyzed(model, dict(zip(conditions, values, strict=True)), train=False).runtime
        assert runtime is not None
        peaks.append(runtime.arena.requested_peak_bytes)
    # The peak is in a branch that returns 53 floats, and counted with the 159 of the other one.
    assert found.requested_peak_upper_bytes == max(peaks) + (159 - 53) * 4
    assert found.requested_peak_lower_bytes is not None
    assert found.requested_peak_lower_bytes <= min(peaks)


CHOICE = """agraph (float[53] x, bool c) => (y) <float one = {1}> {
    y = If (c) <
        then_branch = four () => (a) { t = Concat<axis = 0>(x, x, x, x)
            s = ReduceSum<keepdims = 0>(t)  a = Add(s, x) },
        else_branch = none () => (b) { b = Add(one, x) }
    >
}"""
"""Both branches return 53 floats; one concatenates four times as many first."""
INPUT_BYTES, WEIGHT_BYTES, Y_BYTES = 53 * 4 + 1, 4, 53 * 4
LEAST_BYTES = INPUT_BYTES + WEIGHT_BYTES + Y_BYTES
MOST_BYTES = LEAST_BYTES + 4 * Y_BYTES + 4
"""The sum's 4 bytes are alive beside what it sums."""


def test_a_branch_has_two_ends_although_all_sizes_are_known() -> None:
    analysis = onnxmem.analyze(model_of(CHOICE))
    assert (analysis.status, analysis.total_bytes) == ("ok", MOST_BYTES)
    row = analysis.to_dict()["data_dependent"]
    assert isinstance(row, dict)
    assert (row["dims"], row["nodes"]) == ([], ["If_0"])
    assert (row["total_lower_bytes"], row["total_upper_bytes"]) == (LEAST_BYTES, MOST_BYTES)
    assert "data_dependent" not in onnxmem.analyze(model_of(CHOICE), values={"c": 1}).to_dict()


@pytest.mark.parametrize(
    ("budget_bytes", "verdict"),
    [
        (MOST_BYTES, "fits"),
        (MOST_BYTES - 1, "unknown"),
        (LEAST_BYTES, "unknown"),
        (LEAST_BYTES - 1, "does not fit"),
    ],
)
def test_a_budget_between_two_branches_depends_on_the_data(budget_bytes: int, verdict: str) -> None:
    fit = onnxmem.analyze(model_of(CHOICE), budget_bytes=budget_bytes).fit
    assert fit is not None
    assert fit.verdict == verdict
    assert fit.depends_on_data == (verdict == "unknown")


def test_a_session_has_two_ends_too() -> None:
    request = request_of(
        model_of(CHOICE.replace("53", "5300003")),
        Settings(runtimes=("ort-cpu",), graph="raw", asks_onnxruntime=False),
    )
    found = assess([request], FitRequest(memory_bytes=1, basis=Basis.ORT_CPU))
    least_bytes, most_bytes = found.footprint.total_bytes, found.footprint.upper_bytes
    assert most_bytes is not None
    assert most_bytes - least_bytes > 4 * 5300003 * 4
    verdicts = [
        found.compared(limit_bytes).verdict
        for limit_bytes in (least_bytes - 1, least_bytes, most_bytes - 1, most_bytes)
    ]
    # At the most it is met within the figure's own error.
    assert verdicts == ["does not fit", "unknown", "unknown", "tight"]
    assert found.compared(2 * most_bytes).verdict == "fits"
    assert [each.code for each in found.doubts_at(most_bytes - 1)] == ["data_dependent"]


def test_a_training_step_takes_the_smaller_branch_at_least() -> None:
    text = CHOICE.replace("<float one", "<float[53] w, float one").replace(
        "y = If", "v = Mul(x, w)  y = If"
    )
    text = text.replace("(x, x, x, x)", "(v, v, v, v)").replace("(s, x)", "(s, v)")
    model = model_of(text.replace("(one, x)", "(one, v)"))
    analysis = onnxmem.analyze(model, train=True)
    row = analysis.to_dict()["data_dependent"]
    assert isinstance(row, dict)
    peaks = [
        onnxmem.analyze(model, train=True, values={"c": c}).results.training_peak_bytes
        for c in (0, 1)
    ]
    most_bytes = row["training_peak_upper_bytes"]
    assert (None in peaks, isinstance(most_bytes, int)) == (False, True)
    assert row["training_peak_lower_bytes"] == peaks[0]
    # A step saves what either branch writes, so the most is more than one of them.
    assert sorted([*peaks, most_bytes]) == [*peaks, most_bytes]


SCANNED = """agraph (float[11] x, int64 n) => (y) <int64 k = {-5}, bool on = {1}> {
    y = Loop (k, on, x) <body = body (int64 i, bool going, float[D] h) => (after, again) {
        after = Identity(going)  t = Concat<axis = 0>(h, h, h)  r = Relu(t)
        s = ReduceSum<keepdims = 1>(r)  again = Mul(h, s) }>
}"""


@pytest.mark.parametrize("limit", [-5, 0])
def test_a_body_of_no_iterations_writes_nothing(limit: int) -> None:
    text = SCANNED.replace("-5", str(limit))
    analysis = onnxmem.analyze(model_of(text))
    # The inputs, the constants, and y.
    assert analysis.total_bytes == (11 * 4 + 8) + (8 + 1) + 11 * 4
    assert "data_dependent" not in analysis.to_dict()
    once = onnxmem.analyze(model_of(SCANNED.replace("-5", "1"))).total_bytes
    assert once is not None
    # What Concat writes, which Relu overwrites, and the sum.
    assert once == analysis.total_bytes + 3 * 11 * 4 + 4


@pytest.mark.parametrize(
    ("constant", "made", "more_bytes"),
    [("bool c = {0}", "", 0), ("bool d = {1}", "c = Not(d)", 1)],
)
def test_a_constant_decides_a_branch(constant: str, made: str, more_bytes: int) -> None:
    text = CHOICE.replace(", bool c)", ")").replace("= {1}>", f"= {{1}}, {constant}>")
    analysis = onnxmem.analyze(model_of(text.replace("y = If", f"{made}  y = If")))
    assert "data_dependent" not in analysis.to_dict()
    # The constant takes the byte of the input; what is computed of it has a byte of its own.
    assert analysis.total_bytes == LEAST_BYTES + more_bytes


@pytest.mark.parametrize("code", ["data_dependent", "partial"])
@pytest.mark.parametrize(
    ("budget_bytes", "end"), [(MOST_BYTES, "at most "), (MOST_BYTES - 1, "at least ")]
)
def test_the_end_of_an_accepted_figure_is_named(budget_bytes: int, end: str, code: str) -> None:
    analysis = onnxmem.analyze(model_of(CHOICE), budget_bytes=budget_bytes, accepted=[code])
    fit = analysis.fit
    assert fit is not None
    assert fit.verdict == "fits"
    assert fit.taken_bytes == (MOST_BYTES if end == "at most " else LEAST_BYTES)
    assert end_text(fit.assessment, fit.requested) == end
    assert answer(analysis).summary.partition("takes ")[2].startswith(end)
    takes, *_ = assessment_lines(fit.assessment, fit.requested)
    assert takes.remark.startswith(f"{end.strip()}; ")
    assert largest_text(fit).endswith(", by the least that a run takes")


def test_a_figure_that_no_data_decide_has_no_end() -> None:
    fit = onnxmem.analyze(
        model_of(CHOICE), values={"c": 0}, budget_bytes=MOST_BYTES, accepted=["data_dependent"]
    ).fit
    assert fit is not None
    assert end_text(fit.assessment, fit.requested) == ""
    assert "," not in largest_text(fit)
    row = fit.table[0]
    assert replace(row, lower_bytes=1).is_at_most
    # Both ends are one where the data decide neither.
    equal = replace(row, lower_bytes=row.num_bytes)
    assert not equal.is_at_most
    assert "data" not in largest_text(replace(fit, table=(equal,)))


def test_fit_says_that_its_figure_is_the_most() -> None:
    fit = onnxmem.analyze(model_of(CHOICE), budget_bytes=MOST_BYTES).fit
    assert fit is not None
    takes, *_ = assessment_lines(fit.assessment, fit.requested)
    assert takes.remark.startswith("at most; ")


WIDE = """agraph (float[N,53] x, bool c) => (y) <int64[1] axis = {1}> {
    y = If (c) <
        then_branch = four () => (a) { t = Concat<axis = 1>(x, x, x, x)
            a = ReduceSum<keepdims = 0>(t, axis) },
        else_branch = one () => (b) { u = Relu(x)  b = ReduceSum<keepdims = 0>(u, axis) }
    >
}"""
"""At batch N, a branch has 53 or 4 x 53 floats for each sample, and returns one."""


@pytest.mark.parametrize(("accepted", "largest"), [([], "four/t"), (["data_dependent"], "one/u")])
def test_what_limits_the_batch_is_at_the_end_that_was_compared(
    accepted: list[str], largest: str
) -> None:
    fit = onnxmem.analyze(model_of(WIDE), budget_bytes=10_000, accepted=accepted).fit
    assert fit is not None
    assert fit.max_batch is not None
    assert fit.limiting is not None
    sample_bytes = 4 * (53 + (4 if largest == "four/t" else 1) * 53 + 1)
    assert fit.max_batch.number == (10_000 - 1 - 8) // sample_bytes
    first, *_ = fit.limiting.peak.tensors
    assert first.label.endswith(largest.split("/")[1])
    assert first.size_bytes == fit.max_batch.number * (sample_bytes - 4 * 54)


def test_the_answer_has_both_ends() -> None:
    text = answer(onnxmem.analyze(model_of(CHOICE))).summary
    assert text.startswith("at least 429 B, at most 1.25 KiB at batch 53 (fixed in the file): ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CHOICE, "which branch of 'If_0' runs"),
        (
            """agraph (float[53] x, int64 n) => (y) <bool on = {1}> {
                y = Loop(n, on, x) <body = iteration(int64 i, bool c, float[53] h) => (co, ho)
                    { co = Identity(c)  ho = Relu(h) }>
            }""",
            "how many iterations 'Loop_0' runs",
        ),
        (
            """agraph (float[53] x, bool b, bool[53] m) => (y, z) {
                y = If(b) <then_branch = t() => (u) { u = Concat<axis = 0>(x, x) },
                           else_branch = e() => (v) { v = Relu(x) }>
                z = Compress<axis = 0>(x, m)
            }""",
            "'z:0', and which branch of 'If_0' runs",
        ),
    ],
)
def test_the_data_decide_a_branch_or_a_number_of_iterations(text: str, words: str) -> None:
    found = onnxmem.analyze(model_of(text)).results.data_text()
    assert found == f"the data of a run decide {words}"

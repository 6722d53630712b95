"""Figures of observed runs: exact for the shapes of a run, whatever else the data may decide."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from data_dependent import requested_peak_of_run
from data_dependent_models import MODELS
from graphs import SEQUENCE, model_of
from jsonschema import Draft202012Validator
from paths import ROOT

import onnxmem
from onnxmem.analysis.fitting.assessing import FitRequest, fit
from onnxmem.analysis.fitting.footprints import request_of
from onnxmem.analysis.fitting.verdicts import Basis, Verdict
from onnxmem.cli import main
from onnxmem.model.binding import Request
from onnxmem.model.files import load
from onnxmem.model.observed import NO_RUN, ObservedFileError, read_observed
from onnxmem.report.verdict import largest_text
from onnxmem.runtimes.from_settings import predict
from onnxmem.runtimes.onnxruntime.memory import SessionRequest
from onnxmem.settings import Settings
from onnxmem.units import format_bytes

pytest.importorskip("onnxruntime")
ROWS = """agraph (float[13,7] x, bool[13] c) => (float[rows,7] y) {
    z = Compress<axis = 0>(x, c)  w = Mul(z, z)  y = Sub(w, z)
}"""
INPUTS_BYTES = 13 * 7 * 4 + 13
ROW_BYTES = 3 * 7 * 4
QUICK = ("regions of a detector", "decoding loop", "length regulator")
HEAD = (
    '{"schema": "onnxmem.observed", "schema_version": "1.0", "model": "m", "digest": "d", '
    '"inputs": {}, "runs": '
)
SCHEMAS = ROOT / "onnxmem" / "report" / "schema"


@pytest.fixture(autouse=True)
def _observes_here(request: pytest.FixtureRequest) -> None:
    """Observe in the process of the tests, but where the child is what a test is about."""
    if "in_a_child" not in request.fixturenames:
        request.getfixturevalue("without_children")


@pytest.fixture
def in_a_child() -> None:
    """Observe as a user does."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    onnx.save(model_of(ROWS), tmp_path / "rows.onnx")
    return str(tmp_path / "rows.onnx")


@pytest.fixture
def inputs(tmp_path: Path) -> Callable[[int], str]:
    """A file of inputs that keep some of the rows."""

    def written(rows: int) -> str:
        name = str(tmp_path / f"{rows}.npz")
        np.savez(name, x=np.ones((13, 7), np.float32), c=np.arange(13) < rows)
        return name

    return written


@pytest.mark.usefixtures("in_a_child")
def test_figures_are_those_of_the_runs(path: str, inputs: Callable[[int], str]) -> None:
    seen = onnxmem.observe(path, inputs=[inputs(rows) for rows in (1, 3, 3, 8)])
    found = onnxmem.analyze(path, observed=seen).to_dict()["observed"]
    assert isinstance(found, dict)
    least, median, most = (INPUTS_BYTES + rows * ROW_BYTES for rows in (1, 3, 8))
    assert found["runs"] == 4
    assert found["total_bytes"] == {"min": least, "median": median, "p99": most, "max": most}
    assert found["dims"] == {"z:0": {"min": 1, "median": 3, "p99": 8, "max": 8}}


def test_the_process_of_observed_runs_is_in_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The warning says what runs took, and the headline and the rows below it are of one run."""
    path = str(tmp_path / "rows.onnx")
    onnx.save(model_of(ROWS.replace(",7]", ",70000]")), path)
    words = [path, "--runtime", "ort-cpu", "--emulate-optimizer"]
    for rows in (0, 13):
        npz = str(tmp_path / f"{rows}.npz")
        np.savez(npz, x=np.ones((13, 70000), np.float32), c=np.arange(13) < rows)
        words += ["--observe", npz]
    assert main([*words, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["models"][0]
    (spreads,) = row["observed"]["runtimes"]
    process = spreads["process_bytes"]
    assert row["runtimes"][0]["process_bytes"] == process["min"] < process["max"]
    assert main(words) == 0
    text = capsys.readouterr().out
    least, most = format_bytes(process["min"]), format_bytes(process["max"])
    answer = " ".join(text.split())
    assert f"in 2 observed runs the process took {least} to {most}" in answer
    assert "--observe N" not in answer
    assert f"Takes at least {most} " in answer
    (title,) = (line for line in text.splitlines() if line.startswith("onnxruntime, CPU"))
    assert title.split() == [
        "onnxruntime,",
        "CPU,",
        "observed",
        f"{process['max'] / 2**20:.2f}",
        "MiB",
    ]


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
)
def test_the_requested_peak_of_an_observed_run_is_exact(name: str, tmp_path: Path) -> None:
    model, npz = tmp_path / "model.onnx", str(tmp_path / "inputs.npz")
    onnx.save(MODELS[name].proto(), model)
    feeds: dict[str, Any] = MODELS[name].feeds(np.random.default_rng(1))
    np.savez(npz, **feeds)
    seen = onnxmem.observe(model, inputs=[npz])
    assert seen.runs[0] != NO_RUN
    session = SessionRequest(observed=seen.runs[0])
    predicted = predict(load(str(model)), Request(shapes=dict(seen.inputs)), session)
    measured = onnxmem.measure(model, inputs=npz)
    assert predicted.arena.requested_peak_bytes == measured.requested_peak_bytes
    row = onnxmem.analyze(model, observed=seen, runtimes=["ort-cpu"]).to_dict()["observed"]
    assert isinstance(row, dict)
    (spread,) = row["runtimes"]
    assert spread["requested_peak_bytes"]["max"] == measured.requested_peak_bytes


def test_each_iteration_and_branch_is_observed(tmp_path: Path) -> None:
    text = """agraph (float[4] x, int64 n) => (s, y) <bool going = {1}, float zero = {0}> {
        z, s = Loop(n, going, x) <
            body = iteration(int64 i, bool c, float[K] h) => (co, ho, so) {
                co = Identity(c)  ho = Concat<axis = 0>(h, h)  so = Identity(c)
            }
        >
        total = ReduceSum<keepdims = 0>(z)  big = Greater(total, zero)
        y = If (big) <
            then_branch = one () => (a) { a = Concat<axis = 0>(z, z) },
            else_branch = two () => (b) { b = Relu(z) }
        >
    }"""
    onnx.save(model_of(text), tmp_path / "loop.onnx")
    npz = str(tmp_path / "3.npz")
    np.savez(npz, x=np.ones(4, np.float32), n=np.int64(3))
    (run,) = onnxmem.observe(tmp_path / "loop.onnx", inputs=[npz]).runs
    # What is left out is as in the graph, which has the shapes of the first iteration.
    seen = [each.shapes.get("ho") for each in run.bodies["z"].runs]
    assert seen == [None, (16,), (32,)]
    assert run.bodies["y"].attribute == "then_branch"
    assert run.shapes["y"] == (64,)


def test_a_saved_file_has_the_same_figures(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "seen.json"
    command = [path, "--observe", "3", "--save-observed", str(saved), "--json"]
    assert main(command) == 0
    made = json.loads(capsys.readouterr().out)["models"][0]["observed"]
    document = json.loads(saved.read_text())
    schema = json.loads((SCHEMAS / "observed-1.0.schema.json").read_text())
    Draft202012Validator(schema).validate(document)
    assert main([path, "--observed", str(saved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["observed"] == made
    assert onnxmem.analyze(path, observed=saved).to_dict()["observed"] == made
    assert made["sources"] == ["random 0", "random 1", "random 2"]
    seen = read_observed(str(saved))
    assert seen.to_dict() == document


def test_the_text_calls_them_observed(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([path, "--observe", "2", "-v"]) == 0
    text = capsys.readouterr().out
    assert "Observed in 2 runs, of these inputs; others may take more or less" in text


def test_a_verdict_rests_on_what_is_proved(
    path: str, inputs: Callable[[int], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run is a proof that it takes what it took, and none that others take no more."""
    saved = tmp_path / "seen.json"
    saved.write_text(onnxmem.observe(path, inputs=[inputs(3), inputs(8)]).to_json())
    seen, most = (INPUTS_BYTES + rows * ROW_BYTES for rows in (8, 13))
    commands = ["--budget"], ["--device"], ["--budget-peak"]
    for command, (flag,) in zip(((), ("fit",), ("check",)), commands, strict=True):
        for limit_bytes, extra, code in (
            (seen - 1, [], 1),
            (seen, [], 3),
            (seen, ["--accept", "data_dependent"], 0),
            (seen - 1, ["--accept", "data_dependent"], 1),
            (most - 1, [], 3),
            (most, [], 0),
        ):
            words = [*command, path, flag, f"{limit_bytes}B", "--observed", str(saved), *extra]
            assert (main(words), words) == (code, words)
            text = " ".join(capsys.readouterr().out.split())
            names_runs = "the largest of 2 observed runs" in text
            assert names_runs or (code == 0 and not extra)


def test_the_figure_of_a_session_is_that_of_the_largest_run(
    path: str, inputs: Callable[[int], str]
) -> None:
    figures = []
    for rows in ((3,), (13,), (3, 13)):
        seen = onnxmem.observe(path, inputs=[inputs(each) for each in rows])
        setup = FitRequest(memory_bytes=2**40, basis=Basis.ORT_CPU)
        result = fit([request_of(path, Settings(), [seen])], setup)
        assert (result.verdict, result.depends_on_data) == (Verdict.UNKNOWN, True)
        figures.append(result.footprint.least_bytes)
    assert figures[0] < figures[1] == figures[2]


@pytest.mark.parametrize("order", [(3, 8), (8, 3)])
def test_runs_of_two_files_are_joined(
    path: str, inputs: Callable[[int], str], tmp_path: Path, order: tuple[int, int]
) -> None:
    """The larger run decides, whichever file is named first."""
    words = ["check", path, "--budget-peak", f"{INPUTS_BYTES + 8 * ROW_BYTES - 1}B"]
    for rows in order:
        saved = tmp_path / f"{rows}.json"
        saved.write_text(onnxmem.observe(path, inputs=[inputs(rows)]).to_json())
        words += ["--observed", str(saved)]
    assert main([*words, "--accept", "data_dependent"]) == 1


def test_runs_of_two_shapes_are_not_joined() -> None:
    model = model_of("agraph (float[N,3] x) => (y) { y = NonZero(x) }")
    seen = [onnxmem.observe(model, shapes={"x": (rows, 3)}) for rows in (4, 5)]
    with pytest.raises(ObservedFileError, match="had x at 4,3 and at 5,3"):
        onnxmem.analyze(model, observed=seen)


def test_runs_are_of_their_own_dims(path: str) -> None:
    model = model_of("agraph (float[N,3] x) => (y) { y = NonZero(x) }")
    found = onnxmem.analyze(model, observed=onnxmem.observe(model, shapes={"x": (4, 3)}))
    assert found.observed is not None
    assert found.at(batch=5).observed is None
    # To name the dims that the runs had is to ask for nothing else.
    assert found.at(batch=4).observed == found.observed
    same = onnxmem.analyze(path, observed=onnxmem.observe(path))
    assert same.at().observed == same.observed


def test_runs_of_other_models_are_a_warning_beside_several(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, other = tmp_path / "seen.json", str(tmp_path / "other.onnx")
    saved.write_text(onnxmem.observe(path).to_json())
    onnx.save(model_of(ROWS.replace("Mul", "Add")), other)
    assert main(["check", path, other, "--budget-peak", "1GiB", "--observed", str(saved)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.count("none of the observed runs is of this model") == 1


def test_a_budget_of_a_file_names_runs_and_upper_ends(
    path: str, inputs: Callable[[int], str], tmp_path: Path
) -> None:
    (tmp_path / "seen.json").write_text(onnxmem.observe(path, inputs=[inputs(8)]).to_json())
    seen = INPUTS_BYTES + 8 * ROW_BYTES
    config = tmp_path / "onnxmem.toml"
    for keys, code in (
        ("", 3),
        ('observed = ["seen.json"]', 1),
        ('max = { "z:0" = 7 }', 0),
        ('observed = ["nowhere.json"]', 2),
    ):
        config.write_text(f"[[budgets]]\npeak = {seen - 1}\n{keys}\n")
        assert (main(["check", path, "--config", str(config)]), keys) == (code, keys)


def test_runs_of_another_model_are_one_line(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "seen.json"
    saved.write_text(onnxmem.observe(path).to_json())
    onnx.save(model_of(ROWS.replace("Mul", "Add")), tmp_path / "other.onnx")
    assert main([str(tmp_path / "other.onnx"), "--observed", str(saved)]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "of another model" in line


@pytest.mark.parametrize("name", ["z:0", "z", "rows"])
def test_runs_beyond_a_limit_of_the_user_are_one_line(
    path: str, inputs: Callable[[int], str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that took more proves that the limit is wrong."""
    for command in ([path], ["fit", path, "--device", "1GiB"]):
        assert main([*command, "--observe", inputs(5), "--max", f"{name}=4"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        words = f"an observed run had {35 if name == 'z' else 5} there"
        assert f"--max {name}=4: {words}; raise it, or omit these runs" in line
        most = "35" if name == "z" else "5"
        assert main([*command, "--observe", inputs(5), "--max", f"{name}={most}"]) == 0
        capsys.readouterr()


def test_random_runs_have_other_shapes_and_integers_that_the_model_accepts() -> None:
    """An index of a table of three rows is 0 or 1, as tokens of any number are refused."""
    text = """agraph (float[13,7] x, bool[13] c, int64[17] i) => (y, rows)
        <float[3,2] table = {1, 2, 3, 4, 5, 6}> {
        y = Compress<axis = 0>(x, c)  j = Abs(i)  rows = Gather(table, j)
    }"""
    found = onnxmem.observe(model_of(text), inputs=["12"])
    kept = {run.shapes["y"][0] for run in found.runs}
    assert len(kept) > 4
    assert 13 in kept  # the first run has the inputs of `measure`: all are kept


def test_measure_keeps_the_shapes_of_more_runs(
    path: str, inputs: Callable[[int], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(tmp_path / "seen.json")
    more = ["--observe", inputs(5), "--observe", inputs(2)]
    words = ["measure", path, "--inputs", inputs(3), *more]
    assert main([*words, "--save-observed", saved]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Observed in 3 runs, of these inputs" in text
    least, median, most = (INPUTS_BYTES + rows * ROW_BYTES for rows in (2, 3, 5))
    assert f"at most in these runs; at least {least} B, median {median} B, p99 {most} B" in text
    assert "ort-cpu, peak requested by kernels" in text
    assert main([*words, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["models"][0]
    spread = row["observed"]["runtimes"][0]["requested_peak_bytes"]
    assert spread["median"] == row["measured"]["requested_peak_bytes"] < spread["max"]
    assert [run.shapes["z"][0] for run in read_observed(saved).runs] == [3, 5, 2]


def test_runs_at_other_dims_are_one_line() -> None:
    model = model_of("agraph (float[N,3] x) => (y) { y = NonZero(x) }")
    seen = onnxmem.observe(model, shapes={"x": (4, 3)})
    assert onnxmem.analyze(model, observed=seen).observed is not None
    with pytest.raises(ObservedFileError, match="x at 4,3"):
        onnxmem.analyze(model, observed=seen, batch=5)


def test_a_model_without_data_dependent_dims_has_none() -> None:
    model = model_of("agraph (float[2] x) => (y) { y = Relu(x) }")
    seen = onnxmem.observe(model)
    assert seen.runs == (NO_RUN,)
    assert "observed" not in onnxmem.analyze(model, observed=seen).to_dict()


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"schema": "onnxmem.observed", "schema_version": "2.0"}',
        HEAD + "[]}",
        HEAD + '[{"source": "s", "shapes": {"x": [-1]}}]}',
        HEAD + '[{"source": "s", "shapes": {"x": 1}}]}',
        HEAD + '[{"source": 1}]}',
        HEAD + '[{"source": "s", "bodies": {"x": {"graph": "b", "runs": [{"times": 1e12}]}}}]}',
        HEAD + '[{"source": "s", "bodies": {"x": {"graph": "b", "runs": [{"times": 9999999}]}}}]}',
    ],
)
def test_a_malformed_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "seen.json").write_text(text)
    with pytest.raises(ObservedFileError):
        read_observed(str(tmp_path / "seen.json"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--save-observed", "seen.json"], "no effect without runs; add --observe"),
        (["--observe", "0"], "a model is observed in 1 to 10,000 runs"),
        (
            ["--observe", "nowhere.npz"],
            "nowhere.npz cannot be opened: No such file or directory; check the path",
        ),
        (["--observed", "nowhere.json"], "nowhere.json"),
    ],
)
def test_flags_that_cannot_work_are_one_line(
    path: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([path, *flags]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_the_batch_of_observed_runs_is_not_fixed_and_other_dims_stay() -> None:
    model = model_of("""agraph (float[N,S,3] x, float[S] z) => (y) <float[3,7] w> {
        y = MatMul(x, w)
    }""")
    observed = onnxmem.observe(model, shapes={"x": (2, 5, 3), "z": (5,)})
    plain = onnxmem.analyze(model, batch=2, dims={"S": 5}, budget_bytes=10_007).fit
    found = onnxmem.analyze(model, observed=observed, budget_bytes=10_007).fit
    assert plain is not None
    assert found is not None
    assert plain.max_batch is not None
    assert found.max_batch == plain.max_batch
    # 84 bytes of weights and 20 of z; a sample of 5 rows has 3 inputs and 7 outputs each.
    assert found.max_batch.number == (10_007 - 84 - 20) // (5 * (3 + 7) * 4)
    request = request_of(model, Settings(), [observed])
    assert request.settings.shapes == {"x": (2, 5, 3), "z": (5,)}
    assert request.at(11).results.bound.binding.shapes == {"x": (11, 5, 3), "z": (5,)}
    longest = fit([request], FitRequest(memory_bytes=10_007, dim="S")).max_batch
    assert longest is not None
    assert longest.number == (10_007 - 84) // (2 * (3 + 7) * 4 + 4)


@pytest.mark.parametrize(
    ("shapes", "dim", "word"),
    [
        ({"x": (2, 5, 3)}, None, "batch"),
        ({"x": (2, 5, 3)}, "S", "S"),
        ({"z": (5,)}, "S", "S"),
        ({"z": (5,)}, None, ""),
        ({"x": ("N", 5, 3)}, None, ""),
        ({"x": ("N", 5, 3)}, "S", "S"),
        ({"x": (2, "S", 3)}, "S", ""),
    ],
)
def test_a_requested_shape_fixes_its_dims(
    shapes: dict[str, tuple[int | str, ...]], dim: str | None, word: str
) -> None:
    model = model_of("agraph (float[N,S,3] x, float[S] z) => (y) { y = Neg(x) }")
    request = request_of(model, Settings(shapes=shapes))
    found = fit([request], FitRequest(memory_bytes=10_007, dim=dim))
    assert found.is_fixed == bool(word)
    assert (found.max_batch is None, found.table == ()) == (bool(word), bool(word))
    fixed = f"unknown: {word} is fixed by --shape"
    assert (largest_text(found) == fixed) == bool(word)


def test_beside_observed_runs_no_other_batch_is_compared_by_the_least() -> None:
    """What is accepted is what runs of one batch took: 11 rows take no less than 5 of a run did."""
    model = model_of("""agraph (float[N,7] x, bool[N] c) => (float[rows,7] y) {
        z = Compress<axis = 0>(x, c)  y = Neg(z)
    }""")
    observed = onnxmem.observe(model, batch=5)
    request = request_of(model, Settings(), [observed])
    budgets = (
        fit([request], FitRequest(memory_bytes=1_009, accepted=frozenset(accepted)))
        for accepted in ((), ("data_dependent",))
    )
    strict, accepting = (each.max_batch for each in budgets)
    assert strict is not None
    assert accepting is not None
    # A row of 28 bytes and its condition: x and z are live, then z and y.
    assert accepting.number == strict.number == 1_009 // (28 + 1 + 2 * 28)


@pytest.mark.parametrize("iterations", [1, 3, 8])
def test_sequences_of_a_run_are_those_of_its_iterations(
    iterations: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No shape of a sequence is in a profile: it follows from the tensors that were added."""
    path, npz = str(tmp_path / "sequence.onnx"), str(tmp_path / "inputs.npz")
    onnx.save(model_of(SEQUENCE), path)
    np.savez(npz, x=np.ones((3, 4), np.float32), n=np.int64(iterations))
    row = 3 * 4 * 4
    # In the Loop, beside x, n and constants: e, the last of w and what it is added to, the
    # iterations' sequence and the Loop's.
    inside = row + row + 2 * row * (1 + iterations) + 8
    taken = row + 8 + 16 + inside
    for limit, code in ((taken, 3 if iterations < 8 else 0), (taken - 1, 1)):
        assert main([path, "--observe", npz, "--budget", f"{limit}B", "--json"]) == code
        found = json.loads(capsys.readouterr().out)["models"][0]
        assert found["observed"]["total_bytes"]["max"] == taken


def test_the_first_iteration_counts_where_later_ones_are_smaller(tmp_path: Path) -> None:
    """Its shapes are those of the graph, which a run does not repeat."""
    model = model_of("""agraph (float[64] x, int64 n) => (y)
        <int64[1] zero = {0}, int64[1] end = {-16}> {
        y = Loop(n, , x) <
            body = iteration (int64 i, bool c, float[K] v) => (going, after) {
                going = Identity(c)  w = Exp(v)  u = Neg(w)  after = Slice(u, zero, end)
            }
        >
    }""")
    taken = []
    for count in (1, 2, 3):
        npz = str(tmp_path / f"{count}.npz")
        np.savez(npz, x=np.ones(64, np.float32), n=np.int64(count))
        observed = onnxmem.observe(model, inputs=[npz])
        found = onnxmem.analyze(model, observed=observed)
        (run,) = found.request.observed_runs
        assert run.results.graph.tensors["Loop_0/body/w"].shape == (64,)
        assert found.observed is not None
        assert found.observed.total_bytes is not None
        taken.append(found.observed.total_bytes.most)
    # A later iteration has less: only what the Loop returns is 16 elements fewer each time.
    assert taken == [taken[0], taken[0] - 16 * 4, taken[0] - 2 * 16 * 4]


HALVES = """agraph (float16[40] s, float16[40,5] x) => (float16[n,5] y) <float zero = {0.0}> {
    th = Cast<to = 10>(zero)  m = Greater(s, th)  c = Compress<axis = 0>(x, m)  y = Exp(c)
}"""


@pytest.mark.parametrize("graph", ["raw", "ort-all"])
def test_a_run_of_halves_is_exact_and_its_optimized_graph_may_lack_tensors(
    graph: str, tmp_path: Path
) -> None:
    """Kernels without halves compute in floats, and the optimizer removes casts to and fro."""
    model = model_of(HALVES)
    draws = np.random.default_rng(3)
    feeds = {
        "s": draws.normal(0, 1, 40).astype(np.float16),
        "x": draws.normal(0, 1, (40, 5)).astype(np.float16),
    }
    fed: dict[str, Any] = {**feeds}
    np.savez(tmp_path / "run.npz", **fed)
    seen = onnxmem.observe(model, inputs=[str(tmp_path / "run.npz")])
    analysis = onnxmem.analyze(
        model, observed=seen, runtimes=("ort-cpu",), graph=graph, asks_onnxruntime=False
    )
    assert analysis.observed is not None
    if graph == "raw":
        requested = requested_peak_of_run(model, feeds, tmp_path)
        assert analysis.observed.runtimes["ort-cpu"].most == requested

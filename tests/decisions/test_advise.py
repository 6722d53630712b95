"""Advice on a session's settings: what each would take, in which order, and the Python for it."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from golden_text import assert_golden
from models_on_disk import CONVNET, HOSTILE, MYSTERY, write_model
from predicted_runtimes import OWN, choice_of, runtime_of
from session_graphs import GAP, gap_session, session_of

from onnxmem import Settings
from onnxmem.cli import main
from onnxmem.errors import Finding, ModelFileError
from onnxmem.model.files import ModelFile
from onnxmem.report.advice import render_advice
from onnxmem.report.sections.runtimes import advice_line
from onnxmem.runtimes.from_settings import Advice
from onnxmem.runtimes.onnxruntime.advice import Choice, choice, combined_choices, single_choices
from onnxmem.runtimes.onnxruntime.prediction import ReplayError, arena_figures
from onnxmem.runtimes.onnxruntime.providers import CPU, CUDA, ArenaInitializers, ExecutionProvider
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.units import format_bytes

Capture = pytest.CaptureFixture[str]
DEFAULT = SessionOptions()
SINGLE_CHANGES = (
    SessionOptions(enable_mem_reuse=False),
    SessionOptions(enable_mem_pattern=False),
    SessionOptions(arena_extend_strategy="kSameAsRequested"),
    SessionOptions(shrinks_arena=True),
    SessionOptions(disable_prepacking=True),
    SessionOptions(fixed_dims=True),
    SessionOptions(level="off"),
    SessionOptions(level="basic"),
    SessionOptions(level="extended"),
)


def told(choices: tuple[Choice, ...]) -> list[tuple[int, str]]:
    return [(choice.resident_bytes, ", ".join(choice.changes)) for choice in choices]


# What settings take, computed by hand.


def test_combinations_are_ordered_by_bytes_then_by_number_of_changes() -> None:
    """Inference 1 requests a of 4036, s of 4 and c of 8012 bytes, at multiples of 256.

    Pattern off, reuse on: these bytes are touched, 12,052, and y lies in one of them.
    Both off: e goes behind t, to 256, and so touches [0, 4292) and c: 12,304.
    Pattern on: run 2 takes a block of 4096 + 256 + 8192 from the start, and y behind it: 12,548.
    Grown as requested, that block is a region of its own: 12,052 + 12,544.
    """
    assert told(combined_choices(gap_session(), DEFAULT)) == [
        (12_052, "enable_mem_pattern=False"),
        (12_052, "enable_mem_pattern=False, kSameAsRequested"),
        (12_052, "enable_mem_reuse=False, enable_mem_pattern=False, kSameAsRequested"),
        (12_304, "enable_mem_reuse=False, enable_mem_pattern=False"),
        (12_548, ""),
        (12_548, "enable_mem_reuse=False"),
        (24_596, "kSameAsRequested"),
        (24_596, "enable_mem_reuse=False, kSameAsRequested"),
    ]


def test_memory_of_a_gpu_is_reserved_by_region() -> None:
    """By default one of a MiB, in which the weights, 16 bytes, lie as well.

    As requested: 4096, 256 and 8192 for the buffers, 256 for each weight and for the copy of the
    input, and 12,544 for the block.
    """
    assert told(combined_choices(gap_session(), DEFAULT, CUDA)) == [
        (13_312 - 16, "enable_mem_pattern=False, kSameAsRequested"),
        (13_312 - 16, "enable_mem_reuse=False, enable_mem_pattern=False, kSameAsRequested"),
        (2 * 12_544 + 768 - 16, "kSameAsRequested"),
        (2 * 12_544 + 768 - 16, "enable_mem_reuse=False, kSameAsRequested"),
        (2**20 - 16, ""),
        (2**20 - 16, "enable_mem_pattern=False"),
        (2**20 - 16, "enable_mem_reuse=False"),
        (2**20 - 16, "enable_mem_reuse=False, enable_mem_pattern=False"),
    ]


def test_settings_whose_session_exceeds_the_limit_are_left_out() -> None:
    text = """agraph (float[524288] x) => (float[524288] y) {
        a = Exp(x)  b = Concat <axis = 0> (a, a)  y = ReduceMax(b) }"""
    shapes = {"x": (2**19,), "a": (2**19,), "b": (2**20,), "y": ()}
    session = session_of(text.replace("float[524288] y", "y"), shapes, {"x": (2**19,)})
    found = []
    for limit_bytes in range(2**20, 2**25, 2**20):
        limited = replace(DEFAULT, gpu_mem_limit_bytes=limit_bytes)
        found.append(len(combined_choices(session, limited, CUDA)))
    assert (found[0], found[-1]) == (0, 8)
    assert found == sorted(found)
    assert any(0 < count < 8 for count in found)


def test_the_lowest_arena_limit_of_a_gpu_is_a_setting() -> None:
    """The first run asks for 2 and 4 MiB, in regions of 2 and 4, and the second for a block of 6.

    That block wants a region of 8, and under a limit of 12 MiB gets one of the 6 that are left.
    """
    text = """agraph (float[524288] x) => (float[524288] y) {
        a = Exp(x)  b = Concat <axis = 0> (a, a)  y = ReduceMax(b) }"""
    shapes = {"x": (2**19,), "a": (2**19,), "b": (2**20,), "y": ()}
    session = session_of(text.replace("float[524288] y", "y"), shapes, {"x": (2**19,)})
    choices = single_choices(lambda _: session, DEFAULT, CUDA)
    own = next(choice for choice in choices if not choice.changes)
    (limited,) = (c for c in choices if "gpu_mem_limit" in "".join(c.changes))
    assert limited.changes == (f"gpu_mem_limit={limited.options.gpu_mem_limit_bytes}",)
    limit_bytes = limited.options.gpu_mem_limit_bytes
    assert limit_bytes is not None
    assert limited.figures.held_steady_bytes <= limit_bytes < own.figures.held_steady_bytes
    less = replace(DEFAULT, gpu_mem_limit_bytes=limit_bytes - 2**20)
    with pytest.raises(ReplayError, match="the arena needs more than"):
        arena_figures(session, less, CUDA)
    assert limited.lines == (
        "# the limit covers cuDNN's workspaces too: add them",
        f'providers = [("CUDAExecutionProvider", {{"gpu_mem_limit": "{limit_bytes}"}})]',
    )


def test_weights_in_the_regions_are_not_counted_as_savings(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = ArenaInitializers((101,), (2 * 2**20,))
    monkeypatch.setattr(type(CPU), "packing", lambda *_: packed)
    assert (12_548, "") in told(combined_choices(gap_session(), DEFAULT))


def test_changes_are_relative_to_the_current_settings() -> None:
    options = SessionOptions(enable_mem_reuse=False, enable_mem_pattern=False)
    choices = combined_choices(gap_session(), options)
    assert (12_304, "") in told(choices)
    assert (12_548, "enable_mem_reuse=True, enable_mem_pattern=True") in told(choices)
    (back,) = (c for c in choices if c.changes == ("enable_mem_reuse=True",))
    assert back.lines == ("options.enable_mem_reuse = True",)
    grown = SessionOptions(arena_extend_strategy="kSameAsRequested")
    (back,) = (
        c for c in combined_choices(gap_session(), grown) if c.changes == ("kNextPowerOfTwo",)
    )
    assert back.lines[3] == 'growth = onnxruntime.OrtArenaCfg({"arena_extend_strategy": 0})'


def test_each_setting_alone_equals_a_session_opened_with_it() -> None:
    asked = []

    def graph_of(options: SessionOptions) -> object:
        asked.append(options)
        return gap_session()

    choices = single_choices(graph_of, DEFAULT, CPU, {"N": 1})  # type: ignore[arg-type]
    assert asked == [DEFAULT, *SINGLE_CHANGES]
    assert told(choices) == [
        (12_052, "enable_mem_pattern=False"),
        (12_548, ""),
        (12_548, "enable_mem_reuse=False"),
        (12_548, "arena shrinkage after each run"),
        (12_548, "disable_prepacking"),
        (12_548, "fixed dims"),
        (12_548, "ORT_DISABLE_ALL"),
        (12_548, "ORT_ENABLE_BASIC"),
        (12_548, "ORT_ENABLE_EXTENDED"),
        (24_596, "kSameAsRequested"),
    ]


def test_without_symbols_no_dims_are_fixed_and_no_combination_repeats() -> None:
    options = SessionOptions(enable_mem_reuse=False, level="off")
    choices = single_choices(lambda _: gap_session(), options)
    names = [", ".join(choice.changes) for choice in choices]
    assert sorted(names) == sorted(
        [
            *("", "enable_mem_pattern=False", "kSameAsRequested", "disable_prepacking"),
            *("arena shrinkage after each run", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"),
            "ORT_ENABLE_ALL",
        ]
    )


def test_shrinkage_frees_what_no_inference_needs() -> None:
    shrinks = SessionOptions(shrinks_arena=True, arena_extend_strategy="kSameAsRequested")
    made = choice(gap_session(), DEFAULT, shrinks, CPU)
    assert made.changes == ("kSameAsRequested", "arena shrinkage after each run")
    # The weights, which are reserved, and the region of y: the caller has it during the shrink.
    assert made.figures.held_steady_bytes == 16 + 256
    assert made.resident_bytes == 12_548  # the block, and y


# The Python that sets them.


def lines_of(other: SessionOptions, provider: ExecutionProvider = CPU) -> tuple[str, ...]:
    return choice(gap_session(), DEFAULT, other, provider, {"N": 3, "it's": 5}).lines


@pytest.mark.parametrize("provider", [CPU, CUDA])
@pytest.mark.parametrize("other", SINGLE_CHANGES, ids=str)
def test_the_printed_lines_are_python(other: SessionOptions, provider: ExecutionProvider) -> None:
    lines = lines_of(other, provider)
    assert lines
    compile("\n".join(lines), "<advice>", "exec")


def test_symbols_have_their_values() -> None:
    assert lines_of(SessionOptions(fixed_dims=True)) == (
        "options.add_free_dimension_override_by_name('N', 3)",
        'options.add_free_dimension_override_by_name("it\'s", 5)',
    )
    fixed = SessionOptions(fixed_dims=True)
    (line,) = choice(gap_session(), fixed, DEFAULT, CPU, {"N": 3}).lines
    assert line.startswith("# no ")


def test_a_hostile_symbol_stays_a_name() -> None:
    made = choice(gap_session(), DEFAULT, SessionOptions(fixed_dims=True), CPU, {HOSTILE: 3})
    (line,) = made.lines
    assert line.isprintable()
    assert eval(line.partition("name(")[2].partition(", 3")[0]) == HOSTILE  # noqa: S307


def test_lines_for_a_gpu_are_provider_options() -> None:
    grown = SessionOptions(arena_extend_strategy="kSameAsRequested", shrinks_arena=True)
    provider, options, entry = lines_of(grown, CUDA)
    assert provider == (
        'providers = [("CUDAExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})]'
    )
    assert options == "run_options = onnxruntime.RunOptions()"
    assert '"gpu:0"' in entry


_PROGRAM = """
import sys
import numpy
import onnxruntime
options = onnxruntime.SessionOptions()
run_options, providers = None, ["CPUExecutionProvider"]
{lines}
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=providers)
for _ in range(2):
    (y,) = session.run(None, {{"x": numpy.ones((1,), numpy.float32)}}, run_options)
print(y.shape, {read})
"""
_EVERYTHING = """\
options.get_session_config_entry("session.use_env_allocators"),
options.get_session_config_entry("session.disable_prepacking"),
run_options.get_run_config_entry("memory.enable_memory_arena_shrinkage"),
options.graph_optimization_level
"""


@pytest.mark.measure
@pytest.mark.parametrize(
    ("other", "read", "value"),
    [
        (SessionOptions(enable_mem_reuse=False), "options.enable_mem_reuse", "False"),
        (SessionOptions(enable_mem_pattern=False), "options.enable_mem_pattern", "False"),
        (
            SessionOptions(
                enable_mem_reuse=False,
                enable_mem_pattern=False,
                arena_extend_strategy="kSameAsRequested",
                shrinks_arena=True,
                disable_prepacking=True,
                fixed_dims=True,
                level="basic",
            ),
            _EVERYTHING,
            "1 1 cpu:0 GraphOptimizationLevel.ORT_ENABLE_BASIC",
        ),
    ],
    ids=["reuse", "pattern", "all"],
)
def test_a_session_opens_and_runs_with_the_printed_lines(
    tmp_path: Path, other: SessionOptions, read: str, value: str
) -> None:
    """In a new process, because a registered arena stays registered."""
    pytest.importorskip("onnxruntime")
    write_model(tmp_path / "gap.onnx", GAP)
    program = _PROGRAM.format(lines="\n".join(lines_of(other)), read=read)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "gap.onnx")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"(1,) {value}\n"


# As text.

BEST = choice_of(
    3_000_017,
    "enable_mem_reuse=False",
    "enable_mem_pattern=False",
    "kSameAsRequested",
    lines=("options.enable_mem_reuse = False", "options.enable_mem_pattern = False"),
)
WORSE = choice_of(9_000_011, "kSameAsRequested", lines=("growth = 1",))
FINDING = Finding("emulated_optimizer", "onnxruntime is not installed")


def test_choices_are_printed_as_a_table() -> None:
    runtime = runtime_of(advice=(BEST, OWN, WORSE), findings=(FINDING,))
    shrinks = choice_of(5_000_011, "arena shrinkage after each run", lines=("run = 1",))
    text = render_advice("net.onnx", Advice(runtime, (shrinks, replace(OWN), WORSE)))
    assert_golden(text, "advice.txt")
    assert max(map(len, text.splitlines())) <= 100


def test_settings_that_are_already_best_have_no_lines() -> None:
    text = render_advice("net.onnx", Advice(runtime_of(advice=(OWN, WORSE)), ()))
    assert "THE BEST" not in text
    assert advice_line(runtime_of(advice=(OWN, WORSE))) is None


def test_the_first_line_has_the_saving() -> None:
    line = advice_line(runtime_of(advice=(BEST, OWN)))
    assert line is not None
    assert line.startswith("enable_mem_reuse=False, enable_mem_pattern=False, kSameAsRequested: ")
    assert line.endswith("2.86 MiB resident in the arena instead of 5.72 MiB (-50 %)")


def test_a_saving_of_zero_bytes_has_no_percentage_line() -> None:
    runtime = runtime_of(advice=(choice_of(0), choice_of(0, "kSameAsRequested")))
    assert advice_line(runtime) is None
    assert "+0 %   kSameAsRequested" in render_advice("net.onnx", Advice(runtime, ()))


def test_hostile_names_are_escaped() -> None:
    runtime = runtime_of(advice=(OWN,), findings=(Finding("unknown_scratch", HOSTILE),))
    text = render_advice(f"{HOSTILE}.onnx", Advice(runtime, ()))
    assert text.replace("\n", "").isprintable()


# As a command.


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Settings]]:
    """Records the requests for advice, which is replaced by a fixed result."""
    monkeypatch.chdir(tmp_path)
    for name in ("net.onnx", "other.onnx", "bad.onnx"):
        write_model(tmp_path / name)
    requests: list[tuple[str, Settings]] = []

    def advise(file: ModelFile, settings: Settings) -> Advice:
        requests.append((file.path, settings))
        if file.path == "bad.onnx":
            message = "no model\n"
            raise ModelFileError(message)
        (name,) = settings.runtimes
        runtime = runtime_of(name=name, advice=(BEST, OWN), findings=(FINDING,))
        return Advice(runtime, (OWN, WORSE))

    monkeypatch.setattr("onnxmem.runtimes.from_settings.advise", advise)
    return requests


def test_flags_become_settings(asked: list[tuple[str, Settings]]) -> None:
    line = "advise net.onnx net.onnx --batch 5 --dim S=7 --shape image:5,3,16,16 --runtime ort-cuda"
    line += " --graph ort-basic --fixed-dims --cuda-context 3MiB --cuda-workspace 5B"
    line += " --value rate=16000 --value flags=true,false"
    assert main([*line.split(), "--emulate-optimizer"]) == 0
    settings = Settings(
        batch=5,
        dims={"S": 7},
        shapes={"image": (5, 3, 16, 16)},
        values={"rate": (16_000,), "flags": (True, False)},
        runtimes=("ort-cuda",),
        graph="ort-basic",
        fixed_dims=True,
        cuda_context_bytes=3 * 2**20,
        cuda_workspace_bytes=5,
        asks_onnxruntime=False,
        one_of_several=True,
    )
    assert asked == [("net.onnx", settings)] * 2


def test_advice_is_for_the_cpu_by_default(asked: list[tuple[str, Settings]]) -> None:
    main(["advise", "net.onnx"])
    main(
        ["advise", "net.onnx", *("--runtime ort-cuda --runtime ort-cpu --runtime ort-cuda".split())]
    )
    assert asked == [
        ("net.onnx", Settings(runtimes=(name,))) for name in ("ort-cpu", "ort-cuda", "ort-cpu")
    ]


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("net.onnx", 0),
        ("net.onnx other.onnx --json", 0),
        ("bad.onnx net.onnx", 3),
        ("gone.onnx bad.onnx", 2),
        ("", 2),
        ("net.onnx --measure cpu", 2),
        ("net.onnx --train", 0),
        ("net.onnx --train --emit python", 2),
        ("net.onnx --emit python --json", 2),
        ("net.onnx other.onnx --emit json", 2),
        ("net.onnx --runtime ort-cpu --runtime ort-cuda --emit json", 2),
        ("net.onnx --budget 1B --emit json", 2),
        ("net.onnx --budget 24G", 2),
        ("net.onnx --strict", 2),
        ("net.onnx --runtime trt", 2),
        ("net.onnx --dim N=4 --dim N=5", 2),
        ("net.onnx -o net.onnx --force", 2),
        ("net.onnx -o nowhere/advice.txt", 2),
    ],
)
def test_each_outcome_of_advise_has_its_exit_code(line: str, code: int) -> None:
    assert main(["advise", *line.split()]) == code


@pytest.mark.usefixtures("asked")
def test_a_failing_model_does_not_affect_others(capsys: Capture) -> None:
    assert main(["advise", "net.onnx", "bad.onnx", "gone.onnx", "other.onnx"]) == 2
    out, err = capsys.readouterr()
    assert re.findall(r"(?m)^(\S+)  ort-cpu, graph", out) == ["net.onnx", "other.onnx"]
    assert [line.split(": ")[:3] for line in err.splitlines()] == [
        ["error", "bad.onnx", "model_file"],
        ["error", "gone.onnx", "missing_file"],
    ]


@pytest.mark.usefixtures("asked")
def test_json_has_an_object_for_every_model_and_runtime(capsys: Capture) -> None:
    line = "advise net.onnx bad.onnx --json --runtime ort-cpu --runtime ort-cuda"
    assert main(line.split()) == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["schema_version"]) == ("onnxmem.advice", "1.2")
    rows = document["models"]
    assert [(row["path"], row["runtime"], row["status"]) for row in rows] == [
        ("net.onnx", "ort-cpu", "ok"),
        ("net.onnx", "ort-cuda", "ok"),
        ("bad.onnx", "ort-cpu", "error"),
        ("bad.onnx", "ort-cuda", "error"),
    ]
    assert len({tuple(row) for row in rows}) == 1
    assert rows[0]["combinations"][0] == {
        "changes": ["enable_mem_reuse=False", "enable_mem_pattern=False", "kSameAsRequested"],
        "lines": ["options.enable_mem_reuse = False", "options.enable_mem_pattern = False"],
        "resident_bytes": 3_000_017,
        "requested_peak_bytes": 2_100_013,
        "held_steady_bytes": 8_000_009,
    }
    assert [row["changes"] for row in rows[0]["single_changes"]] == [[], ["kSameAsRequested"]]
    assert [finding["code"] for finding in rows[0]["findings"]] == [
        "unbound_dims",
        "emulated_optimizer",
    ]
    assert rows[2]["error"] == {"code": "model_file", "message": r"no model\x0a"}


@pytest.mark.usefixtures("asked")
def test_the_result_is_written_to_a_file(tmp_path: Path, capsys: Capture) -> None:
    assert main(["advise", "net.onnx", "-o", "advice.txt"]) == 0
    assert capsys.readouterr() == ("", "Wrote advice.txt\n")
    assert (tmp_path / "advice.txt").read_text().startswith("net.onnx  what would lower")


@pytest.mark.parametrize(("flags", "told"), [(["--json"], "12548"), ([], "12.3 KiB")])
def test_advice_without_onnxruntime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, flags: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "gap.onnx", GAP)
    assert main(["advise", "gap.onnx", "--graph", "raw", "--emulate-optimizer", *flags]) == 0
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "budget", "code", "told"),
    [
        (CONVNET, "1GiB", 0, ""),
        (CONVNET, "1KiB", 1, "nothing that is advised meets the budget of 1.00 KiB"),
        (MYSTERY, "1GiB", 3, "whether it fits 1.00 GiB is unknown"),
    ],
)
def test_a_budget_that_nothing_meets_fails(
    model: str, budget: str, code: int, told: str, tmp_path: Path, capsys: Capture
) -> None:
    write_model(tmp_path / "budget.onnx", model)
    words = ["advise", str(tmp_path / "budget.onnx"), "--train", "--basis", "tensors"]
    assert main([*words, "--batch", "2", "--budget", budget]) == code
    assert told in capsys.readouterr().err


@pytest.mark.usefixtures("without_children")
def test_a_session_that_shrinks_may_have_outputs_of_unknown_size(
    tmp_path: Path, capsys: Capture
) -> None:
    """The shrinkage keeps outputs, and one of unknown size has no chunk."""
    rows = "agraph (float[13,7] x) => (y) { y = NonZero(x) }"
    write_model(tmp_path / "rows.onnx", rows)
    assert main(["advise", str(tmp_path / "rows.onnx")]) == 0
    assert "unknown_runtime_tensors" in capsys.readouterr().out


TWO_BRANCHES = """agraph (float[N,101] x, bool c) => (float[a,b] z) {
    y = If (c) <
        then_branch = g1 () => (float[t0,101] t) { t = Concat<axis = 0>(x, x) },
        else_branch = g2 () => (float[e0,101] e) { e = Neg(x) }>
    w = Concat<axis = 0>(y, y)
    z = Neg(w)
}"""
TILED = "agraph (float[N,7] x, int64[2] i) => (a) { n = Tile(x, i) a = Concat<axis = 0>(n, n) }"


@pytest.mark.usefixtures("without_children")
def test_advice_is_on_what_a_run_takes_at_most(tmp_path: Path, capsys: Capture) -> None:
    """At batch 6, y has 2 x 6 rows at most, and w and z twice as many, in which the peak is."""
    path = str(tmp_path / "net.onnx")
    write_model(Path(path), TWO_BRANCHES)
    row_bytes = 4 * 101
    least, most = 6 * (1 + 1) * row_bytes + 1, 6 * (1 + 4 + 4) * row_bytes + 1
    asked = ["advise", path, "--batch", "6", "--budget", str(most - row_bytes)]
    assert main([*asked, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert (row["before_lower_bytes"], row["before_bytes"]) == (least, most)
    assert row["budget"]["is_met"]
    assert main(asked) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"Now, at most {format_bytes(most)}" in words
    assert f"at least {format_bytes(least)}; advice is on what a run takes at most" in words
    assert f"; takes at most {format_bytes(most)}" in words
    assert "at most in three runs, dims at their upper ends" in words


@pytest.mark.usefixtures("without_children")
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "--max n:1=100 --max n:0=100 bounds it"),
        (("--runtime", "ort-cpu"), "no proof gives an allocator's figure an upper end"),
        (("--max", "n:0=9", "--max", "n:1=9", "--runtime", "ort-cpu"), "omit --runtime"),
    ],
)
def test_without_an_upper_end_advice_says_what_settles_it(
    flags: Sequence[str], said: str, tmp_path: Path, capsys: Capture
) -> None:
    path = str(tmp_path / "net.onnx")
    write_model(Path(path), TILED)
    assert main(["advise", path, "--batch", "2", *flags]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "Now, at least" in words
    assert said in words
    assert "unknown weights + inputs" not in words
    assert "session_best" not in words


@pytest.mark.parametrize("workspace", ["8MiB", None], ids=["given", "default"])
def test_the_error_is_that_of_other_commands(
    workspace: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.onnx"
    write_model(path)
    given = () if workspace is None else ("--cublas-workspace", workspace)
    errors = []
    for command in (("fit", "--device", "24GiB"), ("advise",)):
        assert main([command[0], str(path), *command[1:], "--train", *given]) == 0
        text = " ".join(capsys.readouterr().out.split())
        errors.append(re.findall(r"accuracy (\+-\d+ %: .*?) are within it", text))
    assert errors[0]
    assert errors[0] == errors[1]

"""A cache in the report, and the largest batch at each context in ``fit``."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from golden_text import assert_golden
from graphs import model_of
from kv_cache_graphs import CROSS, GROUPED, HYBRID, MERGED, NO_CACHE, SCATTER, growing
from models_on_disk import HOSTILE, write_model
from paths import MODELS

from onnxmem import analyze
from onnxmem.analysis.fitting.assessing import FitRequest
from onnxmem.analysis.fitting.footprints import Deployment, Footprint, footprint_of, request_of
from onnxmem.analysis.fitting.searching import MaxBatch
from onnxmem.analysis.fitting.verdicts import ACCURACIES, Basis, accuracy_of
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.cli import main
from onnxmem.decisions.fit import ContextRow, Contexts, at_context, contexts_of, fit_at
from onnxmem.kv_cache.steps import Step
from onnxmem.report.fit import contexts_lines, contexts_row
from onnxmem.report.sections.cache import cache_sections
from onnxmem.report.terminal import render
from onnxmem.report.text import section_lines
from onnxmem.runtimes.base import RuntimeRun
from onnxmem.settings import Settings

Capture = pytest.CaptureFixture[str]


def section(text: str, context: int | None, batch: int = 2) -> str:
    analysis = analyze(model_of(text), context=context, batch=batch)
    assert analysis.kv_cache is not None
    told = "\n\n".join("\n".join(section_lines(each)) for each in cache_sections(analysis.kv_cache))
    assert told in render(analysis)
    return told + "\n"


def test_the_section_shows_each_kind_of_cache() -> None:
    texts = [
        section(growing(mask="s53"), 100),
        section(GROUPED, 100, batch=1),
        section(HYBRID, 1000),
        section(CROSS, None),
        section(growing(seq="1", total='"past + 1"', mask='"past + 1"'), 64),
        section(MERGED, 8),
    ]
    assert_golden("\n".join(texts), "kv_cache.txt")


def test_a_model_without_a_cache_has_no_section() -> None:
    analysis = analyze(model_of(NO_CACHE))
    assert analysis.kv_cache is None
    assert "Key-value cache" not in render(analysis)


def test_lines_add_up() -> None:
    """The first line of a section is the sum of the next ones: kinds, or the four of a step."""
    for text in (growing(), GROUPED, HYBRID, CROSS):
        memory = analyze(model_of(text), context=77).kv_cache
        assert memory is not None
        for lines in map(section_lines, cache_sections(memory)):
            sizes = [found for line in lines if (found := re.match(r"(.{26}).* ([\d,]+) B", line))]
            labels = [found[1].strip() for found in sizes]
            numbers = [int(found[2].replace(",", "")) for found in sizes]
            end = labels.index("bytes per token") if "bytes per token" in labels else 5
            assert numbers[0] == sum(numbers[1:end])
            assert all(len(line) <= 100 for line in "\n".join(lines).splitlines())


def test_names_of_any_kind_stay_names() -> None:
    model = model_of(growing(layers=1))
    for graph_input in model.graph.input:
        for dim in graph_input.type.tensor_type.shape.dim:
            if dim.dim_param == "past":
                dim.dim_param = HOSTILE
    told = render(analyze(model, context=5))
    assert all(line.isprintable() for line in told.splitlines())


# fit.


def asked(text: str, **settings: object) -> AnalysisRequest:
    return request_of(model_of(text), Settings(asks_onnxruntime=False, **settings))  # type: ignore[arg-type]


def runs(question: AnalysisRequest, step: Step, setup: FitRequest) -> Callable[[int, int], bool]:
    """Whether a context and a batch run, in full and from nothing."""

    def is_met(context: int, batch: int) -> bool:
        demand = footprint_of(question.at_context(context, step).at(batch), setup.basis).demand
        return demand.compared(setup.limit_bytes, ACCURACIES[setup.basis]).verdict.is_met

    return is_met


def assert_proven(found: Contexts, question: AnalysisRequest, setup: FitRequest) -> None:
    """Each number runs and the next does not, by evaluations of their own."""
    for step, reach in found.longest.items():
        at, batch = runs(question, step, setup), found.batch or 1
        assert reach is not None
        assert reach.number is not None
        assert reach.number == 0 or at(reach.number, batch)
        assert not at(reach.number + 1, batch)
        for row in found.rows:
            largest = row.max_batches[step]
            assert largest is not None
            assert largest.number is not None
            assert largest.number == 0 or at(row.context, largest.number)
            assert not at(row.context, largest.number + 1)


@pytest.mark.parametrize("text", [growing(), GROUPED.replace("16", "")])
def test_every_number_of_the_table_is_proven(text: str) -> None:
    question, setup = asked(text), FitRequest(memory_bytes=2 * 10**6)
    found = contexts_of([question], setup, [640])
    assert [row.context for row in found.rows][:3] == [512, 640, 1024]
    assert_proven(found, question, setup)


def test_contexts_of_one_s_own_are_the_rows() -> None:
    found = contexts_of([asked(growing())], FitRequest(memory_bytes=10**6), [300, 7, 300])
    assert [row.context for row in found.rows] == [7, 300]


@pytest.mark.slow
def test_a_session_is_replayed_at_the_contexts_asked_for_alone() -> None:
    question, setup = asked(growing(layers=1)), FitRequest(memory_bytes=10**9, basis=Basis.ORT_CUDA)
    found = contexts_of([question], setup, [64])
    assert [row.context for row in found.rows] == [64]
    assert_proven(found, question, setup)


def test_the_answer_is_that_of_a_decode_step() -> None:
    text, setup = growing(), FitRequest(memory_bytes=10**6, deployment=Deployment(instances=2))
    answer, contexts = fit_at([asked(text, batch=3)], setup, [50])
    by_hand = analyze(model_of(text), batch=3, dims={"past": 49, "seq": 1})
    assert answer.footprint.total_bytes == 2 * (by_hand.total_bytes or 0)
    assert contexts is not None
    assert contexts.batch == 3
    assert answer.max_batch == contexts.rows[0].max_batches[Step.DECODE]


def test_the_verdict_names_the_prefill_beside_the_decode_step(capsys: Capture) -> None:
    """A prompt of 640 tokens has 640 x 640 attention weights, so it takes more than the step."""
    path = str(MODELS / "smollm_cached.onnx")
    cache = analyze(path, batch=3, context=640).kv_cache
    assert cache is not None
    decode, prefill = (
        sum(
            size_bytes or 0
            for size_bytes in (
                *(each.weight_bytes, each.cache_bytes),
                *(each.other_inputs_bytes, each.peak_bytes),
            )
        )
        for each in cache.steps
    )
    assert decode < prefill
    words = ["fit", path, "--batch", "3", "--context", "640"]
    for limit_bytes, verdict in (
        (prefill, "fits"),
        (prefill - 1, "does not fit"),
    ):
        assert main([*words, "--device", f"{limit_bytes}B"]) == 0
        lines = capsys.readouterr().out.splitlines()
        at = next(place for place, line in enumerate(lines) if line.startswith("Verdict"))
        assert lines[at + 1].startswith("  prefill ")
        text = " ".join(" ".join(lines[at + 1 : at + 3]).split())
        assert f"for 640 tokens at once, {verdict}: " in text
        assert main([*words, "--device", f"{limit_bytes}B", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["contexts"]["prefill"] == {
            "context": 640,
            "bytes": prefill,
            "fits": verdict == "fits",
            "verdict": verdict,
        }


def test_a_buffer_ends_where_the_file_says() -> None:
    question = request_of(model_of(SCATTER), Settings())
    found = contexts_of([question], FitRequest(memory_bytes=10**9), [13])
    for reach in found.longest.values():
        assert reach is not None
        assert (reach.number, reach.is_stopped) == (13, True)
    assert any("one shared buffer" in remark for remark in found.remarks)


@pytest.mark.parametrize("runtime", ["ort-cpu", "ort-cuda"])
@pytest.mark.parametrize("step", list(Step))
def test_the_longest_context_of_a_session_is_replayed_from_a_few_walks(
    runtime: str, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prefill has the square of its context; each replay is that of a session made for it."""
    basis = Basis(runtime)
    settings = Settings(batch=3, runtimes=(runtime,), asks_onnxruntime=False, cpu="avx2")
    request = request_of(model_of(growing()), settings)

    def footprint_at(context: int) -> Footprint:
        return footprint_of(at_context([request], context, step)[0], basis)

    setup = FitRequest(memory_bytes=footprint_at(211).total_bytes, basis=basis)
    walked = 0
    session_run = AnalysisRequest.session_run

    def counted(self: AnalysisRequest, name: str) -> RuntimeRun | None:
        nonlocal walked
        walked += 1
        return session_run(self, name)

    monkeypatch.setattr(AnalysisRequest, "session_run", counted)
    found = contexts_of([request], setup, [16]).longest[step]
    assert found is not None
    assert found.number is not None
    assert walked < 60 < found.num_replayed
    accuracy = accuracy_of(basis, settings.recipe)
    for context in (1, 2, 7, 97, found.number, found.number + 1):
        compared = footprint_at(context).demand.compared(setup.limit_bytes, accuracy)
        assert compared.verdict.is_met == (context <= found.number)
    assert found.num_bytes == footprint_at(found.number).total_bytes


def test_a_file_of_one_new_token_has_a_column_of_decode_steps() -> None:
    text = growing(seq="1", total='"past + 1"', mask='"past + 1"')
    found = contexts_of([asked(text)], FitRequest(memory_bytes=10**5), [20])
    assert set(found.longest) == {Step.DECODE}
    assert found.remarks[0].startswith("no prefill figures")


def test_cells_say_what_ends_a_column() -> None:
    rows = tuple(
        ContextRow(context, {Step.DECODE: reach, Step.PREFILL: None})
        for context, reach in (
            (3, MaxBatch(None, 7, None, "bisection")),
            (5, MaxBatch(0, None, 11, "one evaluation")),
            (7, MaxBatch(13, 17, None, "bisection", is_stopped=True)),
        )
    )
    longest = {Step.DECODE: None, Step.PREFILL: None}
    told = "\n".join(contexts_lines(Contexts(rows, None, longest, ("a remark",))))
    for text in ("no limit up to", " none ", "13  (17 B, where the model ends)", "unknown"):
        assert text in told
    assert "Longest context\n" in told
    assert "note: a remark" in told
    assert contexts_lines(None) == []
    row = contexts_row(Contexts(rows, None, longest))
    assert row is not None
    assert row["longest"] == {"decode": None, "prefill": None}


def test_a_model_without_a_batch_has_a_longest_context_alone() -> None:
    text = growing(layers=1).replace("[batch,seq]", "[2,seq]").replace("[batch,", "[2,")
    text = text.replace("int64[2,seq] input_ids", "int64[1,seq] input_ids")
    question = request_of(model_of(text), Settings())
    found = contexts_of([question], FitRequest(memory_bytes=10**6), [16])
    assert (found.batch, found.rows) == (None, ())


@pytest.fixture
def decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return write_model(tmp_path / "decoder.onnx", growing())


def test_fit_shows_a_row_for_each_context(decoder: str, capsys: Capture) -> None:
    assert main(["fit", decoder, "--device", "1MiB", "--context", "1024", "--batch", "2"]) == 0
    assert_golden(capsys.readouterr().out, "fit_contexts.txt")


def test_a_cache_that_no_length_is_given_for_is_told(decoder: str, capsys: Capture) -> None:
    assert main(["fit", decoder, "--device", "1MiB"]) == 3  # its dims are not known
    assert "--context N sets its number of tokens" in capsys.readouterr().out


def test_the_command_in_json(decoder: str, capsys: Capture) -> None:
    flags = ["--device", "1MiB", "--context", "64,128", "--context", "256", "--json"]
    assert main(["fit", decoder, *flags]) == 0
    row = json.loads(capsys.readouterr().out)
    assert [each["context"] for each in row["contexts"]["rows"]] == [64, 128, 256]
    for each in row["contexts"]["rows"]:
        for step in ("decode", "prefill"):
            assert each[step]["bytes"] <= row["limit_bytes"] < each[step]["over_bytes"]


def test_a_ranking_at_a_context_says_that_the_prefill_is_not_in_it(
    decoder: str, capsys: Capture
) -> None:
    assert main(["fit", decoder, "--which-device", "--context", "9"]) == 0
    assert "inference, a decode step without its prefill, batch 1" in capsys.readouterr().out


def test_devices_are_ranked_by_a_decode_step(decoder: str, capsys: Capture) -> None:
    sizes = {}
    for context in ("1", "1000000"):
        flags = ["--which-device", "--runtime", "none", "--context", context, "--json"]
        assert main(["fit", decoder, *flags]) == 0
        devices = json.loads(capsys.readouterr().out)["devices"]
        sizes[context] = next(row["bytes"] for row in devices if row["basis"] == "total")
    assert sizes["1000000"] - sizes["1"] > 240 * 10**6


def test_a_model_without_a_cache_is_told_in_one_line(
    decoder: str, tmp_path: Path, capsys: Capture
) -> None:
    del decoder
    path = write_model(tmp_path / "net.onnx")
    assert main(["fit", path, "--device", "1MiB", "--context", "64"]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "--context" in line]
    assert told == [
        "note: --context has no effect: no key-value cache is recognized among the inputs"
    ]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--context", "0"], "'0' is not a positive integer"),
        (["--context", "5,x"], "'x' is not a positive integer"),
        (["--context", "64", "--dim", "past=3"], "--dim past: --context sets it too"),
        (["--context", "64", "--dim", "past=?"], "--dim past: --context sets it too"),
        (["--context", "64", "--train"], "a training step has no cache"),
    ],
)
def test_what_makes_no_sense_is_refused(
    decoder: str, flags: list[str], told: str, capsys: Capture
) -> None:
    assert main(["fit", decoder, "--device", "1MiB", *flags]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_a_shipped_model(capsys: Capture) -> None:
    """4 layers of 3 heads of 64 in float32; closed form and bisection agree."""
    path = MODELS / "smollm_cached.onnx"
    analysis = analyze(path, batch=2, context=1024)
    assert analysis.kv_cache is not None
    assert analysis.kv_cache.bytes_per_token == 2 * 4 * 3 * 64 * 4
    by_hand = analyze(path, batch=2, dims={"past": 1023, "sequence": 1})
    assert analysis.total_bytes == by_hand.total_bytes
    question, setup = request_of(path, Settings()), FitRequest(memory_bytes=2**31)
    found = contexts_of([question], setup, [1024, 4096])
    assert_proven(found, question, setup)
    assert main(["fit", str(path), "--device", "2GiB", "--context", "1024,4096"]) == 0
    assert "Longest context, at batch 1" in capsys.readouterr().out

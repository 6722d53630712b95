"""Changes of a server: each is the replay of its settings or of its requests."""

import json
from pathlib import Path

import pytest
from graphs import CHAIN, model_of
from models_on_disk import write_model
from paths import MODELS

import onnxmem
from onnxmem.analysis.fitting.footprints import request_of
from onnxmem.cli import main
from onnxmem.decisions import simulate as simulating
from onnxmem.decisions.serving_advice import ServingAdvice, advise_serving
from onnxmem.decisions.simulate import ServedModel, Serving, simulate
from onnxmem.model.requests import drawn, listed_requests
from onnxmem.settings import Settings

REQUESTS = drawn("N=1..4,M=1000..200000", 24, 5)


def advised(serving: Serving | None = None) -> ServingAdvice:
    settings = Settings(runtimes=("ort-cpu",), asks_onnxruntime=False)
    return advise_serving(request_of(model_of(CHAIN), settings), REQUESTS, serving or Serving())


ADVICE = advised()


def test_each_setting_has_the_bytes_of_its_own_simulation() -> None:
    settings = [each for each in (ADVICE.own, *ADVICE.changes) if each.is_setting]
    assert len(settings) == 8
    for each in settings:
        found = onnxmem.simulate(
            model_of(CHAIN), REQUESTS.rows, options=each.options, asks_onnxruntime=False
        )
        assert each.reserved_peak_bytes == found.arena_reserved_peak_bytes, each.name
        assert each.reserved_bytes == found.arena_reserved_bytes, each.name
        assert each.process_peak_bytes == found.process_peak_bytes, each.name


def test_a_simulation_and_its_advice_plan_a_shape_once_and_say_what_they_are_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulating, "node_seconds", None)  # no runs at once: nothing asks for times
    settings = Settings(runtimes=("ort-cpu",), asks_onnxruntime=False)
    request, serving, said = request_of(model_of(CHAIN), settings), Serving(), list[str]()
    model = ServedModel.of(request, REQUESTS, serving.options, said.append)
    simulate(request, REQUESTS, serving, model)
    assert advise_serving(request, REQUESTS, serving, model) == ADVICE
    planned = [text for text in said if text.startswith("planning")]
    # The first one also before any is served, by the session and by the one without reuse.
    assert len(planned) - 2 == len(model.runs.graphs) == len(set(planned))
    assert {f"replaying requests with {each.name}" for each in ADVICE.changes} <= {*said}
    assert "replaying requests in the order largest first" in said


def test_padding_serves_every_request_at_a_length_with_room_for_it_and_counts_its_flops() -> None:
    padded = [each for each in ADVICE.changes if each.padded]
    assert len(padded) == 4
    for each in padded:
        assert each.padded is not None
        lengths = {row["M"] for row in each.padded}
        assert 3 <= len(lengths) <= 6
        assert all(
            row["N"] == given["N"] and row["M"] >= given["M"]
            for row, given in zip(each.padded, REQUESTS.rows, strict=True)
        )
        found = onnxmem.simulate(model_of(CHAIN), each.padded, asks_onnxruntime=False)
        assert each.reserved_peak_bytes == found.arena_reserved_peak_bytes
        elements = sum(row["N"] * row["M"] for row in each.padded)
        given_elements = sum(row["N"] * row["M"] for row in REQUESTS.rows)
        assert each.more_flops == pytest.approx(elements / given_elements - 1, rel=0.01)


def test_the_best_settings_take_the_least_process_and_change_only_the_session() -> None:
    best = ADVICE.best_setting
    settings = [each for each in (ADVICE.own, *ADVICE.changes) if each.is_setting]
    assert best.process_peak_bytes == min(each.process_peak_bytes for each in settings)
    assert bool(best.lines) == (best.options != ADVICE.own.options)
    peaks = [each.process_peak_bytes for each in ADVICE.ranked]
    assert peaks == sorted(peaks)
    assert len(peaks) == len(ADVICE.changes) + 1


def test_reuse_of_buffers_is_turned_off_where_it_holds_them_longer_than_it_saves() -> None:
    """Measured of it, four requests of two images: 294.5 MB of process in place of 311.2."""
    settings = Settings(runtimes=("ort-cpu",), asks_onnxruntime=False)
    path, requests = str(MODELS / "unet.onnx"), listed_requests([{"N": 2}])
    advice = advise_serving(request_of(path, settings), requests, Serving())
    change = next(each for each in advice.changes if each.name == "enable_mem_reuse=False")
    assert change.lines == ("options.enable_mem_reuse = False",)
    assert not advice.best_setting.options.enable_mem_reuse
    found = onnxmem.simulate(path, requests.rows, options=change.options, asks_onnxruntime=False)
    assert change.process_peak_bytes == found.process_peak_bytes < advice.own.process_peak_bytes


def test_one_shape_has_no_lengths_to_pad_to() -> None:
    settings = Settings(runtimes=("ort-cpu",), asks_onnxruntime=False)
    request = request_of(model_of(CHAIN), settings)
    advice = advise_serving(request, listed_requests([{"N": 2, "M": 3}] * 4), Serving())
    assert not any(each.padded for each in advice.changes)


def test_the_command_shows_the_advice_and_emits_code_that_compiles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "chain.onnx")
    write_model(tmp_path / "chain.onnx", CHAIN)
    words = ["simulate", path, "--requests", "N=1..4,M=1000..200000", "--num-requests", "24"]
    words += ["--seed", "5", "--emulate-optimizer"]
    assert main([*words, "--advise"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 28
    assert any(line.startswith("as it is") for line in lines)
    assert any("arena shrinkage after each run" in line for line in lines)
    assert any("memory.enable_memory_arena_shrinkage" in line for line in lines)
    assert main([*words, "--advise", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert [each["arena_reserved_peak_bytes"] for each in row["advice"]] == [
        each.reserved_peak_bytes for each in ADVICE.ranked
    ]
    assert main([*words, "--emit", "python"]) == 0
    code = capsys.readouterr().out
    compile(code, "settings.py", "exec")
    for line in ADVICE.best_setting.lines:
        assert line in code
    assert main([*words, "--emit", "python", "--json"]) == 2
    assert "two forms of one result" in capsys.readouterr().err


def test_sessions_of_a_program_in_c_may_share_the_weights_and_their_packed_copies() -> None:
    text = """agraph (float[N,4099] x) => (float[N,2053] y) <float[4099,2053] w> {
        y = MatMul(x, w)
    }"""
    settings = Settings(runtimes=("ort-cpu",), asks_onnxruntime=False)
    request, requests = request_of(model_of(text), settings), listed_requests([{"N": 3}] * 4)
    weight_bytes = 4 * 4099 * 2053
    shared = {}
    for count in (1, 4):
        advice = advise_serving(request, requests, Serving(sessions=count))
        found = [each for each in advice.changes if "AddInitializer" in " ".join(each.lines)]
        assert all(not each.is_setting and not each.padded for each in found)
        shared[count] = advice, found
    assert not shared[1][1]
    advice, (change,) = shared[4]
    best = advice.best_setting
    saved_bytes = best.process_peak_bytes - change.process_peak_bytes
    # Three packed copies less, and the program's own copy more.
    assert saved_bytes == pytest.approx(2 * weight_bytes, rel=0.02)
    # The container's copy is in no arena.
    assert best.reserved_peak_bytes - change.reserved_peak_bytes > 4 * weight_bytes
    assert change.reserved_bytes >= 0
    assert advice.ranked[0] == change
    assert all(line.startswith("#") for line in change.lines)

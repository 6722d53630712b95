"""A server's requests in a child: what its arenas and its process take after each."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from graphs import CHAIN, model_of
from models_on_disk import write_model
from without_children import work_without_children

import onnxmem
from onnxmem.cli import main
from onnxmem.errors import Finding
from onnxmem.measuring.measuring import MeasureSettings
from onnxmem.measuring.served import ServedLoad, ServedMeasurement, measure_requests
from onnxmem.model.requests import RequestsError, drawn, listed_requests
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions, Strategy

pytest.importorskip("onnxruntime")

LOAD = ServedLoad(drawn("N=1..4,M=1000..200000", 20, 3))


def measured(
    load: ServedLoad = LOAD, options: SessionOptions | None = None, model: str = CHAIN
) -> ServedMeasurement:
    chosen = MeasureSettings(options=options or SessionOptions())
    found = measure_requests(model_of(model), load, settings=chosen)
    assert not isinstance(found, Finding), found.message
    return found


@pytest.mark.usefixtures("without_children")
@pytest.mark.parametrize(
    "options",
    [
        SessionOptions(),
        SessionOptions(enable_mem_pattern=False),
        SessionOptions(arena_extend_strategy="kSameAsRequested"),
    ],
    ids=["default", "no pattern", "same as requested"],
)
def test_the_arena_after_each_request_is_the_simulated_one(options: SessionOptions) -> None:
    compare_with_simulated(options)


def test_an_arena_that_shrinks_after_each_request_is_the_simulated_one() -> None:
    compare_with_simulated(SessionOptions(shrinks_arena=True))


def compare_with_simulated(options: SessionOptions) -> None:
    found = measured(options=options)
    simulated = onnxmem.simulate(
        model_of(CHAIN), LOAD.requests.rows, options=options, asks_onnxruntime=False
    )
    assert [each.dims for each in found.timeline] == list(LOAD.requests.rows)
    assert [each.reserved_bytes for each in found.timeline] == [
        each.reserved_bytes for each in simulated.timeline
    ]
    assert found.arena_reserved_peak_bytes == simulated.arena_reserved_peak_bytes


@pytest.mark.slow
def test_any_order_of_requests_is_simulated_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 sessions of one process, each with requests of its own: all are exact."""
    work_without_children(monkeypatch, tmp_path)
    draw = Random(27)  # noqa: S311 - no secret
    differing = []
    for number in range(200):
        rows = [
            {"N": draw.randint(1, 7), "M": draw.randint(1, 100_003)}
            for _ in range(draw.randint(1, 24))
        ]
        options = SessionOptions(enable_mem_pattern=number % 2 == 0)
        requests = listed_requests(rows)
        found = measured(ServedLoad(requests), options)
        expected = onnxmem.simulate(
            model_of(CHAIN), requests.rows, options=options, asks_onnxruntime=False
        )
        if [each.reserved_bytes for each in found.timeline] != [
            each.reserved_bytes for each in expected.timeline
        ]:
            differing.append(number)
    assert differing == []


@pytest.mark.usefixtures("without_children")
def test_two_sessions_have_an_arena_each() -> None:
    rows = [{"N": 2, "M": 70001}] * 4
    one = measured(ServedLoad(listed_requests(rows)))
    two = measured(ServedLoad(listed_requests(rows), sessions=2))
    assert two.arena_reserved_bytes == 2 * one.arena_reserved_bytes
    assert two.loaded_bytes == 2 * one.loaded_bytes


def test_requests_at_once_end_each_and_the_process_holds_what_they_took() -> None:
    found = measured(ServedLoad(LOAD.requests, concurrency=3, sessions=2))
    ended = sorted(tuple(each.dims.values()) for each in found.timeline)
    assert ended == sorted(tuple(row.values()) for row in LOAD.requests.rows)
    assert found.process_peak_bytes is not None
    assert found.process_bytes is not None
    assert found.process_floor_bytes is not None
    assert found.process_peak_bytes >= found.process_bytes > found.process_floor_bytes
    assert found.input_bytes >= 4 * 200_000


@pytest.mark.usefixtures("without_children")
def test_sessions_that_grow_by_what_is_requested_have_an_arena_each() -> None:
    options = SessionOptions(arena_extend_strategy="kSameAsRequested")
    found = measured(ServedLoad(LOAD.requests, sessions=2), options)
    expected = onnxmem.simulate(
        model_of(CHAIN), LOAD.requests.rows, sessions=2, options=options, asks_onnxruntime=False
    )
    assert [each.reserved_bytes for each in found.timeline] == [
        each.reserved_bytes for each in expected.timeline
    ]


@pytest.mark.parametrize("growth", ["kNextPowerOfTwo", "kSameAsRequested"])
def test_sessions_may_have_one_arena(growth: Strategy) -> None:
    options = SessionOptions(arena_extend_strategy=growth, shares_arena=True)
    found = measured(ServedLoad(LOAD.requests, sessions=3), options)
    simulated = [
        onnxmem.simulate(
            model_of(CHAIN),
            LOAD.requests.rows,
            sessions=3,
            options=replace(options, shares_arena=shares),
            asks_onnxruntime=False,
        )
        for shares in (True, False)
    ]
    shared, apart = ([each.reserved_bytes for each in one.timeline] for one in simulated)
    assert [each.reserved_bytes for each in found.timeline] == shared
    assert shared[-1] < apart[-1]
    assert found.loaded_bytes == simulated[0].loaded_bytes


@pytest.mark.usefixtures("without_children")
def test_a_run_that_fails_is_a_finding() -> None:
    model = """agraph (float[N] x, int64[1] i) => (float[M] y) { y = Gather(x, i) }"""
    chosen = MeasureSettings(values={"i": (7,)})
    found = measure_requests(model_of(model), ServedLoad(drawn("N=2..4", 3)), settings=chosen)
    assert isinstance(found, Finding)
    assert found.code == "measure_failed"
    with pytest.raises(RequestsError, match="has no dim K"):
        measure_requests(model_of(model), ServedLoad(drawn("K=2..4", 3)))


@pytest.mark.usefixtures("without_children")
def test_the_command_writes_both_beside_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "chain.onnx")
    write_model(tmp_path / "chain.onnx", CHAIN)
    words = ["measure", path, "--requests", "N=1..4,M=1000..20000", "--num-requests", "12"]
    assert main([*words, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    served = row["served"]
    assert served["num_requests"] == len(served["timeline"]) == 12
    for each in served["timeline"]:
        assert each["arena_reserved_bytes"] == each["predicted_arena_reserved_bytes"]
    assert served["figures"]["arena_reserved_bytes"]["error_percent"] == 0
    assert served["figures"]["process_bytes"]["predicted_bytes"] > 0
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 25
    assert "12 requests of 12 shapes" in " ".join(lines[:2])


@pytest.mark.parametrize(
    "words",
    [
        ["--concurrency", "2"],
        ["--requests", "N=1..4", "--runs", "5"],
        ["--requests", "N=1..4", "--layers"],
    ],
    ids=" ".join,
)
def test_a_flag_without_effect_is_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "chain.onnx", CHAIN)
    assert main(["measure", str(tmp_path / "chain.onnx"), *words]) == 2
    assert "no effect without" in capsys.readouterr().err

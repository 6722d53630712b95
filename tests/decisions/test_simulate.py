"""A server's requests replayed: the order decides, and what is proven of every order."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from graphs import graph_of, model_of
from hypothesis import given
from hypothesis import strategies as st
from models_on_disk import write_model

import onnxmem
from onnxmem.allocators.bfc_arena import BfcArena
from onnxmem.analysis.fitting.footprints import request_of
from onnxmem.cli import main
from onnxmem.decisions.simulate import Process, ServedModel, Serving, Simulation, node_seconds
from onnxmem.model.requests import RequestsError, listed_requests
from onnxmem.report.simulation import render_simulation, verdict
from onnxmem.runtimes.onnxruntime.served import Dims
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.settings import Settings, num_cores

CHAIN = """agraph (float[N,M] x) => (float[N,M] y) <float[1] w = {1}> {
    a = Concat <axis = 1> (x, x, x)
    b = ReduceMax <axes = [1]> (a)
    c = Mul(x, b)
    d = Concat <axis = 1> (c, c)
    e = ReduceMax <axes = [1]> (d)
    y = Add(c, e)
}"""
"""The buffers of a, c and d grow with both dims; all sizes at the primes below are distinct."""
PRIMES = (7, 1009, 20011, 70001, 150001)


def model(options: SessionOptions | None = None) -> ServedModel:
    request = request_of(model_of(CHAIN), Settings(runtimes=("ort-cpu",), asks_onnxruntime=False))
    return ServedModel.of(request, listed_requests([{"N": 1, "M": 1}]), options or SessionOptions())


PLAIN = model()
SHRINKING = model(SessionOptions(shrinks_arena=True))
EXACT = SessionOptions(arena_extend_strategy="kSameAsRequested")


def dims_of(*numbers: tuple[int, int]) -> list[Dims]:
    return [(("N", n), ("M", m)) for n, m in numbers]


def reserved_by(served: ServedModel, ordered: Sequence[Dims]) -> int:
    """The arena after requests, by itself: no state is compared, and nothing is kept."""
    arena: BfcArena = served.runs.planned.loaded_arena()
    stored: dict[int, Dims] = {}
    for dims in ordered:
        (_, n), (_, m) = dims
        first = stored.get(n ^ m)
        run = served.runs.run(dims, () if first is None else (first,))
        sizes = run.sizes.fixed_bytes.tolist()
        for event in run.returned.events.tolist():
            if event >= 0 and sizes[event]:
                arena.malloc(event, sizes[event])
            elif event < 0 and sizes[~event]:
                arena.free(~event)
        if served.runs.planned.options.shrinks_arena:
            arena.shrink()
        for number in run.outputs:
            arena.free(number)
        stored.setdefault(n ^ m, dims)
    return arena.reserved_bytes


def test_every_order_of_four_requests_is_that_of_an_arena_alone() -> None:
    requests = dims_of((1, 20011), (3, 70001), (2, 150001), (1, 70001))
    found = [Process(PLAIN.runs, Serving()).peak_of(each, 0) for each in permutations(requests)]
    assert found == [reserved_by(PLAIN, each) for each in permutations(requests)]
    assert len(set(found)) > 1


requests_of_primes = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from(PRIMES)), min_size=1, max_size=12
)


@given(requests_of_primes)
def test_the_arena_never_falls_without_shrinkage(numbers: list[tuple[int, int]]) -> None:
    process, reserved = Process(PLAIN.runs, Serving()), []
    for _ in process.serve(dims_of(*numbers), 0):
        reserved.append(process.now[0].reserved_bytes)  # noqa: PERF401 - read at each end
    assert reserved == sorted(reserved)
    assert reserved[-1] == reserved_by(PLAIN, dims_of(*numbers))


@given(requests_of_primes)
def test_with_shrinkage_the_regions_of_outputs_are_left(numbers: list[tuple[int, int]]) -> None:
    process = Process(SHRINKING.runs, Serving())
    for _ in process.serve(dims_of(*numbers), 0):
        assert process.now[0].reserved_peak_bytes >= process.now[0].reserved_bytes
    assert process.now[0].reserved_bytes == reserved_by(SHRINKING, dims_of(*numbers))


def shared(concurrency: int = 1, sessions: int = 3) -> Serving:
    options = SessionOptions(shares_arena=True)
    return Serving(concurrency=concurrency, sessions=sessions, options=options)


@given(requests_of_primes)
def test_sessions_of_one_arena_that_run_in_turn_reserve_what_one_does(
    numbers: list[tuple[int, int]],
) -> None:
    """A pattern is stored by each session for itself, so each serves the same request first."""
    requests = [dims for dims in dims_of(*numbers) for _ in range(3)]
    process = Process(PLAIN.runs, shared())
    assert list(process.serve(requests, 0)) == requests
    (arena,) = process.arenas
    assert process.now[0].reserved_bytes == arena.reserved_bytes
    assert arena.reserved_bytes == reserved_by(PLAIN, dims_of(*numbers))


def test_runs_at_once_of_sessions_with_one_arena_end_each() -> None:
    requests = dims_of((1, 20011), (3, 70001), (2, 150001), (1, 70001), (2, 20011))
    process = Process(PLAIN.runs, shared(2, 2))
    assert sorted(process.serve(requests, 0)) == sorted(requests)
    assert process.arenas[0].in_use_bytes == 0
    apart = Process(PLAIN.runs, Serving(concurrency=2, sessions=2))
    assert len(list(apart.serve(requests, 0))) == len(requests)
    assert len(apart.arenas) == 2


def simulated(
    requests: str | list[dict[str, int]],
    *,
    num_requests: int | None = None,
    seed: int | None = None,
    concurrency: int = 1,
    sessions: int = 1,
) -> Simulation:
    return onnxmem.simulate(
        model_of(CHAIN),
        requests,
        num_requests=num_requests,
        seed=seed,
        concurrency=concurrency,
        sessions=sessions,
        asks_onnxruntime=False,
    )


@given(requests_of_primes, st.permutations(range(5)))
def test_what_is_bounded_stays_so_in_any_order(
    numbers: list[tuple[int, int]], order: list[int]
) -> None:
    found = simulated([{"N": n, "M": m} for n, m in numbers])
    shapes = list(dict.fromkeys(dims_of(*numbers)))
    later = [shapes[index] for index in order if index < len(shapes)] * 2
    if found.is_bounded:
        bytes_later = reserved_by(PLAIN, [*dims_of(*numbers), *later, *shapes])
        assert bytes_later == found.arena_reserved_peak_bytes
    assert found.arena_reserved_bytes == reserved_by(PLAIN, dims_of(*numbers))


def test_a_range_whose_largest_request_has_not_come_still_grows() -> None:
    for seed in range(6):
        found = simulated("N=1..64,M=1..100000", num_requests=1, seed=seed)
        (row,) = found.requests.rows
        drawn, largest = dims_of((row["N"], row["M"])), dims_of((64, 100_000))
        if reserved_by(PLAIN, drawn + largest) > found.arena_reserved_peak_bytes:
            assert found.is_bounded is False
            break
    else:
        pytest.fail("each draw is the largest")
    assert found.num_replayed < found.requests.num_in_range


def test_no_figure_is_called_the_most_while_another_order_reserves_more() -> None:
    requests = [{"N": n, "M": m} for n, m in ((1, 20011), (3, 70001), (2, 150001), (1, 70001))]
    said = set()
    for ordered in permutations(requests):
        found = simulated(list(ordered))
        is_most = "at most" in verdict(found)
        assert is_most == (found.worst.reserved_peak_bytes == found.arena_reserved_peak_bytes)
        assert is_most != ("in this order" in verdict(found))
        said.add(is_most)
    assert said == {True, False}


def test_nothing_is_known_of_shapes_that_are_not_replayed_or_of_runs_at_once() -> None:
    assert simulated("N=1..4,M=1..40").is_bounded is True
    assert simulated("N=1..4,M=1..4000", num_requests=9).is_bounded is None
    at_once = simulated("N=1..4,M=1..40", num_requests=20, concurrency=3)
    assert at_once.is_bounded is None
    assert at_once.interval is not None
    interval = at_once.interval
    assert interval.low_bytes <= interval.median_bytes <= interval.high_bytes


def test_the_process_of_runs_at_once_is_that_of_the_middle_draw() -> None:
    at_once = simulated("N=1..4,M=1..40", num_requests=20, concurrency=3)
    last, drawn = at_once.timeline[-1], at_once.process_interval
    assert drawn is not None
    assert last.process_bytes - last.input_bytes == drawn.median_bytes
    assert drawn.low_bytes <= drawn.median_bytes <= drawn.high_bytes
    assert simulated("N=1..4,M=1..40", num_requests=20).process_interval is None


def test_which_rows_of_a_mapped_weight_are_read_makes_the_process_a_range() -> None:
    """A row has five pages; three indices read one to three rows, and Linux maps up to 2 MiB."""
    text = "agraph (int64[N] i) => (float[N,5003] y) <float[1009,5003] w> { y = Gather(w, i) }"
    found = onnxmem.simulate(model_of(text), [{"N": 3}, {"N": 2}], asks_onnxruntime=False)
    interval = found.process_interval
    assert interval is not None
    own_bytes = found.timeline[-1].process_bytes - found.timeline[-1].input_bytes
    assert (interval.median_bytes, interval.num_draws) == (own_bytes, 1)
    assert interval.low_bytes == own_bytes - 2 * 5 * 4096
    assert interval.high_bytes == own_bytes + 3 * 512 * 4096
    assert "by which rows of mapped weights" in render_simulation("m", found, None)


def test_regions_of_several_threads_are_in_arenas_of_their_own() -> None:
    served = model()
    process = Process(served.runs, Serving(concurrency=2, sessions=2))
    process.peak_of(dims_of(*((n, 1009) for n in (7, 3, 5, 2) * 3)), 0)
    threads = [set(arena.threads.values()) - {0} for arena in process.arenas]
    assert threads[0] <= {1, 2}
    assert threads[1] <= {3, 4}
    assert all(threads)


@pytest.mark.parametrize(("groups", "flops_a_second"), [(1, 4e11), (7, 4e10)])
def test_a_depthwise_convolution_of_integers_is_no_matrix_product(
    groups: int, flops_a_second: float
) -> None:
    weight = f"uint8[7,{7 // groups},3,3] w"
    text = f"""agraph (uint8[1,7,13,13] x, {weight}, float s, uint8 z) => (uint8[1,7,11,11] y) {{
        y = QLinearConv<group = {groups}>(x, s, z, w, s, z, s, z)
    }}"""
    graph = graph_of(text)
    (seconds,) = node_seconds(graph).values()
    flops = 2 * 7 * 11 * 11 * (7 // groups) * 9
    moved_bytes = 7 * 13 * 13 + 7 * (7 // groups) * 9 + 7 * 11 * 11 + 3 * 5
    assert seconds == pytest.approx(flops / flops_a_second + moved_bytes / 1e10)


@pytest.mark.parametrize(
    ("node", "moved_bytes"),
    [
        ("y = Gather(w, i)", 4 * 5 * 13 + 4 * 5 * 13 + 8 * 5),
        ("y = Slice(w, i, i)", 2 * 4 * 13 * 5 + 2 * 8 * 5),
        ("y = Reshape(w, i)", 8 * 5),
        ("y = Flatten(w)", 0),
        ("y = Transpose(w)", 2 * 4 * 1009 * 13),
        ("y = Shape(w)", 2 * 8 * 2),
    ],
)
def test_a_node_moves_what_it_selects_and_nothing_of_a_view(node: str, moved_bytes: int) -> None:
    outputs = {"Gather": "float[5,13]", "Slice": "float[5,13]", "Shape": "int64[2]"}
    operator = node.split()[2].partition("(")[0]
    output = outputs.get(operator, "float[13,1009]")
    graph = graph_of(f"agraph (int64[5] i, float[1009,13] w) => ({output} y) {{ {node} }}")
    (seconds,) = node_seconds(graph).values()
    assert seconds == pytest.approx(moved_bytes / 1e10)


def test_runs_that_allocate_nothing_are_served_at_once() -> None:
    nothing = model_of("agraph (float[N,0] x) => (float[N,0] y) { y = Relu(x) }")
    found = onnxmem.simulate(
        nothing, "N=1..4", num_requests=9, concurrency=3, asks_onnxruntime=False
    )
    assert found.arena_reserved_peak_bytes == found.loaded_bytes


def test_sessions_have_an_arena_each() -> None:
    rows = [{"N": 2, "M": 70001}] * 4
    one, two = simulated(rows), simulated(rows, sessions=2)
    assert two.arena_reserved_bytes == 2 * one.arena_reserved_bytes
    assert two.loaded_bytes == 2 * one.loaded_bytes


def test_runs_that_end_within_a_slice_hold_their_memory_only_on_a_core() -> None:
    """Four runs of microseconds: each core has one of them."""
    exact = model(EXACT)
    requests, serving = dims_of(*[(3, 1009)] * 4), Serving(concurrency=4, options=EXACT)
    one, two, four = (
        Process(exact.runs, replace(serving, cores=cores)).peak_of(requests, 0)
        for cores in (1, 2, 4)
    )
    assert one == reserved_by(exact, requests[:1])
    assert 1.9 * one < two < 0.7 * four


@pytest.mark.parametrize(
    ("cores", "sessions", "num_draws"), [(1, 1, 40), (2, 1, 60), (5, 1, 60), (6, 1, 40), (2, 2, 40)]
)
def test_half_of_the_cores_is_drawn_where_more_runs_wait_then(
    cores: int, sessions: int, num_draws: int
) -> None:
    """Three runs at once in each session, of an arena of its own."""
    serving = Serving(concurrency=3, sessions=sessions, cores=cores)
    memory = PLAIN.memory(serving, requests := dims_of((1, 7), (2, 7)))
    draws = [PLAIN.draws(requests, serving, memory), PLAIN.busy_draws(requests, serving, memory)]
    assert sum(map(len, draws)) == num_draws


def test_the_cores_are_those_of_the_flag_or_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "chain.onnx")
    write_model(tmp_path / "chain.onnx", CHAIN)
    words = ["simulate", path, "--requests", "N=1..4", "--concurrency", "3"]
    words += ["--dim", "M=7", "--num-requests", "5", "--emulate-optimizer"]
    for flags, cores in ((["--cores", "3"], 3), ([], num_cores())):
        assert main([*words, *flags, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["models"]
        assert row["settings"]["cores"] == cores
    assert main([*words, "--cores", "3"]) == 0
    assert "3 at once, on 3 cores" in capsys.readouterr().out
    assert main([*words, "--cores", "1025"]) == 2
    assert "cores is 1,025; it is between 1 and 1,024" in capsys.readouterr().err


def test_the_last_new_maximum_is_where_the_arena_grew_last() -> None:
    rows = [{"N": 1, "M": m} for m in (20011, 7, 150001, 7, 20011)]
    found = simulated(rows)
    reserved = [each.reserved_bytes for each in found.timeline]
    assert found.last_maximum == 2
    assert reserved[1] == reserved[0] < reserved[2] == reserved[4]
    assert found.worst.reserved_peak_bytes == max(each.reserved_peak_bytes for each in found.orders)
    assert found.orders[0].reserved_peak_bytes == found.arena_reserved_peak_bytes


def test_the_command_prints_what_the_function_returns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "chain.onnx")
    write_model(tmp_path / "chain.onnx", CHAIN)
    log = tmp_path / "log.csv"
    log.write_text("N,M\n1,70001\n2,1009\n4,20011\n")
    words = [path, "--requests", str(log), "--emulate-optimizer"]
    assert main(["simulate", *words, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    found = onnxmem.simulate(path, str(log), asks_onnxruntime=False)
    assert row["simulation"]["arena_reserved_bytes"] == found.arena_reserved_bytes
    assert row["simulation"]["process_peak_bytes"] == found.process_peak_bytes
    assert row["simulation"]["is_bounded"] == found.is_bounded
    assert [each["arena_reserved_bytes"] for each in row["simulation"]["timeline"]] == [
        each.reserved_bytes for each in found.timeline
    ]
    assert main(["simulate", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 25
    assert lines[2].startswith(("It stops growing", "It still grows", "It has not grown"))


def test_a_dim_that_the_model_does_not_have_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "chain.onnx")
    write_model(tmp_path / "chain.onnx", CHAIN)
    log = tmp_path / "log.jsonl"
    log.write_text('{"N": 1, "K": 2}\n')
    assert main(["simulate", path, "--requests", str(log), "--emulate-optimizer"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "log.jsonl, line 1: the model has no dim K" in line
    with pytest.raises(RequestsError, match="the dims are 'N', 'M'"):
        simulated([{"N": 1, "K": 2}])


def test_a_dim_that_no_request_names_stands_beside_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "chain.onnx")
    write_model(tmp_path / "chain.onnx", CHAIN)
    assert main(["simulate", path, "--requests", "N=1..4", "--emulate-optimizer"]) == 0
    _, verdict, *_ = capsys.readouterr().out.split("\n\n")
    assert "note: unbound_dims: dynamic dims without a value are set to 1: 'M'" in verdict

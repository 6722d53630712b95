"""Orders of execution: never above the file's; "proven" is checked against all orders."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from graphs import graph_of
from paths import LIGHT, MODELS

from onnxmem import analyze
from onnxmem.model.graph import Graph
from onnxmem.runtimes.ideal import schedule_search
from onnxmem.runtimes.ideal.activation_memory import activation_memory
from onnxmem.runtimes.ideal.schedule_search import best_schedule, in_order, onnxruntime_schedule
from onnxmem.runtimes.ideal.schedules import Problem, Schedule, Step, problem_of

SIZES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)

TWO_BRANCHES = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 5] x) => (float[1, 5] y) {
        wide = Concat <axis = 1> (x, x, x, x)
        wider = Concat <axis = 1> (x, x, x, x, x)
        narrow = ReduceSum (wide)
        narrower = ReduceSum (wider)
        y = Sum (x, narrow, narrower)
    }
"""
"""One branch after the other has a lower peak than both at once."""


def orders(problem: Problem) -> Iterator[list[int]]:
    """Every order that can run."""

    def more(order: list[int]) -> Iterator[list[int]]:
        if len(order) == len(problem.steps):
            yield order
        for index, step in enumerate(problem.steps):
            if index not in order and set(step.producers) <= set(order):
                yield from more([*order, index])

    return more([])


def run(problem: Problem, index: int, done: set[int], live: set[int]) -> tuple[int, set[int]]:
    """Bytes live while a node runs, and the blocks live after it, by the definition.

    ``done`` are the nodes before it, ``live`` the blocks.
    """
    step = problem.steps[index]
    left = {*range(len(problem.steps))} - done - {index}
    dead = {b for b in step.reads if b not in problem.outputs and not left & {*problem.readers[b]}}
    overwritten: set[int] = set()
    shared = 0
    for block, sources in step.overwrites:
        free = [source for source in sources if source in dead - overwritten]
        overwritten.update(free[:1])
        shared += problem.sizes[block] * bool(free)
    live = live | set(step.writes)
    high = sum(problem.sizes[block] for block in live) - shared + step.inner_bytes
    unread = {b for b in step.writes if not problem.readers[b] and b not in problem.outputs}
    return high, live - dead - unread


def peak(problem: Problem, order: Sequence[int]) -> int:
    peak_bytes, done, live = 0, set[int](), set[int]()
    for index in order:
        high, live = run(problem, index, done, live)
        peak_bytes, done = max(peak_bytes, high), done | {index}
    return peak_bytes


def least_peak(problem: Problem) -> int:
    """The least peak of all orders, tried one by one; a start that is no better is left."""
    best = peak(problem, range(len(problem.steps)))

    def extend(done: set[int], live: set[int], peak_bytes: int) -> None:
        nonlocal best
        if len(done) == len(problem.steps):
            best = peak_bytes
        for index, step in enumerate(problem.steps):
            if index not in done and done.issuperset(step.producers):
                high, after = run(problem, index, done, live)
                if max(high, peak_bytes) < best:
                    extend(done | {index}, after, max(high, peak_bytes))

    extend(set(), set(), 0)
    return best


def random_problem(draws: Random) -> Problem:
    """A DAG of 4 to 8 nodes: some write nothing, some overwrite an input, some are outputs."""
    num_steps = 4 + int(5 * draws.random())
    sizes: list[int] = []
    steps: list[Step] = []
    writers: list[int] = []
    for index in range(num_steps):
        reads = [b for b in range(len(sizes)) if draws.random() < 1.5 / (1 + index)]
        writes = tuple(range(len(sizes), len(sizes) + int(2.3 * draws.random())))
        sizes += [SIZES[int(len(SIZES) * draws.random())] for _ in writes]
        writers += [index for _ in writes]
        over = tuple((block, tuple(reads)) for block in writes if draws.random() < 0.3 and reads)
        for block, sources in over:
            for source in sources:
                sizes[block] = min(sizes[block], sizes[source])
        extra = [p for p in range(index) if draws.random() < 0.1]
        producers = tuple(sorted({*extra, *(writers[b] for b in reads)}))
        inner = 7 if draws.random() < 0.1 else 0
        steps.append(Step(producers, writes, tuple(reads), over, inner))
    readers = tuple(
        tuple(p for p, step in enumerate(steps) if block in step.reads)
        for block in range(len(sizes))
    )
    outputs = frozenset(b for b in range(len(sizes)) if draws.random() < 0.1)
    possible = (
        Step(
            step.producers,
            step.writes,
            step.reads,
            tuple(
                (block, free)
                for block, sources in step.overwrites
                if (free := tuple(s for s in sources if s not in outputs))
            ),
            step.inner_bytes,
        )
        for step in steps
    )
    return Problem(tuple(possible), tuple(sizes), readers, outputs)


def random_graph(draws: Random) -> Graph:
    """Views, operators that overwrite their input, Concats and reductions; as ONNX text."""
    names, lines = ["x"], []
    for index in range(6):
        source, other = (names[int(len(names) * draws.random())] for _ in range(2))
        name = f"t{index}"
        line = (
            f"{name} = Relu ({source})",
            f"{name} = Identity ({source})",
            f"{name} = Concat <axis = 0> ({source}, {other})",
            f"{name} = ReduceSum ({source})",
        )[int(4 * draws.random())]
        names.append(name)
        lines.append(line)
    body = "\n".join(lines)
    return graph_of(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        f"g (float[3, 1] x) => (float[n, m] {names[-1]}) {{ {body} }}"
    )


def test_a_proven_order_has_the_least_peak_of_all_orders() -> None:
    draws = Random(8)  # noqa: S311 - the same problems each time
    num_proven = num_better = 0
    for _ in range(200):
        problem = random_problem(draws)
        found = best_schedule(problem)
        assert found.peak_bytes == peak(problem, found.order)
        assert found.file_in_place_peak_bytes == peak(problem, range(len(problem.steps)))
        assert found.peak_bytes <= found.file_in_place_peak_bytes
        least = least_peak(problem)
        assert found.lower_bound_bytes <= least
        assert found.is_proven == (found.peak_bytes == least)
        num_proven += found.is_proven
        num_better += found.peak_bytes < found.file_in_place_peak_bytes
    assert num_proven == 200
    assert num_better > 25


def test_the_peak_of_an_order_equals_that_of_the_reordered_graph() -> None:
    draws = Random(4)  # noqa: S311 - the same graphs each time
    for _ in range(40):
        graph = random_graph(draws)
        problem = problem_of(graph)
        for order in list(orders(problem))[:40]:
            found = Schedule(tuple(order), 0, 0, 0)
            memory = activation_memory(in_order(graph, found))
            expected = memory.in_place_peak_bytes
            assert problem.peak_bytes(order) == peak(problem, order) == expected


def test_branches_run_one_after_the_other() -> None:
    found = best_schedule(problem_of(graph_of(TWO_BRANCHES)))
    assert found.order in {(0, 2, 1, 3, 4), (1, 3, 0, 2, 4)}
    assert (found.file_in_place_peak_bytes, found.peak_bytes) == (184, 104)
    assert found.is_proven
    assert not found.is_file_order


def test_without_a_gain_the_order_is_the_files() -> None:
    graph = graph_of(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        "g (float[3] x) => (float[3] y) { a = Relu (x) b = Sigmoid (x) y = Add (a, b) }"
    )
    found = best_schedule(problem_of(graph))
    assert found.is_file_order
    assert found.is_proven
    assert best_schedule(problem_of(graph_of("g (float[3] x) => (float[3] x) {}"))).peak_bytes == 0


def test_a_search_that_runs_out_of_work_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_search, "_EXACT_WORK", 0)
    monkeypatch.setattr(schedule_search, "_BEAM_WORK", 0)
    draws = Random(8)  # noqa: S311 - the same problems each time
    found = [best_schedule(random_problem(draws)) for _ in range(60)]
    assert not all(each.is_proven for each in found)
    assert all(each.peak_bytes <= each.file_in_place_peak_bytes for each in found)
    monkeypatch.setattr(schedule_search, "_MAX_JOBS", 0)
    assert not best_schedule(problem_of(graph_of(TWO_BRANCHES))).is_proven


def test_constants_and_casts_of_weights_run_right_before_their_reader() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x) => (float[4] y)
        <int8[400] w = {0}, int8[400] v = {0}> {
            k = Constant <value = float {2.0}> ()
            wide = Cast <to = 1> (w)
            wider = Cast <to = 1> (v)
            a = Mul (x, k)
            b = ReduceSum (wide)
            c = Sum (a, b)
            d = ReduceSum (wider)
            y = Sum (c, d)
        }
    """
    graph = graph_of(text)
    found = best_schedule(problem_of(graph))
    assert found.is_proven
    assert found.peak_bytes < 1700
    assert found.file_in_place_peak_bytes > 3200
    ran = [node.writes[0] for node in in_order(graph, found).nodes]
    assert ran.index("k") + 1 == ran.index("a")


def test_a_subgraphs_peak_counts_at_its_node() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (bool c, float[5] x) => (float[5] y) {
            big = Concat <axis = 0> (x, x, x, x, x, x)
            y = If (c) <
                then_branch = t () => (float[5] u) {
                    a = Concat <axis = 0> (x, x)
                    u = ReduceSum (a)
                },
                else_branch = e () => (float[5] v) { v = Identity (x) }
            >
            small = ReduceSum (big)
        }
    """
    graph = graph_of(text)
    problem = problem_of(graph)
    assert problem.steps[1].inner_bytes > 0
    memory = activation_memory(graph)
    assert problem.peak_bytes(range(3)) == memory.in_place_peak_bytes
    assert best_schedule(problem).peak_bytes < problem.peak_bytes(range(3))


@pytest.mark.parametrize(
    ("path", "ratio"),
    [
        (LIGHT / "light_shufflenet.onnx", 0.927),
        (LIGHT / "light_densenet121.onnx", 1.0),
        (LIGHT / "light_inception_v1.onnx", 1.0),
        (MODELS / "mobilenet_v2.int8.onnx", 0.302),
    ],
    ids=lambda value: getattr(value, "stem", value),
)
def test_the_orders_of_real_models_are_proven(path: Path, ratio: float) -> None:
    graph = analyze(str(path)).graph
    found = best_schedule(problem_of(graph))
    assert found.is_proven
    assert activation_memory(in_order(graph, found)).in_place_peak_bytes == found.peak_bytes
    assert found.peak_bytes / found.file_in_place_peak_bytes == pytest.approx(ratio, abs=5e-4)


def test_the_peak_of_onnxruntimes_order_may_be_above_the_files() -> None:
    draws = Random(6)  # noqa: S311 - the same graphs each time
    num_more = 0
    for _ in range(40):
        graph = random_graph(draws)
        found = onnxruntime_schedule(problem_of(graph))
        assert activation_memory(in_order(graph, found)).in_place_peak_bytes == found.peak_bytes
        num_more += found.peak_bytes > found.file_in_place_peak_bytes
    assert num_more > 0

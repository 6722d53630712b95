"""Orders of execution: never above the file's, "proven" against every order there is."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import onnx
import onnx.parser
import pytest
from graphs import graph_of
from paths import MODELS

from onnxmem import analyze
from onnxmem.model.graph import Graph
from onnxmem.runtimes.ideal import scheduling
from onnxmem.runtimes.ideal.activation_memory import activation_memory
from onnxmem.runtimes.ideal.schedules import Problem, Schedule, Step, problem_of
from onnxmem.runtimes.ideal.scheduling import best_schedule, in_order, onnxruntime_schedule

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
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
"""One branch after the other takes less than both at once."""


def orders(problem: Problem) -> Iterator[list[int]]:
    """Every order that can run."""

    def more(order: list[int]) -> Iterator[list[int]]:
        if len(order) == len(problem.steps):
            yield order
        for place, step in enumerate(problem.steps):
            if place not in order and set(step.producers) <= set(order):
                yield from more([*order, place])

    return more([])


def peak(problem: Problem, order: Sequence[int]) -> int:
    """Live bytes by looking: who is written, who has a reader left, who may lie over whom."""
    peak_bytes = 0
    live: set[int] = set()
    for at, place in enumerate(order):
        step, left = problem.steps[place], set(order[at + 1 :])
        ended = {
            b for b in step.reads if b not in problem.kept and not left & {*problem.readers[b]}
        }
        taken: set[int] = set()
        over = 0
        for block, sources in step.overwrites:
            free = [source for source in sources if source in ended - taken]
            taken.update(free[:1])
            over += problem.sizes[block] * bool(free)
        live |= set(step.makes)
        high = sum(problem.sizes[block] for block in live) - over + step.inner_bytes
        peak_bytes = max(peak_bytes, high)
        live -= ended
        live -= {b for b in step.makes if not problem.readers[b] and b not in problem.kept}
    return peak_bytes


def random_problem(draws: Random) -> Problem:
    """A DAG of 4 to 8 nodes: some make nothing, some write over an input, some are outputs."""
    num_steps = 4 + int(5 * draws.random())
    sizes: list[int] = []
    steps: list[Step] = []
    makers: list[int] = []
    for place in range(num_steps):
        reads = [b for b in range(len(sizes)) if draws.random() < 1.5 / (1 + place)]
        makes = tuple(range(len(sizes), len(sizes) + int(2.3 * draws.random())))
        sizes += [SIZES[int(len(SIZES) * draws.random())] for _ in makes]
        makers += [place for _ in makes]
        over = tuple((block, tuple(reads)) for block in makes if draws.random() < 0.3 and reads)
        for block, sources in over:
            for source in sources:
                sizes[block] = min(sizes[block], sizes[source])
        extra = [p for p in range(place) if draws.random() < 0.1]
        producers = tuple(sorted({*extra, *(makers[b] for b in reads)}))
        inner = 7 if draws.random() < 0.1 else 0
        steps.append(Step(producers, makes, tuple(reads), over, inner))
    readers = tuple(
        tuple(p for p, step in enumerate(steps) if block in step.reads)
        for block in range(len(sizes))
    )
    kept = frozenset(b for b in range(len(sizes)) if draws.random() < 0.1)
    cleared = (
        Step(
            step.producers,
            step.makes,
            step.reads,
            tuple(
                (block, free)
                for block, sources in step.overwrites
                if (free := tuple(s for s in sources if s not in kept))
            ),
            step.inner_bytes,
        )
        for step in steps
    )
    return Problem(tuple(cleared), tuple(sizes), readers, kept)


def random_graph(draws: Random) -> Graph:
    """Operators that view, write over their input, join and split; as ONNX text."""
    names, lines = ["x"], []
    for place in range(6):
        source, other = (names[int(len(names) * draws.random())] for _ in range(2))
        name = f"t{place}"
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


def test_proven_is_what_no_order_beats() -> None:
    draws = Random(8)  # noqa: S311 - the same problems each time
    num_proven = num_better = 0
    for _ in range(200):
        problem = random_problem(draws)
        found = best_schedule(problem)
        assert found.peak_bytes == peak(problem, found.order)
        assert found.file_peak_bytes == peak(problem, range(len(problem.steps)))
        assert found.peak_bytes <= found.file_peak_bytes
        least = min(peak(problem, order) for order in orders(problem))
        assert found.floor_bytes <= least
        assert found.is_proven == (found.peak_bytes == least)
        num_proven += found.is_proven
        num_better += found.peak_bytes < found.file_peak_bytes
    assert num_proven == 200
    assert num_better > 25


def test_the_peak_is_that_of_the_activations_in_that_order() -> None:
    draws = Random(4)  # noqa: S311 - the same graphs each time
    for _ in range(40):
        graph = random_graph(draws)
        problem = problem_of(graph)
        for order in list(orders(problem))[:40]:
            found = Schedule(tuple(order), 0, 0, 0)
            memory = activation_memory(in_order(graph, found))
            expected = memory.in_place_peak_bytes
            assert problem.peak_bytes(order) == peak(problem, order) == expected


def test_one_branch_after_the_other() -> None:
    found = best_schedule(problem_of(graph_of(TWO_BRANCHES)))
    assert found.order in {(0, 2, 1, 3, 4), (1, 3, 0, 2, 4)}
    assert (found.file_peak_bytes, found.peak_bytes) == (184, 104)
    assert found.is_proven
    assert not found.is_file_order


def test_the_files_order_stays_where_nothing_is_gained() -> None:
    graph = graph_of(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        "g (float[3] x) => (float[3] y) { a = Relu (x) b = Sigmoid (x) y = Add (a, b) }"
    )
    found = best_schedule(problem_of(graph))
    assert found.is_file_order
    assert found.is_proven
    assert best_schedule(problem_of(graph_of("g (float[3] x) => (float[3] x) {}"))).peak_bytes == 0


def test_where_work_runs_out_nothing_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "_EXACT_WORK", 0)
    monkeypatch.setattr(scheduling, "_BEAM_WORK", 0)
    draws = Random(8)  # noqa: S311 - the same problems each time
    found = [best_schedule(random_problem(draws)) for _ in range(60)]
    assert not all(each.is_proven for each in found)
    assert all(each.peak_bytes <= each.file_peak_bytes for each in found)
    monkeypatch.setattr(scheduling, "_MAX_JOBS", 0)
    assert not best_schedule(problem_of(graph_of(TWO_BRANCHES))).is_proven


def test_constants_and_casts_of_weights_come_right_before_their_reader() -> None:
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
    assert found.file_peak_bytes > 3200
    ran = [node.writes[0] for node in in_order(graph, found).nodes]
    assert ran.index("k") + 1 == ran.index("a")


def test_a_subgraphs_peak_belongs_to_its_node() -> None:
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
def test_real_models_are_proven(path: Path, ratio: float) -> None:
    graph = analyze(str(path)).graph
    found = best_schedule(problem_of(graph))
    assert found.is_proven
    assert activation_memory(in_order(graph, found)).in_place_peak_bytes == found.peak_bytes
    assert found.peak_bytes / found.file_peak_bytes == pytest.approx(ratio, abs=5e-4)


def test_onnxruntimes_order_may_take_more_than_the_files() -> None:
    draws = Random(6)  # noqa: S311 - the same graphs each time
    num_more = 0
    for _ in range(40):
        graph = random_graph(draws)
        found = onnxruntime_schedule(problem_of(graph))
        assert activation_memory(in_order(graph, found)).in_place_peak_bytes == found.peak_bytes
        num_more += found.peak_bytes > found.file_peak_bytes
    assert num_more > 0

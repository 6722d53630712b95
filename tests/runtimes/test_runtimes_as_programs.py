"""The runtimes of the package behind the one protocol: their replays are the report's figures."""

from dataclasses import dataclass, replace

from graphs import model_of
from runtimes.test_toy_runtime import TEXT

from onnxmem.analysis.analysis import analyze
from onnxmem.model.graph import Graph
from onnxmem.program.program import Category, ProgramBuilder
from onnxmem.program.replay import MAX_ITERATIONS
from onnxmem.program.sizes import Sizes
from onnxmem.runtimes.assumed import TORCH_CONTEXT, Assumed
from onnxmem.runtimes.base import AffineRun, Overheads, Runtime, RuntimeProgram, RuntimeRun
from onnxmem.runtimes.torch.cuda import TorchRuntime


@dataclass(frozen=True)
class Activations:
    """Allocates each activation and nothing else, without an allocator."""

    name = "activations"

    def program(self, graph: Graph) -> RuntimeProgram:
        builder, sizes = ProgramBuilder(), list[int | None]()
        for node in graph.nodes:
            builder.enter_step(node.name)
            for name in node.writes:
                builder.malloc(name, Category.ACTIVATION)
                sizes.append(graph.tensors[name].size_bytes)
        return RuntimeProgram(builder.program(), Sizes.of(sizes))

    def allocator(self, capacity_bytes: int | None = None) -> None:
        """No allocator: every allocation takes its own bytes."""

    def overheads(self, graph: Graph) -> Overheads:
        assert graph.nodes
        return Overheads()


def torch_runtime(workspace: Assumed | None = None) -> TorchRuntime:
    none = Assumed.exactly(0)
    return TorchRuntime(context=TORCH_CONTEXT, workspace=workspace or none)


def graph_at(batch: int) -> Graph:
    return analyze(model_of(TEXT), batch=batch).graph


def test_a_step_of_pytorch_equals_the_report() -> None:
    analysis = analyze(model_of(TEXT), batch=17, train=True)
    runtime: Runtime = torch_runtime()
    run = RuntimeRun.of(runtime, analysis.graph)
    assert run.runtime_program.iterations == MAX_ITERATIONS
    assert analysis.torch is not None
    assert run.replay().total_bytes == analysis.torch.total_bytes


def test_affine_programs_equal_analyzed_ones() -> None:
    runs = [(batch, RuntimeRun.of(torch_runtime(), graph_at(batch))) for batch in (2, 19, 53)]
    affine = AffineRun.through(runs)
    assert affine is not None
    for batch in (2, 3, 31, 53):
        walked = RuntimeRun.of(torch_runtime(), graph_at(batch))
        at = affine.at(batch)
        assert at.replay().total_bytes == walked.replay().total_bytes
        assert at.replay().least_bytes == walked.replay().least_bytes


def test_different_programs_have_no_affine_sizes() -> None:
    other = RuntimeRun.of(Activations(), graph_at(2))
    others = [(batch, RuntimeRun.of(torch_runtime(), graph_at(batch))) for batch in (19, 53)]
    assert AffineRun.through([(2, other), *others]) is None


def test_overheads_that_are_not_affine_are_rejected() -> None:
    runs = [
        (batch, RuntimeRun.of(torch_runtime(Assumed.exactly(size)), graph_at(batch)))
        for batch, size in ((2, 101), (19, 211), (53, 307))
    ]
    assert AffineRun.through(runs) is None


def test_memory_outside_the_allocator_is_subtracted_from_the_capacity() -> None:
    run = RuntimeRun.of(Activations(), graph_at(5))
    takes = run.replay().total_bytes
    assert run.taken_in(takes) == takes
    assert run.taken_in(takes - 1) is None
    outside = replace(run, overheads=replace(run.overheads, process=Assumed.exactly(101)))
    assert outside.taken_in(takes + 100) is None
    assert outside.taken_in(takes + 101) == takes + 101


def test_a_second_program_is_compared_with_the_capacity_too() -> None:
    runtime = Activations()
    run, larger = RuntimeRun.of(runtime, graph_at(5)), RuntimeRun.of(runtime, graph_at(7))
    both = replace(
        run,
        runtime_program=replace(
            run.runtime_program,
            later=((larger.runtime_program.program, larger.runtime_program.sizes),),
        ),
    )
    found = both.replay()
    assert found.total_bytes == larger.replay().total_bytes > run.replay().total_bytes
    assert found.replay.peak == run.replay().replay.peak
    assert both.taken_in(found.total_bytes) == found.total_bytes
    out_at = both.replay(found.total_bytes - 1).replay.out_of_memory_at
    assert out_at == len(run.runtime_program.program.events)

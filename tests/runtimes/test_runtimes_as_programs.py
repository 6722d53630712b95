"""The runtimes of the package behind the one protocol: their replays are the report's figures."""

from dataclasses import replace

import pytest
from graphs import model_of
from paths import MODELS

from onnxmem.analysis.analyzing import analyze
from onnxmem.model.graph import Graph
from onnxmem.program import MAX_ITERATIONS, Category, Sizes
from onnxmem.runtimes.assumed import TORCH_CONTEXT, Assumed
from onnxmem.runtimes.base import AffineRun, Runtime, RuntimeRun
from onnxmem.runtimes.ideal.runtime import IdealRuntime
from onnxmem.runtimes.torch.cuda import TorchRuntime, TorchSettings
from onnxmem.settings import Recipe

NETWORK = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 7] x) => (float[N, 13] y) <float[7, 11] w, float[11, 13] v> {
  a = MatMul(x, w)
  b = Relu(a)
  y = MatMul(b, v)
}
"""


def torch_runtime(workspace: Assumed | None = None) -> TorchRuntime:
    none = Assumed.given(0)
    return TorchRuntime(Recipe(), TorchSettings(), TORCH_CONTEXT, workspace or none)


def graph_at(batch: int) -> Graph:
    return analyze(model_of(NETWORK), batch=batch).graph


@pytest.mark.parametrize("name", ["mlp", "alexnet", "greedy_translator", "bert_base"])
def test_the_ideal_runtime_takes_what_inference_does(name: str) -> None:
    analysis = analyze(MODELS / f"{name}.onnx", batch=3)
    run = RuntimeRun.of(IdealRuntime(), analysis.graph)
    assert run.replay().total_bytes == analysis.total_bytes
    replayed = run.replay().replay
    by_category = replayed.live_by_category(replayed.peak)
    assert by_category[Category.WEIGHT] == analysis.weight_bytes
    assert by_category[Category.ACTIVATION] == analysis.activations.in_place_peak_bytes


def test_a_step_of_pytorch_takes_what_the_report_says() -> None:
    analysis = analyze(model_of(NETWORK), batch=17, train=True)
    runtime: Runtime = torch_runtime()
    run = RuntimeRun.of(runtime, analysis.graph)
    assert run.made.iterations == MAX_ITERATIONS
    assert analysis.torch is not None
    assert run.replay().total_bytes == analysis.torch.total_bytes


def test_affine_runs_are_those_of_walks() -> None:
    runs = [(batch, RuntimeRun.of(torch_runtime(), graph_at(batch))) for batch in (2, 19, 53)]
    affine = AffineRun.through(runs)
    assert affine is not None
    for batch in (2, 3, 31, 53):
        walked = RuntimeRun.of(torch_runtime(), graph_at(batch))
        at = affine.at(batch)
        assert at.replay().total_bytes == walked.replay().total_bytes
        assert at.replay().least_bytes == walked.replay().least_bytes


def test_runs_of_other_programs_have_no_affine_sizes() -> None:
    ideal = RuntimeRun.of(IdealRuntime(), graph_at(2))
    others = [(batch, RuntimeRun.of(torch_runtime(), graph_at(batch))) for batch in (19, 53)]
    assert AffineRun.through([(2, ideal), *others]) is None


def test_overheads_that_follow_no_rule_are_not_taken_to_be_affine() -> None:
    runs = [
        (batch, RuntimeRun.of(torch_runtime(Assumed.given(size)), graph_at(batch)))
        for batch, size in ((2, 101), (19, 211), (53, 307))
    ]
    assert AffineRun.through(runs) is None


def test_a_capacity_is_less_what_no_allocator_serves() -> None:
    run = RuntimeRun.of(IdealRuntime(), graph_at(5))
    takes = run.replay().total_bytes
    assert run.runs_in(takes)
    assert not run.runs_in(takes - 1)
    outside = replace(run, overheads=replace(run.overheads, process=Assumed.given(101)))
    assert not outside.runs_in(takes + 100)
    assert outside.runs_in(takes + 101)


def test_a_setup_is_held_from_the_first_event() -> None:
    made = IdealRuntime().program(graph_at(5))
    alone = analyze(model_of(NETWORK), batch=5).activations.replay
    assert made.program.num_setup_events == 3
    assert made.program.events[3:].tolist() == alone.program.events.tolist()
    assert made.program.labels[-3:] == ("w", "v", "x")
    assert Sizes.of([3, None]).followed_by([5]).known is not None

"""Our liveness beside that of another tool, onnxsim, which shares no code with ours.

Its ``ModelInfo.memory_footprint`` is weights and the largest sum of tensors that are live at one
node: from the node that makes one to the last that reads it, both included, outputs to the end. It
is definition 3 with two terms more: weights, and graph inputs from the start to their last reader.
``plan_activation_memory(...).naive_bytes`` is definition 2 and the graph inputs.
"""

import pytest
from onnx import checker
from random_graphs import static_graph

from onnxmem import Analysis, analyze
from onnxmem.program.replay import replay
from onnxmem.program.sizes import Sizes
from onnxmem.runtimes.ideal.lifetimes import last_uses, tensor_buffers

NUM_GRAPHS = 160


def footprint_bytes(analysis: Analysis) -> int:
    """Weights, and the peak of activations and graph inputs without buffer reuse."""
    graph = analysis.graph
    uses, buffers = last_uses(graph), tensor_buffers(graph)
    for name in graph.inputs:
        buffers.add(name, graph.tensors[name].size_bytes, 0, uses[name])
    peak = replay(buffers.program(graph.nodes), Sizes.of(buffers.sizes_bytes)).peak
    return (analysis.weight_bytes or 0) + peak.size_bytes


def test_the_peak_activation_memory_equals_onnxsims() -> None:
    model_info = pytest.importorskip("onnxsim.model_info")
    for seed in range(NUM_GRAPHS):
        model = static_graph(seed)
        analysis = analyze(model)
        footprint = model_info.ModelInfo(model).memory_footprint
        assert footprint_bytes(analysis) == footprint, seed
        peak_bytes, inputs_bytes = analysis.activations.peak_bytes, analysis.inputs_bytes
        assert peak_bytes is not None
        assert inputs_bytes is not None
        assert 0 <= footprint - (analysis.weight_bytes or 0) - peak_bytes <= inputs_bytes, seed


def test_the_sum_of_tensors_equals_onnxsims() -> None:
    onnxsim = pytest.importorskip("onnxsim")
    for seed in range(40):
        model = static_graph(seed)
        analysis, plan = analyze(model), onnxsim.plan_activation_memory(model)
        naive_bytes, inputs_bytes = analysis.activations.naive_bytes, analysis.inputs_bytes
        assert naive_bytes is not None
        assert inputs_bytes is not None
        assert plan.unplanned == [], seed
        assert plan.naive_bytes == naive_bytes + inputs_bytes, seed


def test_the_drawn_graphs_are_valid() -> None:
    for seed in range(40):
        checker.check_model(static_graph(seed), full_check=True)

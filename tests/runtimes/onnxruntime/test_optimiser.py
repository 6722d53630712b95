"""The emulated optimizer on any graph: what it writes can run, and gives what the file gives."""

from pathlib import Path

import onnx
import pytest
from onnx.backend.test.loader import load_model_tests
from paths import MODELS

from onnxmem.errors import OnnxmemError
from onnxmem.model.building import prepare
from onnxmem.model.files import load
from onnxmem.model.traversal import given_names, outer_reads, subgraphs
from onnxmem.runtimes.onnxruntime.cpu import ARM64, AVX512, CPUS, Cpu
from onnxmem.runtimes.onnxruntime.optimizer.pipeline import optimized, planner_shapes

LEVELS = ("off", "basic", "extended", "all")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["mlp", "unet", "lstm_classifier", "alexnet"])
def test_what_it_writes_can_run(name: str, level: str) -> None:
    holds_on(MODELS / f"{name}.onnx", level)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(MODELS.glob("*.onnx")), ids=lambda path: path.stem)
def test_what_it_writes_of_every_model_can_run(path: Path) -> None:
    holds_on(path, "all")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the suite computes its cases when it is loaded
@pytest.mark.parametrize("cpu", CPUS.values(), ids=CPUS)
def test_what_it_writes_of_every_operator_can_run(cpu: Cpu) -> None:
    cases = load_model_tests(kind="node")
    assert len(cases) > 1000
    broken = []
    for case in cases:
        try:
            prepared = prepare(load(case.model or Path(str(case.model_dir), "model.onnx")))
        except OnnxmemError:
            continue
        made = optimized(prepared.proto, "all", cpu=cpu)
        if not runs_in_order(made.graph, set()):
            broken.append(case.name)
    assert broken == []


def test_without_blocks_no_operator_is_blocked() -> None:
    prepared = prepare(load(MODELS / "resnet50.onnx"))
    domains = [
        {node.domain for node in optimized(prepared.proto, "all", cpu=cpu).graph.node}
        for cpu in (ARM64, AVX512)
    ]
    assert ["com.microsoft.nchwc" in found for found in domains] == [False, True]


def test_numbers_for_symbols_reach_the_shapes() -> None:
    prepared = prepare(load(MODELS / "mlp.onnx"))
    made = optimized(prepared.proto, "all", dims={"batch": 7})
    (output,) = made.graph.output
    assert output.type.tensor_type.shape.dim[0].dim_value == 7


def holds_on(path: Path, level: str) -> None:
    prepared = prepare(load(path))
    made = optimized(prepared.proto, level)
    assert [value.name for value in made.graph.output] == [
        value.name for value in prepared.proto.graph.output
    ]
    assert runs_in_order(made.graph, set())
    shapes = planner_shapes(made)
    assert all(value.name in shapes for value in made.graph.input)


def runs_in_order(graph: onnx.GraphProto, outer: set[str]) -> bool:
    """Whether each node, and each of its subgraphs, reads only what is there before it."""
    there = {*outer, "", *given_names(graph)}
    for node in graph.node:
        reads = {*node.input, *(n for _, body in subgraphs(node) for n in outer_reads(body))}
        if not reads <= there:
            return False
        if not all(runs_in_order(body, there) for _, body in subgraphs(node)):
            return False
        there.update(node.output)
    return {value.name for value in graph.output} <= there

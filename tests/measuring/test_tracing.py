"""Reading onnxruntime's profile and statistics, from records written by hand."""

import json
from pathlib import Path

import pytest

from onnxmem.measuring.tracing import Step, first, is_nameless, of_provider, runs, scratch_by_node


def event(name: str, start: int = 0, **args: object) -> str:
    fields = {"op_name": "Conv", "provider": "CPUExecutionProvider", **args}
    node = {"cat": "Node", "ts": start, "name": f"{name}_kernel_time", "args": fields}
    return json.dumps(node)


def run_end() -> str:
    return json.dumps({"cat": "Session", "ts": 99, "name": "model_run", "args": {}})


def profile(folder: Path, *events: str) -> Path:
    path = folder / "profile.json"
    path.write_text("[\n" + ",\n".join(events) + "\n]\n")
    return path


def step(node: str, op_type: str = "Conv", provider: str = "CPU", start: int = 0) -> Step:
    sizes = (None,) * 6
    return Step(node, op_type, provider, start, (), *sizes)


def test_a_step_carries_the_memory_fields(tmp_path: Path) -> None:
    sizes = {
        "mem_bytes_requested_in_use": "1009",
        "mem_requested_in_use_delta": "-11",
        "mem_bytes_in_use": "1280",
        "mem_in_use_peak": "1536",
        "mem_arena_held": "1048576",
        "mem_arena_held_delta": "0",
    }
    shapes = [{"float": [1, 64]}, {"int64": []}]
    path = profile(tmp_path, event("a", 5, output_type_shape=shapes, **sizes), run_end())
    ((found,),) = runs(path)
    assert (found.node, found.op_type, found.started) == ("a", "Conv", 5)
    assert found.output_shapes == ((1, 64), ())
    assert (found.requested_bytes, found.requested_before_bytes) == (1009, 1020)
    assert (found.in_use_bytes, found.in_use_peak_bytes) == (1280, 1536)
    assert (found.reserved_bytes, found.reserved_before_bytes) == (1048576, 1048576)


def test_without_memory_fields_sizes_are_unknown(tmp_path: Path) -> None:
    ((found,),) = runs(profile(tmp_path, event("a"), run_end()))
    assert found.requested_bytes is None
    assert found.requested_before_bytes is None


def test_runs_end_where_the_profile_ends_them(tmp_path: Path) -> None:
    other = json.dumps({"cat": "Session", "ts": 1, "name": "session_initialization"})
    path = profile(tmp_path, other, event("a"), run_end(), event("a"), event("b"), run_end())
    assert [[step.node for step in steps] for steps in runs(path)] == [["a"], ["a", "b"]]


def test_a_run_that_breaks_off_is_left_out(tmp_path: Path) -> None:
    assert runs(profile(tmp_path, event("a"), event("b"))) == []


def test_a_node_with_a_body_began_before_the_body() -> None:
    inner, outer = step("inner", start=7), step("outer", start=7)
    assert first([inner, step("later", start=8), outer]) is outer


def test_the_reported_arena_is_the_provider_s() -> None:
    steps = [step("a", provider="CPU"), step("b", provider="CUDA")]
    assert of_provider(steps, "CUDA") == steps[1:]
    assert of_provider(steps, "TPU") == steps


@pytest.mark.parametrize(
    ("statistics", "expected"),
    [
        ("conv,1_123,0,0,0,64\n", {"conv,1": 64}),
        ("conv,1_123,0,0,0,64\nconv,1_456,0,0,0,96\n", {"conv,1": 96}),
        ("Conv_9,0,0,0,32\nConv_8,0,0,0,128\n", {"Conv_7": 128}),
        ("Conv_7_9,0,0,0,32\nConv_8,0,0,0,128\n", {"Conv_7": 32}),
        ("other_1,0,0,0,64\n", {}),
        ("broken\nconv,1_2,x,y\nconv,1_3,0,0,0,what\n", {}),
    ],
)
def test_scratch_is_found_by_name(statistics: str, expected: dict[str, int]) -> None:
    steps = [step("conv,1"), step("Conv_7")]
    head = "#name,input_sizes,initializers_sizes,total_dynamic_sizes,total_temp_allocations\n"
    assert scratch_by_node(head + statistics, steps) == expected


def test_a_nameless_node_goes_by_operator_and_index() -> None:
    assert is_nameless(step("Conv_7"))
    assert not is_nameless(step("Conv_x"))
    assert not is_nameless(step("conv1_7"))

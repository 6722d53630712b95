"""Timelines: they reach the figures of the report, and are a few lines of it."""

import pytest
from graphs import model_of
from models_on_disk import CONVNET, MYSTERY
from paths import MODELS

import onnxmem
from onnxmem.report.terminal import timeline_lines
from onnxmem.report.text import colored
from onnxmem.report.timelines import run_timeline, step_timeline


def chain(length: int) -> bytes:
    """A row of ReLUs behind products: weights, so that it can be trained."""
    steps = "\n".join(f"h{n} = MatMul(h{n - 1}, w)\n" for n in range(1, length))
    text = f"""agraph (float[N,7] x) => (float[N,7] h{length - 1}) <float[7,7] w> {{
        h0 = Relu(x)
        {steps}
    }}"""
    return model_of(text).SerializeToString()


def analysis(text: str = CONVNET, **asked: object) -> onnxmem.Analysis:
    return onnxmem.analyze(model_of(text).SerializeToString(), **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["unet", "lstm_classifier", "mobilenet_v2.train", "mlp"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_timelines_reach_run_and_train(name: str, optimizer: str) -> None:
    found = onnxmem.analyze(MODELS / f"{name}.onnx", batch=3, train=True, optimizer=optimizer)
    run = run_timeline(found)
    assert max(run.sums) == found.total_bytes
    assert len(run.labels) == len(found.graph.nodes)
    assert found.training is not None
    step = step_timeline(found.training.replay)
    assert max(step.sums) == found.training.peak_bytes
    assert step.peak_step == step.sums.index(max(step.sums))
    assert [mark.name for mark in step.marks] == ["forward", "backward", "optimizer"]
    for mark, stop in zip(step.marks, [*(m.start for m in step.marks[1:]), None], strict=True):
        peak = max(step.sums[mark.start : stop])
        assert peak == getattr(found.training, f"{mark.name}_peak_bytes")
        assert step.labels[mark.start] == mark.name
    saved = next(each for each in step.series if each.name == "saved for backward")
    assert saved.values[step.marks[1].start] == found.training.saved_activation_bytes


def test_each_kind_has_its_bytes_at_the_peak() -> None:
    found = analysis(train=True, batch=3).training
    assert found is not None
    step = step_timeline(found.replay)
    assert step.peak_step is not None
    held = {each.name: each.values[step.peak_step] for each in step.series}
    kinds = found.live_by_category()
    assert held["weights"] == kinds["weights"]  # type: ignore[index]
    assert held["optimizer state"] == kinds["optimizer state"]  # type: ignore[index]
    assert held["saved for backward"] + held["activations"] == kinds["activations"]  # type: ignore[index]
    assert sum(held.values()) == sum(kinds.values())


def test_a_kind_that_is_never_there_is_no_series() -> None:
    found = analysis(train=True, optimizer="sgd").training
    assert found is not None
    assert "optimizer state" not in {each.name for each in step_timeline(found.replay).series}


def test_a_tensor_of_unknown_size_counts_nothing() -> None:
    timeline = run_timeline(analysis(MYSTERY, batch=3))
    assert max(timeline.sums) == 4 * (5 * 7 + 3 * 5 + 3 * 7)


def test_a_graph_without_nodes_has_no_step() -> None:
    timeline = run_timeline(analysis("agraph (float[2] x) => (float[2] x) { }"))
    assert timeline.sums == ()
    assert timeline.peak_step is None


# In the text report.


@pytest.mark.parametrize("length", [9, 300])
def test_the_section_is_short_and_narrow(length: int) -> None:
    lines = timeline_lines(onnxmem.analyze(chain(length), batch=11, train=True))
    assert len(lines) == 4
    assert max(map(len, lines)) <= 100
    assert len(lines[1].split()[1]) == min(length, 84)
    parts = lines[2].removeprefix("  training step ").split("|")
    assert [len(part) for part in parts] == [len(part) for part in lines[3].strip().split("|")]
    assert "█" in "".join(parts)


def test_phases_are_named_as_far_as_there_is_room() -> None:
    last = timeline_lines(onnxmem.analyze(chain(200), train=True))[-1]
    assert last.split("|")[0].strip() == "forward"
    assert last.split("|")[1].strip() == "backward"
    assert last.split("|")[2] == "o"


def test_a_run_of_few_steps_has_no_section() -> None:
    assert timeline_lines(analysis()) == []
    assert timeline_lines(analysis("agraph (float[2] x) => (float[2] x) { }")) == []


def test_of_a_step_of_few_moments_nothing_is_drawn() -> None:
    found = analysis("agraph (float[N,2] x) => (float[N,2] y) { y = Relu(x) }", train=True)
    assert timeline_lines(found) == []


def test_blocks_are_coloured_by_their_height() -> None:
    text = colored("▁▂ ▅ █")
    assert text == "\x1b[32m▁▂\x1b[0m \x1b[33m▅\x1b[0m \x1b[31m█\x1b[0m"

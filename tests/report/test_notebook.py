"""An analysis shows itself in a notebook: small, well-formed, and inert whatever names hold."""

from pathlib import Path
from xml.etree import ElementTree as ET

import onnx
import pytest
from graphs import model_of
from models_on_disk import MYSTERY, write_hostile_model, write_model
from paths import MODELS

import onnxmem

HOSTILE = "</title></svg><script>alert(1)</script><img onerror=alert(1)>\"'&\x1b[2J\u202e"
TAGS = {"div", "p", "b", "table", "tbody", "tr", "th", "td"}
SVG_TAGS = {"svg", "title", "desc", "text", "path", "g", "rect", "circle"}


def shown(analysis: onnxmem.Analysis) -> ET.Element:
    html = analysis._repr_html_()
    assert html is not None
    assert len(html) < 100_000
    assert html.isprintable()
    root = ET.fromstring(html)  # noqa: S314 - our own, and without entities of its own
    assert {each.tag.rpartition("}")[2] for each in root.iter()} <= TAGS | SVG_TAGS
    return root


@pytest.mark.parametrize("train", [False, True])
def test_it_has_the_figures_and_the_timeline(tmp_path: Path, train: bool) -> None:
    write_model(tmp_path / "net.onnx")
    analysis = onnxmem.analyze(tmp_path / "net.onnx", batch=8, train=train)
    root = shown(analysis)
    text = "".join(root.itertext())
    assert "net.onnx" in text
    assert f"{analysis.total_bytes:,} B" in text
    assert "training step" in text if train else "steps of the run" in text
    if analysis.training is not None:
        assert f"{analysis.training.peak_bytes:,} B" in text


def test_real_models_are_a_few_kilobytes() -> None:
    for name in ("resnet50.train", "mlp"):
        shown(onnxmem.analyze(MODELS / f"{name}.onnx", batch=4, train=True))


def test_names_are_inert(tmp_path: Path) -> None:
    write_hostile_model(tmp_path / "net.onnx")
    shown(onnxmem.analyze(tmp_path / "net.onnx", train=True))


def test_many_long_hostile_names_stay_small() -> None:
    """As many nodes as each have a name in the picture, of a megabyte each."""
    names = [HOSTILE + str(n) + '"' * 5000 for n in range(180)]
    nodes = [
        onnx.helper.make_node("Relu", [before], [after], name=after)
        for before, after in zip(["x", *names], names, strict=False)
    ]
    value = [onnx.helper.make_tensor_value_info(each, 1, [7]) for each in ("x", names[-1])]
    graph = onnx.helper.make_graph(nodes, HOSTILE, value[:1], value[1:])
    shown(onnxmem.analyze(onnx.helper.make_model(graph)))


def test_what_is_unknown_is_said() -> None:
    text = "".join(shown(onnxmem.analyze(model_of(MYSTERY))).itertext())
    assert "lower bounds" in text


def test_a_graph_without_nodes_has_a_table_alone() -> None:
    root = shown(onnxmem.analyze(model_of("agraph (float[2] x) => (float[2] x) { }")))
    assert not list(root.iter("{http://www.w3.org/2000/svg}svg"))


def test_a_runtime_has_its_line() -> None:
    model = model_of("agraph (float[2] x) => (float[2] y) { y = Relu(x) }")
    analysis = onnxmem.analyze(model, runtimes=("ort-cpu",), asks_onnxruntime=False)
    assert "ort-cpu" in "".join(shown(analysis).itertext())


def test_two_answers_in_one_notebook_have_ids_of_their_own(tmp_path: Path) -> None:
    write_model(tmp_path / "net.onnx")
    analysis = onnxmem.analyze(tmp_path / "net.onnx", batch=2)
    ids = [
        {each.get("id") for each in shown(answer).iter() if each.get("id")}
        for answer in (analysis, analysis.at(batch=3))
    ]
    assert not ids[0] & ids[1]


@pytest.mark.parametrize(("budget_bytes", "told"), [(2**30, "fits: "), (2**10, "does not fit: ")])
def test_the_verdict_on_a_budget_stands_first(tmp_path: Path, budget_bytes: int, told: str) -> None:
    write_model(tmp_path / "net.onnx")
    analysis = onnxmem.analyze(tmp_path / "net.onnx", batch=2, budget_bytes=budget_bytes)
    text = "".join(shown(analysis).itertext())
    assert told in text.partition("inference")[0]
    number = analysis.max_batch.number if analysis.max_batch else None
    assert (f"largest batch that fits: {number:,}" in text) is bool(number)

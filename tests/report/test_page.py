"""The page of a model, read without a browser."""

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import model_of
from hypothesis import given
from hypothesis import strategies as st
from measured_runs import MEASUREMENT
from pages import chain, data_of, figures, read
from paths import MODELS

from onnxmem import Analysis, analyze
from onnxmem.analysis.fitting.searching import MaxBatch
from onnxmem.analysis.json_rows import predicted_by
from onnxmem.analysis.scaling import LARGEST_BATCH
from onnxmem.cli import main
from onnxmem.program.sizes import Affine, Sizes
from onnxmem.report.page.layers import layers_section
from onnxmem.report.page.live import NO_MODULE, module_at, useful_depth
from onnxmem.report.page.markup import document, filter_box, name, script_json, size
from onnxmem.report.page.model_page import render_page
from onnxmem.report.page.stops import (
    Stops,
    budget_terms,
    convex_lines,
    evaluated,
    figures_of,
    line_through,
)
from onnxmem.report.page.timeline import affine_sizes, envelope, peak_lines, timeline_data
from onnxmem.report.timelines import GROUPS, SAVED, lifetimes_of
from onnxmem.settings import TrainingConfig

SMALL = """
agraph (float[batch, 7] x) => (float[batch, 13] y)
<float[7, 11] w, float[11, 13] v> {
    h = MatMul(x, w)
    r = Relu(h)
    y = MatMul(r, v)
}
"""

EVIL = (
    "</script><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "\x1b[2J\x1b]0;owned\x07",
    "a\u202egnp.exe\u2066b",
    "a\u2028b\u2029c\nd\x00",
    "n" * 2**18,
)


def small(**settings: object) -> Analysis:
    return analyze(model_of(SMALL), **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def resnet() -> tuple[Analysis, str]:
    model = MODELS / "resnet50.train.onnx"
    analysis = analyze(model, batch=128, train=True, budget_bytes=24 * 2**30)
    return analysis, render_page(analysis)


def test_the_page_of_resnet_50_is_small_and_whole(resnet: tuple[Analysis, str]) -> None:
    reader = read(resnet[1])
    assert len(resnet[1].encode()) <= 400_000
    assert (reader.faults, reader.open) == ([], [])


def test_nothing_is_loaded_and_nothing_runs_that_is_not_named_by_its_hash(
    resnet: tuple[Analysis, str],
) -> None:
    page = resnet[1]
    policy = next(
        attrs["content"] or ""
        for tag, attrs in read(page).elements
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
    for kind, tag in (("style", "<style>"), ("script", "<script>")):
        blocks = re.findall(f"{tag}(.*?)</{kind}>", page, re.DOTALL)
        hashes = {
            f"'sha256-{base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()}'"
            for block in blocks
        }
        said = re.search(f"{kind}-src ([^;]*);", policy)
        assert said is not None
        assert set(said[1].split()) == hashes
    elements = read(page).elements
    assert not [attrs for _, attrs in elements if {"style", "src", "href", "onclick"} & set(attrs)]
    assert "Copyright (c)" in page  # of uPlot, whose licence asks for it


def test_ids_are_given_once(resnet: tuple[Analysis, str]) -> None:
    ids = [attrs["id"] for _, attrs in read(resnet[1]).elements if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_every_figure_is_the_one_of_the_row_in_json(resnet: tuple[Analysis, str]) -> None:
    analysis, page = resnet
    numbers = figures_of(analysis).numbers
    shown = dict(figures(page))
    assert analysis.fit is not None
    terms = budget_terms(analysis.fit.assessment, analysis.fit.requested)
    numbers = {**numbers, **{line.key: line.number for line in terms if line.key}}
    assert {key: "" if numbers.get(key) is None else str(numbers[key]) for key in shown} == {
        # A kind of bytes that nothing has at the peak is in the page, hidden.
        key: "" if value == "0" and key not in numbers else value
        for key, value in shown.items()
    }
    row = analysis.to_dict()
    assert shown["total_bytes"] == str(row["total_bytes"])
    assert shown["training.peak_bytes"] == "11413947828"
    assert len(shown) >= 35


def test_lines_and_stops_say_what_is_computed_at_any_batch() -> None:
    analysis = small(batch=128, train=True, budget_bytes=24 * 2**30)
    page = render_page(analysis)
    held = data_of(page)
    at_100 = dict(figures_of(analysis.at(batch=100)).numbers)
    at_100 |= {key: int(value) for key, value in figures(page) if key.startswith("terms.context")}
    proven = 0
    for key, moves in held["figures"].items():
        for first, last, fixed, per_sample in moves["lines"]:
            if first <= 100 <= last:
                assert int(fixed) + 100 * int(per_sample) == at_100.get(key, 0), key
                proven += 1
    assert proven > 30
    index = held["stops"].index(256)
    at_256 = figures_of(analysis.at(batch=256)).numbers
    for key, moves in held["figures"].items():
        if key in at_256:
            assert (moves["at"][index] or None) == (at_256[key] or None), key


def test_the_peaks_of_a_step_are_known_at_every_batch() -> None:
    """Between stops too: they are the highest of the lines of all steps."""
    analysis = small(batch=64, train=True)
    stops, lifetimes = evaluated(analysis), lifetimes_of(analysis)
    known = peak_lines(lifetimes, affine_sizes(lifetimes, stops))
    assert all(stops.agrees(key, found) for key, found in known.items())
    assert sum(len(found) for found in known.values()) > 5
    for batch in range(1, 257, 5):
        training = analysis.at(batch=batch).training
        assert training is not None
        for key, found in known.items():
            values = {line.at(batch) for line in found if line.first <= batch <= line.last}
            assert values == {getattr(training, key.removeprefix("training."))}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-30, 30)), min_size=1), st.integers(1, 5))
def test_an_envelope_is_the_highest_line_everywhere(
    lines: list[tuple[int, int]], first: int
) -> None:
    found = envelope(lines, first, first + 20)
    for batch in range(first, first + 21):
        at = [line.at(batch) for line in found if line.first <= batch <= line.last]
        assert at == [max(slope * batch + fixed for slope, fixed in lines)]


def test_three_neighbors_on_a_line_prove_it_between_them() -> None:
    batches = [1, 2, 4, 8, 16]
    assert convex_lines(batches, [5, 5, 5, 9, 17]) == (Affine(5, 0, 1, 4), Affine(1, 1, 4, 16))
    assert convex_lines(batches, [3, 5, 9, 17, 33]) == (Affine(1, 2, 1, 16),)
    assert convex_lines(batches, [1, 2, None, 8, 16]) == ()
    assert convex_lines([1, 2], [1, 2]) == ()
    assert line_through([1, 3, 5], [0, 1, 2]) is None


def live_bytes(analysis: Analysis) -> list[int]:
    lifetimes = lifetimes_of(analysis)
    totals: list[int] = lifetimes.live_bytes(lifetimes.sizes.fixed_bytes).sum(axis=0).tolist()
    return totals


def test_a_timeline_adds_up_to_the_peak(resnet: tuple[Analysis, str]) -> None:
    analysis = resnet[0]
    assert analysis.training is not None
    assert max(live_bytes(analysis)) == analysis.training.peak_bytes
    run = small(batch=3)
    sums = live_bytes(run)
    assert max(sums) == run.total_bytes
    # x 3x7, w 7x11, v 11x13; h, in which r lies, 3x11; y 3x13
    assert sums == [4 * (21 + 77 + 143 + each) for each in (33, 33, 33 + 39)]


def test_the_largest_that_are_alive_at_each_step_are_named() -> None:
    analysis = small(batch=3)
    lifetimes, stops = lifetimes_of(analysis), evaluated(analysis)
    data = timeline_data(lifetimes, stops, affine_sizes(lifetimes, stops))
    assert data is not None
    tensors = data["tensors"]
    assert isinstance(tensors, dict)
    names = tensors["names"][1::2]
    assert dict(zip(names, tensors["per"], strict=True)) == {
        "weights": 0,
        "inputs": 28,
        "h": 44,
        "y": 52,
    }
    spans = zip(_summed(tensors["starts"]), tensors["lengths"], strict=True)
    assert dict(zip(names, spans, strict=True)) == {
        "weights": (0, 3),
        "inputs": (0, 3),
        "h": (0, 3),
        "y": (2, 1),
    }
    assert data["moves"] == [1, 256]


def test_a_group_of_unknown_sizes_alone_is_no_area_and_names_nothing() -> None:
    analysis = small(batch=3, train=True)
    lifetimes, stops = lifetimes_of(analysis), evaluated(analysis)
    saved = [*GROUPS].index(SAVED)
    unknown = np.where(lifetimes.groups == saved, 0, lifetimes.sizes.fixed_bytes)
    data = timeline_data(replace(lifetimes, sizes=Sizes(unknown)), stops, None)
    assert data is not None
    series, tensors = data["series"], data["tensors"]
    assert isinstance(series, list)
    assert isinstance(tensors, dict)
    assert SAVED not in [each["name"] for each in series]
    assert all(tensors["fixed"])


def test_what_a_model_without_a_batch_shows_does_not_move() -> None:
    fixed = model_of("agraph (float[7] x, float[11] z) => (float[7] y, float[11] u) {"
                     " y = Relu(x) u = Relu(z) }")  # fmt: skip
    page = render_page(analyze(fixed))
    assert data_of(page)["batch"] is None
    assert 'id="onnxmem-batch-range"' not in page


def test_a_model_of_nothing_has_a_page() -> None:
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 7])
    empty = onnx.helper.make_model(onnx.helper.make_graph([], "g", [value], [value]))
    page = render_page(analyze(empty))
    assert read(page).faults == []
    assert data_of(page)["timeline"] is None


def test_a_partial_model_says_that_figures_are_lower_bounds() -> None:
    odd = model_of(
        '<ir_version: 10, opset_import: ["" : 21, "own" : 1]>\n'
        "agraph (float[N, 7] x) => (y) { h = Relu(x) y = own.Odd(h) }"
    )
    page = render_page(analyze(odd, batch=2))
    text = "".join(read(page).text)
    assert "warning: " in text
    assert "1 tensor of unknown size" in text
    assert "unknown tensors: y" in text


def test_runtimes_have_their_tables() -> None:
    analysis = small(batch=3, runtimes=("ort-cpu", "ort-cuda"), asks_onnxruntime=False)
    page = render_page(analysis)
    shown = dict(figures(page))
    for number, runtime in enumerate(analysis.runtimes):
        for key, value in predicted_by(runtime).figures.items():
            if f"runtimes.{number}.{key}" in shown:
                assert shown[f"runtimes.{number}.{key}"] == ("" if value is None else str(value))
    assert "CUDA context" in page


def test_what_was_predicted_stands_beside_what_was_measured() -> None:
    analysis = small(batch=3, runtimes=("ort-cpu",), asks_onnxruntime=False)
    page = render_page(replace(analysis, measured=MEASUREMENT))
    text = " ".join("".join(read(page).text).split())
    predicted = analysis.runtimes[0].arena.requested_peak_bytes
    error = 100 * (predicted / 2_000_000 - 1)
    assert "onnxruntime-cpu 1.31.1, 3 runs" in text
    assert f"2,000,000 B{error:+.1f} %" in text
    # What a runtime does at another batch may hang on what the run was fed.
    held = data_of(page)["figures"]["runtimes.0.process_bytes"]["at"]
    assert [value for value in held if value is not None] == [analysis.runtimes[0].process_bytes]


def test_what_fits_is_said_of_a_budget_that_cannot_be_met_or_never_is() -> None:
    for budget, said in ((5, "does not fit"), (2**60, "no limit")):
        assert said in render_page(small(batch=3, budget_bytes=budget))
    fixed = model_of("agraph (float[7] x, float[11] z) => (float[7] y) { y = Relu(x) }")
    assert "the model has no batch" in render_page(analyze(fixed, budget_bytes=2**20))


def test_a_cache_has_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxmem.report.page.stops._SECONDS", -1.0)
    analysis = analyze(MODELS / "smollm_cached.onnx", context=512)
    page = render_page(analysis)
    shown = dict(figures(page))
    cache = analysis.to_dict()["kv_cache"]
    assert isinstance(cache, dict)
    assert shown["kv_cache.bytes"] == str(cache["bytes"])
    assert shown["kv_cache.prefill.total_bytes"] == str(cache["prefill"]["total_bytes"])


def test_checkpoints_are_listed_where_they_are_requested() -> None:
    page = render_page(small(batch=3, train=True, recipe=TrainingConfig(checkpoint="best")))
    assert 'id="checkpoints"' in page


@pytest.fixture(scope="module", params=range(len(EVIL)))
def evil(request: pytest.FixtureRequest) -> tuple[str, str]:
    text = EVIL[request.param]
    model = model_of(SMALL)
    for node in model.graph.node:
        node.name += text
        node.input[:] = [each + text for each in node.input]
        node.output[:] = [each + text for each in node.output]
    for value in (*model.graph.input, *model.graph.output):
        value.name += text
    for weight in model.graph.initializer:
        weight.name += text
    model.graph.node.add(op_type=f"Odd{text}", domain="own", input=["y" + text], output=["odd"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onnxmem.report.page.stops._MOST", 3)
        return text, render_page(analyze(model, train=True))


def test_a_name_stays_text_whatever_it_holds(evil: tuple[str, str]) -> None:
    text, page = evil
    reader = read(page)
    assert (reader.faults, reader.open) == ([], [])
    assert len(page) < 400_000
    assert text not in page
    tags = {tag for tag, _ in reader.elements}
    assert not {"img", "iframe", "a", "link", "object"} & tags
    attributes = {key for _, attrs in reader.elements for key in attrs}
    assert not [key for key in attributes if key.startswith("on")]
    allowed = set("\n")
    assert all(char.isprintable() or char in allowed for char in page.replace("\t", ""))
    assert len([tag for tag, _ in reader.elements if tag == "script"]) == 3


def test_json_in_a_script_ends_nothing() -> None:
    text = script_json(["</script><!--", "\u2028\u2029&"])
    assert text == '["\\u003c/script\\u003e\\u003c!--","\\u2028\\u2029\\u0026"]'
    assert name("<b>\u202e") == "&lt;b&gt;\\u202e"
    assert size(None) == '<span class="size">unknown</span>'
    assert "hidden" in filter_box("a", "b")
    assert "<title>&lt;i&gt;</title>" in document("<i>", [])


def test_a_large_model_has_a_small_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxmem.report.page.stops._MOST_NODES", 1000)
    analysis = analyze(chain(tmp_path / "chain.onnx", 3000), batch=5)
    page = render_page(analysis)
    held = data_of(page)
    assert len(page) < 900_000
    assert "The 1,000 nodes of 3,000 with the most" in page
    assert held["stops"] == [5]
    steps = _summed(held["timeline"]["steps"])
    totals = [
        sum(at)
        for at in zip(
            *(_expanded(s["fixed"], len(steps)) for s in held["timeline"]["series"]), strict=True
        )
    ]
    assert len(steps) <= 1002
    assert max(totals) == analysis.total_bytes
    # The line of inference is known without another batch.
    line = analysis.batch_law
    assert line is not None
    assert held["figures"]["total_bytes"]["lines"] == [
        [1, line.last, line.fixed_bytes, line.slope_bytes]
    ]
    assert held["last"] == line.last


def _expanded(changes: list[int], num_steps: int) -> list[int]:
    deltas, index = [0] * num_steps, 0
    for distance, change in zip(changes[::2], changes[1::2], strict=True):
        index += distance
        deltas[index] = change
    return _summed(deltas)


def _summed(deltas: list[int]) -> list[int]:
    total, found = 0, []
    for each in deltas:
        total += each
        found.append(total)
    return found


def test_between_stops_the_words_are_those_that_the_search_has_proven() -> None:
    analysis = analyze(model_of(SMALL), batch=3, budget_bytes=4096)
    expected = evaluated(analysis).known_texts("verdict.budget")
    assert [text for *_, text in expected] == ["fits", "does not fit"]
    for batch in range(1, 60):
        found = analyze(model_of(SMALL), batch=batch, budget_bytes=4096).fit
        assert found is not None
        (word,) = [text for first, last, text in expected if first <= batch <= last]
        assert word == found.verdict.value
    assert evaluated(analysis).known_texts("activations.peak_node") == ()
    assert evaluated(small(batch=3)).known_texts("verdict.budget") == ()


@pytest.mark.parametrize(
    ("max_batch", "expected"),
    [
        (MaxBatch(None, 9, None, "closed form"), []),
        (
            MaxBatch(7, 9, 11, "replays", comfortable=5),
            [(1, 5, "fits"), (6, 7, "fits or tight"), (8, 8, "does not fit")],
        ),
        (MaxBatch(7, 9, None, "replays", is_stopped=True), [(1, 7, "fits")]),
        (
            MaxBatch(7, 9, 11, "every number", comfortable=5),
            [(1, 5, "fits"), (6, 7, "fits or tight"), (8, LARGEST_BATCH, "does not fit")],
        ),
        (
            MaxBatch(7, 9, 11, "every number", comfortable=0, above=((9, 9),)),
            [(1, 7, "fits or tight")],
        ),
        (MaxBatch(7, 9, None, "bisection", is_stopped=True), [(1, 7, "fits")]),
        (MaxBatch(0, None, 11, "one evaluation"), [(1, LARGEST_BATCH, "does not fit")]),
    ],
)
def test_what_is_known_between_stops(
    max_batch: MaxBatch, expected: list[tuple[int, int, str]]
) -> None:
    analysis = analyze(model_of(SMALL), batch=3, budget_bytes=4096)
    assert analysis.fit is not None
    other = replace(analysis, fit=replace(analysis.fit, max_batch=max_batch))
    assert list(with_request(evaluated(analysis), other).known_texts("verdict.budget")) == expected


def with_request(stops: Stops, analysis: Analysis) -> Stops:
    return replace(stops, requested=replace(stops.requested, analysis=analysis))


def test_time_that_is_up_ends_the_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxmem.report.page.stops._SECONDS", -1.0)
    assert evaluated(small(batch=3)).batches == (3,)


def test_layers_that_do_not_move_in_a_line_are_said_to_be_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("onnxmem.report.page.stops._MOST", 2)
    analysis = small(batch=3)
    assert 'data-per="?"' in layers_section(analysis, evaluated(analysis))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(model_of(SMALL), path)
    return path


def test_html_is_written_beside_the_report(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "net.html"
    assert main([str(model), "--html", str(page)]) == 0
    captured = capsys.readouterr()
    assert "Inference" in captured.out
    assert captured.err == f"Wrote {page}\n"
    assert "weights + inputs + peak activation memory" in page.read_text(encoding="utf-8")
    assert main([str(model), "--html", str(page)]) == 2
    assert "exists; pass --force" in capsys.readouterr().err
    assert main([str(model), "--html", str(page), "-o", str(page), "--force"]) == 2
    assert "are two pages; choose one" in capsys.readouterr().err
    assert main([str(model), "--html", "new", "-o", "new"]) == 2
    assert "requested twice" in capsys.readouterr().err
    assert main([str(model), "--accuracy", "a.csv"]) == 2
    assert "see --html" in capsys.readouterr().err


def test_a_cache_of_rows_has_no_page(model: Path, tmp_path: Path) -> None:
    for number in range(2):
        page = tmp_path / f"{number}.html"
        assert main([str(model), "--html", str(page), "--cache", str(tmp_path / "rows")]) == 0
        assert "onnxmem-data" in page.read_text(encoding="utf-8")


def test_several_models_and_one_that_fails_have_a_page_of_all(model: Path, tmp_path: Path) -> None:
    page = tmp_path / "all.html"
    assert main([str(model), "nowhere.onnx", "--html", str(page), "--no-progress"]) == 2
    assert "nowhere.onnx" in page.read_text(encoding="utf-8")
    page = tmp_path / "failed.html"
    assert main(["nowhere.onnx", "--html", str(page)]) == 2
    assert "no such file" in page.read_text(encoding="utf-8")


def test_view_opens_a_page_of_its_own(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    urls: list[str] = []

    def browser(url: str) -> bool:
        urls.append(url)
        return len(urls) == 1

    monkeypatch.setattr("webbrowser.open", browser)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["view", str(model), "--batch", "5"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert urls[0].startswith("file://")
    assert urls[0].endswith("/net.html")
    kept = tmp_path / "kept.html"
    assert main(["view", str(model), "-o", str(kept)]) == 0
    assert "no browser could be opened" in capsys.readouterr().err
    assert main(["view", str(model), "-o", str(kept), "--force", "--no-open"]) == 0
    assert len(urls) == 2
    assert main(["view", str(model), "--json"]) == 2


def test_a_sum_by_module_goes_as_deep_as_no_module_has_more_than_half() -> None:
    sizes = [("net.a.weight", 3), ("/net/net.b/Conv_output_0", 4), ("state of net.c.weight", 3)]
    assert useful_depth(sizes) == 2
    assert [module_at(name, 2) for name, _ in sizes] == ["net.a", "net.b", "net.c"]
    assert useful_depth([("val_1", 5), ("val_2", 5)]) is None
    assert useful_depth([]) is None
    # A name of its own is no module.
    assert module_at("conv.weight", 8) == "conv"
    assert module_at("adam step", 1) == NO_MODULE

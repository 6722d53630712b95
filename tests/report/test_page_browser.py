"""Pages in a headless Chromium: they draw, move, sort and filter, and request nothing."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from browsers import DRAWN, Browser, needs_browser
from pages import chain, data_of
from paths import MODELS

from onnxmem import Analysis, analyze
from onnxmem.analysis.compute import layers
from onnxmem.cli import main
from onnxmem.program.program import Category
from onnxmem.report.page.model_page import render_page
from onnxmem.report.page.stops import budget_terms, figures_of
from onnxmem.report.timelines import GROUPS
from onnxmem.report.verdict import largest_text
from onnxmem.units import format_bytes, format_count

pytestmark = [pytest.mark.browser, needs_browser]

UNKNOWN = "\N{HORIZONTAL ELLIPSIS}"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.driver.quit()


@pytest.fixture(autouse=True)
def _wide(browser: Browser) -> None:
    browser.screen(1200)


Written = tuple[Analysis, Path]


def _resnet() -> Analysis:
    model = MODELS / "resnet50.train.onnx"
    return analyze(model, batch=128, train=True, budget_bytes=24 * 2**30)


def _decoder() -> Analysis:
    return analyze(MODELS / "smollm_cached.onnx", context=512)


@pytest.fixture(scope="module", params=["resnet", "decoder", "chain"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("pages")

    def many() -> Analysis:
        return analyze(chain(folder / "chain.onnx", 10_000), batch=5)

    made: Mapping[str, Callable[[], Analysis]] = {
        "resnet": _resnet,
        "decoder": _decoder,
        "chain": many,
    }
    analysis = made[request.param]()
    path = folder / f"{request.param}.html"
    with pytest.MonkeyPatch.context() as patch:
        # A busy machine evaluates every stop too.
        patch.setattr("onnxmem.report.page.stops._SECONDS", 120.0)
        path.write_text(render_page(analysis), encoding="utf-8")
    return analysis, path


def written(value: int | None, key: str) -> str:
    if value is None:
        return "unknown"
    if key.startswith(("compute.", "elements.")):
        return f"{format_count(value)} {value:,}"
    return f"{format_bytes(value)} {value:,} B"


def test_it_draws_without_a_fault_or_a_request(browser: Browser, page: Written) -> None:
    for theme in ("light", "dark"):
        browser.screen(1200, is_dark=theme == "dark")
        assert browser.open(page[1]) < 5
        assert (
            browser.run("return document.querySelectorAll('#onnxmem-timeline canvas').length") == 1
        )
        assert browser.is_seen("#onnxmem-timeline svg.chart") is False
        assert browser.faults(page[1]) == []
        browser.keep(f"{page[1].stem}-{theme}")


def test_the_theme_turns_by_its_button(browser: Browser, page: Written) -> None:
    browser.open(page[1])
    paper = "return getComputedStyle(document.body).backgroundColor"
    assert browser.run(paper) == "rgb(255, 255, 255)"
    browser.run("document.getElementById('onnxmem-theme').click()")
    assert browser.run(paper) == "rgb(13, 17, 23)"
    assert browser.faults(page[1]) == []


def test_the_slider_shows_what_the_command_line_prints(browser: Browser, page: Written) -> None:
    analysis, path = page
    browser.open(path)
    stops = data_of(path.read_text(encoding="utf-8"))["stops"]
    assert len(stops) > 2
    between = next(n for n in (100, 50, 30, 7, 3, 2) if n not in stops and n < stops[-1])
    for batch in (stops[-1], between, stops[0]):
        browser.batch(batch)
        shown = browser.figures()
        at = analysis.at(batch=batch)
        expected = {**figures_of(at).numbers, **terms_of(at)}
        known = {key for key, text in shown.items() if text != UNKNOWN}
        assert {key: shown[key] for key in known} == {
            key: written(expected.get(key, 0), key) for key in known
        }
        if batch in stops:
            assert known == set(shown)
        assert shown["total_bytes"] == written(expected["total_bytes"], "total_bytes")
        moved = browser.run("return document.querySelector('[data-caption=\"batch\"]').textContent")
        assert moved == f" at batch {batch:,}"
    browser.batch(analysis.settings.batch or 1)
    assert browser.figures()["total_bytes"] == written(analysis.total_bytes, "total_bytes")
    assert browser.faults(path) == []


def terms_of(analysis: Analysis) -> Mapping[str, int | None]:
    """What is compared with the budget, by the keys of the page."""
    if analysis.fit is None:
        return {}
    terms = budget_terms(analysis.fit.assessment, analysis.fit.requested)
    return {line.key: line.number for line in terms if line.key}


def text_of(browser: Browser, selector: str) -> str:
    return str(
        browser.run(
            "return document.querySelector(arguments[0]).textContent.replace(/\\s+/g, ' ').trim()",
            selector,
        )
    )


def test_everything_that_names_the_batch_follows_the_slider(
    browser: Browser, page: Written
) -> None:
    analysis, path = page
    browser.open(path)
    stops = data_of(path.read_text(encoding="utf-8"))["stops"]
    for batch in (stops[-1], stops[0]):
        browser.batch(batch)
        at = analysis.at(batch=batch)
        takes_bytes = at.total_bytes if at.fit is None else at.fit.taken_bytes
        assert text_of(browser, "h1").endswith(f": {format_bytes(takes_bytes)}")
        assert browser.driver.title == text_of(browser, "h1")
        assert f"batch {batch:,}" in text_of(browser, ".assumes")
        # Every batch has its packing, or says of which batch one is drawn.
        drawn = text_of(browser, "#packing [data-packed-batch]")
        if drawn == f"{batch:,}":
            packed = at.activations.packing.size_bytes
            assert f"in one block: {format_bytes(packed)} (" in text_of(browser, "#packing figure")
        else:
            assert drawn.endswith(f"the nearest to {batch:,} that is computed")
    assert browser.faults(path) == []


def test_the_slider_goes_to_twice_the_largest_batch_and_shows_that_it_does_not_fit(
    browser: Browser, tmp_path: Path
) -> None:
    analysis = analyze(MODELS / "mlp.onnx", batch=3, train=True, budget_bytes=600 * 2**20)
    largest = analysis.max_batch
    assert largest is not None
    assert largest.number is not None
    path = tmp_path / "mlp.html"
    path.write_text(render_page(analysis), encoding="utf-8")
    browser.open(path)
    last = int(browser.run("return document.getElementById('onnxmem-batch-range').max"))
    assert last >= 2 * largest.number
    state = "return document.querySelector('.answer .verdict').dataset.state"
    browser.batch(largest.number)
    assert browser.run(state) in {"fits", "tight"}
    for batch in (largest.number + 1, 2 * largest.number):
        browser.batch(batch)
        assert f"batch {batch:,}" in text_of(browser, "#fits")
        assert browser.run(state) == "over"
    at = analysis.at(batch=2 * largest.number)
    assert at.fit is not None
    takes = at.fit.assessment.footprint.total_bytes
    assert browser.figures()["terms.takes.1"] == written(takes, "terms.takes.1")
    assert browser.faults(path) == []


def test_the_answer_is_on_the_first_screen_and_follows_the_slider(
    browser: Browser, tmp_path: Path
) -> None:
    analysis = analyze(MODELS / "mlp.onnx", batch=3, train=True, budget_bytes=600 * 2**20)
    path = tmp_path / "mlp.html"
    path.write_text(render_page(analysis), encoding="utf-8")
    for go_to in (browser.open_without_scripts, browser.open):
        browser.screen(390)
        go_to(path)
        box = browser.driver.find_element("class name", "answer").rect
        assert box["y"] + box["height"] < 844
    assert analysis.max_batch is not None
    for batch in (3, 2 * (analysis.max_batch.number or 0)):
        browser.batch(batch)
        result = analysis.at(batch=batch).fit
        assert result is not None
        takes = format_bytes(result.footprint.total_bytes)
        answer = text_of(browser, ".answer")
        assert answer.startswith(f"{result.verdict}: ")
        assert f". Takes {takes} of 600 MiB at batch {batch:,}. " in answer
        assert f"Largest batch that fits: {largest_text(result)}. " in answer
        assert answer.endswith("Accuracy: +-11 % (90 % of 138 settings on an H100 or H200).")
    assert browser.faults(path) == []


def test_the_nodes_of_a_subgraph_have_the_live_bytes_of_their_loop(
    browser: Browser, tmp_path: Path
) -> None:
    analysis = analyze(MODELS / "greedy_translator.onnx", batch=2)
    path = tmp_path / "loop.html"
    path.write_text(render_page(analysis), encoding="utf-8")
    browser.open(path)
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    rows = browser.run(
        "return [...document.querySelectorAll('#layers-table tbody tr')].map((row) =>"
        " [row.cells[1].textContent, Number(row.cells[0].dataset.value),"
        " Number(row.cells[3].dataset.value)])"
    )
    assert len(rows) == sum(1 for _ in analysis.graph.all_nodes())
    live = analysis.activations.live_bytes
    assert {step for _, step, _ in rows} == set(range(1, len(live) + 1))
    assert all(size == live[step - 1] for _, step, size in rows)
    (loop,) = [step for name, step, _ in rows if name == "/Loop"]
    nested = [step for name, step, _ in rows if name.startswith("/Loop/")]
    assert len(nested) > 50
    assert set(nested) == {loop}
    assert text_of(browser, "tr:has(.badge) .name") == analysis.activations.peak_node
    assert browser.faults(path) == []


@pytest.mark.parametrize("typed", ["0", "-3", "2.5", "1e9", ""])
def test_a_number_that_is_not_a_batch_says_so(browser: Browser, page: Written, typed: str) -> None:
    browser.open(page[1])
    before = browser.figures()
    browser.run(
        "const number = document.getElementById('onnxmem-batch-number');"
        "number.value = arguments[0]; number.dispatchEvent(new Event('change'))",
        typed,
    )
    assert "is not a batch: a whole number from 1 to " in text_of(browser, "#onnxmem-batch-note")
    assert browser.figures() == before
    browser.batch(1)
    assert "is not a batch" not in text_of(browser, "#onnxmem-batch-note")
    assert not browser.run("return document.querySelector('[aria-invalid]')")


def test_the_layers_move_with_the_batch(browser: Browser, page: Written) -> None:
    analysis, path = page
    browser.open(path)
    batch = data_of(path.read_text(encoding="utf-8"))["stops"][-1]
    browser.batch(batch)
    at = analysis.at(batch=batch)
    rows = layers(at.graph, at.parameters, at.compute)
    shown = browser.run(
        "return [...document.querySelectorAll('#layers-table tbody tr')].map((row) =>"
        " [row.cells[0].dataset.value, row.cells[4].textContent, row.cells[6].title,"
        " row.cells[10].textContent, row.cells[3].title])"
    )
    for step, shape, output, flops, live in shown:
        row = rows[int(step) - 1]
        assert shape == ("x".join(map(str, row.output_shape or ())) or "scalar")
        assert output == f"{row.output_bytes:,}"
        assert flops == format_count(row.flops)
        assert live == f"{at.activations.live_bytes[int(step) - 1]:,}"


def test_what_the_text_report_prints_at_a_batch_is_on_the_page(
    browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "resnet.html"
    words = [str(MODELS / "resnet50.train.onnx"), "--train", "--budget", "24GiB"]
    assert main([*words, "--batch", "128", "--html", str(path)]) == 0
    browser.open(path)
    for batch in (64, 100):
        capsys.readouterr()
        assert main([*words, "--batch", str(batch), "-v"]) == 0
        report = capsys.readouterr().out
        browser.batch(batch)
        shown = browser.figures()
        for label, key in (
            ("Inference", "total_bytes"),
            ("Training step", "training.peak_bytes"),
            ("  peak activation memory", "activations.in_place_peak_bytes"),
            ("  gradients", "training.live_by_kind.gradients"),
        ):
            line = next(line for line in report.splitlines() if line.startswith(label))
            rounded, exact = shown[key].rsplit(" ", 2)[0], shown[key].rsplit(" ", 2)[1]
            assert f" {rounded} " in line
            assert f" {exact} B" in line
        verdict = browser.run("return document.querySelector('#fits [data-verdict]').textContent")
        # By how much is known at a stop alone; whether it fits, of every batch.
        assert verdict in report
        assert (": " in verdict) == (batch == 64)
        peak_at = browser.run("return document.querySelector('#run [data-text]').textContent")
        # The report is wrapped to the terminal's width.
        assert peak_at in " ".join(report.split())


def test_the_live_set_adds_up_at_every_batch(browser: Browser, page: Written) -> None:
    analysis, path = page
    browser.open(path)
    stops = data_of(path.read_text(encoding="utf-8"))["stops"]
    for batch in (stops[0], stops[-1], stops[-1] - 1):
        browser.batch(batch)
        total = browser.run("return document.querySelector('#live-run tfoot .exact')?.textContent")
        sizes = browser.run(
            "return [...document.querySelectorAll('#live-run tbody .exact')]"
            ".map((size) => size.textContent)"
        )
        peak = analysis.at(batch=batch).activations.in_place_peak_bytes
        if total is not None:
            assert total == f"{peak:,} B"
            assert sum(int(size[:-2].replace(",", "")) for size in sizes) == peak


def selected(browser: Browser, table: str) -> list[str]:
    return list(
        browser.run(
            "return [...document.querySelectorAll(`${arguments[0]} tr.selected .name`)]"
            ".map((name) => name.textContent)",
            table,
        )
    )


def test_a_click_selects_the_same_thing_everywhere(browser: Browser, page: Written) -> None:
    analysis, path = page
    browser.open(path)
    largest = analysis.activations.live_at_peak[0].label
    producer = next(node for node in analysis.graph.nodes if largest in node.outputs).name
    # On a bar: the tensor, the row of its node, and its strip.
    browser.run("document.querySelector('#live-run tbody button').click()")
    assert largest in selected(browser, "#live-run")
    assert f"selected tensor {largest}: " in text_of(browser, "#onnxmem-readout")
    rows = browser.run(
        "return [...document.querySelectorAll('#layers-table .name')].map((e) => e.textContent)"
    )
    # Of very many nodes those are in the table at which most is alive.
    assert (producer in selected(browser, "#layers-table")) == (producer in rows)
    strips = browser.run(
        "const rects = [...document.querySelectorAll('#packing rect')];"
        "return [rects.filter((each) => each.textContent.startsWith(`${arguments[0]}: `)).length,"
        " rects.filter((each) => each.classList.contains('selected')).length]",
        largest,
    )
    # Of very many strips the largest have names.
    assert strips[0] == strips[1] == (1 if len(analysis.graph.nodes) < 1000 else strips[0])
    # On a row of the layers: the node and the tensor that it makes.
    browser.run("document.querySelector('#onnxmem-readout .chosen button').click()")
    assert selected(browser, "table") == []
    node = producer if producer in rows else rows[0]
    browser.run(
        "[...document.querySelectorAll('#layers-table tbody button')]"
        ".find((each) => each.textContent === arguments[0]).click()",
        node,
    )
    assert f"selected node {node}" in text_of(browser, "#onnxmem-readout")
    if node == producer:
        assert largest in selected(browser, "#live-run")
    # On the chart, by the keyboard.
    holder = browser.driver.find_element("id", "onnxmem-timeline")
    holder.send_keys("\ue00c")  # Escape
    assert selected(browser, "table") == []
    holder.send_keys("\ue011\ue014\ue007")  # Home, ArrowRight, Enter
    found = selected(browser, "#layers-table")
    assert found or len(analysis.graph.nodes) > len(rows)
    assert "selected node " in text_of(browser, "#onnxmem-readout")
    # It stays as the batch moves.
    browser.batch(1)
    assert selected(browser, "#layers-table") == found
    assert browser.faults(path) == []


def test_a_tensor_or_node_is_found_by_a_part_of_its_name(browser: Browser, page: Written) -> None:
    analysis, path = page
    browser.open(path)
    largest = analysis.activations.live_at_peak[0].label
    field = browser.driver.find_element("id", "onnxmem-search")
    field.send_keys(largest.upper())
    assert f"tensor {largest}" in text_of(browser, "#onnxmem-matches")
    field.send_keys("\ue007")  # Enter
    assert f"selected tensor {largest}: " in text_of(browser, "#onnxmem-readout")
    field.clear()
    field.send_keys("nothing is called so")
    assert "no tensor or node of that name" in text_of(browser, "#onnxmem-matches")


def test_weights_may_be_hidden(browser: Browser, page: Written) -> None:
    analysis, path = page
    if not analysis.weight_bytes:
        pytest.skip("a model without weights")
    browser.open(path)
    lasting = "#onnxmem-legend button"
    weights = int(
        analysis.weight_bytes
        if analysis.training is None
        else analysis.training.live_by_category()[Category.WEIGHT]
    )
    assert text_of(browser, lasting) == f"weights {format_bytes(weights)}"
    total = analysis.total_bytes if analysis.training is None else analysis.training.peak_bytes
    assert text_of(browser, "#onnxmem-readout b") == format_bytes(total)
    browser.run("document.querySelector(arguments[0]).click()", lasting)
    pressed = browser.run("return document.querySelector(arguments[0]).ariaPressed", lasting)
    assert pressed == "false"
    assert "of the categories shown" in text_of(browser, "#onnxmem-readout")
    browser.run("document.querySelector(arguments[0]).click()", lasting)
    assert text_of(browser, "#onnxmem-readout b") == format_bytes(total)


def test_a_category_has_one_name_and_color_everywhere(browser: Browser, page: Written) -> None:
    analysis, path = page
    browser.open(path)
    found = browser.run(
        "const color = (each) => getComputedStyle(each).backgroundColor;"
        "const name = (each) => each.parentElement.cloneNode(true);"
        "const plain = (each) => { const copy = name(each);"
        " copy.querySelectorAll('b, .swatch').forEach((part) => part.remove());"
        " return copy.textContent.trim(); };"
        "return Object.fromEntries(['#onnxmem-legend', '#train', '#live'].map((place) => [place,"
        " [...document.querySelectorAll(`${place} .swatch`)].map((each) =>"
        " [plain(each), color(each)])]))"
    )
    colors = dict(found["#onnxmem-legend"])
    assert len(set(colors.values())) == len(colors)
    known = set(GROUPS) | {"inputs"}
    assert set(colors) <= known
    tables = [*found["#train"], *found["#live"]]
    assert tables
    for name, color in tables:
        if name in colors and name != "activations":
            assert colors[name] == color, name
    if analysis.training is not None:
        # Saved activations are a part of the activations there.
        activations = {color for name, color in found["#train"] if name == "activations"}
        assert activations == {colors["saved for backward"], colors["activations"]}


def test_bars_name_the_tensors_of_90_percent_of_the_peak(browser: Browser, page: Written) -> None:
    browser.open(page[1])
    tables = browser.run(
        "return [...document.querySelectorAll('table.bars')].map((table) =>"
        " [...table.querySelectorAll('tbody tr')].map((row) =>"
        " [row.cells[0].textContent, Number(row.cells[2].querySelector('.exact')"
        ".textContent.replace(/[^0-9]/g, ''))]))"
    )
    for rows in tables:
        total = sum(size for _, size in rows)
        named = [size for name, size in rows if not name.endswith(" more")]
        assert named == sorted(named, reverse=True)
        assert sum(named) >= 0.9 * total or len(named) == 200
        # No more than are needed.
        assert sum(named[:-1]) < 0.9 * total


def test_a_peak_is_summed_by_module_and_a_module_is_selected_everywhere(
    browser: Browser, page: Written
) -> None:
    analysis, path = page
    browser.open(path)
    shown = "return [...document.querySelectorAll('#live-modules tbody tr')].map((row) =>"
    shown += " [row.cells[0].textContent, row.cells[2].querySelector('.size').textContent])"
    rows = browser.run(shown)
    if analysis.training is None:
        assert rows == []
        return
    for batch in (128, 568):
        browser.batch(batch)
        training = analysis.at(batch=batch).training
        assert training is not None
        replay = training.replay
        labels = replay.program.labels
        of_module = [
            replay.sizes.bytes_of(number)
            for number in replay.program.alive_after(replay.peak.num_events)
            if "layers.0." in labels[number] or "layers/layers.0/" in labels[number]
        ]
        found = dict(browser.run(shown))
        assert found["layers.0"] == format_bytes(sum(of_module))
        total = text_of(browser, "#live-modules tfoot")
        assert total.endswith(f"{training.peak_bytes:,} B")
    browser.run(
        "[...document.querySelectorAll('#live-modules tbody button')]"
        ".find((each) => each.textContent === 'layers.0').click()"
    )
    inside = {n.name for n in analysis.graph.nodes if n.name.startswith("/layers/layers.0/")}
    assert set(selected(browser, "#layers-table")) == inside
    tensors = selected(browser, "#live-train")
    assert "/layers/layers.0/conv3/Conv_output_0" in tensors
    assert all("/layers.0/" in name or "layers.0." in name for name in tensors)
    # Once forward, once backward, and parts of the optimizer's.
    assert "selected module layers.0: " in text_of(browser, "#onnxmem-readout")
    assert " parts of the timeline" in text_of(browser, "#onnxmem-readout")
    assert browser.faults(path) == []


def test_layers_sort_by_their_heads(browser: Browser, page: Written) -> None:
    browser.open(page[1])
    browser.run("document.querySelector('#layers summary').click()")
    column = (
        "return [...document.querySelectorAll('#layers-table tbody tr')].map((row) =>"
        " row.cells[arguments[0]].dataset.value ?? row.cells[arguments[0]].textContent)"
    )
    head = "#layers-table thead th:nth-child({}) button"
    press = "document.querySelector(arguments[0]).click()"
    for _ in range(2):
        browser.run(press, head.format(7))
    sizes = [int(each) for each in browser.run(column, 6)]
    assert sizes == sorted(sizes)
    browser.run(press, head.format(7))
    assert [int(each) for each in browser.run(column, 6)] == sorted(sizes, reverse=True)
    sort = "return document.querySelectorAll('#layers-table th')[arguments[0]].ariaSort"
    assert browser.run(sort, 6) == "descending"
    # By the keyboard.
    browser.driver.find_element("css selector", head.format(3)).send_keys("\ue007")
    operators = browser.run(column, 2)
    assert operators == sorted(operators, key=str.lower)
    assert browser.run(sort, 6) == "none"
    assert browser.faults(page[1]) == []


def test_the_layers_with_most_alive_come_first_and_the_peak_is_marked(
    browser: Browser, page: Written
) -> None:
    analysis, path = page
    browser.open(path)
    live = (
        "return [...document.querySelectorAll('#layers-table tbody tr')]"
        ".map((row) => Number(row.cells[3].dataset.value))"
    )
    marked = "return document.querySelector('.badge').closest('tr').cells[0].dataset.value"
    for batch in (None, *data_of(path.read_text(encoding="utf-8"))["stops"][::4]):
        at = analysis if batch is None else analysis.at(batch=batch)
        if batch is not None:
            browser.batch(batch)
        sizes = browser.run(live)
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] == at.activations.in_place_peak_bytes
        assert at.activations.peak_step is not None
        assert int(browser.run(marked)) == at.activations.peak_step + 1


def test_layers_are_filtered_by_what_is_typed(browser: Browser, page: Written) -> None:
    browser.open(page[1])
    browser.run("document.querySelector('#layers summary').click()")
    op_type = str(
        browser.run(
            "return document.querySelector('#layers-table tbody tr:last-child')"
            ".cells[2].textContent"
        )
    )
    box = browser.driver.find_element("css selector", "#layers input[type=search]")
    box.send_keys(op_type.upper())
    shown = browser.run(
        "return [...document.querySelectorAll('#layers-table tbody tr')]"
        ".filter((row) => !row.hidden).map((row) => row.textContent.toLowerCase())"
    )
    assert shown
    assert all(op_type.lower() in text for text in shown)
    count = browser.run("return document.querySelector('#layers output').textContent")
    assert count.startswith(f"{len(shown):,} of ")


def test_the_timeline_describes_a_step_by_the_keyboard(browser: Browser, page: Written) -> None:
    browser.open(page[1])
    path = browser.driver.find_element("id", "onnxmem-timeline")
    readout = "return document.getElementById('onnxmem-readout').textContent"
    path.send_keys("\ue011")  # Home
    assert " at step 1 of " in browser.run(readout)
    path.send_keys("\ue014")  # ArrowRight
    after = browser.run(readout)
    assert " at step " in after
    assert " at step 1 of " not in after
    path.send_keys("\ue010")  # End
    steps = browser.run(readout).partition(" at step ")[2].partition(" of ")
    assert steps[2].startswith(steps[0])
    assert browser.faults(page[1]) == []


def test_with_scripts_off_every_figure_and_chart_is_there(browser: Browser, page: Written) -> None:
    analysis, path = page
    browser.open_without_scripts(path)
    shown = browser.figures()
    expected = {**figures_of(analysis).numbers, **terms_of(analysis)}
    assert shown["total_bytes"] == written(analysis.total_bytes, "total_bytes")
    for key, text in shown.items():
        # A kind of bytes that nothing has is there, hidden.
        assert text == written(expected.get(key), key) or key not in expected
    assert browser.is_seen("#onnxmem-timeline svg.chart")
    assert not browser.is_seen("#onnxmem-packing")
    browser.run("document.querySelector('#packing summary').click()")
    assert browser.is_seen("#onnxmem-packing")
    assert not browser.is_seen("#onnxmem-batch")
    assert browser.run("return document.querySelectorAll('canvas').length") == 0
    browser.keep(f"{path.stem}-no-script")


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_a_page_is_at_most_four_screens_long(
    browser: Browser, page: Written, width: int, height: int
) -> None:
    browser.screen(width)
    browser.open(page[1])
    assert browser.run("return document.documentElement.scrollHeight") <= 4 * height
    folded = browser.run(
        "return [...document.querySelectorAll('details:not([open])')]"
        ".map((each) => each.parentElement.id)"
    )
    assert {"layers", "run", "packing"} <= set(folded)
    assert not {"timeline", "live"} & set(folded)
    # The terms of a verdict, which is above.
    assert ("fits" in folded) == (page[0].fit is not None)
    # By the keyboard, as any other control.
    browser.driver.find_element("css selector", "#run summary").send_keys("\ue007")
    assert browser.is_seen("#run table")


def test_a_phone_scrolls_down_alone(browser: Browser, page: Written) -> None:
    browser.screen(390)
    browser.open(page[1])
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    assert browser.run("return innerWidth") == 390
    assert browser.faults(page[1]) == []
    browser.keep(f"{page[1].stem}-phone")


def test_sizes_and_counts_are_written_as_python_writes_them(
    browser: Browser, tmp_path: Path
) -> None:
    """Halves too: 1.125 KiB is 1.12 KiB in both."""
    sizes = [*range(1020, 1160), 1152, 10 * 1024 + 51, 1023 * 1024, 1023 * 1024 + 512, 2**53 + 3]
    sizes += [2**power + more for power in range(10, 70, 3) for more in (-1, 0, 2 ** (power - 3))]
    counts = [0, 999, 9_999, 10_000, 12_250, 12_350, 99_950, 999_499, 999_500, 10**15 + 5 * 10**12]
    path = tmp_path / "resnet.html"
    page_text = render_page(analyze(MODELS / "mlp.onnx", batch=3))
    held = data_of(page_text)
    batches = list(range(1, len(sizes) + 1))
    counted = (counts * len(sizes))[: len(sizes)]
    held |= {"stops": batches, "last": len(batches), "timeline": None}
    held["live"] = {"names": [], "tables": {}}
    held["texts"] = {key: {**text, "at": [""] * len(sizes)} for key, text in held["texts"].items()}
    for key in held["figures"]:
        numbers = counted if key.startswith("compute") else sizes
        held["figures"][key] = {"at": list(map(str, numbers)), "lines": []}
    start = page_text.index('id="onnxmem-data">') + len('id="onnxmem-data">')
    end = page_text.index("</script>", start)
    text = page_text[:start] + json.dumps(held) + page_text[end:]
    path.write_text(text.replace('max="256"', f'max="{len(batches)}"'), encoding="utf-8")
    browser.open(path)
    for number, size, count in zip(batches, sizes, counted, strict=True):
        browser.batch(number)
        shown = browser.figures()
        assert shown["total_bytes"] == written(size, "total_bytes")
        assert shown["compute.forward_macs"] == written(count, "compute.forward_macs")


def test_a_hundred_thousand_steps_open_in_two_seconds(browser: Browser, tmp_path: Path) -> None:
    """The steps of a training step, two for each node."""
    analysis = analyze(chain(tmp_path / "chain.onnx", 50_000), batch=5, train=True)
    path = tmp_path / "steps.html"
    path.write_text(render_page(analysis), encoding="utf-8")
    assert path.stat().st_size <= 3_000_000
    assert browser.open(path) < 2
    assert analysis.training is not None
    assert len(analysis.training.replay.program.events) > 100_000
    peak = browser.run("return document.querySelector('#onnxmem-readout b').textContent")
    assert peak == format_bytes(analysis.training.peak_bytes)
    assert browser.faults(path) == []


@pytest.fixture(scope="module", params=["collection", "difference", "curve"])
def other_page(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """The pages of many models and of two."""
    folder = tmp_path_factory.mktemp("others")
    names = ("mlp", "resnet50", "mobilenet_v2", "densenet121", "vit_tiny", "unet", "alexnet")
    models = [str(MODELS / f"{name}.onnx") for name in names]
    if request.param == "collection":
        arguments = [*models, "--batch", "2", "--no-progress", "--jobs", "1"]
        assert main([*arguments, "--html", str(folder / "all.html")]) == 0
        return "collection", folder / "all.html"
    if request.param == "curve":
        arguments = ["sweep", models[1], "--batch", "1..64", "--train", "--device", "RTX 4090"]
        assert main([*arguments, "--html", str(folder / "curve.html"), "--quiet"]) == 0
        return "curve", folder / "curve.html"
    arguments = ["diff", models[1], models[3], "--batch", "2", "--train", "--quiet"]
    assert main([*arguments, "--html", str(folder / "diff.html")]) == 0
    return "difference", folder / "diff.html"


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_other_pages_cut_nothing_off(
    browser: Browser, other_page: tuple[str, Path], width: int, height: int
) -> None:
    kind, path = other_page
    for theme in ("light", "dark"):
        browser.screen(width, is_dark=theme == "dark")
        browser.open(path)
        browser.keep(f"{kind}-{width}-{theme}")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    cut = browser.run(
        "return [...document.querySelectorAll('.wide, .scroll')].filter((each) =>"
        " each.checkVisibility() && each.scrollWidth > each.clientWidth + 1)"
        ".map((each) => `${each.closest('section').id} ${each.scrollWidth} ${each.clientWidth}`)"
    )
    assert cut == []
    # Words of a chart are as large as those of the page.
    sizes = browser.run(
        "return [...document.querySelectorAll('svg.chart')].filter((each) =>"
        " each.checkVisibility()).map((each) => each.getScreenCTM().a)"
    )
    assert sizes
    assert all(0.9 < size < 1.15 for size in sizes)
    assert browser.run("return document.documentElement.scrollHeight") <= 4 * height
    assert browser.faults(path) == []


def test_a_click_on_a_model_opens_its_page(browser: Browser, tmp_path: Path) -> None:
    models = [str(MODELS / f"{name}.onnx") for name in ("mlp", "vit_tiny")]
    arguments = [*models, "--batch", "2", "--no-progress", "--jobs", "1", "--html"]
    assert main([*arguments, f"{tmp_path}/pages/"]) == 0
    browser.open(tmp_path / "pages" / "index.html")
    bubble = browser.driver.find_element("css selector", "#chart .for-wide a[aria-label=vit_tiny]")
    bubble.find_element("css selector", "text").click()
    assert browser.driver.current_url == (tmp_path / "pages" / "vit_tiny.html").as_uri()
    assert "vit_tiny.onnx: " in browser.driver.title
    assert main([*arguments, str(tmp_path / "one.html")]) == 0
    browser.open(tmp_path / "one.html")
    browser.run("document.querySelector('#chart .for-wide a[aria-label=mlp]').focus()")
    browser.driver.switch_to.active_element.send_keys("\ue007")
    assert "mlp.onnx" in text_of(browser, "td:target")


CONTRASTS = """
const context = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
function channels(color, under) {
  context.fillStyle = under; context.fillRect(0, 0, 1, 1);
  context.fillStyle = color; context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
}
const text = (rgb) => `rgb(${rgb.join(',')})`;
function behind(element) {
  const layers = [];
  for (let each = element; each; each = each.parentElement) layers.unshift(getComputedStyle(each));
  return layers.reduce((under, style) => text(channels(style.backgroundColor, under)), 'white');
}
function luminance(rgb) {
  const [r, g, b] = rgb.map((each) => each / 255)
    .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function opacity(element) {
  let found = 1;
  for (let each = element; each; each = each.parentElement) {
    found *= Number(getComputedStyle(each).opacity);
  }
  return found;
}
const poor = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement, style = getComputedStyle(element);
  const isWords = !['SCRIPT', 'STYLE', 'title', 'desc'].includes(element.tagName);
  if (!isWords || !node.data.trim() || !element.checkVisibility()) continue;
  const under = behind(element);
  const ink = element.closest('svg') ? style.fill : style.color;
  context.globalAlpha = 1;
  const full = channels(ink, under), share = opacity(element), back = channels(under, 'white');
  const seen = full.map((each, n) => each * share + back[n] * (1 - share));
  const [light, dark] = [luminance(seen), luminance(back)].sort((a, b) => b - a);
  const ratio = (light + 0.05) / (dark + 0.05), size = parseFloat(style.fontSize);
  const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  if (ratio < (isLarge ? 3 : 4.5)) poor.push(`${node.data.trim()}: ${ratio.toFixed(2)}`);
}
return poor;
"""
"""Words whose contrast is below that of WCAG 2.2, 1.4.3 (AA)."""

ROLES = {"button", "link", "slider", "spinbutton", "searchbox", "textbox", "table", "img", "image"}


@pytest.fixture(params=["model", "collection", "difference", "curve"])
def any_page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of each kind, of small models, with everything unfolded."""
    folder = tmp_path_factory.mktemp("any")
    models = [str(MODELS / f"{name}.onnx") for name in ("mlp", "plain_conv_block")]
    words = {
        "model": [models[1], "--batch", "2", "--train", "--budget", "24GiB"],
        "collection": [*models, "--batch", "2", "--no-progress", "--jobs", "1"],
        "difference": ["diff", *models, "--batch", "2", "--train", "--quiet"],
        "curve": ["sweep", models[0], "--batch", "1..8", "--device", "RTX 4090", "--quiet"],
    }
    path = folder / f"{request.param}.html"
    assert main([*words[request.param], "--html", str(path)]) == 0
    return path


def unfolded(browser: Browser, path: Path) -> None:
    browser.open(path)
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_can_be_read(browser: Browser, any_page: Path, theme: str) -> None:
    for width in (1280, 390):
        browser.screen(width, is_dark=theme == "dark")
        unfolded(browser, any_page)
        assert browser.run(CONTRASTS) == []
        picks = "document.querySelector('.pick, table.sortable td')?.click()"
        browser.run(picks)
        browser.run("document.querySelector('.legend button')?.click()")
        browser.run(f"return {DRAWN}")
        assert browser.run(CONTRASTS) == []


def test_every_control_has_a_name(browser: Browser, any_page: Path) -> None:
    unfolded(browser, any_page)
    browser.devtools("Accessibility.enable")
    nodes = browser.devtools("Accessibility.getFullAXTree")["nodes"]
    found = [
        (each["role"]["value"], each.get("name", {}).get("value", ""))
        for each in nodes
        if not each.get("ignored") and each.get("role", {}).get("value") in ROLES
    ]
    assert {role for role, _ in found} >= {"button", "table"}
    assert [role for role, name in found if not name.strip()] == []
    assert browser.run("return document.documentElement.lang") == "en"
    levels = browser.run(
        "return [...document.querySelectorAll('h1, h2, h3')].map((each) => Number(each.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_every_control_is_reached_by_the_keyboard(browser: Browser, any_page: Path) -> None:
    unfolded(browser, any_page)
    body = browser.driver.find_element("tag name", "body")
    expected = browser.run(
        "const all = [...document.querySelectorAll("
        "'button, input, summary, a[href], [tabindex]')].filter((each) => each.checkVisibility());"
        "all.forEach((each, n) => { each.dataset.order = n; }); return all.length"
    )
    assert expected > 10
    seen = []
    for _ in range(expected):
        body.send_keys("\ue004")  # Tab
        order, outline = browser.run(
            "const at = document.activeElement;"
            "return [at.dataset.order, getComputedStyle(at).outlineStyle]"
        )
        assert order is not None
        assert outline != "none"
        seen.append(int(order))
    assert seen == list(range(expected))
    # What scrolls in itself can be scrolled by the keyboard.
    stuck = browser.run(
        "return [...document.querySelectorAll('main *')].filter((each) => each.checkVisibility()"
        " && each.scrollHeight > each.clientHeight + 1"
        " && ['auto', 'scroll'].includes(getComputedStyle(each).overflowY)"
        " && each.tabIndex < 0).map((each) => each.className)"
    )
    assert stuck == []


def test_hints_are_for_the_pointer_that_there_is(browser: Browser, page: Written) -> None:
    seen = {}
    for is_touch in (False, True):
        browser.touch(is_on=is_touch)
        browser.screen(390 if is_touch else 1200)
        browser.open(page[1])
        seen[is_touch] = [browser.is_seen(f"#timeline .for-{kind}") for kind in ("mouse", "touch")]
        if is_touch:
            # A tap selects as a click does.
            browser.run(
                "document.querySelectorAll('#live details').forEach((e) => { e.open = true; });"
                "document.querySelector('#live-run tbody button')"
                ".scrollIntoView({ block: 'center' })"
            )
            button = browser.driver.find_element("css selector", "#live-run tbody button")
            box = button.rect
            top = browser.run("return scrollY")
            at = {"x": box["x"] + 5, "y": box["y"] - top + 5}
            browser.devtools("Input.dispatchTouchEvent", type="touchStart", touchPoints=[at])
            browser.devtools("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
            browser.run("return new Promise((done) => setTimeout(done, 400))")
            assert selected(browser, "#live-run")
    browser.touch(is_on=False)
    assert seen == {False: [True, False], True: [False, True]}

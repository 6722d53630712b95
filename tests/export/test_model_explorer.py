"""The extension of Model Explorer in its real server, over its API and in its page.

It needs ``ai-edge-model-explorer`` (``pip install 'onnxmem[model-explorer]'``).
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from export.small_exports import IF_MODEL, exported
from graphs import model_of
from models_on_disk import CONVNET, write_model
from paths import MODELS

import onnxmem
from onnxmem.export.overlays import Overlay, overlays

pytest.importorskip("model_explorer", reason="ai-edge-model-explorer is not installed")

Json = dict[str, Any]


class Server:
    """A Model Explorer with the extension."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> Any:  # noqa: ANN401 - JSON
        with urlopen(self.url + path, timeout=60) as reply:  # noqa: S310 - on loopback
            return json.load(reply)

    def send(self, **command: object) -> Json:
        headers = {"Content-Type": "application/json"}
        request = Request(  # noqa: S310 - on loopback
            f"{self.url}/apipost/v1/send_command", json.dumps(command).encode(), headers
        )
        with urlopen(request, timeout=120) as reply:  # noqa: S310 - on loopback
            found: Json = json.load(reply)
        return found

    def convert(self, path: Path) -> Json:
        words = {"settings": {}, "deleteAfterConversion": False}
        return self.send(cmdId="convert", extensionId="onnxmem", modelPath=str(path), **words)

    def lay(self, path: Path, graph: Json, **values: object) -> Json:
        return self.send(
            cmdId="run",
            extensionId="onnxmem_memory",
            modelPath=str(path),
            graphId=graph["id"],
            configValues=values,
            graph=graph,
        )


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--host", "127.0.0.1", "--port", str(port), "--no_open_in_browser"]
    started = subprocess.Popen(
        [sys.executable, "-m", "model_explorer", *words, "--extensions=onnxmem.model_explorer"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stop = time.monotonic() + 120
    while True:
        assert started.poll() is None
        assert time.monotonic() < stop
        try:
            urlopen(f"http://127.0.0.1:{port}/check_health", timeout=5).close()
            break
        except OSError:
            time.sleep(0.1)
    yield Server(port)
    started.kill()
    started.wait()


def attributes(entries: list[Json]) -> dict[str, str]:
    return {each["key"]: each["value"] for each in entries}


def on_disk(folder: Path, text: str) -> Path:
    return folder / write_model(folder / "net.onnx", text)


@pytest.mark.slow
class TestApi:
    """What its page requests, requested here."""

    def test_it_finds_the_adapter_and_the_provider(self, server: Server) -> None:
        found = {each["id"]: each for each in server.get("/api/v1/get_extensions")}
        assert found["onnxmem"]["fileExts"] == ["onnx"]
        assert found["onnxmem"]["type"] == "adapter"
        assert found["onnxmem_memory"]["type"] == "node_data_provider"
        assert found["onnxmem_memory"]["filter"]["modelFileExts"] == ["onnx"]
        asked = server.send(cmdId="get_config_editors", extensionId="onnxmem_memory")
        assert [each["id"] for each in asked["configEditors"]] == ["batch", "dims", "train"]

    def test_a_graph_has_the_nodes_and_tensors_of_the_file(
        self, server: Server, tmp_path: Path
    ) -> None:
        (graph,) = server.convert(on_disk(tmp_path, CONVNET))["graphs"]
        nodes = {node["id"]: node for node in graph["nodes"]}
        assert list(nodes) == [
            *("[input]image", "conv", "relu", "pool", "flat", "gemm", "[output]scores"),
        ]
        conv = nodes["conv"]
        assert conv["label"] == "Conv"
        assert attributes(conv["attrs"])["output_bytes"] == "8,192 (8.00 KiB)"
        assert [attributes(each["attrs"]) for each in conv["outputsMetadata"]] == [
            {"tensor_name": "h", "shape": "1x8x16x16", "dtype": "float32", "bytes": "8,192"}
        ]
        assert [attributes(each["attrs"])["tensor_name"] for each in conv["inputsMetadata"]] == [
            *("image", "kernel", "bias"),
        ]
        edges = [
            (edge["sourceNodeId"], edge["targetNodeInputId"], node["id"])
            for node in graph["nodes"]
            for edge in node["incomingEdges"]
        ]
        assert edges == [
            ("[input]image", "0", "conv"),
            ("conv", "0", "relu"),
            ("relu", "0", "pool"),
            ("pool", "0", "flat"),
            ("flat", "0", "gemm"),
            ("gemm", "0", "[output]scores"),
        ]
        figures = graph["groupNodeAttributes"][""]
        assert figures["peak activation memory"] == "10.0 KiB (10,240 bytes)"
        assert figures["assumed"] == "inference, batch 1, graph raw"

    def test_modules_are_layers(self, server: Server) -> None:
        (graph,) = server.convert(MODELS / "resnet50.onnx")["graphs"]
        layers = {node["id"]: node["namespace"] for node in graph["nodes"]}
        assert layers["/layers/layers.0/conv3/Conv"] == "layers/layers.0/conv3"

    def test_the_overlays_are_those_of_the_analysis(self, server: Server) -> None:
        path = MODELS / "resnet50.onnx"
        (graph,) = server.convert(path)["graphs"]
        for train in (False, True):
            found = server.lay(path, graph, batch="2", dims="", train=train)
            assert found["error"] == ""
            analysis = onnxmem.analyze(path, batch=2, train=train)
            assert [
                (each["name"], {node: it["value"] for node, it in each["results"].items()})
                for each in found["result"]
            ] == [(each.title, each.by_node) for each in overlays(analysis)]
            assert {node["id"] for node in graph["nodes"]} >= {*found["result"][-1]["results"]}

    def test_nodes_of_another_adapter_are_found_by_their_outputs(
        self, server: Server, tmp_path: Path
    ) -> None:
        path = on_disk(tmp_path, CONVNET)
        for key in ("tensor_name", "__tensor_tag"):
            shown = {
                "id": "other",
                "nodes": [
                    {
                        "id": f"id of {tensor}",
                        "label": "node",
                        "outputsMetadata": [{"id": "0", "attrs": [{"key": key, "value": tensor}]}],
                    }
                    for tensor in ("image", "h", "p")
                ],
            }
            peak, live = server.lay(path, shown)["result"]
            assert {node: it["value"] for node, it in live["results"].items()} == {
                "id of h": 8192,
                "id of p": 8192 + 2048,
            }
            assert [*peak["results"]] == ["id of h", "id of p"]

    def test_a_body_is_a_graph_of_its_own(self, server: Server, tmp_path: Path) -> None:
        path = on_disk(tmp_path, IF_MODEL)
        main, then, other = server.convert(path)["graphs"]
        (fork,) = (node for node in main["nodes"] if node["id"] == "fork")
        assert fork["subgraphIds"] == [then["id"], other["id"]]
        assert [node["label"] for node in then["nodes"]] == ["Exp", "Add", "fork/then_branch/a"]
        found = server.lay(path, then)
        assert found["result"] is None
        assert found["error"] == (
            "the figures are of nodes of the main graph; a body counts at its node"
        )

    def test_dims_are_those_that_were_typed(self, server: Server, tmp_path: Path) -> None:
        text = "agraph (float[N,past,3] x) => (y) { [sum] y = Relu(x) }"
        path = on_disk(tmp_path, text)
        (graph,) = server.convert(path)["graphs"]
        _, live = server.lay(path, graph, batch=5, dims=" past = 7, ")["result"]
        assert live["results"]["sum"]["value"] == 4 * 5 * 7 * 3

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"batch": "many"}, "'many' is not"),
            ({"dims": "past"}, "'past' is not NAME=N"),
            ({"dims": "none=2"}, "none"),
        ],
    )
    def test_what_cannot_be_analyzed_is_one_line(
        self, server: Server, tmp_path: Path, values: Json, message: str
    ) -> None:
        path = on_disk(tmp_path, CONVNET)
        (graph,) = server.convert(path)["graphs"]
        found = server.lay(path, graph, **values)
        assert found["result"] is None
        assert message in found["error"]
        assert "\n" not in found["error"]
        path.write_text("<html>")
        assert "this is an HTML page" in server.convert(path)["error"]

    def test_it_reads_the_exported_node_data(self, server: Server, tmp_path: Path) -> None:
        analysis = onnxmem.analyze(model_of(CONVNET), train=True)
        (tmp_path / "net.json").write_text(exported(analysis, "model-explorer"))
        path = quote(str(tmp_path / "net.json"))
        read = json.loads(server.get(f"/api/v1/read_text_file?path={path}")["content"])
        saved = overlays(analysis)[-1]
        assert {node: it["value"] for node, it in read["results"].items()} == saved.by_node


FLAGS = (
    *("--headless", "--no-sandbox", "--disable-quic", "--no-first-run", "--window-size=1300,950"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    # The graph is drawn by WebGL, here without a GPU.
    *("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--disable-dev-shm-usage"),
)


def is_whole(panel: str, found: Sequence[Overlay]) -> bool:
    """Whether the page has drawn every overlay, which arrive one by one and in any order."""
    sums = panel.partition("\nSum ")[2].partition("\n")[0].split()
    return len(sums) == len(found) and all(each.title in panel for each in found)


class Page:
    """A page that draws its elements when it likes."""

    def __init__(self, driver: Any, stale: type[Exception]) -> None:  # noqa: ANN401 - selenium is not installed everywhere
        self.driver = driver
        self.stale = stale

    def seen(self, xpath: str) -> Any:  # noqa: ANN401
        """The last element that is shown, which the page may draw later."""
        stop = time.monotonic() + 60
        while not (found := [*filter(self._is_shown, self.driver.find_elements("xpath", xpath))]):
            assert time.monotonic() < stop, xpath
            time.sleep(0.1)
        return found[-1]

    def enter(self, xpath: str, text: str) -> None:
        """Type until the field has kept the text: a dialog that is still drawn may lose it."""
        stop, kept = time.monotonic() + 60, 0
        while kept < 5:
            assert time.monotonic() < stop, xpath
            kept = kept + 1 if self._has(xpath, text) else 0
            time.sleep(0.1)

    def _has(self, xpath: str, text: str) -> bool:
        try:
            field = self.seen(xpath)
            has_text = bool(field.get_attribute("value") == text)
            if not has_text:
                field.clear()
                field.send_keys(text)
        except self.stale:
            return False
        return has_text

    def _is_shown(self, element: Any) -> bool:  # noqa: ANN401
        try:
            return bool(element.is_displayed())
        except self.stale:
            return False


@pytest.mark.browser
@pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="no chromium, or no chromedriver",
)
def test_the_page_lays_a_training_step_over_the_graph(server: Server, tmp_path: Path) -> None:
    webdriver = pytest.importorskip("selenium.webdriver")
    webdriver_faults = pytest.importorskip("selenium.common.exceptions")
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options, webdriver.ChromeService(str(shutil.which("chromedriver"))))

    page = Page(driver, webdriver_faults.StaleElementReferenceException)
    seen = page.seen
    try:
        path = MODELS / "resnet50.onnx"
        opened = {"models": [{"url": str(path), "adapterId": "onnxmem"}]}
        driver.get(f"{server.url}/?data={quote(json.dumps(opened))}")
        seen("//*[contains(text(),'layer count')]")
        seen("//*[contains(text(),'Add per-node data')]").click()
        seen("//*[contains(text(),'Memory (onnxmem)')]").click()
        seen("//mat-dialog-container//mat-slide-toggle//button").click()
        page.enter("(//input[contains(@class,'text-input-editor')])[2]", "2")
        seen("//button[contains(@class,'btn-run')]").click()
        seen("//*[contains(text(),'Aggregated stats')]")
        found = overlays(onnxmem.analyze(path, batch=2, train=True))
        stop = time.monotonic() + 60
        while not is_whole(panel := driver.find_element("css selector", "info-panel").text, found):
            assert time.monotonic() < stop, panel
            time.sleep(0.1)
        if folder := os.environ.get("ONNXMEM_SCREENSHOTS"):
            driver.save_screenshot(str(Path(folder, "model-explorer.png")))
    finally:
        driver.quit()
    in_order = sorted(found, key=lambda each: panel.index(each.title))
    sums = " ".join(str(sum(each.by_node.values())) for each in in_order)
    assert f"\nSum {sums}\n" in panel

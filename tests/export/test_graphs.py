"""The DAG with its bytes, read back by the libraries that it is for."""

import io
import shutil
import subprocess
from typing import Any

import networkx as nx
import pytest
from export.small_exports import HOSTILE_NAMES, analysis_of, exported, hostile_analysis
from models_on_disk import MYSTERY

from onnxmem.errors import shortened

MANY = "g (float[2] x) => (float[2] y) { [split] " + (
    ", ".join(f"p{n}" for n in range(11))
    + " = acme.Split(x) [join] y = acme.Join("
    + ", ".join(f"p{n}" for n in range(11))
    + ") }"
)
MANY = '<ir_version: 10, opset_import: ["" : 21, "acme" : 1]>\n' + MANY


PARSES = pytest.mark.filterwarnings("ignore::DeprecationWarning")
"""pydot calls its parser by names of old."""


def read_graphml(text: str) -> Any:  # noqa: ANN401 - of its stubs a graph has no direction
    return nx.read_graphml(io.BytesIO(text.encode()))


def read_dot(text: str) -> Any:  # noqa: ANN401 - pydot has no types
    pydot = pytest.importorskip("pydot")
    (graph,) = pydot.graph_from_dot_data(text)
    return graph


def test_graphml_has_nodes_and_edges_with_their_bytes() -> None:
    graph = read_graphml(exported(analysis_of(batch=5), "graphml"))
    assert list(graph.edges) == [("n0", "n1"), ("n1", "n2"), ("n2", "n3"), ("n3", "n4")]
    assert graph.nodes["n0"] == {
        "node": "conv",
        "op_type": "Conv",
        "step": 0,
        "output_bytes": 5 * 8 * 256 * 4,
        "live_bytes": 5 * 8 * 256 * 4,
        "weight_bytes": 224 * 4,
        "macs": 5 * 256 * 8 * 27,
    }
    assert graph.edges["n0", "n1"] == {"tensors": "h", "tensor_bytes": 5 * 8 * 256 * 4}


@PARSES
def test_dot_has_the_same_nodes_and_edges() -> None:
    analysis = analysis_of(batch=5)
    graph = read_dot(exported(analysis, "dot"))
    nodes = {node.get_name(): node for node in graph.get_nodes()}
    assert nodes["n4"].get_attributes()["node"] == '"gemm"'
    assert nodes["n0"].get_attributes()["output_bytes"] == f'"{5 * 8 * 256 * 4}"'
    assert len(graph.get_edges()) == 4


@pytest.mark.parametrize("name", ["graphml", "dot"])
def test_an_unknown_size_has_no_attribute(name: str) -> None:
    text = exported(analysis_of(MYSTERY), name)
    if name == "graphml":
        assert "output_bytes" not in read_graphml(text).nodes["n1"]
    else:
        assert text.count("output_bytes=") == 1
    assert "None" not in text


def test_an_edge_of_many_tensors_has_the_name_of_the_first() -> None:
    graph = read_graphml(exported(analysis_of(MANY), "graphml"))
    assert graph.edges["n0", "n1"] == {"tensors": "p0, p1, p2, p3, p4, p5, p6, p7, ... 3 more"}
    assert 'n0 -> n1 [label="", tensors=' in exported(analysis_of(MANY), "dot")


@PARSES
def test_hostile_names_are_parsed_as_they_are_shown() -> None:
    shown = [shortened(name) for name in HOSTILE_NAMES]
    graph = read_graphml(exported(hostile_analysis(), "graphml"))
    assert [graph.nodes[f"n{step}"]["node"] for step in range(len(shown))] == shown
    nodes = {
        node.get_name(): node for node in read_dot(exported(hostile_analysis(), "dot")).get_nodes()
    }
    for step, name in enumerate(shown):
        quoted = name.replace("\\", r"\\").replace('"', r"\"")
        assert nodes[f"n{step}"].get_attributes()["node"] == f'"{quoted}"'


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_renders_hostile_names() -> None:
    text = exported(hostile_analysis(), "dot")
    made = subprocess.run(
        ["dot", "-Tsvg"],  # noqa: S607 - where the system has it
        input=text.encode(),
        capture_output=True,
        check=True,
    )
    assert b"<img" not in made.stdout

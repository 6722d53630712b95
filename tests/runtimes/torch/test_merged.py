"""Activations that several modules compute and the file once: by hand, with distinct primes."""

from dataclasses import replace

import pytest
from graphs import graph_of
from runtimes.torch.training_steps import recipe_of

from onnxmem.model.graph import Graph
from onnxmem.runtimes.torch.merged import with_repeated_activations
from onnxmem.runtimes.torch.step import training_memory

SCOPES = "pkg.torch.onnx.name_scopes"
TEXT = """
    agraph (float[2,3] x) => (float[2,3] y) <float[3,5] v, float[5,3] w, float[5,3] u> {
        h = MatMul(x, v)
        r = Relu(h)
        a = MatMul(r, w)
        b = MatMul(r, u)
        y = Add(a, b)
    }"""
TWO = ("/stem/MatMul", "/blocks.0/Relu", "/blocks.0/up/MatMul", "/blocks.1/up/MatMul", "/Add")


def named(names: tuple[str, ...], *, metadata: bool = False) -> Graph:
    """The graph with the names of the script exporter, or the metadata of torch.export."""
    graph = graph_of(TEXT)
    nodes = tuple(
        replace(node, metadata={SCOPES: str(["", *name.strip("/").split("/")])})
        if metadata
        else replace(node, name=name)
        for node, name in zip(graph.nodes, names, strict=True)
    )
    return replace(graph, nodes=nodes)


@pytest.mark.parametrize("metadata", [False, True])
def test_each_module_computes_and_saves_its_own(metadata: bool) -> None:
    graph = named(TWO, metadata=metadata)
    repeated = with_repeated_activations(graph)
    reads = [(node.onnx_op, node.inputs[0]) for node in repeated.nodes]
    again = "r again, 0"
    assert reads == [
        *(("MatMul", "x"), ("Relu", "h"), ("MatMul", "r")),
        *(("Relu", "h"), ("MatMul", again), ("Add", "a")),
    ]
    before, after = (
        training_memory(each, recipe_of()).saved_activation_bytes
        for each in (with_repeated_activations(named(("n", *TWO[1:1], *"abcd"))), graph)
    )
    assert after == (before or 0) + 4 * 2 * 5
    assert len({node.name for node in repeated.nodes}) == len(repeated.nodes)


@pytest.mark.parametrize(
    "names",
    [
        ("/stem/MatMul", "/stem/act/Relu", "/blocks.0/MatMul", "/blocks.1/MatMul", "/Add"),
        ("/blocks.0/MatMul", "/blocks.0/Relu", "/blocks.0/up/MatMul", "/blocks.1/MatMul", "/Add"),
        ("/stem/MatMul", "/blocks.0/Relu", "/blocks.0/MatMul", "/blocks.0/b/MatMul", "/Add"),
        ("/stem/MatMul", "/blocks.0/Relu", "/blocks.0/up/MatMul", "/MatMul", "/Add"),
        ("a", "b", "c", "d", "e"),
    ],
)
def test_what_one_module_computes_is_computed_once(names: tuple[str, ...]) -> None:
    """Returned by its module, of that module's own, read there alone, or by the module around."""
    graph = named(names)
    assert with_repeated_activations(graph) is graph


def test_a_module_of_its_own_is_called_by_the_one_around_it() -> None:
    names = ("/stem/MatMul", "/blocks.0/act/Relu", *TWO[2:])
    assert len(with_repeated_activations(named(names)).nodes) == 6

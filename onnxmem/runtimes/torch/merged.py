"""Activations that a network computes in several modules, and its file once.

Exporters merge equal computations (torch/csrc/jit/passes/common_subexpression_elimination.cpp,
onnxscript's and onnx_ir's CSE): where two blocks begin with the ReLU of one tensor, the file has
one node, in the first of them, and both read it. Autograd saves the result of each call. A node is
taken for such a one if its operand comes from outside of its module, and that module and another
one read its output: a module that returns an activation does not go on to read it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from onnxmem.model.graph import Graph, Node
from onnxmem.model.module_paths import Modules, paths_of

_ACTIVATIONS: Final = frozenset(
    {
        *("Celu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish"),
        *("Relu", "Selu", "Sigmoid", "Softplus", "Swish", "Tanh"),
    }
)

_Reader = tuple[int, Modules]
"""The index of a node that reads a tensor, and the modules around it."""


def with_repeated_activations(graph: Graph) -> Graph:
    """Compute merged activations again in each other module that reads them."""
    if not any(node.onnx_op in _ACTIVATIONS for node in graph.nodes):
        return graph
    # By the index of a reader: the tensors that it reads, and their copies instead.
    replaced: dict[int, dict[str, str]] = {}
    repeated: dict[int, list[Node]] = {}
    tensors = dict(graph.tensors)
    for merged in _merged(graph):
        output = merged.node.outputs[0]
        for number, readers in enumerate(merged.others.values()):
            name = f"{output} again, {number}"
            tensors[name] = replace(tensors[output], name=name)
            # Its modules are those of its first reader, by the metadata or by the name.
            first, before = graph.nodes[min(readers)], repeated.setdefault(min(readers), [])
            own = f"{first.name}, operand {len(before)}"
            before.append(replace(merged.node, name=own, outputs=(name,), metadata=first.metadata))
            for index in readers:
                replaced.setdefault(index, {})[output] = name
    if not repeated:
        return graph
    nodes: list[Node] = []
    for index, node in enumerate(graph.nodes):
        nodes += repeated.get(index, ())
        names = replaced.get(index, {})
        inputs = tuple(names.get(name, name) for name in node.inputs)
        nodes.append(replace(node, inputs=inputs) if names else node)
    return replace(graph, nodes=tuple(nodes), tensors=tensors)


@dataclass(frozen=True, slots=True)
class _Merged:
    node: Node
    others: Mapping[Modules, tuple[int, ...]]
    """The other modules that compute the same, and the indices of the nodes that read it there."""


def _merged(graph: Graph) -> Iterator[_Merged]:
    """The activations that several modules compute."""
    # What is put back around a node has a name that begins with the node's, which is no module.
    names = {node.name for node in graph.nodes}
    paths = [() if path[:1] and path[0] in names else path for path in paths_of(graph.nodes)]
    if not any(paths):
        return
    sizes = Counter(path[:depth] for path in paths for depth in range(1, len(path) + 1))
    readers: dict[str, list[_Reader]] = {}
    path_of: dict[str, Modules] = {}
    for index, (node, path) in enumerate(zip(graph.nodes, paths, strict=True)):
        for name in dict.fromkeys(node.reads):
            readers.setdefault(name, []).append((index, path))
        path_of.update(dict.fromkeys(node.writes, path))
    for node, path in zip(graph.nodes, paths, strict=True):
        if node.onnx_op in _ACTIVATIONS and node.reads:
            # A module of its own, such as nn.ReLU, is called by the one around it.
            owner = path[:-1] if sizes[path] == 1 else path
            reads = readers.get(node.outputs[0], [])
            is_outer = not _is_in(path_of.get(node.reads[0], ()), owner)
            if is_outer and any(_is_in(each, owner) for _, each in reads):
                yield _Merged(node, _others(owner, reads))


def _others(owner: Modules, reads: list[_Reader]) -> Mapping[Modules, tuple[int, ...]]:
    """The modules beside an owner that have readers, and the indices of these."""
    found: dict[Modules, tuple[int, ...]] = {}
    for index, path in reads:
        shared = next((n for n, (a, b) in enumerate(zip(owner, path, strict=False)) if a != b), -1)
        if shared >= 0:
            module = path[: shared + 1]
            found[module] = (*found.get(module, ()), index)
    return found


def _is_in(path: Modules, owner: Modules) -> bool:
    return path[: len(owner)] == owner

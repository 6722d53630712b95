"""What a network computes several times, and its file once.

Exporters merge equal computations (torch/csrc/jit/passes/common_subexpression_elimination.cpp,
onnxscript's and onnx_ir's CSE), and autograd saves what each call reads and returns.

torch.export names the operands of each call: where ``%sub_1`` is what the file has as ``sub``, a
second call was merged into the first. Without names, activations alone are told: where two blocks
begin with the ReLU of one tensor, the file has one node, in the first of them, and both read it. A
node is taken for such a one if its operand comes from outside of its module, and that module and
another one read its output: a module that returns an activation does not go on to read it.

A normalization that is written out is told too: ``(x - mean).pow(2)``, then ``(x - mean) /
sqrt(...)``, as in the LayerNorm of ConvNeXt, Segment Anything and NAFNet, and in that of the first
BERT and GPT.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from onnxmem.model.graph import FX_NODE, DType, Graph, Node
from onnxmem.model.module_paths import Modules, paths_of

_ACTIVATIONS: Final = frozenset(
    {
        *("Celu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish"),
        *("Relu", "Selu", "Sigmoid", "Softplus", "Swish", "Tanh"),
    }
)

_DEVIATION: Final = ["Sqrt", "ReduceMean"]

_CALL: Final = re.compile(r"%(\w+) : .*?\]\(args = \((.*)\), kwargs", re.DOTALL)
"""What a call returns, by its name in torch.export, and its operands."""
_OPERAND: Final = re.compile(r"%(\w+)")
_NUMBER: Final = re.compile(r"_\d+$")
"""What tells the calls of one operator apart."""

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


def with_repeated_subtractions(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """Subtract the mean of a normalization that is written out once more; name what is repeated.

    Not where torch.export names the calls, which :func:`with_repeated_calls` reads.
    """
    if not {"Pow", "ReduceMean", "Sqrt"} <= {node.onnx_op for node in graph.nodes}:
        return graph, ()
    repeated = _subtractions(graph)
    tensors, nodes = dict(graph.tensors), list[Node]()
    for node in graph.nodes:
        found = repeated.get(node.name)
        if found is not None:
            name = f"{found.outputs[0]} again"
            tensors[name] = replace(tensors[found.outputs[0]], name=name)
            nodes.append(replace(found, name=f"{node.name}, operand", outputs=(name,)))
            nodes.append(replace(node, inputs=(name, *node.inputs[1:])))
        else:
            nodes.append(node)
    names = tuple(node.name for node in repeated.values())
    return (replace(graph, nodes=tuple(nodes), tensors=tensors) if names else graph), names


def _subtractions(graph: Graph) -> Mapping[str, Node]:
    """The subtractions of means, each by the name of the division that reads it."""
    producers = {name: node for node in graph.nodes for name in node.writes}
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in dict.fromkeys(node.reads):
            readers.setdefault(name, []).append(node)
    found: dict[str, Node] = {}
    for node in graph.nodes:
        if node.onnx_op != "Sub" or FX_NODE in node.metadata or not _is_centered(node, producers):
            continue
        read = sorted(readers.get(node.outputs[0], ()), key=lambda each: each.onnx_op)
        # `(x - mean) / sqrt(var)`, with `var = mean((x - mean) ** 2)`: the network subtracts twice,
        # the exporter once.
        if [each.onnx_op for each in read] == ["Div", "Pow"]:
            divided, squared = read
            root, means = producers.get(divided.inputs[1]), readers.get(squared.outputs[0], [])
            if root is not None and [root.onnx_op, *(n.onnx_op for n in means)] == _DEVIATION:
                found[divided.name] = node
    return found


def _is_centered(node: Node, producers: Mapping[str, Node]) -> bool:
    """Whether a Sub subtracts the mean of its first operand."""
    mean = producers.get(node.inputs[1])
    return mean is not None and mean.onnx_op == "ReduceMean" and mean.inputs[0] == node.inputs[0]


def with_repeated_calls(graph: Graph) -> Graph:
    """Run calls again that torch.export names as operands, and that the file has no node of."""
    calls = [_CALL.search(node.metadata.get(FX_NODE, "")) for node in graph.nodes]
    num_nodes = Counter(call[1] for call in calls if call)
    # What one node computes for one call, by the name of both.
    single: dict[str, Node] = {}
    tensors = dict(graph.tensors)
    nodes: list[Node] = []
    for node, call in zip(graph.nodes, calls, strict=True):
        operands = [] if call is None else _OPERAND.findall(call[2])
        inputs = list(node.inputs)
        for index, name in enumerate(inputs):
            before = single.get(name)
            # A convolution that ends in another call was joined with it: it is the operand itself.
            is_joined = before is None or before.op_type in {node.op_type, "Pad"}
            again = "" if is_joined else _call_merged_into(name, operands, graph.tensors)
            if again and again not in tensors:
                tensors[again] = replace(tensors[name], name=again)
                nodes.append(_again(single[name], again, node))
            inputs[index] = again or name
        nodes.append(replace(node, inputs=tuple(inputs)) if operands else node)
        if call is not None and num_nodes[call[1]] == 1 and _is_repeatable(graph, node, call[1]):
            single[call[1]] = node
    return (
        replace(graph, nodes=tuple(nodes), tensors=tensors) if tensors != graph.tensors else graph
    )


def _call_merged_into(name: str, operands: list[str], known: Mapping[str, object]) -> str:
    """The one operand that is another call of what computed a tensor; empty if there is none."""
    stem = _NUMBER.sub("", name)
    # torch.export numbers calls of one operator, so the operand that the file lacks has the same
    # stem.
    others = {each for each in operands if each not in known and _NUMBER.sub("", each) == stem}
    return others.pop() if name not in operands and len(others) == 1 else ""


def _again(node: Node, output: str, reader: Node) -> Node:
    """The same computation in the module of a reader."""
    metadata = {key: text for key, text in reader.metadata.items() if key != FX_NODE}
    return replace(node, name=f"{node.name} again, {output}", outputs=(output,), metadata=metadata)


def _is_repeatable(graph: Graph, node: Node, result: str) -> bool:
    """Whether a node computes a floating tensor or a mask, which has the name of the call."""
    dtype = graph.tensors[node.outputs[0]].dtype
    is_saved = dtype is not None and (dtype.is_floating or dtype is DType.BOOL)
    return node.outputs == (result,) and is_saved and not node.operator.autograd_view


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
    # How many nodes each module has, with those of the modules in it.
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
        # -1: the reader is in the owner itself, or around it, and reads the same tensor.
        shared = next((n for n, (a, b) in enumerate(zip(owner, path, strict=False)) if a != b), -1)
        if shared >= 0:
            module = path[: shared + 1]
            found[module] = (*found.get(module, ()), index)
    return found


def _is_in(path: Modules, owner: Modules) -> bool:
    return path[: len(owner)] == owner

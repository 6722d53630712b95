"""The constants of a model whose batch was moved: the file's own, and those that grew with it."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import onnx
import onnx.helper

from onnxmem.model.traversal import onnx_op, outer_reads, subgraphs
from onnxmem.ops.spec import Dims


def without_stand_ins(
    graph: onnx.GraphProto, stand_ins: Mapping[str, str], grown: AbstractSet[str]
) -> None:
    """Put the file's own targets back, in place, and one constant for all that grew alike.

    A constant that grew wherever it is read keeps its name; else the grown one is another.
    ``grown`` are the stand-ins of data, by name.
    """
    grown_as = {t.name: tuple(t.dims) for t in graph.initializer if t.name in grown}
    read = {name for each in graph.node for name in each.input} | {o.name for o in graph.output}
    read |= {name for each in graph.node for _, g in subgraphs(each) for name in outer_reads(g)}
    names: dict[tuple[str, Dims], str] = {}
    taken: set[str] = set()
    for stand_in, dims in grown_as.items():
        source = stand_ins[stand_in]
        is_only = source not in read and source not in taken
        taken.add(names.setdefault((source, dims), source if is_only else stand_in))
    new = {**stand_ins, **{s: names[stand_ins[s], dims] for s, dims in grown_as.items()}}
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = new.get(name, name)
    of_stand_in = {t.name: t for t in graph.initializer if t.name in grown_as}
    replaced = {names[stand_ins[s], d]: of_stand_in[s] for s, d in grown_as.items()}
    _replace_constants(graph, replaced, stand_ins)


def _replace_constants(
    graph: onnx.GraphProto, new: Mapping[str, onnx.TensorProto], stand_ins: Mapping[str, str]
) -> None:
    """Give constants other elements, and leave out the stand-ins that no node reads any more."""
    kept = [t for t in graph.initializer if t.name not in stand_ins or t.name in new]
    for tensor in kept:
        if tensor.name in new and tensor.name not in stand_ins:
            name = tensor.name
            tensor.CopyFrom(new[name])
            tensor.name = name
    for node in graph.node:
        if onnx_op(node) == "Constant" and node.output[0] in new:
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("value", new[node.output[0]]))
    del graph.initializer[:]
    graph.initializer.extend(kept)

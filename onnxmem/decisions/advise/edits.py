"""Changes of the file that save bytes and change nothing that the model says."""

from collections.abc import Iterator, Mapping
from typing import Any

import onnx

from onnxmem.decisions.advise.changes import with_file
from onnxmem.decisions.advise.contents import twins
from onnxmem.decisions.advise.figures import Change, Subject
from onnxmem.decisions.advise.proposals import Idea, Price
from onnxmem.errors import listed, shortened
from onnxmem.model.dtypes import dtype_of
from onnxmem.model.traversal import graphs_in, onnx_op

_EDIT = "a change of the file, once; what it says stays the same"


def edit_ideas(subject: Subject) -> Iterator[Idea]:
    """Weights stored twice, and weights that are cast before anyone reads them."""
    source = subject.question.source
    graph = source.proto.graph
    given = {value.name for value in graph.input}
    same = {
        twin.name: twin.first
        for twin in twins(source.path, graph)
        if not twin.is_turned and given.isdisjoint((twin.name, twin.first))
    }
    if same:
        pairs = [f"{name} = {first}" for name, first in same.items()]
        yield Idea(
            id="tied_weights",
            group="tied_weights",
            what=f"store equal weights once: {_some(pairs)}",
            price=Price.NOTHING,
            cost=_EDIT,
            change=_tied(same),
            settings={"tied_weights": same},
        )
    casts = _narrowing_casts(graph)
    if casts:
        yield Idea(
            id="wide_constants",
            group="wide_constants",
            what=f"store in the type that they are cast to: {_some(list(casts))}",
            price=Price.NOTHING,
            cost=_EDIT,
            change=_stored_narrow(casts),
            settings={"wide_constants": list(casts)},
        )


def overridable_ideas(subject: Subject) -> Iterator[Idea]:
    """Initializers that are inputs too: a session must take them for variable, and folds none."""
    graph = subject.question.source.proto.graph
    weights = {each.name for each in graph.initializer}
    weights |= {each.values.name for each in graph.sparse_initializer}
    names = [value.name for value in graph.input if value.name in weights]
    if names:
        yield Idea(
            id="initializer_inputs",
            group="initializer_inputs",
            what=f"take initializers off the graph's inputs, so that they fold: {_some(names)}",
            price=Price.NOTHING,
            cost=f"{_EDIT}; none can be overridden then",
            change=_without_inputs(frozenset(names)),
            settings={"initializer_inputs": names},
        )


def _some(names: list[str]) -> str:
    return shortened(listed([shortened(name) for name in names], at_most=2))


def _tied(same: Mapping[str, str]) -> Change:
    def edit(proto: onnx.ModelProto) -> None:
        for graph in graphs_in(proto.graph):
            for node in graph.node:
                node.input[:] = [same.get(name, name) for name in node.input]
        outputs = {value.name for value in proto.graph.output}
        kept = [t for t in proto.graph.initializer if t.name not in same or t.name in outputs]
        _replace(proto.graph.initializer, kept)

    return with_file(edit)


def _narrowing_casts(graph: onnx.GraphProto) -> dict[str, int]:
    """Weights of the main graph whose only readers cast them, all to one narrower type."""
    casts: dict[str, set[int]] = {}
    for inner in graphs_in(graph):
        for node in inner.node:
            for name in node.input:
                casts.setdefault(name, set()).add(_narrow_type(node))
    outputs = {value.name for value in (*graph.output, *graph.input)}
    found = {}
    for tensor in graph.initializer:
        to = casts.get(tensor.name, set())
        number = next(iter(to)) if len(to) == 1 else 0
        if number and tensor.name not in outputs and _bits(number) < _bits(tensor.data_type):
            found[tensor.name] = number
    return found


def _narrow_type(node: onnx.NodeProto) -> int:
    """What a Cast casts to; 0 for any other node."""
    if onnx_op(node) != "Cast":
        return 0
    return next((each.i for each in node.attribute if each.name == "to"), 0)


def _bits(elem_type: int) -> int:
    dtype = dtype_of(elem_type)
    return (dtype.bits or 0) if dtype is not None and dtype.is_floating else 0


def _stored_narrow(casts: Mapping[str, int]) -> Change:
    def edit(proto: onnx.ModelProto) -> None:
        renamed = _without_casts(proto.graph, casts)
        for graph in graphs_in(proto.graph):
            for node in graph.node:
                node.input[:] = [renamed.get(name, name) for name in node.input]
        for tensor in proto.graph.initializer:
            if tensor.name in casts:
                tensor.data_type = casts[tensor.name]
                for payload in ("raw_data", "float_data", "double_data"):
                    tensor.ClearField(payload)

    return with_file(edit)


def _without_casts(graph: onnx.GraphProto, casts: Mapping[str, int]) -> dict[str, str]:
    """Take out the casts of these weights; what each made is the weight itself now."""
    outputs = {value.name for value in graph.output}
    gone = [
        node
        for node in graph.node
        if node.input and node.input[0] in casts and node.output[0] not in outputs
    ]
    for node in gone:
        graph.node.remove(node)
    return {node.output[0]: node.input[0] for node in gone}


def _without_inputs(names: frozenset[str]) -> Change:
    def edit(proto: onnx.ModelProto) -> None:
        _replace(proto.graph.input, [v for v in proto.graph.input if v.name not in names])

    return with_file(edit)


def _replace(field: Any, kept: list[Any]) -> None:  # noqa: ANN401 - a repeated field of any kind
    copies = [type(each).FromString(each.SerializeToString()) for each in kept]
    del field[:]
    field.extend(copies)

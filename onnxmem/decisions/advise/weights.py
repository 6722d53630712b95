"""Suggested changes of the weights: store equal ones once, fewer bits, narrower layers.

Edits leave the model's outputs as they are, and the edited file is analyzed. Estimates are formulas
on the weights of the unchanged file, since quantizers and narrower layers change the graph in ways
that only their tools know.

An analysis does not read the elements of weights; equal weights are found by reading them here.
Weights in external files are not compared.
"""

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx

from onnxmem.analysis.coverage import unread_initializers
from onnxmem.analysis.request import sum_bytes
from onnxmem.decisions.advise.proposals import (
    Change,
    Objective,
    Proposal,
    Subject,
    Suggestion,
    Tradeoff,
    with_file,
)
from onnxmem.errors import ModelFileError, listed, shortened
from onnxmem.files import opened
from onnxmem.model.files import FileWindow
from onnxmem.model.graph import Graph, Node, Role, Tensor, dtype_of
from onnxmem.model.parameters import Readers, readers_of
from onnxmem.model.traversal import graphs_in, onnx_op
from onnxmem.model.wire import fields
from onnxmem.units import plural

_LEAST_BYTES: Final = 1024
"""Smaller weights do not repay a changed file."""
_SAMPLE_BYTES: Final = 4096
_SAMPLED_ROWS: Final = 16
_PIECE_BYTES: Final = 1 << 22
_GRAPH, _INITIALIZER, _NAME, _RAW = 7, 5, 8, 9
"""Field numbers of onnx.proto3."""
_TABLE_RANK: Final = 2
_EDIT = "edit the file once; its outputs do not change"
_WEIGHTED: Final = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN"})
_LINEAR: Final = frozenset({"Gemm", "MatMul"})
_ELEMENTWISE: Final = frozenset(
    {
        *("Add", "Celu", "Clip", "Dropout", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish"),
        *("Identity", "LeakyRelu", "Mish", "Relu", "Selu", "Sigmoid", "Softplus", "Tanh"),
    }
)
"""Operators that keep features apart: half of the inputs give half of the outputs."""
_SCALE_BYTES: Final = 4
_BLOCK: Final = 32
"""Elements that share a scale, the usual ``block_size`` of MatMulNBits."""
_LARGE: Final = 4
"""A weight is large if it has more than this fraction, one in four, of all bytes of weights."""
_MOST_STEPS: Final = 8


@dataclass(frozen=True, slots=True)
class DuplicateWeight:
    """A weight with the same elements as another one."""

    name: str
    first: str
    """The other one, which stays."""
    size_bytes: int
    is_transposed: bool
    """Whether it is the transpose of the other one."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A weight and the node that reads it."""

    weight: Tensor
    node: Node


def edit_suggestions(subject: Subject) -> Iterator[Suggestion]:
    """Merge weights that are stored twice, and narrow weights that are only read after a cast."""
    source = subject.request.source
    graph = source.proto.graph
    # A caller may override an initializer that is also an input, and then the two differ.
    inputs = {value.name for value in graph.input}
    same = {
        duplicate.name: duplicate.first
        for duplicate in duplicate_weights(source.path, graph)
        if not duplicate.is_transposed and inputs.isdisjoint((duplicate.name, duplicate.first))
    }
    if same:
        pairs = [f"{name} = {first}" for name, first in same.items()]
        yield Suggestion(
            id="tied_weights",
            group="tied_weights",
            what=f"store equal weights once: {_some(pairs)}",
            tradeoff=Tradeoff.NOTHING,
            cost=_EDIT,
            change=_tied(same),
            settings={"tied_weights": same},
        )
    casts = _narrowing_casts(graph)
    if casts:
        yield Suggestion(
            id="wide_constants",
            group="wide_constants",
            what=f"store weights in the type that they are cast to: {_some(list(casts))}",
            tradeoff=Tradeoff.NOTHING,
            cost=_EDIT,
            change=_stored_narrow(casts),
            settings={"wide_constants": list(casts)},
        )


def overridable_suggestions(subject: Subject) -> Iterator[Suggestion]:
    """Remove initializers from the inputs: a session cannot fold what a caller may override."""
    graph = subject.request.source.proto.graph
    weights = {each.name for each in graph.initializer}
    weights |= {each.values.name for each in graph.sparse_initializer}
    names = [value.name for value in graph.input if value.name in weights]
    if names:
        yield Suggestion(
            id="initializer_inputs",
            group="initializer_inputs",
            what="remove initializers from the graph's inputs to enable constant folding: "
            f"{_some(names)}",
            tradeoff=Tradeoff.NOTHING,
            cost=f"{_EDIT}; callers can no longer override them",
            change=_without_inputs(frozenset(names)),
            settings={"initializer_inputs": names},
        )


def weight_estimates(subject: Subject) -> Iterator[Proposal]:
    """All estimates on the weights, including those that save nothing."""
    results = subject.results()
    graph, before_bytes = results.bound.graph, results.weight_bytes
    if before_bytes is None or any(weight.size_bytes is None for weight in graph.weights):
        return
    for suggestion, saved_bytes in (*_quantized(graph), *_narrower(graph, before_bytes)):
        yield _estimate(suggestion, Objective.WEIGHTS, before_bytes, saved_bytes)
    yield from _transposed_duplicates(subject, before_bytes)


def unread_weights(subject: Subject) -> Iterator[Proposal]:
    """Delete initializers that nothing reads, which cost bytes in the file or beside it."""
    request, graph = subject.request, subject.results().bound.graph
    tensors, unread = graph.tensors.values(), unread_initializers(graph)
    external_bytes = sum_bytes(t for t in tensors if t.is_external and t.role is not Role.UNREAD)
    unread_external_bytes = sum_bytes(t for t in unread if t.is_external)
    saved_bytes = sum_bytes(unread)
    if not unread or saved_bytes is None or external_bytes is None or unread_external_bytes is None:
        return
    file_bytes = request.source.file_bytes + external_bytes + unread_external_bytes
    if saved_bytes > file_bytes:
        return
    suggestion = Suggestion(
        id="unread_initializers",
        group="unread_initializers",
        what=f"delete unused initializers: {listed([shortened(t.name) for t in unread], 2)}",
        tradeoff=Tradeoff.NOTHING,
        cost=_EDIT,
    )
    yield _estimate(suggestion, Objective.FILE, file_bytes, saved_bytes)


def duplicate_weights(path: str, graph: onnx.GraphProto) -> tuple[DuplicateWeight, ...]:
    """Weights with the same elements as an earlier one; none if the file cannot be opened."""
    # Equal weights have the same type, size and dims up to their order, so only weights within one
    # group are compared, and most files have groups of one.
    groups: dict[tuple[int, tuple[int, ...], int], list[onnx.TensorProto]] = defaultdict(list)
    try:
        with open(opened(path), "rb", buffering=0) as file:
            spans = dict(_payloads(file.fileno()))
            for tensor in graph.initializer:
                span = spans.get(tensor.name)
                if span is not None and span.size_bytes >= _LEAST_BYTES:
                    key = (tensor.data_type, tuple(sorted(tensor.dims)), span.size_bytes)
                    groups[key].append(tensor)
            found = (_duplicates_in(file.fileno(), group, spans) for group in groups.values())
            return tuple(duplicate for group in found for duplicate in group)
    except (OSError, ValueError, ModelFileError):
        return ()


def _some(names: list[str]) -> str:
    return shortened(listed([shortened(name) for name in names], at_most=2))


def _tied(same: Mapping[str, str]) -> Change:
    def edit(proto: onnx.ModelProto) -> None:
        # Subgraphs read the weights of the main graph by their names too.
        for graph in graphs_in(proto.graph):
            for node in graph.node:
                node.input[:] = [same.get(name, name) for name in node.input]
        outputs = {value.name for value in proto.graph.output}
        # An output of the model keeps its name, even if another weight has the same elements.
        kept = [t for t in proto.graph.initializer if t.name not in same or t.name in outputs]
        _replace(proto.graph.initializer, kept)

    return with_file(edit)


def _narrowing_casts(graph: onnx.GraphProto) -> dict[str, int]:
    """Weights of the main graph that are only read by casts to one narrower type."""
    # The graph computes with the narrow values anyway, so storing them changes no output.
    casts: dict[str, set[int]] = {}
    for inner in graphs_in(graph):
        for node in inner.node:
            for name in node.input:
                # A reader that is not a Cast counts as type 0, so that one type, and not 0, is left
                # only where all readers are casts to the same.
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
    """The type that a Cast casts to; 0 for any other node."""
    if onnx_op(node) != "Cast":
        return 0
    return next((each.i for each in node.attribute if each.name == "to"), 0)


def _bits(elem_type: int) -> int:
    dtype = dtype_of(elem_type)
    return (dtype.bits or 0) if dtype is not None and dtype.is_floating else 0


def _stored_narrow(casts: Mapping[str, int]) -> Change:
    def edit(proto: onnx.ModelProto) -> None:
        # The weight takes the place of its cast's output, which subgraphs may read too.
        renamed = _without_casts(proto.graph, casts)
        for graph in graphs_in(proto.graph):
            for node in graph.node:
                node.input[:] = [renamed.get(name, name) for name in node.input]
        for tensor in proto.graph.initializer:
            if tensor.name in casts:
                # An analysis reads type and dims; the elements, of the old type, would contradict
                # them.
                tensor.data_type = casts[tensor.name]
                for payload in ("raw_data", "float_data", "double_data"):
                    tensor.ClearField(payload)

    return with_file(edit)


def _without_casts(graph: onnx.GraphProto, casts: Mapping[str, int]) -> dict[str, str]:
    """Delete the casts of these weights, and map each one's output to its weight."""
    outputs = {value.name for value in graph.output}
    casting = [
        node
        for node in graph.node
        if node.input and node.input[0] in casts and node.output[0] not in outputs
    ]
    for node in casting:
        graph.node.remove(node)
    return {node.output[0]: node.input[0] for node in casting}


def _without_inputs(names: frozenset[str]) -> Change:
    def edit(proto: onnx.ModelProto) -> None:
        _replace(proto.graph.input, [v for v in proto.graph.input if v.name not in names])

    return with_file(edit)


def _replace(field: Any, kept: list[Any]) -> None:  # noqa: ANN401 - a repeated field of any kind
    # What is kept is in the field itself, which is emptied before it is filled.
    copies = [type(each).FromString(each.SerializeToString()) for each in kept]
    del field[:]
    field.extend(copies)


def _estimate(
    suggestion: Suggestion, figure: Objective, before_bytes: int, saved_bytes: int
) -> Proposal:
    return Proposal(
        suggestion=suggestion,
        figure=figure,
        before_bytes=before_bytes,
        after_bytes=before_bytes - saved_bytes,
        is_exact=False,
    )


def _layers(graph: Graph, operators: frozenset[str]) -> Iterator[_Layer]:
    """Floating weights with two axes or more that the operators read, each storage once."""
    seen: set[str] = set()
    for node in graph.all_nodes():
        for name in node.inputs if node.onnx_op in operators else ():
            weight = graph.tensors.get(name)
            if weight is None or weight.role is not Role.WEIGHT or weight.dtype is None:
                continue
            is_matrix = len(weight.shape or ()) > 1 and weight.dtype.is_floating
            if is_matrix and weight.storage_key not in seen:
                seen.add(weight.storage_key)
                yield _Layer(weight, node)


def _quantized(graph: Graph) -> Iterator[tuple[Suggestion, int]]:
    """8 bits with a scale per output channel; 4 bits with a scale per block of a MatMul."""
    eight = [(layer, _int8_bytes(layer)) for layer in _layers(graph, _WEIGHTED)]
    four = [(layer, _int4_bytes(layer.weight)) for layer in _layers(graph, _LINEAR)]
    yield from _suggested("int8_weights", "8 bits, a float32 scale per output channel", eight)
    yield from _suggested(
        "int4_weights", f"4 bits, a float32 scale per {_BLOCK} elements of MatMul weights", four
    )


def _suggested(
    word: str, how: str, sizes: list[tuple[_Layer, int]]
) -> Iterator[tuple[Suggestion, int]]:
    saved_bytes = sum((layer.weight.size_bytes or 0) - after for layer, after in sizes)
    if sizes:
        suggestion = Suggestion(
            id=word,
            group="quantized_weights",
            what=f"quantize {plural(len(sizes), 'weight')}: {how}",
            tradeoff=Tradeoff.ACCURACY,
            cost="rounding: evaluate the quantized model; activations are not quantized",
        )
        yield suggestion, saved_bytes


def _int8_bytes(layer: _Layer) -> int:
    elements = layer.weight.num_elements or 0
    return elements + _SCALE_BYTES * (_num_outputs(layer) or 1)


def _int4_bytes(weight: Tensor) -> int:
    elements = weight.num_elements or 0
    return -(-elements // 2) + _SCALE_BYTES * -(-elements // _BLOCK)


def _num_outputs(layer: _Layer) -> int | None:
    """Output features: M of a Conv's ``[M, C, kH, kW]``, N of ``[K, N]`` or with transB."""
    shape = layer.weight.shape or (1,)
    return shape[_output_axis(layer)]


def _output_axis(layer: _Layer) -> int:
    if layer.node.onnx_op in _LINEAR:
        return 0 if layer.node.attributes.get("transB") else -1
    return 1 if layer.node.onnx_op == "ConvTranspose" else 0


def _narrower(graph: Graph, weight_bytes: int) -> Iterator[tuple[Suggestion, int]]:
    """Half the output features of the largest linear layer, unless they are outputs of the model.

    Halving ``[K, N]`` to ``[K, N / 2]`` halves its bytes, and those of the layer after it, which
    then reads half as many features.
    """
    layers = list(_layers(graph, _LINEAR))
    large = [each for each in layers if _LARGE * (each.weight.size_bytes or 0) > weight_bytes]
    readers = readers_of(graph)
    for layer in sorted(large, key=lambda each: -(each.weight.size_bytes or 0)):
        after = _next_layer(graph, readers, layer)
        width = _num_outputs(layer)
        if after is None or width is None or len(layer.weight.shape or ()) != 2:  # noqa: PLR2004 - a matrix
            continue
        saved_bytes = ((layer.weight.size_bytes or 0) + (after.weight.size_bytes or 0)) // 2
        suggestion = Suggestion(
            id="narrower_layer",
            group="narrower_layer",
            what=f"{shortened(layer.node.name)}: {width // 2:,} features instead of {width:,}; "
            f"{shortened(after.node.name)} then reads half as many",
            tradeoff=Tradeoff.ACCURACY,
            cost="train the model again",
        )
        yield suggestion, saved_bytes
        return


def _next_layer(graph: Graph, readers: Readers, layer: _Layer) -> _Layer | None:
    """The only linear layer that reads a layer's output, through elementwise nodes."""
    name = layer.node.writes[0]
    for _ in range(_MOST_STEPS):
        nodes = readers.get(name, ())
        # Another reader, or the caller, would get half of the features too.
        if len(nodes) != 1 or name in graph.outputs:
            return None
        (node,) = nodes
        if node.onnx_op in _LINEAR:
            found = (each for each in _layers(graph, _LINEAR) if each.node is node)
            return next(found, None)
        if node.onnx_op not in _ELEMENTWISE:
            return None
        name = node.writes[0]
    return None


def _transposed_duplicates(subject: Subject, before_bytes: int) -> Iterator[Proposal]:
    """Matrices that are also stored transposed, as exporters do with tied embeddings."""
    source = subject.request.source
    found = [
        duplicate
        for duplicate in duplicate_weights(source.path, source.proto.graph)
        if duplicate.is_transposed
    ]
    if not found:
        return
    pairs = [
        f"{shortened(duplicate.name)} = {shortened(duplicate.first)} transposed"
        for duplicate in found
    ]
    suggestion = Suggestion(
        id="tied_turned_weights",
        group="tied_turned_weights",
        what=f"store equal matrices once: {listed(pairs, 2)}",
        tradeoff=Tradeoff.TIME,
        cost="use Gemm with transB; a Transpose node would allocate the copy again",
    )
    yield _estimate(
        suggestion,
        Objective.WEIGHTS,
        before_bytes,
        sum(duplicate.size_bytes for duplicate in found),
    )


@dataclass(frozen=True, slots=True)
class _Span:
    start: int
    size_bytes: int


def _duplicates_in(
    descriptor: int, group: list[onnx.TensorProto], spans: Mapping[str, _Span]
) -> Iterator[DuplicateWeight]:
    """Weights of a group that repeat an earlier one."""
    # ``firsts`` has one weight for each content seen so far. A sample of a few KiB tells nearly all
    # pairs apart, so that whole weights are read, piece by piece, only if the samples agree.
    firsts: list[onnx.TensorProto] = []
    samples: dict[str, bytes] = {}
    for tensor in group if len(group) > 1 else ():
        span = spans[tensor.name]
        sampled_bytes = min(_SAMPLE_BYTES, span.size_bytes)
        samples[tensor.name] = _read(descriptor, sampled_bytes, span.start)
        for first in firsts:
            other = spans[first.name]
            if tuple(first.dims) == tuple(tensor.dims):
                is_same = samples[first.name] == samples[tensor.name] and (
                    _digest(descriptor, other) == _digest(descriptor, span)
                )
            else:
                is_same = _is_transposed(descriptor, (first, other), (tensor, span))
            if is_same:
                is_transposed = tuple(first.dims) != tuple(tensor.dims)
                yield DuplicateWeight(tensor.name, first.name, span.size_bytes, is_transposed)
                break
        else:
            firsts.append(tensor)


def _digest(descriptor: int, span: _Span) -> bytes:
    total = hashlib.blake2b()
    for start in range(0, span.size_bytes, _PIECE_BYTES):
        length = min(_PIECE_BYTES, span.size_bytes - start)
        total.update(_read(descriptor, length, span.start + start))
    return total.digest()


def _is_transposed(
    descriptor: int,
    one: tuple[onnx.TensorProto, _Span],
    other: tuple[onnx.TensorProto, _Span],
) -> bool:
    """Whether two matrices are each other's transpose; elements of a whole number of bytes."""
    rows, columns = tuple(one[0].dims), tuple(other[0].dims)
    elements = int(np.prod(rows))
    width, rest = divmod(one[1].size_bytes, elements) if elements else (0, 1)
    if len(rows) != _TABLE_RANK or rows != columns[::-1] or rest:
        return False
    # A few rows first: what is not the transpose is mostly told apart without reading all of it.
    column = b"".join(
        _read(descriptor, width, other[1].start + row * columns[1] * width)
        for row in range(min(columns[0], _SAMPLED_ROWS))
    )
    if _read(descriptor, len(column), one[1].start) != column:
        return False
    tables = []
    for shape, span in ((rows, one[1]), (columns, other[1])):
        pieces = [
            _read(descriptor, min(_PIECE_BYTES, span.size_bytes - start), span.start + start)
            for start in range(0, span.size_bytes, _PIECE_BYTES)
        ]
        # As bytes (void), so that elements of any type compare, and NaN is equal to itself.
        tables.append(np.frombuffer(b"".join(pieces), np.dtype((np.void, width))).reshape(shape))
    return bool(tables[0].tobytes() == tables[1].T.tobytes())


def _payloads(descriptor: int) -> Iterator[tuple[str, _Span]]:
    """The position of the raw data of each initializer of the main graph.

    :raises ModelFileError: the bytes are not a protobuf message.
    """
    data = FileWindow(descriptor, os.fstat(descriptor).st_size)
    for graph in fields(data, 0, len(data)):
        if graph.number != _GRAPH:
            continue
        for tensor in fields(data, graph.content.start, graph.content.stop):
            if tensor.number == _INITIALIZER:
                yield from _payload(data, tensor.content)


def _payload(data: FileWindow, tensor: slice) -> Iterator[tuple[str, _Span]]:
    # Fields may be in any order: whether there is a name is known at the end of the message.
    name, span = "", None
    for number, _, content in fields(data, tensor.start, tensor.stop):
        if number == _NAME:
            name = data[content].decode(errors="surrogateescape")
        if number == _RAW:
            span = _Span(content.start, content.stop - content.start)
    if name and span is not None:
        yield name, span


def _read(descriptor: int, num_bytes: int, start: int) -> bytes:
    os.lseek(descriptor, start, os.SEEK_SET)
    return os.read(descriptor, num_bytes)

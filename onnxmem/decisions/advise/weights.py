"""What weights alone would take: fewer bits, a narrower layer, none that nothing reads.

These are formulas on the weights of the file, not analyses of a changed one: quantisers and
narrower layers change the graph in ways of their own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from onnxmem.analysis.stages import sum_bytes
from onnxmem.decisions.advise.contents import twins
from onnxmem.decisions.advise.figures import Figure, Subject
from onnxmem.decisions.advise.proposals import Idea, Price, Proposal
from onnxmem.errors import listed, shortened
from onnxmem.model import Graph, Node, Role, Tensor
from onnxmem.model.tables import Readers, readers_of
from onnxmem.units import plural

_WEIGHTED: Final = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN"})
_LINEAR: Final = frozenset({"Gemm", "MatMul"})
_PASSES_ON: Final = frozenset(
    {
        *("Add", "Celu", "Clip", "Dropout", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish"),
        *("Identity", "LeakyRelu", "Mish", "Relu", "Selu", "Sigmoid", "Softplus", "Tanh"),
    }
)
"""Operators that hand each feature on by itself."""
_SCALE_BYTES: Final = 4
_BLOCK: Final = 32
"""Elements that share a scale, MatMulNBits' usual ``block_size``."""
_LARGE: Final = 4
"""A weight is large from a part in so many on."""
_MOST_STEPS: Final = 8


def weight_estimates(subject: Subject) -> Iterator[Proposal]:
    """Every estimate on the weights; those that save nothing too."""
    terms = subject.terms()
    graph, before_bytes = terms.bound.graph, terms.weight_bytes
    if before_bytes is None or any(weight.size_bytes is None for weight in graph.weights):
        return
    for idea, saved_bytes in (*_quantised(graph), *_narrower(graph, before_bytes)):
        yield _estimate(idea, Figure.WEIGHTS, before_bytes, saved_bytes)
    yield from _turned(subject, before_bytes)


def _estimate(idea: Idea, figure: Figure, before_bytes: int, saved_bytes: int) -> Proposal:
    return Proposal(
        idea=idea,
        figure=figure,
        before_bytes=before_bytes,
        after_bytes=before_bytes - saved_bytes,
        is_exact=False,
    )


def unread_weights(subject: Subject) -> Iterator[Proposal]:
    """Initializers that nothing reads: bytes of the file, and of what lies beside it."""
    question, graph = subject.question, subject.terms().bound.graph
    sizing = {
        name
        for node in graph.all_nodes()
        if node.onnx_op == "ConstantOfShape"
        for name in node.inputs
    }
    tensors = graph.tensors.values()
    unread = [t for t in tensors if t.role is Role.UNREAD and t.name not in sizing]
    external_bytes = sum_bytes(t for t in tensors if t.is_external and t.role is not Role.UNREAD)
    unread_external_bytes = sum_bytes(t for t in unread if t.is_external)
    saved_bytes = sum_bytes(unread)
    if not unread or saved_bytes is None or external_bytes is None or unread_external_bytes is None:
        return
    file_bytes = question.source.file_bytes + external_bytes + unread_external_bytes
    if saved_bytes > file_bytes:
        return
    idea = Idea(
        id="unread_initializers",
        group="unread_initializers",
        what=f"take out what nothing reads: {listed([shortened(t.name) for t in unread], 2)}",
        price=Price.NOTHING,
        cost="a change of the file, once; what it says stays the same",
    )
    yield _estimate(idea, Figure.FILE, file_bytes, saved_bytes)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A weight and the node that reads it."""

    weight: Tensor
    node: Node


def _layers(graph: Graph, operators: frozenset[str]) -> Iterator[_Layer]:
    """Each floating weight of more than one axis that one of some operators reads, once."""
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


def _quantised(graph: Graph) -> Iterator[tuple[Idea, int]]:
    """8 bits with a scale for each output; 4 bits with a scale for each block of a product."""
    eight = [(layer, _int8_bytes(layer)) for layer in _layers(graph, _WEIGHTED)]
    four = [(layer, _int4_bytes(layer.weight)) for layer in _layers(graph, _LINEAR)]
    yield from _as_idea("int8_weights", "8 bits, a float32 scale for each output", eight)
    yield from _as_idea("int4_weights", f"4 bits, a float32 scale for {_BLOCK} elements", four)


def _as_idea(word: str, how: str, sizes: list[tuple[_Layer, int]]) -> Iterator[tuple[Idea, int]]:
    saved_bytes = sum((layer.weight.size_bytes or 0) - after for layer, after in sizes)
    if sizes:
        idea = Idea(
            id=word,
            group="quantised_weights",
            what=f"quantise {plural(len(sizes), 'weight')}: {how}",
            price=Price.ACCURACY,
            cost="rounding, to be checked on data; activations stay as they are",
        )
        yield idea, saved_bytes


def _int8_bytes(layer: _Layer) -> int:
    elements = layer.weight.num_elements or 0
    return elements + _SCALE_BYTES * (_num_outputs(layer) or 1)


def _int4_bytes(weight: Tensor) -> int:
    elements = weight.num_elements or 0
    return -(-elements // 2) + _SCALE_BYTES * -(-elements // _BLOCK)


def _num_outputs(layer: _Layer) -> int | None:
    """Features that the layer makes: ``W: [M, C, kH, kW]``; ``B: [K, N]``, turned ``[N, K]``."""
    shape = layer.weight.shape or (1,)
    return shape[_output_axis(layer)]


def _output_axis(layer: _Layer) -> int:
    if layer.node.onnx_op in _LINEAR:
        return 0 if layer.node.attributes.get("transB") else -1
    return 1 if layer.node.onnx_op == "ConvTranspose" else 0


def _narrower(graph: Graph, weight_bytes: int) -> Iterator[tuple[Idea, int]]:
    """The largest layer of products at half its width, where its width is the model's own matter.

    Halving ``[K, N]`` to ``[K, N / 2]`` halves its bytes, and those of the next layer, which reads
    half as many features; what the model hands out has the width that it must have.
    """
    layers = list(_layers(graph, _LINEAR))
    large = [each for each in layers if _LARGE * (each.weight.size_bytes or 0) > weight_bytes]
    readers = readers_of(graph)
    for layer in sorted(large, key=lambda each: -(each.weight.size_bytes or 0)):
        after = _next_layer(graph, readers, layer)
        width = _num_outputs(layer)
        if after is None or width is None or len(layer.weight.shape or ()) != 2:  # noqa: PLR2004
            continue
        saved_bytes = ((layer.weight.size_bytes or 0) + (after.weight.size_bytes or 0)) // 2
        idea = Idea(
            id="narrower_layer",
            group="narrower_layer",
            what=f"{shortened(layer.node.name)}: {width // 2:,} features instead of {width:,}; "
            f"{shortened(after.node.name)} then reads half as many",
            price=Price.ACCURACY,
            cost="to be trained again",
        )
        yield idea, saved_bytes
        return


def _next_layer(graph: Graph, readers: Readers, layer: _Layer) -> _Layer | None:
    """The one layer of products that reads what a layer makes, feature by feature."""
    name = layer.node.writes[0]
    for _ in range(_MOST_STEPS):
        nodes = readers.get(name, ())
        if len(nodes) != 1 or name in graph.outputs:
            return None
        (node,) = nodes
        if node.onnx_op in _LINEAR:
            found = (each for each in _layers(graph, _LINEAR) if each.node is node)
            return next(found, None)
        if node.onnx_op not in _PASSES_ON:
            return None
        name = node.writes[0]
    return None


def _turned(subject: Subject, before_bytes: int) -> Iterator[Proposal]:
    """Tables that are stored a second time with rows for columns, as tied embeddings are."""
    source = subject.question.source
    found = [twin for twin in twins(source.path, source.proto.graph) if twin.is_turned]
    if not found:
        return
    pairs = [f"{shortened(twin.name)} = {shortened(twin.first)} turned" for twin in found]
    idea = Idea(
        id="tied_turned_weights",
        group="tied_turned_weights",
        what=f"store equal tables once: {listed(pairs, 2)}",
        price=Price.TIME,
        cost="a Gemm with transB reads one as it lies; a Transpose would take the bytes again",
    )
    yield _estimate(idea, Figure.WEIGHTS, before_bytes, sum(twin.size_bytes for twin in found))

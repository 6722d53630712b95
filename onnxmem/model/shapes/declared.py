"""The shapes that a file declares, used where nothing derives one, and held against the rest."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx

from onnxmem.model.binding import evaluated
from onnxmem.model.traversal import subgraphs
from onnxmem.model.value_types import Known, dense_type, is_complete, shape_of
from onnxmem.ops.spec import Shape


@dataclass(frozen=True, slots=True)
class Declared:
    """What the declarations were good for; names of tensors, without scope."""

    used: tuple[str, ...]
    """Nothing derives their shapes: the file's word stands."""
    contradicted: tuple[str, ...]
    """The file says otherwise than what was derived; the derived shape stands."""
    has_changed: bool = False
    """Whether any type of the model was changed."""


def use_declared(
    model: onnx.ModelProto,
    original: onnx.ModelProto,
    dims: Mapping[str, int],
    derived: Mapping[str, Known] | None = None,
) -> Declared:
    """Complete open types of ``model``, in place, from the ``value_info`` of the original.

    ``dims`` are the numbers of the symbols; a declaration with any other symbol is no use.
    ``derived`` are the ``known_types`` of the model's graph, where they are at hand.
    """
    used: list[str] = []
    contradicted: list[str] = []
    has_changed = False
    known = derived or {}
    for graph, source in _pairs(model.graph, original.graph):
        words = [
            (value, _bound(value.type, dims)) for value in (*source.value_info, *source.output)
        ]
        words = [(value, word) for value, word in words if not _agrees(known, value.name, word)]
        # What is known at hand is of the graph that comes first.
        known = {}
        names = {value.name for value, word in words if word is not None} - {""}
        if not names:
            continue
        types = {
            value.name: value for value in (*graph.value_info, *graph.output) if value.name in names
        }
        made = {name for node in graph.node for name in node.output[:]} & names
        read, buffers = {value.name: value.type for value in graph.input}, _buffers(graph)
        for value, word in words:
            if word is None or value.name not in made:
                continue
            entry = types.get(value.name)
            if entry is not None and _differ(shape_of(entry.type), shape_of(word)):
                past = read.get(buffers.get(value.name, ""))
                if past is not None and shape_of(word) == shape_of(past):
                    entry.type.CopyFrom(word)
                    has_changed = True
                else:
                    contradicted.append(value.name)
            elif entry is None or not is_complete(entry.type):
                entry = entry or graph.value_info.add(name=value.name)
                entry.type.CopyFrom(word)
                used.append(value.name)
    return Declared(tuple(used), tuple(contradicted), has_changed or bool(used))


def agree(original: onnx.GraphProto, dims: Mapping[str, int], types: Mapping[str, Known]) -> bool:
    """Whether what a graph declares is what is known of its types, as far as it can be told."""
    words = ((v.name, _bound(v.type, dims)) for v in (*original.value_info, *original.output))
    return all(word is None or _agrees(types, name, word) for name, word in words)


def _pairs(
    graph: onnx.GraphProto, source: onnx.GraphProto
) -> Iterator[tuple[onnx.GraphProto, onnx.GraphProto]]:
    """Each graph of a model beside the same graph of its original."""
    stack = [(graph, source)]
    while stack:
        graph, source = stack.pop()
        yield graph, source
        twins = [(place, twin) for place, twin in enumerate(source.node) if twin.attribute]
        for place, twin in twins:
            if bodies := subgraphs(twin):
                pairs = zip(subgraphs(graph.node[place]), bodies, strict=True)
                stack.extend((inner, other) for (_, inner), (_, other) in pairs)


def _buffers(graph: onnx.GraphProto) -> dict[str, str]:
    """Present keys and values -> past ones, where both may be one buffer of the longest length.

    GroupQueryAttention's present is as long as its past or as all tokens, the longer
    (contrib ops, ``BaseGroupQueryAttentionTypeAndShapeInference``); how many those are is a value.
    """
    return {
        present: past
        for node in graph.node
        if node.op_type == "GroupQueryAttention" and node.domain == "com.microsoft"
        for past, present in zip(node.input[3:5], node.output[1:3], strict=False)
        if past and present
    }


def _agrees(types: Mapping[str, Known], name: str, word: onnx.TypeProto | None) -> bool:
    """Whether a type is known to be complete and as declared."""
    known = types.get(name)
    if word is None or known is None or not known.is_complete:
        return False
    return not _differ(known.shape, shape_of(word))


def _differ(derived: Shape | None, declared: Shape | None) -> bool:
    """Whether two shapes cannot be one: another rank, or a dim known to be two numbers."""
    if derived is None or declared is None:
        return False
    pairs = zip(derived, declared, strict=False)
    return len(derived) != len(declared) or any(a != b for a, b in pairs if None not in {a, b})


def _bound(proto: onnx.TypeProto, dims: Mapping[str, int]) -> onnx.TypeProto | None:
    """A declared type with numbers for its symbols; ``None`` where a dim stays unknown."""
    if proto.WhichOneof("value") != "tensor_type" or not proto.tensor_type.HasField("shape"):
        return None
    numbers = [
        dim.dim_value if dim.HasField("dim_value") else evaluated(dim.dim_param, dims)
        for dim in proto.tensor_type.shape.dim
    ]
    known = [number for number in numbers if number is not None and number >= 0]
    if len(known) < len(numbers) or not proto.tensor_type.elem_type:
        return None
    return dense_type(proto.tensor_type.elem_type, known)

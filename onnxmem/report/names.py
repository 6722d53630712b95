"""A tensor or a node of a model, explained as text and as JSON."""

from collections.abc import Iterator, Sequence
from typing import Final

from onnxmem.analysis.json_rows import JsonDict
from onnxmem.decisions.explain.names import ExplainedNode, ExplainedTensor
from onnxmem.errors import printable, shortened
from onnxmem.model.graph import Role, Tensor
from onnxmem.report.text import fact, figure, shape_text

_MOST: Final = 8
"""Names that a text lists; JSON has all."""
_ALWAYS_LIVE: Final = frozenset({Role.WEIGHT, Role.INPUT})


def render_name(found: ExplainedTensor | ExplainedNode, where: str) -> str:
    """A tensor or a node; ``where`` is the model and its batch."""
    lines = _tensor(found, where) if isinstance(found, ExplainedTensor) else _node(found, where)
    return "\n".join(lines) + "\n"


def _node(found: ExplainedNode, where: str) -> Iterator[str]:
    yield fact("Node", f"{shortened(found.node.name)}   {where}")
    yield fact("  operator", found.node.op_type)
    for tensor in found.reads[:_MOST]:
        yield _size("  reads", tensor, f"{shortened(tensor.name)}, {tensor.role.value}")
    if len(found.reads) > _MOST:
        yield fact("", f"and {len(found.reads) - _MOST:,} more")
    yield fact("  at the peak", "yes, it is this node" if found.is_at_peak else "no")
    for each in found.writes:
        yield ""
        yield from _tensor(each, "written by it")


def _tensor(found: ExplainedTensor, where: str) -> Iterator[str]:
    tensor = found.tensor
    yield fact("Tensor", f"{shortened(tensor.name)}   {where}")
    yield fact("  role", tensor.role.value)
    yield _size("  size", tensor, "")
    if found.producer is not None:
        producer = found.producer
        yield fact("  written by", f"{shortened(producer.name)} ({producer.op_type})")
    yield fact("  read by", _names(found.readers) or "no node")
    yield from _life(found)
    if found.shares_with:
        yield fact("  in one buffer with", _names(found.shares_with))


def _life(found: ExplainedTensor) -> Iterator[str]:
    if found.tensor.role in _ALWAYS_LIVE:
        yield fact("  live", "always: it exists before the first node and after the last")
        yield fact("  live at the peak", "yes, but it is no part of the peak of activations")
    elif found.is_live_at_peak is None:
        yield fact("  live", "it has no buffer of its own among those of the main graph's nodes")
    else:
        yield fact("  live from", shortened(found.first_node or "the start"))
        last = found.last_node
        yield fact("  live until", "the end: an output" if last is None else shortened(last))
        yield fact("  live at the peak", "yes" if found.is_live_at_peak else "no")


def _size(label: str, tensor: Tensor, remark: str) -> str:
    dtype = "unknown type" if tensor.dtype is None else tensor.dtype.value
    text = f"{shape_text(tensor.shape)} {dtype}"
    return figure(label, tensor.size_bytes, f"{text}   {remark}".rstrip())


def _names(names: Sequence[str]) -> str:
    more = f", and {len(names) - _MOST:,} more" if len(names) > _MOST else ""
    return ", ".join(shortened(name) for name in names[:_MOST]) + more


def name_row(found: ExplainedTensor | ExplainedNode) -> JsonDict:
    """A tensor or a node in JSON; unknown is null."""
    if isinstance(found, ExplainedTensor):
        return _tensor_row(found)
    return {
        "kind": "model_node",
        "node": printable(found.node.name),
        "op_type": found.node.op_type,
        "reads": [printable(tensor.name) for tensor in found.reads],
        "writes": [_tensor_row(each) for each in found.writes],
        "is_at_peak": found.is_at_peak,
    }


def _tensor_row(found: ExplainedTensor) -> JsonDict:
    tensor = found.tensor
    return {
        "kind": "model_tensor",
        "tensor": printable(tensor.name),
        "role": tensor.role.value,
        "element_type": None if tensor.dtype is None else tensor.dtype.value,
        "shape": None if tensor.shape is None else list(tensor.shape),
        "bytes": tensor.size_bytes,
        "node": None if found.producer is None else printable(found.producer.name),
        "readers": [printable(name) for name in found.readers],
        "first_node": None if found.first_node is None else printable(found.first_node),
        "last_node": None if found.last_node is None else printable(found.last_node),
        "is_live_at_peak": found.is_live_at_peak,
        "shares_with": [printable(name) for name in found.shares_with],
    }

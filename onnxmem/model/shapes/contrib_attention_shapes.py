"""Shapes of onnxruntime's attention with heads of two sizes or a cache (``bert_defs.cc``).

Heads of values may be wider than those of queries and keys, which onnx-shape-inference takes to be
alike. A cache that is put out is as long as what came in and what is new; where the length of what
is in it is told apart, it is a buffer that stays as it is.
"""

from collections.abc import Callable, Mapping
from typing import Final

from onnxmem.model.shapes.node_facts import Found, NodeFacts
from onnxmem.ops.spec import Dims

_LENGTH: Final = 8
"""The place of MultiHeadAttention's ``past_sequence_length``."""
_TOTAL: Final = 6
"""The place of GroupQueryAttention's ``total_sequence_length``."""
_ROWS, _HEADS = 3, 4
"""Ranks of [B, S, N * H] and of [B, N, S, H]."""


def _multi_head(facts: NodeFacts) -> Found:
    """Q: [B, S, N * H], K: [B, T, N * H], V: [B, T, N * E] -> [B, S, N * E], caches by head."""
    heads, query = facts.integer("num_heads"), facts.dims(0)
    keys, values = (_split(facts.dims(place), heads) for place in (1, 2))
    if query is None or len(query) != _ROWS or keys is None or values is None:
        return {}
    found = facts.outputs((*query[:2], heads * values[-1]), elem_type=facts.elem_type(0))
    if len(facts.dims(1) or ()) != _ROWS:
        return found
    present = (_cached(facts, 6, keys), _cached(facts, 7, values))
    return found | facts.outputs(None, *present, elem_type=facts.elem_type(0))


def _split(dims: Dims | None, heads: int) -> Dims | None:
    """[B, T, N * H] or [B, N, T, H] -> [B, N, T, H]."""
    if dims is None or heads < 1 or len(dims) not in {_ROWS, _HEADS}:
        return None
    if len(dims) == _HEADS:
        return dims
    return (dims[0], heads, dims[1], dims[2] // heads) if dims[2] % heads == 0 else None


def _cached(facts: NodeFacts, place: int, new: Dims) -> Dims | None:
    if not facts.has(place):
        return new
    past = facts.dims(place)
    if past is None or len(past) != _HEADS:
        return None
    return past if facts.has(_LENGTH) else (*past[:2], past[2] + new[2], past[3])


def _grouped(facts: NodeFacts) -> Found:
    """Caches: [B, G, P, H] -> [B, G, the longer of P and all tokens, H], where those are known."""
    total = facts.whole_numbers(_TOTAL)
    if total is None or len(total) != 1:
        return {}
    lengths = [
        (*past[:2], max(past[2], *total), past[3]) if past and len(past) == _HEADS else None
        for past in (facts.dims(3), facts.dims(4))
    ]
    return facts.outputs(None, *lengths, elem_type=facts.elem_type(3))


ATTENTION_RULES: Final[Mapping[str, Callable[[NodeFacts], Found]]] = {
    "GroupQueryAttention": _grouped,
    "MultiHeadAttention": _multi_head,
}

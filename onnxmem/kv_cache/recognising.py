"""Which inputs and outputs of a model are its cache.

1. What a cache operator takes from a graph input and hands to a graph output (``operators.py``); a
   bare Concat counts where its length is a symbol, its output is read on, and there are two or
   more, for images are joined too.
2. What is named as a cache (``names.py``), has an output named as its present, and shapes that fit
   (``shapes.py``).
3. What is named as an encoder's cache beside such, and is only read.

A name whose shapes do not fit is a remark, and counts nowhere.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import onnx

from onnxmem.errors import Finding, shortened
from onnxmem.kv_cache.cache import Course, KvCache, Part
from onnxmem.kv_cache.candidates import Candidate
from onnxmem.kv_cache.holds import Holds
from onnxmem.kv_cache.names import Label, label_of
from onnxmem.kv_cache.operators import Flow
from onnxmem.kv_cache.shapes import Pair, Shaped, shaped
from onnxmem.kv_cache.symbols import symbols_of
from onnxmem.model import Prepared
from onnxmem.model.binding import Dims, input_dims
from onnxmem.model.graph import dtype_of
from onnxmem.model.traversal import outer_reads, subgraphs

_NAMED: Final = "name and shape"
_FEW: Final = 2


def recognise(
    prepared: Prepared, candidates: Iterable[Candidate]
) -> tuple[KvCache | None, tuple[Finding, ...]]:
    """The cache of a model among the inputs that may be it, and what is only named like one."""
    graph = prepared.proto.graph
    outputs = {value.name: value for value in graph.output}
    parts: list[Part] = []
    remarks: list[Finding] = []
    for candidate in candidates:
        found = _part(candidate, outputs, prepared.batch_symbols)
        if isinstance(found, Part):
            parts.append(found)
        elif candidate.label.suggests_cache and candidate.label.holds is not Holds.UNKNOWN:
            name = shortened(candidate.value.name)
            text = f"{name} is named as a cache is, and not counted as one: {found}"
            remarks.append(Finding("no_cache", text))
    kept = _kept(parts)
    if not kept:
        return None, tuple(remarks)
    symbols, assumptions = symbols_of(graph, kept, prepared.batch_symbols)
    assumptions = (*assumptions, *_assumptions(graph, kept))
    return KvCache(kept, symbols, prepared, assumptions), tuple(remarks)


def _assumptions(graph: onnx.GraphProto, parts: tuple[Part, ...]) -> Iterator[str]:
    if any(part.is_layout_assumed for part in parts):
        yield "of four dims, all of them numbers, the third is taken for that of tokens"
    names = {part.name for part in parts}
    branches = [
        inner for node in graph.node if node.op_type == "If" for _, inner in subgraphs(node)
    ]
    if any(outer_reads(inner) & names for inner in branches):
        yield "of an If the branch that takes more counts, in every step"


def _part(
    candidate: Candidate, outputs: Mapping[str, onnx.ValueInfoProto], batch: frozenset[str]
) -> Part | str:
    """The candidate as a part of the cache, or why it is none."""
    value, label, flow = candidate.value, candidate.label, candidate.flow
    dims, dtype = input_dims(value), dtype_of(value.type.tensor_type.elem_type)
    if dims is None or dtype is None:
        return "its shape or element type is not said"
    present = None if candidate.present is None else outputs[candidate.present]
    if present is None and not label.is_encoders and (flow is None or flow.op_type == "Concat"):
        return "no output is named as its present"
    holds = _holds(label, flow, dims)
    axis = None if flow is None else flow.length_axis
    pair = Pair(dims, _present_dims(present), dtype, holds, axis)
    fit = shaped(pair, tuple(batch))
    return fit if isinstance(fit, str) else _made(candidate, pair, fit)


def _present_dims(present: onnx.ValueInfoProto | None) -> Dims | None:
    return None if present is None else input_dims(present)


def _holds(label: Label, flow: Flow | None, dims: Dims) -> Holds:
    if flow is not None and flow.slot.holds is not Holds.UNKNOWN:
        return flow.slot.holds
    if label.holds is Holds.UNKNOWN and dims and dims[0] == 2:  # noqa: PLR2004 - keys and values
        return Holds.BOTH
    return label.holds


def _made(candidate: Candidate, pair: Pair, fit: Shaped) -> Part:
    flow, label, axis = candidate.flow, candidate.label, fit.length_axis
    past = None if axis is None else pair.dims[axis]
    present = None if axis is None or pair.present is None else pair.present[axis]
    return Part(
        name=candidate.value.name,
        output=candidate.present,
        holds=pair.holds,
        course=_course(label, past, present),
        layer=label.layer if label.suggests_cache else None,
        dims=pair.dims,
        dtype=pair.dtype,
        length_axis=axis,
        batch_axis=fit.batch_axis,
        present_length=present,
        found_by=_NAMED if flow is None else flow.op_type,
        query_heads=None if flow is None else flow.query_heads,
        is_layout_assumed=fit.is_assumed,
    )


def _course(label: Label, past: str | int | None, present: str | int | None) -> Course:
    if past is None:
        return Course.CONSTANT
    if label.is_encoders:
        return Course.ENCODER
    if isinstance(past, int):
        return Course.FIXED
    return Course.BUFFER if past == present else Course.GROWS


def _kept(parts: list[Part]) -> tuple[Part, ...]:
    """Without what a bare Concat alone says, unless two or more say so of open lengths."""
    bare = [part for part in parts if part.found_by == "Concat" and not _is_named(part)]
    growing = [part for part in bare if part.course is Course.GROWS]
    drops = {part.name for part in (bare if len(growing) < _FEW else set(bare) - set(growing))}
    kept = tuple(part for part in parts if part.name not in drops)
    return kept if any(part.course is not Course.ENCODER for part in kept) else ()


def _is_named(part: Part) -> bool:
    return label_of(part.name).suggests_cache

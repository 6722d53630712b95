"""Which inputs and outputs of a model are its cache.

1. What a cache operator takes from a graph input and hands to a graph output (``operators.py``); a
   bare Concat counts where its length is a symbol, its output is read on, and there are two or
   more, for images are joined too.
2. What is named as a cache (``names.py``), has an output named as its present, and shapes that fit
   (``shapes.py``).
3. What is named as an encoder's cache beside such, and is only read.

A name whose shapes do not fit is a remark, and counts nowhere.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import onnx

from onnxmem.escaping import shortened
from onnxmem.findings import Finding
from onnxmem.kv_cache.cache import Course, Holds, KvCache, Part
from onnxmem.kv_cache.names import Label, label_of
from onnxmem.kv_cache.operators import Flow, flows
from onnxmem.kv_cache.shapes import Pair, Shaped, shaped
from onnxmem.kv_cache.symbols import symbols_of
from onnxmem.model import Prepared
from onnxmem.model.binding import Dims, given_inputs, input_dims
from onnxmem.model.columns import Columns
from onnxmem.model.dtypes import dtype_of
from onnxmem.model.traversal import nodes_in, outer_reads, subgraphs

_NAMED: Final = "name and shape"
_FEW: Final = 2


@dataclass(frozen=True, slots=True)
class Recognised:
    """The cache, where there is one, and what was named like a cache and is none."""

    cache: KvCache | None
    remarks: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An input that may be a cache."""

    value: onnx.ValueInfoProto
    label: Label
    flow: Flow | None
    present: str | None


def find_cache(prepared: Prepared) -> Recognised:
    """Recognise the cache of a model; no dim need be bound."""
    graph = prepared.proto.graph
    outputs = {value.name: value for value in graph.output}
    parts: list[Part] = []
    remarks: list[Finding] = []
    for candidate in _candidates(graph, prepared.columns):
        found = _part(candidate, outputs, prepared.batch_symbols)
        if isinstance(found, Part):
            parts.append(found)
        elif candidate.label.suggests_cache and candidate.label.holds is not Holds.UNKNOWN:
            name = shortened(candidate.value.name)
            text = f"{name} is named as a cache is, and not counted as one: {found}"
            remarks.append(Finding("no_cache", text))
    kept = _kept(parts)
    if not kept:
        return Recognised(None, tuple(remarks))
    symbols, assumptions = symbols_of(graph, kept, prepared.batch_symbols)
    assumptions = (*assumptions, *_assumptions(graph, kept))
    return Recognised(KvCache(kept, symbols, prepared, assumptions), tuple(remarks))


def _assumptions(graph: onnx.GraphProto, parts: tuple[Part, ...]) -> Iterator[str]:
    if any(part.is_layout_assumed for part in parts):
        yield "of four dims, all of them numbers, the third is taken for that of tokens"
    names = {part.name for part in parts}
    branches = [
        inner for node in graph.node if node.op_type == "If" for _, inner in subgraphs(node)
    ]
    if any(outer_reads(inner) & names for inner in branches):
        yield "of an If the branch that takes more counts, in every step"


def _candidates(graph: onnx.GraphProto, columns: Columns) -> Iterator[_Candidate]:
    """Inputs that an operator takes as a cache, or that are named as one."""
    by_input: dict[str, Flow] = {}
    found = tuple(flows(graph, columns))
    is_read = any(flow.op_type == "Concat" for flow in found)
    read = {name for node in nodes_in(graph.node) for name in node.input} if is_read else set()
    for flow in found:
        known = by_input.get(flow.past)
        is_joined = flow.op_type != "Concat" or flow.present in read
        if (known is None or known.op_type == "Concat") and (
            is_joined or label_of(flow.past).suggests_cache
        ):
            by_input[flow.past] = flow
    presents = _by_words(graph)
    for value in given_inputs(graph):
        flow_of, label = by_input.get(value.name), label_of(value.name)
        if flow_of is not None or label.suggests_cache:
            present = flow_of.present if flow_of else None
            present = present or presents.get((label.words, label.is_state))
            yield _Candidate(value, label, flow_of, present)


def _by_words(graph: onnx.GraphProto) -> Mapping[tuple[tuple[str, ...], bool], str]:
    """The output of each combination of words that only one output has."""
    found: dict[tuple[tuple[str, ...], bool], list[str]] = {}
    for value in graph.output:
        label = label_of(value.name)
        if label.is_marked:
            found.setdefault((label.words, label.is_state), []).append(value.name)
    return {words: names[0] for words, names in found.items() if len(names) == 1}


def _part(
    candidate: _Candidate, outputs: Mapping[str, onnx.ValueInfoProto], batch: frozenset[str]
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


def _made(candidate: _Candidate, pair: Pair, fit: Shaped) -> Part:
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

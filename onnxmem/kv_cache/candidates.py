"""Inputs that may be a cache, by operators and by names: most models have none."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx

from onnxmem import kv_cache
from onnxmem.errors import Finding
from onnxmem.kv_cache.names import Label, label_of
from onnxmem.kv_cache.operators import Flow, flows
from onnxmem.model import Prepared

if TYPE_CHECKING:
    from onnxmem.kv_cache import KvCache


@dataclass(frozen=True, slots=True)
class Recognised:
    """The cache, where there is one, and what was named like a cache and is none."""

    cache: "KvCache | None"
    remarks: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An input that may be a cache."""

    value: onnx.ValueInfoProto
    label: Label
    flow: Flow | None
    present: str | None


def find_cache(prepared: Prepared) -> Recognised:
    """Recognise the cache of a model; no dim need be bound."""
    found = tuple(_candidates(prepared))
    return kv_cache.recognise(prepared, found) if found else Recognised(None, ())


def _candidates(prepared: Prepared) -> Iterator[Candidate]:
    """Inputs that an operator takes as a cache, or that are named as one."""
    graph, columns = prepared.proto.graph, prepared.columns
    by_input: dict[str, Flow] = {}
    found = tuple(flows(graph, columns))
    is_read = any(flow.op_type == "Concat" for flow in found)
    read = columns.all_inputs() if is_read else set()
    for flow in found:
        known = by_input.get(flow.past)
        is_joined = flow.op_type != "Concat" or flow.present in read
        if (known is None or known.op_type == "Concat") and (
            is_joined or label_of(flow.past).suggests_cache
        ):
            by_input[flow.past] = flow
    presents = _by_words(graph)
    for value in prepared.given:
        flow_of, label = by_input.get(value.name), label_of(value.name)
        if flow_of is not None or label.suggests_cache:
            present = flow_of.present if flow_of else None
            present = present or presents.get((label.words, label.is_state))
            yield Candidate(value, label, flow_of, present)


def _by_words(graph: onnx.GraphProto) -> Mapping[tuple[tuple[str, ...], bool], str]:
    """The output of each combination of words that only one output has."""
    found: dict[tuple[tuple[str, ...], bool], list[str]] = {}
    for value in graph.output:
        label = label_of(value.name)
        if label.is_marked:
            found.setdefault((label.words, label.is_state), []).append(value.name)
    return {words: names[0] for words, names in found.items() if len(names) == 1}

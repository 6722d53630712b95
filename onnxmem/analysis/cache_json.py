"""A cache as plain values: the key ``kv_cache`` of a row of the JSON contract."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from onnxmem.analysis.json_row import Row
from onnxmem.errors import printable
from onnxmem.kv_cache.cache import Part
from onnxmem.kv_cache.steps import Step

if TYPE_CHECKING:
    from onnxmem.analysis.cache_memory import CacheMemory, StepMemory

_Value = TypeVar("_Value")


def cache_row(memory: "CacheMemory") -> Row:
    """All of it; unknown is null, and what is not the same in all layers too."""
    cache, context, symbols = memory.cache, memory.context, memory.cache.symbols
    parts = cache.parts
    kinds = {} if context is None else memory.bytes_by_kind(context)
    steps = {step: memory.step(step) for step in Step}
    return {
        "layers": cache.num_layers,
        "kv_heads": shared_by(part.kv_heads for part in parts),
        "query_heads": shared_by(part.query_heads for part in parts),
        "head_size": shared_by(part.head_size for part in parts),
        "layout": shared_by(part.layout for part in parts),
        "dtypes": sorted({part.dtype.value for part in parts}),
        "found_by": sorted({part.found_by for part in parts}),
        "can_share_buffer": bool(cache.shared),
        "bytes_per_token": memory.bytes_per_token,
        "constant_bytes_per_sequence": memory.constant_bytes_per_sequence,
        "batch": memory.batch,
        "context": context,
        "bytes": None if context is None else memory.bytes_at(context),
        "bytes_by_kind": {kind.value: size for kind, size in kinds.items()},
        "symbols": {
            "batch": _names(symbols.batch),
            "past": _names(symbols.past),
            "buffer": _names(symbols.buffer),
            "sequence": _names(symbols.sequence),
            "total": _names(symbols.total),
        },
        "decode": _step(steps[Step.DECODE]),
        "prefill": _step(steps[Step.PREFILL]),
        "assumptions": [printable(text) for text in cache.assumptions],
        "remarks": [printable(text) for text in memory.remarks],
        "tensors": [_part(part) for part in parts],
    }


def shared_by(values: Iterable[_Value | None]) -> _Value | None:
    """What all have in common; ``None`` where they differ, or it is unknown."""
    found = {*values}
    return found.pop() if len(found) == 1 else None


def _names(names: Iterable[str]) -> list[str]:
    return [printable(name) for name in names]


def _part(part: Part) -> Row:
    return {
        "name": printable(part.name),
        "output": None if part.output is None else printable(part.output),
        "holds": part.holds.value,
        "course": part.course.value,
        "layer": part.layer,
        "dtype": part.dtype.value,
        "dims": [dim if isinstance(dim, int) else printable(dim) for dim in part.dims],
        "found_by": part.found_by,
    }


def _step(memory: "StepMemory | None") -> Row | None:
    if memory is None:
        return None
    return {
        "status": "ok" if memory.is_whole else "partial",
        "sequence": memory.sequence,
        "past": memory.past,
        "dims": {printable(name): number for name, number in memory.dims.items()},
        "weight_bytes": memory.weight_bytes,
        "cache_bytes": memory.cache_bytes,
        "other_inputs_bytes": memory.other_inputs_bytes,
        "in_place_peak_bytes": memory.peak_bytes,
        "total_bytes": memory.total_bytes,
        "one_buffer_cache_bytes": memory.one_buffer_cache_bytes,
        "one_buffer_peak_bytes": memory.one_buffer_peak_bytes,
        "one_buffer_total_bytes": memory.one_buffer_total_bytes,
    }

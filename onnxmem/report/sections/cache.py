"""The key-value cache: what it takes, and a decode step and a prefill with it."""

from collections.abc import Iterator

from onnxmem.analysis.cache_memory import CacheMemory, StepMemory, shared_by
from onnxmem.errors import shortened
from onnxmem.kv_cache.cache import KvCache, LengthRule, Part
from onnxmem.kv_cache.steps import Step
from onnxmem.report.sections.section import PEAK, Line, Note, Section
from onnxmem.units import plural

_LENGTH_RULES = {
    LengthRule.FIXED: "windows or static buffers",
    LengthRule.ENCODER: "the encoder's tokens",
    LengthRule.CONSTANT: "states",
}


def cache_sections(memory: CacheMemory) -> Iterator[Section]:
    """The cache, and each of its steps."""
    yield _cache_section(memory)
    yield from map(_step_section, memory.steps)


def _cache_section(memory: CacheMemory) -> Section:
    """Bytes at the context as a sum of kinds, bytes of a token, and what the cache is."""
    cache = memory.cache
    lines = [
        *_kinds(memory),
        Line(
            "bytes per token",
            memory.bytes_per_token,
            "of one sequence, in all layers",
            key="kv_cache.bytes_per_token",
        ),
    ]
    if memory.constant_bytes_per_sequence != 0:
        remark = f"at any context: {', '.join(_constant(cache))}"
        key = "kv_cache.constant_bytes_per_sequence"
        size_bytes = memory.constant_bytes_per_sequence
        lines.append(Line("bytes per sequence", size_bytes, remark, key=key))
    lines.append(Line("layers", text=", ".join(_described(cache))))
    found_by = ", ".join(sorted({part.found_by for part in cache.parts}))
    lines.append(Line("found by", text=found_by))
    if memory.context is None:
        lines.append(Line("at a context", text="--context N"))
    remarks = (*cache.assumptions, *memory.remarks)
    return Section(
        key="cache",
        title="Key-value cache",
        total=_total(memory),
        lines=tuple(lines),
        notes=(*_bound(memory), *(Note("note", shortened(each, 2000)) for each in remarks)),
    )


def _total(memory: CacheMemory) -> Line | None:
    """All of it at the context; ``None`` where none is given."""
    if memory.context is None:
        return None
    at = f"{plural(memory.batch, 'sequence')} of {plural(memory.context, 'token')}"
    key = "kv_cache.bytes"
    return Line("", memory.bytes_at(memory.context), at, key=key, words_key="kv_cache.sequences")


def _kinds(memory: CacheMemory) -> Iterator[Line]:
    """The bytes of keys, of values and so on."""
    if memory.context is None:
        return
    for kind, size_bytes in memory.bytes_by_kind(memory.context).items():
        yield Line(kind.value, size_bytes, key=f"kv_cache.bytes_by_kind.{kind.value}")


def _constant(cache: KvCache) -> Iterator[str]:
    for rule, text in _LENGTH_RULES.items():
        if any(part.length_rule is rule for part in cache.parts):
            yield text


def _described(cache: KvCache) -> Iterator[str]:
    """The number of layers, and what a token of one has; different layers one after another."""
    yield f"{cache.num_layers:,}"
    groups: dict[str, None] = {}
    for part in cache.parts:
        groups.setdefault(_group(part))
    yield from groups
    layout = shared_by(part.layout for part in cache.parts)
    if layout is not None:
        yield layout
    query_heads = shared_by(part.query_heads for part in cache.parts)
    if query_heads is not None:
        yield f"{plural(query_heads, 'query head')}"


def _group(part: Part) -> str:
    heads, size = part.kv_heads, part.head_size
    if heads is None or size is None:
        dims = " x ".join(shortened(str(dim)) for dim in part.dims)
        return f"{part.contents.value} {dims} {part.dtype.value}"
    return f"{part.contents.value} {plural(heads, 'head')} x {size:,} {part.dtype.value}"


def _bound(memory: CacheMemory) -> Iterator[Note]:
    """The dims that each step binds to numbers of tokens."""
    for step in memory.steps if memory.context is not None else ():
        name = step.step.value
        dims = tuple(f"{shortened(name)} = {number:,}" for name, number in step.dims.items())
        yield Note(f"dims of {name}", parts=dims or ("nothing",), words_key=f"kv_cache.{name}.dims")


def _step_section(memory: StepMemory) -> Section:
    """One step's memory as a sum."""
    key = f"kv_cache.{memory.step.value}"
    new, past = plural(memory.sequence, "token"), f"{memory.past:,}" if memory.past else "none"
    at = f"{new} after {past}" if memory.is_whole else f"{new} after {past}; a lower bound"
    lines = [
        Line("weights", memory.weight_bytes, key=f"{key}.weight_bytes"),
        Line("past key-value cache", memory.cache_bytes, key=f"{key}.cache_bytes"),
        Line("other inputs", memory.other_inputs_bytes, key=f"{key}.other_inputs_bytes"),
        Line(
            PEAK,
            memory.peak_bytes,
            "with the present key-value cache",
            key=f"{key}.in_place_peak_bytes",
        ),
    ]
    # None: past and present cannot share one buffer in this model, which is not unknown.
    if memory.one_buffer_total_bytes is not None:
        remark = "total, past and present in one buffer"
        size_bytes = memory.one_buffer_total_bytes
        lines.append(
            Line("with one buffer", size_bytes, remark, key=f"{key}.one_buffer_total_bytes")
        )
    return Section(
        key=f"cache-{memory.step.value}",
        title="Decode step" if memory.step is Step.DECODE else "Prefill",
        total=Line("", memory.total_bytes, at, key=f"{key}.total_bytes"),
        lines=tuple(lines),
    )

"""The key-value cache in a text report: what it takes, and a decode step and a prefill with it."""

from collections.abc import Iterator

from onnxmem.analysis.cache_json import shared_by
from onnxmem.analysis.cache_memory import CacheMemory, StepMemory
from onnxmem.errors import shortened
from onnxmem.kv_cache import Course, KvCache, Part, Step
from onnxmem.report.lines import fact, figure, paragraph, prose
from onnxmem.units import plural

_COURSES = {
    Course.FIXED: "windows or static buffers",
    Course.ENCODER: "the encoder's tokens",
    Course.CONSTANT: "states",
}


def cache_sections(memory: CacheMemory) -> list[list[str]]:
    """Sections on the cache and on its steps."""
    return [_cache_section(memory), *(_step_section(step) for step in memory.steps)]


def _cache_section(memory: CacheMemory) -> list[str]:
    """Bytes at the context as a sum of kinds, bytes of a token, and what the cache is."""
    cache, context = memory.cache, memory.context
    lines = ["KV CACHE"]
    if context is not None:
        sequences = plural(memory.batch, "sequence")
        at = f"{sequences} of {plural(context, 'token')}"
        lines = [figure("KV CACHE", memory.bytes_at(context), at)]
        kinds = memory.bytes_by_kind(context)
        lines += [figure(f"  {kind.value}", size) for kind, size in kinds.items()]
    lines.append(figure("  a token", memory.bytes_per_token, "of one sequence, in all layers"))
    if memory.constant_bytes_per_sequence != 0:
        remark = f"whatever the context: {', '.join(_constant(cache))}"
        lines.append(figure("  a sequence", memory.constant_bytes_per_sequence, remark, wraps=True))
    lines.append(fact("  layers", ", ".join(_described(cache)), wraps=True))
    lines.append(fact("  found by", ", ".join(sorted({part.found_by for part in cache.parts}))))
    lines += _bound(memory)
    for remark in (*cache.assumptions, *memory.remarks):
        lines += prose("  note: ", shortened(remark, 2000))
    return lines


def _constant(cache: KvCache) -> Iterator[str]:
    for course, text in _COURSES.items():
        if any(part.course is course for part in cache.parts):
            yield text


def _described(cache: KvCache) -> Iterator[str]:
    """How many, and what a token of one holds; groups of unlike layers one after another."""
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
        return f"{part.holds.value} {dims} {part.dtype.value}"
    return f"{part.holds.value} {plural(heads, 'head')} x {size:,} {part.dtype.value}"


def _bound(memory: CacheMemory) -> list[str]:
    """What the file calls the tokens, and their numbers in the decode step."""
    if memory.context is None:
        return [fact("  at a length", "--context N")]
    lines = []
    for step in memory.steps:
        dims = [f"{shortened(name)} = {number:,}" for name, number in step.dims.items()]
        lines += paragraph(f"  binds, {step.step.value}: ", dims or ["nothing"])
    return lines


def _step_section(memory: StepMemory) -> list[str]:
    """One step as a sum."""
    name = "DECODE STEP" if memory.step is Step.DECODE else "PREFILL"
    new, past = plural(memory.sequence, "token"), f"{memory.past:,}" if memory.past else "none"
    at = f"{new} after {past}"
    lines = [
        figure(name, memory.total_bytes, at if memory.is_whole else f"{at}; a lower bound"),
        figure("  weights", memory.weight_bytes),
        figure("  cache handed in", memory.cache_bytes),
        figure("  other inputs", memory.other_inputs_bytes),
        figure("  in-place peak", memory.peak_bytes, "the cache handed out included"),
    ]
    if memory.one_buffer_total_bytes is not None:
        remark = "in all, past and present in one buffer"
        lines.append(figure("  or, sharing", memory.one_buffer_total_bytes, remark))
    return lines

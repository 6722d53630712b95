"""The memory of a key-value cache at a batch and a context, and of the steps that use it.

The figures of a step are those of ``analyze`` at its dims: weights, inputs including the past
key-value tensors, and the in-place peak including the present ones. If past and present have the
same length, a caller may bind one buffer to both; then the present needs no memory of its own, and
the step is computed again without it. ``cache_row`` gives all of this as the key ``kv_cache`` of
the JSON contract.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from onnxmem.analysis.request import StageResults, stage_results
from onnxmem.errors import OnnxmemError, printable
from onnxmem.kv_cache.cache import KvCache, LengthRule, Part
from onnxmem.kv_cache.candidates import Contents
from onnxmem.kv_cache.steps import Step, Tokens, bind_context, numbers_at
from onnxmem.model.graph import Graph
from onnxmem.runtimes.ideal.activation_memory import in_place_peak_bytes, scope_of
from onnxmem.settings import Settings
from onnxmem.units import sum_if_known, sum_known

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """The memory of one step; bytes, ``None`` is unknown."""

    step: Step
    sequence: int
    past: int
    dims: Mapping[str, int]
    """The values of the file's symbols in this step."""
    weight_bytes: int | None
    cache_bytes: int | None
    """The past key-value tensors among the inputs."""
    other_inputs_bytes: int | None
    peak_bytes: int | None
    """The in-place peak, present key-value tensors included."""
    one_buffer_cache_bytes: int | None
    """Past and present in one buffer; ``None`` if they cannot share one."""
    one_buffer_peak_bytes: int | None
    """The in-place peak without that buffer."""
    is_whole: bool

    @property
    def total_bytes(self) -> int | None:
        """Weights, inputs and in-place peak."""
        return self._total(self.cache_bytes, self.peak_bytes)

    @property
    def one_buffer_total_bytes(self) -> int | None:
        """The same with past and present in one buffer."""
        if self.one_buffer_peak_bytes is None or self.one_buffer_cache_bytes is None:
            return None
        return self._total(self.one_buffer_cache_bytes, self.one_buffer_peak_bytes)

    def _total(self, cache_bytes: int | None, peak_bytes: int | None) -> int | None:
        return sum_known((self.weight_bytes, cache_bytes, self.other_inputs_bytes, peak_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMemory:
    """A cache at a batch; bytes, ``None`` is unknown."""

    cache: KvCache = field(repr=False)
    batch: int
    numbers: Mapping[str, int]
    """Values of the symbols that do not follow from the context."""
    context: int | None
    steps: tuple[StepMemory, ...]
    """Empty without a context."""
    remarks: tuple[str, ...]
    """Why a step is missing."""

    @property
    def bytes_per_token(self) -> int | None:
        """Memory of one more token of one sequence, in all layers that grow with the context."""
        return self._sum(lambda part: part.follows_context, _one_token, 1)

    @property
    def constant_bytes_per_sequence(self) -> int | None:
        """Memory of a sequence that does not grow: windows, buffers, states, encoder outputs."""
        return self._sum(lambda part: not part.follows_context, _whole, 1)

    def bytes_at(self, context: int) -> int | None:
        """The whole cache at this batch with ``context`` tokens."""
        size = _at(context)
        return self._sum(lambda _: True, size, self.batch)

    def bytes_by_kind(self, context: int) -> Mapping[Contents, int | None]:
        """The same by kind: keys, values and so on."""
        size, kinds = _at(context), dict.fromkeys(part.contents for part in self.cache.parts)
        return {kind: self._sum(_of_kind(kind), size, self.batch) for kind in kinds}

    def step(self, step: Step) -> StepMemory | None:
        """The figures of a step; ``None`` if it could not be computed."""
        return next((each for each in self.steps if each.step is step), None)

    def _sum(self, chosen: Callable[[Part], bool], size: "_Size", batch: int) -> int | None:
        numbers = {**self.numbers, **dict.fromkeys(self.cache.symbols.batch, batch)}
        sizes = [
            _at_batch(part, size(part, numbers), batch, is_symbol=bool(self.cache.symbols.batch))
            for part in self.cache.parts
            if chosen(part)
        ]
        return sum_if_known(sizes)


def cache_memory(
    cache: KvCache, settings: Settings, results: StageResults, context: int | None
) -> CacheMemory:
    """The memory of the cache at the batch of ``results``, and of both steps at a context."""
    steps: list[StepMemory] = []
    remarks: list[str] = []
    for step in Step if context is not None else ():
        try:
            steps.append(_step_memory(cache, settings, step, context or 1))
        except OnnxmemError as fault:
            remarks.append(f"no {step.value} figures: {fault}")
    return CacheMemory(
        cache=cache,
        batch=results.bound.binding.batch or 1,
        numbers=results.bound.binding.dims,
        context=context,
        steps=tuple(steps),
        remarks=tuple(remarks),
    )


def _step_memory(cache: KvCache, settings: Settings, step: Step, context: int) -> StepMemory:
    at = numbers_at(cache, step, context)
    prepared, settings = bind_context(cache, cache.prepared, replace(settings, train=False), at)
    return _figures(cache, step, at, stage_results(prepared, settings))


def _figures(
    cache: KvCache, step: Step, at: tuple[Tokens, Mapping[str, int]], results: StageResults
) -> StepMemory:
    tokens, numbers = at
    graph, names = results.bound.graph, {part.name for part in cache.parts}
    inputs = {name: graph.tensors[name].size_bytes for name in graph.inputs}
    known = {**results.bound.binding.dims, **numbers}
    return StepMemory(
        step=step,
        sequence=tokens.sequence,
        past=tokens.past,
        dims=numbers,
        weight_bytes=results.weight_bytes,
        cache_bytes=sum_known(size for name, size in inputs.items() if name in names),
        other_inputs_bytes=sum_known(size for name, size in inputs.items() if name not in names),
        peak_bytes=results.activations.in_place_peak_bytes,
        one_buffer_cache_bytes=_one_buffer(cache, inputs, known, tokens.total),
        one_buffer_peak_bytes=_one_buffer_peak(cache, graph),
        is_whole=results.is_whole,
    )


def _one_buffer(
    cache: KvCache, inputs: Mapping[str, int | None], numbers: Mapping[str, int], tokens: int
) -> int | None:
    """Past key-value tensors if those that can share a buffer have the length of the present."""
    if not cache.shared:
        return None
    return sum_known(
        part.size_bytes(numbers, tokens)
        if part.can_share and part.length_rule is LengthRule.GROWS
        else inputs[part.name]
        for part in cache.parts
    )


def _one_buffer_peak(cache: KvCache, graph: Graph) -> int | None:
    """The in-place peak without the outputs that are bound to buffers of the caller."""
    bound = {part.output for part in cache.shared}
    if not bound:
        return None
    # An output of 0 bytes allocates nothing; all lifetimes stay as they are.
    tensors = {
        name: replace(tensor, shape=(0,)) if name in bound else tensor
        for name, tensor in graph.tensors.items()
    }
    return in_place_peak_bytes(scope_of(replace(graph, tensors=tensors)))


_Size = Callable[[Part, Mapping[str, int]], int | None]


def _one_token(part: Part, numbers: Mapping[str, int]) -> int | None:
    return part.size_bytes(numbers, 1)


def _whole(part: Part, numbers: Mapping[str, int]) -> int | None:
    return part.size_bytes(numbers)


def _at(context: int) -> _Size:
    return lambda part, numbers: part.size_bytes(numbers, context)


def _of_kind(kind: Contents) -> Callable[[Part], bool]:
    return lambda part: part.contents is kind


def _at_batch(part: Part, size_bytes: int | None, batch: int, *, is_symbol: bool) -> int | None:
    """Scale a size to the batch if the file has a number as its batch dim, not a symbol."""
    dim = part.dims[part.batch_axis]
    if size_bytes is None or is_symbol or not isinstance(dim, int) or dim in {0, batch}:
        return size_bytes
    return size_bytes * batch // dim


def cache_row(memory: CacheMemory) -> dict[str, object]:
    """The JSON of a cache; a value that is unknown or differs between layers is null."""
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
        "decode": _step_row(steps[Step.DECODE]),
        "prefill": _step_row(steps[Step.PREFILL]),
        "assumptions": [printable(text) for text in cache.assumptions],
        "remarks": [printable(text) for text in memory.remarks],
        "tensors": [_part_row(part) for part in parts],
    }


def shared_by(values: Iterable[_Value | None]) -> _Value | None:
    """The value that all have; ``None`` if they differ or it is unknown."""
    found = {*values}
    return found.pop() if len(found) == 1 else None


def _names(names: Iterable[str]) -> list[str]:
    return [printable(name) for name in names]


def _part_row(part: Part) -> dict[str, object]:
    return {
        "name": printable(part.name),
        "output": None if part.output is None else printable(part.output),
        "holds": part.contents.value,
        "course": part.length_rule.value,
        "layer": part.layer,
        "dtype": part.dtype.value,
        "dims": [dim if isinstance(dim, int) else printable(dim) for dim in part.dims],
        "found_by": part.found_by,
    }


def _step_row(memory: StepMemory | None) -> dict[str, object] | None:
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

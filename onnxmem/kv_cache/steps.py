"""The dims of a context of N tokens: in a decode step, and in a prefill.

A decode step has 1 new token after N - 1; a prefill has N after none. Every symbol and expression
of a role gets that role's number, and a symbol that occurs only in an expression is solved for:
``past`` in ``past + sequence``. In a prefill the past may be a symbol that is 0, but a requested
dim cannot be 0: then 0 replaces the symbol in the model.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, Final

import onnx

from onnxmem.errors import OnnxmemError, UsageError, shortened
from onnxmem.kv_cache.cache import KvCache, LengthRule, Symbols
from onnxmem.model.binding import evaluated, names_in
from onnxmem.model.building import Prepared
from onnxmem.model.traversal import graphs_in
from onnxmem.settings import Settings


class Step(StrEnum):
    """The kind of run."""

    DECODE = "decode"
    PREFILL = "prefill"


class NoContextError(OnnxmemError):
    """The model has no such step at this context."""

    code: ClassVar[str] = "no_context"


@dataclass(frozen=True, slots=True)
class Tokens:
    """The new and the past tokens of a step."""

    sequence: int
    past: int

    @property
    def total(self) -> int:
        """Tokens after the step."""
        return self.sequence + self.past


def _tokens_of(symbols: Symbols, step: Step, context: int) -> Tokens:
    """New and past tokens of a step that ends at a context.

    :raises NoContextError: the file fixes another number of new tokens.
    """
    fixed = symbols.fixed_sequence
    if fixed is None and not symbols.sequence and step is Step.PREFILL:
        message = "no dim of the inputs is known to be that of new tokens"
        raise NoContextError(message)
    if fixed is not None and (step is Step.PREFILL or fixed > context):
        if fixed == context:
            return Tokens(fixed, 0)
        tokens = f"the file fixes the new tokens at {fixed:,}"
        message = f"{tokens}: no {step.value} of {context:,}"
        raise NoContextError(message)
    # A decode step has one new token after all others, a prefill only new ones.
    sequence = fixed or (1 if step is Step.DECODE else context)
    return Tokens(sequence, context - sequence)


def numbers_at(cache: KvCache, step: Step, context: int) -> tuple[Tokens, Mapping[str, int]]:
    """The tokens of a step, and a number for every symbol and expression that they determine.

    :raises NoContextError: the model has no such step, or a buffer is shorter than the context.
    """
    symbols = cache.symbols
    tokens = _tokens_of(symbols, step, context)
    _check_buffers(cache, context)
    roles = (
        (symbols.total, tokens.total),
        (symbols.sequence, tokens.sequence),
        (symbols.past, tokens.past),
        (symbols.buffer, context),
    )
    numbers = {name: number for names, number in roles for name in names}
    # In the order of roles: what an earlier expression determines is known to later ones.
    for name in [*numbers]:
        numbers = _solved(name, numbers)
    return tokens, numbers


def refuse_bound(dims: Iterable[str], numbers: Mapping[str, int]) -> None:
    """Refuse a requested dim that the context determines already.

    :raises UsageError: with its name.
    """
    for name in dims:
        if name in numbers:
            message = f"--dim {shortened(name)}: --context sets it too; use one of the two"
            raise UsageError(message)


def bind_context(
    cache: KvCache, prepared: Prepared, settings: Settings, at: tuple[Tokens, Mapping[str, int]]
) -> tuple[Prepared, Settings]:
    """A model and its settings with the numbers of a context, which replace requested dims.

    Symbols that only outputs have get their number too: the present length.
    """
    tokens, numbers = at
    growing = (part for part in cache.parts if part.length_rule is LengthRule.GROWS)
    lengths = (part.present_length for part in growing)
    outputs = {each: tokens.total for each in lengths if isinstance(each, str)}
    outputs = {name: number for name, number in outputs.items() if name not in numbers}
    # No dim is requested as 0, so zeros are written into a copy of the model; a request has the
    # rest.
    zeros = {name: number for name, number in numbers.items() if number == 0}
    dims = {name: number for name, number in numbers.items() if number}
    proto = _with_numbers(prepared.proto, {**outputs, **zeros})
    return (
        replace(prepared, proto=proto),
        replace(settings, dims={**settings.dims, **dims}),
    )


def with_zeros(model: onnx.ModelProto, numbers: Mapping[str, int]) -> onnx.ModelProto:
    """The model with 0 for the symbols that are 0, in every shape that it declares."""
    return _with_numbers(model, {name: 0 for name, number in numbers.items() if number == 0})


def _with_numbers(model: onnx.ModelProto, numbers: Mapping[str, int]) -> onnx.ModelProto:
    """A copy with numbers for symbols in every declared shape; the model itself without numbers."""
    if not numbers:
        return model
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    for graph in graphs_in(proto.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            _number_dims(value, numbers)
    return proto


def _check_buffers(cache: KvCache, context: int) -> None:
    """Refuse a context that is longer than a static buffer.

    :raises NoContextError: it is.
    """
    # Where some layers grow, a fixed length is that of a sliding window, which any context fits.
    if any(part.follows_context for part in cache.parts):
        return
    lengths = [
        part.past_length
        for part in cache.parts
        if part.length_rule is LengthRule.FIXED and isinstance(part.past_length, int)
    ]
    # The longest of several buffers: shorter ones are windows.
    if lengths and max(lengths) < context:
        message = f"the file fixes the cache at {max(lengths):,} tokens, fewer than {context:,}"
        raise NoContextError(message)


_PROBES: Final = (0, 2**40)
"""Numbers at which an expression is evaluated; it may be undefined where a dim is negative."""


def _solved(expression: str, numbers: Mapping[str, int]) -> dict[str, int]:
    """The numbers, with that of the one unknown symbol of an expression that is linear in it."""
    # From two neighboring values the slope follows, from that the root; the last check rejects
    # expressions that are not linear.
    unknown = names_in(expression) - numbers.keys()
    if len(unknown) != 1:
        return dict(numbers)
    (name,) = unknown
    terms = {key: number for key, number in numbers.items() if key != expression}

    def value(number: int) -> int | None:
        return evaluated(expression, {**terms, name: number})

    for probe in _PROBES:
        here, there = value(probe), value(probe + 1)
        if here is not None and there is not None and here != there:
            number = probe + (numbers[expression] - here) // (there - here)
            if number >= 0 and value(number) == numbers[expression]:
                return {**numbers, name: number}
    return dict(numbers)


def _number_dims(value: onnx.ValueInfoProto, numbers: Mapping[str, int]) -> None:
    if value.type.WhichOneof("value") != "tensor_type":
        return
    for axis, dim in enumerate(value.type.tensor_type.shape.dim):
        if not dim.HasField("dim_value"):
            number = evaluated(dim.dim_param or f"{value.name}[{axis}]", numbers)
            if number is not None:
                dim.dim_value = number

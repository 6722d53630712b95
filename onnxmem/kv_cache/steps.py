"""A context of N tokens, as dims: a decode step, and a prefill.

A decode step takes 1 new token after N - 1; a prefill takes N after none. Every symbol and
expression of a role gets that role's number, and a symbol that occurs in an expression alone is
solved for: ``past`` in ``past + sequence`` is what is missing. A file may call a past of 0 tokens
by a symbol, and a dim asked for is never 0: then 0 takes the place of symbols in the model.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, Final

import onnx

from onnxmem.errors import OnnxmemError, UsageError, shortened
from onnxmem.kv_cache.cache import Course, KvCache, Symbols
from onnxmem.model.binding import evaluated, names_in
from onnxmem.model.building import Prepared
from onnxmem.model.traversal import graphs_in
from onnxmem.settings import Settings


class Step(StrEnum):
    """What is run."""

    DECODE = "decode"
    PREFILL = "prefill"


class NoContextError(OnnxmemError):
    """The model has no such step at this context."""

    code: ClassVar[str] = "no_context"


@dataclass(frozen=True, slots=True)
class Tokens:
    """How many a step takes after how many."""

    sequence: int
    past: int

    @property
    def total(self) -> int:
        """After the step."""
        return self.sequence + self.past


def _tokens_of(symbols: Symbols, step: Step, context: int) -> Tokens:
    """New and past tokens of a step that ends at a context.

    :raises NoContextError: the file fixes the number of new tokens otherwise.
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
    sequence = fixed or (1 if step is Step.DECODE else context)
    return Tokens(sequence, context - sequence)


def numbers_at(cache: KvCache, step: Step, context: int) -> tuple[Tokens, Mapping[str, int]]:
    """The tokens of a step, and a number for every symbol and expression that they decide.

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
    for name in [*numbers]:
        numbers = _solved(name, numbers)
    return tokens, numbers


def refuse_bound(dims: Iterable[str], numbers: Mapping[str, int]) -> None:
    """Refuse a dim that a context decides already.

    :raises UsageError: with its name.
    """
    for name in dims:
        if name in numbers:
            message = f"--dim {shortened(name)}: --context decides it too; give one of the two"
            raise UsageError(message)


def settled(
    cache: KvCache, prepared: Prepared, asked: Settings, at: tuple[Tokens, Mapping[str, int]]
) -> tuple[Prepared, Settings]:
    """A model and what is asked of it, with these numbers in place of any dims asked for.

    What the file writes for the tokens that go out gets its number too: an output's symbol.
    """
    tokens, numbers = at
    presents = (part.present_length for part in cache.parts if part.course is Course.GROWS)
    written = {length: tokens.total for length in presents if isinstance(length, str)}
    written = {name: number for name, number in written.items() if name not in numbers}
    zeros = {name: number for name, number in numbers.items() if number == 0}
    dims = {name: number for name, number in numbers.items() if number}
    settled_proto = _with_numbers(prepared.proto, {**written, **zeros})
    return (
        replace(prepared, proto=settled_proto),
        replace(asked, dims={**asked.dims, **dims}),
    )


def with_zeros(model: onnx.ModelProto, numbers: Mapping[str, int]) -> onnx.ModelProto:
    """The model with 0 for the symbols that are 0, wherever it declares a shape."""
    return _with_numbers(model, {name: 0 for name, number in numbers.items() if number == 0})


def _with_numbers(model: onnx.ModelProto, numbers: Mapping[str, int]) -> onnx.ModelProto:
    """A copy with numbers for symbols, wherever it declares a shape; itself where there is none."""
    if not numbers:
        return model
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    for graph in graphs_in(proto.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            _number_dims(value, numbers)
    return proto


def _check_buffers(cache: KvCache, context: int) -> None:
    """A buffer of fixed length that is no window holds no longer context.

    Where some layers grow, a fixed length is a window, and the context goes on beyond it.
    """
    if any(part.follows_context for part in cache.parts):
        return
    lengths = [
        part.past_length
        for part in cache.parts
        if part.course is Course.FIXED and isinstance(part.past_length, int)
    ]
    if lengths and max(lengths) < context:
        message = f"the file fixes the cache at {max(lengths):,} tokens, fewer than {context:,}"
        raise NoContextError(message)


_PROBES: Final = (0, 2**40)
"""Where an expression is taken, there and at the next number: a dim is never negative."""


def _solved(expression: str, numbers: Mapping[str, int]) -> dict[str, int]:
    """Also the one name that an expression leaves open: it is linear in it, or nothing is said."""
    open_names = names_in(expression) - numbers.keys()
    if len(open_names) != 1:
        return dict(numbers)
    (name,) = open_names
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

"""What one operator does to memory and how much it computes: one frozen record per operator.

A record names inputs and outputs as the ONNX schema does, so that it can be compared with the
operator's documentation, and its formulas read only plain values: shapes, bits per element and
attributes. Nothing here depends on a graph.

FLOPs: one multiply-add is 1 MAC and 2 FLOPs. A comparison, an exponential or a division is 1 FLOP,
as an addition is: arithmetic results are counted, not a machine's cycles.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import cast

Shape = tuple[int | None, ...]
Dims = tuple[int, ...]
Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


def known_dims(shape: Shape | None) -> Dims | None:
    """The dims of a shape of which every one is known."""
    if shape is None or None in shape:
        return None
    return cast("Dims", shape)


@dataclass(frozen=True, slots=True)
class Operand:
    """One input or output of a node, as plain values; ``None`` is unknown."""

    shape: Shape | None
    bits: int | None
    """Bits per element; unknown for strings, sequences and optionals."""
    value: tuple[int | float, ...] | None = None
    """The elements in row-major order, where they are a small constant."""

    @property
    def num_elements(self) -> int | None:
        """Product of the dims; 1 for a scalar."""
        dims = known_dims(self.shape)
        return None if dims is None else prod(dims)

    @property
    def size_bytes(self) -> int | None:
        """``ceil(elements x bits / 8)``: sub-byte elements are packed."""
        count = self.num_elements
        if count is None or self.bits is None:
            return None
        return -(-count * self.bits // 8)


@dataclass(frozen=True, slots=True)
class Call:
    """One use of an operator: operands in schema order, ``None`` for an omitted optional one.

    Trailing optional operands may be missing; ``input_at`` and ``output_at`` hide that.
    """

    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand | None, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def input_at(self, index: int) -> Operand | None:
        """The operand of an input, or ``None`` if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def output_at(self, index: int) -> Operand | None:
        """The operand of an output, or ``None`` if it is omitted."""
        return self.outputs[index] if index < len(self.outputs) else None


Formula = Callable[[Call], int | None]
"""A count for one call; ``None`` where a shape that it needs is unknown."""


def nothing(call: Call) -> int | None:  # noqa: ARG001 - a formula like any other
    """Zero: the operator computes nothing."""
    return 0


def unknown(call: Call) -> int | None:  # noqa: ARG001 - a formula like any other
    """No formula is known."""
    return None


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that the backward formula reads, saved by the forward pass until then."""

    name: str
    """Schema name of the input or output."""
    if_grad: str | None = None
    """Saved only if this other input requires a gradient; ``None``: if any does."""


class GradientRule(StrEnum):
    """What the backward formula returns as the gradient of an input."""

    NEW = "new"
    """A new tensor of the input's shape."""
    REDUCED = "reduced"
    """A new tensor of the output's shape, summed to the input's shape if that was broadcast."""
    SAME = "same"
    """The output's gradient itself, summed to the input's shape if that was broadcast."""
    RESHAPED = "reshaped"
    """A view of the output's gradient where its strides allow that, else a copy."""
    PERMUTED = "permuted"
    """A view of the output's gradient with its axes permuted back."""
    SLICED = "sliced"
    """A view of a part of the output's gradient."""
    EXPANDED = "expanded"
    """A view that repeats the output's gradient."""
    OF_EXPANDED = "of_expanded"
    """A new tensor of ``temporary_bytes``, the operand's size once it is expanded; the backward of
    that expansion, a node of its own, then sums it to the input's shape."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """How the gradient of one input is computed, and the memory that takes besides."""

    of: str
    """Schema name of the input."""
    rule: GradientRule
    temporary_bytes: Formula = nothing
    """Bytes that are alive beside it at the end of its formula, and then freed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """Everything onnxmem knows of one operator, from ``since_version`` of its domain on."""

    op_type: str
    domain: str = ""
    since_version: int = 1
    inputs: tuple[str, ...] = ()
    """Schema names in order, as far as this record needs them; a last ``*name`` is variadic."""
    outputs: tuple[str, ...] = ()
    alias: tuple[tuple[str, str], ...] = ()
    """(input, output) pairs whose output is a view of the input in every runtime."""
    may_inplace: tuple[tuple[str, str], ...] = ()
    """(input, output) pairs whose output may overwrite a dead input of equal element size and
    shape, as onnxruntime's CPU kernels declare it."""
    autograd_view: tuple[tuple[str, str], ...] = ()
    """(input, output) pairs whose output is a view in PyTorch: ``alias`` and strided views, such as
    Transpose, Slice, Split and Expand."""
    parameters: tuple[str, ...] = ()
    """Inputs that are trained parameters if they are weights."""
    buffers: tuple[str, ...] = ()
    """Inputs with state that has no gradient: running statistics, scales, zero points."""
    quantized: tuple[str, ...] = ()
    """Inputs with quantized weights: counted as parameters, never trained."""
    differentiable: bool = True
    """False: no gradient passes from the outputs to any input."""
    saved: tuple[Saved, ...] = ()
    saved_extra_bytes: Formula = nothing
    """Bytes saved for backward beside ``saved``: masks, indices, statistics."""
    gradients: tuple[Gradient, ...] = ()
    """How inputs' gradients are computed; one that is not listed is a new tensor without
    temporaries, or the output's gradient reshaped if the output is a view of the input."""
    preserves_strides: bool = False
    """Whether PyTorch lays the output out like the operands, instead of row-major."""
    macs: Formula = nothing
    flops: Formula = nothing
    """Forward FLOPs, ``2 x macs`` included."""
    source: str
    """The formula, document or code that the record was taken from."""

    def gradient_of(self, slot: str | None) -> Gradient:
        """How the gradient of an input is computed, by its schema name."""
        for known in self.gradients:
            if known.of == slot:
                return known
        is_viewed = any(source == slot for source, _ in self.autograd_view)
        # A view's gradient is a view of the output's; everything else makes a tensor.
        rule = GradientRule.RESHAPED if is_viewed else GradientRule.NEW
        return Gradient(slot or "", rule)

    def input_index(self, name: str) -> int:
        """Index of a named input; a variadic one starts there."""
        return _index(self.inputs, name)

    def output_index(self, name: str) -> int:
        """Index of a named output; a variadic one starts there."""
        return _index(self.outputs, name)

    def input_name(self, index: int) -> str | None:
        """Schema name of the input at an index; ``None`` beyond the record."""
        return _name(self.inputs, index)

    def output_name(self, index: int) -> str | None:
        """Schema name of the output at an index; ``None`` beyond the record."""
        return _name(self.outputs, index)


def _index(names: tuple[str, ...], name: str) -> int:
    return next(index for index, known in enumerate(names) if known.lstrip("*") == name)


def _name(names: tuple[str, ...], index: int) -> str | None:
    if index < len(names):
        return names[index].lstrip("*")
    # A variadic name stands for all indices from its own on.
    if names and names[-1].startswith("*"):
        return names[-1].lstrip("*")
    return None

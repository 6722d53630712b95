"""The nouns: one tensor of a cache, and the cache.

A cache is handed in with what earlier tokens left and handed out with the new ones added. Its bytes
are the product of its dims, as of any tensor: for keys and values ``2 x layers x kv_heads x
head_size x bytes per element`` a token, which is 2 x ``[batch, kv_heads, tokens, head_size]`` a
layer (Pope et al. 2022, arXiv:2211.05102, section 2.1; Ainslie et al. 2023, arXiv:2305.13245, for
fewer key-value heads than query heads).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Final

from onnxmem.kv_cache.holds import Holds
from onnxmem.model import DType, Prepared
from onnxmem.model.binding import Dims, evaluated

IN_PLACE: Final = frozenset(
    {
        *("GroupQueryAttention", "SparseAttention", "DecoderMaskedMultiHeadAttention"),
        *("DecoderMaskedSelfAttention", "TensorScatter"),
    }
)
"""Operators that may have one buffer for past and present, as their documents say (onnxruntime's
ContribOperators.md; ONNX, TensorScatter-24).
"""


class Course(StrEnum):
    """How its length follows the context."""

    GROWS = "grows"
    """Past tokens come in, past and new ones go out."""
    BUFFER = "buffer"
    """A buffer as long as the longest context: past and present have the same length."""
    FIXED = "fixed"
    """A number of tokens that the file fixes: a window, or a static buffer."""
    ENCODER = "encoder"
    """As long as the encoder's sequence."""
    CONSTANT = "constant"
    """No length at all: a state."""


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor that is handed in, and the one that is handed out for it."""

    name: str
    output: str | None
    """``None``: it is only read, as an encoder's."""
    holds: Holds
    course: Course
    layer: int | None
    dims: Dims
    dtype: DType
    length_axis: int | None
    """The axis of tokens; ``None`` where there is none."""
    batch_axis: int
    present_length: str | int | None
    """What the file writes for the tokens that go out."""
    found_by: str
    """The operator that reads and writes it, or ``name and shape``."""
    query_heads: int | None = None
    """Of the attention that reads it, where the operator says."""
    is_layout_assumed: bool = False
    """Whether the axis of tokens is a convention's, and nothing in the file says so."""

    @property
    def past_length(self) -> str | int | None:
        """What the file writes for the tokens that come in."""
        return None if self.length_axis is None else self.dims[self.length_axis]

    @property
    def follows_context(self) -> bool:
        """Whether a longer context makes it larger."""
        return self.course in {Course.GROWS, Course.BUFFER}

    @property
    def can_share(self) -> bool:
        """Whether past and present may be one buffer: they are equally long, or the operator
        writes new tokens behind the old ones in place.
        """
        if self.output is None or self.course is Course.ENCODER:
            return False
        return self.found_by in IN_PLACE or (
            self.course is not Course.GROWS and self.present_length == self.past_length
        )

    @property
    def layout(self) -> str | None:
        """Order of batch, heads, tokens and head size, as in ``bnsh``; ``None`` at other ranks."""
        if len(self.dims) - self._stacked != 4 or self.length_axis is None:  # noqa: PLR2004
            return None
        letters = {self.batch_axis: "b", self.length_axis: "s"}
        others = iter("nh")
        axes = range(self._stacked, len(self.dims))
        return "".join(letters.get(axis) or next(others) for axis in axes)

    @property
    def kv_heads(self) -> int | None:
        """Heads of keys and values."""
        return self._size_of("n")

    @property
    def head_size(self) -> int | None:
        """Elements of a head."""
        return self._size_of("h")

    @property
    def _stacked(self) -> int:
        """1 where keys and values are stacked on a first axis: ``[2, batch, ...]``."""
        return int(self.holds is Holds.BOTH and self.dims[0] == 2)  # noqa: PLR2004 - two

    def _size_of(self, letter: str) -> int | None:
        layout = self.layout
        if layout is None or letter not in layout:
            return None
        dim = self.dims[layout.index(letter) + self._stacked]
        return dim if isinstance(dim, int) else None

    def size_bytes(self, numbers: Mapping[str, int], tokens: int | None = None) -> int | None:
        """``ceil(elements x bits / 8)``; ``tokens``: of a context, where its length follows that.

        ``None`` where a dim has no number.
        """
        dims: list[str | int] = list(self.dims)
        if tokens is not None and self.length_axis is not None and self.follows_context:
            dims[self.length_axis] = tokens
        sizes = [dim if isinstance(dim, int) else evaluated(dim, numbers) for dim in dims]
        known = [size for size in sizes if size is not None]
        bits = self.dtype.bits
        if len(known) < len(sizes) or bits is None:
            return None
        return -(-prod(known) * bits // 8)


@dataclass(frozen=True, slots=True)
class Symbols:
    """What the file calls the dims of a step; an expression stands as it is written."""

    batch: tuple[str, ...]
    past: tuple[str, ...]
    buffer: tuple[str, ...]
    sequence: tuple[str, ...]
    total: tuple[str, ...]
    fixed_sequence: int | None = None
    """The number of new tokens, where the file fixes it."""


@dataclass(frozen=True, slots=True)
class KvCache:
    """The cache of one model."""

    parts: tuple[Part, ...]
    symbols: Symbols
    prepared: Prepared
    """The model that it was found in, no dim bound."""
    assumptions: tuple[str, ...] = ()
    """What names alone say."""

    @property
    def num_layers(self) -> int:
        """Layers that have a cache: numbers in names, or tensors of keys."""
        numbers = {part.layer for part in self.parts if part.layer is not None}
        keys = [part for part in self.parts if part.holds in {Holds.KEYS, Holds.BOTH}]
        return len(numbers) or len(keys) or -(-len(self.parts) // 2)

    @property
    def shared(self) -> tuple[Part, ...]:
        """Parts of which a caller may bind past and present to one buffer."""
        return tuple(part for part in self.parts if part.can_share)

"""Which tensors a step of an optimizer allocates and lets go, written down as short scripts.

A loop over parameters keeps its Python variables from one parameter to the next, and a variable
lets its old tensor go only once the new one is made: what is alive together depends on neighbours,
and neither a copy of all nor one of the largest parameter says it. A script is therefore replayed
over the parameters in their order. Its words, separated by blanks, are

- ``denom``: makes a tensor as large as the parameter and binds it to that name;
- ``mask:bytes``: makes one of another size, see ``_SIZES``;
- ``-root``: lets go of a name, ``estimate>update``: binds to another name what it was bound to;
- ``grad?``: only with weight decay, ``numerator!``: only without.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod
from types import MappingProxyType

Dims = tuple[int, ...]

_HALF_BYTES = 2
_VECTOR_DIMS = 1


def _half(shape: Dims, _: int) -> int:
    return prod(shape) * _HALF_BYTES


def _cast(shape: Dims, element_bytes: int) -> int:
    return 0 if element_bytes == _HALF_BYTES else prod(shape) * _HALF_BYTES


_SIZES: Mapping[str, Callable[[Dims, int], int]] = MappingProxyType(
    {
        "whole": lambda shape, element_bytes: prod(shape) * element_bytes,
        "bytes": lambda shape, _: prod(shape),
        "half": _half,
        "cast": _cast,
        "gram": lambda shape, _: min(shape, default=1) ** 2 * _HALF_BYTES,
        "rows": lambda shape, element_bytes: prod(shape[:-1]) * element_bytes,
        "columns": lambda shape, element_bytes: prod((*shape[:-2], shape[-1])) * element_bytes,
        "matrices": lambda shape, element_bytes: prod(shape[:-2]) * element_bytes,
    }
)
"""Bytes by dims and element bytes. ``whole``: as large as the parameter; ``bytes``: a byte an
element, a mask; ``half``: in bfloat16; ``cast``: the cast to it, which makes nothing where two
bytes are bfloat16 already; ``gram``: a matrix by its own transpose, in bfloat16; ``rows`` and
``columns``: the means over the last dim and over the last but one; ``matrices``: over both."""

_WORD = re.compile(
    r"(?P<drop>-)?(?P<name>[a-z_]+)(:(?P<size>[a-z]+))?(>(?P<target>[a-z_]+))?(?P<decay>[?!])?"
)


@dataclass(frozen=True, slots=True)
class _Word:
    name: str
    size: str
    is_drop: bool
    target: str
    decay: bool | None
    """Whether it needs weight decay; ``None``: it does not matter."""


@dataclass(frozen=True, slots=True)
class _Part:
    is_together: bool
    """Whether each word is done for all parameters before the next word."""
    words: tuple[_Word, ...]
    words_of_vectors: tuple[_Word, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """What a step allocates: parts, done one after the other."""

    parts: tuple[_Part, ...] = ()

    def peak_blocks(
        self, shapes: tuple[Dims, ...], element_bytes: int, *, weight_decay: bool
    ) -> tuple[int, ...]:
        """Bytes of each block alive at the peak, in the order of making; the first of equal peaks.

        ``shapes`` are in the order in which the optimizer goes through the parameters.
        """
        replay = _Replay(element_bytes)
        for part in self.parts:
            for words, group in _turns(part, shapes):
                for word in words:
                    if word.decay in {None, weight_decay}:
                        replay.do(word, group)
        return tuple(size_bytes for size_bytes in chain(*replay.peak) if size_bytes)


def together(text: str) -> Script:
    """Script that does each word for all parameters at once, as ``foreach`` does."""
    words = _words(text)
    return Script((_Part(is_together=True, words=words, words_of_vectors=words),))


def each(text: str, *, vectors: str | None = None) -> Script:
    """Script that goes through the parameters one by one.

    ``vectors`` is what is done with those of one dim or none, where it differs.
    """
    of_vectors = _words(text if vectors is None else vectors)
    return Script((_Part(is_together=False, words=_words(text), words_of_vectors=of_vectors),))


def in_turn(*scripts: Script) -> Script:
    """One script after the other, with what they left bound."""
    return Script(tuple(part for script in scripts for part in script.parts))


def _words(text: str) -> tuple[_Word, ...]:
    return tuple(_word(one) for one in text.split())


def _word(text: str) -> _Word:
    found = _WORD.fullmatch(text)
    if found is None or (found["size"] or "whole") not in _SIZES:
        message = f"not a word of a script: {text!r}"
        raise ValueError(message)
    return _Word(
        name=found["name"],
        size=found["size"] or "whole",
        is_drop=found["drop"] is not None,
        target=found["target"] or "",
        decay=None if found["decay"] is None else found["decay"] == "?",
    )


def _turns(
    part: _Part, shapes: tuple[Dims, ...]
) -> Iterator[tuple[tuple[_Word, ...], tuple[Dims, ...]]]:
    if part.is_together:
        yield part.words, shapes
        return
    for shape in shapes:
        is_vector = len(shape) <= _VECTOR_DIMS
        yield part.words_of_vectors if is_vector else part.words, (shape,)


class _Replay:
    """The names bound so far, and the most that was ever alive."""

    def __init__(self, element_bytes: int) -> None:
        self.peak: tuple[tuple[int, ...], ...] = ()
        self._element_bytes = element_bytes
        self._bound: dict[str, tuple[int, ...]] = {}
        self._peak_bytes = 0

    def do(self, word: _Word, shapes: tuple[Dims, ...]) -> None:
        """Do one word for these parameters."""
        if word.is_drop:
            self._bound.pop(word.name, None)
        elif word.target:
            self._bound[word.target] = self._bound.pop(word.name)
        else:
            size_of = _SIZES[word.size]
            self._make(word.name, tuple(size_of(one, self._element_bytes) for one in shapes))

    def _make(self, name: str, blocks: tuple[int, ...]) -> None:
        alive = (*self._bound.values(), blocks)
        alive_bytes = sum(map(sum, alive))
        if alive_bytes > self._peak_bytes:
            self._peak_bytes, self.peak = alive_bytes, alive
        self._bound.pop(name, None)
        self._bound[name] = blocks

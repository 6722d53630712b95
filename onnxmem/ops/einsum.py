"""What an Einsum computes: one multiply-add for every combination of its labels' values.

Two operands cost the product of the sizes of all distinct labels, summed or not. Three or more are
contracted pair by pair from the left; between two pairs, the labels that neither a later operand
nor the output names are summed away. One operand is copied or summed, without a multiplication.
A label of size 1 is stretched, as numpy does. Equations of more than 64 labels or 1,000 characters
are given up.
"""

from collections import Counter
from dataclasses import dataclass
from math import prod

from onnxmem.ops.combining import dims
from onnxmem.ops.formulas import str_attribute
from onnxmem.ops.spec import Call

_MAX_LABELS = 64
_MAX_CHARACTERS = 1000

Term = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Contraction:
    """Labels of the operands and of the output, and the size of each label."""

    terms: tuple[Term, ...]
    output: Term
    sizes: dict[str, int]

    @property
    def size(self) -> int:
        """Combinations of all labels' values."""
        return prod(self.sizes.values())


def einsum_macs(call: Call) -> int | None:
    """``ij,jk->ik`` of [I, J] and [J, K]: I * J * K."""
    contraction = _parse(call)
    return None if contraction is None else _pairwise_macs(contraction)


def einsum_flops(call: Call) -> int | None:
    """Two per multiply-add; one operand alone: an addition per element if anything is summed."""
    contraction = _parse(call)
    if contraction is None:
        return None
    if len(contraction.terms) > 1:
        return 2 * _pairwise_macs(contraction)
    return contraction.size if contraction.sizes.keys() - set(contraction.output) else 0


def _pairwise_macs(contraction: _Contraction) -> int:
    later = Counter(label for term in contraction.terms for label in set(term))
    later.update(contraction.output)
    left: set[str] = set()
    macs = 0
    for place, term in enumerate(contraction.terms):
        later.subtract(set(term))
        left |= set(term)
        if place:
            macs += prod(contraction.sizes[label] for label in left)
            left = {label for label in left if later[label] > 0}
    return macs


def _parse(call: Call) -> _Contraction | None:
    equation = str_attribute(call, "equation", "").replace(" ", "")
    shapes = [shape for operand in call.inputs if (shape := dims(operand)) is not None]
    if not 0 < len(equation) <= _MAX_CHARACTERS or len(shapes) != len(call.inputs):
        return None
    left, arrow, right = equation.partition("->")
    texts = left.split(",")
    if len(texts) != len(shapes):
        return None
    terms = [_labels(text, len(shape)) for text, shape in zip(texts, shapes, strict=True)]
    known = tuple(term for term in terms if term is not None)
    sizes = _sizes(known, shapes) if len(known) == len(terms) else None
    if sizes is None:
        return None
    output = _explicit(right, sizes) if arrow else _implicit(known)
    return None if output is None else _Contraction(known, output, sizes)


def _labels(text: str, rank: int) -> Term | None:
    """Letters of a term; the dims of an ellipsis are named ``.1``, ``.2``, ... from the last."""
    before, dots, after = text.partition("...")
    letters = before + after
    spread = rank - len(letters)
    if letters and not (letters.isascii() and letters.isalpha()):
        return None
    if not 0 <= spread <= (_MAX_LABELS if dots else 0):
        return None
    return (*before, *(f".{place}" for place in range(spread, 0, -1)), *after)


def _sizes(terms: tuple[Term, ...], shapes: list[tuple[int, ...]]) -> dict[str, int] | None:
    """Size of each label; ``None`` if two operands disagree on one."""
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for label, dim in zip(term, shape, strict=True):
            known = sizes.get(label, 1)
            if dim not in (1, known) and known != 1:
                return None
            sizes[label] = dim if known == 1 else known
    return sizes if len(sizes) <= _MAX_LABELS else None


def _explicit(text: str, sizes: dict[str, int]) -> Term | None:
    """Labels after ``->``: each once, each from an operand."""
    spread = sum(label.startswith(".") for label in sizes) if "..." in text else 0
    output = _labels(text, len(text.replace("...", "", 1)) + spread)
    if output is None or len(set(output)) != len(output) or not sizes.keys() >= set(output):
        return None
    return output


def _implicit(terms: tuple[Term, ...]) -> Term:
    """No ``->``: the dims of the ellipsis, then the letters that occur just once."""
    occurrences = Counter(label for term in terms for label in term)
    return tuple(
        sorted(label for label, count in occurrences.items() if count == 1 or label.startswith("."))
    )

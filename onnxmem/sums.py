"""Sums of counts of which some may be unknown (``None``)."""

from collections.abc import Iterable


def sum_known(counts: Iterable[int | None]) -> int | None:
    """Sum what is known: a lower bound where something is not, ``None`` where nothing is.

    The sum of no counts at all is 0.
    """
    every = list(counts)
    known = [count for count in every if count is not None]
    return sum(known) if known or not every else None


def sum_if_known(counts: Iterable[int | None]) -> int | None:
    """Sum the counts; ``None`` if one of them is unknown."""
    every = list(counts)
    known = [count for count in every if count is not None]
    return sum(known) if len(known) == len(every) else None

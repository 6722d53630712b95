"""Something that a report's reader should know: a stable code and one sentence."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark on a model; ``code`` is stable, ``node`` names the place where there is one."""

    code: str
    message: str
    node: str | None = None


def listed(names: Sequence[str], at_most: int = 5) -> str:
    """Quote the first names and count the rest: ``'a', 'b' and 7 more``."""
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(repr(name) for name in names[:at_most]) + more

"""Something that a report's reader should know: a stable code and one sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches


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


def nearest(name: str, known: Sequence[str]) -> str:
    """Suggest the known name that is most like another: ``did you mean 'a'?``, or ``""``."""
    found = get_close_matches(name, known, n=1)
    return f"did you mean {found[0]!r}? " if found else ""

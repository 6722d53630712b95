"""Something that a report's reader should know: a stable code and one sentence."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark on a model; ``code`` is stable, ``node`` names the place where there is one."""

    code: str
    message: str
    node: str | None = None

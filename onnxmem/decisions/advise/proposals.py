"""One piece of advice: what is changed, what that saves, and what it costs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType

from onnxmem.decisions.advise.figures import Change, Figure, Subject, bytes_of


class Price(IntEnum):
    """In what advice is paid, the lightest first: of two that do, the lighter one is taken."""

    NOTHING = 0
    TIME = 1
    SAMPLES = 2
    """Fewer samples at once."""
    ACCURACY = 3
    """What the model says may change: to be checked on data."""
    DEVICES = 4
    """More machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idea:
    """A change that has not been worked out."""

    id: str
    """A stable word."""
    group: str
    """Of several of a group one alone can be followed."""
    what: str
    """What to do."""
    price: Price
    cost: str
    """The same in words, with numbers where there are any."""
    change: Change | None = None
    """``None``: it is worked out elsewhere, and joins no combination."""
    settings: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    """What a settings file says of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """An idea and what it saves, in bytes of one figure."""

    idea: Idea
    figure: Figure
    before_bytes: int
    after_bytes: int
    is_exact: bool
    """Whether the changed model was analysed; else a formula on its weights estimates."""

    @property
    def saved_bytes(self) -> int:
        """What it saves."""
        return self.before_bytes - self.after_bytes


def worked_out(
    ideas: Iterator[Idea], subject: Subject, figure: Figure, before_bytes: int
) -> Iterator[Proposal]:
    """Ask again with each idea followed; what cannot be asked has no figure and is left out."""
    for idea in ideas:
        if idea.change is None:
            continue
        after_bytes = bytes_of(figure, idea.change(subject))
        if after_bytes is not None:
            yield Proposal(
                idea=idea,
                figure=figure,
                before_bytes=before_bytes,
                after_bytes=after_bytes,
                is_exact=True,
            )


def ranked(proposals: Iterator[Proposal]) -> tuple[Proposal, ...]:
    """Those that save anything, the most first; of equals the one of the lighter price."""
    saving = (each for each in proposals if each.saved_bytes > 0)
    return tuple(sorted(saving, key=lambda each: (-each.saved_bytes, each.idea.price)))

"""The colours of what bytes hold, told apart by readers of any colour vision.

They are those of Okabe and Ito, "Color Universal Design", 2002 (2008), and their grey.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_BLUE: Final = "#0072b2"
_SKY: Final = "#56b4e9"
_GREEN: Final = "#009e73"
_YELLOW: Final = "#f0e442"
_ORANGE: Final = "#e69f00"
_VERMILION: Final = "#d55e00"
_PURPLE: Final = "#cc79a7"
_GREY: Final = "#999999"

COLOURS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "c-weights": _SKY,
        "c-buffers": _SKY,
        "c-optimizer": _GREEN,
        "c-inputs": _GREY,
        "c-activations": _ORANGE,
        "c-saved": _BLUE,
        "c-gradients": _VERMILION,
        "c-activation-gradients": _YELLOW,
        "c-temporary": _PURPLE,
        "c-more": _VERMILION,
        "c-less": _BLUE,
    }
)
"""A colour for each class that a chart may be given."""

CYCLE: Final = ("c-activations", "c-saved", "c-weights", "c-optimizer", "c-temporary")
"""Classes by turns, where neighbours are to be told apart and the colour means nothing."""


def colour(css_class: str) -> str:
    """The colour of a class; grey of one that is not known."""
    return COLOURS.get(css_class, _GREY)

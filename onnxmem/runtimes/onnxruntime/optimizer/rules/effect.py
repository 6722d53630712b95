"""What a rule did to the node that it was asked about.

Source: onnxruntime/core/optimizer/rewrite_rule.h, ``RewriteRuleEffect``.
"""

from collections.abc import Callable
from enum import Enum, auto

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node


class Effect(Enum):
    """Whether the walk goes on with the same node."""

    NONE = auto()
    CHANGED = auto()
    """The graph changed, and the node is still there."""
    REMOVED = auto()
    """The node is gone."""


Rule = Callable[[Graph, Node], Effect]


def removed_if(is_gone: bool) -> Effect:  # noqa: FBT001 - the answer of the one who removes
    """The effect of a removal that may have been refused."""
    return Effect.REMOVED if is_gone else Effect.NONE

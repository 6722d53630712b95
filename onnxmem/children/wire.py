"""What parent and child say to each other: one JSON object each way, and its limits."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
"""A value that JSON can write; tuples arrive as lists."""

MAX_REPLY_BYTES: Final = 256 * 2**20
"""Of an answer: a row for each node of a model of a million nodes is smaller."""

LONGEST_MESSAGE: Final = 1000
"""Characters of a fault's message."""

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


def in_one_line(text: str) -> str:
    """A message without colours and line breaks, its middle left out where it is very long."""
    words = " ".join(_COLOURS.sub("", text).split())
    if len(words) <= LONGEST_MESSAGE:
        return words
    end = LONGEST_MESSAGE // 2 - 2
    return f"{words[:end]}...{words[-end:]}"

"""Patterns of model paths, as shells and ``.gitignore`` write them.

``*`` and ``?`` stay within one part of a path, ``**`` stands for any number of parts. A pattern
without a slash is of the file's name in any folder.
"""

import re
from functools import cache
from typing import Final

_TOKEN: Final = re.compile(r"\*\*/|/\*\*$|\*\*|\*|\?|\[!?[^]/]+\]|.", re.DOTALL)
_MEANING: Final = {
    "**/": "(?:[^/]*/)*",
    "/**": "/.+",
    "**": ".*",
    "*": "[^/]*",
    "?": "[^/]",
}


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern is of a path; both are relative, their parts joined by ``/``.

    >>> matches("edge/**/*.onnx", "edge/a/b/net.onnx"), matches("*.onnx", "edge/net.onnx")
    (True, True)
    """
    pattern = pattern.removeprefix("./")
    subject = path if "/" in pattern else path.rpartition("/")[2]
    return _compiled(pattern).fullmatch(subject) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile("".join(map(_meaning, _TOKEN.findall(pattern))), re.DOTALL)


def _meaning(token: str) -> str:
    if token in _MEANING:
        return _MEANING[token]
    if len(token) > 1:
        inside = token[1:-1]
        sign, inside = ("^", inside[1:]) if inside.startswith("!") else ("", inside)
        # A hyphen keeps its meaning of a range; a range that runs backwards is a plain set.
        escaped = re.sub(r"([\\^\[\]&~|])", r"\\\1", inside)
        backwards = any(a > b for a, b in re.findall(r"(.)-(.)", inside))
        escaped = escaped.replace("-", r"\-") if backwards else escaped
        return f"[{sign}{escaped}]"
    return re.escape(token)

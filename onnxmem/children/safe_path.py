"""Where modules are imported from: never the current folder.

Files that lie beside models are as untrusted as the models, and a ``random.py`` among them would
run in place of the standard library's. Python looks there for ``python -c`` and ``python -m``, and
where ``PYTHONPATH`` has an empty part.
"""

import os
import sys
from typing import Final

HOME: Final = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))  # noqa: PTH100, PTH118, PTH120
"""The folder that holds onnxmem. It is trusted even if it is the current one: its code runs."""

_MODULES: Final = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib imports much
_STANDARD_LIBRARY: Final = (_MODULES, os.path.join(_MODULES, "lib-dynload"))  # noqa: PTH118


def safe_path() -> list[str]:
    """``sys.path`` without the current folder and without what depends on it.

    The folder of onnxmem stays where it is behind the standard library, whose modules it must not
    shadow, and follows it where it was in front, as in a checkout, or was found in another way.
    """
    kept: list[str] = []
    behind_standard = 0
    for entry in sys.path:
        if _is_safe(entry) or (entry == HOME and behind_standard):
            kept.append(entry)
        if entry in _STANDARD_LIBRARY:
            behind_standard = len(kept)
    if HOME not in kept:
        kept.insert(behind_standard or len(kept), HOME)
    return kept


def leave_current_folder_out() -> None:
    """Change ``sys.path`` of this process. Only a command may do so; a library is a guest."""
    sys.path[:] = safe_path()


def _is_safe(entry: object) -> bool:
    # ``sys.path`` may hold anything; the import system skips what is not a string.
    if not isinstance(entry, str) or not os.path.isabs(entry):  # noqa: PTH117
        return False
    try:
        return not os.path.samefile(entry, os.curdir)  # noqa: PTH121
    except (OSError, ValueError):
        # One of them does not exist: an entry inside an archive, or a removed current folder.
        return True

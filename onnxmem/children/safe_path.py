"""An import path without the current folder.

Files next to models are as untrusted as the models, and a ``random.py`` among them would shadow the
standard library's. Python searches the current folder with ``python -c`` and ``python -m``, and if
``PYTHONPATH`` has an empty entry.
"""

import os
import sys
from typing import Final

HOME: Final = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
"""The folder that contains onnxmem: trusted even if it is the current one, for its code runs."""

_MODULES: Final = os.path.dirname(os.__file__)
_STANDARD_LIBRARY: Final = (_MODULES, os.path.join(_MODULES, "lib-dynload"))


def safe_path() -> list[str]:
    """``sys.path`` without the current folder and without relative entries.

    The folder of onnxmem must not shadow modules of the standard library: it keeps its index if
    that is after the standard library, and otherwise, as in a checkout, comes right after it.
    """
    entries: list[str] = []
    after_standard = 0
    for entry in sys.path:
        if _is_safe(entry) or (entry == HOME and after_standard):
            entries.append(entry)
        if entry in _STANDARD_LIBRARY:
            after_standard = len(entries)
    if HOME not in entries:
        entries.insert(after_standard or len(entries), HOME)
    return entries


def leave_current_folder_out() -> None:
    """Change ``sys.path`` of this process. Only a command may do so, not a library."""
    sys.path[:] = safe_path()


def _is_safe(entry: object) -> bool:
    # ``sys.path`` may contain anything; the import system skips what is not a string.
    if not isinstance(entry, str) or not os.path.isabs(entry):
        return False
    try:
        return not os.path.samefile(entry, os.curdir)
    except (OSError, ValueError):
        # One does not exist: an entry inside an archive, or a current folder that was removed.
        return True

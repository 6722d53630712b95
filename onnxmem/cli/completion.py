"""What a shell may put behind the cursor: commands, flags, their choices, models, devices.

argcomplete starts the command with the line in the environment and reads what it prints; this
module is imported then alone. docs/completion.md says how a shell is set up.
"""

import os
from argparse import Action, ArgumentParser
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Final

from onnxmem.cli import COMMANDS, COMPLETING, HELP

_MODELS: Final = frozenset({"models", "model", "paths", "words"})
_DEVICES: Final = frozenset({"--device"})


def complete(parser_of: Callable[[str], ArgumentParser]) -> None:
    """Print the completions of the line in the environment, and end the process.

    Without argcomplete there are none, and the shell completes file names.
    """
    try:
        argcomplete = import_module("argcomplete")
    except ImportError:
        return
    files = argcomplete.completers.FilesCompleter(allowednames=("onnx",))
    # The word under the cursor is no command yet: it may become another one.
    typed = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT") or 0)].split(" ")
    words = [word for word in typed[:-1] if word]
    is_command = len(words) > 1 and words[1] in COMMANDS
    if is_command:
        # The name of the command takes the place of the program's.
        os.environ[COMPLETING] = str(int(os.environ[COMPLETING]) + 1)
    parser = parser_of(words[1] if is_command else "analyze")

    def first_word(prefix: str, **_: object) -> Iterable[str]:
        names = [name for name in (*COMMANDS, HELP) if name.startswith(prefix)]
        if words[1:] == [HELP]:
            return names
        return [*(names if len(words) == 1 else ()), *files(prefix)]

    for action in parser._actions:  # noqa: SLF001 - argparse lists them nowhere else
        _set_completer(action, first_word)
    argcomplete.autocomplete(parser, always_complete_options=False)


def _set_completer(action: Action, models: Callable[..., Iterable[str]]) -> None:
    if action.dest in _MODELS and not action.option_strings:
        completer = models
    elif _DEVICES.intersection(action.option_strings) and action.choices is None:
        completer = _devices
    else:
        return
    action.completer = completer  # type: ignore[attr-defined] # argcomplete reads it


def _devices(prefix: str, **_: object) -> list[str]:
    from onnxmem.decisions.devices import catalog

    names = [device.name for device in catalog().devices]
    return [name for name in names if name.casefold().startswith(prefix.casefold())]

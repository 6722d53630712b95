"""Names of a package whose modules are imported when they are first asked for (PEP 562).

A package that says ``__getattr__ = late(__name__, {...})`` costs little to import: a command pays
for the rooms that it enters, and for no other.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module


def late(package: str, modules: Mapping[str, Iterable[str]]) -> Callable[[str], object]:
    """The ``__getattr__`` of a package: imports the module that holds a name, once.

    ``modules`` gives the public names of each module.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def imported(name: str) -> object:
        if name not in homes:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message)
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return imported

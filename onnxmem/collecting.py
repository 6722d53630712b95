"""Python's collector of cycles kept waiting while a stage makes its records.

A graph of 100,000 nodes is a million objects, and the collector walks those that are there again
and again while more of them are made: a third of the time, to find nothing, for records hold no
cycles.
"""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Keep the collector waiting; where it waits already, or never runs, it is left so."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def made_to_last() -> Iterator[None]:
    """Take what is made within, and before, out of the collector's sight until the process ends.

    Modules and classes are cycles that never die: a walk over them costs a tenth of what it takes
    to import them. Python would take one more as it ends, over all that there is by then.
    """
    with without_collection():
        yield
        gc.freeze()
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)

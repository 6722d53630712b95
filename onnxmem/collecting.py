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


def without_last_collection() -> None:
    """Spare the process the walk over all that it made, which Python takes as it ends."""
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)

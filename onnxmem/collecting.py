"""Python's collector of cycles kept waiting while a stage makes its records.

A graph of 100,000 nodes is a million objects, and the collector walks those that are there again
and again while more of them are made: a third of the time, to find nothing, for records hold no
cycles.
"""

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

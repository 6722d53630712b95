"""How many functions a call runs, which no other work on the machine changes."""

import sys
from collections.abc import Callable
from types import FrameType


def num_calls(run: Callable[[], object]) -> int:
    """How many functions of Python and of C it calls."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:  # noqa: ARG001 - of a hook
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(before)
    return calls

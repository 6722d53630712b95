"""How far a run has come, as one line of a terminal that is written over."""

import os
import sys
import time
from dataclasses import dataclass, field
from typing import Final

_SECONDS: Final = 0.1
"""Between two counts: a terminal is slower than small models."""


@dataclass(slots=True)
class Counter:
    """Mutable: models that are done, of so many; silent where it is not to be seen."""

    num_models: int
    is_shown: bool
    num_done: int = 0
    num_failed: int = 0
    _is_on_screen: bool = field(default=False, init=False)
    _last_seconds: float = field(default=0.0, init=False)

    def count(self, *, failed: bool) -> None:
        """One more is done."""
        self.num_done += 1
        self.num_failed += failed
        now = time.monotonic()
        if self.is_shown and now - self._last_seconds >= _SECONDS:
            self._last_seconds = now
            failures = f", {self.num_failed:,} failed" if self.num_failed else ""
            self._write(f"{self.num_done:,} of {self.num_models:,} models{failures}")
            self._is_on_screen = True

    def clear(self) -> None:
        """Leave the line to what is written next."""
        if self._is_on_screen:
            self._write("")
            self._is_on_screen = False

    @staticmethod
    def _write(text: str) -> None:
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def counter(num_models: int, *, declined: bool) -> Counter:
    """A counter for a person who waits: on a terminal, for more than one model."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return Counter(num_models, is_terminal and num_models > 1 and not declined)

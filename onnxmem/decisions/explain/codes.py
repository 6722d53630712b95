"""Every code that a report, a gate or a fault can carry, and what to do about it."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Code:
    """One code."""

    id: str
    """A number for those who want one: ``OM101``."""
    word: str
    """As findings and faults carry it."""
    title: str
    why: str
    """Why it matters."""
    act: str
    """What to do."""


@cache
def codes() -> tuple[Code, ...]:
    """All of them, by number."""
    text = files("onnxmem.decisions.explain").joinpath("codes.toml").read_text(encoding="utf-8")
    return tuple(Code(**entry) for entry in tomllib.loads(text)["codes"])


def code_named(name: str) -> Code | None:
    """A code by its word or its number, however they are spelt."""
    wanted = name.strip().casefold().replace("-", "_").replace(" ", "_")
    return next(
        (each for each in codes() if wanted in {each.id.casefold(), each.word.replace("-", "_")}),
        None,
    )

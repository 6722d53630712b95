"""What a case of a data-dependent model is made of, and the inputs of its runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Feeds = dict[str, npt.NDArray[Any]]
LARGE: Final = 100
"""How much larger than random inputs those are that push toward the bound."""


@dataclass(frozen=True, slots=True)
class Input:
    """How the elements of an input are drawn."""

    shape: tuple[int, ...]
    low: float
    high: float
    dtype: str = "float32"
    """Floats of any scale between both ends around zero; integers and flags between them."""
    words: Sequence[str] = ()
    """Elements of a tensor of strings."""

    def drawn(self, draws: np.random.Generator) -> npt.NDArray[Any]:
        """Random elements."""
        if self.words:
            return self._sentences(draws, int(draws.integers(1, self.high + 1)))
        if self.dtype.startswith("float"):
            scale = draws.uniform(self.low, self.high)
            return (draws.normal(0, scale, self.shape)).astype(self.dtype)
        top = draws.integers(self.low + 1, self.high + 1)
        return draws.integers(self.low, top + 1, self.shape).astype(self.dtype)

    def pushed(self, draws: np.random.Generator, kind: str) -> npt.NDArray[Any]:
        """Elements at an end of the range, or far beyond it where they are floats."""
        if self.words:
            return self._sentences(draws, 1 if kind == "least" else int(self.high))
        if self.dtype.startswith("float"):
            filled = {
                "least": np.full(self.shape, -self.high),
                "zero": np.zeros(self.shape),
                "most": np.full(self.shape, self.high),
                "large": draws.normal(0, LARGE * self.high, self.shape),
                "small": draws.normal(0, self.low / LARGE, self.shape),
                "positive": np.abs(draws.normal(0, LARGE * self.high, self.shape)),
                "distinct": np.linspace(-self.high, self.high, int(np.prod(self.shape))),
            }[kind]
            return filled.reshape(self.shape).astype(self.dtype)
        count = int(np.prod(self.shape))
        span = int(self.high - self.low) + 1
        filled = {
            "least": np.full(self.shape, self.low),
            "zero": np.full(self.shape, max(self.low, 0)),
            "distinct": self.low + np.arange(count) % span,
        }.get(kind, np.full(self.shape, self.high))
        return filled.reshape(self.shape).astype(self.dtype)

    def _sentences(self, draws: np.random.Generator, length: int) -> npt.NDArray[Any]:
        count = int(np.prod(self.shape))
        texts = [" ".join(draws.choice(self.words, length)) for _ in range(count)]
        return np.array(texts, object).reshape(self.shape)


PUSHES: Final = ("least", "zero", "most", "large", "small", "positive", "distinct")


@dataclass(frozen=True, slots=True)
class Case:
    """A model: who exports it, how, and what its runs are fed."""

    export: Callable[[str], None]
    """Write the model to a path."""
    exporter: str
    inputs: Mapping[str, Input]

    def written_inputs(self) -> dict[str, object]:
        """The inputs as JSON."""
        return {name: asdict(drawn) for name, drawn in self.inputs.items()}


def read_inputs(written: Mapping[str, Mapping[str, Any]]) -> dict[str, Input]:
    """The inputs out of JSON."""
    return {
        name: Input(**{**fields, "shape": tuple(fields["shape"])})
        for name, fields in written.items()
    }


def random_feeds(inputs: Mapping[str, Input], seed: int) -> Feeds:
    """The inputs of a random run."""
    draws = np.random.default_rng(seed)
    return {name: each.drawn(draws) for name, each in inputs.items()}


def pushed_feeds(inputs: Mapping[str, Input], kind: str) -> Feeds:
    """The inputs of a run that pushes toward the bound."""
    draws = np.random.default_rng(0)
    return {name: each.pushed(draws, kind) for name, each in inputs.items()}

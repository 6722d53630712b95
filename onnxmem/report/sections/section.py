"""The parts of a report before it is laid out: lines, notes and sections.

Names from a model are made printable and shortened before they enter a line; a page escapes them
for HTML.
"""

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from onnxmem.program.sizes import Affine


INFERENCE: Final = "Inference"
TRAINING_STEP: Final = "Training step"
"""Titles of the two totals."""
GPU_MEMORY: Final = "GPU memory (PyTorch)"
SESSIONS: Final[Mapping[str, str]] = MappingProxyType(
    {"ort-cpu": "onnxruntime, CPU", "ort-cuda": "onnxruntime, CUDA"}
)
"""Titles of the figures of runtimes."""
PEAK: Final = "peak activation memory"
"""What the largest sum of live activations is called."""


class Layout(Enum):
    """How the numbers of a section are to be read."""

    FACTS = "facts"
    """As words, each behind its label."""
    LINES = "lines"
    """Each by itself, or as terms of the total."""
    BARS = "bars"
    """As shares of the total."""
    MULTIPLES = "multiples"
    """As multiples of the reference."""
    TERMS = "terms"
    """As terms of the total, in one unit; of the largest where there is no total."""
    SIZES = "sizes"
    """As sizes in one unit, before what has them."""
    COMPARED = "compared"
    """As measurements, each beside what was predicted."""


@dataclass(frozen=True, slots=True)
class Line:
    """A label, and a number or words."""

    label: str
    number: int | None = None
    """Bytes, or as ``unit`` says; ``None``: unknown."""
    remark: str = ""
    _: KW_ONLY
    text: str | None = None
    """The words of a line without a number."""
    unit: Literal["bytes", "count"] = "bytes"
    key: str = ""
    """Path of the number in the JSON report, by which a page finds it at another batch; a sum
    that the JSON report does not have has a path of its own."""
    words_key: str = ""
    """Name of the text, or of the remark, where the words change with the batch."""
    predicted: int | None = None
    """Of a number that was measured."""
    parts: tuple["Line", ...] = ()
    """Numbers that are written one after another, each with its label."""
    depth: int = 1
    """Levels that the label is indented."""
    is_total: bool = False
    """Whether it is the answer among its lines."""
    drops_zero: bool = False
    """Whether the line is left out where its number is 0."""

    @property
    def words(self) -> str:
        """The text, or else the remark."""
        return self.remark if self.text is None else self.text


@dataclass(frozen=True, slots=True)
class Note:
    """A paragraph behind a label."""

    label: str
    text: str = ""
    parts: tuple[str, ...] = ()
    """What is listed with commas between; none of them is broken."""
    words_key: str = ""
    """Name of the words, where they change with the batch."""

    @property
    def words(self) -> str:
        """The text, or else the list."""
        return self.text or ", ".join(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a report on one topic."""

    key: str
    title: str
    remark: str = ""
    """What holds of all lines."""
    summary: str = ""
    """A sentence beside the title."""
    total: Line | None = None
    """The number of the title itself."""
    lines: tuple[Line, ...] = ()
    notes: tuple[Note, ...] = ()
    layout: Layout = Layout.LINES
    reference: Line | None = None
    """What the lines are multiples of."""

    @property
    def headline(self) -> Line | None:
        """The total behind the title."""
        if self.total is None:
            return None
        return replace(self.total, label=self.title, depth=0, is_total=True)

    def all_lines(self) -> Iterator[Line]:
        """The total, the lines and the parts of lines."""
        if self.total is not None:
            yield self.total
        for line in self.lines:
            yield line
            yield from line.parts


def formula_lines(affine: "Affine | None") -> tuple[Line, ...]:
    """A figure as linear in the batch; no line where it is not known to be.

    ``4,728,064 B + 9,633,792 B x batch, from batch 1 to 128``
    """
    if affine is None:
        return ()
    line = f"{affine.fixed_bytes:,} B + {affine.slope_bytes:,} B x batch"
    return (Line("linear in batch", text=f"{line}, from batch 1 to {affine.last:,}"),)

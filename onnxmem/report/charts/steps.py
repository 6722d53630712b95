"""What charts over the steps of a run have alike: where the plot is, its axis, what a step says."""

from collections.abc import Iterable, Iterator
from typing import Final

from onnxmem.report.charts.drawing import WIDTH, line, markup, words
from onnxmem.report.charts.scales import Scale, step_ticks

LEFT: Final = 72
"""Where the plot begins: left of it stand sizes."""
RIGHT: Final = WIDTH - 12


def across(num_steps: int) -> Scale:
    """Where each step lies; it is as wide as to the next."""
    return Scale(0, max(num_steps, 1), LEFT, RIGHT)


def steps_axis(num_steps: int, bottom: float) -> Iterator[str]:
    """A line below the plot, and step numbers from 1."""
    x = across(num_steps)
    yield line(LEFT, bottom, RIGHT, bottom)
    for tick in step_ticks(num_steps):
        yield words(x(tick - 0.5), bottom + 16, f"{tick:,}", "middle", is_faint=True)
    yield words((LEFT + RIGHT) / 2, bottom + 32, "step", "middle", is_faint=True)


def unseen(boxes: Iterable[tuple[float, float, float, float, str]]) -> Iterator[str]:
    """Boxes (left, top, width, height, words) that say their words where a pointer rests."""
    yield '<g fill="#000" fill-opacity="0">'
    for left, top, width, height, text in boxes:
        yield (
            f'<rect x="{left:.4g}" y="{top:.4g}" width="{width:.4g}" height="{height:.4g}">'
            f"<title>{markup(text)}</title></rect>"
        )
    yield "</g>"

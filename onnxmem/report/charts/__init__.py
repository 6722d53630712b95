"""Charts: plain numbers in, the text of an SVG out. No chart knows what an analysis is.

Every element has a class, for a page's style sheet, and the colour of that class as an attribute,
which any style sheet overrides: so the same SVG stands alone, in a notebook or a README. Words and
lines are ``currentColor``. Nothing in a chart needs an inline style or a script.

Names come from models: they are made printable, cut and escaped here. What draws an SVG is imported
where one is drawn.
"""

from typing import TYPE_CHECKING

from onnxmem.late import late
from onnxmem.report.charts.blocks import bar, legible, spark

if TYPE_CHECKING:
    from onnxmem.report.charts.areas import area_svg
    from onnxmem.report.charts.bars import bars_svg
    from onnxmem.report.charts.bubbles import Axis, Bubble, bubbles_svg
    from onnxmem.report.charts.series import Mark, Series, decimated
    from onnxmem.report.charts.strips import Strip, strips_svg

__all__ = [
    "Axis",
    "Bubble",
    "Mark",
    "Series",
    "Strip",
    "area_svg",
    "bar",
    "bars_svg",
    "bubbles_svg",
    "decimated",
    "legible",
    "spark",
    "strips_svg",
]

__getattr__ = late(
    __name__,
    {
        "onnxmem.report.charts.areas": ("area_svg",),
        "onnxmem.report.charts.bars": ("bars_svg",),
        "onnxmem.report.charts.bubbles": ("Axis", "Bubble", "bubbles_svg"),
        "onnxmem.report.charts.series": ("Mark", "Series", "decimated"),
        "onnxmem.report.charts.strips": ("Strip", "strips_svg"),
    },
)

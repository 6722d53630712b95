"""What a report says of an analysis: sections of lines, written once for the text and for the page.

An ``Analysis`` comes in; a tuple of ``Section`` goes out, a function per topic. ``report.terminal``
lays them out in columns, ``report.page`` as tables. Begin with ``section.py``, then ``listing.py``.
"""

from typing import TYPE_CHECKING

from onnxmem.late import late
from onnxmem.report.sections.section import Layout, Line, Note, Section

if TYPE_CHECKING:
    from onnxmem.report.sections.listing import moving_sections, sections

__all__ = ["Layout", "Line", "Note", "Section", "moving_sections", "sections"]

__getattr__ = late(__name__, {"onnxmem.report.sections.listing": ("moving_sections", "sections")})

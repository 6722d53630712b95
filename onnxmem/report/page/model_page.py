"""The page of one model: every figure of its row in JSON, to be seen and moved with the batch."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.report.page.headline import fits_section, head_section, title_of
from onnxmem.report.page.layer_table import layers_section
from onnxmem.report.page.live import live_data, live_sections
from onnxmem.report.page.markup import document
from onnxmem.report.page.stops import ELEMENTS, VERDICT, Stops, evaluated, figure_data
from onnxmem.report.page.strips import arena_section
from onnxmem.report.page.tables import section_html
from onnxmem.report.page.timeline import (
    affine_sizes,
    peak_lines,
    reserved_sections,
    timeline_data,
    timeline_section,
)
from onnxmem.report.sections.listing import sections as sections_of
from onnxmem.report.sections.section import Section
from onnxmem.report.timelines import lifetimes_of

_SHOWN: Final = re.compile(r'data-(?:figure|ratio|to)="([^"]+)"')
_TEXTS: Final = re.compile(r'data-text="([^"]+)"')
_TEXT_OF: Final[Mapping[str, str]] = {
    "activations.peak_at": "activations.in_place_peak_bytes",
    "training.peak_phase": "training.peak_bytes",
    "training.peak_node": "training.peak_bytes",
    VERDICT: "total_bytes",
}
"""A text says where a peak is: between two stops at which it is the same it holds as long as the
peak is one line. Of other words nothing is known between stops."""
_DRAWN: Final = frozenset({"live", "fits"})
"""Sections that have a form of their own on the page."""
_AT_ONE_BATCH: Final = frozenset({"checkpoints", "measured"})
"""Sections that do not move with the batch."""
_AFTER_CHARTS: Final = frozenset({"rules", "compute", "findings", "coverage"})


def render_page(analysis: Analysis) -> str:
    """One HTML file; works the figures out at a few other batches for the slider."""
    stops = evaluated(analysis)
    lifetimes = lifetimes_of(analysis)
    affine = affine_sizes(lifetimes, stops)
    known = peak_lines(lifetimes, affine)
    proven = {key: lines for key, lines in known.items() if stops.agrees(key, lines)}
    stops = replace(stops, proven=proven)
    told = sections_of(analysis)
    tables = {each.key: section_html(each, _at(analysis, each)) for each in told}
    first = [key for key in tables if key not in _DRAWN | _AFTER_CHARTS]
    sections = [
        head_section(analysis, stops, told),
        fits_section(analysis, stops),
        timeline_section(lifetimes, stops),
        *reserved_sections(analysis),
        live_sections(analysis, stops),
        *(tables[key] for key in first),
        arena_section(analysis),
        layers_section(analysis, stops),
        *(tables[key] for key in tables if key in _AFTER_CHARTS),
    ]
    data = {
        "batch": stops.requested.batch if stops.can_move else None,
        "stops": stops.batches,
        "last": stops.last,
        "figures": dict(figure_data(stops, _keys(sections))),
        "texts": _texts(stops, sections),
        "live": live_data(analysis, stops),
        "timeline": timeline_data(lifetimes, stops, affine),
    }
    return document(title_of(analysis), filter(None, sections), data, has_plot=True)


def _at(analysis: Analysis, section: Section) -> str:
    """At which batch the figures stand that do not move."""
    batch = analysis.settings.batch
    return "" if batch is None or section.key not in _AT_ONE_BATCH else f"at batch {batch:,}"


def _keys(sections: Sequence[str]) -> Sequence[str]:
    """The figures that the page shows, and those that they are worked out from."""
    shown = (key for each in sections for key in _SHOWN.findall(each))
    return tuple(dict.fromkeys((*shown, *ELEMENTS, "activations.in_place_peak_bytes")))


def _texts(stops: Stops, sections: Sequence[str]) -> Mapping[str, object]:
    found = dict.fromkeys(key for each in sections for key in _TEXTS.findall(each))
    return {
        key: {
            "at": stops.texts(key),
            "told": stops.known_texts(key),
            "of": next((peak for start, peak in _TEXT_OF.items() if key.startswith(start)), ""),
        }
        for key in found
    }

"""The page of one model: every figure of its row in JSON, to be seen and moved with the batch."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from onnxmem.analysis import Analysis
from onnxmem.report.page.envelope import peak_laws
from onnxmem.report.page.headline import coverage_section, fits_section, head_section, title_of
from onnxmem.report.page.layer_table import layers_section
from onnxmem.report.page.live import live_data, live_sections
from onnxmem.report.page.moving import moving_of
from onnxmem.report.page.shell import document
from onnxmem.report.page.spans import course_of
from onnxmem.report.page.stops import VERDICT, Stops, evaluated, moves
from onnxmem.report.page.strips import arena_section
from onnxmem.report.page.terms import (
    cache_section,
    compute_section,
    measured_section,
    rules_section,
    run_section,
    runtime_sections,
    training_section,
)
from onnxmem.report.page.timeline import timeline_data, timeline_section

_SHOWN: Final = re.compile(r'data-(?:figure|ratio|to)="([^"]+)"')
_TEXTS: Final = re.compile(r'data-text="([^"]+)"')
_RULES: Final = ("elements.activations", "elements.inputs", "weights.parameters")
"""What a script works the rules out from that round up the elements of a sample."""
_TEXT_OF: Final[Mapping[str, str]] = {
    "activations.": "activations.in_place_peak_bytes",
    "training.": "training.peak_bytes",
    VERDICT: "total_bytes",
}
"""A text says where a peak is: between two stops at which it is the same it holds as long as the
peak is one line."""


def render_page(analysis: Analysis) -> str:
    """One HTML file; works the figures out at a few other batches for the slider."""
    stops = evaluated(analysis)
    course = course_of(analysis)
    moving = moving_of(course, stops)
    known = peak_laws(course, moving, stops.asked.batch)
    stops = replace(stops, proven={k: laws for k, laws in known.items() if stops.agrees(k, laws)})
    sections = [
        head_section(analysis, stops),
        fits_section(analysis, stops),
        timeline_section(course, stops),
        live_sections(analysis, stops),
        run_section(analysis, stops),
        training_section(analysis, stops),
        cache_section(analysis, stops),
        *runtime_sections(analysis, stops),
        measured_section(analysis),
        arena_section(analysis),
        layers_section(analysis, stops),
        rules_section(analysis, stops),
        compute_section(analysis, stops),
        coverage_section(analysis),
    ]
    data = {
        "batch": stops.asked.batch if stops.can_move else None,
        "stops": stops.batches,
        "last": stops.last,
        "figures": dict(moves(stops, _keys(sections))),
        "texts": _texts(stops, sections),
        "live": live_data(analysis, stops),
        "timeline": timeline_data(course, stops, moving),
    }
    return document(title_of(analysis), filter(None, sections), data, has_plot=True)


def _keys(sections: Sequence[str]) -> Sequence[str]:
    """The figures that the page shows, and those that they are worked out from."""
    shown = (key for each in sections for key in _SHOWN.findall(each))
    return tuple(dict.fromkeys((*shown, *_RULES, "activations.in_place_peak_bytes")))


def _texts(stops: Stops, sections: Sequence[str]) -> Mapping[str, object]:
    found = dict.fromkeys(key for each in sections for key in _TEXTS.findall(each))
    return {
        key: {
            "at": stops.texts(key),
            "told": stops.told(key),
            "of": next(peak for start, peak in _TEXT_OF.items() if key.startswith(start)),
        }
        for key in found
    }

"""All sections of an analysis, in the order of the text report."""

from typing import TYPE_CHECKING

from onnxmem.report.sections.inference import (
    activations,
    compute,
    coverage,
    findings,
    inference,
    live_set,
    rules_of_thumb,
)
from onnxmem.report.sections.peak_rows import peak_rows
from onnxmem.report.verdict import budget

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis
    from onnxmem.report.sections.section import Section


def sections(analysis: "Analysis") -> tuple["Section", ...]:
    """Everything that is said of an analysis; no section is empty."""
    found = (
        inference(analysis),
        activations(analysis),
        live_set(analysis),
        peak_rows(analysis),
        *_requested(analysis),
        budget(analysis),
        rules_of_thumb(analysis),
        compute(analysis),
        findings(analysis),
        coverage(analysis),
    )
    return tuple(section for section in found if section is not None)


def moving_sections(analysis: "Analysis") -> tuple["Section", ...]:
    """Those with lines that have keys: what a page looks up at other batches."""
    return (
        inference(analysis),
        activations(analysis),
        *_requested(analysis),
        rules_of_thumb(analysis),
        compute(analysis),
    )


def _requested(analysis: "Analysis") -> tuple["Section", ...]:
    """What most models do not have, or most requests leave out; imported where there is some."""
    found: list[Section] = []
    if analysis.kv_cache is not None:
        from onnxmem.report.sections.cache import cache_sections

        found += cache_sections(analysis.kv_cache)
    if analysis.runtimes or analysis.measured is not None:
        from onnxmem.report.sections.runtimes import runtime_sections

        found += runtime_sections(analysis)
    if analysis.replays:
        from onnxmem.report.sections.replays import replay_sections

        found += replay_sections(analysis.replays)
    if analysis.training is not None:
        from onnxmem.report.sections.training import training_sections

        found += training_sections(analysis)
    return tuple(found)

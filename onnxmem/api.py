"""The public names that join layers: an analysis that shows itself in a notebook."""

from onnxmem.analysis.analysis import Analysis, analyze

__all__ = ["Analysis", "analyze"]


def _notebook_html(analysis: Analysis) -> str:
    # Charts are imported when a notebook shows an analysis: most callers never do.
    from onnxmem.report.notebook import notebook_html

    return notebook_html(analysis)


Analysis.notebook_html = _notebook_html

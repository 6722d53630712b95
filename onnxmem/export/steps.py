"""What is known of each step of a run: the live bytes that the timeline has."""

from onnxmem.analysis.analysis import Analysis


def live_bytes(analysis: Analysis) -> tuple[int | None, ...]:
    """Activation bytes live at each step, one a node of the main graph, in running order.

    They are those of definition 4. ``None`` at every step where no activation's size is known.
    """
    known = analysis.activations.live_bytes
    return (None,) * len(known) if analysis.activations.in_place_peak_bytes is None else known

"""The arena: every buffer at its steps and addresses, so that the packing is to be seen."""

from onnxmem.analysis.analysis import Analysis
from onnxmem.report.charts.steps import Strip, strips_svg
from onnxmem.report.page.markup import section
from onnxmem.units import format_bytes, plural


def arena_section(analysis: Analysis) -> str:
    """The strips of the run's arena; nothing where no buffer has bytes."""
    memory = analysis.activations
    if not memory.in_place_peak_bytes:
        return ""
    program, sizes, packing = memory.replay.program, memory.replay.sizes, memory.packing
    starts, stops = (column.tolist() for column in program.lifetimes)
    # No node runs in the first step of the program.
    strips = [
        Strip(program.labels[n], starts[n] - 1, stops[n] - 1, offset, sizes.bytes_of(n))
        for n, offset in sorted(packing.offsets.items())
    ]
    proof = "proven least" if packing.is_proven else "not proven least"
    packed = f"{format_bytes(packing.size_bytes)}, gap {format_bytes(packing.gap_bytes)}, {proof}"
    count = plural(len(strips), "buffer")
    svg = strips_svg(
        strips,
        num_steps=len(program.steps) - 1,
        size_bytes=packing.size_bytes,
        chart_id="onnxmem-arena-svg",
        title="Buffers of the arena over steps and addresses",
        description=f"{count} in one block of {packed}.",
    )
    batch = analysis.settings.batch
    at = "" if batch is None else f" Drawn at batch {batch:,}."
    body = (
        f'<figure><div class="wide" tabindex="0" role="group" aria-label="arena">{svg}</div>'
        "<figcaption>Each strip is a buffer of the run: across, the steps in which it is alive; up,"
        f" its addresses in one block of {packed}.{at}</figcaption></figure>"
    )
    return section("arena", "How the activations are packed", body)

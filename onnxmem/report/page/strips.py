"""The arena: every buffer at its steps and addresses, so that the packing is to be seen."""

from onnxmem.analysis import Analysis
from onnxmem.report.charts import Strip, strips_svg
from onnxmem.report.page.markup import section
from onnxmem.units import format_bytes, plural


def arena_section(analysis: Analysis) -> str:
    """The strips of the run's arena; nothing where no buffer has bytes."""
    memory = analysis.activations
    blocks = [block for block in memory.blocks if block.buffer.size_bytes]
    if not blocks or memory.in_place_peak_bytes is None:
        return ""
    arena = memory.arena
    strips = [
        Strip(name, block.start, block.stop, offset, block.buffer.size_bytes or 0)
        for block, (name, offset) in zip(blocks, arena.offsets, strict=True)
    ]
    proof = "proven least" if arena.is_proven else "not proven least"
    packed = f"{format_bytes(arena.size_bytes)}, gap {format_bytes(arena.gap_bytes)}, {proof}"
    count = plural(len(strips), "buffer")
    svg = strips_svg(
        strips,
        num_steps=len(analysis.graph.nodes),
        size_bytes=arena.size_bytes,
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

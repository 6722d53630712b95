"""An order of execution as text: what it gains, and whether a better one exists."""

from typing import TYPE_CHECKING

from onnxmem.errors import shortened
from onnxmem.report.text import fact, figure
from onnxmem.units import format_bytes, plural

if TYPE_CHECKING:
    from onnxmem.model import Graph
    from onnxmem.runtimes.ideal.schedule.schedule import Schedule


def standing(schedule: "Schedule") -> str:
    """Whether any order takes less."""
    proof = "proven least" if schedule.is_proven else "not proven least"
    return f"the file's, {proof}" if schedule.is_file_order else proof


def render_gain(name: str, graph: "Graph", schedule: "Schedule", own: tuple[int, int]) -> str:
    """What a copy in the new order gains; ``own``: peaks in onnxruntime's order, old and new."""
    file_bytes, best_bytes = schedule.file_peak_bytes, schedule.peak_bytes
    unknown = sum(graph.tensors[x].size_bytes is None for n in graph.nodes for x in n.writes)
    return "\n".join(
        (
            f"{shortened(name)}  {plural(len(graph.nodes), 'node')}",
            figure("IN-PLACE PEAK", best_bytes, standing(schedule)),
            figure("  in file's order", file_bytes),
            fact("  gained", _gained(file_bytes, best_bytes)),
            figure("ONNXRUNTIME BY DEFAULT", own[0], "of the file: it runs an order of its own"),
            *((figure("", own[1], "of the copy"),) if best_bytes < file_bytes else ()),
            *(
                (f"PARTIAL: {plural(unknown, 'tensor')} of unknown size left out",)
                if unknown
                else ()
            ),
            "",
        )
    )


def _gained(file_bytes: int, best_bytes: int) -> str:
    if best_bytes == file_bytes:
        return "nothing"
    saved = file_bytes - best_bytes
    return f"{format_bytes(saved)}, {100 * saved / file_bytes:.1f} %"

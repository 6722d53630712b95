"""Work that may crash, loop or take all memory, done in a process of its own.

A child is started afresh: nothing of this process's memory, environment or open files is in it. It
lives under limits, answers with one JSON object, and neither it nor its folder outlives the call.
"""

from typing import TYPE_CHECKING

from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.children.faults import ChildFault
    from onnxmem.children.limits import ChildLimits
    from onnxmem.children.running import run_in_child
    from onnxmem.children.wire import JSON, in_one_line

__all__ = ["JSON", "ChildFault", "ChildLimits", "in_one_line", "run_in_child"]

__getattr__ = late(
    __name__,
    {
        "onnxmem.children.faults": ("ChildFault",),
        "onnxmem.children.limits": ("ChildLimits",),
        "onnxmem.children.running": ("run_in_child",),
        "onnxmem.children.wire": ("JSON", "in_one_line"),
    },
)

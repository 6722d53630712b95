"""Other orders of execution that lower the peak: which one, by how much, and whether it is proven.

Nodes of subgraphs stay in their order: what a node's subgraphs take belongs to the node. The search
is imported where another order is asked for.
"""

from typing import TYPE_CHECKING

from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.runtimes.ideal.schedule.choosing import in_order, onnxruntime_schedule, schedule_of
    from onnxmem.runtimes.ideal.schedule.problem import Problem, problem_of
    from onnxmem.runtimes.ideal.schedule.schedule import Schedule
    from onnxmem.runtimes.ideal.schedule.scheduling import best_schedule
    from onnxmem.runtimes.ideal.schedule.walks import reverse_dfs

__all__ = [
    "Problem",
    "Schedule",
    "best_schedule",
    "in_order",
    "onnxruntime_schedule",
    "problem_of",
    "reverse_dfs",
    "schedule_of",
]

__getattr__ = late(
    __name__,
    {
        "onnxmem.runtimes.ideal.schedule.choosing": (
            "in_order",
            "onnxruntime_schedule",
            "schedule_of",
        ),
        "onnxmem.runtimes.ideal.schedule.problem": ("Problem", "problem_of"),
        "onnxmem.runtimes.ideal.schedule.schedule": ("Schedule",),
        "onnxmem.runtimes.ideal.schedule.scheduling": ("best_schedule",),
        "onnxmem.runtimes.ideal.schedule.walks": ("reverse_dfs",),
    },
)

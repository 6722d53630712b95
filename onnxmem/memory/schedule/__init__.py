"""Other orders of execution that lower the peak: which one, by how much, and whether it is proven.

Nodes of subgraphs stay in their order: what a node's subgraphs take belongs to the node.
"""

from dataclasses import replace

from onnxmem.memory.schedule.problem import Problem, problem_of
from onnxmem.memory.schedule.scheduling import Schedule, best_schedule
from onnxmem.memory.schedule.walks import onnxruntime_walk, reverse_dfs
from onnxmem.model import Graph

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


def onnxruntime_schedule(problem: Problem) -> Schedule:
    """The order in which onnxruntime runs the file's nodes, which may take more than the file's."""
    order = onnxruntime_walk(problem)
    return Schedule(
        order,
        problem.peak_bytes(order),
        problem.peak_bytes(range(len(order))),
        problem.floor_bytes(),
    )


def schedule_of(graph: Graph, order: str) -> Schedule | None:
    """The order of that name, ``onnxruntime`` or ``best``; ``None``: the file's."""
    if order == "file":
        return None
    problem = problem_of(graph)
    return best_schedule(problem) if order == "best" else onnxruntime_schedule(problem)


def in_order(graph: Graph, schedule: Schedule) -> Graph:
    """A graph with its nodes in another order."""
    return replace(graph, nodes=tuple(graph.nodes[place] for place in schedule.order))

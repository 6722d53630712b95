"""The schedule that a name stands for."""

from dataclasses import replace

from onnxmem.model.graph import Graph
from onnxmem.runtimes.ideal.schedule.problem import Problem, problem_of
from onnxmem.runtimes.ideal.schedule.schedule import Schedule
from onnxmem.runtimes.ideal.schedule.scheduling import best_schedule
from onnxmem.runtimes.ideal.schedule.walks import onnxruntime_walk


def onnxruntime_schedule(problem: Problem) -> Schedule:
    """The order in which onnxruntime runs the file's nodes, which may take more than the file's."""
    order = onnxruntime_walk(problem)
    return Schedule(
        order,
        problem.peak_bytes(order),
        problem.peak_bytes(range(len(order))),
        problem.floor_bytes(),
    )


def schedule_of(graph: Graph, order: str) -> Schedule:
    """The order of that name: ``onnxruntime``, or else ``best``."""
    problem = problem_of(graph)
    return best_schedule(problem) if order == "best" else onnxruntime_schedule(problem)


def in_order(graph: Graph, schedule: Schedule) -> Graph:
    """A graph with its nodes in another order."""
    return replace(graph, nodes=tuple(graph.nodes[place] for place in schedule.order))

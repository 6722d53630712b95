"""The graph that a session of onnxruntime runs, and what it knows of its shapes at load.

With onnxruntime at hand it is asked, in a process of its own; else its optimiser is emulated.
"""

from onnxmem.runtimes.onnxruntime.session_graph.loaded import (
    OptimisedModel,
    SessionGraph,
    session_graph,
)
from onnxmem.runtimes.onnxruntime.session_graph.opening import (
    ModelAt,
    Opening,
    optimised_model,
)

__all__ = [
    "ModelAt",
    "Opening",
    "OptimisedModel",
    "SessionGraph",
    "optimised_model",
    "session_graph",
]

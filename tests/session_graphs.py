"""Session graphs from ONNX text, with the shapes at load said outright: no optimizer has a part."""

from collections.abc import Mapping

from graphs import model_of

from onnxmem.runtimes.onnxruntime.allocation.planning import LoadShape
from onnxmem.runtimes.onnxruntime.session_graph.loaded import (
    OptimizedModel,
    SessionGraph,
    session_graph,
)

GAP = """agraph (float[1] x) => (float[1] y) <int64[1] m = {1009}, int64[1] n = {2003}> {
    a = Expand(x, m)  s = ReduceMax(a)  c = Expand(s, n)
    t = ReduceMax(c)  e = Expand(t, m)  y = ReduceMax(e)
}"""
"""Where reuse costs: ``e`` takes the buffer of ``a``, which so stays while ``c`` is there.

Bytes: a and e 4,036; c 8,012; s, t and y 4. The weights are 8 bytes each, and lie in the arena.
"""
GAP_SHAPES: Mapping[str, LoadShape | None] = {
    **dict.fromkeys("xsty", (1,)),
    **dict.fromkeys("ae", (1009,)),
    "c": (2003,),
}


def session_of(
    text: str, shapes: Mapping[str, LoadShape | None], inputs: Mapping[str, tuple[int, ...]]
) -> SessionGraph:
    """The graph with the nodes in the order of the text."""
    optimized = OptimizedModel(model_of(text), {"": shapes}, True, "off", "onnxmem")  # noqa: FBT003
    return session_graph(optimized, inputs)


def gap_session() -> SessionGraph:
    """Six nodes of which two buffers are reused, one of them across the peak."""
    return session_of(GAP, GAP_SHAPES, {"x": (1,)})

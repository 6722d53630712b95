"""What a runtime takes as if it had been computed: for tests of what becomes of it.

No figure is derived from another, so that none can stand for another unseen.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from graphs import graph_of

from onnxmem.program.program import Category, ProgramBuilder
from onnxmem.program.replay import Peak, Replay
from onnxmem.program.sizes import Sizes
from onnxmem.runtimes.onnxruntime.advice import Choice
from onnxmem.runtimes.onnxruntime.allocation.recording import Sample
from onnxmem.runtimes.onnxruntime.memory import RuntimeMemory
from onnxmem.runtimes.onnxruntime.prediction import ArenaFigures, Unknowns
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

NODE = graph_of("agraph (float[7] x) => (float[7] y) { [relu] y = Relu(x) }").nodes[0]
"""Where the peak is."""

_BUILDER = ProgramBuilder()
_BUILDER.malloc("y", Category.ACTIVATION)

FIGURES = ArenaFigures(
    base_bytes=1_009,
    requested_peak_bytes=2_100_013,
    with_scratch_peak_bytes=2_200_013,
    pattern_block_bytes=2_300_013,
    in_use_peak_bytes=3_000_017,
    held_bytes=4_000_037,
    held_steady_bytes=8_000_009,
    resident_peak_bytes=6_000_011,
    loaded_regions=(),
    first_regions=(),
    steady_regions=(),
    nodes=(Sample(NODE, 1_100_009, 0),),
    peak_node=NODE,
    peak=Peak(2_100_013, 1, "relu"),
    replay=Replay(_BUILDER.program(), Sizes.of([2_100_013])),
)


def choice_of(resident_bytes: int, *changes: str, lines: tuple[str, ...] = ()) -> Choice:
    """Settings under these names, and what they take."""
    figures = replace(FIGURES, resident_peak_bytes=resident_bytes)
    return Choice(SessionOptions(), changes, lines, figures)


OWN = choice_of(6_000_011)
"""The session's own settings."""

_MEMORY: Mapping[str, Any] = {
    "name": "ort-cpu",
    "graph": "ort-all",
    "graph_optimizer": "onnxruntime 1.31.1",
    "cpu": "avx512",
    "arena": FIGURES,
    "load_peak_bytes": 20_000_003,
    "process_first_run_bytes": 60_000_029,
    "process_bytes": 70_000_027,
    "context_bytes": None,
    "workspace_bytes": None,
    "unknown": Unknowns((), Counter(), ()),
    "findings": (),
}


def runtime_of(**changes: object) -> RuntimeMemory:
    """A CPU session's memory, but for the fields given."""
    advice = changes.pop("advice", (OWN,))
    return RuntimeMemory(**{**_MEMORY, "find_advice": lambda: advice, **changes})

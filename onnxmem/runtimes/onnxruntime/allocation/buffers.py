"""The buffers of one run of one graph: what is asked for in the arena, and what lies in the block.

Source: ``core/framework/execution_frame.cc`` of onnxruntime 1.31.

* A frame asks for every buffer apart and the memory pattern is worked out meanwhile; a frame of a
  graph whose pattern is known asks for one block of its size, and its buffers lie there.
* Buffers of graph outputs are asked for apart in every run, and are the caller's. An output that is
  an initializer is copied when the run begins (``IExecutionFrame::Init``).
* An output of a subgraph may be the enclosing node's, which then asks for it.
* Strings never lie in the block (``AllocateMLValueTensorSelfOwnBufferHelper``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from onnxmem.model.graph import DType, Graph
from onnxmem.program.program import Category
from onnxmem.runtimes.onnxruntime.allocation.pattern import PatternTrace
from onnxmem.runtimes.onnxruntime.allocation.planning import Plan
from onnxmem.runtimes.onnxruntime.allocation.recording import Recorder

_STRING_BYTES: Final = 32
"""``sizeof(std::string)``."""

_BLOCK: Final = "memory-pattern buffer"

Asking = Callable[[], None]


def tensor_bytes(graph: Graph, name: str) -> int | None:
    """Bytes that onnxruntime asks for to hold a tensor; ``None`` where that is unknown."""
    tensor = graph.tensors[name]
    count = tensor.num_elements
    # A dim that onnxruntime folded from an infinity is negative: no tensor has that shape.
    if count is None or count < 0 or tensor.dtype is None:
        return None
    if tensor.dtype is DType.STRING:
        return count * _STRING_BYTES
    return tensor.size_bytes


@dataclass(slots=True)
class Buffers:
    """The buffers of one frame, by the names of their first tensors."""

    plan: Plan
    recorder: Recorder
    size_bytes: Callable[[Graph, str], int]
    learnt: PatternTrace | None = None
    """The pattern of an earlier run."""
    trace: PatternTrace | None = None
    """The pattern while it is worked out."""
    provided: Mapping[str, Asking] = field(default_factory=dict)
    """Outputs that are the enclosing node's, and how they are asked for."""
    is_main: bool = True
    """Whether the frame is the main graph's."""
    outputs: dict[str, int] = field(default_factory=dict)
    """The caller's, who gives them back."""
    _numbers: dict[str, int] = field(default_factory=dict)
    _block: int | None = None

    def __post_init__(self) -> None:
        for name in self.plan.stored_outputs:
            self.allocate(name)
        if self.learnt is not None:
            size = self.learnt.size_bytes
            self._block = self.recorder.malloc(_BLOCK, Category.PATTERN_BUFFER, size)

    def allocate(self, name: str) -> None:
        """Ask for a buffer, unless it is there."""
        if name in self.provided:
            self.provided[name]()
        elif name in self.plan.outputs:
            if name not in self.outputs:
                self.outputs[name] = self._requested(name, self._size_of(name))
        elif not self._is_placed(name):
            size = self._size_of(name)
            self._numbers[name] = self._requested(name, size)
            if self.trace is not None and not self._holds_text(name):
                self.trace.allocate(name, size)
                if self.is_main:
                    self.recorder.traced.append(self._numbers[name])

    def release(self, name: str) -> None:
        """Give a buffer back."""
        self.recorder.free(self._numbers.pop(name, None))
        if self.trace is not None:
            self.trace.free(name)

    def close(self) -> None:
        """Give back all but the outputs."""
        for number in self._numbers.values():
            self.recorder.free(number)
        self.recorder.free(self._block)

    def _size_of(self, name: str) -> int:
        return self.size_bytes(self.plan.graph, name)

    def _requested(self, name: str, size_bytes: int) -> int:
        tensors = self.plan.sharing.get(name, ())
        return self.recorder.malloc(name, Category.ACTIVATION, size_bytes, tensors)

    def _is_placed(self, name: str) -> bool:
        return name in self._numbers or (self.learnt is not None and name in self.learnt.sizes)

    def _holds_text(self, name: str) -> bool:
        return self.plan.graph.tensors[name].dtype is DType.STRING

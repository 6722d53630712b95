"""Count the bytes of live tensor storages while torch runs, operator by operator.

What `torch.cuda.max_memory_allocated` would report, less workspaces of kernels and the rounding of
the allocator: each storage once, however many tensors share it, from the operator that makes it
until the last tensor on it is gone. With fake tensors no memory is needed at all.
"""

# mypy: disable-error-code="no-untyped-call"

import json
import weakref
from functools import partial
from typing import Any, TextIO

import torch
from engine import Engine
from kernels import as_kernels_leave
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes:
    """Bytes of the storages that are alive, and their peak since the last `start_phase`."""

    def __init__(self) -> None:
        self.now_bytes = 0
        self.peak_bytes = 0
        self.allocated_bytes = 0
        self.freed_bytes = 0
        self._storages: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}

    def add(self, tensor: torch.Tensor) -> None:
        """Count the storage of `tensor` from here on, unless it is counted already."""
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001  # its address, the one identity a storage has
        if key in self._storages:
            return
        size_bytes = storage.nbytes()
        self._storages[key] = size_bytes, weakref.ref(storage, partial(self._free, key))
        self.allocated_bytes += size_bytes
        self.now_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)

    def start_phase(self) -> None:
        """Forget the peak so far."""
        self.peak_bytes = self.now_bytes

    def _free(self, key: int, _: object) -> None:
        size_bytes, _reference = self._storages.pop(key)
        self.freed_bytes += size_bytes
        self.now_bytes -= size_bytes


class Trace:
    """One JSON line an operator: what ran, and the live bytes after it.

    `allocated_bytes` are of this operator, `freed_bytes` what was let go since the line before;
    `node` is the node of the backward graph that runs, and `accumulates` says that the engine adds
    up two gradients of one value after it.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._num_lines = 0

    def write(self, **line: object) -> None:
        """Add `line`, numbered."""
        self._file.write(json.dumps({"index": self._num_lines, **line}) + "\n")
        self._num_lines += 1


class Counting(TorchDispatchMode):
    """Sees every operator below autograd, counts what it makes, and plays the engine's part.

    Args:
        live: where storages are counted.

    """

    def __init__(self, live: LiveBytes) -> None:
        super().__init__()
        self.live = live
        self.engine = Engine()
        self.phase = "setup"
        self.module = ""
        self._trace: Trace | None = None
        self._freed_bytes = 0

    def write_to(self, trace: Trace | None) -> None:
        """Write every operator from here on to `trace`; None ends it."""
        self._trace = trace
        self._freed_bytes = self.live.freed_bytes

    def __torch_dispatch__(  # the name and signature are torch's
        self,
        func: Any,  # noqa: ANN401  # an OpOverload, which has no public type
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        func = self.engine.as_without_modes(func, args)
        allocated_bytes = self.live.allocated_bytes
        outputs = as_kernels_leave(func, args, func(*args, **(kwargs or {})))
        for leaf in tree_iter(outputs):
            if isinstance(leaf, torch.Tensor):
                self.live.add(leaf)
        if self._trace is not None and str(func).startswith("aten."):
            num_bytes = self.live.allocated_bytes - allocated_bytes
            self._write(self._trace, str(func), outputs, num_bytes)
        return outputs

    def _write(self, trace: Trace, name: str, outputs: object, allocated_bytes: int) -> None:
        freed_bytes = self.live.freed_bytes - self._freed_bytes
        self._freed_bytes = self.live.freed_bytes
        tensors = [leaf for leaf in tree_iter(outputs) if isinstance(leaf, torch.Tensor)]
        trace.write(
            phase=self.phase,
            op=name,
            node=self.engine.node_name(),
            accumulates=self.phase == "backward" and self.engine.between_nodes,
            module=self.module,
            outputs=[f"{tensor.dtype}{list(tensor.shape)}" for tensor in tensors],
            live_bytes=self.live.now_bytes,
            allocated_bytes=allocated_bytes,
            freed_bytes=freed_bytes,
        )

"""Counts the bytes of live tensor storages while torch runs, operator by operator.

What ``torch.cuda.max_memory_allocated`` would report, less workspaces of kernels and the rounding
of the allocator: each storage once, however many tensors share it, from the operator that makes it
until the last tensor on it is gone. With fake tensors no memory is needed at all.
"""

# mypy: disable-error-code="no-untyped-call"

import json
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TextIO

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from onnxmem.program.program import Allocation, Category
from onnxmem.torch.engine import Engine

_ATEN = torch.ops.aten
_NO_REDUCTION = 0
"""``at::Reduction::None`` of mse_loss."""
_BY_PHASE: Final = {
    "forward": Category.ACTIVATION,
    "backward": Category.ACTIVATION_GRADIENT,
}
"""What an operator makes in a phase, until it is known to be a gradient or an optimizer's state."""


class _Storage:
    """A live storage; mutable: its category may become known after it was made."""

    __slots__ = ("category", "label", "reference", "size_bytes")

    def __init__(self, label: str, category: Category, size_bytes: int) -> None:
        self.label = label
        self.category = category
        self.size_bytes = size_bytes
        self.reference: weakref.ref[Any] | None = None


class LiveBytes:
    """Bytes of the storages that are alive, and their peak since the last ``start_phase``."""

    def __init__(self) -> None:
        self.now_bytes = 0
        self.peak_bytes = 0
        self.allocated_bytes = 0
        self.freed_bytes = 0
        self._storages: dict[int, _Storage] = {}
        self._at_peak: list[_Storage] = []

    def add(
        self, tensor: torch.Tensor, category: Category = Category.ACTIVATION, label: str = ""
    ) -> None:
        """Count the storage of a tensor from here on, unless it is counted already."""
        storage = tensor.untyped_storage()
        key = storage._cdata  # its address, the one identity a storage has
        if key in self._storages:
            return
        found = self._storages[key] = _Storage(label, category, int(storage.nbytes()))
        found.reference = weakref.ref(storage, partial(self._free, key))
        self.allocated_bytes += found.size_bytes
        self.now_bytes += found.size_bytes
        if self.now_bytes > self.peak_bytes:
            self.peak_bytes = self.now_bytes
            self._at_peak = list(self._storages.values())

    def relabel(self, tensor: torch.Tensor, category: Category, label: str) -> None:
        """Change what a counted storage holds, also where it is part of the peak."""
        found = self._storages.get(tensor.untyped_storage()._cdata)
        if found is not None:
            found.category, found.label = category, label

    def start_phase(self) -> None:
        """Forget the peak so far."""
        self.peak_bytes = self.now_bytes
        self._at_peak = list(self._storages.values())

    def live_at_peak(self) -> tuple[Allocation, ...]:
        """What is alive at the peak, largest first."""
        found = (
            Allocation(each.label, each.category, each.size_bytes)
            for each in self._at_peak
            if each.size_bytes
        )
        return tuple(sorted(found, key=lambda each: -each.size_bytes))

    def _free(self, key: int, _: object) -> None:
        size_bytes = self._storages.pop(key).size_bytes
        self.freed_bytes += size_bytes
        self.now_bytes -= size_bytes


class Trace:
    """One JSON line an operator: what ran, and the live bytes after it.

    ``allocated_bytes`` are of this operator, ``freed_bytes`` what was let go since the line before;
    ``node`` is the node of the backward graph that runs, and ``accumulates`` says that the engine
    adds up two gradients of one value after it.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._num_lines = 0

    def write(self, **line: object) -> None:
        """Add a line, numbered."""
        self._file.write(json.dumps({"index": self._num_lines, **line}) + "\n")
        self._num_lines += 1


class Counting(TorchDispatchMode):
    """Sees every operator below autograd, counts what it makes, and plays the engine's part."""

    def __init__(self, live: LiveBytes) -> None:
        super().__init__()
        self.live = live
        self.engine = Engine()
        self.phase = "setup"
        self.module = ""
        """The module whose forward pass runs."""
        self._trace: Trace | None = None
        self._freed_bytes = 0

    def write_to(self, trace: Trace | None) -> None:
        """Write every operator from here on to a trace; ``None`` ends it."""
        self._trace = trace
        self._freed_bytes = self.live.freed_bytes

    def __torch_dispatch__(  # the name and signature are torch's
        self,
        func: Any,  # an OpOverload, which has no public type
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        func = self.engine.as_without_modes(func, args)
        allocated_bytes = self.live.allocated_bytes
        outputs = _as_kernels_leave(func, args, func(*args, **(kwargs or {})))
        category = _BY_PHASE.get(self.phase, Category.TEMPORARY)
        for leaf in tree_iter(outputs):
            if isinstance(leaf, torch.Tensor):
                self.live.add(leaf, category, self._label(func, leaf))
        if self._trace is not None and str(func).startswith("aten."):
            num_bytes = self.live.allocated_bytes - allocated_bytes
            self._write(self._trace, str(func), outputs, num_bytes)
        return outputs

    def _label(self, func: Any, output: torch.Tensor) -> str:
        """The operator, or the node of the backward graph, with its module and shape."""
        name = self.engine.node_name() or str(func).partition(".")[2].partition(".")[0]
        where = f" of {self.module}" if self.module else ""
        return f"{name}{where} {list(output.shape)}"

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


@contextmanager
def naming_modules(mode: Counting, module: torch.nn.Module) -> Iterator[None]:
    """Tell the mode which part of a module runs."""
    names = {submodule: name for name, submodule in module.named_modules()}
    path = [""]

    def enter(submodule: torch.nn.Module, _: object) -> None:
        path.append(names.get(submodule, ""))
        mode.module = path[-1]

    def leave(_module: object, _args: object, _outputs: object) -> None:
        path.pop()
        mode.module = path[-1]

    hooks = (
        torch.nn.modules.module.register_module_forward_pre_hook(enter),
        torch.nn.modules.module.register_module_forward_hook(leave),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def storage_bytes(tensors: Iterable[torch.Tensor | None]) -> int:
    """Bytes of the storages of tensors, each once."""
    storages = (tensor.untyped_storage() for tensor in tensors if tensor is not None)
    return sum({each._cdata: int(each.nbytes()) for each in storages}.values())


def state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """What an optimizer keeps from step to step."""
    values = [value for state in optimizer.state.values() for value in state.values()]
    return [value for value in values if isinstance(value, torch.Tensor)]


def _as_kernels_leave(func: Any, args: tuple[Any, ...], outputs: Any) -> Any:
    """`outputs` of the fake `func` with the storage and the strides that its kernel gives them.

    Found by `measure.py --real-tensors`, which runs the kernels; CPU and GPU share each of them.
    """
    if func is _ATEN.mse_loss.default:
        return _mean_square(args, outputs)
    if func is _ATEN.native_layer_norm_backward.default:
        # `layer_norm_backward_cpu` and `_cuda` (aten/src/ATen/native) make it contiguous; the fake
        # one takes the strides of the gradient that comes in.
        gradient, *others = outputs
        return (None if gradient is None else gradient.contiguous(), *others)
    return outputs


def _mean_square(args: tuple[Any, ...], loss: torch.Tensor) -> torch.Tensor:
    """A loss of no dims whose storage is as large as the operand.

    The structured kernel makes its output for the unreduced loss and then takes the mean into it:
    `mse_loss` and `mse_loss_out` of aten/src/ATen/native/BinaryOps.cpp and Loss.cpp.
    """
    reduction = args[2] if len(args) > 2 else 1  # noqa: PLR2004  # the third argument
    if reduction != _NO_REDUCTION:
        loss.untyped_storage().resize_(args[0].numel() * loss.element_size())
    return loss

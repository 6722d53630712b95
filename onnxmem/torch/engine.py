"""What the autograd engine does when no dispatch mode watches it.

While any mode is on, `at::isTensorSubclassLike` (ATen/TensorSubclassLikeUtils.h) holds for every
tensor, and code that asks it takes a slower path that writes nothing in place. A counter that is a
mode therefore sees tensors that a training run never makes. Here such calls are turned back.

Three kinds of paths are known to matter for memory:

* `accumulate` of torch/csrc/autograd/input_buffer.cpp adds a second gradient of one value into the
  first if nothing else holds that one (tensor and storage), and it is dense;
* `value_selecting_reduction_backward` and `index_backward` of
  torch/csrc/autograd/FunctionsManual.cpp, `gather_backward` and `index_select_backward_symint` of
  aten/src/ATen/native/TensorAdvancedIndexing.cpp write into the zeros that they just made;
* `linear` adds its bias in place: see `cuda_like`.
"""

# mypy: disable-error-code="no-untyped-call,no-any-return"

from collections.abc import Iterator
from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten

_IN_PLACE_INSIDE_NODES = {
    _ATEN.index_add.default: _ATEN.index_add_.default,
    _ATEN.index_put.default: _ATEN.index_put_.default,
    _ATEN.scatter.src: _ATEN.scatter_.src,
    _ATEN.scatter_add.default: _ATEN.scatter_add_.default,
}
"""Operators that a backward formula calls out of place only because a mode is on."""
_ACCUMULATES = 3
"""The argument of `index_put`: the formula of `index_put` itself does not set it."""


class Engine:
    """Knows, operator by operator, whether a node runs or the engine adds up between nodes."""

    between_nodes = False

    def __init__(self) -> None:
        self._sole_owner = _counts_of_sole_owner()

    def watch(self, loss: torch.Tensor) -> None:
        """Follow the backward graph of `loss`, which runs once, from node to node."""
        for node in _nodes(loss.grad_fn):
            if node.name() != "torch::autograd::AccumulateGrad":
                node.register_prehook(self._node_starts)
                node.register_hook(self._node_ends)

    def as_without_modes(self, func: Any, args: tuple[Any, ...]) -> Any:
        """The operator that would run in place of `func` without a dispatch mode."""
        node = torch._C._current_autograd_node()
        if node is None:
            return func
        if func is _ATEN.add.Tensor and self.between_nodes and self._is_sole_owner(args[0]):
            return _ATEN.add_.Tensor
        # What a checkpoint runs again inside a node has gradients enabled.
        is_formula = not self.between_nodes and not torch.is_grad_enabled()
        is_assigned = func is _ATEN.index_put.default and args[_ACCUMULATES:] != (True,)
        if func in _IN_PLACE_INSIDE_NODES and is_formula and not is_assigned:
            return _IN_PLACE_INSIDE_NODES[func]
        return func

    def node_name(self) -> str:
        """The name of the node of the backward graph that runs; empty if none does."""
        node = torch._C._current_autograd_node()
        return "" if node is None else node.name()

    def _is_sole_owner(self, tensor: torch.Tensor) -> bool:
        uses, storage_uses = self._sole_owner
        own, own_storage = _counts(tensor)
        return (
            own <= uses
            and own_storage <= storage_uses
            and is_non_overlapping_and_dense_or_false(tensor)
        )

    def _node_starts(self, _: object) -> None:
        self.between_nodes = False

    def _node_ends(self, _gradients: object, _outputs: object) -> None:
        self.between_nodes = True


def _nodes(root: Any) -> Iterator[Any]:
    """Every node of the backward graph under `root`, each once."""
    seen = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [following for following, _ in node.next_functions]


def _counts(tensor: Any) -> tuple[int, int]:  # `_use_count` is not in its stub
    """Reference counts of `tensor` and of its storage, with those that asking adds."""
    storage = tensor.untyped_storage()
    return tensor._use_count(), torch._C._storage_Use_Count(storage._cdata)


class _FirstSum(TorchDispatchMode):
    """Notes the counts of the first operand of the one sum that the engine makes."""

    counts = (0, 0)

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        func = self._noted(func, args)
        outputs = func(*args, **(kwargs or {}))
        if isinstance(outputs, torch.Tensor):
            outputs.untyped_storage()
        return outputs

    def _noted(self, func: Any, args: tuple[Any, ...]) -> Any:
        if func is _ATEN.add.Tensor and torch._C._current_autograd_node() is not None:
            self.counts = _counts(args[0])
        return func


def _counts_of_sole_owner() -> tuple[int, int]:
    """The counts that a mode sees on a gradient that only the engine holds."""
    with FakeTensorMode(), _FirstSum() as mode:
        leaf = torch.ones(2, requires_grad=True)
        inner = leaf * 2
        (inner.sin() + inner.cos()).sum().backward()
    return mode.counts

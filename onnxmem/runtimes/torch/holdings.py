"""What a rank holds through a whole step: weights, buffers, state, inputs.

Sharded by the ZeRO stages (Rajbhandari et al. 2020, arXiv 1910.02054) over N ranks, each tensor's
share is its Nth part, rounded up: of the optimizer's state (1), of the gradients too (2), of the
weights too (3), which are then gathered unit by unit. DistributedDataParallel holds all of it and
a copy of the gradients in its buckets (torch/nn/parallel/distributed.py, gradient_as_bucket_view
off).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from onnxmem.model.graph import Graph
from onnxmem.model.parameters import Parameters
from onnxmem.ops.spec import known_dims
from onnxmem.program.program import Allocation, Category
from onnxmem.runtimes.torch.optimizers import Optimizer, optimizer_named
from onnxmem.runtimes.torch.precision import Precision, held, precision_named
from onnxmem.settings import Recipe

_BATCH_COUNT_BYTES = 8
"""PyTorch's BatchNorm counts its batches in an int64, which no ONNX file holds."""
_BUCKETED = frozenset({"ddp", "zero1"})
_STAGES = {"none": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}


@dataclass(frozen=True, slots=True)
class PersistentState:
    """The allocations of one rank."""

    graph: Graph
    parameters: Parameters
    recipe: Recipe

    @property
    def precision(self) -> Precision:
        """How many bytes an element takes."""
        return precision_named(self.recipe.precision, self.recipe.torch)

    @property
    def optimizer(self) -> Optimizer:
        """What keeps state."""
        return optimizer_named(self.recipe.optimizer, self.recipe.torch)

    @property
    def shards_weights(self) -> bool:
        """Whether a rank holds a part of each weight alone."""
        return _STAGES[self.recipe.shard] >= 3  # noqa: PLR2004 - the third stage

    def share(self, size_bytes: int, stage: int) -> int:
        """The part of a tensor that a rank holds from a ZeRO stage on."""
        is_sharded = _STAGES[self.recipe.shard] >= stage
        return -(-size_bytes // self.recipe.world) if is_sharded else size_bytes

    def whole_bytes(self, names: Iterable[str]) -> Iterator[tuple[str, int]]:
        """Parameters and buffers, each with its bytes on all ranks together."""
        return self._sized(names, self.precision.weight_bits)

    def weight_allocations(self) -> Iterable[Allocation]:
        """The trained parameters."""
        for name, size_bytes in self.whole_bytes(self.parameters.trained):
            yield Allocation(name, Category.WEIGHT, self.share(size_bytes, 3))

    def buffer_allocations(self) -> Iterable[Allocation]:
        """What is held and not trained, BatchNormalization's batch counters too."""
        names = (*self.parameters.buffers, *self.parameters.quantized)
        for name, size_bytes in self.whole_bytes(names):
            yield Allocation(name, Category.BUFFER, size_bytes)
        norms = (n for n in self.graph.all_nodes() if n.onnx_op == "BatchNormalization")
        for mean in dict.fromkeys(mean for node in norms for mean in node.inputs[3:4]):
            yield Allocation(f"batches counted beside {mean}", Category.BUFFER, _BATCH_COUNT_BYTES)

    def state_allocations(self) -> Iterable[Allocation]:
        """What the optimizer keeps from step to step."""
        optimizer, has_masters = self.optimizer, self.precision.master_bits > 0
        element_bytes = self.precision.stepped_bits // 8
        for name in self.parameters.trained:
            dims = known_dims(self.graph.tensors[name].shape)
            if dims is None:
                continue
            stepped_bytes = prod(dims) * element_bytes
            if has_masters:
                yield Allocation(f"master of {name}", Category.STATE, self.share(stepped_bytes, 1))
            state_bytes = optimizer.state_of(dims, element_bytes)
            for size_bytes in _pieces(state_bytes, stepped_bytes):
                yield Allocation(f"state of {name}", Category.STATE, self.share(size_bytes, 1))
        if self.parameters.trained and optimizer.shared_state_bytes:
            yield Allocation("shared state", Category.STATE, optimizer.shared_state_bytes)

    def gradient_allocations(self) -> Iterable[Allocation]:
        """The parameters' gradients, where they live from one pass to the next."""
        for name, size_bytes in self.whole_bytes(self.parameters.trained):
            yield Allocation(f"gradient of {name}", Category.GRADIENT, self.share(size_bytes, 2))

    def bucket_allocations(self) -> Iterable[Allocation]:
        """The buckets in which ranks exchange gradients: as large as all of them."""
        if self.recipe.shard in _BUCKETED:
            total_bytes = sum(size for _, size in self.whole_bytes(self.parameters.trained))
            yield Allocation("buckets of gradients", Category.GRADIENT, total_bytes)

    def temporary_allocations(self) -> Iterable[Allocation]:
        """What is alive at once while the optimizer steps; masters read wider gradients too."""
        wider = self.precision.stepped_bits - self.precision.weight_bits
        for name, more_bytes in self._sized(self.parameters.trained if wider else (), wider):
            yield Allocation(
                f"wider gradient of {name}", Category.TEMPORARY, self.share(more_bytes, 1)
            )
        shapes = (self.graph.tensors[name].shape for name in self.parameters.trained)
        sizes = self.optimizer.temporaries(
            tuple(dims for shape in shapes if (dims := known_dims(shape)) is not None),
            self.precision.stepped_bits // 8,
            form=self.recipe.optimizer_form,
            weight_decay=self.recipe.weight_decay,
        )
        for size_bytes in sizes:
            yield Allocation(
                f"{self.optimizer.name} step", Category.TEMPORARY, self.share(size_bytes, 1)
            )

    def _sized(self, names: Iterable[str], bits: int) -> Iterator[tuple[str, int]]:
        # A large graph has few shapes, each of many weights.
        sizes: dict[tuple[object, ...], int] = {}
        for name in names:
            tensor = self.graph.tensors[name]
            key = tensor.shape, tensor.dtype
            if key not in sizes:
                sizes[key] = held(tensor, bits).size_bytes or 0
            yield name, sizes[key]


def _pieces(total_bytes: int, piece_bytes: int) -> Iterable[int]:
    """A parameter's state as the tensors that hold it: as large as it is, and a rest."""
    while piece_bytes and total_bytes > piece_bytes:
        yield piece_bytes
        total_bytes -= piece_bytes
    yield total_bytes

"""One training step (definition 7): forward, loss, backward, optimizer, as PyTorch takes it.

The steady state is meant, unless the first step is asked for: the optimizer has its state, and the
gradients of the step before are freed at its start. The loop holds the network's outputs and the
loss to its end.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from onnxmem.model.graph import Graph
from onnxmem.program.program import Allocation, Category
from onnxmem.runtimes.torch.backward import Backward
from onnxmem.runtimes.torch.checkpointing import Schedule, schedules, units
from onnxmem.runtimes.torch.heap import Heap, Phase
from onnxmem.runtimes.torch.holdings import PersistentState
from onnxmem.runtimes.torch.losses import loss_named
from onnxmem.runtimes.torch.matmul import multiplies_matrices
from onnxmem.runtimes.torch.memory import CheckpointOption, TrainingMemory
from onnxmem.runtimes.torch.network import Network, network_of
from onnxmem.runtimes.torch.passes import Passes
from onnxmem.runtimes.torch.recording import tape_of
from onnxmem.runtimes.torch.tape import Tape
from onnxmem.runtimes.torch.trained_outputs import OutputLosses, loss_outputs
from onnxmem.settings import Recipe
from onnxmem.units import sum_known


def training_memory(graph: Graph, recipe: Recipe) -> TrainingMemory:
    """Work out one training step of a graph.

    :raises UsageError: a recipe that names an output which is none.
    """
    step = _Step.of(graph, recipe)
    taken = [
        (schedule, step.taken(schedule)) for schedule in schedules(step.tape, recipe.checkpoint)
    ]
    best = min((found for _, found in taken), key=lambda found: found.peak_bytes)
    return best if len(taken) == 1 else replace(best, checkpoints=_unbeaten(step.tape, taken))


def _unbeaten(
    tape: Tape, taken: Iterable[tuple[Schedule, TrainingMemory]]
) -> tuple[CheckpointOption, ...]:
    """The options that no other beats in bytes without more FLOPs, by FLOPs."""
    options = (
        CheckpointOption(schedule.name, found.peak_bytes, schedule.extra_flops(tape))
        for schedule, found in taken
    )
    kept: list[CheckpointOption] = []
    for option in sorted(options, key=lambda each: (each.extra_flops, each.peak_bytes)):
        if not kept or option.peak_bytes < kept[-1].peak_bytes:
            kept.append(option)
    return tuple(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What every schedule of a step shares."""

    network: Network
    holdings: PersistentState
    tape: Tape
    outputs: tuple[str, ...]
    state: tuple[Allocation, ...]
    gradients: tuple[Allocation, ...]
    """Where they live from one pass to the next."""
    unit_bytes: int
    """Of the largest unit's parameters, gathered where ranks hold parts of them."""

    @classmethod
    def of(cls, graph: Graph, recipe: Recipe) -> Self:
        """Read a graph as a recipe trains it."""
        network = network_of(graph, recipe)
        holdings = PersistentState(network.graph, network.parameters, recipe)
        outputs = loss_outputs(network.graph, recipe.outputs)
        tape = tape_of(
            network.graph,
            network.parameters,
            holdings.precision,
            outputs,
            in_place=recipe.in_place_activations,
        )
        return cls(
            network=network,
            holdings=holdings,
            tape=tape,
            outputs=outputs,
            state=tuple(holdings.state_allocations()),
            gradients=tuple(holdings.gradient_allocations()),
            unit_bytes=_largest_unit_bytes(tape, holdings) if holdings.shards_weights else 0,
        )

    def taken(self, schedule: Schedule) -> TrainingMemory:
        """Take the step once by a schedule."""
        recipe, graph = self.holdings.recipe, self.network.graph
        losses = OutputLosses(graph, self.holdings.precision, loss_named(recipe.loss), self.outputs)
        held = self._held(losses)
        terms = dict.fromkeys(Category, 0)
        for allocation in held:
            terms[allocation.category] += allocation.size_bytes
        heap = Heap.holding(held)
        gradients = self._gradients_before(heap)
        num_before = heap.num_events
        passes = Passes(self.tape, heap, schedule)
        gathered = self._gather(heap)
        before = self._outputs_before(heap)
        passes.run_forward()
        _release(heap, before)
        losses.run_forward(heap, self.tape)
        passes.storages.leave_autocast()
        _release(heap, gathered)
        num_forward = heap.num_events
        if not recipe.adds_to_gradients:
            _release(heap, gradients)
        heap.enter_phase(Phase.BACKWARD)
        gathered = self._gather(heap, with_gradients=True)
        backward = Backward(
            passes.storages,
            has_gradients=recipe.adds_to_gradients,
            share=lambda size_bytes: self.holdings.share(size_bytes, 2),
        )
        one = losses.run_backward(backward)
        passes.run_backward(backward)
        _release(heap, gathered if one is None else (*gathered, one))
        self._optimize(heap)
        inputs = [graph.tensors[name].size_bytes for name in graph.inputs]
        replay = heap.replay()
        return TrainingMemory(
            recipe=recipe,
            weight_bytes=terms[Category.WEIGHT],
            buffer_bytes=terms[Category.BUFFER],
            gradient_bytes=sum(each.size_bytes for each in self.gradients),
            optimizer_state_bytes=sum(each.size_bytes for each in self.state),
            saved_activation_bytes=replay.bytes_after(num_forward) - replay.bytes_after(num_before),
            input_bytes=sum_known((*inputs, losses.target_bytes())),
            replay=replay,
            multiplies_matrices=any(multiplies_matrices(node) for node in graph.nodes),
            assumed_nodes=self.tape.assumed_nodes,
            unknown=_unknown(self.tape),
            findings=self.network.findings,
            batchnorms=self.network.batchnorms,
        )

    def _held(self, losses: OutputLosses) -> tuple[Allocation, ...]:
        """What is held through the step."""
        graph = self.network.graph
        inputs = ((name, graph.tensors[name].size_bytes or 0) for name in graph.inputs)
        return (
            *self.holdings.weight_allocations(),
            *self.holdings.buffer_allocations(),
            *(() if self.holdings.recipe.first_step else self.state),
            *self.holdings.bucket_allocations(),
            *(Allocation(name, Category.INPUT, size_bytes) for name, size_bytes in inputs),
            Allocation("targets", Category.INPUT, losses.target_bytes() or 0),
        )

    def _gradients_before(self, heap: Heap) -> tuple[int, ...]:
        """Allocate the gradients that are there when the forward pass begins."""
        recipe = self.holdings.recipe
        if recipe.zero_grad == "start" and not recipe.adds_to_gradients:
            return ()
        return _allocate(heap, self.gradients)

    def _outputs_before(self, heap: Heap) -> tuple[int, ...]:
        """Allocate the outputs of the pass before, which a loop holds until it has new ones."""
        if self.holdings.recipe.accumulate == 1:
            return ()
        sizes = ((name, self.tape.size_bytes(name) or 0) for name in self.network.graph.outputs)
        return _allocate(
            heap,
            (
                Allocation(f"{name} of the pass before", Category.ACTIVATION, size)
                for name, size in sizes
            ),
        )

    def _gather(self, heap: Heap, *, with_gradients: bool = False) -> tuple[int, ...]:
        """Allocate the largest unit's parameters where ranks hold parts of them."""
        gathered = [Allocation("largest unit, gathered", Category.WEIGHT, self.unit_bytes)]
        if with_gradients:
            gathered.append(Allocation("its gradients", Category.GRADIENT, self.unit_bytes))
        return _allocate(heap, gathered)

    def _optimize(self, heap: Heap) -> None:
        heap.enter_phase(Phase.OPTIMIZER)
        if self.holdings.recipe.first_step:
            _allocate(heap, self.state)
        _release(heap, _allocate(heap, self.holdings.temporary_allocations()))


def _largest_unit_bytes(tape: Tape, holdings: PersistentState) -> int:
    """Bytes of the parameters that are gathered at once, whole."""
    trained = frozenset(tape.parameters.trained)
    of_units = (
        {name for node in unit for name in node.reads if name in trained} for unit in units(tape)
    )
    return max(
        (sum(size for _, size in holdings.whole_bytes(names)) for names in of_units), default=0
    )


def _allocate(heap: Heap, allocations: Iterable[Allocation]) -> tuple[int, ...]:
    return tuple(heap.allocate(*each) for each in allocations if each.size_bytes)


def _release(heap: Heap, numbers: Iterable[int]) -> None:
    for number in numbers:
        heap.release(number)


def _unknown(tape: Tape) -> tuple[str, ...]:
    """Name the tensors and nodes of which a formula keeps an unknown number of bytes."""
    found: list[str] = []
    for node in tape.way_back:
        kept = tape.kept[node.name]
        found += [name for name in kept.storages if tape.size_bytes(name) is None]
        if kept.copies or kept.inner:
            found += [name for name, size in (*kept.copies, *kept.inner) if size is None]
        if kept.extra_bytes is None:
            found.append(node.name)
    found += (name for name in tape.graph.outputs if tape.size_bytes(name) is None)
    return tuple(dict.fromkeys(found))

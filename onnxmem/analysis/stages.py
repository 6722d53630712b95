"""What one batch of one model takes: the results of the stages, each computed when first read."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from onnxmem.analysis.rules_of_thumb import ModelSize, per_sample
from onnxmem.model.binding import Request
from onnxmem.model.building import BoundModel, Prepared, build
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import Graph, Node, Tensor
from onnxmem.model.input_values import with_given_values
from onnxmem.model.parameters import Parameters, parameters
from onnxmem.model.type_conflicts import type_conflicts
from onnxmem.runtimes.ideal.activation_memory import (
    ActivationMemory,
    activation_memory,
    in_place_peak_bytes,
)
from onnxmem.units import sum_known

if TYPE_CHECKING:
    from onnxmem.runtimes.ideal.schedules import Schedule
    from onnxmem.runtimes.torch.memory import PeakRange, TrainingMemory
    from onnxmem.settings import Recipe, Settings


@dataclass(frozen=True, kw_only=True)
class StageResults:
    """The figures of the stages; bytes, ``None`` is unknown."""

    prepared: Prepared
    bound: BoundModel
    weight_bytes: int | None
    inputs_bytes: int | None
    recipe: "Recipe | None" = None
    """Of the training step; ``None``: none is asked for."""
    order: str = "file"
    """In which the nodes run."""

    @cached_property
    def training(self) -> "TrainingMemory | None":
        """The training step, worked out when first asked for: rows of a run ask for none.

        :raises UsageError: a recipe that names an output which is none.
        """
        if self.recipe is None:
            return None
        from onnxmem.runtimes.torch.step import training_memory

        return training_memory(self.bound.graph, self.recipe)

    @cached_property
    def training_range(self) -> "PeakRange | None":
        """The training peak without and with the BatchNormalizations that the step leaves out.

        ``None``: it leaves none out.
        """
        if self.training is None:
            return None
        from onnxmem.runtimes.torch.step import batchnorm_range

        return batchnorm_range(self.bound.graph, self.training)

    @cached_property
    def schedule(self) -> "Schedule | None":
        """The order asked for; ``None``: the file's."""
        if self.order == "file":
            return None
        from onnxmem.runtimes.ideal.scheduling import schedule_of

        return schedule_of(self.bound.graph, self.order)

    @cached_property
    def graph(self) -> Graph:
        """The graph in the order asked for; a runtime has an order of its own."""
        if self.schedule is None:
            return self.bound.graph
        from onnxmem.runtimes.ideal.scheduling import in_order

        return in_order(self.bound.graph, self.schedule)

    @cached_property
    def parameters(self) -> Parameters:
        """The weights by what they are to training, found when first asked for: a law asks none."""
        return parameters(self.bound.graph)

    @cached_property
    def activations(self) -> ActivationMemory:
        """What nodes make, found when first asked for: peaks as lines ask for the graph alone."""
        return activation_memory(self.graph)

    @cached_property
    def type_conflicts(self) -> tuple[tuple[Node, str], ...]:
        """The nodes that no runtime takes, found when first asked for: no batch changes them."""
        return tuple(type_conflicts(self.prepared.proto, self.bound.graph))

    @property
    def total_bytes(self) -> int | None:
        """Weights, inputs and in-place peak."""
        return sum_known((self.weight_bytes, self.inputs_bytes, self._in_place_peak_bytes))

    @cached_property
    def _in_place_peak_bytes(self) -> int | None:
        """Of activations that were asked for, or by itself: most batches are asked no more."""
        if "activations" in vars(self):
            return self.activations.in_place_peak_bytes
        return in_place_peak_bytes(self.graph)

    @property
    def is_whole(self) -> bool:
        """Whether the figures are of the batch asked for and leave nothing out."""
        left_out = self.training.unknown if self.training else ()
        return self.bound.follows_batch and not (left_out or self.activations.unknown_tensors)

    @property
    def training_peak_bytes(self) -> int | None:
        """The training step's peak; ``None`` also where no training is asked for."""
        return self.training.peak_bytes if self.training else None


def stage_results(prepared: Prepared, asked: "Settings") -> StageResults:
    """Walk the stages once, at the batch asked for."""
    bound = build(prepared, Request(asked.batch, asked.dims, asked.shapes))
    bound = with_given_values(prepared, bound, asked.values)
    graph = bound.graph
    return StageResults(
        prepared=prepared,
        bound=bound,
        weight_bytes=sum_bytes(graph.weights),
        inputs_bytes=sum_bytes(graph.tensors[name] for name in graph.inputs),
        recipe=asked.recipe if asked.train else None,
        order=asked.order,
    )


def model_size(model: ModelFile, terms: StageResults) -> ModelSize:
    """What the rules of thumb reckon with."""
    graph = terms.bound.graph
    batch = terms.bound.binding.batch or 1
    external = [weight for weight in graph.weights if weight.is_external]
    inputs = sum_known(graph.tensors[name].num_elements for name in graph.inputs)
    activations = terms.activations.naive_in_place_elements
    return ModelSize(
        file_bytes=model.file_bytes,
        absent_external_bytes=sum_bytes(external),
        weight_bytes=terms.weight_bytes,
        num_parameters=terms.parameters.num_parameters,
        activation_elements_per_sample=per_sample(activations, batch),
        input_elements_per_sample=per_sample(inputs, batch),
        activation_bytes=terms.activations.naive_in_place_bytes,
        input_bytes=terms.inputs_bytes,
        batch=batch,
    )


def sum_bytes(tensors: Iterable[Tensor]) -> int | None:
    """Bytes of tensors: a lower bound where one is unknown, ``None`` where all are."""
    return sum_known(tensor.size_bytes for tensor in tensors)

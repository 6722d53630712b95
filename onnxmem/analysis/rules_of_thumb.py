"""Rules of thumb of the field (definition 8), for comparison with the computed figures.

Each is used as it is commonly written, in bytes of float32. Activations are counted in place: an
operator that may overwrite its input has no new one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from types import MappingProxyType

from onnxmem.analysis.request import StageResults, sum_bytes
from onnxmem.model.files import ModelFile
from onnxmem.units import sum_if_known, sum_known

_FLOAT_BYTES = 4

FORMULAS: Mapping[str, str] = MappingProxyType(
    {
        "twice_file_bytes": "2 x (file + absent external weights)",
        "three_weights_bytes": "3 x weights",
        "four_and_a_half_weights_bytes": "4.5 x weights",
        "three_params_two_activations_bytes": "4 x (3 x parameters + 2 x activations per sample x "
        "batch + inputs per sample x batch)",
        "batch_times_tensors_and_params_bytes": "4 x batch x (tensor elements per sample + "
        "parameters)",
        "inputs_activations_and_gradients_bytes": "inputs + 2 x distinct activation buffers",
    }
)
"""Each rule as text, by its name in ``RulesOfThumb``."""


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of inputs and activations at a batch, of any type; ``None`` is unknown.

    Activations are distinct buffers, counted with buffer reuse, as if none were released.
    """

    inputs: int | None
    activations: int | None
    batch: int

    @property
    def forward(self) -> int | None:
        """What a forward pass that releases nothing holds."""
        return sum_if_known((self.inputs, self.activations))

    @property
    def with_gradients(self) -> int | None:
        """The same with a gradient for each activation; inputs have none."""
        return sum_if_known((self.forward, self.activations))

    @property
    def with_gradients_bytes(self) -> int | None:
        """Bytes of ``with_gradients`` in float32."""
        return None if self.with_gradients is None else _FLOAT_BYTES * self.with_gradients

    @property
    def forward_per_sample(self) -> int | None:
        """``forward`` of one sample; rounded up where it does not divide."""
        return per_sample(self.forward, self.batch)

    @property
    def with_gradients_per_sample(self) -> int | None:
        """``with_gradients`` of one sample; rounded up where it does not divide."""
        return per_sample(self.with_gradients, self.batch)


@dataclass(frozen=True, slots=True)
class Term:
    """A summand of a rule; ``None`` is unknown."""

    label: str
    count: int | None
    """Elements, or bytes."""
    times: Fraction = Fraction(1)
    """How often the rule counts it."""
    element_bytes: int = 1
    """Bytes of one of the count."""
    batch: int = 1
    """Samples that it is counted for."""

    @property
    def num_bytes(self) -> int | None:
        """The product, rounded down to bytes."""
        if self.count is None:
            return None
        return int(self.times * self.count * self.element_bytes * self.batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The inputs of the rules; ``None`` is unknown."""

    file_bytes: int | None
    absent_external_bytes: int | None
    """Weights in external files that are missing, so that no file size includes them."""
    weight_bytes: int | None
    num_parameters: int | None
    activation_elements_per_sample: int | None
    """Elements of distinct activation buffers, counted in place."""
    input_elements_per_sample: int | None
    activation_bytes: int | None
    """Bytes of the distinct activation buffers at the batch."""
    input_bytes: int | None
    """Bytes of the graph inputs at the batch."""
    batch: int


@dataclass(frozen=True, slots=True)
class RulesOfThumb:
    """The estimates of the rules; bytes of float32, ``None`` is unknown."""

    twice_file_bytes: int | None
    three_weights_bytes: int | None
    four_and_a_half_weights_bytes: int | None
    three_params_two_activations_bytes: int | None
    batch_times_tensors_and_params_bytes: int | None
    inputs_activations_and_gradients_bytes: int | None


def model_size(model: ModelFile, results: StageResults) -> ModelSize:
    """The sizes that the rules of thumb use."""
    elements = elements_of(results)
    external = [weight for weight in results.bound.graph.weights if weight.is_external]
    return ModelSize(
        file_bytes=model.file_bytes,
        absent_external_bytes=sum_bytes(external),
        weight_bytes=results.weight_bytes,
        num_parameters=results.parameters.num_parameters,
        activation_elements_per_sample=per_sample(elements.activations, elements.batch),
        input_elements_per_sample=per_sample(elements.inputs, elements.batch),
        activation_bytes=results.activations.naive_in_place_bytes,
        input_bytes=results.inputs_bytes,
        batch=elements.batch,
    )


def elements_of(results: StageResults) -> Elements:
    """Elements of inputs and activations at the batch."""
    graph = results.bound.graph
    inputs = sum_known(graph.tensors[name].num_elements for name in graph.inputs)
    activations = results.activations.naive_in_place_elements
    return Elements(inputs, activations, results.bound.binding.batch or 1)


def rules_of_thumb(size: ModelSize) -> RulesOfThumb:
    """Evaluate the six rules; a rule with an unknown input is ``None``."""
    sums = {
        name: sum_if_known(term.num_bytes for term in terms)
        for name, terms in terms_of(size).items()
    }
    return RulesOfThumb(**sums)


def terms_of(size: ModelSize) -> Mapping[str, tuple[Term, ...]]:
    """The summands of each rule, by its name in ``RulesOfThumb``."""
    batch = size.batch
    weights = partial(Term, "bytes of weights", size.weight_bytes)
    parameters = partial(Term, "parameters", size.num_parameters, element_bytes=_FLOAT_BYTES)
    activations = partial(
        Term,
        "activations per sample",
        size.activation_elements_per_sample,
        element_bytes=_FLOAT_BYTES,
        batch=batch,
    )
    inputs = Term(
        "inputs per sample",
        size.input_elements_per_sample,
        element_bytes=_FLOAT_BYTES,
        batch=batch,
    )
    two, three = Fraction(2), Fraction(3)
    return {
        "twice_file_bytes": (
            Term("bytes of the file", size.file_bytes, two),
            Term("bytes of absent external weights", size.absent_external_bytes, two),
        ),
        "three_weights_bytes": (weights(three),),
        "four_and_a_half_weights_bytes": (weights(Fraction(9, 2)),),
        "three_params_two_activations_bytes": (parameters(three), activations(two), inputs),
        "batch_times_tensors_and_params_bytes": (activations(), inputs, parameters(batch=batch)),
        "inputs_activations_and_gradients_bytes": (
            Term("bytes of inputs", size.input_bytes),
            Term("bytes of activations", size.activation_bytes, two),
        ),
    }


def tensor_elements(size: ModelSize) -> int | None:
    """Elements of the inputs and activations of one sample."""
    return sum_if_known((size.activation_elements_per_sample, size.input_elements_per_sample))


def per_sample(num_elements: int | None, batch: int) -> int | None:
    """Elements of one sample, of a count at the batch; rounded up where it does not divide."""
    return None if num_elements is None else -(-num_elements // batch)


def rule_of_thumb_batch(budget_bytes: int, tensor_elements: int, parameters: int) -> int:
    """The largest batch by rule of thumb: budget / 4 / (tensor elements + parameters).

    Tensor elements are those of one sample. The rule counts the parameters for every sample, so the
    result is far too small for models with many parameters.
    """
    per_sample_bytes = _FLOAT_BYTES * (tensor_elements + parameters)
    return budget_bytes // per_sample_bytes if per_sample_bytes else 0

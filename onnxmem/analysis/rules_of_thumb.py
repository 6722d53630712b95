"""Rules of thumb of the field (definition 8), for comparison with the computed figures.

Each is used as it is commonly written, in bytes of float32. Activations are counted in place: an
operator that may overwrite its input has no new one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

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


def rules_of_thumb(size: ModelSize) -> RulesOfThumb:
    """Evaluate the six rules; a rule with an unknown input is ``None``."""
    half_weights = _weighted((9, size.weight_bytes))
    parameters, inputs = size.num_parameters, size.input_elements_per_sample
    activations = size.activation_elements_per_sample
    batch = size.batch
    return RulesOfThumb(
        twice_file_bytes=_weighted((2, size.file_bytes), (2, size.absent_external_bytes)),
        three_weights_bytes=_weighted((3, size.weight_bytes)),
        four_and_a_half_weights_bytes=None if half_weights is None else half_weights // 2,
        three_params_two_activations_bytes=lecture_bytes(
            parameters, _weighted((2 * batch, activations)), _weighted((batch, inputs))
        ),
        batch_times_tensors_and_params_bytes=_weighted(
            (_FLOAT_BYTES * batch, tensor_elements(size)), (_FLOAT_BYTES * batch, parameters)
        ),
        inputs_activations_and_gradients_bytes=_weighted(
            (1, size.input_bytes), (2, size.activation_bytes)
        ),
    )


def lecture_bytes(
    parameters: int | None, saved_elements: int | None, input_elements: int | None
) -> int | None:
    """The rule of a common lecture: parameters, gradients, momentum, activations and inputs.

    Its readers differ in how often an activation counts: twice per sample, as in the rule above,
    or once in total.
    """
    return _weighted(
        (3 * _FLOAT_BYTES, parameters),
        (_FLOAT_BYTES, saved_elements),
        (_FLOAT_BYTES, input_elements),
    )


def tensor_elements(size: ModelSize) -> int | None:
    """Elements of the inputs and activations of one sample."""
    return _weighted((1, size.activation_elements_per_sample), (1, size.input_elements_per_sample))


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


def _weighted(*terms: tuple[int, int | None]) -> int | None:
    """Sum of factor x count; ``None`` if a count is unknown."""
    total = 0
    for factor, count in terms:
        if count is None:
            return None
        total += factor * count
    return total

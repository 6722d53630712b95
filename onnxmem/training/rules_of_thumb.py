"""TODO."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RulesOfThumb:
    """What the rules of the field say, for comparison and never as the answer; bytes of float32."""

    twice_file_bytes: int | None
    three_weights_bytes: int | None
    four_and_a_half_weights_bytes: int | None
    three_params_two_activations_bytes: int | None
    batch_times_tensors_and_params_bytes: int | None
    inputs_activations_and_gradients_bytes: int | None

"""The rules of thumb, on worked examples that were published with them."""

from dataclasses import fields, replace

from onnxmem.analysis.rules_of_thumb import (
    FORMULAS,
    Elements,
    ModelSize,
    RulesOfThumb,
    per_sample,
    rule_of_thumb_batch,
    rules_of_thumb,
    tensor_elements,
    terms_of,
)

LECTURE = ModelSize(
    file_bytes=100,
    absent_external_bytes=50,
    weight_bytes=4 * 19_072_984,
    num_parameters=19_072_984,
    activation_elements_per_sample=532_752,
    input_elements_per_sample=9_000,
    activation_bytes=4 * 532_752 * 128,
    input_bytes=4 * 9_000 * 128,
    batch=128,
)

MLP = ModelSize(
    file_bytes=527_000,
    absent_external_bytes=0,
    weight_bytes=4 * 131_410,
    num_parameters=131_410,
    activation_elements_per_sample=4 * 100 + 10,
    input_elements_per_sample=1_000,
    activation_bytes=4 * 410 * 256,
    input_bytes=4 * 1_000 * 256,
    batch=256,
)
"""1000 -> 4 x 100 -> 10, ReLU in place."""


def test_the_sum_of_the_lecture() -> None:
    """Two times the activations of every image: 779,021,856 bytes."""
    assert rules_of_thumb(LECTURE).three_params_two_activations_bytes == 779_021_856


def test_forward_and_gradient_elements_of_an_mlp() -> None:
    """1,410 elements forward, 1,820 with gradients: 465,920 at batch 256."""
    assert tensor_elements(MLP) == 1_410
    assert rules_of_thumb(MLP).inputs_activations_and_gradients_bytes == 465_920 * 4 == 1_863_680


def test_multiples_of_file_and_weights() -> None:
    rules = rules_of_thumb(LECTURE)
    assert rules.twice_file_bytes == 300
    assert rules.three_weights_bytes == 228_875_808
    assert rules.four_and_a_half_weights_bytes == 343_313_712


def test_the_rule_multiplies_tensors_and_parameters_by_the_batch() -> None:
    rules = rules_of_thumb(MLP)
    assert rules.batch_times_tensors_and_params_bytes == 4 * 256 * (1_410 + 131_410)


def test_the_batch_rule_of_thumb_inverts_the_memory_rule() -> None:
    budget_bytes = 4 * 256 * (1_410 + 131_410)
    assert rule_of_thumb_batch(budget_bytes, 1_410, 131_410) == 256
    assert rule_of_thumb_batch(budget_bytes - 1, 1_410, 131_410) == 255
    assert rule_of_thumb_batch(budget_bytes, 0, 0) == 0


def test_a_rule_is_the_sum_of_its_terms() -> None:
    terms = terms_of(LECTURE)
    assert set(terms) == set(FORMULAS)
    lecture = terms["three_params_two_activations_bytes"]
    assert [each.num_bytes for each in lecture] == [228_875_808, 545_538_048, 4_608_000]
    assert [each.num_bytes for each in terms["four_and_a_half_weights_bytes"]] == [343_313_712]


def test_elements_of_a_batch_and_of_a_sample() -> None:
    found = Elements(inputs=7 * 11, activations=7 * 13 + 1, batch=7)
    assert (found.forward, found.with_gradients) == (169, 261)
    assert (found.forward_per_sample, found.with_gradients_per_sample) == (25, 38)
    assert Elements(None, 5, 1).forward_per_sample is None


def test_a_rule_of_unknown_terms_is_unknown() -> None:
    rules = rules_of_thumb(replace(MLP, activation_elements_per_sample=None, weight_bytes=None))
    assert rules.three_weights_bytes is None
    assert rules.four_and_a_half_weights_bytes is None
    assert rules.three_params_two_activations_bytes is None
    assert rules.batch_times_tensors_and_params_bytes is None
    assert rules.inputs_activations_and_gradients_bytes == 1_863_680


def test_a_count_that_does_not_divide_by_the_batch_rounds_up() -> None:
    assert (per_sample(256, 2), per_sample(257, 2), per_sample(None, 2)) == (128, 129, None)


def test_every_rule_has_its_formula_as_text() -> None:
    assert {field.name for field in fields(RulesOfThumb)} == set(FORMULAS)

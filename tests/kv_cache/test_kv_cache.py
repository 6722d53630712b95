"""Caches recognized by name, operator and shape; their bytes, and the steps at a context."""

from collections.abc import Mapping

import onnx
import pytest
from graphs import model_of
from hypothesis import given
from hypothesis import strategies as st
from kv_cache_graphs import (
    ATTENTION,
    CROSS,
    GROUPED,
    HYBRID,
    LINEAR,
    MERGED,
    NO_CACHE,
    QDQ,
    QUANTIZED,
    SCATTER,
    STACKED,
    growing,
)

from onnxmem import Analysis, analyze
from onnxmem.analysis.cache_memory import CacheMemory
from onnxmem.errors import UsageError
from onnxmem.kv_cache.cache import KvCache, LengthRule, find_cache
from onnxmem.kv_cache.candidates import SLOTS, Contents, candidates, label_of
from onnxmem.kv_cache.steps import Step, numbers_at
from onnxmem.model.building import prepare
from onnxmem.model.files import ModelFile
from onnxmem.ops.registry import lookup


def found(text: str) -> KvCache | None:
    prepared = prepare(ModelFile("", model_of(text), 0))
    return find_cache(prepared, candidates(prepared))[0]


def cache_of(text: str) -> KvCache:
    cache = found(text)
    assert cache is not None
    return cache


def warnings(text: str) -> str:
    prepared = prepare(ModelFile("", model_of(text), 0))
    _, findings = find_cache(prepared, candidates(prepared))
    return " ".join(finding.message for finding in findings)


def at(text: str, context: int | None = None, **settings: object) -> CacheMemory:
    memory = analyze(model_of(text), context=context, **settings).kv_cache  # type: ignore[arg-type]
    assert memory is not None
    return memory


# Names.


@pytest.mark.parametrize(
    ("past", "present", "layer", "contents"),
    [
        ("past_key_values.3.key", "present.3.key", 3, Contents.KEYS),
        ("past_key_values.3.decoder.value", "present.3.decoder.value", 3, Contents.VALUES),
        ("past_key_self_3", "present_key_self_3", 3, Contents.KEYS),
        ("past_3", "present_3", 3, Contents.UNKNOWN),
        ("pastKeyValues_3_v", "presentKeyValues_3_value", 3, Contents.VALUES),
        ("past_key_values_key_cache_3", "present_key_3", 3, Contents.KEYS),
        ("k_cache.3", "new_k_cache.3", 3, Contents.KEYS),
        ("past_conv.3", "present_conv.3", 3, Contents.STATE),
        ("past_key_values.3.recurrent_state", "present.3.recurrent_state", 3, Contents.STATE),
        ("cache_v", "cache_v_out", None, Contents.VALUES),
    ],
)
def test_past_and_present_names_have_the_same_words(
    past: str, present: str, layer: int | None, contents: Contents
) -> None:
    one, other = label_of(past), label_of(present)
    assert one.suggests_cache
    assert (one.words, one.layer, one.contents) == (other.words, layer, contents)


@pytest.mark.parametrize(
    "name", ["cache_position", "past_sequence_length", "use_cache_branch", "input_ids", "key_0", ""]
)
def test_other_names_do_not_suggest_a_cache(name: str) -> None:
    assert not label_of(name).suggests_cache


# What is recognized.


@pytest.mark.parametrize(
    ("text", "layout", "heads", "size", "found_by"),
    [
        (growing(), "bnsh", 3, 5, {"Concat"}),
        (GROUPED, "bnsh", 2, 11, {"GroupQueryAttention"}),
        (ATTENTION, "bnsh", 2, 11, {"Attention"}),
        (SCATTER, "bsnh", 2, 3, {"TensorScatter"}),
        (STACKED, "bnsh", 3, 5, {"Concat"}),
        (MERGED, "bnsh", 3, 5, {"Concat"}),
    ],
)
def test_heads_and_layout(
    text: str, layout: str, heads: int, size: int, found_by: set[str]
) -> None:
    cache = cache_of(text)
    assert {part.found_by for part in cache.parts} == found_by
    for part in cache.parts:
        assert (part.layout, part.kv_heads, part.head_size) == (layout, heads, size)


def test_layers_are_counted_by_number_or_by_keys() -> None:
    assert cache_of(growing(layers=3)).num_layers == 3
    assert cache_of(ATTENTION).num_layers == 1


def test_query_heads_come_from_the_operator() -> None:
    assert {part.query_heads for part in cache_of(GROUPED).parts} == {6}
    assert {part.query_heads for part in cache_of(ATTENTION).parts} == {6}


def test_each_part_of_a_cache_has_the_rule_of_its_length() -> None:
    rules = {part.name: part.length_rule for part in cache_of(HYBRID).parts}
    assert rules == {
        "past_key_values.1.key": LengthRule.GROWS,
        "past_key_values.2.key": LengthRule.FIXED,
        "past_conv.0": LengthRule.CONSTANT,
        "past_key_values.0.ssm_state": LengthRule.CONSTANT,
    }
    assert {part.length_rule for part in cache_of(GROUPED).parts} == {LengthRule.BUFFER}
    encoder = cache_of(CROSS).parts[1]
    assert (encoder.length_rule, encoder.output) == (LengthRule.ENCODER, None)


def test_a_cache_name_with_another_shape_is_a_warning() -> None:
    """An id, a matrix, other heads, no present: none of them is counted."""
    good = 'float[batch,3,past,5] "past_key_values.0.key"'
    text = growing(layers=1)
    for bad, message in (
        ('int64[batch,3,past,5] "past_key_values.0.key"', "its elements are int64"),
        ('float[batch,3,past,5,1,1] "past_key_values.0.key"', "it has 6 dims"),
        ('float[batch,past] "past_key_values.0.key"', "it has 2 dims"),
        (
            'float[batch,2,past,5] "past_key_values.0.key"',
            "that of its output [batch, 3, past + seq, 5]",
        ),
        ('float[batch,3,past,5] "past_key_values.9.key"', "no output is named like its present"),
    ):
        changed = text.replace(good, bad).replace(
            '"present.0.key" = Concat <axis = 2> ("past_key_values.0.key", new)',
            '"present.0.key" = Identity (new)',
        )
        cache = cache_of(changed)
        assert [part.contents for part in cache.parts] == [Contents.VALUES]
        assert message in warnings(changed)


def test_concatenated_images_are_not_a_cache() -> None:
    assert found(NO_CACHE) is None
    assert analyze(model_of(NO_CACHE)).kv_cache is None


def test_two_unnamed_concats_are_a_cache() -> None:
    names = ("in_{}_{}", "out_{}_{}")
    assert len(cache_of(growing(layers=1, names=names)).parts) == 2
    one = growing(layers=1, names=names).replace('"out_0_key" = Concat', '"out_0_key" = Sum')
    assert found(one) is None


@pytest.mark.parametrize("key", SLOTS, ids="::".join)
def test_slots_are_at_the_operators_indices(key: tuple[str, str]) -> None:
    """By the schema if onnx has one, otherwise by the operator's own record."""
    domain, op_type = key
    if domain == "" and onnx.defs.has(op_type, domain):
        schema = onnx.defs.get_schema(op_type, domain)
        inputs = [entry.name for entry in schema.inputs]
        outputs = [entry.name for entry in schema.outputs]
    else:
        record = lookup(op_type, domain, 1)
        inputs, outputs = [*record.inputs], [*record.outputs]
    for slot in SLOTS[key] if inputs and op_type != "Concat" else ():
        assert inputs[slot.past].startswith("past")
        assert outputs[slot.present].startswith("present")


def test_a_state_is_recognized_by_its_operator() -> None:
    cache = cache_of(LINEAR)
    (state,) = cache.parts
    assert (state.contents, state.length_rule) == (Contents.STATE, LengthRule.CONSTANT)
    assert at(LINEAR, batch=3).constant_bytes_per_sequence == 2 * 5 * 7 * 4


# Bytes.


@pytest.mark.parametrize(
    ("text", "per_token", "constant"),
    [
        (growing(layers=2), 2 * 2 * 3 * 5 * 4, 0),
        (growing(layers=3, dtype="float16"), 2 * 3 * 3 * 5 * 2, 0),
        (GROUPED, 2 * 1 * 2 * 11 * 2, 0),
        (ATTENTION, 2 * 1 * 2 * 11 * 2, 0),
        (STACKED, 2 * 1 * 3 * 5 * 4, 0),
        (SCATTER, 0, 13 * 2 * 3 * 4),
        (QUANTIZED, 3 * 5 + 3 * 1 * 2 + 8, 0),  # 15 values of half a byte are 7.5
        (HYBRID, 3 * 5 * 4, 4 * (3 * 17 * 5 + 19 * 4 + 7 * 11 * 13)),
        (CROSS, 3 * 5 * 4, 3 * 5 * 4),  # one token of the encoder
        (MERGED, 3 * 5 * 4, 0),
        (QDQ, 2 * 3 * 5 * 1, 0),
    ],
)
def test_bytes_per_token_and_per_sequence(text: str, per_token: int, constant: int) -> None:
    memory = at(text, batch=7)
    assert (memory.bytes_per_token, memory.constant_bytes_per_sequence) == (per_token, constant)


@given(st.integers(1, 9), st.integers(1, 10**6))
def test_bytes_are_batch_times_context_times_bytes_per_token(batch: int, context: int) -> None:
    memory = at(growing(layers=2), batch=batch)
    assert memory.bytes_at(context) == batch * context * 2 * 2 * 3 * 5 * 4
    kinds = memory.bytes_by_kind(context)
    assert sum(size or 0 for size in kinds.values()) == memory.bytes_at(context)


def test_4_bit_elements_are_packed_over_the_whole_tensor() -> None:
    assert at(QUANTIZED).bytes_at(100) == 100 * (15 + 6) + 750


def test_the_encoder_length_is_a_dim_of_its_own() -> None:
    assert at(CROSS, dims={"enc": 23}, batch=2).bytes_at(5) == 2 * 3 * 5 * 4 * (5 + 23)


# Steps.


def test_both_steps_equal_an_analysis_at_their_dims() -> None:
    text = growing()
    memory = at(text, 100, batch=2)
    decode, prefill = (memory.step(step) for step in Step)
    assert decode is not None
    assert prefill is not None
    assert (decode.sequence, decode.past, prefill.sequence, prefill.past) == (1, 99, 100, 0)
    by_hand = analyze(model_of(text), batch=2, dims={"seq": 1, "past": 99})
    assert decode.total_bytes == by_hand.total_bytes
    assert decode.peak_bytes == by_hand.activations.in_place_peak_bytes
    assert decode.cache_bytes == 2 * 99 * 2 * 2 * 3 * 5 * 4
    assert prefill.cache_bytes == 0
    assert decode.is_whole
    assert prefill.is_whole


def test_an_analysis_at_a_context_is_the_decode_step() -> None:
    analysis = analyze(model_of(growing()), batch=2, context=100)
    assert analysis.settings.dims["past"] == 99
    assert analysis.kv_cache is not None
    decode = analysis.kv_cache.step(Step.DECODE)
    assert decode is not None
    assert analysis.total_bytes == decode.total_bytes
    assert (
        analysis.at(batch=5).total_bytes
        == analyze(model_of(growing()), batch=5, dims={"seq": 1, "past": 99}).total_bytes
    )


def test_a_context_of_one_token_has_no_past() -> None:
    analysis = analyze(model_of(growing()), batch=2, context=1)
    assert analysis.kv_cache is not None
    decode, prefill = (analysis.kv_cache.step(step) for step in Step)
    assert decode is not None
    assert prefill is not None
    assert analysis.total_bytes == decode.total_bytes == prefill.total_bytes
    assert analysis.status == "ok"


@pytest.mark.parametrize(
    ("text", "decode", "prefill"),
    [
        (growing(), {"past": 99, "seq": 1, "past + seq": 100}, {"past": 0, "seq": 100}),
        (growing(mask="T", total="T"), {"past": 99, "T": 100}, {"past": 0, "T": 100}),
        (growing(mask="s53"), {"s53": 100, "seq": 1}, {"s53": 100, "seq": 100}),
        (growing(mask='"past + 1"', total='"past + 1"'), {"past + 1": 100}, {"past + 1": 100}),
        (
            growing(past='"total - seq"', total="total", mask="total"),
            {"total": 100, "seq": 1, "total - seq": 99},
            {"total": 100, "seq": 100, "total - seq": 0},
        ),
        (
            growing(past='"total - seq"', total="out", mask="seq"),
            {"total": 100, "seq": 1},
            {"total": 100, "seq": 100},
        ),
        (GROUPED, {"max": 100, "seq": 1}, {"max": 100, "seq": 100}),
        (ATTENTION, {"P": 99, "S": 1}, {"P": 0, "S": 100}),
    ],
)
def test_every_symbol_of_a_role_is_bound(
    text: str, decode: Mapping[str, int], prefill: Mapping[str, int]
) -> None:
    cache = cache_of(text)
    for step, dims in ((Step.DECODE, decode), (Step.PREFILL, prefill)):
        _, numbers = numbers_at(cache, step, 100)
        assert {**numbers, **dims} == numbers


def test_a_role_that_only_a_name_shows_is_an_assumption() -> None:
    assert cache_of(growing()).assumptions == ()
    (assumed,) = cache_of(growing(mask="s53")).assumptions
    assert "attention_mask" in assumed
    assert any("If" in text for text in cache_of(MERGED).assumptions)
    assert any("seq is new tokens" in text for text in cache_of(GROUPED).assumptions)
    assert any("the third of four dims" in text for text in cache_of(HYBRID).assumptions)


def test_without_a_dim_of_new_tokens_there_is_no_prefill() -> None:
    memory = at(GROUPED.replace("float16[batch,seq,66] q", "float16[batch,n2,66] q"), 100)
    assert [step.step for step in memory.steps] == [Step.DECODE]
    assert "no dim of the inputs is known" in memory.remarks[0]


def test_a_symbol_that_only_the_present_has_is_bound() -> None:
    """The branches of an If differ, and only the output's declaration says how long it is."""
    for step in at(MERGED, 8, batch=2).steps:
        assert step.is_whole


def test_a_file_with_one_new_token_has_no_prefill() -> None:
    memory = at(growing(seq="1", total='"past + 1"', mask='"past + 1"'), 100)
    assert [step.step for step in memory.steps] == [Step.DECODE]
    assert memory.steps[0].dims == {"past": 99, "past + 1": 100}
    assert memory.remarks == (
        "no prefill figures: the file fixes the new tokens at 1: no prefill of 100",
    )


def test_a_prefill_of_the_number_of_tokens_that_the_file_fixes() -> None:
    text = growing(seq="64", total='"past + 64"', mask='"past + 64"')
    steps = {step.step: (step.sequence, step.past) for step in at(text, 64).steps}
    assert steps == {Step.DECODE: (64, 0), Step.PREFILL: (64, 0)}
    decode = at(text, 100).step(Step.DECODE)
    assert decode is not None
    assert (decode.sequence, decode.past) == (64, 36)
    assert at(text, 63).steps == ()


def test_an_expression_without_a_solution_stays_unbound() -> None:
    for past in ('"2*half"', '"half*0"', '"one + other"'):
        text = growing(past=past, total="out", mask="seq")
        _, numbers = numbers_at(cache_of(text), Step.DECODE, 100)
        assert set(numbers) == {past.strip('"'), "seq"}
    solved = growing(past='"2*half"', total="out", mask="seq")
    _, numbers = numbers_at(cache_of(solved), Step.DECODE, 101)
    assert numbers["half"] == 50


def test_bytes_are_proportional_to_a_fixed_batch() -> None:
    text = growing().replace("batch", "7")
    memory = at(text)
    assert memory.batch == 7
    assert memory.bytes_per_token == 2 * 2 * 3 * 5 * 4
    assert memory.bytes_at(11) == 7 * 11 * 2 * 2 * 3 * 5 * 4


def test_a_concat_along_the_batch_is_not_a_cache() -> None:
    text = growing(layers=1, names=("past_{}_{}", "present_{}_{}"))
    joined = text.replace("axis = 2", "axis = 0")
    assert found(joined) is None
    assert "it has no single token axis" in warnings(joined)


def test_numbers_may_differ_along_the_token_axis() -> None:
    text = growing(layers=1, past="16", total="17", mask="17", seq="1")
    cache = cache_of(text)
    assert {(part.length_rule, part.layout) for part in cache.parts} == {(LengthRule.FIXED, "bnsh")}
    assert at(text).constant_bytes_per_sequence == 2 * 3 * 16 * 5 * 4


def test_a_context_longer_than_a_static_buffer_is_refused() -> None:
    analysis = analyze(model_of(SCATTER), context=14)
    assert any(
        "the file fixes the cache at 13 tokens, fewer than 14" in finding.message
        for finding in analysis.findings
    )
    assert len(at(SCATTER, 13).steps) == 2


@pytest.mark.parametrize(
    ("text", "y_bytes"),
    [(GROUPED, 2 * 66 * 2), (GROUPED.replace('max,11] "past', 'P,11] "past'), 2 * 66 * 2)],
)
def test_a_buffer_shared_by_past_and_present_counts_once(text: str, y_bytes: int) -> None:
    """A buffer with its own length, and one that the operator appends to in place."""
    memory = at(text, 100, batch=2)
    decode = memory.step(Step.DECODE)
    assert decode is not None
    assert decode.total_bytes is not None
    assert decode.one_buffer_total_bytes is not None
    cache_bytes = 2 * 100 * 2 * 2 * 11 * 2
    assert decode.one_buffer_cache_bytes == memory.bytes_at(100) == cache_bytes
    assert decode.one_buffer_peak_bytes == y_bytes
    assert decode.one_buffer_total_bytes == cache_bytes + (decode.other_inputs_bytes or 0) + y_bytes
    assert decode.total_bytes > decode.one_buffer_total_bytes


def test_a_growing_cache_is_not_shared() -> None:
    decode = at(growing(), 100).step(Step.DECODE)
    assert decode is not None
    assert decode.one_buffer_total_bytes is None


def findings(analysis: Analysis) -> str:
    return " ".join(finding.message for finding in analysis.findings)


def test_a_model_without_a_cache_is_reported_in_one_line() -> None:
    analysis = analyze(model_of(NO_CACHE), context=100)
    assert "no key-value cache is recognized" in findings(analysis)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dims": {"past": 5}}, "--dim past: --context sets it too"),
        ({"train": True}, "a training step has no cache"),
    ],
)
def test_settings_that_contradict_a_context_are_refused(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        analyze(model_of(growing()), context=100, **settings)  # type: ignore[arg-type]

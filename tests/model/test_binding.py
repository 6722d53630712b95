"""Which dim is the batch, numbers for every dim, and dims written as expressions."""

import time
import warnings
from collections.abc import Mapping

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.helper import make_tensor_value_info

from onnxmem.errors import Finding, ShapeError
from onnxmem.model.binding import (
    Batch,
    Binding,
    Request,
    batch_symbols,
    bind,
    evaluated,
    find_batch,
    input_dims,
    names_in,
    required_inputs,
)

Shape = list[int | str | None]
FLOAT = onnx.TensorProto.FLOAT


def graph(**inputs: Shape | None) -> onnx.GraphProto:
    found = onnx.GraphProto()
    found.input.extend(make_tensor_value_info(name, FLOAT, dims) for name, dims in inputs.items())
    return found


def requested(
    inputs: dict[str, Shape],
    batch: int | None = None,
    dims: dict[str, int] | None = None,
    shapes: Mapping[str, tuple[int | str, ...]] | None = None,
) -> Binding:
    return bind(required_inputs(graph(**inputs)), Request(batch, dims or {}, shapes or {}))


def found_batch(*shapes: Shape) -> Batch | None:
    inputs = graph(**{f"x{place}": dims for place, dims in enumerate(shapes)}).input
    return find_batch({value.name: input_dims(value) or () for value in inputs})


# Where the batch stands


@pytest.mark.parametrize(
    "name", ["batch", "Batch", "BATCH", "batch_size", "num_batches", "unk_batch", "N", "n", "bs"]
)
def test_a_symbol_named_like_a_batch_is_the_batch_wherever_it_stands(name: str) -> None:
    assert found_batch(["length", name, 3], ["length", 4]) == Batch((name,))


@pytest.mark.parametrize("name", ["NN", "bsz", "channels", "b", "patch"])
def test_a_symbol_that_only_resembles_a_batch_name_is_not_the_batch(name: str) -> None:
    assert found_batch(["length", name]) == Batch(("length",))


def test_of_two_batch_names_the_one_leading_more_inputs_is_the_batch() -> None:
    assert found_batch(["N", 3], ["batch", 3], ["batch", 4]) == Batch(("batch",))
    assert found_batch([3, "N"], ["batch", "N"]) == Batch(("batch",))


def test_of_two_batch_names_that_lead_no_input_the_more_frequent_is_the_batch() -> None:
    assert found_batch([3, "N", "batch"], [3, 4, "batch"]) == Batch(("batch",))


def test_the_leading_symbol_of_most_inputs_is_the_batch() -> None:
    assert found_batch(["rows", 3], ["items", 3], ["items", "rows"]) == Batch(("items",))


def test_a_leading_symbol_is_preferred_to_leading_numbers() -> None:
    assert found_batch([8, 3], ["items", 3], [8]) == Batch(("items",))


def test_a_symbol_that_leads_no_input_is_not_the_batch() -> None:
    assert found_batch([8, "length"], [8, "length"]) == Batch(number=8)


def test_a_common_leading_number_is_the_batch() -> None:
    assert found_batch([8, 3], [8]) == Batch(number=8)
    assert found_batch([8, 3], [4, 3]) is None


def test_scalars_have_no_leading_dim() -> None:
    assert found_batch([8, 3], []) == Batch(number=8)
    assert found_batch([], []) is None
    assert found_batch() is None


def test_unnamed_leading_dims_are_the_batch() -> None:
    assert found_batch([None, 3], [None, None], [3, None]) == Batch(("x0[0]", "x1[0]"))


def test_a_named_dim_is_preferred_to_an_unnamed_one() -> None:
    assert found_batch([None, 3], ["items", 3]) == Batch(("items",))
    assert found_batch([None, "batch"], [None, 3]) == Batch(("batch",))


def test_a_negative_dim_is_a_dim_without_a_name() -> None:
    assert found_batch([-1, 3, -1]) == Batch(("x0[0]",))


def test_the_symbols_that_a_batch_binds_are_reported() -> None:
    assert batch_symbols(required_inputs(graph(x=["N", 3]))) == {"N"}
    assert batch_symbols(required_inputs(graph(x=[None], y=[-1]))) == {"x[0]", "y[0]"}
    assert batch_symbols(required_inputs(graph(x=[8, 3]))) == frozenset()
    assert batch_symbols(required_inputs(graph(x=None))) == frozenset()


# The inputs


def test_an_initializer_listed_as_input_is_not_an_input() -> None:
    model = graph(x=["N", 3], w=[7, 7], s=[5, 5])
    model.initializer.add(name="w", data_type=FLOAT, dims=[7, 7])
    model.sparse_initializer.add().values.name = "s"
    found = bind(required_inputs(model), Request(batch=2))
    assert found.shapes == {"x": (2, 3)}


def test_an_initializer_listed_as_input_does_not_hide_the_batch() -> None:
    model = graph(x=[8, 3], w=[7, 7])
    model.initializer.add(name="w", data_type=FLOAT, dims=[7, 7])
    assert bind(required_inputs(model), Request()).batch == 8


def test_a_shape_for_an_initializer_listed_as_input_is_rejected() -> None:
    model = graph(x=[8, 3], w=[7, 7])
    model.initializer.add(name="w", data_type=FLOAT, dims=[7, 7])
    with pytest.raises(
        ShapeError, match=r"--shape 'w': the model has no such input; the inputs are 'x'"
    ):
        bind(required_inputs(model), Request(shapes={"w": (7, 7)}))


def test_inputs_of_unknown_rank_do_not_determine_the_batch() -> None:
    found = bind(required_inputs(graph(x=["N", 3], y=None)), Request(batch=2))
    assert (found.shapes, found.batch) == ({"x": (2, 3)}, 2)


def test_a_shape_given_for_an_input_of_unknown_rank_is_its_shape() -> None:
    found = bind(
        required_inputs(graph(x=["N", 3], y=None)), Request(batch=2, shapes={"y": (5, 6, 7)})
    )
    assert found.shapes == {"x": (2, 3), "y": (5, 6, 7)}


def test_inputs_that_are_no_tensors_have_no_dims() -> None:
    model = graph(x=["N", 3])
    model.input.add(name="s").type.sequence_type.elem_type.tensor_type.elem_type = FLOAT
    assert bind(required_inputs(model), Request(batch=2)).shapes == {"x": (2, 3)}


def test_a_graph_without_inputs_has_no_batch() -> None:
    assert requested({}) == Binding({}, {}, None, None, ())


# The numbers


def test_a_symbol_is_bound_wherever_it_occurs() -> None:
    found = requested({"x": ["N", 3], "y": [5, "N", "N"]}, batch=4)
    assert found == Binding({"x": (4, 3), "y": (5, 4, 4)}, {"N": 4}, 4, None, ())


def test_other_symbols_are_left_alone() -> None:
    found = requested({"x": ["batch", "length"], "y": ["length", 3]}, batch=4, dims={"length": 7})
    assert found == Binding({"x": (4, 7), "y": (7, 3)}, {"batch": 4, "length": 7}, 4, None, ())


def test_a_common_leading_number_is_replaced_by_the_batch() -> None:
    found = requested({"x": [8, 8, 3], "y": [8], "z": []}, batch=2)
    assert found == Binding({"x": (2, 8, 3), "y": (2,), "z": ()}, {}, 2, 8, ())


@pytest.mark.parametrize("batch", [None, 8])
def test_a_fixed_leading_number_is_the_batch(batch: int | None) -> None:
    assert requested({"x": [8, 3]}, batch=batch) == Binding({"x": (8, 3)}, {}, 8, None, ())


def test_unnamed_dims_are_bound_by_position() -> None:
    found = requested({"x": [None, -1], "y": [-7]}, batch=4, dims={"x[1]": 5})
    assert found.shapes == {"x": (4, 5), "y": (4,)}
    assert found.dims == {"x[0]": 4, "x[1]": 5, "y[0]": 4}
    assert (found.batch, found.findings) == (4, ())


def test_a_dim_of_zero_is_a_size() -> None:
    assert requested({"x": ["N", 0]}, batch=4).shapes == {"x": (4, 0)}


def test_a_dim_overrides_the_batch() -> None:
    found = requested({"x": ["N", 3]}, batch=4, dims={"N": 7})
    text = "--batch 4 is overridden: --dim or --shape sets it to 7"
    assert (found.shapes, found.batch) == ({"x": (7, 3)}, 7)
    assert found.findings == (Finding("overridden_batch", text),)


def test_a_shape_overrides_the_batch_and_binds_its_symbols() -> None:
    found = requested({"x": ["N", "C"], "y": ["N"]}, batch=4, shapes={"x": (7, 5)})
    text = "--batch 4 is overridden: --dim or --shape sets it to 7"
    findings = (Finding("overridden_batch", text),)
    assert found == Binding({"x": (7, 5), "y": (7,)}, {"N": 7, "C": 5}, 7, None, findings)


def test_a_shape_overrides_numbers() -> None:
    found = requested({"x": [8, 3]}, batch=4, shapes={"x": (2, 5)})
    assert (found.shapes, found.batch, found.old_batch) == ({"x": (2, 5)}, 2, 8)


def test_a_name_in_a_shape_leaves_its_dim_free() -> None:
    shape: dict[str, tuple[int | str, ...]] = {"x": ("N", 5)}
    found = requested({"x": ["N", 3], "y": ["N"]}, batch=4, shapes=shape)
    assert (found.shapes, found.batch) == ({"x": (4, 5), "y": (4,)}, 4)
    assert found.findings == ()
    assert requested({"x": ["N", 3]}, dims={"N": 7}, shapes=shape).shapes == {"x": (7, 5)}
    assert requested({"x": ["N", 3]}, shapes=shape).shapes == {"x": (1, 5)}


def test_a_dim_overrides_a_shape_in_other_inputs() -> None:
    found = requested({"x": ["N", 3], "y": ["N"]}, dims={"N": 4}, shapes={"x": (7, 3)})
    assert found.shapes == {"x": (7, 3), "y": (4,)}


def test_a_shape_that_makes_leading_numbers_differ_leaves_no_batch() -> None:
    found = requested({"x": [8, 3], "y": [8, 3]}, shapes={"x": (2, 3)})
    assert (found.batch, found.shapes) == (None, {"x": (2, 3), "y": (8, 3)})


def test_a_decoder_with_a_cache() -> None:
    cache: Shape = ["batch_size", 4, "past_sequence_length", 64]
    whole = "past_sequence_length + sequence_length"
    inputs: dict[str, Shape] = {
        "input_ids": ["batch_size", "sequence_length"],
        "attention_mask": ["batch_size", whole],
        "past_key_values.0.key": cache,
        "past_key_values.0.value": cache,
    }
    lengths = {"past_sequence_length": 100, "sequence_length": 5}
    found = requested(inputs, batch=2, dims=lengths)
    assert found.shapes == {
        "input_ids": (2, 5),
        "attention_mask": (2, 105),
        "past_key_values.0.key": (2, 4, 100, 64),
        "past_key_values.0.value": (2, 4, 100, 64),
    }
    assert found.dims == {"batch_size": 2, whole: 105, **lengths}
    assert (found.batch, found.findings) == (2, ())


def test_an_expression_is_computed_from_dynamic_dims_without_a_value() -> None:
    found = requested({"x": ["N", "past + length"], "y": ["past", "length"]}, batch=2)
    assert found.dims == {"N": 2, "past + length": 2, "past": 1, "length": 1}
    assert [finding.message for finding in found.findings] == [
        "dynamic dims without a value are set to 1: 'past', 'length'; set each with --dim"
    ]


def test_an_expression_may_be_0() -> None:
    """A past of ``total - length`` is empty where the whole prompt is one step."""
    found = requested(
        {"x": ["N", "length"], "past": ["N", "total - length"], "mask": ["total"]},
        dims={"N": 2, "length": 8, "total": 8},
    )
    assert found.shapes == {"x": (2, 8), "past": (2, 0), "mask": (8,)}
    assert found.findings == ()


def test_a_number_for_an_expression_overrides_its_terms() -> None:
    found = requested({"x": ["N", "a + b", "a", "b"]}, dims={"N": 1, "a": 2, "b": 3, "a + b": 9})
    assert found.shapes == {"x": (1, 9, 2, 3)}


def test_an_expression_of_names_that_no_input_has_is_a_name() -> None:
    found = requested({"x": ["N", "a + b"]}, dims={"N": 2, "a + b": 9})
    assert (found.shapes, found.findings) == ({"x": (2, 9)}, ())


def test_a_multiple_of_the_batch_is_not_the_batch() -> None:
    found = requested({"x": ["2*batch", 3], "y": ["batch", 3]}, batch=4)
    assert (found.batch, found.shapes) == (4, {"x": (8, 3), "y": (4, 3)})


@pytest.mark.parametrize("expression", ["a ** 2", "a / 2", "a - 9", "a // 0"])
def test_an_expression_without_a_value_is_reported_as_unbound(expression: str) -> None:
    found = requested({"x": ["N", "a", expression]}, dims={"N": 2, "a": 3})
    assert found.shapes == {"x": (2, 3, 1)}
    text = f"dynamic dims without a value are set to 1: '{expression}'; set each with --dim"
    assert found.findings == (Finding("unbound_dims", text),)


# Findings and errors


def test_an_unbound_dim_is_1_and_reported() -> None:
    found = requested({"x": ["N", "length", None], "y": ["length"]})
    assert (found.shapes, found.batch) == ({"x": (1, 1, 1), "y": (1,)}, 1)
    text = "dynamic dims without a value are set to 1: 'N', 'length', 'x[2]'; set each with --dim"
    assert found.findings == (Finding("unbound_dims", text),)


def test_only_the_first_of_many_unbound_dims_are_listed() -> None:
    (finding,) = requested({"x": list("ABCDEFGHIJ")}).findings
    assert finding.message.startswith("dynamic dims without a value are set to 1: 'A', 'B', ")
    assert " more; set each with --dim" in finding.message
    assert "'J'" not in finding.message


def test_a_dim_that_the_model_does_not_use_is_reported() -> None:
    found = requested({"x": ["N", 3]}, batch=4, dims={"length": 7})
    assert found.shapes == {"x": (4, 3)}
    text = "--dim length: no input has a dim of that name; the dims are 'N'"
    assert found.findings == (Finding("unused_dim", text),)


@pytest.mark.parametrize("inputs", [{"x": [8, 3], "y": [4, 3]}, {"x": []}, {}])
def test_a_batch_for_a_model_without_one_is_reported(inputs: dict[str, Shape]) -> None:
    found = requested(inputs, batch=2)
    assert (found.batch, found.shapes) == (None, requested(inputs).shapes)
    text = "--batch 2 has no effect: the inputs have no common leading dim; use --dim or --shape"
    assert found.findings == (Finding("batch_fixed", text),)
    assert requested(inputs).findings == ()


def refusal(
    batch: int | None = None,
    dims: dict[str, int] | None = None,
    shapes: Mapping[str, tuple[int | str, ...]] | None = None,
) -> str:
    with pytest.raises(ShapeError) as caught:
        requested({"x": ["N", 3], "y": ["N"]}, batch, dims, shapes)
    return str(caught.value)


def test_a_shape_for_an_unknown_input_is_rejected() -> None:
    text = "--shape 'z': the model has no such input; the inputs are 'x', 'y'"
    assert refusal(shapes={"z": (1, 3)}) == text


def test_a_shape_of_another_rank_is_rejected() -> None:
    assert refusal(shapes={"x": (1, 3, 5)}) == "--shape x: has 3 dims, but the input has 2"
    assert refusal(shapes={"y": ()}) == "--shape y: has 0 dims, but the input has 1"


def test_a_name_that_the_file_does_not_have_there_is_rejected() -> None:
    declared = refusal(shapes={"x": ("M", 3)})
    assert declared.startswith("--shape x: 'M' is not a number, and the file has ")


@pytest.mark.parametrize("number", [0, -1])
def test_a_number_that_is_not_positive_is_rejected(number: int) -> None:
    text = f"is {number}; dims must be positive"
    assert refusal(batch=number) == f"dim 'batch' {text}"
    assert refusal(dims={"N": number}) == f"dim 'N' {text}"
    assert refusal(shapes={"x": (2, number)}).endswith("; dims must be positive")


def test_a_batch_that_is_not_positive_is_rejected_with_a_dim_named_batch() -> None:
    assert refusal(batch=0, dims={"batch": 2}) == "dim 'batch' is 0; dims must be positive"


@pytest.mark.parametrize("number", [2**63, 10**30])
def test_a_number_beyond_onnxs_range_is_rejected(number: int) -> None:
    text = f"dim {number} is over 9,223,372,036,854,775,807, the largest dim of ONNX"
    assert refusal(batch=number) == text
    assert refusal(dims={"N": number}) == text
    assert refusal(shapes={"x": (2, number)}) == text


DIMS = {"past": 100, "length": 5, "batch": 2, "_x1": 3}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("past", 100),
        ("past + length", 105),
        ("past+length", 105),
        ("  past - length ", 95),
        ("2*batch", 4),
        ("batch*length*_x1", 30),
        ("past // _x1", 33),
        ("(past + 1) * (length - 2)", 303),
        ("past - 1 - 1", 98),
        ("length - 9 + past", 96),
        ("7", 7),
        ("0", 0),
        ("length - 5", 0),
        ("0 * past", 0),
    ],
)
def test_whole_numbers_and_known_names_have_a_value(expression: str, value: int) -> None:
    assert evaluated(expression, DIMS) == value


@pytest.mark.parametrize(
    "expression",
    [
        "other",
        "past + other",
        "past / length",
        "past % length",
        "past ** length",
        "past << length",
        "past // 0",
        "past // (length - 5)",
        "length - 6",
        "1.5 * batch",
        "True + batch",
        "'a' * batch",
        "floor(past)",
        "past if batch else length",
        "past, length",
        "past +",
        "past + + length)",
        "x[0]",
        "past.real",
        "",
        " ",
    ],
)
def test_fractions_and_negative_numbers_have_no_value(expression: str) -> None:
    assert evaluated(expression, DIMS) is None


def test_a_name_that_is_bound_itself_is_not_parsed() -> None:
    assert evaluated("past + length", DIMS | {"past + length": 7}) == 7
    assert evaluated("x[0]", {"x[0]": 3}) == 3
    assert evaluated("while", {"while": 4}) == 4


def test_the_largest_dim_is_that_of_onnx() -> None:
    assert evaluated("n - 1", {"n": 2**63}) == 2**63 - 1
    assert evaluated("n * 1", {"n": 2**63}) is None
    assert evaluated("n * n // n", {"n": 2**62}) == 2**62


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("past + length", {"past", "length"}),
        ("2*batch", {"batch"}),
        ("a*a - b//c", {"a", "b", "c"}),
        ("floor(a/2)", {"floor", "a"}),
        ("1 + 2", set()),
        ("past", set()),
        (" past ", set()),
        ("7", set()),
        ("", set()),
        ("unk__12", set()),
        ("past +", set()),
        ("/model/Shape_output_0", set()),
    ],
)
def test_the_names_of_an_expression(expression: str, names: set[str]) -> None:
    assert names_in(expression) == names


HOSTILE = [
    "__import__('os').abort()",
    "__import__('os').abort() + past",
    "(lambda: exit())()",
    "[exit() for past in 'x']",
    "exit()",
    "f'{exit()}'",
    "(past := exit())",
    "9**9**9**9**9",
    "9**9**9 * past",
    "1 << 9**9",
    "past " + "+ past" * 100_000,
    "(" * 99 + "past" + ")" * 99 + "+1",
    "(" * 190 + "past",
    "[" * 200,
    "-" * 190 + "past",
    "~" * 190 + "past",
    "not " * 49 + "past",
    "lambda:" * 28 + "0",
    "past" + "()" * 98,
    "past\0",
    "past\n+ 1",
    "\ud800",
    "\\",
    "'''",
    "# past",
    "9" * 200,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_has_no_value_and_takes_no_time(text: str) -> None:
    start = time.perf_counter()
    assert evaluated(text, DIMS) is None
    assert names_in(text).isdisjoint({"exit()", "os"})
    assert time.perf_counter() - start < 1


def test_long_text_is_a_name() -> None:
    short, long = "past" + "+1" * 98, "past" + "+1" * 99
    assert (len(short), len(long)) == (200, 202)
    assert (evaluated(short, DIMS), evaluated(long, DIMS)) == (198, None)
    assert names_in(short) == {"past"}
    assert names_in(long) == frozenset()
    assert evaluated(long, {long: 3}) == 3


@pytest.mark.parametrize("text", [r"'\d'", "1if past else 2", r"b'\777'"])
def test_text_is_parsed_without_a_warning(text: str) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert evaluated(text, DIMS) is None
        names_in(text)
    assert heard == []


@given(st.text() | st.text("past+-*/() 19,.[]\"'\\"))
def test_any_text_can_be_evaluated(text: str) -> None:
    value = evaluated(text, DIMS)
    assert value is None or 0 <= value < 2**63
    assert "" not in names_in(text)


@st.composite
def sums(draw: st.DrawFn, depth: int = 3) -> str:
    if not depth or draw(st.booleans()):
        return draw(st.sampled_from([*DIMS, "0", "1", "17"]))
    left, right = draw(sums(depth - 1)), draw(sums(depth - 1))
    return f"({left} {draw(st.sampled_from('+-*'))} {right})"


@given(sums())
def test_expressions_are_evaluated_as_in_python(text: str) -> None:
    value = eval(text, {}, dict(DIMS))  # noqa: S307 - drawn from names and numbers above
    assert evaluated(text, DIMS) == (value if value >= 0 and len(text) <= 200 else None)

"""What would lower a model's memory: figures computed by hand; nothing that saves nothing."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from golden_text import assert_golden
from graphs import model_of
from models_on_disk import CONVNET, MYSTERY, write_model
from onnx import TensorProto, helper, numpy_helper
from paths import MODELS

from onnxmem.analysis.fitting.assessing import FitRequest, fit
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.cli import main
from onnxmem.decisions.advise.advising import Advised, advised, followed, plan_for
from onnxmem.decisions.advise.proposals import (
    BASIS_OF,
    Objective,
    Proposal,
    Subject,
    Suggestion,
    Tradeoff,
    bytes_of,
)
from onnxmem.decisions.advise.settings import _all_but_the_last, accumulation_suggestions
from onnxmem.decisions.advise.weights import duplicate_weights
from onnxmem.model.building import prepare
from onnxmem.model.files import ModelFile, load
from onnxmem.settings import Settings, TrainingConfig

Capture = pytest.CaptureFixture[str]


def question_of(source: str | onnx.ModelProto, **settings: object) -> AnalysisRequest:
    file = ModelFile("<text>", model_of(source), 0) if isinstance(source, str) else load(source)
    return AnalysisRequest(file, prepare(file), Settings(**settings), file)  # type: ignore[arg-type]


def advice_on(
    source: str | onnx.ModelProto,
    budget_bytes: int | None = None,
    runtime: str | None = None,
    **settings: object,
) -> Advised:
    return advised(question_of(source, **settings), budget_bytes=budget_bytes, runtime=runtime)


def by_id(advice: Advised) -> dict[str, Proposal]:
    found = {proposal.suggestion.id: proposal for proposal in advice.proposals}
    assert len(found) == len(advice.proposals)
    return found


# Running.


def test_a_shape_that_fixes_the_batch_is_why_no_batch_is_advised(
    tmp_path: Path, capsys: Capture
) -> None:
    net = str(tmp_path / write_model(tmp_path / "net.onnx"))

    def printed(*words: str) -> str:
        assert main(["advise", net, "--train", "--basis", "tensors", *words]) == 0
        return capsys.readouterr().out

    fixed = printed("--shape", "image:8,3,16,16")
    assert "accumulate_" not in fixed
    _, note, flags = " ".join(fixed.split()).partition(
        "note: no advice on another batch or gradient accumulation, as --shape fixes it; free: "
    )
    assert note
    assert flags.startswith("--shape image:N,3,16,16 --batch 8")
    free = printed(*flags.split()[:4])
    assert "accumulate_2" in free
    assert "as --shape fixes" not in free
    # One sample is not divided, whatever its shape.
    assert "as --shape fixes" not in printed("--shape", "image:1,3,16,16")


def test_halving_the_batch_halves_all_but_the_weights() -> None:
    """X of 4 x 7 floats, h and y of 4 x 11 at once: 112 + 352 beside w, 308 bytes."""
    text = (
        "agraph (float[N,7] x) => (float[N,11] y) <float[7,11] w> { h = MatMul(x, w) y = Exp(h) }"
    )
    proposal = by_id(advice_on(text, batch=4))["batch"]
    assert proposal.figure is Objective.TOTAL
    before, after = 308 + 4 * 28 + 2 * 4 * 44, 308 + 2 * 28 + 2 * 2 * 44
    assert (proposal.before_bytes, proposal.after_bytes) == (before, after)
    assert proposal.is_exact
    assert "batch" not in by_id(advice_on(text, batch=1))


def test_half_precision_halves_floats_and_nothing_else() -> None:
    text = """agraph (float[N,7] x, int64[N] i) => (float[N,11] y, int64[N] j)
        <float[7,11] w> { y = MatMul(x, w) j = Abs(i) }"""
    proposal = by_id(advice_on(text, batch=3))["half_precision"]
    floats = 7 * 11 * 4 + 3 * 7 * 4 + 3 * 11 * 4
    assert proposal.saved_bytes == floats // 2
    assert proposal.before_bytes == floats + 3 * 8 * 2


def test_a_subgraph_s_floats_are_narrowed_too() -> None:
    text = """agraph (bool c, float[13] x) => (float[13] y) {
        y = If (c) <then_branch = a () => (float[13] t) { h = Exp(x) t = Neg(h) },
                    else_branch = b () => (float[13] e) { e = Identity(x) }> }"""
    advice = advice_on(text)
    proposal = by_id(advice)["half_precision"]
    assert proposal.before_bytes - 1 == 2 * (proposal.after_bytes - 1)


def test_halving_the_image_size_is_suggested_if_the_model_supports_it() -> None:
    taken = """agraph (float[N,3,32,32] x) => (float[N,5,1,1] y) <float[5,3,1,1] w> {
        h = Conv(x, w) y = GlobalAveragePool(h) }"""
    proposal = by_id(advice_on(taken, batch=2))["resolution"]
    assert "--shape x:2,3,16,16" in proposal.suggestion.what
    assert proposal.saved_bytes == 3 * (2 * 3 + 2 * 5) * 16 * 16 * 4
    assert "FLOPs -75 %" in proposal.suggestion.cost


def test_a_classifier_after_a_fixed_flatten_supports_no_other_image_size() -> None:
    fixed = """agraph (float[N,3,32,32] x) => (float[N,5] y) <float[3072,5] w> {
        h = Flatten(x) y = MatMul(h, w) }"""
    assert "resolution" not in by_id(advice_on(fixed, batch=2))


@pytest.mark.parametrize(
    "given", ["float[N,3,8,8]", "float[N,64,32,32]", "int64[N,3,32,32]", "float[N,32]"]
)
def test_an_input_that_is_not_an_image_has_no_image_size(given: str) -> None:
    text = f"agraph ({given} x) => (y) {{ y = Abs(x) }}"
    assert "resolution" not in by_id(advice_on(text, batch=2))


def test_image_sizes_are_found_with_channels_last_and_symbolic_dims() -> None:
    text = "agraph (float[N,H,W,3] x) => (y) { y = Exp(x) }"
    proposal = by_id(advice_on(text, batch=2, dims={"H": 64, "W": 32}))["resolution"]
    assert "--shape x:2,32,16,3" in proposal.suggestion.what
    assert proposal.after_bytes * 4 == proposal.before_bytes


def test_sharing_is_suggested_for_a_runtime_that_does_not_share() -> None:
    text = "agraph (float[101] x) => (y) { a = Exp(x) b = Relu(a) y = ReduceMax(b) }"
    proposal = by_id(advice_on(text))["in_place"]
    assert proposal.figure is Objective.PEAK
    assert (proposal.before_bytes, proposal.after_bytes) == (808, 408)


# Weights.


def test_quantization_is_estimated_from_the_weights_of_matmuls_and_convolutions() -> None:
    """w: 7 x 64; k: 5 x 3 x 3 x 3; the bias and the table are no such weights."""
    text = """agraph (float[N,64,7] x, float[N,3,9,9] i, int64[N] t) => (y, j, u)
        <float[7,64] w, float[5,3,3,3] k, float[5] b, float[13,17] table> {
        y = MatMul(x, w) j = Conv(i, k, b) u = Gather(table, t) }"""
    found = by_id(advice_on(text))
    eight, four = found["int8_weights"], found["int4_weights"]
    assert eight.saved_bytes == (3 * 448 - 4 * 64) + (3 * 135 - 4 * 5)
    assert four.saved_bytes == 448 * 4 - (224 + 4 * 14)
    assert not eight.is_exact
    assert {eight.figure, four.figure} == {Objective.WEIGHTS}
    assert eight.before_bytes == 4 * (448 + 135 + 5 + 221)


def test_a_scale_per_output_channel_follows_the_layout() -> None:
    text = """agraph (float[1,7] x, float[1,7,9,9] i) => (y, j) <float[64,7] w, float[7,5,3,3] k> {
        y = Gemm <transB = 1> (x, w) j = ConvTranspose(i, k) }"""
    eight = by_id(advice_on(text))["int8_weights"]
    assert eight.saved_bytes == (3 * 448 - 4 * 64) + (3 * 315 - 4 * 5)


LARGE = """agraph (float[1,101] x) => (float[1,3] y) <float[101,64] v, float[64,3] w> {
    [one] h = MatMul(x, v) a = Relu(h) [two] y = MatMul(a, w) }"""


def test_a_layer_with_most_of_the_weights_can_be_narrower() -> None:
    proposal = by_id(advice_on(LARGE))["narrower_layer"]
    assert proposal.suggestion.what == "one: 32 features instead of 64; two then reads half as many"
    assert proposal.saved_bytes == (101 * 64 + 64 * 3) * 4 // 2


@pytest.mark.parametrize(
    "body",
    [
        "y = MatMul(x, v)",
        "h = MatMul(x, v) a = Softmax(h) y = MatMul(a, w)",
        "h = MatMul(x, v) y = Relu(h) z = MatMul(h, w)",
    ],
)
def test_a_width_with_other_readers_or_in_an_output_is_not_narrowed(body: str) -> None:
    text = f"agraph (float[1,101] x) => (y) <float[101,64] v, float[64,3] w> {{ {body} }}"
    assert "narrower_layer" not in by_id(advice_on(text))


def stored(tensors: dict[str, np.ndarray], body: str, given: str = "float[1,64] x") -> bytes:
    """A file with its weights inside."""
    model = model_of(f"agraph ({given}) => (y) {{ {body} }}")
    for name, values in tensors.items():
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model.SerializeToString()


TABLE = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
TWICE = "h = MatMul(x, v) y = MatMul(h, w)"


def on_disk(tmp_path: Path, tensors: dict[str, np.ndarray], body: str = TWICE) -> AnalysisRequest:
    path = tmp_path / "net.onnx"
    path.write_bytes(stored(tensors, body))
    file = load(path)
    return AnalysisRequest(file, prepare(file), Settings(), file)


def test_duplicate_weights_have_equal_bytes(tmp_path: Path) -> None:
    request = on_disk(tmp_path, {"v": TABLE, "w": TABLE})
    proposal = by_id(advised(request))["tied_weights"]
    assert proposal.saved_bytes == TABLE.nbytes
    assert proposal.is_exact
    assert proposal.suggestion.settings == {"tied_weights": {"w": "v"}}


@pytest.mark.parametrize("place", [0, 64 * 64 - 1])
def test_weights_that_differ_in_one_element_are_not_duplicates(tmp_path: Path, place: int) -> None:
    other = TABLE.copy()
    other.flat[place] += 1
    assert (
        not {"tied_weights", "tied_turned_weights"}
        & by_id(advised(on_disk(tmp_path, {"v": TABLE, "w": other}))).keys()
    )


def test_a_transposed_table_is_a_duplicate(tmp_path: Path) -> None:
    table = TABLE[:, :48].copy()
    request = on_disk(tmp_path, {"v": table, "w": table.T.copy()})
    proposal = by_id(advised(request))["tied_turned_weights"]
    assert proposal.saved_bytes == table.nbytes
    other = table.T.copy()
    other[-1, -1] += 1
    for values in (other, other[::-1].copy()):
        request = on_disk(tmp_path, {"v": table, "w": values})
        assert "tied_turned_weights" not in by_id(advised(request))


def test_a_default_of_an_input_is_not_a_duplicate(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    given = "float[1,64] x, float[64,64] w"
    path.write_bytes(stored({"v": TABLE, "w": TABLE}, TWICE, given))
    file = load(path)
    request = AnalysisRequest(file, prepare(file), Settings(), file)
    assert "tied_weights" not in by_id(advised(request))


def test_models_without_a_stable_file_have_no_duplicates(tmp_path: Path) -> None:
    graph = onnx.load_from_string(stored({"v": TABLE, "w": TABLE}, TWICE)).graph
    assert duplicate_weights("<bytes>", graph) == ()
    for data in (b"\x3a\xff", b"\x0b", b"\xff" * 30):
        (tmp_path / "bad").write_bytes(data)
        assert duplicate_weights(str(tmp_path / "bad"), graph) == ()


def test_a_weight_cast_before_its_first_reader_is_suggested() -> None:
    text = """agraph (float16[1,64] x) => (float16[1,32] y) <float[64,32] w> {
        n = Cast <to = 10> (w) y = MatMul(x, n) }"""
    proposal = by_id(advice_on(text))["wide_constants"]
    assert proposal.saved_bytes == 64 * 32 * 4  # half the weight, and all that the Cast made
    read_twice = text.replace("y = MatMul", "z = Exp(w) y = MatMul")
    assert "wide_constants" not in by_id(advice_on(read_twice))
    widened = text.replace("float[64", "float16[64").replace("to = 10", "to = 1")
    assert "wide_constants" not in by_id(advice_on(widened.replace("float16[1,", "float[1,")))


def test_unused_initializers_take_file_bytes() -> None:
    text = "agraph (float[5] x) => (y) <float[101] spare, float[5] w> { y = Add(x, w) }"
    proposal = by_id(advice_on(text))["unread_initializers"]
    assert (proposal.figure, proposal.saved_bytes) == (Objective.FILE, 404)
    assert proposal.before_bytes == 404 + 20


OVERRIDABLE = """agraph (float[1,512] x, float[512,512] w) => (float[512,512] y)
    { t = Transpose(w) y = Add(x, t) }"""


def overridable() -> onnx.ModelProto:
    model = model_of(OVERRIDABLE)
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[512, 512])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="absent")
    model.graph.initializer.append(weight)
    return model


@pytest.mark.parametrize("runtime", [None, "ort-cpu"])
def test_initializers_listed_as_inputs_prevent_constant_folding(runtime: str | None) -> None:
    """The Transpose is then folded, and its MiB is not requested in every inference."""
    proposal = by_id(advice_on(overridable(), runtime=runtime))["initializer_inputs"]
    assert proposal.figure is Objective.PROCESS
    assert proposal.saved_bytes > 0
    assert "initializer_inputs" not in by_id(advice_on(LARGE, runtime="ort-cpu"))


# A session.


@pytest.mark.parametrize("runtime", ["ort-cpu", "ort-cuda"])
def test_advice_lowers_the_figure_of_the_named_runtime(runtime: str) -> None:
    advice = advice_on(CONVNET, runtime=runtime, batch=4096)  # less than half a percent is left out
    figure = Objective.PROCESS if runtime == "ort-cpu" else Objective.DEVICE
    assert advice.figure is figure
    found = by_id(advice)
    assert found["batch"].figure is figure
    assert "half_precision" not in found
    halved = Subject(advice.subject.request, has_half_floats=True)
    assert bytes_of(figure, halved) is None


# Training.


def test_advice_lowers_training_by_its_configuration() -> None:
    advice = advice_on(CONVNET, train=True, basis="tensors", batch=64)
    assert advice.figure is Objective.STEP
    found = by_id(advice)
    assert {"batch", "accumulate_2", "precision_mixed-bf16", "optimizer_sgd"} <= set(found)
    assert {each.figure for each in found.values()} == {Objective.STEP}
    accumulated = found["accumulate_4"]
    recipe = TrainingConfig(accumulate=4)
    again = advice_on(CONVNET, train=True, basis="tensors", batch=16, recipe=recipe)
    assert accumulated.after_bytes == again.before_bytes


@pytest.mark.parametrize(
    ("model", "has_one"),
    [("resnet50.train.onnx", True), ("mlp.onnx", False), ("vgg16.onnx", False)],
)
def test_accumulation_costs_statistics_where_a_batchnormalization_is(
    model: str, has_one: bool
) -> None:
    subject = Subject(question_of(onnx.load(MODELS / model, load_external_data=False), train=True))
    (accumulated,) = accumulation_suggestions(subject.with_batch(2))
    assert ("BatchNormalization" in accumulated.cost) is has_one


@pytest.mark.parametrize("basis", [None, "tensors"])
def test_advice_on_training_lowers_what_the_report_says_it_takes(
    basis: str | None, capsys: Capture
) -> None:
    words = [str(MODELS / "mlp.onnx"), "--train", "--batch", "64"]
    words += [] if basis is None else ["--basis", basis]
    assert main(words) == 0
    said = re.search(r"Takes +([\d.]+ \w+) at batch 64: (.{20})", capsys.readouterr().out)
    assert said is not None
    assert main(["advise", *words]) == 0
    assert re.search(rf"Now +{said[1]} +{said[2]}", capsys.readouterr().out)


def test_advice_keeps_the_given_training_configuration() -> None:
    recipe = TrainingConfig(
        optimizer="sgd",
        precision="bf16",
        checkpoint="sqrt",
        shard="zero3",
        world=2,
        freeze=("kernel",),
        in_place_activations=True,
        optimizer_form="single",
        accumulate=2,
    )
    found = by_id(advice_on(CONVNET, train=True, batch=64, recipe=recipe))
    words = {name.partition("_")[0] for name in found}
    assert words <= {"batch", "resolution", "optimizer"}


def test_checkpoints_have_flops_and_shards_their_devices() -> None:
    layers = "".join(
        f"m{i} = MatMul({'x' if i == 1 else f'a{i - 1}'}, w{i}) a{i} = Tanh(m{i}) "
        for i in range(1, 9)
    )
    weights = ", ".join(f"float[64,64] w{i}" for i in range(1, 9))
    text = f"agraph (float[N,64] x) => (float[N,64] a8) <{weights}> {{ {layers} }}"
    found = by_id(advice_on(text, train=True, basis="tensors", batch=512))
    best = found["checkpoint_best"]
    assert "FLOPs of recomputation" in best.suggestion.cost
    assert best.suggestion.tradeoff is Tradeoff.TIME
    assert found["shard_zero3_8"].after_bytes < found["shard_zero3_2"].after_bytes
    recipe = TrainingConfig(shard="ddp", world=4)
    shards = by_id(advice_on(text, train=True, basis="tensors", batch=2, recipe=recipe))
    assert {name for name in shards if name.startswith("shard")} == {
        "shard_zero1_4",
        "shard_zero2_4",
        "shard_zero3_4",
    }


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        (("a.b.weight", "a.c.weight", "a.d.weight"), ("a.b.*", "a.c.*")),
        (("body.0.w", "head.w"), ("body.*",)),
        (("a[0].w", "b.w"), ("a[[]0].*",)),
        (("w", "v"), ()),
        ((), ()),
    ],
)
def test_checkpoint_patterns_cover_all_but_the_last_part(
    names: tuple[str, ...], patterns: tuple[str, ...]
) -> None:
    assert _all_but_the_last(names) == patterns


# Ranks, and a budget.


def test_suggestions_are_ordered_by_savings_and_save_something() -> None:
    for train in (False, True):
        saved = [
            each.saved_bytes
            for each in advice_on(CONVNET, batch=8, train=train, basis="tensors").proposals
        ]
        assert saved == sorted(saved, reverse=True)
        assert min(saved) > 0


def test_unknown_bytes_have_no_suggestions() -> None:
    advice = advice_on(MYSTERY, budget_bytes=1, batch=4)
    assert advice.before_bytes is None
    assert {each.figure for each in advice.proposals} <= {Objective.WEIGHTS}
    assert advice.plan is not None
    assert advice.plan.is_met is False  # what is known alone is too large


def test_a_met_budget_needs_no_suggestion() -> None:
    plan = advice_on(CONVNET, budget_bytes=10**9, batch=8).plan
    assert plan is not None
    assert (plan.is_met, plan.chosen, plan.singles) == (True, (), ())


def test_one_suggestion_meets_a_budget_the_cheapest_first() -> None:
    own = advice_on(CONVNET, train=True, basis="tensors", batch=64)
    assert own.before_bytes is not None
    plan = advice_on(CONVNET, own.before_bytes * 2 // 3, train=True, basis="tensors", batch=64).plan
    assert plan is not None
    assert plan.is_met
    (chosen,) = plan.chosen
    assert chosen is plan.singles[0]
    assert chosen.suggestion.tradeoff is min(each.suggestion.tradeoff for each in plan.singles)
    largest = next(each for each in plan.singles if each.suggestion.id == "largest_batch")
    number = largest.suggestion.settings["batch"]
    assert isinstance(number, int)
    subject = own.subject
    for batch, fits in ((number, True), (number + 1, False)):
        num_bytes = bytes_of(Objective.STEP, subject.with_batch(batch))
        assert num_bytes is not None
        assert (num_bytes <= plan.budget_bytes) is fits


@pytest.mark.parametrize(
    ("flags", "runtime"),
    [
        ({"train": True}, None),
        ({"train": True, "basis": "tensors"}, None),
        ({}, None),
        ({"runtimes": ("ort-cpu",), "asks_onnxruntime": False}, "ort-cpu"),
    ],
)
def test_the_largest_batch_is_that_of_fit(flags: dict[str, Any], runtime: str | None) -> None:
    own = advice_on(CONVNET, runtime=runtime, batch=30_000, **flags)
    assert own.before_bytes is not None
    request = own.subject.request
    at_1 = bytes_of(own.figure, own.subject.with_batch(1)) or 0
    budget_bytes = at_1 + (own.before_bytes - at_1) * 2 // 7
    setup = FitRequest(memory_bytes=budget_bytes, basis=BASIS_OF[own.figure])
    found = fit((replace(request),), setup).max_batch
    assert found is not None
    advice = advised(request, budget_bytes=budget_bytes, runtime=runtime)
    assert advice.plan is not None
    (largest,) = (each for each in advice.proposals if each.suggestion.id == "largest_batch")
    assert largest.suggestion.settings["batch"] == found.number
    assert largest in advice.plan.singles


def test_a_combination_is_analyzed_together_and_is_minimal() -> None:
    own = advice_on(CONVNET, batch=1, train=True, basis="tensors")
    assert own.before_bytes is not None
    least = min(
        each.after_bytes for each in own.proposals if each.suggestion.tradeoff <= Tradeoff.ACCURACY
    )
    budget_bytes = least - 1
    plan = advice_on(CONVNET, budget_bytes, batch=1, train=True, basis="tensors").plan
    assert plan is not None
    assert plan.is_met
    assert plan.after_bytes == bytes_of(Objective.STEP, followed(own.subject, plan.chosen))
    for dropped in plan.chosen:
        rest = [each for each in plan.chosen if each is not dropped]
        left = bytes_of(Objective.STEP, followed(own.subject, rest))
        assert left is not None
        assert left > budget_bytes
    groups = [each.suggestion.group for each in plan.chosen]
    assert len(groups) == len(set(groups))


def test_half_floats_reach_the_bodies_in_bodies() -> None:
    """The peak, 3 x 997 elements, is in an If of an If."""
    source = """
        nested (bool a, bool b, float[997] x) => (float[997] y) {
            y = If (a) <
                then_branch = outer () => (float[997] o) {
                    o = If (b) <
                        then_branch = inner () => (float[997] i) {
                            sine = Sin (x)
                            cosine = Cos (x)
                            i = Add (sine, cosine)
                        },
                        else_branch = other () => (float[997] j) { j = Identity (x) }
                    >
                },
                else_branch = last () => (float[997] k) { k = Identity (x) }
            >
        }
    """
    subject = Subject(question_of(source))
    whole = bytes_of(Objective.TOTAL, subject)
    half = bytes_of(Objective.TOTAL, replace(subject, has_half_floats=True))
    assert whole is not None
    assert half is not None
    flags_bytes = 2
    assert half - flags_bytes == (whole - flags_bytes) // 2


def test_unneeded_parts_of_a_combination_are_dropped() -> None:
    subject = Subject(question_of(CONVNET, batch=8))
    own = bytes_of(Objective.TOTAL, subject)
    assert own is not None
    suggestions = [
        Suggestion(id=name, group=name, what="", tradeoff=tradeoff, cost="", change=change)
        for name, tradeoff, change in (
            ("half", Tradeoff.ACCURACY, lambda each: replace(each, has_half_floats=True)),
            ("four", Tradeoff.SAMPLES, lambda each: each.with_batch(4)),
            ("one", Tradeoff.SAMPLES, lambda each: each.with_batch(1)),
        )
    ]
    proposals = [
        Proposal(
            suggestion=suggestion,
            figure=Objective.TOTAL,
            before_bytes=own,
            after_bytes=own,
            is_exact=True,
        )
        for suggestion in suggestions
    ]
    batch_one = bytes_of(Objective.TOTAL, subject.with_batch(1))
    assert batch_one is not None
    plan = plan_for(subject, Objective.TOTAL, proposals, batch_one)
    assert [each.suggestion.id for each in plan.chosen] == ["one"]


def test_quantization_can_meet_a_budget_by_estimate() -> None:
    plan = advice_on(LARGE, 14_000).plan
    assert plan is not None
    assert [each.suggestion.id for each in plan.estimates] == [
        "int4_weights",
        "int8_weights",
        "narrower_layer",
    ]


def test_a_budget_that_nothing_meets_reports_the_lowest_figure() -> None:
    plan = advice_on(CONVNET, 1, batch=8).plan
    assert plan is not None
    assert plan.is_met is False
    assert plan.chosen
    assert plan.after_bytes is not None
    assert plan.before_bytes is not None
    assert 1 < plan.after_bytes < plan.before_bytes


# As text and as JSON.


def test_the_text_of_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "net.onnx")
    assert main("advise net.onnx --train --batch 64 --budget 800KiB --basis tensors".split()) == 0
    text = capsys.readouterr().out
    assert_golden(text, "advice_train.txt")
    assert max(map(len, text.splitlines())) <= 100
    session = "--emulate-optimizer --cpu avx512"
    assert main(f"advise net.onnx --batch 64 --budget 1MiB {session}".split()) == 0
    assert_golden(capsys.readouterr().out, "advice_run.txt")


def test_a_suggestion_in_json_has_savings_and_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "net.onnx")
    line = "advise net.onnx gone.onnx --train --batch 64 --budget 800KiB --basis tensors --json"
    assert main(line.split()) == 2
    one, gone = json.loads(capsys.readouterr().out)["models"]
    assert one.keys() == gone.keys()
    assert (one["runtime"], one["figure"]) == (None, "training_peak_bytes")
    assert (one["combinations"], gone["advice"]) == ([], [])
    first = one["advice"][0]
    assert first["saved_bytes"] == first["before_bytes"] - first["after_bytes"]
    assert first["basis"] in {"exact", "estimate"}
    assert set(first["cost"]) == {"price", "text"}
    changes = {each["id"]: each["changes_training"] for each in one["advice"]}
    assert not changes["accumulate_2"]
    assert not changes["precision_mixed-bf16"]
    assert changes["batch"]
    assert changes["optimizer_sgd"]
    assert one["budget"]["is_met"]
    assert set(one["budget"]["follow"]) <= {each["id"] for each in one["advice"]}


@pytest.mark.usefixtures("without_children")
def test_suggestions_that_keep_the_training_the_same_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "net.onnx")
    assert main("advise net.onnx --train --batch 64 --basis tensors".split()) == 0
    same, title, other = capsys.readouterr().out.partition("Advice that changes the training")
    assert title
    assert "Advice that keeps the training the same" in same
    for word in ("accumulate_2", "precision_mixed-bf16"):
        assert f"\n  {word} " in same
    for word in ("accumulate_", "precision_mixed"):
        assert word not in other
    for word in ("lora", "freeze", "optimizer_sgd", "batch", "precision_bf16"):
        assert f"\n  {word} " not in same
    assert "\n  optimizer_sgd " in other
    assert main(["advise", "net.onnx", "--batch", "64"]) == 0
    assert "the training" not in capsys.readouterr().out


def test_adapters_are_no_advice_where_no_layer_is_linear() -> None:
    text = """agraph (float[N,3,11,11] x) => (float[N,5,9,9] y) <float[5,3,3,3] w> {
        y = Conv(x, w)
    }"""
    linear = "agraph (float[N,307] x) => (float[N,503] y) <float[307,503] w> { y = MatMul(x, w) }"
    assert "lora" not in by_id(advice_on(model_of(text), train=True, basis="tensors"))
    assert "lora" in by_id(advice_on(model_of(linear), train=True, basis="tensors"))


def test_a_model_without_a_weight_or_a_batch_has_advice_too() -> None:
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Exp", ["x"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [])],
            [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [])],
        )
    )
    assert set(by_id(advice_on(model))) == {"half_precision"}

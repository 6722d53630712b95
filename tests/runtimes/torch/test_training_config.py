"""What options change of a training step: when gradients are freed, first steps, precisions."""

import pytest
from paths import MODELS
from runtimes.torch.training_steps import (
    CHAIN,
    are_equal,
    categories,
    found_before,
    happenings,
    recipe_of,
    sizes,
    step,
)

import onnxmem
from onnxmem import settings as recipes
from onnxmem.errors import UsageError
from onnxmem.program.program import Category
from onnxmem.runtimes.torch.losses import LOSSES, loss_named
from onnxmem.runtimes.torch.memory import Phase, TrainingMemory
from onnxmem.runtimes.torch.optimizers import FORMS, OPTIMIZERS
from onnxmem.runtimes.torch.precision import PRECISIONS, precision_named
from onnxmem.settings import TrainingConfig

COUNT = 15 + 35


def test_gradients_of_the_previous_step_are_freed_at_the_start() -> None:
    found = step(CHAIN)
    assert not [each for each in happenings(found, Phase.FORWARD) if "gradient" in each]


def test_gradients_may_be_freed_right_before_backward() -> None:
    """Then the forward pass has them too, and the backward pass begins without."""
    start, late = step(CHAIN), step(CHAIN, zero_grad="before-backward")
    assert found_before(late)[-2:] == ["gradient of w", "gradient of v"]
    assert happenings(late, Phase.FORWARD)[-2:] == ["-gradient of w", "-gradient of v"]
    assert late.forward_peak_bytes == start.forward_peak_bytes + 4 * COUNT
    assert late.backward_peak_bytes == start.backward_peak_bytes
    assert late.saved_activation_bytes == start.saved_activation_bytes


def test_gradients_may_be_zeroed_instead_of_freed() -> None:
    """Each new gradient is added to the one that is there, and freed; outputs stay one step's."""
    retained = step(CHAIN, zero_grad="keep")
    assert not [each for each in happenings(retained, Phase.FORWARD) if each.startswith("-grad")]
    assert sizes(retained)["gradient of w"] == [60, 60]  # what is there, and what is added to it
    start = step(CHAIN)
    assert retained.forward_peak_bytes == start.forward_peak_bytes + 4 * COUNT
    assert retained.optimizer_peak_bytes == start.optimizer_peak_bytes
    assert not [label for label in sizes(retained) if "pass before" in label]


def test_a_release_of_pytorch_sets_its_defaults() -> None:
    """One parameter after another, with persistent gradients."""
    old = TrainingConfig().with_fields(torch="1.12", optimizer="momentum")
    assert (old.optimizer_form, old.attention, old.zero_grad) == ("single", "math", "keep")
    assert TrainingConfig().with_fields(torch="1.12", zero_grad="start").zero_grad == "start"
    assert TrainingConfig().with_fields(torch="2.0") == TrainingConfig(torch="2.0")
    assert old.with_fields(optimizer="adam").zero_grad == "keep"


def test_an_unknown_release_is_refused() -> None:
    message = "release of PyTorch '1.5' is not known; choose one of 1.12, 2.0, 2.5, latest"
    with pytest.raises(UsageError, match=message):
        TrainingConfig(torch="1.5")


@pytest.mark.parametrize("optimizer", ["adam", "adam-amsgrad", "adamw", "adamw-amsgrad"])
def test_adam_of_2_0_has_temporaries_for_the_root_and_the_sum_with_eps(optimizer: str) -> None:
    """``_foreach_add`` of eps is not in place there: another copy of all parameters."""
    latest, old = (step(CHAIN, optimizer=optimizer, torch=name) for name in ("2.5", "2.0"))
    assert old.optimizer_peak_bytes == latest.optimizer_peak_bytes + 4 * COUNT
    decayed = step(CHAIN, optimizer=optimizer, torch="2.0", weight_decay=True)
    copies = 1 if optimizer.startswith("adamw") else 2
    assert decayed.optimizer_peak_bytes == latest.optimizer_peak_bytes + copies * 4 * COUNT


def test_the_context_of_a_release_that_loads_all_kernels_at_once() -> None:
    model = MODELS / "mlp.onnx"
    old, new = (
        onnxmem.analyze(model, train=True, recipe=TrainingConfig(torch=name)).request.torch_context
        for name in ("1.12", "2.0")
    )
    assert old.size_bytes > 3 * new.size_bytes
    assert "1.78 GiB" in old.source


@pytest.mark.parametrize("zero_grad", recipes.ZERO_GRADS)
def test_accumulated_gradients_stay(zero_grad: str) -> None:
    """The second pass and later ones have those of before, whenever they are zeroed."""
    found = step(CHAIN, accumulate=2, zero_grad=zero_grad)
    assert are_equal(found, step(CHAIN, accumulate=7))
    assert not [each for each in happenings(found, Phase.FORWARD) if each.startswith("-grad")]
    made = sizes(found)["gradient of w"]
    assert made == [60, 60]  # what is there, and what is added to it
    assert found.optimizer_peak_bytes == step(CHAIN).optimizer_peak_bytes


def test_outputs_of_the_previous_pass_live_until_there_are_new_ones() -> None:
    found = step(CHAIN, accumulate=2)
    assert found_before(found)[-1] == "y of the previous pass"
    assert happenings(found, Phase.FORWARD)[-1] == "-y of the previous pass"
    assert found.forward_peak_bytes == step(CHAIN).forward_peak_bytes + 4 * COUNT + 4 * 14


def test_a_loop_may_keep_the_outputs_of_the_previous_step() -> None:
    """Gradients are freed as before: only the outputs are alive in two steps."""
    plain, keeping = (step(CHAIN, keep_outputs=each) for each in (False, True))
    assert found_before(keeping)[-1] == "y of the previous pass"
    assert happenings(keeping, Phase.FORWARD)[-1] == "-y of the previous pass"
    assert keeping.forward_peak_bytes == plain.forward_peak_bytes + 4 * 14
    assert keeping.backward_peak_bytes == plain.backward_peak_bytes


def test_an_output_that_is_a_part_of_a_tensor_keeps_all_of_it() -> None:
    split = """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[3, 5] x) => (float[3, 2] left, float[3, 5] right)
        <float[5, 7] w> {
            y = MatMul (x, w)
            sizes = Constant <value_ints = [2, 5]> ()
            left, right = Split <axis = 1> (y, sizes)
        }
    """
    plain, keeping = (step(split, keep_outputs=each, outputs=("left",)) for each in (False, True))
    assert keeping.forward_peak_bytes == plain.forward_peak_bytes + 4 * 3 * 7


def test_the_first_step_allocates_the_optimizers_state() -> None:
    """It is there in the optimizer's phase alone."""
    steady, first = (step(CHAIN, optimizer="adam", first_step=each) for each in (False, True))
    state = 8 * COUNT + 2 * 4
    assert steady.optimizer_state_bytes == first.optimizer_state_bytes == state
    assert first.forward_peak_bytes == steady.forward_peak_bytes - state
    assert first.backward_peak_bytes == steady.backward_peak_bytes - state
    assert first.optimizer_peak_bytes == steady.optimizer_peak_bytes
    assert happenings(first, Phase.OPTIMIZER)[:3] == ["+state of w"] * 3
    assert happenings(steady, Phase.OPTIMIZER)[0] == "+adam step"


def first_of(found: TrainingMemory) -> tuple[list[str], list[str], list[str]]:
    """What the first step begins without, what it makes of that, and where, and what it keeps."""
    program = found.replay.program
    absent, made, kept = program.first
    return (
        [program.labels[number] for number in sorted(absent)],
        [f"{program.labels[number]}: {program.phase_at(at - 1)}" for at, number in made],
        [program.labels[number] for number in sorted(kept)],
    )


def test_the_first_step_of_a_process_makes_state_and_gradients() -> None:
    """The state as the optimizer first steps, each gradient where there is none to add it to."""
    of_state = [f"state of {name}" for name in "wv"]
    gradients = ["gradient of w", "gradient of v"]
    made = [f"{label}: backward" for label in of_state]
    assert first_of(step(CHAIN, optimizer="momentum")) == (of_state, made, [])
    found = first_of(step(CHAIN, optimizer="momentum", zero_grad="keep"))
    assert found == ([*of_state, *gradients], made, gradients[::-1])
    late = first_of(step(CHAIN, zero_grad="before-backward"))
    assert late == (gradients, [], [])


def test_masters_exist_before_the_first_step() -> None:
    found = step(CHAIN, optimizer="momentum", precision="fp16-master")
    assert first_of(found)[0] == ["state of w", "state of v"]
    assert found_before(found)[2:4] == ["master of w", "master of v"]


def test_a_gradient_of_another_layout_is_cloned_in_the_first_step() -> None:
    """That of a transposed weight: AccumulateGrad takes none whose strides differ."""
    text = """
        agraph (float[2,3] x) => (float[2,5] y) <float[5,3] w> {
            t = Transpose <perm = [1, 0]> (w)
            y = MatMul (x, t)
        }"""
    absent, made, kept = first_of(step(text, zero_grad="keep", accumulate=1))
    assert absent == ["gradient of w"]
    assert len(made) + len(kept) == 1


@pytest.mark.parametrize(
    ("form", "weight_decay", "blocks"),
    [
        ("foreach", False, [60, 140]),
        ("foreach", True, [60, 140]),
        ("single", False, [60, 140, 140]),
        ("single", True, [60, 140, 140, 140]),
        ("fused", True, []),
    ],
)
def test_blocks_of_each_form_of_a_step(form: str, *, weight_decay: bool, blocks: list[int]) -> None:
    """Adam's temporaries are alive at once, and gone at its end."""
    found = step(CHAIN, optimizer="adam", optimizer_form=form, weight_decay=weight_decay)
    made = sorted(sizes(found).get("adam step", []))
    assert made == blocks
    assert found.optimizer_peak_bytes == sum(
        (4 * (4 * COUNT), 8, 4 * 6, 4 * 14, sum(made))  # weights, gradients, moments, x, y
    )


def test_decay_copies_the_gradients_of_sgd() -> None:
    assert sizes(step(CHAIN, weight_decay=True))["sgd step"] == [60, 140]
    assert "sgd step" not in sizes(step(CHAIN))


@pytest.mark.parametrize("precision", ["fp16-master", "bf16-master"])
def test_master_weights_are_stepped_with_wider_gradients(precision: str) -> None:
    """Weights and gradients of 2 bytes, a master of 4, and in the step 2 more a gradient."""
    found = step(CHAIN, precision=precision)
    assert found.weight_bytes == found.gradient_bytes == 2 * COUNT
    assert found.optimizer_state_bytes == 4 * COUNT
    wider = [label for label in sizes(found) if label.startswith("wider")]
    assert wider == ["wider gradient of w", "wider gradient of v"]
    held = 2 * COUNT + 4 * COUNT + 2 * 6
    assert found.optimizer_peak_bytes >= held + 2 * COUNT + 2 * COUNT
    found_as = categories(found)
    assert found_as["master of w"] is Category.STATE
    assert found_as["wider gradient of w"] is Category.TEMPORARY


def test_mixed_precision_keeps_copies_that_layers_read() -> None:
    found = step(CHAIN, precision="mixed-fp16")
    assert found.weight_bytes == 4 * COUNT
    assert found.gradient_bytes == 4 * COUNT
    assert sizes(found)["copy of w"] == [30]


def test_moments_are_separate_tensors() -> None:
    """Two as large as the parameter, and a counter: an allocator rounds each."""
    assert sizes(step(CHAIN, optimizer="adam"))["state of w"] == [60, 60, 4]
    assert "state of w" not in sizes(step(CHAIN))


def test_shared_state_is_counted_once() -> None:
    assert sizes(step(CHAIN, optimizer="adam8bit"))["shared state"] == [2 * 256 * 4]
    assert "shared state" not in sizes(step(CHAIN, optimizer="adam8bit", freeze=("*",)))


def test_parameters_of_unknown_shape_have_no_state() -> None:
    """A network of none: there is nothing to step."""
    found = step("agraph (float[2,3] x) => (float[2,3] y) { y = Exp(x) }", optimizer="adam")
    assert found.optimizer_state_bytes == 0
    assert found.optimizer_peak_bytes == 4 * 6 + 4 * 6


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": "adm"}, "optimizer 'adm' is not known; choose one of sgd, "),
        ({"optimizer_form": "fast"}, "optimizer form 'fast' is not known; choose one of foreach,"),
        ({"precision": "fp8"}, "precision 'fp8' is not known"),
        ({"loss": "l1"}, "loss 'l1' is not known; choose one of cross-entropy, mse, none"),
        ({"zero_grad": "never"}, "zero-grad 'never' is not known"),
        ({"attention": "flash"}, "attention 'flash' is not known; choose one of fused, math"),
        ({"shard": "fsdp"}, "sharding 'fsdp' is not known"),
        ({"accumulate": 0}, "accumulate 0 is not a positive integer"),
        ({"accumulate": 1.5}, "accumulate 1.5 is not a positive integer"),
        ({"accumulate": True}, "accumulate True is not a positive integer"),
        ({"world": -2}, "world -2 is not a positive integer"),
        ({"lora_rank": 0}, "rank 0 is not a positive integer"),
        (
            {"checkpoint": "most"},
            "checkpoint 'most' is not known; choose none, blocks, blocks=PATTERN, sqrt, every=K",
        ),
    ],
)
def test_an_invalid_training_configuration_is_refused(
    given: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        recipe_of(**given)
    assert str(error.value).startswith(message)


def test_settings_list_the_names_of_the_training_step_in_order() -> None:
    assert tuple(OPTIMIZERS) == recipes.OPTIMIZERS
    assert tuple(PRECISIONS) == recipes.PRECISIONS
    assert tuple(LOSSES) == recipes.LOSSES
    assert FORMS == recipes.OPTIMIZER_FORMS
    assert {TrainingConfig(checkpoint=each).checkpoint for each in ("sqrt", "best", "every=12")}


def test_unknown_names_are_refused_by_the_training_step_too() -> None:
    with pytest.raises(UsageError, match=r"loss 'l1': not known; one of cross-entropy, mse, none"):
        loss_named("l1")
    with pytest.raises(UsageError, match=r"precision 'fp8': not known; one of fp32"):
        precision_named("fp8")

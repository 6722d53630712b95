"""Optimizer state and temporaries, against what torch 2.13.0 was seen to keep."""

import pytest

from onnxmem.errors import UsageError
from onnxmem.training.optimizers import OPTIMIZERS, optimizer_named

SHAPES = ((64, 3, 7, 7), (100,), (1000, 512), (), (1,))
"""Of 521,510 elements in five tensors."""

PROBED_BYTES = {
    "sgd": (0, 0),
    "momentum": (2_086_040, 1_043_020),
    "nesterov": (2_086_040, 1_043_020),
    "rmsprop": (2_086_060, 1_043_040),
    "adagrad": (2_086_060, 1_043_040),
    "adam": (4_172_100, 2_086_060),
    "adamw": (4_172_100, 2_086_060),
    "adafactor": (17_228, 8_624),
}
"""State after one step in float32 and in bfloat16: torch.optim, every tensor of its state."""


@pytest.mark.parametrize("name", PROBED_BYTES)
def test_state_is_what_torch_keeps(name: str) -> None:
    optimizer = optimizer_named(name)
    found = optimizer.state_bytes(SHAPES, 4), optimizer.state_bytes(SHAPES, 2)
    assert found == PROBED_BYTES[name]


@pytest.mark.parametrize(("name", "moments"), [("lion", 1), ("lamb", 2)])
def test_state_by_definition(name: str, moments: int) -> None:
    assert optimizer_named(name).state_bytes(SHAPES, 4) == moments * 4 * 521_510


def test_adam8bit_keeps_bytes_scales_and_small_tensors_in_float32() -> None:
    """9,408 = 64 x 3 x 7 x 7 elements are 37 blocks of 256, and 512,000 are 2,000."""
    large = 2 * (9_408 + 512_000) + 2 * 4 * (37 + 2_000)
    small = 2 * 4 * (100 + 1 + 1)
    tables = 2 * 256 * 4
    assert optimizer_named("adam8bit").state_bytes(SHAPES, 4) == large + small + tables


@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize(
    ("name", "copies"), [("sgd", 0), ("momentum", 0), ("rmsprop", 1), ("adagrad", 2), ("adam", 1)]
)
def test_foreach_optimizers_copy_all_parameters_at_once(
    name: str, copies: int, element_bytes: int
) -> None:
    found = optimizer_named(name).temporary_bytes(SHAPES, element_bytes)
    assert found == copies * element_bytes * 521_510


def test_loops_copy_the_largest_parameter() -> None:
    assert optimizer_named("lion").temporary_bytes(SHAPES, 4) == 2 * 4 * 512_000


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_parameters_take_no_state(name: str) -> None:
    optimizer = optimizer_named(name)
    assert (optimizer.state_bytes((), 4), optimizer.temporary_bytes((), 4)) == (0, 0)
    assert optimizer.formula
    assert optimizer.source


def test_an_unknown_optimizer_is_refused_with_the_known_names() -> None:
    with pytest.raises(UsageError, match=r"optimizer 'adm': not known; one of sgd, .*adam8bit"):
        optimizer_named("adm")

"""Optimizer state and temporaries, compared with traces of torch 2.13.0.

The figures that torch gave are in data/optimizer_state.json, by tools/training/optimizer_probe.py.
"""

import json
from typing import Any

import pytest
from paths import DATA

from onnxmem.errors import UsageError
from onnxmem.runtimes.torch.optimizers import (
    FORMS,
    OPTIMIZERS,
    each,
    in_sequence,
    optimizer_named,
    together,
)
from onnxmem.runtimes.torch.precision import precision_named

PROBED: dict[str, Any] = json.loads((DATA / "optimizer_state.json").read_text(encoding="utf-8"))
PROBED_SHAPES = tuple(tuple(shape) for shape in PROBED["shapes"])
CASES = sorted({(row["optimizer"], row["form"]) for row in PROBED["rows"]})

SHAPES = ((64, 3, 7, 7), (100,), (1000, 512), (), (1,))
"""Of 521,510 elements in five tensors."""
PRIMES = ((7, 3), (31,), (13,))


def probed_rows(name: str, form: str) -> list[dict[str, Any]]:
    return [row for row in PROBED["rows"] if (row["optimizer"], row["form"]) == (name, form)]


@pytest.mark.parametrize(("name", "form"), CASES)
def test_state_and_blocks_at_the_peak_are_torchs(name: str, form: str) -> None:
    """With weight decay and without, in float32 and bfloat16, from first to last and back."""
    optimizer = optimizer_named(name)
    rows = probed_rows(name, form)
    for row in rows:
        shapes = PROBED_SHAPES[::-1] if row["reversed"] else PROBED_SHAPES
        blocks = optimizer.temporaries(
            shapes, row["element_bytes"], form=form, weight_decay=row["weight_decay"]
        )
        assert sorted(blocks) == row["peak_blocks"], row
        assert optimizer.state_bytes(shapes, row["element_bytes"]) == row["state_bytes"], row
    assert len(rows) in {4, 8}


NOT_PROBED = frozenset({"adam8bit"})
"""Their kernels need a GPU; their state is by definition, and tested by hand below."""


def test_every_other_optimizer_is_probed_in_all_its_forms() -> None:
    forms = {
        (name, optimizer.form_used(form))
        for name, optimizer in OPTIMIZERS.items()
        for form in FORMS
    }
    missing = {name for name, _ in forms - set(CASES)}
    assert missing == NOT_PROBED, "run tools/training/optimizer_probe.py, or name it in NOT_PROBED"


@pytest.mark.parametrize(
    ("name", "state_bytes"),
    [
        ("sgd", 0),
        ("momentum", 4 * 521_510),
        ("adam", 2 * 4 * 521_510 + 5 * 4),
        ("adam-amsgrad", 3 * 4 * 521_510 + 5 * 4),
        ("nadam", 2 * 4 * 521_510 + 5 * 8),
        ("asgd", 4 * 521_510 + 5 * 12),
        ("lion", 4 * 521_510),
        ("lamb", 2 * 4 * 521_510),
        ("muon", 4 * 512_000 + 2 * 4 * 9_510 + 4 * 4),
        ("adafactor", 4 * (64 * 3 * 7 * 2 + 100 + 1_512 + 1 + 1) + 5 * 4),
    ],
)
def test_state_by_definition(name: str, state_bytes: int) -> None:
    assert optimizer_named(name).state_bytes(SHAPES, 4) == state_bytes


def test_adam8bit_has_bytes_and_scales_and_small_tensors_in_float32() -> None:
    """9,408 = 64 x 3 x 7 x 7 elements are 37 blocks of 256, and 512,000 are 2,000."""
    large = 2 * (9_408 + 512_000) + 2 * 4 * (37 + 2_000)
    small = 2 * 4 * (100 + 1 + 1)
    tables = 2 * 256 * 4
    assert optimizer_named("adam8bit").state_bytes(SHAPES, 4) == large + small + tables


@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize(
    ("name", "copies", "copies_decayed"),
    [
        ("sgd", 0, 1),
        ("momentum", 0, 1),
        ("rmsprop", 1, 2),
        ("adagrad", 2, 2),
        ("adadelta", 2, 3),
        ("adam", 1, 1),
        ("adamw", 1, 1),
        ("nadam", 1, 2),
    ],
)
def test_foreach_optimizers_copy_all_parameters_at_once(
    name: str, copies: int, copies_decayed: int, element_bytes: int
) -> None:
    """Adam releases the decayed copy of the gradients before it allocates the next."""
    optimizer = optimizer_named(name)
    assert sum(optimizer.temporaries(SHAPES, element_bytes)) == copies * element_bytes * 521_510
    decayed = sum(optimizer.temporaries(SHAPES, element_bytes, weight_decay=True))
    assert decayed == copies_decayed * element_bytes * 521_510


def test_variables_of_a_loop_keep_tensors_of_the_previous_parameter() -> None:
    """Adam has the denominator of the parameter before, a root and a new denominator."""
    adam = optimizer_named("adam")
    assert adam.temporaries(PRIMES, 4, form="single") == (4 * 21, 4 * 31, 4 * 31)
    decayed = adam.temporaries(PRIMES, 4, form="single", weight_decay=True)
    assert decayed == (4 * 21, 4 * 31, 4 * 31, 4 * 31)


def test_lions_loop_keeps_nothing_from_one_parameter_to_the_next() -> None:
    assert optimizer_named("lion").temporaries(PRIMES, 4) == (4 * 31, 4 * 31)


def test_radam_allocates_most_once_it_rectifies() -> None:
    assert optimizer_named("radam").temporaries(PRIMES, 4, form="single") == (4 * 31,) * 5


def test_rprop_has_a_mask_of_one_byte_per_element() -> None:
    blocks = optimizer_named("rprop").temporaries(PRIMES, 4)
    assert blocks == (4 * 21, 4 * 31, 4 * 13, 31, 4 * 31)


def test_muon_iterates_in_bfloat16_and_adamw_steps_other_tensors() -> None:
    """An update, the iterate twice, and two matmuls of 3 x 3; AdamW's vectors take more."""
    muon = optimizer_named("muon")
    matrix = ((7, 3),)
    assert muon.temporaries(matrix, 4) == (4 * 21, 2 * 21, 2 * 9, 2 * 9, 2 * 21)
    assert muon.temporaries(matrix, 2) == (2 * 21, 2 * 21, 2 * 9, 2 * 9, 2 * 21)
    larger = ((31,), (37,), (7, 3))
    assert muon.temporaries(larger, 4, form="single") == (4 * 31, 4 * 37, 4 * 37)
    assert muon.temporaries(larger, 4, form="foreach") == (4 * 31, 4 * 37)
    assert muon.temporaries(larger, 4, form="fused") == (4 * 21, 2 * 21, 2 * 9, 2 * 9, 2 * 21)


@pytest.mark.parametrize(
    ("name", "forms"),
    [
        ("adamw", ("foreach", "single", "fused")),
        ("rmsprop", ("foreach", "single", "foreach")),
        ("adafactor", ("single", "single", "single")),
        ("muon", ("single", "single", "single")),
    ],
)
def test_a_missing_form_falls_back(name: str, forms: tuple[str, ...]) -> None:
    optimizer = optimizer_named(name)
    assert tuple(map(optimizer.form_used, ("foreach", "single", "fused"))) == forms


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_without_parameters_a_step_takes_nothing(name: str) -> None:
    optimizer = optimizer_named(name)
    assert optimizer.state_bytes((), 4) == 0
    for form in ("foreach", "single", "fused"):
        assert optimizer.temporaries((), 4, form=form) == ()
    assert optimizer.formula
    assert optimizer.source


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_scalars_alone_are_stepped(name: str) -> None:
    for form in ("foreach", "single", "fused"):
        assert sum(optimizer_named(name).temporaries(((), (1,)), 4, form=form)) <= 6 * 4


def test_parts_of_a_script_share_variables() -> None:
    script = in_sequence(together("sign"), each("mask:bytes -mask"))
    assert script.peak_blocks(((7,), (5,)), 4, weight_decay=False) == (28, 20, 7)


def test_an_invalid_word_of_a_script_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not a word of a script: 'mask:bits'"):
        each("grad mask:bits")


def test_an_unknown_form_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"form 'fast': not known; one of foreach, single, fused"):
        optimizer_named("sgd").temporaries(SHAPES, 4, form="fast")


def test_an_unknown_optimizer_is_refused_with_the_known_names() -> None:
    with pytest.raises(UsageError, match=r"optimizer 'adm': not known; one of sgd, .*adam8bit"):
        optimizer_named("adm")


@pytest.mark.parametrize(
    ("name", "held", "stepping"),
    [
        ("fp32", 16, 16),
        ("mixed-fp16", 16, 16),
        ("bf16", 8, 8),
        ("fp16-master", 16, 18),
        ("bf16-master", 16, 18),
    ],
)
def test_bytes_per_parameter_with_adam(name: str, held: int, stepping: int) -> None:
    """Weights, gradients, masters and state, outside of the step and in it."""
    precision = precision_named(name)
    shape = (1_000,)
    state_bytes = optimizer_named("adam").state_of(shape, precision.stepped_bits // 8) - 4
    bits = precision.weight_bits + precision.master_bits
    always_bytes = bits // 8 * 1_000 + state_bytes
    assert always_bytes + precision.weight_bits // 8 * 1_000 == held * 1_000
    assert always_bytes + precision.stepped_bits // 8 * 1_000 == stepping * 1_000

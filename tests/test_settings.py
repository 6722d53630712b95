"""What is asked makes sense, or is refused before anything is read."""

from collections.abc import Mapping

import pytest

from onnxmem import analyze
from onnxmem.errors import UsageError


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (
            {"optimizer": "nope"},
            (
                "optimizer 'nope' is not known; choose one of sgd, momentum, nesterov, rmsprop, "
                "adagrad, adam, adamw, lion, lamb, adafactor, adam8bit"
            ),
        ),
        (
            {"precision": "fp7"},
            "precision 'fp7' is not known; choose one of fp32, mixed-fp16, mixed-bf16, bf16",
        ),
        ({"loss": "l3"}, "loss 'l3' is not known; choose one of cross-entropy, mse, none"),
        ({"batch": "3"}, "'3' is no whole number; a batch, a dim and a budget are"),
        ({"batch": True}, "True is no whole number; a batch, a dim and a budget are"),
        ({"dims": {"N": 2.0}}, "2.0 is no whole number; a batch, a dim and a budget are"),
        ({"shapes": {"x": (1, 2.5)}}, "2.5 is no whole number; a batch, a dim and a budget are"),
        ({"budget_bytes": -1}, "the budget is -1 bytes; a budget is a positive size"),
    ],
)
def test_a_question_without_sense_is_refused(asked: Mapping[str, object], text: str) -> None:
    with pytest.raises(UsageError) as refused:
        analyze("no such file", **asked)  # type: ignore[arg-type]
    assert str(refused.value) == text

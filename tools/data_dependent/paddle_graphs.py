"""Paddle layers by paddle2onnx: a selection of rows."""

from collections.abc import Callable
from typing import Any, Final

import paddle
from cases import Case, Input
from paddle.static import InputSpec

BY: Final = "paddle.onnx.export (paddle2onnx), opset 16"


class Chosen(paddle.nn.Layer):
    """The rows that a layer scores above zero, and where they were."""

    def __init__(self) -> None:
        super().__init__()
        self.score = paddle.nn.Linear(12, 1)
        self.mix = paddle.nn.Linear(12, 20)

    def forward(self, x: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
        found = paddle.nonzero(self.score(x)[:, 0] > 0)
        rows = paddle.gather(x, found.squeeze(1))
        return paddle.nn.functional.relu(self.mix(rows)), found


def converted(build: Callable[[], Any], spec: InputSpec) -> Callable[[str], None]:
    """Exports a layer."""

    def export(path: str) -> None:
        paddle.seed(0)
        layer = build()
        layer.eval()
        paddle.onnx.export(layer, path.removesuffix(".onnx"), input_spec=[spec], opset_version=16)

    return export


CASES: Final = {
    "paddle_rows": Case(
        converted(Chosen, InputSpec([30, 12], "float32", "x")), BY, {"x": Input((30, 12), 0.2, 2)}
    ),
}

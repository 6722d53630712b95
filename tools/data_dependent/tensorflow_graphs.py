"""TensorFlow functions by tf2onnx: suppression, masks, distinct values, ragged rows, loops."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import tf2onnx
from cases import Case, Input

BY: Final = "tf2onnx.convert.from_function, opset 17"
SEED: Final = 20_240_229


def converted(
    build: Callable[[], Callable[..., Any]], *specs: tf.TensorSpec
) -> Callable[[str], None]:
    """Exports a function of tensors."""

    def export(path: str) -> None:
        function = tf.function(build(), input_signature=specs)
        tf2onnx.convert.from_function(function, input_signature=specs, opset=17, output_path=path)

    return export


def _weight(*shape: int) -> npt.NDArray[np.float32]:
    """A constant of the graph: a tensor of TensorFlow would become an input."""
    draws = np.random.default_rng(SEED)
    return draws.normal(0, 0.3, shape).astype(np.float32)


def _anchors(image: tf.Tensor, filters: tf.Tensor, head: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Boxes [n, 4] and scores [n, 3] of one image."""
    features = tf.nn.relu(tf.nn.conv2d(image, filters, 4, "SAME"))
    found = tf.reshape(tf.nn.conv2d(features, head, 1, "SAME"), [-1, 7])
    corners = tf.sigmoid(found[:, :2])
    return tf.concat([corners, corners + tf.sigmoid(found[:, 2:4])], 1), tf.sigmoid(found[:, 4:])


def combined() -> Callable[..., Any]:
    filters, head = _weight(3, 3, 3, 16), _weight(1, 1, 16, 7)

    def run(image: tf.Tensor) -> tuple[tf.Tensor, ...]:
        boxes, scores = _anchors(image, filters, head)
        return tuple(
            tf.image.combined_non_max_suppression(
                boxes[None, :, None], scores[None], 10, 20, 0.5, 0.5
            )
        )

    return run


def suppressed() -> Callable[..., Any]:
    filters, head, more = _weight(3, 3, 3, 16), _weight(1, 1, 16, 7), _weight(4, 6)

    def run(image: tf.Tensor) -> tuple[tf.Tensor, ...]:
        boxes, scores = _anchors(image, filters, head)
        best = tf.reduce_max(scores, 1)
        kept = tf.where(best > 0.5)[:, 0]
        boxes, best = tf.gather(boxes, kept), tf.gather(best, kept)
        picked = tf.image.non_max_suppression(boxes, best, 15, 0.6)
        chosen = tf.gather(boxes, picked)
        return chosen, tf.nn.relu(tf.matmul(chosen, more)), tf.gather(best, picked)

    return run


def masked() -> Callable[..., Any]:
    weight = _weight(12, 20)

    def run(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        rows = tf.boolean_mask(x, tf.reduce_sum(x, 1) > 0)
        y = tf.nn.relu(tf.matmul(rows, weight))
        values = tf.boolean_mask(y, y > 0.5)
        return y, values, tf.where(x > 1)

    return run


def distinct() -> Callable[..., Any]:
    table, weight = _weight(50, 8), _weight(8, 8)

    def run(ids: tf.Tensor) -> tuple[tf.Tensor, ...]:
        found, back = tf.unique(ids)
        rows = tf.nn.relu(tf.matmul(tf.gather(table, found), weight))
        whole = tf.gather(rows, back)
        return tf.reduce_mean(whole, 0), rows

    return run


def ragged() -> Callable[..., Any]:
    table, weight = _weight(50, 8), _weight(8, 4)

    def run(lengths: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        mask = tf.sequence_mask(lengths, 16)
        rows = tf.matmul(tf.gather(table, tf.boolean_mask(ids, mask)), weight)
        longest = tf.reduce_max(lengths)
        padded = tf.scatter_nd(
            tf.cast(tf.where(mask), tf.int32), rows, tf.constant([6, 16, 4], tf.int32)
        )
        return padded[:, :longest]

    return run


def decoding() -> Callable[..., Any]:
    table, weight, head = _weight(12, 16), _weight(16, 16), _weight(16, 12)

    def run(state: tf.Tensor) -> tf.Tensor:
        def going(step: tf.Tensor, tokens: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
            return tf.logical_and(step < 18, tokens[-1] != 5)

        def once(step: tf.Tensor, tokens: tf.Tensor, h: tf.Tensor) -> tuple[tf.Tensor, ...]:
            h = tf.tanh(tf.matmul(h + tf.gather(table, tokens[-1:]), weight))
            token = tf.argmax(tf.matmul(h, head), 1, tf.int32)
            return step + 1, tf.concat([tokens, token], 0), tf.ensure_shape(h, [1, 16])

        shapes = (tf.TensorShape([]), tf.TensorShape([None]), tf.TensorShape([1, 16]))
        first = (tf.constant(0), tf.constant([0]), state)
        return tf.while_loop(going, once, first, shape_invariants=shapes)[1]

    return run


def _spec(*shape: int, dtype: tf.DType = tf.float32, name: str = "x") -> tf.TensorSpec:
    return tf.TensorSpec(shape, dtype, name=name)


IMAGE: Final = {"image": Input((1, 32, 32, 3), 0.1, 2)}
CASES: Final = {
    "tf_combined_nms": Case(converted(combined, _spec(1, 32, 32, 3, name="image")), BY, IMAGE),
    "tf_nms": Case(converted(suppressed, _spec(1, 32, 32, 3, name="image")), BY, IMAGE),
    "tf_boolean_mask": Case(converted(masked, _spec(40, 12)), BY, {"x": Input((40, 12), 0.2, 2)}),
    "tf_unique": Case(
        converted(distinct, _spec(64, dtype=tf.int32, name="ids")),
        BY,
        {"ids": Input((64,), 0, 49, "int32")},
    ),
    "tf_ragged": Case(
        converted(
            ragged,
            _spec(6, dtype=tf.int32, name="lengths"),
            _spec(6, 16, dtype=tf.int32, name="ids"),
        ),
        BY,
        {"lengths": Input((6,), 1, 16, "int32"), "ids": Input((6, 16), 0, 49, "int32")},
    ),
    "tf_decoding": Case(
        converted(decoding, _spec(1, 16, name="state")), BY, {"state": Input((1, 16), 0.1, 4)}
    ),
}

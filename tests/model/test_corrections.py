"""Dims that onnxruntime gives an output and onnx does not infer: windows of pools, NonZero."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import graph_of
from onnx import TensorProto, helper

from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile

VERSIONS = [
    ("MaxPool", 8),
    ("MaxPool", 10),
    ("MaxPool", 11),
    ("MaxPool", 12),
    ("MaxPool", 22),
    ("AveragePool", 10),
    ("AveragePool", 11),
    ("AveragePool", 19),
    ("AveragePool", 22),
    ("LpPool", 18),
    ("LpPool", 22),
]
HAS_CEIL_MODE = 10
HAS_DILATIONS = {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}
POOLS = 150


@dataclass(frozen=True)
class Axis:
    """A window over one axis of an image."""

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    behind: int

    def fits(self, padding: str) -> bool:
        """Whether onnxruntime runs it."""
        given = self.before + self.behind if padding == "NOTSET" else 0
        if padding.startswith("SAME"):
            if self.kernel < self.stride:
                return False
            given = (-(-self.size // self.stride) - 1) * self.stride + self.kernel - self.size
        return self.size + given > (self.kernel - 1) * self.dilation


def drawn_axis(draws: Random, *, is_dilated: bool) -> Axis:
    kernel = draws.randint(1, 5)
    return Axis(
        draws.randint(1, 14),
        kernel,
        draws.randint(1, 6),
        draws.randint(1, 3) if is_dilated else 1,
        draws.randrange(kernel),
        draws.randrange(kernel),
    )


def drawn_pools(op_type: str, opset: int) -> Iterator[tuple[onnx.NodeProto, tuple[int, ...]]]:
    """Pools of images of [H, W], and these dims."""
    draws, made = Random(f"{op_type} {opset}"), 0  # noqa: S311 - not cryptography
    while made < POOLS:
        can_dilate = opset >= HAS_DILATIONS[op_type]
        axes = [drawn_axis(draws, is_dilated=can_dilate) for _ in range(2)]
        padding = draws.choice(("NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
        if not all(axis.fits(padding) for axis in axes):
            continue
        given: dict[str, Any] = {"strides": [axis.stride for axis in axes]}
        if padding == "NOTSET":
            given["pads"] = [*(axis.before for axis in axes), *(axis.behind for axis in axes)]
        if can_dilate:
            given["dilations"] = [axis.dilation for axis in axes]
        if opset >= HAS_CEIL_MODE:
            given["ceil_mode"] = int(draws.random() < 0.8)
        kernel = [axis.kernel for axis in axes]
        yield (
            helper.make_node(
                op_type, [f"x{made}"], [f"y{made}"], kernel_shape=kernel, auto_pad=padding, **given
            ),
            tuple(axis.size for axis in axes),
        )
        made += 1


def pools_model(op_type: str, opset: int) -> onnx.ModelProto:
    pools = list(drawn_pools(op_type, opset))
    images = [
        helper.make_tensor_value_info(f"x{index}", TensorProto.FLOAT, (1, 1, *dims))
        for index, (_, dims) in enumerate(pools)
    ]
    results = [
        helper.make_tensor_value_info(f"y{index}", TensorProto.FLOAT, None)
        for index in range(len(pools))
    ]
    graph = helper.make_graph([node for node, _ in pools], "pools", images, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize(("op_type", "opset"), VERSIONS)
def test_the_windows_of_pools_are_those_of_onnxruntime(op_type: str, opset: int) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = pools_model(op_type, opset)
    options = ort.SessionOptions()
    options.log_severity_level = 4  # it warns of each shape that onnx has inferred otherwise
    session = ort.InferenceSession(model.SerializeToString(), options)
    feeds = {
        value.name: np.zeros([dim.dim_value for dim in value.type.tensor_type.shape.dim], "f")
        for value in model.graph.input
    }
    ran = {f"y{index}": array.shape for index, array in enumerate(session.run(None, feeds))}
    tensors = build(prepare(ModelFile("<text>", model, 0)), Request()).graph.tensors
    assert {name: tensors[name].shape for name in ran} == ran


CEIL = "kernel_shape = [3, 3], strides = [3, 3], pads = [1, 1, 1, 1], ceil_mode = 1"
"""Over 11 elements: windows start at -1, 2, 5, 8, and one at 11 would lie in the padding."""


def test_what_follows_a_pool_has_its_windows() -> None:
    graph = graph_of(
        f"""agraph (float[N,5,H,11] x, bool is_wide) => (y) <float[7,5,1,1] w> {{
            a = MaxPool <{CEIL}> (x)
            b = If (is_wide) <
                then_branch = wide () => (t) {{ t = AveragePool <{CEIL}> (x) }},
                else_branch = narrow () => (e) {{ e = Relu(a) }}>
            c = Conv(b, w)
            y = AveragePool <{CEIL}> (c)
        }}""",
        Request(batch=2, dims={"H": 10}),
    )
    shapes = {name: graph.tensors[name].shape for name in "abcy"}
    assert shapes == {"a": (2, 5, 4, 4), "b": (2, 5, 4, 4), "c": (2, 7, 4, 4), "y": (2, 7, 2, 2)}


def test_windows_of_another_batch_than_that_of_the_file() -> None:
    graph = graph_of(
        f"""agraph (float[2,5,11,11] x) => (y) <int64[2] s = {{2, 80}}> {{
            a = MaxPool <{CEIL}> (x)
            y = Reshape(a, s)
        }}""",
        Request(batch=3),
    )
    assert graph.tensors["a"].shape == (3, 5, 4, 4)
    assert graph.tensors["y"].shape == (3, 80)


def test_dilated_windows_that_do_not_fit_are_none() -> None:
    graph = graph_of("""agraph (float[1,1,1] x) => (y) {
        y = MaxPool <kernel_shape = [2], strides = [2], dilations = [2], ceil_mode = 1> (x)
    }""")
    assert graph.tensors["y"].shape == (1, 1, 0)


@pytest.mark.parametrize("given", ["strides = [0, 1]", "kernel_shape = [3]", "dilations = [2]"])
def test_attributes_that_do_not_fit_correct_nothing(given: str) -> None:
    kernel = "" if given.startswith("kernel") else "kernel_shape = [3, 3],"
    graph = graph_of(f"""agraph (float[1,1,5,5] x) => (y) {{
        y = MaxPool <{kernel} {given}, ceil_mode = 1> (x)
    }}""")
    assert graph.tensors["y"].shape is None


@pytest.mark.parametrize("inner", [False, True], ids=["graph", "branch"])
def test_a_scalar_is_one_element_of_nonzero(*, inner: bool) -> None:
    """So what follows it has a row, as in a run of onnxruntime: [1, 0] or [1, 1]."""
    chosen = "s = Abs(x) i = NonZero(s) t = Transpose <perm = [1, 0]> (i)"
    text = f"agraph (float x, float[3] z) => (t, j) {{ {chosen} j = NonZero(z) }}"
    if inner:
        text = f"""agraph (float x, float[3] z, bool b) => (t, j) {{
            t = If (b) <then_branch = one () => (t) {{ {chosen} }},
                        else_branch = two () => (e) {{ o = NonZero(x) e = Transpose(o) }}>
            j = NonZero(z)
        }}"""
    tensors = graph_of(text).tensors
    assert tensors["t"].shape is not None
    assert tensors["t"].shape[-1] == 1
    assert tensors["j"].shape is not None
    assert tensors["j"].shape[0] == 1

"""What onnxruntime's process takes: predicted from the file, measured in processes of their own."""

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import model_of
from onnx import numpy_helper
from paths import MODELS

from onnxmem.measuring.measurement import Measurement
from onnxmem.measuring.measuring import measure
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import load
from onnxmem.runtimes.from_settings import predict
from onnxmem.runtimes.onnxruntime.memory import SessionRequest
from onnxmem.runtimes.onnxruntime.process.baselines import baseline_of

MIB = 1 << 20
NAMES = (
    *("alexnet", "bert_base", "convnext_tiny", "densenet121", "efficientnet_b0", "gpt2"),
    *("inception_v3", "resnet50", "smollm_cached", "tinyllama.int4", "unet", "vgg16"),
    *("vit_tiny", "whisper_tiny_encoder"),
)
"""Image and text models, weights packed and folded, one of them quantized."""

pytestmark = pytest.mark.measure

TWO_PRODUCTS = """agraph (float[1, 4096] x) => (float[1, 4099] z)
    <float[4096, 4096] v, float[4096, 4099] w> {
        [a] y = MatMul(x, v)
        [b] z = MatMul(y, w)
    }"""


@pytest.fixture(autouse=True)
def _skips_elsewhere() -> None:
    pytest.importorskip("onnxruntime")
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the high-water mark of a process is Linux's")


@pytest.mark.parametrize("is_external", [pytest.param(False, marks=pytest.mark.slow), True])
def test_weights_in_the_file_are_resident_twice_and_external_ones_beside_packed_copies(
    tmp_path: Path, *, is_external: bool
) -> None:
    proto = model_of(TWO_PRODUCTS)
    for tensor in proto.graph.initializer:
        values = np.arange(math.prod(tensor.dims), dtype=np.float32).reshape(tuple(tensor.dims))
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=is_external, location="weights.bin")
    pairs = compared(path, 1)
    assert pairs["load"][1] > 128 * MIB
    for figure, (predicted, measured) in pairs.items():
        assert predicted == pytest.approx(measured, rel=0.05), figure


@pytest.mark.parametrize(
    "batch", [pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.long)]
)
def test_nine_of_ten_figures_over_64_mib_are_predicted_within_10_percent(batch: int) -> None:
    errors: dict[str, dict[str, float]] = {"load": {}, "process": {}}
    for name in NAMES:
        for figure, (predicted, measured) in compared(MODELS / f"{name}.onnx", batch).items():
            if measured > 64 * MIB:
                errors[figure][name] = 100 * (predicted / measured - 1)
    for figure, found in errors.items():
        assert len(found) >= 8, (figure, found)
        assert sum(abs(error) <= 10 for error in found.values()) >= 0.9 * len(found), found
        assert all(abs(error) <= 25 for error in found.values()), (figure, found)


def compared(path: Path, batch: int) -> dict[str, tuple[int, int]]:
    """The peak of loading and the process after three inferences, each predicted and measured.

    The process before the load is the measured one, which has imported more than a user's.
    """
    request, file = Request(batch=batch), load(path)
    found = measure(path, request)
    assert isinstance(found, Measurement), found
    foretold = predict(file, request, SessionRequest())
    graph = build(prepare(file), request).graph
    feed_bytes = sum(graph.tensors[name].size_bytes or 0 for name in graph.inputs)
    sizes = (
        *(foretold.load_peak_bytes, foretold.process_bytes),
        *(found.load_peak_bytes, found.process_steady_bytes, found.process_baseline_bytes),
    )
    load_peak, process, load_measured, process_measured, before = map(known, sizes)
    process += before - feed_bytes - baseline_of(foretold.graph_optimizer).process_bytes
    return {"load": (load_peak, load_measured), "process": (process, process_measured)}


def known(size_bytes: int | None) -> int:
    assert size_bytes is not None
    return size_bytes

"""What the ``.ort`` format of a model saves: the process with either file, and while it loads.

Usage: python tools/onnxruntime/ort_format.py [MODEL...]

Each model of ``models/`` is given random weights in its file, converted by onnxruntime's own tool
(``onnxruntime.tools.convert_onnx_models_to_ort --optimization_style Fixed``), and both are run
three times in a process of their own. Sizes are in MiB.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

MODELS = Path(__file__).resolve().parents[2] / "models"
NAMES = ("resnet50", "bert_base", "densenet121", "gpt2", "vgg16")
RUN = """
import sys
import numpy as np
import onnxruntime as ort

def now(key):
    lines = open("/proc/self/status")
    return int(next(line for line in lines if line.startswith(key + ":")).split()[1]) // 1024

options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
high = now("VmHWM")
types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
fed = {}
for each in session.get_inputs():
    dims = [d if isinstance(d, int) else 16 if axis else 1 for axis, d in enumerate(each.shape)]
    fed[each.name] = np.ones(dims, types[each.type])
for _ in range(3):
    session.run(None, fed)
print(high, now("VmRSS"))
"""


def main() -> None:
    """Print a row for each model."""
    print("| model | .onnx | .ort | .onnx while it loads | .ort |\n|---|---|---|---|---|")
    for name in sys.argv[1:] or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"{name}.onnx")
            onnx.save(filled(onnx.load(MODELS / path.name, load_external_data=False)), path)
            tool = ["-m", "onnxruntime.tools.convert_onnx_models_to_ort", str(path)]
            python([*tool, "--optimization_style", "Fixed"])
            high, steady = taken(path)
            ort_high, ort_steady = taken(path.with_suffix(".ort"))
        print(f"| {name} | {steady} | {ort_steady} | {high} | {ort_high} |", flush=True)


def filled(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with random weights where its files lack them."""
    draw = np.random.default_rng(0)
    for tensor in tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            values = draw.random(int(np.prod(tensor.dims)), dtype=np.float32) / 10 + 0.01
            values = values.astype(dtype).reshape(tuple(tensor.dims))
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return model


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Weights, and constants of nodes."""
    yield from model.graph.initializer
    for node in model.graph.node:
        yield from (each.t for each in node.attribute if each.HasField("t"))


def taken(path: Path) -> tuple[int, int]:
    """The most while the session loads, and after three runs."""
    high, steady = python(["-c", RUN, str(path)]).split()
    return int(high), int(steady)


def python(words: list[str]) -> str:
    """What a process of Python prints."""
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603


if __name__ == "__main__":
    main()

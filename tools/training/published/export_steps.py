"""The networks of `steps.csv` in training mode as ONNX files, their weights left out.

    PYTHONPATH=tools python tools/training/published/export_steps.py FOLDER [NETWORK ...]

Needs what `tools/training/requirements.txt` names, torchvision and transformers. Where the code of
a network has changed since, `steps.csv` names the release of its library (`code`).
"""

import gzip
import io
import sys
import warnings
from pathlib import Path

import onnx
import torch
from networks import NETWORKS, Published
from stripping import drop_annotations, strip_weights


def exported(network: Published) -> bytes:
    """The file by the script exporter, the batch symbolic, and the sequence where there is one."""
    file = io.BytesIO()
    names = [f"x{index}" for index, _ in enumerate(network.inputs())]
    dims = dict(enumerate(network.dynamic))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own internals
        torch.onnx.export(
            network.build().train(),
            network.inputs(),
            file,  # type: ignore[arg-type]  # the stub knows paths alone
            input_names=names,
            output_names=["out"],
            dynamic_axes=dict.fromkeys((*names, "out"), dims),
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
            dynamo=False,
        )
    model = onnx.load_from_string(file.getvalue())
    drop_annotations(model)
    strip_weights(model, "absent.bin")
    data: bytes = model.SerializeToString()
    return data


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or NETWORKS:
        data = gzip.compress(exported(NETWORKS[name]), mtime=0)
        (target / f"{name}.onnx.gz").write_bytes(data)
        print(f"{name}: {len(data)} bytes", flush=True)

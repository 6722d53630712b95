"""The networks of `steps.csv` in training mode as ONNX files, their weights left out.

    PYTHONPATH=tools python tools/training/published/export_steps.py FOLDER [NETWORK ...]

Needs what `tools/training/requirements.txt` names, torchvision and transformers. Where the code of
a network has changed since, `steps.csv` names the release of its library (`code`).
"""

import gzip
import sys
from pathlib import Path

from networks import NETWORKS, Published
from training.published.training_file import training_file


def exported(network: Published) -> bytes:
    """The file, the batch symbolic, and the sequence where there is one."""
    inputs = network.inputs()
    names = [f"x{index}" for index, _ in enumerate(inputs)]
    return training_file(network.build(), inputs, names, dict(enumerate(network.dynamic)))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or NETWORKS:
        data = gzip.compress(exported(NETWORKS[name]), mtime=0)
        (target / f"{name}.onnx.gz").write_bytes(data)
        print(f"{name}: {len(data)} bytes", flush=True)

"""The networks of `brackets.csv` in training mode as ONNX files, by timm, their weights left out.

    PYTHONPATH=tools python tools/training/published/export_timm.py FOLDER [NETWORK ...]

Needs what `tools/training/requirements.txt` names, torchvision and timm. Attention is written out:
2022 had no fused one. A network whose number of parameters is no longer the published one has
changed since and is left out, with a line that says so; one whose code changed otherwise is not
seen.
"""

import csv
import os
import sys
from pathlib import Path

os.environ["TIMM_FUSED_ATTN"] = "0"

import timm
import torch
from torch import nn
from training.published.training_file import training_file

DATA = Path(__file__).with_name("brackets.csv")
EXPORT_BATCH = 2


def networks() -> dict[str, tuple[int, float]]:
    """The image's size and the millions of parameters of each network."""
    with DATA.open(encoding="utf-8") as file:
        return {
            row["network"]: (int(row["image_size"]), float(row["params_millions"]))
            for row in csv.DictReader(file)
        }


def exported(module: nn.Module, image_size: int) -> bytes:
    """The file, the batch symbolic."""
    images = torch.zeros(EXPORT_BATCH, 3, image_size, image_size)
    return training_file(module, (images,), ["x"], {0: "batch"})


def write(folder: Path, name: str) -> str:
    """Export one network; what became of it."""
    image_size, published_millions = networks()[name]
    module = timm.create_model(name).train()
    millions = sum(each.numel() for each in module.parameters()) / 1e6
    if abs(millions - published_millions) >= 0.01:  # noqa: PLR2004 - as rounded there
        return f"{name}: left out, {millions:.2f} million parameters, not {published_millions}"
    (folder / f"{name}.onnx").write_bytes(exported(module, image_size))
    return f"{name}: written"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for each in sys.argv[2:] or networks():
        print(write(target, each), flush=True)

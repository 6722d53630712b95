"""Counted steps of networks that are drawn from timm by chance, and their files.

    export PYTHONPATH=tools:tools/training:.
    python tools/training/timm_steps.py draw 64
    python tools/training/timm_steps.py measure FOLDER [NETWORK ...]

Needs what `tools/training/requirements.txt` names, torchvision and timm. `draw` prints names: of
timm's own list, shuffled by a seed, those with fewer than 30 million parameters and images of at
most 256 x 256, less the networks that `published/` holds. `measure` writes each network's file to a
folder and its peaks to `timm_steps.csv`: batch 4, SGD with momentum, cross entropy, attention as
the network writes it, in float32 and under bfloat16 autocast.
"""

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random

os.environ["TIMM_FUSED_ATTN"] = "0"

import timm
import torch
from autocast_truth import cuda_lists
from published.export_timm import exported
from settings import Network, Settings
from step import measure

from onnxmem.torch.measuring import WithoutData, copy_of

DATA = Path(__file__).with_name("timm_steps.csv")
KNOWN = Path(__file__).parent / "published" / "brackets.csv"
SEED = 30
BATCH = 4
MOST_PARAMETERS, MOST_PIXELS = 30_000_000, 256
MOST_SECONDS = 600
FIELDS = ("network", "image_size", "fp32_peak_bytes", "mixed_bf16_peak_bytes", "error")


def drawn(count: int) -> Iterator[str]:
    """Names in the order of the draw; those that timm cannot build without data are left out."""
    with KNOWN.open(encoding="utf-8") as file:
        known = {row["network"] for row in csv.DictReader(file)}
    names = [name for name in timm.list_models() if name not in known]
    Random(SEED).shuffle(names)  # noqa: S311 - a draw that can be repeated
    for name in names:
        if count == 0:
            return
        if _is_small(name):
            count -= 1
            yield name


def _is_small(name: str) -> bool:
    if image_size(name) > MOST_PIXELS:
        return False
    try:
        with torch.device("meta"):
            module = timm.create_model(name)
    except Exception:  # noqa: BLE001 - a network that needs data to be built
        return False
    return sum(each.numel() for each in module.parameters()) < MOST_PARAMETERS


def image_size(name: str) -> int:
    """The side of the images that a network is made for."""
    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    return max(config.input_size[1:]) if config is not None else 224


def row_of(folder: Path, name: str) -> dict[str, object]:
    """The peaks of one network, whose file is written."""
    size = image_size(name)
    torch.manual_seed(0)
    module = timm.create_model(name).train()
    (folder / f"{name}.onnx").write_bytes(exported(module, size))
    network = Network(
        name,
        lambda: copy_of(module, WithoutData()),  # under fake tensors timm cannot build them all
        lambda batch: (torch.zeros(batch, 3, size, size),),
        (BATCH, BATCH),
    )
    row: dict[str, object] = {"network": name, "image_size": size}
    for precision in ("fp32", "mixed_bf16"):
        is_mixed = precision != "fp32"
        settings = Settings(optimizer="momentum", autocast=is_mixed)
        with cuda_lists() if is_mixed else nullcontext():
            row[f"{precision}_peak_bytes"] = _peak_bytes(network, settings)
    return row


def _peak_bytes(network: Network, settings: Settings) -> int:
    return measure(network, BATCH, settings)["peak_bytes"]


def write(folder: Path, names: list[str]) -> None:
    """Each network in a process of its own, with a limit of time; its row is added to the table."""
    folder.mkdir(parents=True, exist_ok=True)
    is_new = not DATA.exists()
    with DATA.open("a", encoding="utf-8", newline="") as table:
        writer = csv.DictWriter(table, FIELDS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        for name in names:
            command = [sys.executable, __file__, "row", str(folder), name]
            try:
                run = subprocess.run(  # noqa: S603 - this very file
                    command, capture_output=True, text=True, timeout=MOST_SECONDS, check=False
                )
                lines = run.stdout.splitlines() if run.returncode == 0 else []
                error = (run.stderr.splitlines() or [""])[-1][:100]
            except subprocess.TimeoutExpired:
                lines, error = [], f"more than {MOST_SECONDS} s"
            found = lines[-1].split(",") if lines else [name, image_size(name), "", ""]
            writer.writerow(dict(zip(FIELDS, [*found, "" if lines else error], strict=True)))
            table.flush()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["draw", count]:
            for each in drawn(int(count)):
                print(each, flush=True)
        case ["row", target, name]:
            print(*row_of(Path(target), name).values(), sep=",")
        case ["measure", target, *names]:
            write(Path(target), names)
        case _:
            sys.exit(__doc__)

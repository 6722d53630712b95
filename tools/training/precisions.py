"""Measure networks in float32, under bfloat16 autocast, and with every repeated block checkpointed.

    PYTHONPATH=tools:. python tools/training/precisions.py

writes tests/data/training_precisions.json.xz, with each network's file by two exporters. Rules were
derived on the networks of ``precision_networks`` and ``more_networks``. Those of
``unseen_networks``, then of ``fresh_networks``, and then of ``common_images`` and
``common_sequences``, were written and measured when the rules were frozen. The last are in two
halves by a hash of their names, and have files by three exporters.
"""

import argparse
import base64
import hashlib
import json
import lzma
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import common_images
import common_sequences
import fresh_networks
import more_networks
import precision_networks
import torch
import unseen_networks
from autocast_truth import TERMS, cuda_lists
from exporting_steps import ExportFailureError, export
from settings import Network, Settings
from step import measure

FILE = Path(__file__).parents[2] / "tests" / "data" / "training_precisions.json.xz"
OPSET = 17
GROUPS = ("seen", "unseen", "fresh", "worked", "apart")
_HALVES = ("worked", "apart")


def _blocks(network: Network, class_name: str) -> tuple[str, ...]:
    with torch.device("meta"):
        named = list(network.build().named_modules())
    return tuple(name for name, module in named if type(module).__name__ == class_name)


def _rows(network: Network, block: str | None) -> Iterator[dict[str, Any]]:
    for batch in network.batches:
        for autocast in (False, True):
            settings = Settings(optimizer="adam", autocast=autocast, attention="fused")
            with cuda_lists() if autocast else nullcontext():
                figures = measure(network, batch, settings)
            about = {"batch": batch, "precision": "mixed-bf16" if autocast else "fp32"}
            yield about | {"checkpoint": "none"} | {term: figures[term] for term in TERMS}
        if block is not None:
            blocks = _blocks(network, block)
            settings = Settings(optimizer="adam", checkpoint=blocks, attention="fused")
            figures = measure(network, batch, settings)
            about = {"batch": batch, "precision": "fp32", "checkpoint": "blocks"}
            yield about | {"blocks": blocks} | {term: figures[term] for term in TERMS}


def _network(network: Network, block: str | None, group: str) -> dict[str, Any]:
    names = tuple(f"x{index}" for index in range(len(network.inputs(1))))
    files: dict[str, str] = {}
    failures: dict[str, str] = {}
    exporters = ("legacy", "dynamo", "dynamo_plain") if group in _HALVES else ("legacy", "dynamo")
    for exporter in exporters:
        try:
            data = export(network, exporter, names, OPSET, trained=True)
        except ExportFailureError as failure:
            failures[exporter] = str(failure)
        else:
            files[exporter] = base64.b64encode(data).decode()
    about = {"model": network.name, "group": group, "loss": network.loss}
    return about | {"rows": list(_rows(network, block)), "files": files, "failures": failures}


def _halves(networks: Sequence[Network]) -> Iterator[tuple[str, Network]]:
    """Networks of the last round with their group: rules may be derived from the first half alone.

    The halves are by the order of a hash of their names.
    """
    ordered = sorted(networks, key=lambda each: hashlib.sha256(each.name.encode()).digest())
    for index, network in enumerate(ordered):
        yield _HALVES[(2 * index + 1) // len(ordered)], network


def _networks() -> Iterator[tuple[str, Network, str | None]]:
    """Each network with its group and the class of its blocks."""
    modules = (
        *(("seen", precision_networks), ("seen", more_networks)),
        *(("unseen", unseen_networks), ("fresh", fresh_networks)),
    )
    for group, module in modules:
        for network in module.NETWORKS:
            yield group, network, module.BLOCKS.get(network.name)
    blocks = common_images.BLOCKS | common_sequences.BLOCKS
    for group, network in _halves((*common_images.NETWORKS, *common_sequences.NETWORKS)):
        yield group, network, blocks.get(network.name)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--group", action="append", choices=GROUPS, help="these networks alone")
    options = parser.parse_args()
    groups = options.group or GROUPS
    kept = json.loads(lzma.decompress(FILE.read_bytes()))["networks"] if options.group else []
    found = {each["model"]: each for each in kept}
    for group, network, block in _networks():
        if group in groups:
            found[network.name] = _network(network, block, group)
            failures = found[network.name]["failures"].values()
            print(network.name, *found[network.name]["files"], *failures, flush=True)
    about = {"torch": torch.__version__, "optimizer": "adam", "attention": "fused"}
    text = json.dumps({"meta": about, "networks": list(found.values())})
    options.out.write_bytes(lzma.compress(text.encode()))


if __name__ == "__main__":
    _main()

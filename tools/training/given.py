"""Measure the networks of `tests/data/training` again and hold them against its figures.

python tools/training/given.py                         # all that are defined here
python tools/training/given.py resnet18 --trace trace  # and trace/resnet18.jsonl
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from given_dense import DenseNet121, SqueezeNet, UNet
from given_gated import ConvNextLike, EfficientNetB0, InstanceNormMix
from given_sequences import BertBase, VisionTransformer
from given_vision import Bottleneck, vgg
from gpu_truth import BY_NAME, LanguageModel, ResNet, image, tokens
from settings import OPTIMIZERS, Network, Settings, Tensors
from step import measure

from onnxmem.torch.live_bytes import Trace

TRUTH = Path(__file__).parents[2] / "tests" / "data" / "training" / "truth.json"

PER_OPTIMIZER = (
    *("optimizer_state_bytes", "forward_peak_bytes", "backward_peak_bytes"),
    *("optimizer_peak_bytes", "peak_bytes"),
)


def _image_of(size: int) -> Callable[[int], Tensors]:
    return lambda batch: (torch.zeros(batch, 3, size, size),)


NETWORKS = (
    BY_NAME["mlp"],
    BY_NAME["alexnet"],
    Network("vgg16", lambda: vgg((2, 2, 3, 3, 3)), image, (8, 64)),
    Network("vgg19", lambda: vgg((2, 2, 4, 4, 4)), image, (8, 64)),
    BY_NAME["resnet18"],
    Network("resnet50", lambda: ResNet(Bottleneck, (3, 4, 6, 3), 4), image, (8, 64)),
    BY_NAME["mobilenetv2"],
    Network("densenet121", DenseNet121, image, (8, 64)),
    Network("efficientnet_b0", EfficientNetB0, image, (8, 64)),
    Network("unet", UNet, _image_of(256), (1, 8)),
    Network("bert_base", BertBase, tokens(128), (8, 32)),
    Network("gpt2_small", lambda: LanguageModel(50257, 256, 768, 12, 12), tokens(256), (2, 8)),
    BY_NAME["tiny_transformer"],
    Network("squeezenet", SqueezeNet, image, (16, 128)),
    Network("vit_tiny", VisionTransformer, image, (16, 128)),
    Network("instnorm_mix", InstanceNormMix, _image_of(64), (16, 128)),
    Network("convnext_t_like", ConvNextLike, image, (8, 64)),
)


def row(network: Network, batch: int, settings: Settings) -> dict[str, Any]:
    """The figures at `batch` in the form of truth.json, one entry for each optimizer."""
    terms: dict[str, Any] = {}
    for name in OPTIMIZERS:
        figures = measure(network, batch, _with_optimizer(settings, name))
        terms |= {key: value for key, value in figures.items() if key not in PER_OPTIMIZER}
        terms[name] = {key: figures[key] for key in PER_OPTIMIZER}
    return {"model": network.name, "batch": batch, **terms}


def differences(measured: dict[str, Any], expected: dict[str, Any], prefix: str = "") -> list[str]:
    """What differs from `expected`, one line a figure."""
    lines = []
    for key, value in measured.items():
        if isinstance(value, dict):
            lines += differences(value, expected[key], f"{prefix}{key}.")
        elif value != expected[key]:
            lines.append(f"{prefix}{key}: {value} here, {expected[key]} there")
    return lines


def write_trace(network: Network, settings: Settings, folder: Path) -> None:
    """Write every operator of a step at the first batch to `folder`/NAME.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{network.name}.jsonl").open("w") as file:
        measure(network, network.batches[0], settings, Trace(file))


def _with_optimizer(settings: Settings, optimizer: str) -> Settings:
    return replace(settings, optimizer=optimizer)


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="networks; all if none is named")
    parser.add_argument("--trace", type=Path, help="folder to write the first batch's steps to")
    options = parser.parse_args()
    expected = {(r["model"], r["batch"]): r for r in json.loads(TRUTH.read_text())["rows"]}
    num_wrong = 0
    for network in NETWORKS:
        if options.names and network.name not in options.names:
            continue
        if options.trace:
            write_trace(network, Settings(), options.trace)
        for batch in network.batches:
            lines = differences(row(network, batch, Settings()), expected[network.name, batch])
            num_wrong += bool(lines)
            print(network.name, batch, "differs" if lines else "equal", *lines, sep="\n  ")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(_main())

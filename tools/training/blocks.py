"""Measure training steps in which each repeated block runs under ``torch.utils.checkpoint``.

PYTHONPATH=tools python tools/training/blocks.py      # to tests/data/training_blocks
"""

import json
from pathlib import Path
from typing import Any

import block_networks
import torch
from exporting_steps import ExportFailureError, export
from given import NETWORKS
from new import CASES
from settings import Network, Settings
from step import measure
from torch import nn

FOLDER = Path(__file__).parents[2] / "tests" / "data" / "training_blocks"

GIVEN = {
    "resnet18": "BasicBlock",
    "mobilenetv2": "InvertedResidual",
    "bert_base": "PostNormBlock",
    "vit_tiny": "Block",
    "convnext_t_like": "ScaledBlock",
    "squeezenet": "Fire",
}
"""Networks whose files are in `tests/data/training`, and the class of their blocks."""
NEW = {
    "resnext": "ResNeXtBlock",
    "llama_like": "DecoderLayer",
    "swin_like": "WindowBlock",
    "encoder_classifier": "TransformerEncoderLayer",
    "convnext": "ConvNeXtBlock",
    "se_net": "MobileBlock",
}
"""The same of `tests/data/training_new`."""
OWN = {
    "diffusion_transformer": "ConditionedBlock",
    "relative_encoder": "BiasedBlock",
    "dilated": "DilatedLayer",
    "mixer": "MixerBlock",
    "detector": "CrossBlock",
    "rotary_decoder": "RotaryBlock",
    "gated_resnext": "GatedBottleneck",
    "mixture": "MixtureBlock",
    "staged_windows": "ShiftedBlock",
}
"""Networks whose files are written too: by both exporters, with what they say of modules."""
TERMS = ("saved_activation_bytes", "forward_peak_bytes", "backward_peak_bytes", "peak_bytes")


def _blocks(network: Network, class_name: str) -> tuple[str, ...]:
    with torch.device("meta"):
        modules: list[tuple[str, nn.Module]] = list(network.build().named_modules())
    return tuple(name for name, module in modules if type(module).__name__ == class_name)


def _row(network: Network, folder: str, class_name: str) -> dict[str, Any]:
    blocks = _blocks(network, class_name)
    settings = Settings(optimizer="adam", checkpoint=blocks, attention="fused")
    figures = measure(network, network.batches[0], settings)
    return {
        "model": network.name,
        "folder": folder,
        "batch": network.batches[0],
        "loss": network.loss,
        "blocks": blocks,
        **{term: figures[term] for term in TERMS},
    }


_UNKNOWN = {("staged_windows", "legacy"), ("rotary_decoder", "legacy")}
"""Their shapes cannot be inferred from these files."""


def _write_files(network: Network) -> None:
    names = tuple(f"x{index}" for index in range(len(network.inputs(1))))
    for exporter in ("legacy", "dynamo"):
        if (network.name, exporter) in _UNKNOWN:
            continue
        path = FOLDER / f"{network.name}.{exporter}.onnx"
        try:
            path.write_bytes(export(network, exporter, names, 17, trained=True))
        except ExportFailureError as error:
            print(f"{path.name}: {error}")


def _main() -> None:
    FOLDER.mkdir(exist_ok=True)
    rows: list[dict[str, Any]] = []
    own = {network.name: network for network in block_networks.NETWORKS}
    given = {network.name: network for network in NETWORKS}
    new = {case.network.name: case.network for case in CASES}
    for folder, networks, chosen in (
        ("training", given, GIVEN),
        ("training_new", new, NEW),
        ("training_blocks", own, OWN),
    ):
        for name, class_name in chosen.items():
            rows.append(_row(networks[name], folder, class_name))
            print(name, rows[-1]["peak_bytes"], flush=True)
    for network in own.values():
        _write_files(network)
    about = {"torch": torch.__version__, "optimizer": "adam", "attention": "fused"}
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    head = json.dumps(about)[:-1]
    (FOLDER / "truth.json").write_text(f'{head}, "rows": [\n  {lines}\n]}}\n')


if __name__ == "__main__":
    _main()

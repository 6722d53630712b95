"""Measure networks that are no part of `tests/data/training`, and export each in three ways.

PYTHONPATH=tools python tools/training/new.py                 # all, to tests/data/training_new
PYTHONPATH=tools python tools/training/new.py swin --out /tmp/new
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from exporting_steps import EXPORTERS, ExportFailureError, export
from given import PER_OPTIMIZER
from new_attention import EncoderClassifier, LlamaLike, NanoGpt
from new_convolutional import (
    ConvNeXt,
    Inception,
    ResNeXt,
    ShuffleNet,
    SqueezeExciteNet,
    dcgan_generator,
)
from new_dense import DiffusionUNet, Segmenter, SuperResolution
from new_recurrent import GruClassifier, LstmLanguageModel, TextCnn
from new_windows import SwinLike
from settings import OPTIMIZERS, Network, Settings, Tensors
from step import measure

FOLDER = Path(__file__).parents[2] / "tests" / "data" / "training_new"

META = {
    "what": (
        "Peak of live tensor bytes in a steady-state (second) float32 training step of the PyTorch "
        "network that the ONNX files were exported from."
    ),
    "how": "tools/training/new.py; the counter gives every row of tests/data/training to the byte.",
    "attention": (
        "Rows of networks that call torch's fused attention come twice: 'math' decomposes it as "
        "the ONNX files do, 'efficient' is the kernel that a GPU takes in float32."
    ),
    "recurrent": "LSTM and GRU run gate by gate; cuDNN keeps a packed reserve instead.",
    "exports": (
        "legacy: dynamo=False, training=TRAINING, no folding, the opset of the row; dynamo: "
        "dynamo=True in train mode; dynamo_plain: the same with optimize=False. Symbolic batch, "
        "exported at batch 2, tensors over 1 KiB moved to an absent file. 'trained' networks had "
        "every value drawn anew first, the others hold equal vectors as torch initializes them."
    ),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A network, and how it is exported."""

    network: Network
    input_names: tuple[str, ...] = ("x",)
    opset: int = 20
    trained: bool = False
    fused_attention: bool = False


def _image(size: int) -> Any:  # noqa: ANN401
    def inputs(batch: int) -> Tensors:
        return (torch.zeros(batch, 3, size, size),)

    return inputs


def _tokens(length: int) -> Any:  # noqa: ANN401
    def inputs(batch: int) -> Tensors:
        return (torch.zeros(batch, length, dtype=torch.int64),)

    return inputs


def _noise(batch: int) -> Tensors:
    return (torch.zeros(batch, 100, 1, 1),)


def _noisy_image(batch: int) -> Tensors:
    return torch.zeros(batch, 3, 32, 32), torch.zeros(batch)


CASES = (
    Case(Network("shufflenet", ShuffleNet, _image(160), (8, 32)), trained=True),
    Case(Network("resnext", ResNeXt, _image(32), (16, 64))),
    Case(Network("dcgan_generator", dcgan_generator, _noise, (16, 128), "mse"), ("noise",), 17),
    Case(Network("llama_like", LlamaLike, _tokens(128), (2, 8)), ("input_ids",), 17),
    Case(Network("swin_like", SwinLike, _image(112), (4, 16)), opset=17, trained=True),
    Case(
        Network("diffusion_unet", DiffusionUNet, _noisy_image, (4, 16), "mse"),
        ("x", "steps"),
        17,
        trained=True,
    ),
    Case(Network("lstm_lm", LstmLanguageModel, _tokens(35), (4, 20)), ("tokens",), 17),
    Case(
        Network("gru_classifier", GruClassifier, _tokens(48), (16, 64)), ("tokens",), trained=True
    ),
    Case(
        Network("encoder_classifier", EncoderClassifier, _tokens(96), (4, 24)),
        ("tokens",),
        17,
        trained=True,
        fused_attention=True,
    ),
    Case(
        Network("nano_gpt", NanoGpt, _tokens(128), (2, 12)), ("idx",), trained=True,
        fused_attention=True,
    ),
    Case(Network("convnext", ConvNeXt, _image(128), (4, 24)), opset=17),
    Case(Network("se_net", SqueezeExciteNet, _image(128), (8, 32)), trained=True),
    Case(Network("inception", Inception, _image(128), (4, 24))),
    Case(Network("text_cnn", TextCnn, _tokens(100), (16, 128)), ("tokens",), 17, trained=True),
    Case(Network("segmenter", Segmenter, _image(128), (2, 8))),
    Case(
        Network("super_resolution", SuperResolution, _image(48), (4, 16), "mse"), trained=True
    ),
)  # fmt: skip


def measured(case: Case) -> list[dict[str, Any]]:
    """The figures at both batches, with every optimizer, of each kind of attention."""
    kinds = ("math", "fused") if case.fused_attention else ("math",)
    return [
        {"attention": kind, **_row(case.network, batch, kind)}
        for batch in case.network.batches
        for kind in kinds
    ]


def _row(network: Network, batch: int, attention: str) -> dict[str, Any]:
    terms: dict[str, Any] = {"batch": batch}
    for name in OPTIMIZERS:
        figures = measure(network, batch, Settings(optimizer=name, attention=attention))
        terms |= {key: value for key, value in figures.items() if key not in PER_OPTIMIZER}
        terms[name] = {key: figures[key] for key in PER_OPTIMIZER}
    return terms


def write(case: Case, folder: Path) -> list[dict[str, Any]]:
    """Write the files of `case` to `folder`; its rows, which say what could not be exported."""
    files, failures = {}, {}
    for exporter in EXPORTERS:
        name = f"{case.network.name}.{exporter}.onnx"
        try:
            data = export(case.network, exporter, case.input_names, case.opset, case.trained)
        except ExportFailureError as error:
            failures[exporter] = str(error)
            continue
        (folder / name).write_bytes(data)
        files[exporter] = name
    terms = {
        "model": case.network.name,
        "files": files,
        "export_failures": failures,
        "export_batch": 2,
        "legacy_opset": case.opset,
        "trained": case.trained,
        "loss": case.network.loss,
    }
    return [terms | row for row in measured(case)]


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="networks; all if none is named")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write to")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        if not options.names or case.network.name in options.names:
            found = write(case, options.out)
            _keep(found, options.out / "truth.json")
            first = found[0]
            print(case.network.name, *first["files"], first["export_failures"], flush=True)


def _keep(found: list[dict[str, Any]], path: Path) -> None:
    """Put the rows of one network in place of its earlier ones in the file at `path`."""
    earlier = json.loads(path.read_text())["rows"] if path.exists() else []
    order = [case.network.name for case in CASES]
    kept = [row for row in earlier if row["model"] != found[0]["model"]]
    rows = sorted(kept + found, key=lambda row: order.index(row["model"]))
    path.write_text(json.dumps({"meta": META, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    _main()

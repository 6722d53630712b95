"""Counted steps of networks that are drawn from timm by chance, and their files.

    export PYTHONPATH=tools:tools/training:.
    python tools/training/timm_steps.py draw timm 64 30 < NAMES
    python tools/training/timm_steps.py measure FOLDER DRAW [NETWORK ...]

Needs what `tools/training/requirements.txt` names, torchvision and timm. `draw` prints names: of
timm's own list, shuffled by the seed, those with fewer than 100 million parameters and images of at
most 384 x 384, less the names that it reads. (The first draw, with seed 30, took fewer than 30
million parameters and images of at most 256 x 256.) It draws from the classifiers of torchvision
and from the architectures of transformers too (`torchvision/NAME`, `transformers/NAME`), the latter
with their default configuration but for four layers, on 128 tokens or on an image. `measure` writes
each network's files to a folder, one of the script exporter and one of torch.export
(NETWORK.dynamo.onnx), and its peaks to `timm_steps.csv`: batch 4, SGD with momentum, cross
entropy, in float32 and under bfloat16 autocast.
Attention is as the network is installed, in PyTorch's kernels where it calls them; the first draw
has it written out, and files of the script exporter alone. A stage that takes more than ten minutes
is left out and leaves its reason in the row.
"""

import csv
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import timm
import torch
import torchvision
import transformers
from autocast_truth import cuda_lists
from exporting_steps import EXPORTERS, SEED, draw_values
from settings import Network, Settings, Tensors
from step import measure
from stripping import strip_weights
from torch import nn
from transformers import masking_utils
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from onnxmem.torch.measuring import WithoutData, copy_of

DATA = Path(__file__).with_name("timm_steps.csv")
BATCH = 4
MOST_PARAMETERS, MOST_PIXELS = 100_000_000, 384
MOST_SECONDS = 600
NUM_LAYERS, NUM_TOKENS = 4, 128
"""Of networks of transformers."""
OPSET = 17
"""Of the script exporter."""
STAGES = {"legacy": "script", "dynamo": "dynamo"}
FIELDS = (
    *("draw", "network", "image_size", "fp32_peak_bytes", "mixed_bf16_peak_bytes", "error"),
    *(f"{stage}_error" for stage in STAGES.values()),
)

_HEADS = tuple(
    (
        getattr(transformers, f"AutoModelFor{head}"),
        getattr(modeling_auto, f"MODEL_FOR_{kinds}_MAPPING_NAMES"),
    )
    for head, kinds in (
        ("ImageClassification", "IMAGE_CLASSIFICATION"),
        ("MaskedLM", "MASKED_LM"),
        ("CausalLM", "CAUSAL_LM"),
    )
)
"""Of a network of transformers the first that it has, and which have it."""


def drawn(library: str, count: int, seed: int, known: set[str]) -> Iterator[str]:
    """Names in the order of the draw; those that cannot be built without data are left out."""
    names = [name for name in _listed(library) if name.rpartition("/")[2] not in known]
    Random(seed).shuffle(names)  # noqa: S311 - a draw that can be repeated
    for name in names:
        if count == 0:
            return
        if _is_small(name):
            count -= 1
            yield name


def _listed(library: str) -> list[str]:
    if library == "timm":
        return list(timm.list_models())
    if library == "torchvision":
        kinds = torchvision.models.list_models(module=torchvision.models)
    else:
        kinds = [kind for kind in CONFIG_MAPPING if any(kind in heads for _, heads in _HEADS)]
    return [f"{library}/{kind}" for kind in kinds]


def _is_small(name: str) -> bool:
    try:
        if image_size(name) > MOST_PIXELS:
            return False
        with torch.device("meta"):
            module = _built(name)
    except Exception:  # noqa: BLE001 - a network that needs data to be built
        return False
    return sum(each.numel() for each in module.parameters()) < MOST_PARAMETERS


def image_size(name: str) -> int:
    """The side of the images that a network is made for; 0: it reads tokens."""
    library, _, kind = name.rpartition("/")
    if library == "transformers":
        config = _config(kind)
        return config.image_size if kind in _HEADS[0][1] else 0
    if library == "torchvision":
        return 224
    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    return max(config.input_size[1:]) if config is not None else 224


def _config(kind: str) -> Any:  # noqa: ANN401 - of any class
    config = CONFIG_MAPPING[kind]()
    for name, value in (("num_hidden_layers", NUM_LAYERS), ("use_cache", False)):
        if hasattr(config, name):
            setattr(config, name, value)
    return config


def _built(name: str) -> nn.Module:
    library, _, kind = name.rpartition("/")
    if library == "torchvision":
        module: nn.Module = torchvision.models.get_model(kind, weights=None)
        return module
    if library == "transformers":
        head = next(head for head, kinds in _HEADS if kind in kinds)
        return Logits(head.from_config(_config(kind)))
    made: nn.Module = timm.create_model(name)
    return made


class Logits(nn.Module):
    """A model of transformers that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Logits of each sample, or of each token."""
        logits: torch.Tensor = self.model(given).logits
        return logits


def network_of(name: str) -> Network:
    """What is counted and exported."""
    size = image_size(name)

    def inputs(batch: int) -> Tensors:
        if size:
            return (torch.zeros(batch, 3, size, size),)
        return (torch.ones(batch, NUM_TOKENS, dtype=torch.int64),)

    return Network(name, lambda: _built(name), inputs, (BATCH, BATCH))


def count(name: str) -> str:
    """The peaks of one network."""
    torch.manual_seed(0)
    network = network_of(name)
    module = network.build().train()
    # Under fake tensors timm cannot build them all.
    network = replace(network, build=lambda: copy_of(module, WithoutData()))
    peaks = []
    for is_mixed in (False, True):
        settings = Settings(optimizer="momentum", autocast=is_mixed, attention="fused")
        with ExitStack() as stack:
            # Of tensors without data transformers makes masks, as in a trace and unlike in a step;
            # it looks whether a mask that it made of ones masks anything.
            asked = {"is_tracing": False, "find_packed_sequence_indices": None, "fast_all": True}
            for name_asked, value in asked.items():
                stack.enter_context(
                    mock.patch.object(masking_utils, name_asked, return_value=value)
                )
            if is_mixed:
                stack.enter_context(cuda_lists())
            peaks.append(measure(network, BATCH, settings)["peak_bytes"])
    return ",".join(str(each) for each in peaks)


def write_file(folder: Path, exporter: str, name: str) -> None:
    """The file of one exporter."""
    suffix = "" if exporter == "legacy" else f".{exporter}"
    torch.manual_seed(SEED)
    network = network_of(name)
    module = network.build().train()
    draw_values(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both warn about their own internals
        model = EXPORTERS[exporter](module, network.inputs(2), ("x",), OPSET)
    # The metadata stays: it is in the files that people have.
    strip_weights(model, "absent.bin")
    file = folder / f"{name}{suffix}.onnx"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(model.SerializeToString())


def write(folder: Path, draw: str, names: list[str]) -> None:
    """Each stage in a process of its own, with a limit of time; a row for each network."""
    folder.mkdir(parents=True, exist_ok=True)
    with DATA.open("a", encoding="utf-8", newline="") as table:
        writer = csv.DictWriter(table, FIELDS, lineterminator="\n")
        for name in names:
            row: dict[str, object] = {"draw": draw, "network": name, "image_size": image_size(name)}
            printed, row["error"] = _run("count", name)
            peaks = printed.split(",") if printed else ("", "")
            row["fp32_peak_bytes"], row["mixed_bf16_peak_bytes"] = peaks
            for exporter, stage in STAGES.items():
                _, row[f"{stage}_error"] = _run("file", str(folder), exporter, name)
            writer.writerow(row)
            table.flush()


def _run(*words: str) -> tuple[str, str]:
    """The last line that a stage prints, and its error."""
    command = [sys.executable, __file__, *words]
    try:
        run = subprocess.run(  # noqa: S603 - this very file
            command, capture_output=True, text=True, timeout=MOST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"more than {MOST_SECONDS} s"
    if run.returncode:
        return "", (run.stderr.splitlines() or [f"ended with {run.returncode}"])[-1][:100]
    return (run.stdout.splitlines() or [""])[-1], ""


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["draw", library, number, seed]:
            for each in drawn(library, int(number), int(seed), set(sys.stdin.read().split())):
                print(each, flush=True)
        case ["count", name]:
            print(count(name))
        case ["file", target, exporter, name] if exporter in EXPORTERS:
            write_file(Path(target), exporter, name)
        case ["measure", target, draw, *names]:
            write(Path(target), draw, names)
        case _:
            sys.exit(__doc__)

"""Training steps of networks of torchvision, timm and transformers, measured on a CUDA GPU.

    export PYTHONPATH=tools:tools/training
    python tools/training/gpu_libraries.py export FOLDER [NETWORK ...]
    python tools/training/gpu_libraries.py measure FILE.jsonl [--jobs N] [--only TEXT]
    python tools/training/gpu_libraries.py search FILE.jsonl [--jobs N]

``export`` writes each network's file as both exporters of torch make it, in training mode, the
batch symbolic, the weights left out. ``measure`` writes a line for every row of ``rows()``: what
PyTorch's allocator gave out and reserved in each phase of the last of four steps. ``search`` finds
the largest batch that runs four steps where the allocator may reserve ``CAPACITY_BYTES``.

Each row is measured by a process of its own, forked before CUDA is touched; ``--jobs`` of them at
once share the card, which changes no figure of an allocator, and what is taken of the device is
read for the process from NVML.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gpu_truth
import torch
from gpu_truth import CUDA, PER_PHASE, Tensors
from torch import nn
from torch.nn import functional

GIB = 2**30
CAPACITY_BYTES = 6 * GIB
STEPS = 4
SEED = 20_261_128


@dataclass(frozen=True, slots=True)
class Network:
    """What is trained, at the batch of its plain row."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Tensors]
    batch: int


@dataclass(frozen=True, slots=True)
class Row:
    """How a network is trained; the words are those of onnxmem's options."""

    network: str
    batch: int
    optimizer: str = "adam"
    precision: str = "fp32"
    checkpoint: str = "none"
    accumulate: int = 1


class Logits(nn.Module):
    """A model of transformers, called with these words, that returns its logits alone."""

    def __init__(self, model: nn.Module, **words: bool) -> None:
        super().__init__()
        self.model = model
        self.words = words

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of each position or sample."""
        logits: torch.Tensor = self.model(input_ids=tokens, **self.words).logits
        return logits


class Recurrent(nn.Module):
    """Embedding, a bidirectional LSTM of two layers, a linear layer on the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10_000, 256)
        self.lstm = nn.LSTM(256, 512, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(1024, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of each sample."""
        found, _ = self.lstm(self.embedding(tokens))
        logits: torch.Tensor = self.head(found[:, -1])
        return logits


class LanguageModel(nn.Module):
    """Embedding, recurrent layers in one direction, a linear layer on each step."""

    def __init__(self, kind: str, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5_000, 192)
        self.layers = getattr(nn, kind)(192, 384, layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(384, 5_000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of each position."""
        found, _ = self.layers(self.embedding(tokens))
        logits: torch.Tensor = self.head(found)
        return logits


class Encoder(nn.Module):
    """PyTorch's own encoder layers over embeddings, a linear layer on the first position."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10_000, 512)
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 6)
        self.head = nn.Linear(512, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of each sample."""
        logits: torch.Tensor = self.head(self.encoder(self.embedding(tokens))[:, 0])
        return logits


def _images(size: int) -> Callable[[int], Tensors]:
    return lambda batch: (torch.rand(batch, 3, size, size),)


def _tokens(length: int) -> Callable[[int], Tensors]:
    return lambda batch: (torch.randint(0, 1000, (batch, length)),)


def _torchvision(name: str, batch: int, size: int = 224) -> Network:
    def build() -> nn.Module:
        import torchvision

        model: nn.Module = torchvision.models.get_model(name, weights=None)
        return model

    return Network(f"torchvision/{name}", build, _images(size), batch)


def _timm(name: str, batch: int, size: int = 224) -> Network:
    def build() -> nn.Module:
        import timm

        model: nn.Module = timm.create_model(name, pretrained=False)
        return model

    return Network(f"timm/{name}", build, _images(size), batch)


def _transformers(name: str, kind: str, length: int, batch: int, **settings: Any) -> Network:  # noqa: ANN401
    def build() -> nn.Module:
        import transformers

        auto = "AutoModelFor" + ("SequenceClassification" if kind == "bert" else "CausalLM")
        config = transformers.AutoConfig.for_model(kind, **settings)
        model = getattr(transformers, auto).from_config(config)
        return Logits(model) if kind == "bert" else Logits(model, use_cache=False)

    return Network(f"transformers/{name}", build, _tokens(length), batch)


NETWORKS = (
    _torchvision("resnet50", 32),
    _torchvision("mobilenet_v2", 32),
    _torchvision("efficientnet_b0", 32),
    _torchvision("convnext_tiny", 16),
    _torchvision("vit_b_16", 16),
    _torchvision("swin_t", 16),
    _torchvision("densenet121", 16),
    _torchvision("vgg16_bn", 16),
    _torchvision("regnet_y_1_6gf", 32),
    _torchvision("shufflenet_v2_x1_0", 32),
    _timm("vit_large_patch16_224", 8),
    _timm("convnextv2_tiny", 16),
    _timm("efficientnetv2_rw_t", 16),
    _timm("hrnet_w18", 16),
    _timm("mixer_b16_224", 16),
    _timm("eca_nfnet_l0", 16),
    _timm("resnext50_32x4d", 16),
    _timm("swinv2_cr_tiny_224", 8),
    _timm("mobilevit_s", 16, 256),
    _timm("davit_tiny", 16),
    _timm("coatnet_0_rw_224", 16),
    _timm("edgenext_small", 16),
    _timm("cspresnet50", 16, 256),
    _timm("poolformer_s12", 16),
    _transformers("bert_base", "bert", 128, 16),
    _transformers("gpt2", "gpt2", 256, 4),
    _transformers(
        *("opt_125m", "opt", 256, 4), hidden_size=768, ffn_dim=3072, num_hidden_layers=12
    ),
    _transformers(
        *("llama_grouped", "llama", 256, 4),
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        vocab_size=32_000,
    ),
    _transformers(
        *("qwen2_small", "qwen2", 256, 4),
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=8,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=50_000,
    ),
    _transformers(
        *("pythia_160m", "gpt_neox", 256, 4),
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
    ),
    Network("torch/lstm", Recurrent, _tokens(100), 32),
    Network("torch/encoder", Encoder, _tokens(128), 32),
    Network("torch/lstm_words", lambda: LanguageModel("LSTM", 3, 0.2), _tokens(70), 40),
    Network("torch/gru_words", lambda: LanguageModel("GRU", 2), _tokens(90), 24),
    Network("torch/rnn_words", lambda: LanguageModel("RNN", 1), _tokens(120), 30),
)
BY_NAME = {network.name: network for network in NETWORKS}
SEARCHED = (
    *("torchvision/resnet50", "torchvision/vit_b_16", "torchvision/densenet121"),
    *("torchvision/efficientnet_b0", "timm/mixer_b16_224", "timm/convnextv2_tiny"),
    *("transformers/bert_base", "transformers/gpt2", "torch/encoder", "timm/poolformer_s12"),
)
CHECKPOINTED = (
    *("transformers/bert_base", "transformers/gpt2", "transformers/llama_grouped"),
    *("transformers/opt_125m", "transformers/qwen2_small", "transformers/pythia_160m"),
)


def rows() -> Iterator[Row]:
    """Everything that is measured."""
    for network in NETWORKS:
        plain = Row(network.name, network.batch)
        yield plain
        yield replace(plain, batch=2 * network.batch, precision="mixed-bf16", optimizer="adamw")
        yield replace(plain, batch=network.batch // 2, optimizer="momentum")
    for name in CHECKPOINTED:
        plain = Row(name, BY_NAME[name].batch, checkpoint="blocks")
        yield plain
        yield replace(plain, precision="mixed-bf16", optimizer="adamw")
    for name in ("torchvision/resnet50", "transformers/gpt2", "torchvision/vit_b_16"):
        plain = Row(name, BY_NAME[name].batch)
        yield replace(plain, precision="bf16", optimizer="adamw")
        yield replace(plain, precision="mixed-fp16", optimizer="adamw")
        yield replace(plain, accumulate=2)
        yield replace(plain, optimizer="sgd")
        yield replace(plain, optimizer="rmsprop")
        yield replace(plain, optimizer="adagrad")
        yield replace(plain, optimizer="nadam")


# --------------------------------------------------------------------------------------------------
# On the GPU.


def _optimizer(name: str, module: nn.Module) -> torch.optim.Optimizer:
    parameters = list(module.parameters())
    kind, more = {
        "adam": (torch.optim.Adam, {}),
        "adamw": (torch.optim.AdamW, {}),
        "sgd": (torch.optim.SGD, {}),
        "momentum": (torch.optim.SGD, {"momentum": 0.9}),
        "rmsprop": (torch.optim.RMSprop, {}),
        "adagrad": (torch.optim.Adagrad, {}),
        "nadam": (torch.optim.NAdam, {}),
    }[name]
    made: torch.optim.Optimizer = kind(parameters, lr=1e-3, foreach=True, **more)
    return made


def _loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, -2), target.flatten())


def measure(row: Row) -> dict[str, Any]:
    """The figures of a fresh process on the GPU."""
    torch.manual_seed(SEED)
    free_at_start, device_bytes = torch.cuda.mem_get_info(CUDA)
    network = BY_NAME[row.network]
    module = network.build().train()
    if row.checkpoint == "blocks":
        # How transformers trains under checkpoints: not reentrant, each layer.
        module.model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[union-attr,operator]
    num_parameters = sum(each.numel() for each in module.parameters())
    module = module.to(CUDA, torch.bfloat16 if row.precision == "bf16" else torch.float32)
    inputs = tuple(
        each.to(CUDA, torch.bfloat16)
        if row.precision == "bf16" and each.is_floating_point()
        else each.to(CUDA)
        for each in network.inputs(row.batch)
    )
    optimizer = _optimizer(row.optimizer, module)
    scaler = torch.amp.GradScaler("cuda") if row.precision == "mixed-fp16" else None
    kinds = {"mixed-bf16": torch.bfloat16, "mixed-fp16": torch.float16}
    dtype = kinds.get(row.precision)
    target: torch.Tensor | None = None
    by_step: list[dict[str, dict[str, int]]] = []
    kept: object = None
    for _ in range(STEPS):
        phases: dict[str, dict[str, int]] = {}
        optimizer.zero_grad(set_to_none=True)
        kept = None
        if target is None:
            # Labels are there before the first step, as a loop's are.
            shape = _target_shape(network, row.batch)
            target = torch.zeros(shape, dtype=torch.int64, device=CUDA)
        for _ in range(row.accumulate):
            kept = None
            gpu_truth._start_phase()  # noqa: SLF001
            with torch.autocast("cuda", dtype) if dtype is not None else nullcontext():
                logits = module(*inputs)
                loss = _loss(logits, target)
            _end(phases, "forward")
            (scaler.scale(loss) if scaler is not None else loss).backward()
            _end(phases, "backward")
            kept = logits, loss
            del logits, loss
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        _end(phases, "optimizer")
        by_step.append(phases)
    del kept
    stats = torch.cuda.memory_stats(CUDA)
    free_at_end, _ = torch.cuda.mem_get_info(CUDA)
    return {
        "num_parameters": num_parameters,
        "allocated_peak_bytes": _largest(by_step[-1], "allocated_peak_bytes"),
        "requested_peak_bytes": _largest(by_step[-1], "requested_peak_bytes"),
        "reserved_bytes": stats["reserved_bytes.all.current"],
        "first_step_allocated_peak_bytes": _largest(by_step[0], "allocated_peak_bytes"),
        "allocated_peak_of_all_bytes": max(
            _largest(each, "allocated_peak_bytes") for each in by_step
        ),
        "reserved_by_step_bytes": [each["optimizer"]["reserved_end_bytes"] for each in by_step],
        "phases": by_step[-1],
        "process_bytes": _of_process(),
        "context_alone_bytes": device_bytes - free_at_end - stats["reserved_bytes.all.current"],
        "free_at_start_bytes": free_at_start,
    }


def _target_shape(network: Network, batch: int) -> tuple[int, ...]:
    if network.name.endswith("_words") or (
        network.name.startswith("transformers/") and "bert" not in network.name
    ):
        return network.inputs(1)[0].shape[1] * batch, 1
    return batch, 1


def _largest(phases: dict[str, dict[str, int]], name: str) -> int:
    return max(each[name] for each in phases.values())


def _end(phases: dict[str, dict[str, int]], name: str) -> None:
    torch.cuda.synchronize(CUDA)
    stats = torch.cuda.memory_stats(CUDA)
    found = {key: stats[of_torch] for key, of_torch in PER_PHASE.items()}
    before = phases.get(name, found)
    phases[name] = {key: max(found[key], before[key]) for key in found}
    gpu_truth._start_phase()  # noqa: SLF001


def _of_process() -> int | None:
    """What the driver says that this process takes of the device; `None`: it does not say."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        found = [each.usedGpuMemory for each in running if each.pid == os.getpid()]
    except Exception:  # noqa: BLE001 - whatever it is, the driver does not say
        return None
    return found[0] if found else None


def largest_batch(row: Row) -> dict[str, Any]:
    """The largest batch that runs under `CAPACITY_BYTES`, each tried by a process of its own."""
    runs, fails, tried = 0, None, {}
    batch = BY_NAME[row.network].batch
    while fails is None or fails - runs > 1:
        tried[batch] = _in_fork(lambda at=batch: _runs_within(replace(row, batch=at)))
        if tried[batch] is True:
            runs = batch
        else:
            fails = batch
        batch = 2 * runs if fails is None else (runs + fails) // 2
    return {"largest_batch": runs, "tried": {str(key): value for key, value in tried.items()}}


def _runs_within(row: Row) -> bool:
    total = torch.cuda.get_device_properties(CUDA).total_memory
    torch.cuda.set_per_process_memory_fraction(CAPACITY_BYTES / total, CUDA)
    try:
        measure(row)
    except torch.cuda.OutOfMemoryError:
        return False
    return True


# --------------------------------------------------------------------------------------------------
# Processes.


def _in_fork(work: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the child returns
    """Do the work in a fork of this process; what it returns, or the text of its error."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            found = work()
        except Exception as fault:  # noqa: BLE001 - reported by the parent
            found = f"{type(fault).__name__}: {fault}"[:400]
        with os.fdopen(write, "w") as pipe:
            json.dump(found, pipe)
            pipe.flush()
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else "the process ended without a result"


def run_all(asked: list[Row], work: Callable[[Row], Any], path: Path, jobs: int) -> None:
    """Write a line of JSON for each row, `jobs` at once."""
    for name in ("torchvision", "timm", "transformers"):
        __import__(name)
    running: dict[int, Row] = {}
    waiting = list(asked)
    with path.open("a", encoding="utf-8") as file:
        while waiting or running:
            while waiting and len(running) < jobs:
                row = waiting.pop(0)
                if (child := os.fork()) == 0:
                    start = time.monotonic()
                    found = _in_fork(lambda row=row: work(row))
                    result = found if isinstance(found, dict) else {"error": found}
                    seconds = round(time.monotonic() - start, 1)
                    line = json.dumps(asdict(row) | result | {"seconds": seconds})
                    os.write(file.fileno(), (line + "\n").encode())
                    os._exit(0)
                running[child] = row
            child, _ = os.wait()
            running.pop(child, None)


# --------------------------------------------------------------------------------------------------
# Files.


def export(folder: Path, name: str) -> Iterator[str]:
    """Write the files of a network; a line for each."""
    from exporting_steps import EXPORTERS, draw_values
    from stripping import strip_weights

    network = BY_NAME[name]
    for exporter in ("legacy", "dynamo"):
        torch.manual_seed(SEED)
        module = network.build().train()
        draw_values(module)
        try:
            model = EXPORTERS[exporter](module, network.inputs(2), ("x",), 17)
        except Exception as fault:  # noqa: BLE001 - one network's failure costs no other
            yield f"{name} {exporter}: {type(fault).__name__}: {str(fault)[:150]}"
            continue
        strip_weights(model, "absent.bin")
        path = folder / f"{name.replace('/', '.')}.{exporter}.onnx"
        path.write_bytes(model.SerializeToString())
        yield f"{name} {exporter}: {path.stat().st_size:,} bytes"


def main() -> None:
    """Run the command in the first argument."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("export", "measure", "search"))
    parser.add_argument("target", type=Path)
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    names = options.networks or list(BY_NAME)
    if options.command == "export":
        options.target.mkdir(parents=True, exist_ok=True)
        for name in names:
            for line in export(options.target, name):
                print(line, flush=True)
    elif options.command == "measure":
        asked = [row for row in rows() if row.network in names]
        run_all(asked, measure, options.target, options.jobs)
    else:
        searched = [Row(name, 1, optimizer="adam") for name in SEARCHED if name in names]
        mixed = [replace(row, precision="mixed-bf16", optimizer="adamw") for row in searched]
        run_all([*searched, *mixed], largest_batch, options.target, options.jobs)


if __name__ == "__main__":
    sys.exit(main())

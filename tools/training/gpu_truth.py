"""Measure training steps on a CUDA GPU, to be compared with predictions: one file, torch alone.

    python gpu_truth.py                       # five networks, two optimizers: some minutes
    python gpu_truth.py resnet18 --batch 64   # one of them
    python gpu_truth.py --cpu                 # without a GPU: whether it runs, all figures null

It writes gpu_truth.json and prints it: the card, its driver and torch, and of each network what
PyTorch's allocator gave out and reserved in each phase of a step, what it took of the device, and
the CUDA context. It reads nothing else of the machine, sends nothing, and takes the GPU as it is:
other processes on it are part of ``in_use_bytes`` alone. Each row is measured by a process of its
own, so that nothing is cached from the row before. ``--snapshots FOLDER`` also has PyTorch write
down each request to its allocator, which ``onnxmem diff MODEL --snapshot FILE`` reads.
"""

# mypy: disable-error-code="no-any-return,no-untyped-call"
# ruff: noqa: D102  # what `forward` computes is its class docstring

import argparse
import json
import math
import os
import platform
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

SCHEMA = "onnxmem.gpu_truth"
SCHEMA_VERSION = "1.0"
CUDA = torch.device("cuda", 0)
OPTIMIZERS = ("sgd", "adam")
PHASES = ("forward", "backward", "optimizer")
MAX_ENTRIES = 4_000_000
TRIAL_BATCH = 2
PER_PHASE = {
    "requested_peak_bytes": "requested_bytes.all.peak",
    "allocated_peak_bytes": "allocated_bytes.all.peak",
    "reserved_peak_bytes": "reserved_bytes.all.peak",
    "allocated_end_bytes": "allocated_bytes.all.current",
    "reserved_end_bytes": "reserved_bytes.all.current",
}
"""Figures of a phase, and what `torch.cuda.memory_stats` names them."""

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Network:
    """What is trained: `build` makes the module, `inputs` what it reads at a batch."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Tensors]
    batches: tuple[int, int]
    loss: str = "cross-entropy"


@dataclass(slots=True)
class Training:
    """A network in float32, stepped as a training loop does it; mutable."""

    module: nn.Module
    inputs: Tensors
    target: torch.Tensor
    optimizer: torch.optim.Optimizer
    outputs: tuple[torch.Tensor, torch.Tensor] | None = None
    phases: dict[str, dict[str, int]] = field(default_factory=dict)
    """The figures of the last step's phases; none on the CPU."""

    def step(self) -> None:
        """One step; its outputs and gradients live on until the next one."""
        self.optimizer.zero_grad(set_to_none=True)
        self.outputs = None
        _start_phase()
        logits = self.module(*self.inputs)
        loss = _loss(logits, self.target)
        self._end_phase("forward")
        loss.backward()
        self._end_phase("backward")
        self.optimizer.step()
        self._end_phase("optimizer")
        self.outputs = logits, loss

    def _end_phase(self, name: str) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize(CUDA)
            stats = torch.cuda.memory_stats(CUDA)
            self.phases[name] = {key: stats[of_torch] for key, of_torch in PER_PHASE.items()}
        _start_phase()


def _start_phase() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats(CUDA)


def prepare(network: Network, batch: int, optimizer: str, device: torch.device) -> Training:
    """Build on the CPU, then move: no part of it runs on the GPU before the first step."""
    torch.manual_seed(0)
    module = network.build().train()
    inputs = network.inputs(batch)
    with torch.no_grad():
        logits = module(*network.inputs(TRIAL_BATCH))
    module = module.to(device)
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    return Training(
        module,
        tuple(tensor.to(device) for tensor in inputs),
        torch.zeros(_target_shape(batch, logits), dtype=torch.int64).to(device),
        kind(module.parameters(), lr=1e-3, foreach=True),
    )


def measure(network: Network, batch: int, optimizer: str, steps: int) -> dict[str, Any]:
    """The figures of a fresh process on the GPU."""
    free_at_start, device_bytes = torch.cuda.mem_get_info(CUDA)  # this makes the context
    training = prepare(network, batch, optimizer, CUDA)
    held_bytes = torch.cuda.memory_allocated(CUDA)
    by_step = []
    for _ in range(steps):
        training.step()
        by_step.append(training.phases)
        training.phases = {}
    stats = torch.cuda.memory_stats(CUDA)
    free_at_end, _ = torch.cuda.mem_get_info(CUDA)
    phases = [phase for step in by_step for phase in step.values()]
    peaks = {key: max(phase[key] for phase in phases) for key in PER_PHASE if "peak" in key}
    reserved_bytes = stats["reserved_bytes.all.current"]
    return {
        "parameter_bytes": _parameter_bytes(training.module),
        "held_bytes": held_bytes,
        **peaks,
        "phases": by_step[-1],
        "reserved_by_step_bytes": [step["optimizer"]["reserved_end_bytes"] for step in by_step],
        "inactive_split_end_bytes": stats["inactive_split_bytes.all.current"],
        "num_segments": stats["segment.all.current"],
        "in_use_bytes": device_bytes - free_at_end,
        "context_at_start_bytes": device_bytes - free_at_start,
        "context_at_end_bytes": device_bytes - free_at_end - reserved_bytes,
    }


def rehearse(network: Network, optimizer: str, steps: int) -> dict[str, Any]:
    """The same steps on the CPU, which has no allocator to read."""
    training = prepare(network, TRIAL_BATCH, optimizer, torch.device("cpu"))
    for _ in range(steps):
        training.step()
    unknown = dict.fromkeys(PER_PHASE)
    return {
        "parameter_bytes": _parameter_bytes(training.module),
        "phases": dict.fromkeys(PHASES, unknown),
    }


def record(network: Network, batch: int, optimizer: str, steps: int, path: Path) -> None:
    """Write a snapshot of PyTorch's memory with every request of a fresh process."""
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=MAX_ENTRIES)  # noqa: SLF001
    training = prepare(network, batch, optimizer, CUDA)
    for _ in range(steps):
        training.step()
    torch.cuda.memory._dump_snapshot(str(path))  # noqa: SLF001


def about() -> dict[str, Any]:
    """What the figures depend on besides the network."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "system": platform.system(),
        "driver": _driver(),
        "card": None,
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(CUDA)
        found |= {
            "card": properties.name,
            "device_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "cudnn": torch.backends.cudnn.version(),
            "allocator": torch.cuda.get_allocator_backend(),
            "allocator_settings": _allocator_settings(),
            "allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        }
    return found


def _allocator_settings() -> str:
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    return next((os.environ[name] for name in names if name in os.environ), "")


def _driver() -> str | None:
    """The driver's version, as nvidia-smi prints it; `None`: there is none."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _parameter_bytes(module: nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in module.parameters())


def _loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if logits.dim() == 3:  # noqa: PLR2004  # batch, time, vocabulary
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())
    return functional.cross_entropy(logits, target)


def _target_shape(batch: int, logits: torch.Tensor) -> tuple[int, ...]:
    """The labels' shape, from the outputs at the batch of a trial run."""
    if logits.dim() == 3:  # noqa: PLR2004
        return batch, logits.shape[1]
    # Language models flatten batch and time into one dim.
    return logits.shape[0] * batch // TRIAL_BATCH, *logits.shape[2:]


class ConvNet(nn.Module):
    """Features, an average pool to a fixed size, and a classifier: AlexNet and the VGGs."""

    def __init__(self, features: nn.Sequential, pool: int, classifier: nn.Sequential) -> None:
        super().__init__()
        self.features = features
        self.avgpool = nn.AdaptiveAvgPool2d(pool)
        self.classifier = classifier

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x)
        x = self.avgpool(x)
        x = torch.flatten(x, 1)
        logits: torch.Tensor = self.classifier(x)
        return logits


def mlp() -> nn.Module:
    """Four hidden layers of a hundred."""
    sizes = (1000, 100, 100, 100, 100)
    layers: list[nn.Module] = []
    for num_in, num_out in pairwise(sizes):
        layers += [nn.Linear(num_in, num_out), nn.ReLU()]
    return nn.Sequential(OrderedDict(f=nn.Sequential(*layers, nn.Linear(100, 10))))


def alexnet() -> nn.Module:
    """AlexNet (Krizhevsky, 2014)."""
    features = nn.Sequential(
        *(nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
    )
    classifier = nn.Sequential(
        *(nn.Dropout(), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(inplace=True)),
        *(nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True)),
        nn.Linear(4096, 1000),
    )
    return ConvNet(features, 6, classifier)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, num_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(num_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(num_in, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        activated: torch.Tensor = self.relu(out)
        return activated


class ResNet(nn.Module):
    """ResNet (He and others, 2016): a stem, then `depths` blocks of each of four widths."""

    def __init__(
        self,
        block: Callable[[int, int, int], nn.Module],
        depths: tuple[int, ...],
        expansion: int,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks = []
        num_in = 64
        for width, depth in zip((64, 128, 256, 512), depths, strict=True):
            for index in range(depth):
                stride = 2 if index == 0 and width > 64 else 1  # noqa: PLR2004  # the stem's width
                blocks.append(block(num_in, width, stride))
                num_in = width * expansion
        self.body = nn.Sequential(*blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(num_in, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(torch.flatten(self.avgpool(self.body(self.stem(x))), 1))
        return logits


def _conv_bn(num_in: int, num_out: int, kernel: int, stride: int, groups: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(num_in, num_out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(num_out),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """Expand, convolve each channel, project; added to its input where the shapes agree."""

    def __init__(self, num_in: int, num_out: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = num_in * expansion
        self.residual = stride == 1 and num_in == num_out
        layers = [_conv_bn(num_in, width, 1, 1, 1)] if expansion > 1 else []
        self.conv = nn.Sequential(
            *layers,
            _conv_bn(width, width, 3, stride, width),
            nn.Conv2d(width, num_out, 1, bias=False),
            nn.BatchNorm2d(num_out),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.residual:
            return x + self.conv(x)
        projected: torch.Tensor = self.conv(x)
        return projected


class MobileNetV2(nn.Module):
    """MobileNetV2 (Sandler and others, 2018), width 1."""

    stages = (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    )
    """Expansion, channels, blocks and stride of each."""

    def __init__(self) -> None:
        super().__init__()
        features: list[nn.Module] = [_conv_bn(3, 32, 3, 2, 1)]
        num_in = 32
        for expansion, width, depth, stride in self.stages:
            for index in range(depth):
                first_stride = stride if index == 0 else 1
                features.append(InvertedResidual(num_in, width, first_stride, expansion))
                num_in = width
        features.append(_conv_bn(num_in, 1280, 1, 1, 1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x)
        x = functional.adaptive_avg_pool2d(x, (1, 1))
        x = torch.flatten(x, 1)
        logits: torch.Tensor = self.classifier(x)
        return logits


class Attention(nn.Module):
    """Self-attention of separate projections, written out; `length` given makes it causal."""

    mask: torch.Tensor | None

    def __init__(self, width: int, num_heads: int, dropout: float, length: int | None) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_width = width // num_heads  # computed here, it is a constant of the graph
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.o = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)
        mask = None
        if length is not None:
            mask = torch.ones(1, 1, length, length, dtype=torch.bool).triu(1)
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = (batch, length, self.num_heads, self.head_width)
        q = self.q(x).view(heads).transpose(1, 2)
        k = self.k(x).view(heads).transpose(1, 2)
        v = self.v(x).view(heads).transpose(1, 2)
        a = q @ k.transpose(-2, -1) / math.sqrt(self.head_width)
        if self.mask is not None:
            a = a.masked_fill(self.mask, -1e9)
        a = self.drop(a.softmax(-1))
        out: torch.Tensor = self.o((a @ v).transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    """Normalized first, then attention and a GELU layer of four times the width."""

    def __init__(self, width: int, num_heads: int, dropout: float, length: int | None) -> None:
        super().__init__()
        self.at = Attention(width, num_heads, dropout, length)
        self.n1 = nn.LayerNorm(width)
        self.n2 = nn.LayerNorm(width)
        self.f1 = nn.Linear(width, 4 * width)
        self.f2 = nn.Linear(4 * width, width)
        self.act = nn.GELU()
        self.d1 = nn.Dropout(dropout)
        self.d2 = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.d1(self.at(self.n1(x)))
        return x + self.d2(self.f2(self.act(self.f1(self.n2(x)))))


class LanguageModel(nn.Module):
    """Tokens in, logits of every position out, flattened."""

    def __init__(
        self, vocabulary: int, length: int, width: int, num_heads: int, depth: int
    ) -> None:
        super().__init__()
        self.we = nn.Embedding(vocabulary, width)
        self.pe = nn.Parameter(torch.zeros(1, length, width))
        self.dr = nn.Dropout(0.1)
        self.bl = nn.Sequential(*(Block(width, num_heads, 0.1, length) for _ in range(depth)))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.dr(self.we(x) + self.pe)
        h = self.bl(h)
        logits: torch.Tensor = self.head(self.ln(h)).flatten(0, 1)
        return logits


def image(batch: int) -> Tensors:
    """Images of ImageNet's size."""
    return (torch.zeros(batch, 3, 224, 224),)


def features(batch: int) -> Tensors:
    """A thousand numbers a sample."""
    return (torch.zeros(batch, 1000),)


def tokens(length: int) -> Callable[[int], Tensors]:
    """Numbers of words, so many a sample."""
    return lambda batch: (torch.zeros(batch, length, dtype=torch.int64),)


NETWORKS = (
    Network("mlp", mlp, features, (256, 2048)),
    Network("alexnet", alexnet, image, (32, 128)),
    Network("resnet18", lambda: ResNet(BasicBlock, (2, 2, 2, 2), 1), image, (16, 128)),
    Network("mobilenetv2", MobileNetV2, image, (16, 128)),
    Network("tiny_transformer", lambda: LanguageModel(1000, 64, 128, 4, 2), tokens(64), (8, 64)),
)
BY_NAME = {network.name: network for network in NETWORKS}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("networks", nargs="*", metavar="NETWORK", help=f"default: all of {', '.join(BY_NAME)}")
    add("--batch", type=int, metavar="N", help="default: one of each network's own")
    add("--optimizers", nargs="*", choices=OPTIMIZERS, default=OPTIMIZERS)
    add("--steps", type=int, default=4, metavar="N", help="of which the last is read (default: 4)")
    add("-o", "--output", type=Path, default=Path("gpu_truth.json"), help="default: %(default)s")
    add("--snapshots", type=Path, metavar="FOLDER", help="write PyTorch's memory snapshots, too")
    add("--cpu", action="store_true", help="without a GPU, at a batch of 2: does the file run?")
    add("--here", action="store_true", help=argparse.SUPPRESS)  # one row, in this process
    options = parser.parse_args()
    unknown = [name for name in options.networks if name not in BY_NAME]
    if unknown:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    if not (options.cpu or torch.cuda.is_available()):
        parser.error("torch sees no GPU with CUDA; --cpu tries the file without one")
    return options


def _row_here(options: argparse.Namespace) -> dict[str, Any]:
    """One row, by this process."""
    network, optimizer = BY_NAME[options.networks[0]], options.optimizers[0]
    batch = TRIAL_BATCH if options.cpu else options.batch or network.batches[0]
    key = {"model": network.name, "batch": batch, "optimizer": optimizer, "error": None}
    try:
        if options.cpu:
            return key | rehearse(network, optimizer, options.steps)
        if options.snapshots:
            path = options.snapshots / f"{network.name}_{batch}_{optimizer}.pickle"
            record(network, batch, optimizer, options.steps, path)
            return key
        return key | measure(network, batch, optimizer, options.steps)
    except torch.cuda.OutOfMemoryError as fault:
        return key | {"error": str(fault)}


def _rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Each row from a process of its own; one that fails costs no other its row."""
    for name, optimizer in product(options.networks or BY_NAME, options.optimizers):
        command = [sys.executable, __file__, name, "--here", "--optimizers", optimizer]
        command += ["--steps", str(options.steps), *(["--cpu"] if options.cpu else [])]
        command += ["--batch", str(options.batch)] if options.batch else []
        print(f"{name}, {optimizer} ...", file=sys.stderr)
        yield _row_of(command, {"model": name, "optimizer": optimizer})
        if options.snapshots and not options.cpu:
            _row_of([*command, "--snapshots", str(options.snapshots)], {})


def _row_of(command: list[str], key: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        print(f"  failed: {last}", file=sys.stderr)
        return key | {"error": last}
    row: dict[str, Any] = json.loads(done.stdout)
    if row["error"]:
        print(f"  failed: {row['error']}", file=sys.stderr)
    return row


def _main() -> int:
    options = _options()
    if options.here:
        print(json.dumps(_row_here(options)))
        return 0
    if options.snapshots:
        options.snapshots.mkdir(parents=True, exist_ok=True)
    rows = list(_rows(options))
    head = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "steps": options.steps}
    text = json.dumps(head | {"about": about(), "rows": rows}, indent=1)
    print(text)
    options.output.write_text(text + "\n")
    print(f"written to {options.output}", file=sys.stderr)
    return 1 if any(row["error"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(_main())

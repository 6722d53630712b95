"""Measure training steps on a CUDA GPU: what PyTorch allocates, reserves and takes besides.

    python tools/training/gpu_truth.py > gpu_truth.jsonl
    python tools/training/gpu_truth.py resnet18 gpt2_small --optimizers adam --events events

It wants torch with CUDA and the files beside it. One JSON row a line, each measured by a process of
its own, so that nothing is cached from the row before. `--events` also has every request to the
caching allocator written down, with the segments that it took: a replay of the same requests tells
the allocator's error apart from that of the step's tensors.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
from given import NETWORKS
from settings import Network
from torch import nn
from torch.nn import functional

DEVICE = torch.device("cuda", 0)
OPTIMIZERS = ("sgd", "adam")
DEFAULT_NETWORKS = ("mlp", "alexnet", "resnet18", "mobilenetv2", "tiny_transformer")
MAX_ENTRIES = 4_000_000
TRIAL_BATCH = 2


@dataclass(slots=True)
class Recorded:
    """The allocator's requests, phase by phase, from when this is made."""

    phases: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """(number of the block, bytes asked for), frees below 0, in order."""
    segments: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """What was taken from the device and given back: (action, bytes)."""
    reserved_bytes: dict[str, int] = field(default_factory=dict)
    """What was reserved at the end of each phase."""
    _alive: dict[int, tuple[int, int]] = field(default_factory=dict)
    _num_blocks: int = 0
    _num_entries: int = 0

    def __post_init__(self) -> None:
        torch.cuda.memory._record_memory_history(  # noqa: SLF001
            "all", context=None, max_entries=MAX_ENTRIES
        )

    def take(self, phase: str) -> None:
        """File what the allocator has done since the last call under `phase`."""
        torch.cuda.synchronize(DEVICE)
        entries = torch.cuda.memory._snapshot()["device_traces"][DEVICE.index]  # noqa: SLF001
        if len(entries) >= MAX_ENTRIES:
            msg = f"more than {MAX_ENTRIES} entries up to {phase}: the first are lost"
            raise SystemExit(msg)
        new, self._num_entries = entries[self._num_entries :], len(entries)
        self.phases[phase] = list(self._requests(new))
        self.segments[phase] = [
            (entry["action"], entry["size"]) for entry in new if "segment" in entry["action"]
        ]
        self.reserved_bytes[phase] = torch.cuda.memory_reserved(DEVICE)

    def _requests(self, entries: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
        # A block is back in its pool when it is "free_completed"; on one stream that is at once.
        for entry in entries:
            if entry["action"] == "alloc":
                self._alive[entry["addr"]] = self._num_blocks, entry["size"]
                yield self._num_blocks, entry["size"]
                self._num_blocks += 1
            elif entry["action"] == "free_completed":
                number, size_bytes = self._alive.pop(entry["addr"])
                yield number, -size_bytes


@dataclass(slots=True)
class Training:
    """A network on the GPU in float32, stepped as a training loop does it."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    target: torch.Tensor
    optimizer: torch.optim.Optimizer
    outputs: tuple[torch.Tensor, torch.Tensor] | None = None

    def step(self) -> None:
        """One step; its outputs and gradients live on until the next one."""
        self.optimizer.zero_grad(set_to_none=True)
        self.outputs = None
        logits = self.module(*self.inputs)
        loss = _loss(logits, self.target)
        loss.backward()
        self.optimizer.step()
        self.outputs = logits, loss


def prepare(network: Network, batch: int, optimizer: str) -> Training:
    """Build on the CPU, then move: no part of it runs on the GPU before the first step."""
    torch.manual_seed(0)
    module = network.build().train()
    inputs = network.inputs(batch)
    with torch.no_grad():
        logits = module(*network.inputs(TRIAL_BATCH))
    module = module.to(DEVICE)
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    return Training(
        module,
        tuple(tensor.to(DEVICE) for tensor in inputs),
        torch.zeros(_target_shape(batch, logits), dtype=torch.int64).to(DEVICE),
        kind(module.parameters(), lr=1e-3, foreach=True),
    )


def measure(network: Network, batch: int, optimizer: str, steps: int) -> dict[str, Any]:
    """The figures of a fresh process."""
    free_at_start, device_bytes = torch.cuda.mem_get_info(DEVICE)  # this makes the context
    training = prepare(network, batch, optimizer)
    torch.cuda.reset_peak_memory_stats(DEVICE)
    held_bytes = torch.cuda.memory_allocated(DEVICE)
    reserved_by_step_bytes = []
    for _ in range(steps):
        training.step()
        torch.cuda.synchronize(DEVICE)
        reserved_by_step_bytes.append(torch.cuda.memory_reserved(DEVICE))
    stats = torch.cuda.memory_stats(DEVICE)
    free_at_end, _ = torch.cuda.mem_get_info(DEVICE)
    return {
        "held_bytes": held_bytes,
        "asked_peak_bytes": stats["requested_bytes.all.peak"],
        "allocated_peak_bytes": torch.cuda.max_memory_allocated(DEVICE),
        "reserved_peak_bytes": torch.cuda.max_memory_reserved(DEVICE),
        "reserved_by_step_bytes": reserved_by_step_bytes,
        "allocated_end_bytes": stats["allocated_bytes.all.current"],
        "inactive_split_end_bytes": stats["inactive_split_bytes.all.current"],
        "num_segments": stats["segment.all.current"],
        # Other processes on the device are in it: run where there are none.
        "in_use_with_context_bytes": device_bytes - free_at_end,
        "context_at_start_bytes": device_bytes - free_at_start,
        "context_at_end_bytes": device_bytes - free_at_end - torch.cuda.memory_reserved(DEVICE),
        "device_bytes": device_bytes,
    }


def record(network: Network, batch: int, optimizer: str, steps: int) -> dict[str, Any]:
    """The allocator's requests of a fresh process: of setup, and of each step."""
    recorded = Recorded()
    training = prepare(network, batch, optimizer)
    recorded.take("setup")
    for step in range(1, steps + 1):
        training.step()
        recorded.take(f"step {step}")
    return {
        "requests": recorded.phases,
        "segments": recorded.segments,
        "reserved_bytes": recorded.reserved_bytes,
        "allocated_peak_bytes": torch.cuda.max_memory_allocated(DEVICE),
    }


def about() -> dict[str, Any]:
    """What the figures depend on besides the network."""
    properties = torch.cuda.get_device_properties(DEVICE)
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "device": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        "allow_tf32": torch.backends.cuda.matmul.allow_tf32,
    }


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


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("networks", nargs="*", default=DEFAULT_NETWORKS, help="names of given.py")
    add("--batch", type=int, help="the first of each network's own if left out")
    add("--optimizers", nargs="*", choices=OPTIMIZERS, default=OPTIMIZERS)
    add("--steps", type=int, default=4)
    add("--events", type=Path, help="folder to write the allocator's requests to")
    add("--here", choices=("measure", "record"), help="one row, in this process")
    return parser.parse_args()


def _run_here(network: Network, options: argparse.Namespace) -> None:
    """Run one row: print its figures, or write its requests to the folder of `--events`."""
    batch = options.batch or network.batches[0]
    optimizer = options.optimizers[0]
    key = {"model": network.name, "batch": batch, "optimizer": optimizer}
    if options.here == "measure":
        print(json.dumps(key | measure(network, batch, optimizer, options.steps) | about()))
        return
    options.events.mkdir(parents=True, exist_ok=True)
    path = options.events / f"{network.name}_{batch}_{optimizer}.json"
    found = record(network, batch, optimizer, options.steps)
    path.write_text(json.dumps(key | about() | found))


def _commands(options: argparse.Namespace) -> Iterator[list[str]]:
    """The command lines of the processes, one for each row and thing to do."""
    what = ("measure", "record") if options.events else ("measure",)
    for name, optimizer, here in product(options.networks, options.optimizers, what):
        command = [sys.executable, __file__, name, "--here", here, "--optimizers", optimizer]
        command += ["--steps", str(options.steps)]
        command += ["--batch", str(options.batch)] if options.batch else []
        yield command + (["--events", str(options.events)] if options.events else [])


def _main() -> int:
    options = _options()
    if not torch.cuda.is_available():
        print("this needs a GPU with CUDA; none is seen", file=sys.stderr)
        return 1
    if options.here:
        networks = {network.name: network for network in NETWORKS}
        _run_here(networks[options.networks[0]], options)
        return 0
    codes = [subprocess.run(command, check=False).returncode for command in _commands(options)]  # noqa: S603
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(_main())

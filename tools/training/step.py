"""One training step under the counter: what lives in it, and the peak of each phase."""

# mypy: disable-error-code="no-untyped-call"

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from settings import Network, Settings
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from onnxmem.torch.cuda_like import cuda_like
from onnxmem.torch.live_bytes import (
    Counting,
    LiveBytes,
    Trace,
    naming_modules,
    state_tensors,
    storage_bytes,
)
from onnxmem.torch.measuring import OPTIMIZERS, loss_of, target_of


class _FakeTensors(FakeTensorMode):
    """Fake tensors of one mode, also those of modules that are copied while they are built."""

    def __deepcopy__(self, memo: object) -> "_FakeTensors":
        return self


class _Step:
    """The network with its optimizer, inputs and counter, ready to be stepped."""

    def __init__(self, network: Network, batch: int, settings: Settings, mode: Counting) -> None:
        self.settings = settings
        self.mode = mode
        self.loss_kind = settings.loss or network.loss
        self.module = _prepared(network.build().train(settings.training), settings)
        self.inputs = network.inputs(batch)
        with torch.no_grad():
            self.target = target_of(self.module(*self.inputs), self.loss_kind)
        self.optimizer = OPTIMIZERS[settings.optimizer](
            self.module.parameters(), foreach=settings.foreach, weight_decay=settings.weight_decay
        )
        self.peaks: dict[str, int] = {}
        self.after_forward_bytes = 0
        self.logits_bytes = 0

    def tensors(self) -> Iterator[torch.Tensor]:
        yield from self.module.parameters()
        yield from self.module.buffers()
        yield from self.inputs
        yield self.target

    def run(self) -> None:
        """One optimizer step; what is measured of an earlier one is overwritten."""
        self.peaks = {}
        self.mode.phase = "zero_grad"
        if self.settings.zero_grad != "backward":
            self.optimizer.zero_grad(set_to_none=self.settings.zero_grad == "start")
        for index in range(self.settings.micro_batches):
            # As in a loop, outputs of the last micro-batch live on until they are assigned anew.
            self._enter("forward")
            logits, loss = self._forward()
            self._leave("forward")
            self.after_forward_bytes = self.mode.live.now_bytes
            self.logits_bytes = _size_bytes(logits)
            if self.settings.zero_grad == "backward" and index == 0:
                self.optimizer.zero_grad(set_to_none=True)
            self._enter("backward")
            self.mode.engine.watch(loss)
            loss.backward()
            self._leave("backward")
        self._enter("optimizer")
        self.optimizer.step()
        self._leave("optimizer")
        self.mode.phase = "end"

    def _forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        autocast = torch.autocast("cpu", torch.bfloat16) if self.settings.autocast else None
        with autocast or nullcontext():
            logits = self.module(*self.inputs)
            loss = loss_of(logits, self.target, self.loss_kind)
            if self.settings.micro_batches > 1:
                loss = loss / self.settings.micro_batches
        return logits, loss

    def _enter(self, phase: str) -> None:
        self.mode.phase = phase
        self.mode.engine.between_nodes = False
        self.mode.live.start_phase()

    def _leave(self, phase: str) -> None:
        self.peaks[phase] = max(self.peaks.get(phase, 0), self.mode.live.peak_bytes)


def measure(
    network: Network, batch: int, settings: Settings, trace: Trace | None = None
) -> dict[str, int]:
    """Bytes of the terms of a step and of its peaks, by name; the step is written to `trace`."""
    torch.manual_seed(0)
    live = LiveBytes()
    mode = Counting(live)
    fake = nullcontext() if settings.real_tensors else _FakeTensors()
    with fake, cuda_like(settings.attention):
        step = _Step(network, batch, settings, mode)
        with mode:
            for tensor in step.tensors():
                live.add(tensor)
            for _ in range(settings.steps - 1):
                step.run()
            state_bytes = _state_bytes(step.optimizer)
            with _traced(mode, step.module, trace):
                step.run()
        return _figures(step, state_bytes)


def _figures(step: _Step, state_bytes: int) -> dict[str, int]:
    parameters = list(step.module.parameters())
    weight_bytes = storage_bytes(parameters)
    buffer_bytes = storage_bytes(step.module.buffers())
    input_bytes = storage_bytes((*step.inputs, step.target))
    held_bytes = weight_bytes + buffer_bytes + input_bytes + state_bytes
    if step.settings.zero_grad != "start":
        held_bytes += _gradient_bytes(parameters) if step.settings.steps > 1 else 0
    return {
        "weight_bytes": weight_bytes,
        "buffer_bytes": buffer_bytes,
        "gradient_bytes": _gradient_bytes(parameters),
        "input_bytes": input_bytes,
        "saved_activation_bytes": step.after_forward_bytes - held_bytes,
        "logits_bytes": step.logits_bytes,
        "optimizer_state_bytes": _state_bytes(step.optimizer),
        "forward_peak_bytes": step.peaks["forward"],
        "backward_peak_bytes": step.peaks["backward"],
        "optimizer_peak_bytes": step.peaks["optimizer"],
        "peak_bytes": max(step.peaks.values()),
    }


def _prepared(module: nn.Module, settings: Settings) -> nn.Module:
    for name in settings.checkpoint:
        _checkpoint(module.get_submodule(name))
    if settings.inplace_relu is not None:
        for submodule in module.modules():
            if hasattr(submodule, "inplace") and not isinstance(submodule, nn.Dropout):
                submodule.inplace = settings.inplace_relu  # type: ignore[assignment]
    return module


def _checkpoint(module: nn.Module) -> None:
    """Have `module` keep its inputs alone, and run again in the backward phase.

    The state of the random number generator is not kept: it is never in the memory of the GPU.
    """
    forward = module.forward

    def run(*args: torch.Tensor, **kwargs: Any) -> object:  # noqa: ANN401
        kept = {"use_reentrant": False, "preserve_rng_state": False}
        return checkpoint(forward, *args, **kwargs, **kept)

    module.forward = run


def _size_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _gradient_bytes(parameters: list[nn.Parameter]) -> int:
    return storage_bytes(each.grad for each in parameters)


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    return storage_bytes(state_tensors(optimizer))


@contextmanager
def _traced(mode: Counting, module: nn.Module, trace: Trace | None) -> Iterator[None]:
    """Write what runs inside to `trace`, each operator with the module it runs in."""
    if trace is None:
        yield
        return
    mode.write_to(trace)
    with naming_modules(mode, module):
        yield
    mode.write_to(None)

"""Measures one training step of a module: under fake tensors, and on CUDA where there is a GPU.

The module itself is left as it is: its step runs on a copy. Under fake tensors the copy has no
data, and every operator is one of PyTorch's own, run as a GPU runs it where that is known to differ
(``cuda_like``). The second step is measured, when the optimizer has its state.
"""

# mypy: disable-error-code="no-untyped-call"

import copy
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.nn import functional
from torch.utils._pytree import tree_iter, tree_map

from onnxmem.analysis.analysis import Analysis, analyze
from onnxmem.analysis.json_rows import error_percent
from onnxmem.errors import UsageError, nearest
from onnxmem.model.files import load
from onnxmem.program.program import Allocation, Category
from onnxmem.runtimes.torch.memory import Phase
from onnxmem.settings import OPTIMIZERS as SETTINGS_OPTIMIZERS
from onnxmem.settings import TrainingConfig
from onnxmem.torch.cuda_like import cuda_like
from onnxmem.torch.live_bytes import (
    Counting,
    LiveBytes,
    naming_modules,
    state_tensors,
    storage_bytes,
)
from onnxmem.units import format_bytes

Inputs: TypeAlias = torch.Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]
MakeOptimizer: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Loss: TypeAlias = Callable[[Any], torch.Tensor]

_NUM_STEPS: Final = 2
"""The first one makes the optimizer's state."""
_SEQUENCE_DIMS: Final = 3
"""Of outputs of batch, time and vocabulary."""
_RATE: Final = 1e-3
_OPTIM: Final = torch.optim
LOSSES: Final = ("cross-entropy", "mse")
OPTIMIZERS: Final[Mapping[str, Callable[..., torch.optim.Optimizer]]] = {
    "sgd": partial(_OPTIM.SGD, lr=_RATE),
    "momentum": partial(_OPTIM.SGD, lr=_RATE, momentum=0.9),
    "nesterov": partial(_OPTIM.SGD, lr=_RATE, momentum=0.9, nesterov=True),
    "rmsprop": _OPTIM.RMSprop,
    "rmsprop-momentum": partial(_OPTIM.RMSprop, momentum=0.9),
    "rmsprop-centered": partial(_OPTIM.RMSprop, centered=True),
    "adagrad": _OPTIM.Adagrad,
    "adadelta": _OPTIM.Adadelta,
    "adam": _OPTIM.Adam,
    "adam-amsgrad": partial(_OPTIM.Adam, amsgrad=True),
    "adamw": _OPTIM.AdamW,
    "adamw-amsgrad": partial(_OPTIM.AdamW, amsgrad=True),
    "adamax": _OPTIM.Adamax,
    "nadam": _OPTIM.NAdam,
    "radam": _OPTIM.RAdam,
    "rprop": _OPTIM.Rprop,
}
"""By the names of ``--optimizer``."""
_WITHOUT_VALUES: Final = (DataDependentOutputException, DynamicOutputShapeException)


@dataclass(frozen=True, slots=True)
class CudaPeak:
    """What PyTorch's CUDA allocator counts in a phase, above what was there before the step."""

    allocated_bytes: int
    """`torch.cuda.max_memory_allocated`."""
    reserved_bytes: int
    """`torch.cuda.max_memory_reserved`."""


@dataclass(frozen=True, slots=True)
class MeasuredPhase:
    """A phase of the measured step."""

    phase: Phase
    live: tuple[Allocation, ...] = field(repr=False)
    """What is alive at the phase's peak, largest first."""
    cuda: CudaPeak | None = None
    """``None``: there is no GPU."""

    @property
    def peak_bytes(self) -> int:
        """The most live bytes of tensors."""
        return sum(each.size_bytes for each in self.live)

    def by_category(self) -> dict[Category, int]:
        """Live bytes at the peak, without the categories of 0 bytes."""
        found = dict.fromkeys(Category, 0)
        for each in self.live:
            found[each.category] += each.size_bytes
        return {category: size for category, size in found.items() if size}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One training step of a module, measured; bytes of tensors."""

    module: str
    """The name of its class."""
    optimizer: str
    torch_version: str
    phases: tuple[MeasuredPhase, ...]
    """Forward, backward and optimizer."""
    weight_bytes: int
    """Parameters."""
    buffer_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    input_bytes: int
    """Inputs and targets."""
    saved_activation_bytes: int
    """What lives from forward to backward: saved tensors, the outputs and the loss."""
    device: str | None
    """The GPU whose allocator was read; ``None``: there is none."""
    prediction: Analysis | None = field(default=None, repr=False)
    """Of the model file, or of the module's export."""

    @property
    def peak_bytes(self) -> int:
        """The largest peak of the phases."""
        return self.peak.peak_bytes

    @property
    def peak(self) -> MeasuredPhase:
        """The phase of the largest peak."""
        return max(self.phases, key=lambda each: each.peak_bytes)

    @property
    def predicted_peak_bytes(self) -> int | None:
        """The predicted peak of a step; ``None``: no file was given."""
        step = None if self.prediction is None else self.prediction.training
        return None if step is None else step.peak_bytes

    @property
    def error_percent(self) -> float | None:
        """How far the prediction is above the measured peak, in percent."""
        return error_percent(self.predicted_peak_bytes, self.peak_bytes)

    def __repr__(self) -> str:
        """The main figures in a few lines."""
        peak = self.peak
        parts = sorted(peak.by_category().items(), key=lambda pair: -pair[1])
        lines = [
            f"<MeasuredStep of {self.module} {self.optimizer} torch {self.torch_version}",
            f"  peak {format_bytes(self.peak_bytes)} in {peak.phase}: "
            + "; ".join(f"{category} {format_bytes(size)}" for category, size in parts),
            *(f"  {_phase_text(each)}" for each in self.phases),
        ]
        if self.predicted_peak_bytes is not None:
            error = "" if self.error_percent is None else f", {self.error_percent:+.1f} %"
            lines.append(f"  predicted {format_bytes(self.predicted_peak_bytes)}{error}")
        return "\n".join(lines) + ">"


def _phase_text(phase: MeasuredPhase) -> str:
    text = f"{phase.phase} {format_bytes(phase.peak_bytes)}"
    if phase.cuda is None:
        return text
    allocated, reserved = map(format_bytes, (phase.cuda.allocated_bytes, phase.cuda.reserved_bytes))
    return f"{text}, CUDA allocated {allocated}, reserved {reserved}"


def measure(  # noqa: PLR0913 - what a training loop has
    module: nn.Module,
    inputs: Inputs,
    *,
    optimizer: str | MakeOptimizer | torch.optim.Optimizer = "adam",
    loss: str | Loss | None = None,
    model: str | os.PathLike[str] | bytes | None = None,
    export: bool = False,
    cuda: bool | None = None,
    fake: bool = True,
) -> MeasuredStep:
    """Measure one training step of a module: forward, loss, backward and the optimizer's step.

    ``inputs`` are a tensor, a tuple of positional arguments or a dict of keyword arguments, real or
    on the ``meta`` device. ``optimizer`` is a name as after ``--optimizer``, a function of the
    parameters (``torch.optim.AdamW``), or an optimizer, whose class and options are taken.
    ``loss`` is a function of the module's outputs, ``"cross-entropy"`` or ``"mse"`` with targets of
    zeros; by default it is the output's own ``loss``, a single number, or cross-entropy.

    ``model`` is an ONNX file of the module: its prediction for these input shapes is beside the
    measurement; with ``export`` the module is exported for it. ``cuda`` also runs the step on the
    GPU and reads its allocator; by default if there is one. With ``fake=False`` the tensors that
    are counted are real, on the CPU: for a module that reads their values. A copy of the module is
    trained. Targets that ``loss`` brings along are not counted.

    :raises UsageError: the optimizer or the loss has no such name, outputs have no loss, or the
        module reads values that fake tensors do not have.
    """
    if isinstance(loss, str) and loss not in LOSSES:
        message = f"loss {loss!r}: {nearest(loss, LOSSES)}one of {', '.join(LOSSES)}"
        raise UsageError(message)
    make = _maker_of(optimizer)
    run = _Run(module, inputs, make, loss, _is_stepped_by(optimizer))
    peaks = _cuda_peaks(run) if (torch.cuda.is_available() if cuda is None else cuda) else {}
    prediction = None
    if model is not None or export:
        prediction = _prediction(run, _exported(run) if model is None else model)
    try:
        return _counted(run, peaks, prediction, fake=fake)
    except _WITHOUT_VALUES as fault:
        message = (
            f"{type(module).__name__} reads values of tensors ({fault}), which fake tensors do not "
            "have: pass fake=False"
        )
        raise UsageError(message) from fault


@dataclass(frozen=True, slots=True)
class _Run:
    """What is measured, as the caller has it."""

    module: nn.Module
    inputs: Inputs
    make: MakeOptimizer
    loss: str | Loss | None
    is_stepped: Callable[[nn.Parameter], bool]
    """Whether the optimizer has a parameter."""

    def optimizer_name(self) -> str:
        """The name of the optimizer as ``--optimizer`` has it, or that of its class."""
        made = self.make([nn.Parameter(torch.zeros(1))])
        options = made.defaults
        name = type(made).__name__.lower()
        if name == "sgd" and options.get("momentum"):
            return "nesterov" if options.get("nesterov") else "momentum"
        words = (("amsgrad", "amsgrad"), ("centered", "centered"), ("momentum", "momentum"))
        added = [word for key, word in words if options.get(key)]
        return "-".join((name, *added))


class _Step:
    """A copy of a module with its optimizer and inputs, ready to be stepped; mutable."""

    def __init__(self, run: _Run, copied: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.loss = run.loss
        self.module = copy_of(run.module, copied)
        if not self.module.training:
            self.module.train()
        found = _copies(run.inputs, copied)
        self.args: tuple[Any, ...] = ()
        self.kwargs: Mapping[str, Any] = {}
        if isinstance(found, Mapping):
            self.kwargs = found
        else:
            self.args = tuple(found) if isinstance(found, tuple | list) else (found,)
        pairs = zip(run.module.parameters(), self.module.parameters(), strict=True)
        stepped = [copied for original, copied in pairs if run.is_stepped(original)]
        self.optimizer = _as_on_cuda(run.make(stepped))
        self.target: torch.Tensor | None = None

    def input_tensors(self) -> list[torch.Tensor]:
        """Inputs and, after the first step, targets."""
        leaves = (*tree_iter((self.args, dict(self.kwargs))), self.target)
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def run(self, phases: Callable[[Phase, torch.Tensor | None], Any]) -> None:
        """One step, as a training loop has it; ``phases`` is a context of each phase."""
        self.optimizer.zero_grad(set_to_none=True)
        with phases(Phase.FORWARD, None):
            outputs = self.module(*self.args, **self.kwargs)
            loss = self._loss_of(outputs)
        with phases(Phase.BACKWARD, loss):
            loss.backward()
        with phases(Phase.OPTIMIZER, None):
            self.optimizer.step()

    def _loss_of(self, outputs: Any) -> torch.Tensor:
        if callable(self.loss):
            return self.loss(outputs)
        # A scalar output is the loss itself, as transformers' models return it where labels are
        # among the inputs.
        own = outputs if isinstance(outputs, torch.Tensor) else _named(outputs, "loss")
        if self.loss is None and own is not None and not own.dim():
            return own
        logits = outputs if isinstance(outputs, torch.Tensor) else _named(outputs, "logits")
        if logits is None:
            logits = next((x for x in tree_iter(outputs) if isinstance(x, torch.Tensor)), None)
        if logits is None:
            message = "the module's outputs have no tensor; pass loss=, a function of the outputs"
            raise UsageError(message)
        if self.target is None:
            self.target = target_of(logits, self.loss)
        return loss_of(logits, self.target, self.loss)


def _as_on_cuda(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """An optimizer that steps all parameters at once where CUDA's default does so.

    Source: `_default_to_fused_or_foreach` of torch/optim/optimizer.py, which looks at the device.
    """
    if not isinstance(optimizer, torch.optim.Adafactor):
        for group in optimizer.param_groups:
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True
    return optimizer


def _named(outputs: object, name: str) -> torch.Tensor | None:
    found = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
    return found if isinstance(found, torch.Tensor) else None


def target_of(logits: torch.Tensor, loss: str | None) -> torch.Tensor:
    """Labels of zeros, or for ``mse`` values of the outputs' own shape."""
    if loss == "mse":
        return torch.zeros_like(logits)
    shape = (logits.shape[0], *logits.shape[2:])
    if logits.dim() == _SEQUENCE_DIMS:
        shape = logits.shape[:-1]
    return torch.zeros(shape, dtype=torch.int64, device=logits.device)


def loss_of(logits: torch.Tensor, target: torch.Tensor, loss: str | None) -> torch.Tensor:
    """The loss of that name, by default cross entropy: over each position of a sequence."""
    if loss == "mse":
        return functional.mse_loss(logits, target)
    if logits.dim() == _SEQUENCE_DIMS:
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())
    return functional.cross_entropy(logits, target)


def _maker_of(optimizer: str | MakeOptimizer | torch.optim.Optimizer) -> MakeOptimizer:
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            known = list(OPTIMIZERS)
            hint = "or a function of the parameters, as torch.optim.AdamW"
            message = (
                f"optimizer {optimizer!r}: {nearest(optimizer, known)}{', '.join(known)}, {hint}"
            )
            raise UsageError(message)
        return OPTIMIZERS[optimizer]
    if isinstance(optimizer, torch.optim.Optimizer):
        kind: Any = type(optimizer)
        return partial(kind, **optimizer.defaults)
    return optimizer


def _is_stepped_by(
    optimizer: str | MakeOptimizer | torch.optim.Optimizer,
) -> Callable[[nn.Parameter], bool]:
    """Whether an optimizer has a parameter; one to be made has all that are trained."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return lambda parameter: parameter.requires_grad
    stepped = {id(each) for group in optimizer.param_groups for each in group["params"]}
    return lambda parameter: id(parameter) in stepped


def copy_of(module: nn.Module, copied: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """A copy of a module in which each tensor is another one, those that it shares still shared."""
    tensors = [*module.parameters(), *module.buffers()]
    for each in module.modules():
        tensors += [value for value in vars(each).values() if isinstance(value, torch.Tensor)]
    # ``deepcopy`` takes what is in its memo for copied: a tensor that modules share is copied once.
    memo = {id(tensor): copied(tensor) for tensor in tensors}
    return copy.deepcopy(module, memo)


def _copies(inputs: Inputs, copied: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return tree_map(lambda x: copied(x) if isinstance(x, torch.Tensor) else x, inputs)


def _as_parameter(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Values with the role of a tensor: a parameter, or a plain tensor."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(values, requires_grad=tensor.requires_grad)
    return values.requires_grad_(tensor.requires_grad)


class WithoutData:
    """Makes a fake tensor of each tensor; those on one storage share one again."""

    def __init__(self) -> None:
        self._bases: dict[int, torch.Tensor] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor like it."""
        storage = tensor.untyped_storage()
        key = storage._cdata  # its address, the one identity a storage has
        if key not in self._bases:
            num_elements = storage.nbytes() // tensor.element_size()
            self._bases[key] = torch.empty(num_elements, dtype=tensor.dtype, device="cpu")
        base = self._bases[key]
        if base.dtype != tensor.dtype:
            base = base.view(tensor.dtype)
        shape = tensor.size(), tensor.stride(), tensor.storage_offset()
        return _as_parameter(tensor, base.as_strided(*shape))


def _with_data(tensor: torch.Tensor, device: str) -> torch.Tensor:
    values = tensor.detach().to(device, copy=True)
    return _as_parameter(tensor, values)


def _counted(
    run: _Run, cuda: Mapping[Phase, CudaPeak], prediction: Analysis | None, *, fake: bool
) -> MeasuredStep:
    """Run the steps under the counter."""
    live = LiveBytes()
    mode = Counting(live)
    copied = WithoutData() if fake else partial(_with_data, device="cpu")
    phases: dict[Phase, tuple[Allocation, ...]] = {}
    after_forward = 0

    @contextmanager
    def counted(phase: Phase, loss: torch.Tensor | None) -> Iterator[None]:
        nonlocal after_forward
        mode.phase = phase.value
        mode.engine.between_nodes = False
        live.start_phase()
        if loss is not None:
            mode.engine.watch(loss)
        yield
        _name_what_is_kept(step, live)
        phases[phase] = live.live_at_peak()
        if phase is Phase.FORWARD:
            after_forward = live.now_bytes
        mode.phase = ""

    with ExitStack() as stack:
        if fake:
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(cuda_like("fused"))
        step = _Step(run, copied)
        stack.enter_context(mode)
        stack.enter_context(naming_modules(mode, step.module))
        _count_what_is_there(step, live)
        for _ in range(_NUM_STEPS):
            # The state that is there when a step begins: what forward leaves is counted without it.
            state_bytes = storage_bytes(state_tensors(step.optimizer))
            step.run(counted)
        weight_bytes = storage_bytes(step.module.parameters())
        buffer_bytes = storage_bytes(step.module.buffers())
        input_bytes = storage_bytes(step.input_tensors())
        held_bytes = weight_bytes + buffer_bytes + input_bytes + state_bytes
        return MeasuredStep(
            module=type(run.module).__name__,
            optimizer=run.optimizer_name(),
            torch_version=torch.__version__,
            phases=tuple(
                MeasuredPhase(phase, found, cuda.get(phase)) for phase, found in phases.items()
            ),
            weight_bytes=weight_bytes,
            buffer_bytes=buffer_bytes,
            gradient_bytes=storage_bytes(each.grad for each in step.module.parameters()),
            optimizer_state_bytes=storage_bytes(state_tensors(step.optimizer)),
            input_bytes=input_bytes,
            saved_activation_bytes=after_forward - held_bytes,
            device=torch.cuda.get_device_name() if cuda else None,
            prediction=prediction,
        )


def _count_what_is_there(step: _Step, live: LiveBytes) -> None:
    for name, parameter in step.module.named_parameters():
        live.add(parameter, Category.WEIGHT, name)
    for name, buffer in step.module.named_buffers():
        live.add(buffer, Category.BUFFER, name)
    for tensor in step.input_tensors():
        live.add(tensor, Category.INPUT, f"input {list(tensor.shape)}")


def _name_what_is_kept(step: _Step, live: LiveBytes) -> None:
    """Gradients, state and targets: an operator made them, and only now it is known for what."""
    for name, parameter in step.module.named_parameters():
        if parameter.grad is not None:
            live.relabel(parameter.grad, Category.GRADIENT, f"gradient of {name}")
    for tensor in state_tensors(step.optimizer):
        live.relabel(tensor, Category.STATE, f"state {list(tensor.shape)}")
    if step.target is not None:
        live.relabel(step.target, Category.INPUT, f"target {list(step.target.shape)}")


def _cuda_peaks(run: _Run) -> dict[Phase, CudaPeak]:
    """Run the steps on the GPU; the figures are those of the last one."""
    # Segments that earlier work has cached would serve the step, and not be counted as reserved by
    # it.
    torch.cuda.empty_cache()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    step = _Step(run, partial(_with_data, device="cuda"))
    found: dict[Phase, CudaPeak] = {}

    @contextmanager
    def watched(phase: Phase, _: torch.Tensor | None) -> Iterator[None]:
        torch.cuda.reset_peak_memory_stats()
        yield
        torch.cuda.synchronize()
        found[phase] = CudaPeak(
            torch.cuda.max_memory_allocated() - allocated,
            torch.cuda.max_memory_reserved() - reserved,
        )

    for _ in range(_NUM_STEPS):
        step.run(watched)
    return found


def _exported(run: _Run) -> bytes:
    """The module as an ONNX model, by the exporter that the installed torch has."""
    step = _Step(run, partial(_with_data, device="cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a module in training mode, which it shall be
        program: Any = torch.onnx.export(
            step.module, step.args, kwargs=dict(step.kwargs), dynamo=True, verbose=False
        )
    found: bytes = program.model_proto.SerializeToString()
    return found


def _prediction(run: _Run, model: str | os.PathLike[str] | bytes) -> Analysis:
    """The prediction for a file at the shapes of the inputs."""
    name = run.optimizer_name()
    if name not in SETTINGS_OPTIMIZERS:
        message = f"no prediction for the optimizer {name!r}; pass a name: {', '.join(OPTIMIZERS)}"
        raise UsageError(message)
    types = {each.dtype for each in run.module.parameters()}
    precision = "bf16" if types == {torch.bfloat16} else "fp32"
    loss = run.loss if isinstance(run.loss, str) else "cross-entropy"
    recipe = TrainingConfig(optimizer=name, precision=precision, loss=loss)
    return analyze(model, shapes=_shapes(run.inputs, model), train=True, recipe=recipe)


def _shapes(inputs: Inputs, model: str | os.PathLike[str] | bytes) -> dict[str, tuple[int, ...]]:
    """The shape of each input of a file: by name, or in order."""
    graph = load(model).proto.graph
    weights = {each.name for each in graph.initializer}
    names = [each.name for each in graph.input if each.name not in weights]
    if isinstance(inputs, Mapping) and {*inputs} <= {*names}:
        return {name: tuple(each.shape) for name, each in inputs.items()}
    leaves = [leaf for leaf in tree_iter(inputs) if isinstance(leaf, torch.Tensor)]
    if len(leaves) != len(names):
        message = f"the file has {len(names)} inputs ({', '.join(names[:5])}), not {len(leaves)}"
        raise UsageError(message)
    return {name: tuple(leaf.shape) for name, leaf in zip(names, leaves, strict=True)}

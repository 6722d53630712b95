"""The settings of an analysis and of training; reports print defaults as assumptions.

The names of runtimes, optimizers and so on are repeated here, so that the command line can list
them without importing those packages; a test compares the lists.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Final

from onnxmem.errors import UsageError

Values = tuple[int | float | bool, ...]
"""Elements in row-major order; a single one is broadcast."""
ValueLike = int | float | bool | Sequence[int | float | bool]
"""A value as Python users write it: a scalar or a list."""

_NUMBER: Final = re.compile(
    r"[+-]?(\d{1,20}|\d{1,20}\.|\d{0,20}\.\d{1,20}|\d{1,20}(\.\d{0,20})?[eE][+-]?\d{1,3})", re.ASCII
)
_TRUTHS: Final = {"true": True, "false": False}


def num_cores() -> int:
    """The number of this machine's cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def parse_values(text: str) -> Values:
    """Read ``16000``, ``0.5``, ``true`` or ``1,2,3``.

    :raises UsageError: an element that is none of these.
    """
    return tuple(_parsed(part.strip()) for part in text.split(","))


def _parsed(text: str) -> int | float | bool:
    if text.lower() in _TRUTHS:
        return _TRUTHS[text.lower()]
    if not _NUMBER.fullmatch(text):
        message = f"{text!r} is not a number, true or false"
        raise UsageError(message)
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def read_values(values: Mapping[str, ValueLike]) -> dict[str, Values]:
    """Every value as a tuple of elements.

    :raises UsageError: a value is empty, or an element is not a number.
    """
    read = {name: _elements(value) for name, value in values.items()}
    check_values(read)
    return read


def check_values(values: Mapping[str, Values]) -> None:
    """Check that all values consist of numbers.

    :raises UsageError: a value is empty, or an element is not a number.
    """
    for name, elements in values.items():
        if not elements or not all(isinstance(element, int | float) for element in elements):
            message = f"the value of {name!r} is not a number, a boolean or a list of them"
            raise UsageError(message)


def _refuse_unknown(*named: tuple[str, str, Sequence[str]]) -> None:
    """Refuse a name that is not one of those known for what it names."""
    for what, name, known in named:
        if name not in known:
            message = f"{what} {name!r} is not known; choose one of {', '.join(known)}"
            raise UsageError(message)


def _elements(value: ValueLike) -> Values:
    plain = value.tolist() if hasattr(value, "tolist") else value  # numpy arrays and scalars
    if isinstance(plain, int | float):
        return (plain,)
    return tuple(plain) if isinstance(plain, Sequence) else ()


def listed_shape(value: object) -> tuple[int | str, ...] | None:
    """A shape from the list of its dims in a JSON or TOML file; ``None`` if it is not one.

    A dim is a positive number, or the name that the file has there.

    >>> listed_shape(["N", 3]), listed_shape([0, 3]), listed_shape(["", 3])
    (('N', 3), None, None)
    """
    if not isinstance(value, list) or not all(map(_is_dim, value)):
        return None
    return tuple(value)


def _is_dim(value: object) -> bool:
    return (type(value) is int and value > 0) or (isinstance(value, str) and value != "")


OPTIMIZERS: Final = (
    *("sgd", "momentum", "nesterov"),
    *("rmsprop", "rmsprop-momentum", "rmsprop-centered", "rmsprop-centered-momentum"),
    *("adagrad", "adadelta", "adam", "adam-amsgrad", "adamw", "adamw-amsgrad"),
    *("adamax", "nadam", "radam", "rprop", "asgd", "muon", "adafactor"),
    *("lion", "lamb", "adam8bit"),
)
PRECISIONS: Final = ("fp32", "mixed-fp16", "mixed-bf16", "bf16", "fp16-master", "bf16-master")
LOSSES: Final = ("cross-entropy", "mse", "none")
OPTIMIZER_FORMS: Final = ("foreach", "single", "fused")
ZERO_GRADS: Final = ("start", "before-backward", "keep")
LEFT_OPEN: Final = frozenset({"assume_batchnorm", "in_place_activations"})
"""Fields that are true, false, or ``None``: inferred from the file."""
ATTENTIONS: Final = ("fused", "math")
RECURRENTS: Final = ("cudnn", "cells")
SHARDINGS: Final = ("none", "ddp", "zero1", "zero2", "zero3")
TORCHES: Final = ("1.12", "2.0", "2.5", "latest")
_DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {"1.12": {"optimizer_form": "single", "attention": "math", "zero_grad": "keep"}}
)
"""Defaults of older releases of PyTorch that differ from those of the latest.

Sources: torch/optim/adam.py of 1.12.1 (``foreach`` defaults to false) and of 2.0.1,
``Optimizer.zero_grad`` of torch/optim/optimizer.py of both; ``scaled_dot_product_attention`` exists
since 2.0.
"""

H100_THREADS: Final = 132 * 2048
"""The threads that an H100 runs at once; on a GPU with fewer, sums take smaller buffers."""
_USUAL_BYTES: Final = 2 * 4096 * 1024 + 8 * 16 * 1024
_LARGE_BYTES: Final = 32 * 2**20
_LARGE_WORKSPACES: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "1.12": frozenset(),
        "2.0": frozenset({"9"}),
        "2.5": frozenset({"9"}),
        "latest": frozenset({"9", "10", "11", "12"}),
    }
)
"""Major compute capabilities on which PyTorch gives a cuBLAS handle the large workspace: Hopper's,
later Blackwell's too (parseChosenWorkspaceSize of aten/src/ATen/cuda/CublasHandlePool.cpp)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """How a model is trained."""

    torch: str = "latest"
    """The release of PyTorch, on which autocast's lists and the temporaries of optimizers depend;
    :meth:`with_fields` also applies its defaults."""
    optimizer: str = "adam"
    optimizer_form: str = "foreach"
    """The implementation of the optimizer's step: ``foreach``, ``single`` or ``fused``."""
    weight_decay: bool = False
    precision: str = "fp32"
    loss: str = "cross-entropy"
    outputs: tuple[str, ...] = ()
    """Outputs with a loss; empty: every floating output."""
    freeze: tuple[str, ...] = ()
    """Shell patterns of the names of parameters that are not trained."""
    lora_rank: int | None = None
    """The rank of LoRA adapters; the matrices that they adapt are frozen."""
    accumulate: int = 1
    """Gradient accumulation steps: micro-batches per optimizer step."""
    zero_grad: str = "start"
    """When the gradients of the previous step are freed; ``keep``: never, they are set to zero, as
    ``zero_grad(set_to_none=False)`` does and ``zero_grad()`` did before PyTorch 2.0."""
    first_step: bool = False
    """Whether it is the first step, in which the optimizer has no state yet."""
    keep_outputs: bool = False
    """Whether the loop keeps a step's outputs until the next forward pass returns, as a loop that
    assigns them to a name does; a step in a function of its own frees them. Micro-batches always
    keep them."""
    in_place_activations: bool | None = None
    """Whether activations run in place where autograd allows it: those that follow a
    BatchNormalization and would save their input (``None``), all (true), or none (false). If false,
    no sum is assumed to be in place either, as ``x += shortcut`` is."""
    attention: str = "fused"
    """How ``scaled_dot_product_attention`` runs: in one kernel, or as two matmuls and a softmax."""
    recurrent: str = "cudnn"
    """How LSTM, GRU and RNN run: a module in one call of cuDNN, as on CUDA, or cell by cell, as on
    the CPU."""
    assume_batchnorm: bool | None = None
    """Whether BatchNormalization that the export folded into a layer is restored: if the file shows
    it (``None``), also if the file does not show whether there was one (true), or never (false)."""
    assume_dropout: bool = False
    """Whether to assume Dropout that the export left out."""
    checkpoint: str = "none"
    """Activation checkpointing: ``none``, ``blocks``, ``blocks=PATTERN``, ``sqrt``, ``every=K`` or
    ``best``."""
    shard: str = "none"
    world: int = 1
    """The number of ranks."""
    cublas_workspace_bytes: int | None = None
    """Of each cuBLAS handle on CUDA; ``None``: as PyTorch chooses for the GPU."""
    gpu_threads: int | None = None
    """The threads that the GPU runs at once, on which the buffers of sums depend: multiprocessors
    times the threads of each; ``None``: as many as an H100, which is among the largest."""

    def __post_init__(self) -> None:
        """Check the names and counts.

        :raises UsageError: an unknown name, or a count below 1.
        """
        _refuse_unknown(
            ("release of PyTorch", self.torch, TORCHES),
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("optimizer form", self.optimizer_form, OPTIMIZER_FORMS),
            ("precision", self.precision, PRECISIONS),
            ("loss", self.loss, LOSSES),
            ("zero-grad", self.zero_grad, ZERO_GRADS),
            ("attention", self.attention, ATTENTIONS),
            ("recurrent", self.recurrent, RECURRENTS),
            ("sharding", self.shard, SHARDINGS),
        )
        counts = {
            "accumulate": self.accumulate,
            "world": self.world,
            "rank": self.lora_rank,
            "gpu threads": self.gpu_threads,
        }
        for what, count in counts.items():
            if count is not None and (type(count) is not int or count < 1):
                message = f"{what} {count!r} is not a positive integer"
                raise UsageError(message)
        workspace_bytes = self.cublas_workspace_bytes
        if workspace_bytes is not None and (
            type(workspace_bytes) is not int or workspace_bytes < 0
        ):
            message = f"cublas workspace {workspace_bytes!r} is not a size in bytes"
            raise UsageError(message)
        self._check_checkpoint()

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of a command that choose it; none of a field at its default."""
        given = ((each.name, getattr(self, each.name), each.default) for each in fields(self))
        return tuple(
            word
            for name, value, default in given
            if value != default
            for word in flags_of(name, value)
        )

    def with_fields(self, **changed: Any) -> "TrainingConfig":  # noqa: ANN401 - types of the fields
        """The same with other fields; a release of PyTorch also sets its own defaults.

        :raises UsageError: an unknown name, or a count below 1.
        """
        return replace(self, **{**_DEFAULTS.get(changed.get("torch", ""), {}), **changed})

    def cublas_bytes(self, compute_capability: str | None = None) -> int:
        """The workspace of a cuBLAS handle on a GPU: as set, else as PyTorch chooses.

        ``None`` is an unknown GPU, of an architecture before Hopper.
        """
        if self.cublas_workspace_bytes is not None:
            return self.cublas_workspace_bytes
        major = (compute_capability or "").partition(".")[0]
        return _LARGE_BYTES if major in _LARGE_WORKSPACES[self.torch] else _USUAL_BYTES

    @property
    def adds_to_gradients(self) -> bool:
        """Whether gradients are added to tensors that exist before the step."""
        return self.accumulate > 1 or self.zero_grad == "keep"

    def _check_checkpoint(self) -> None:
        name, has_value, value = self.checkpoint.partition("=")
        if not has_value:
            is_known = name in {"none", "blocks", "sqrt", "best"}
        elif name == "blocks":
            is_known = bool(value)
        else:
            is_known = name == "every" and value.isdecimal() and int(value) > 0
        if not is_known:
            message = (
                f"checkpoint {self.checkpoint!r} is not known; choose none, blocks, "
                "blocks=PATTERN, sqrt, every=K or best"
            )
            raise UsageError(message)


def flags_of(name: str, value: object) -> list[str]:
    """The words of a command that set a field of a training configuration.

    >>> flags_of("lora_rank", 8)
    ['--lora-rank', '8']
    """
    plain = "loss-output" if name == "outputs" else name.removesuffix("_bytes").replace("_", "-")
    if isinstance(value, bool):
        return [f"--{plain}" if value else f"--no-{plain}"]
    if isinstance(value, tuple):
        return [word for each in value for word in (f"--{plain}", str(each))]
    return [f"--{plain}", f"{value}{'B' if name.endswith('_bytes') else ''}"]


RUNTIMES: Final = ("ort-cpu", "ort-cuda")
BACKENDS: Final = ("cpu", "cuda")
ORDERS: Final = ("file", "onnxruntime", "best")
PACKINGS: Final = ("quick", "best")
RANKS: Final = ("memory", "price", "bandwidth", "memory-per-dollar", "samples-per-dollar")
"""What devices are ranked by."""
NATIVE: Final = "native"
"""The CPU of this machine."""
CPUS: Final = (NATIVE, "avx512", "avx2", "arm64")
BASES: Final = ("tensors", "process")
GRAPHS: Final = ("raw", "ort-basic", "ort-extended", "ort-all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of an analysis: dims, training, budget, runtime."""

    batch: int | None = None
    """``None``: the batch of the file, or 1."""
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    """Whole shapes of inputs; a dim with the name that the file has there is left free."""
    values: Mapping[str, Values] = field(default_factory=dict)
    """Elements of small inputs on which shapes or control flow depend."""
    most: Mapping[str, int] = field(default_factory=dict)
    """Upper ends of dims that the data of a run decide: by ``TENSOR:AXIS``, or by the name that the
    file declares for the dim. By ``LOOP:iterations``: of a Loop's."""
    train: bool = False
    recipe: TrainingConfig = field(default_factory=TrainingConfig)
    """How the model is trained, if ``train`` is set."""
    budget_bytes: int | None = None
    basis: str | None = None
    """The figure that a verdict compares: ``tensors`` or ``process``; ``None``: ``process`` if
    training or a runtime is requested."""
    accepted: tuple[str, ...] = ()
    """Codes of findings that do not make a verdict unknown."""
    runtimes: tuple[str, ...] = ()
    """Runtimes whose memory is predicted."""
    graph: str | None = None
    """The analyzed graph; ``None``: that of the file, and for a runtime its optimized graph."""
    order: str = "file"
    """The order of execution: the file's, onnxruntime's, or the best that is found."""
    pack: str = "quick"
    """How far a smaller packed block is searched for, one of ``PACKINGS``."""
    measure: str | None = None
    """Backend to run the model on: ``cpu`` or ``cuda``."""
    fixed_dims: bool = False
    """Whether a session is created with numbers instead of symbolic dims."""
    cuda_context_bytes: int | None = None
    """The CUDA context; ``None``: an assumption, which reports print."""
    cuda_workspace_bytes: int | None = None
    """The workspace of cuDNN's convolutions; ``None``: unknown."""
    expandable_segments: bool = False
    """Whether PyTorch's CUDA allocator uses expandable segments."""
    asks_onnxruntime: bool = True
    """False: emulate the graph optimizer of onnxruntime even if it is installed."""
    one_of_several: bool = False
    """Whether the same dims and values are used for several models: a name that this model does not
    have is then a finding instead of an error."""
    cpu: str = NATIVE
    """The CPU that a session runs on, one of ``CPUS``."""

    @property
    def model_flags(self) -> tuple[tuple[str, str], ...]:
        """The flags of a command, each with its value, that choose the dims of the inputs."""
        return (
            *((("--batch", str(self.batch)),) if self.batch is not None else ()),
            *(("--dim", f"{name}={number}") for name, number in self.dims.items()),
            *(
                ("--shape", f"{name}:{','.join(map(str, dims))}")
                for name, dims in self.shapes.items()
            ),
        )

    @property
    def runtime(self) -> str | None:
        """The first runtime; ``None``: none is requested."""
        return next(iter(self.runtimes), None)

    def __post_init__(self) -> None:
        """Check names and numbers.

        :raises UsageError: an unknown name, a number that is not an integer, a negative size.
        """
        self._check_numbers()
        check_values(self.values)
        _refuse_unknown(
            ("backend", "cpu" if self.measure is None else self.measure, BACKENDS),
            ("order", self.order, ORDERS),
            ("packing", self.pack, PACKINGS),
            ("basis", "tensors" if self.basis is None else self.basis, BASES),
            ("cpu", self.cpu, CPUS),
            ("graph", "raw" if self.graph is None else self.graph, GRAPHS),
            *(("runtime", runtime, RUNTIMES) for runtime in self.runtimes),
        )
        if self.measure is not None and self.cpu != "native":
            message = f"a measurement runs on this machine: omit cpu {self.cpu}"
            raise UsageError(message)
        if self.train and self.graph not in {None, "raw"}:
            message = f"a training step runs the graph of the file, not {self.graph}"
            raise UsageError(message)
        if self.train and self.order != "file":
            message = f"a training step runs in the order of the file: omit --order {self.order}"
            raise UsageError(message)

    @property
    def optimizer(self) -> str:
        """The optimizer of the training step."""
        return self.recipe.optimizer

    @property
    def precision(self) -> str:
        """The precision of the training step."""
        return self.recipe.precision

    @property
    def loss(self) -> str:
        """The loss of the training step."""
        return self.recipe.loss

    def _check_numbers(self) -> None:
        dims = (dim for shape in self.shapes.values() for dim in shape if not isinstance(dim, str))
        sizes = {
            "the budget": self.budget_bytes,
            "the CUDA context": self.cuda_context_bytes,
            "the cuDNN workspace": self.cuda_workspace_bytes,
        }
        numbers = (*self.dims.values(), *dims, *self.most.values(), *sizes.values())
        for number in (self.batch, *numbers):
            if number is not None and type(number) is not int:
                message = f"{number!r} is not an integer; batches, dims and sizes are integers"
                raise UsageError(message)
        for what, size in sizes.items():
            if size is not None and size < 0:
                message = f"{what} is {size} bytes, which is negative"
                raise UsageError(message)

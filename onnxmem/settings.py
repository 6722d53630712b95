"""What is requested of an analysis, and of the training in it; defaults are printed as assumptions.

The names are those that runtimes and training know, repeated here so that a command line can offer
them without importing these; a test holds the two together.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from onnxmem.errors import UsageError

Values = tuple[int | float | bool, ...]
"""Elements, row-major; a single one stands for all."""
GivenValue = int | float | bool | Sequence[int | float | bool]
"""A scalar or a list, as Python users write it."""

_NUMBER: Final = re.compile(
    r"[+-]?(\d{1,20}|\d{1,20}\.|\d{0,20}\.\d{1,20}|\d{1,20}(\.\d{0,20})?[eE][+-]?\d{1,3})", re.ASCII
)
_TRUTHS: Final = {"true": True, "false": False}


def parse_values(text: str) -> Values:
    """Read ``16000``, ``0.5``, ``true`` or ``1,2,3``.

    :raises UsageError: an element that is none of these.
    """
    return tuple(_parsed(part.strip()) for part in text.split(","))


def _parsed(text: str) -> int | float | bool:
    if text.lower() in _TRUTHS:
        return _TRUTHS[text.lower()]
    if not _NUMBER.fullmatch(text):
        message = f"{text!r} is no number, true or false"
        raise UsageError(message)
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def read_values(given: Mapping[str, GivenValue]) -> dict[str, Values]:
    """Every value as a tuple of elements.

    :raises UsageError: a value without elements, or with one that is no number.
    """
    values = {name: _elements(value) for name, value in given.items()}
    check_values(values)
    return values


def check_values(values: Mapping[str, Values]) -> None:
    """Refuse what is no value.

    :raises UsageError: a value without elements, or with one that is no number.
    """
    for name, elements in values.items():
        if not elements or not all(isinstance(element, int | float) for element in elements):
            message = f"the value of {name!r} is no number, true, false or list of them"
            raise UsageError(message)


def _elements(value: GivenValue) -> Values:
    plain = value.tolist() if hasattr(value, "tolist") else value  # of numpy
    if isinstance(plain, int | float):
        return (plain,)
    return tuple(plain) if isinstance(plain, Sequence) else ()


def listed_shape(value: object) -> tuple[int, ...] | None:
    """A shape as a JSON or TOML file lists its dims; ``None`` where it is not a list of them."""
    if not isinstance(value, list) or any(type(dim) is not int or dim < 1 for dim in value):
        return None
    return tuple(value)


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
"""Fields that are true, false, or ``None``: as the file shows it."""
ATTENTIONS: Final = ("fused", "math")
SHARDINGS: Final = ("none", "ddp", "zero1", "zero2", "zero3")
TORCHES: Final = ("1.12", "2.0", "2.5", "latest")
_DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {"1.12": {"optimizer_form": "single", "attention": "math", "zero_grad": "keep"}}
)
"""What releases of PyTorch do by default where it is not what the latest does.

Sources: torch/optim/adam.py of 1.12.1 (``foreach`` is false where it is not given) and of 2.0.1,
``Optimizer.zero_grad`` of torch/optim/optimizer.py of both; ``scaled_dot_product_attention`` is
there since 2.0.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """What a training loop does with a model."""

    torch: str = "latest"
    """The release of PyTorch, which decides on autocast's lists and the optimizer's temporaries;
    :meth:`with_fields` takes its defaults too."""
    optimizer: str = "adam"
    optimizer_form: str = "foreach"
    """Of the optimizer's step: all tensors at once, one after another, or in one kernel."""
    weight_decay: bool = False
    precision: str = "fp32"
    loss: str = "cross-entropy"
    outputs: tuple[str, ...] = ()
    """Outputs that losses read; none named: every floating one."""
    freeze: tuple[str, ...] = ()
    """Patterns of the names of parameters that are not trained, as a shell's."""
    lora_rank: int | None = None
    """Of two small factors trained beside each matrix, which is then frozen."""
    accumulate: int = 1
    """Passes whose gradients are added up before the optimizer steps."""
    zero_grad: str = "start"
    """When the gradients of the step before are freed; ``keep``: never, they are filled with zeros,
    as ``zero_grad(set_to_none=False)`` does and ``zero_grad()`` did before PyTorch 2.0."""
    first_step: bool = False
    """Whether it is the first step, in which the optimizer has no state yet."""
    in_place_activations: bool | None = None
    """Whether activations write over their input where autograd allows it: those that follow a
    BatchNormalization and would keep their input (``None``), all (true), or none (false)."""
    attention: str = "fused"
    """How ``scaled_dot_product_attention`` runs: in one kernel, or as products and a softmax."""
    assume_batchnorm: bool | None = None
    """Of BatchNormalization that the export folded into the layer before: put back where the file
    shows it (``None``), also where the file doesn't tell (true), or nowhere (false)."""
    assume_dropout: bool = False
    """Whether there was Dropout that the export left out."""
    checkpoint: str = "none"
    """Which activations are computed again: ``none``, ``sqrt``, ``every=K`` or ``best``."""
    shard: str = "none"
    world: int = 1
    """Ranks that share the training."""

    def __post_init__(self) -> None:
        """Refuse what no step can be.

        :raises UsageError: a name that is not known, or a count below 1.
        """
        for what, name, known in (
            ("release of PyTorch", self.torch, TORCHES),
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("optimizer form", self.optimizer_form, OPTIMIZER_FORMS),
            ("precision", self.precision, PRECISIONS),
            ("loss", self.loss, LOSSES),
            ("zero-grad", self.zero_grad, ZERO_GRADS),
            ("attention", self.attention, ATTENTIONS),
            ("sharding", self.shard, SHARDINGS),
        ):
            if name not in known:
                message = f"{what} {name!r} is not known; choose one of {', '.join(known)}"
                raise UsageError(message)
        counts = {"accumulate": self.accumulate, "world": self.world, "rank": self.lora_rank}
        for what, count in counts.items():
            if count is not None and (type(count) is not int or count < 1):
                message = f"{what} {count!r}: give a whole number from 1 on"
                raise UsageError(message)
        self._check_checkpoint()

    def with_fields(self, **given: Any) -> "TrainingConfig":  # noqa: ANN401 - the fields' own types
        """The same with other fields; a release of PyTorch brings its own defaults for the rest.

        :raises UsageError: a name that is not known, or a count below 1.
        """
        return replace(self, **{**_DEFAULTS.get(given.get("torch", ""), {}), **given})

    @property
    def adds_to_gradients(self) -> bool:
        """Whether the step's gradients are added to tensors that are there before it."""
        return self.accumulate > 1 or self.zero_grad == "keep"

    def _check_checkpoint(self) -> None:
        name, is_counted, count = self.checkpoint.partition("=")
        if is_counted:
            is_known = name == "every" and count.isdecimal() and int(count) > 0
        else:
            is_known = name in {"none", "sqrt", "best"}
        if not is_known:
            message = f"checkpoint {self.checkpoint!r}: choose none, sqrt, every=K or best"
            raise UsageError(message)


RUNTIMES: Final = ("ort-cpu", "ort-cuda")
BACKENDS: Final = ("cpu", "cuda")
ORDERS: Final = ("file", "onnxruntime", "best")
NATIVE: Final = "native"
"""This machine's CPU, whichever that is."""
CPUS: Final = (NATIVE, "avx512", "avx2", "arm64")
BASES: Final = ("tensors", "process")
GRAPHS: Final = ("raw", "ort-basic", "ort-extended", "ort-all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is requested: dims, training, budget, runtime."""

    batch: int | None = None
    """``None``: the batch that the file fixes, or 1."""
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, Values] = field(default_factory=dict)
    """Elements of small inputs, one standing for all: they decide what a run does."""
    train: bool = False
    recipe: TrainingConfig = field(default_factory=TrainingConfig)
    """How it is trained, where that is requested."""
    budget_bytes: int | None = None
    basis: str | None = None
    """What a verdict compares: ``tensors`` or ``process``; ``None``: ``process`` with a training or
    a runtime."""
    accepted: tuple[str, ...] = ()
    """Codes of findings that leave no verdict in doubt."""
    runtimes: tuple[str, ...] = ()
    """Runtimes whose own memory is predicted."""
    graph: str | None = None
    """Graph that the figures are of; ``None``: the file's, and a runtime's as it optimises it."""
    order: str = "file"
    """In which the nodes run: the file's, onnxruntime's, or the best that is found."""
    measure: str | None = None
    """Backend to run the model on: ``cpu`` or ``cuda``."""
    fixed_dims: bool = False
    """Whether a runtime's session is opened with numbers in place of the symbols."""
    cuda_context_bytes: int | None = None
    """Of the CUDA context; ``None``: an assumption that is printed."""
    cuda_workspace_bytes: int | None = None
    """Of cuDNN's convolutions; ``None``: unknown."""
    expandable_segments: bool = False
    """Whether PyTorch's allocator on CUDA grows its segments page by page."""
    asks_onnxruntime: bool = True
    """False: emulate its optimiser even where it is installed."""
    one_of_several: bool = False
    """Whether dims and values are of several models: one that this model lacks is then a finding,
    and an error elsewhere."""
    cpu: str = NATIVE
    """That a session of onnxruntime on the CPU runs on: this machine's, or one of ``CPUS``."""

    def __post_init__(self) -> None:
        """Refuse settings that no analysis can have.

        :raises UsageError: a name that is not known, a number that is none, a negative budget.
        """
        self._check_numbers()
        check_values(self.values)
        for what, name, known in (
            ("backend", "cpu" if self.measure is None else self.measure, BACKENDS),
            ("order", self.order, ORDERS),
            ("basis", "tensors" if self.basis is None else self.basis, BASES),
            ("cpu", self.cpu, CPUS),
            ("graph", "raw" if self.graph is None else self.graph, GRAPHS),
            *(("runtime", runtime, RUNTIMES) for runtime in self.runtimes),
        ):
            if name not in known:
                message = f"{what} {name!r} is not known; choose one of {', '.join(known)}"
                raise UsageError(message)
        if self.measure is not None and self.cpu != "native":
            message = f"the model is run on this machine: leave out cpu {self.cpu}"
            raise UsageError(message)
        if self.train and self.graph not in {None, "raw"}:
            message = f"a training step runs the graph of the file, not {self.graph}"
            raise UsageError(message)
        if self.train and self.order != "file":
            message = f"--order {self.order}: a training step runs in the file's order; leave out"
            raise UsageError(message)

    def _check_numbers(self) -> None:
        dims = (dim for shape in self.shapes.values() for dim in shape)
        sizes = {
            "the budget": self.budget_bytes,
            "the CUDA context": self.cuda_context_bytes,
            "the cuDNN workspace": self.cuda_workspace_bytes,
        }
        for number in (self.batch, *self.dims.values(), *dims, *sizes.values()):
            if number is not None and type(number) is not int:
                message = f"{number!r} is no whole number; a batch, a dim and a size are"
                raise UsageError(message)
        for what, size in sizes.items():
            if size is not None and size < 0:
                message = f"{what} is {size} bytes; a size is not negative"
                raise UsageError(message)

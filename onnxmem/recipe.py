"""How a model is trained: every default is printed as an assumption.

The names are those that the training room knows, said here too so that a command line can offer
them without importing it; a test holds the two together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from onnxmem.errors import UsageError

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
class Recipe:
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

    def with_fields(self, **given: Any) -> "Recipe":  # noqa: ANN401 - the fields' own types
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

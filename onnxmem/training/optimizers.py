"""Optimizers: the state that each keeps from step to step, and what one step allocates besides.

State has the element size of the parameters, but for counters and block scales. Temporaries are
those of the form that PyTorch runs on CUDA by default: ``foreach``, where there is one, handles all
parameters at once and holds whole copies of them; the others go parameter by parameter.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from onnxmem.errors import UsageError

Dims = tuple[int, ...]

_FLOAT_BYTES = 4
_STEP_BYTES = 4
"""PyTorch counts the steps of each parameter in a float32 tensor."""

_MIN_8BIT_ELEMENTS = 4096
"""Smaller tensors keep float32 state."""
_BLOCK_ELEMENTS = 256
"""Elements that share one float32 scale; 2048 before bitsandbytes 0.44."""
_CODE_BYTES = 256 * _FLOAT_BYTES
"""The table of the 256 values that a byte of state stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """What one optimizer keeps and allocates."""

    name: str
    state_of: Callable[[Dims, int], int]
    """Bytes of state of one parameter, by its dims and its bytes per element."""
    shared_state_bytes: int = 0
    """State that all parameters share."""
    copies_of_all: int = 0
    """Temporaries of a step in copies of all parameters together."""
    copies_of_largest: int = 0
    """Temporaries of a step in copies of the largest parameter."""
    formula: str
    source: str

    def state_bytes(self, shapes: tuple[Dims, ...], element_bytes: int) -> int:
        """Bytes kept from step to step for parameters of these shapes."""
        each = sum(self.state_of(shape, element_bytes) for shape in shapes)
        return each + self.shared_state_bytes if shapes else 0

    def temporary_bytes(self, shapes: tuple[Dims, ...], element_bytes: int) -> int:
        """Bytes that one step allocates and frees."""
        counts = [prod(shape) for shape in shapes]
        copied = self.copies_of_all * sum(counts)
        return (copied + self.copies_of_largest * max(counts, default=0)) * element_bytes


def _moments(count: int, *, step_bytes: int = 0) -> Callable[[Dims, int], int]:
    """``count`` tensors as large as the parameter, and a step counter."""
    return lambda shape, element_bytes: count * prod(shape) * element_bytes + step_bytes


def _factors(shape: Dims, element_bytes: int) -> int:
    """Row and column means over the last two dims, for a vector all of it; and a step counter."""
    if len(shape) < 2:  # noqa: PLR2004 - a vector has no rows and columns
        return prod(shape) * element_bytes + _STEP_BYTES
    rows, columns = (*shape[:-1], 1), (*shape[:-2], 1, shape[-1])
    return (prod(rows) + prod(columns)) * element_bytes + _STEP_BYTES


def _bytewise_moments(shape: Dims, element_bytes: int) -> int:  # noqa: ARG001 - of its own size
    """Two bytes an element and a float32 scale for each block of either moment."""
    count = prod(shape)
    if count < _MIN_8BIT_ELEMENTS:
        return 2 * count * _FLOAT_BYTES
    blocks = -(-count // _BLOCK_ELEMENTS)
    return 2 * (count + blocks * _FLOAT_BYTES)


_TORCH = "torch 2.13.0, state and foreach temporaries probed: torch.optim."

_ALL = (
    Optimizer(name="sgd", state_of=_moments(0), formula="0", source=_TORCH + "SGD"),
    Optimizer(
        name="momentum",
        state_of=_moments(1),
        formula="1 x parameters (momentum)",
        source=_TORCH + "SGD(momentum=...)",
    ),
    Optimizer(
        name="nesterov",
        state_of=_moments(1),
        formula="1 x parameters (momentum)",
        source=_TORCH + "SGD(nesterov=True)",
    ),
    Optimizer(
        name="rmsprop",
        state_of=_moments(1, step_bytes=_STEP_BYTES),
        copies_of_all=1,
        formula="1 x parameters (squares) + 4 bytes a tensor",
        source=_TORCH + "RMSprop",
    ),
    Optimizer(
        name="adagrad",
        state_of=_moments(1, step_bytes=_STEP_BYTES),
        copies_of_all=2,
        formula="1 x parameters (sum of squares) + 4 bytes a tensor",
        source=_TORCH + "Adagrad",
    ),
    Optimizer(
        name="adam",
        state_of=_moments(2, step_bytes=_STEP_BYTES),
        copies_of_all=1,
        formula="2 x parameters (two moments) + 4 bytes a tensor",
        source=_TORCH + "Adam",
    ),
    Optimizer(
        name="adamw",
        state_of=_moments(2, step_bytes=_STEP_BYTES),
        copies_of_all=1,
        formula="2 x parameters (two moments) + 4 bytes a tensor",
        source=_TORCH + "AdamW",
    ),
    Optimizer(
        name="lion",
        state_of=_moments(1),
        copies_of_largest=2,
        formula="1 x parameters (momentum)",
        source="Chen et al. 2023 (arXiv 2302.06675); lion-pytorch's loop: a clone and a sum",
    ),
    Optimizer(
        name="lamb",
        state_of=_moments(2),
        copies_of_largest=3,
        formula="2 x parameters (two moments)",
        source="You et al. 2019 (arXiv 1904.00962); timm's loop: clipped gradient, divisor, update",
    ),
    Optimizer(
        name="adafactor",
        state_of=_factors,
        copies_of_largest=2,
        formula="rows + columns of each matrix, 1 x each vector, + 4 bytes a tensor",
        source="torch 2.13.0, state and its default, a loop, probed: torch.optim.Adafactor",
    ),
    Optimizer(
        name="adam8bit",
        state_of=_bytewise_moments,
        shared_state_bytes=2 * _CODE_BYTES,
        formula="2 bytes a parameter + 2 x 4 bytes for each 256; "
        "8 bytes a parameter in tensors below 4096 elements; + 2048 bytes of tables",
        source="Dettmers et al. 2021 (arXiv 2110.02861); bitsandbytes Optimizer2State",
    ),
)

OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType({known.name: known for known in _ALL})


def optimizer_named(name: str) -> Optimizer:
    """Find an optimizer.

    :raises UsageError: there is none of that name.
    """
    if name not in OPTIMIZERS:
        message = f"optimizer {name!r}: not known; one of {', '.join(OPTIMIZERS)}"
        raise UsageError(message)
    return OPTIMIZERS[name]

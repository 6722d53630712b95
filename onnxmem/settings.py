"""What is asked of an analysis; every default is printed as an assumption.

The names are those that the training room knows, said here too so that a command line can offer
them without importing it; a test holds the two together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from onnxmem.errors import UsageError
from onnxmem.settings import Recipe, Values, check_values

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
    """The question: dims, training, budget, runtime."""

    batch: int | None = None
    """``None``: the batch that the file fixes, or 1."""
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, Values] = field(default_factory=dict)
    """Elements of small inputs, one standing for all: they decide what a run does."""
    train: bool = False
    recipe: Recipe = field(default_factory=Recipe)
    """How it is trained, where that is asked for."""
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
        """Refuse what no analysis can answer.

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

"""What one optimizer keeps from step to step, and which blocks it has alive while it steps."""

from collections.abc import Iterable
from dataclasses import dataclass

from onnxmem.errors import UsageError
from onnxmem.runtimes.torch.optimizers.scripts import Dims, Script
from onnxmem.runtimes.torch.optimizers.states import StateOf

FORMS = ("foreach", "single", "fused")
"""All parameters at once; one after the other; in one kernel, which allocates nothing."""

_MATRIX_DIMS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """One optimizer, in all the forms that its library has."""

    name: str
    state_of: StateOf
    """Bytes of state of one parameter, by its dims and its bytes per element.

    Step counters are counted in it, 4 bytes each, although most lie in the memory of the CPU: see
    ``step_tensors_on_cpu``.
    """
    shared_state_bytes: int = 0
    """State that all parameters share."""
    step_tensors_on_cpu: int = 0
    """Counters of 4 bytes that each parameter has in its state and that PyTorch keeps on the CPU,
    unless the form is ``fused`` or the optimizer ``capturable``."""
    single: Script
    """Temporaries of the loop over the parameters, which every optimizer has."""
    foreach: Script | None = None
    """Temporaries of the form for all at once; ``None`` where that is not the library's default."""
    is_fused: bool = False
    """Whether there is a form in one kernel."""
    of_others: "Optimizer | None" = None
    """Steps the parameters that are no matrices; ``None``: this one steps all."""
    formula: str
    """The state, in words."""
    source: str

    def form_used(self, form: str) -> str:
        """The form that runs where ``form`` is asked for.

        An optimizer without ``fused`` takes ``foreach``, and one without that ``single``.

        :raises UsageError: no form of that name.
        """
        if form not in FORMS:
            message = f"optimizer form {form!r}: not known; one of {', '.join(FORMS)}"
            raise UsageError(message)
        if form == "single" or (form == "fused" and self.is_fused):
            return form
        return "single" if self.foreach is None else "foreach"

    def state_bytes(self, shapes: tuple[Dims, ...], element_bytes: int) -> int:
        """Bytes kept from step to step for parameters of these shapes."""
        per_parameter = sum(self.state_of(shape, element_bytes) for shape in shapes)
        return per_parameter + self.shared_state_bytes if shapes else 0

    def temporaries(
        self,
        shapes: tuple[Dims, ...],
        element_bytes: int,
        *,
        form: str = "foreach",
        weight_decay: bool = False,
    ) -> tuple[int, ...]:
        """Bytes of each block that is alive at the peak of a step, one a tensor.

        ``shapes`` are those of the trained parameters, in the order in which the optimizer has
        them: in the form ``single`` the peak is one of neighbours. Tensors without dims and vectors
        of one value a parameter are left out.

        :raises UsageError: no form of that name.
        """
        used = self.form_used(form)
        script = {"foreach": self.foreach, "single": self.single, "fused": None}[used] or Script()
        if self.of_others is None:
            return script.peak_blocks(shapes, element_bytes, weight_decay=weight_decay)
        own = tuple(shape for shape in shapes if len(shape) == _MATRIX_DIMS)
        rest = tuple(shape for shape in shapes if len(shape) != _MATRIX_DIMS)
        of_rest = self.of_others.temporaries(
            rest, element_bytes, form=form, weight_decay=weight_decay
        )
        return _larger((script.peak_blocks(own, element_bytes, weight_decay=weight_decay), of_rest))

    def temporary_bytes(
        self,
        shapes: tuple[Dims, ...],
        element_bytes: int,
        *,
        form: str = "foreach",
        weight_decay: bool = False,
    ) -> int:
        """Bytes alive at the peak of a step besides weights, gradients and state.

        :raises UsageError: no form of that name.
        """
        return sum(self.temporaries(shapes, element_bytes, form=form, weight_decay=weight_decay))


def _larger(peaks: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return max(peaks, key=sum)

"""Flags that change nothing where they are given: most likely another flag was forgotten."""

from argparse import Namespace
from typing import TYPE_CHECKING, Final

from onnxmem.analysis.fitting.verdicts import Basis, basis_for
from onnxmem.cli.training_options import named_fields
from onnxmem.errors import UsageError
from onnxmem.settings import Settings

if TYPE_CHECKING:
    from onnxmem.decisions.devices import Device

_SESSION: Final = "a session: add --runtime ort-cpu, or --graph ort-all"
_CUDA: Final = "CUDA: add --runtime ort-cuda, or --train"
_FLAGS: Final = {"outputs": "--loss-output"}


def refuse_unused_options(arguments: Namespace, settings: Settings) -> None:
    """Refuse what a training step or a session alone would use, where there is none.

    :raises UsageError: with the flags, and what they need.
    """
    refuse_untrained(arguments, trains=settings.train)
    _refuse_unused(settings)


def refuse_untrained(arguments: Namespace, *, trains: bool) -> None:
    """Refuse flags of a training step where none is asked for.

    :raises UsageError: with their names.
    """
    given = named_fields(arguments)
    if given and not trains:
        flags = ", ".join(_FLAGS.get(name, f"--{name.replace('_', '-')}") for name in given)
        message = f"{flags}: no effect without a training step; add --train"
        raise UsageError(message)


def refuse_without_budget(arguments: Namespace) -> None:
    """Refuse the flags of a verdict where no budget asks for one.

    :raises UsageError: with the flag.
    """
    given = {"--basis": arguments.basis is not None, "--accept": bool(arguments.accepted)}
    for flag in (flag for flag, is_given in given.items() if is_given):
        if arguments.budget_bytes is None:
            message = f"{flag}: no effect without a budget; add --budget SIZE"
            raise UsageError(message)


def refuse_unused_of_fit(arguments: Namespace, device: "Device | None") -> None:
    """The same of ``fit``, where the device says which figure counts; of all devices, any may.

    :raises UsageError: with the flag, and the figure that it is not of.
    """
    train = arguments.train
    refuse_untrained(arguments, trains=train)
    if train and arguments.runtime is not None:
        message = f"--runtime {arguments.runtime}: no effect on a training step; leave it out"
        raise UsageError(message)
    if arguments.which_device:
        from onnxmem.decisions.devices import KINDS

        bases = {basis_for(kind, train=train, runtime=arguments.runtime) for kind in KINDS}
    else:
        kind = None if device is None else device.kind
        bases = {basis_for(kind, train=train, runtime=arguments.runtime)}
    session = bool(bases & {Basis.ORT_CPU, Basis.ORT_CUDA})
    cuda = bool(bases & {Basis.TORCH, Basis.ORT_CUDA})
    for flag, is_given, is_used in (
        ("--fixed-dims", arguments.fixed_dims, session),
        ("--cpu", arguments.cpu not in {None, "native"}, session),
        ("--ask-onnxruntime", arguments.ask_onnxruntime, session),
        ("--cuda-context", arguments.cuda_context_bytes is not None, cuda),
        ("--cuda-workspace", arguments.cuda_workspace_bytes is not None, cuda),
        ("--expandable-segments", arguments.expandable_segments, Basis.TORCH in bases),
    ):
        if is_given and not is_used:
            figure = " or ".join(sorted(basis.value for basis in bases))
            message = f"{flag}: no effect on the figure that is compared ({figure}); see --runtime"
            raise UsageError(message)


def _refuse_unused(settings: Settings) -> None:
    """Refuse what changes no figure: the step, the session or the run that would use it is missing.

    :raises UsageError: with the option, and what it needs.
    """
    graph = settings.graph not in {None, "raw"}
    session = bool(settings.runtimes) or graph
    cuda = settings.train or "ort-cuda" in settings.runtimes
    for flag, is_given, is_used, users in (
        ("--fixed-dims", settings.fixed_dims, session or settings.measure, _SESSION),
        ("--cpu", settings.cpu != "native", session, _SESSION),
        ("--cuda-context", settings.cuda_context_bytes is not None, cuda, _CUDA),
        ("--cuda-workspace", settings.cuda_workspace_bytes is not None, cuda, _CUDA),
        ("--expandable-segments", settings.expandable_segments, settings.train, "--train: add it"),
    ):
        if is_given and not is_used:
            message = f"{flag}: no effect without {users}"
            raise UsageError(message)

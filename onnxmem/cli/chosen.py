"""What parsed flags choose: settings, devices, requests; and flags that have no effect.

Most likely another flag was forgotten where one has no effect, so it is an error that names both.
"""

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from onnxmem.errors import UsageError, shortened
from onnxmem.settings import NATIVE, Settings, TrainingConfig

if TYPE_CHECKING:
    from onnxmem.analysis.fitting.assessing import FitRequest
    from onnxmem.decisions.devices import Catalog, Device
    from onnxmem.report.fit import ComparedMemory
    from onnxmem.runtimes.onnxruntime.session_options import SessionOptions


_SESSION: Final = "a session: add --runtime ort-cpu, or --graph ort-all"
_CUDA: Final = "CUDA: add --runtime ort-cuda, or --train"
_FLAGS: Final = {"outputs": "--loss-output"}
_THIS_MACHINE: Final = "auto"
_IS_GPU: Final = {"ort-cpu": False, "ort-cuda": True}


def arena_options(arguments: Namespace, **others: Any) -> "SessionOptions":  # noqa: ANN401
    """The options of a session by the flags of ``add_arena_options``, and others by name."""
    from onnxmem.runtimes.onnxruntime import session_options

    return session_options.SessionOptions(
        enable_mem_pattern=not arguments.no_mem_pattern,
        enable_mem_reuse=not arguments.no_mem_reuse,
        arena_extend_strategy=arguments.arena_extend_strategy,
        shares_arena=arguments.shared_arena,
        shrinks_arena=arguments.shrink_arena,
        num_threads=arguments.threads,
        weights=arguments.weights,
        trims_heap=arguments.malloc_trim,
        malloc_threshold_bytes=arguments.malloc_threshold_bytes,
        **others,
    )


def named_fields(arguments: Namespace) -> dict[str, Any]:
    """The fields of a training configuration that flags name, though it be their default."""
    given = {field.name: getattr(arguments, field.name) for field in fields(TrainingConfig)}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }


def recipe_from(arguments: Namespace) -> TrainingConfig:
    """The training configuration of the flags.

    :raises UsageError: a count or a way of checkpointing that is none.
    """
    return TrainingConfig().with_fields(**named_fields(arguments))


def refuse_contradictions(arguments: Namespace) -> None:
    """Refuse a dim or an input that is given twice with different values.

    :raises UsageError: with its name and both values.
    """
    _refuse("--dim", arguments.dims)
    _refuse("--shape", arguments.shapes)
    _refuse("--value", arguments.values)
    _refuse("--max", vars(arguments).get("most", ()))


def _refuse(flag: str, pairs: Iterable[tuple[str, object]]) -> None:
    given: dict[str, object] = {}
    for name, value in pairs:
        if given.setdefault(name, value) != value:
            message = f"{flag} {shortened(name)} is given twice: {given[name]} and {value}"
            raise UsageError(message)


def step_settings(arguments: Namespace) -> dict[str, Any]:
    """The settings of every command that sizes a model: keywords of ``Settings``."""
    return {
        "batch": arguments.batch,
        "dims": {name: number for name, number in arguments.dims if number is not None},
        "shapes": dict(arguments.shapes),
        "values": dict(arguments.values),
        "most": dict(arguments.most),
        "train": arguments.train,
        "recipe": recipe_from(arguments),
        "cuda_context_bytes": arguments.cuda_context_bytes,
        "cuda_workspace_bytes": arguments.cuda_workspace_bytes,
        "expandable_segments": arguments.expandable_segments,
        "cpu": arguments.cpu or NATIVE,
    }


def device_catalog(arguments: Namespace) -> "Catalog":
    """The known devices; a CPU that is given replaces their own.

    :raises DeviceError: the user's file cannot be read, or makes no sense.
    """
    from onnxmem.decisions.devices import catalog

    known = catalog(arguments.devices_file)
    return known if arguments.cpu is None else known.without_cpus()


def target_memory(arguments: Namespace) -> "ComparedMemory":
    """The device of ``--device``, this machine, or a size alone.

    :raises UsageError: none is named, or what is named is neither.
    """
    from onnxmem.decisions.devices import Device
    from onnxmem.report.fit import ComparedMemory

    name = arguments.device
    if name is None:
        message = (
            "name a device or a size: --device 'RTX 4090', --device 24GiB, --device auto (this "
            "machine); or --which-device"
        )
        raise UsageError(message)
    known = device_catalog(arguments)
    if name == _THIS_MACHINE:
        is_gpu = _IS_GPU.get(arguments.runtime)
        own, source = known.this_machine(is_gpu=is_gpu)
        return ComparedMemory(own.name, own.limit_bytes, own, source)
    found = known.device_or_size(name)
    if isinstance(found, Device):
        return ComparedMemory(found.name, found.limit_bytes, found)
    return ComparedMemory(shortened(name), found, None)


def fit_request_of(arguments: Namespace, memory: "ComparedMemory | None") -> "FitRequest":
    """What is compared with a device or a size; ``None``: with no limit.

    :raises UsageError: ``--basis process`` for inference without ``--runtime``.
    """
    from onnxmem.decisions.fit import fit_request

    return fit_request(
        None if memory is None else memory.device or memory.memory_bytes,
        train=arguments.train,
        runtime=arguments.runtime,
        basis=arguments.basis,
        accepted=arguments.accepted,
        reserve_bytes=arguments.reserve_bytes,
    )


def verdict_settings(arguments: Namespace) -> dict[str, Any]:
    """The settings of a verdict: keywords of ``Settings``."""
    return {"basis": arguments.basis, "accepted": tuple(arguments.accepted)}


def analyze_settings(arguments: Namespace) -> dict[str, Any]:
    """The settings of an analysis: keywords of ``onnxmem.analyze``."""
    return step_settings(arguments) | {
        "context": arguments.context,
        "budget_bytes": arguments.budget_bytes,
        "runtimes": tuple(dict.fromkeys(arguments.runtimes)),
        "graph": arguments.graph,
        "fixed_dims": arguments.fixed_dims,
        "asks_onnxruntime": not arguments.emulate_optimizer,
    }


def refuse_unused_options(arguments: Namespace, settings: Settings) -> None:
    """Refuse flags of a training step or of a session where there is none.

    :raises UsageError: with the flags, and what they need.
    """
    refuse_untrained(arguments, trains=settings.train)
    _refuse_unused(settings)


def refuse_untrained(arguments: Namespace, *, trains: bool) -> None:
    """Refuse flags of a training step where none is requested.

    :raises UsageError: with their names.
    """
    given = named_fields(arguments)
    if given and not trains:
        flags = ", ".join(_FLAGS.get(name, f"--{name.replace('_', '-')}") for name in given)
        message = f"{flags}: no effect without a training step; add --train"
        raise UsageError(message)


def refuse_without_budget(arguments: Namespace) -> None:
    """Refuse the flags of a verdict where there is no budget.

    :raises UsageError: with the flag.
    """
    given = {"--basis": arguments.basis is not None, "--accept": bool(arguments.accepted)}
    for flag in (flag for flag, is_given in given.items() if is_given):
        if arguments.budget_bytes is None:
            message = f"{flag}: no effect without a budget; add --budget SIZE"
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


def refuse_unused_of_fit(arguments: Namespace, device: "Device | None") -> None:
    """Refuse flags that have no effect on the figure that is compared with the device.

    :raises UsageError: with the flag, and the figure that it is not of.
    """
    from onnxmem.analysis.fitting.verdicts import Basis, basis_for

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

"""The flags of observed runs, and what they set: runs that were saved, or are made here."""

from argparse import ArgumentParser, Namespace, _ArgumentGroup
from collections.abc import Sequence
from typing import TYPE_CHECKING

from onnxmem.cli.output import check_output, write_file
from onnxmem.cli.parsing import add_repeatable
from onnxmem.errors import Finding, UsageError, shortened

if TYPE_CHECKING:
    from onnxmem.model.observed import Observed


def add_observing_options(parser: ArgumentParser) -> None:
    """Add the runs in which the dims that data decide are observed."""
    group = parser.add_argument_group("data-dependent dims")
    add_observe(
        group, "also figures of runs in onnxruntime: on random inputs, N of them, or real ones"
    )
    add_observed(group)
    add_save_observed(group)


def add_observe(group: _ArgumentGroup, text: str) -> None:
    """Add the inputs of observed runs."""
    add_repeatable(group, "--observe", "observe", ("random|N|FILE.npz", text))


def add_observed(group: ArgumentParser | _ArgumentGroup) -> None:
    """Add the files of observed runs."""
    add_repeatable(
        group,
        "--observed",
        "observed",
        ("FILE", "runs that --save-observed wrote, on any machine (repeatable)"),
    )


def add_save_observed(group: _ArgumentGroup) -> None:
    """Add the file that keeps observed runs."""
    group.add_argument(
        "--save-observed", metavar="FILE", help="keep the observed shapes there, as JSON"
    )


def observed_runs(arguments: Namespace, names: Sequence[str]) -> "tuple[Observed, ...]":
    """The runs of the models: from files, and of inputs that are requested.

    :raises OnnxmemError: a file is not one of observed shapes, or a model does not run.
    """
    found = saved_runs(arguments.observed)
    if arguments.save_observed is not None:
        if not arguments.observe:
            message = "--save-observed: no effect without runs; add --observe"
            raise UsageError(message)
        if len(names) > 1:
            message = f"--save-observed keeps the runs of one model, not of {len(names)}"
            raise UsageError(message)
        check_output(arguments.save_observed, names, force=arguments.force)
    if arguments.observe:
        if arguments.observed:
            message = "--observe and --observed are two sources of runs; choose one"
            raise UsageError(message)
        found += [_observed(name, arguments) for name in names]
    if arguments.save_observed is not None:
        write_file(found[0].to_json(), arguments.save_observed, quiet=arguments.quiet)
    return tuple(found)


def saved_runs(files: Sequence[str]) -> "list[Observed]":
    """The runs that files keep.

    :raises ObservedFileError: one cannot be read, or is not of observed shapes.
    """
    if not files:
        return []
    from onnxmem.model.observed import read_observed

    return [read_observed(file) for file in files]


def _observed(name: str, arguments: Namespace) -> "Observed":
    from onnxmem.collection.sources import local_file
    from onnxmem.measuring.measuring import MeasurementFailedError, MeasureSettings
    from onnxmem.measuring.observing import observe
    from onnxmem.model.binding import Request

    request = Request(
        arguments.batch,
        {name: number for name, number in arguments.dims if number is not None},
        dict(arguments.shapes),
    )
    seconds = getattr(arguments, "timeout", None) or MeasureSettings().seconds
    settings = MeasureSettings(values=dict(arguments.values), seconds=seconds)
    with local_file(name) as path:
        found = observe(path, request, settings, arguments.observe)
    if isinstance(found, Finding):
        message = f"{shortened(name)}: {found.message}"
        raise MeasurementFailedError(message)
    return found

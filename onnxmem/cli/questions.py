"""From flags to what is asked of a model."""

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from onnxmem.cli.training_options import recipe_from
from onnxmem.settings import NATIVE

if TYPE_CHECKING:
    from onnxmem.decisions.devices import Catalog


def step_questions(arguments: Namespace) -> dict[str, Any]:
    """What the flags of every command that sizes a model ask: keywords of ``Settings``."""
    return {
        "batch": arguments.batch,
        "dims": {name: number for name, number in arguments.dims if number is not None},
        "shapes": dict(arguments.shapes),
        "values": dict(arguments.values),
        "train": arguments.train,
        "recipe": recipe_from(arguments),
        "cuda_context_bytes": arguments.cuda_context_bytes,
        "cuda_workspace_bytes": arguments.cuda_workspace_bytes,
        "expandable_segments": arguments.expandable_segments,
        "cpu": arguments.cpu or NATIVE,
    }


def devices_asked(arguments: Namespace) -> "Catalog":
    """Read the devices; a CPU that is given takes the place of their own.

    :raises DeviceError: the user's file cannot be read, or makes no sense.
    """
    from onnxmem.decisions.devices import catalog

    known = catalog(arguments.devices_file)
    return known if arguments.cpu is None else known.without_cpus()


def verdict_questions(arguments: Namespace) -> dict[str, Any]:
    """What the flags of a command that gives a verdict ask of it: keywords of ``Settings``."""
    return {"basis": arguments.basis, "accepted": tuple(arguments.accepted)}


def questions_of(arguments: Namespace) -> dict[str, Any]:
    """What the flags ask of the model: keywords of ``onnxmem.analyze``."""
    return step_questions(arguments) | {
        "context": arguments.context,
        "budget_bytes": arguments.budget_bytes,
        "runtimes": tuple(dict.fromkeys(arguments.runtimes)),
        "graph": arguments.graph,
        "fixed_dims": arguments.fixed_dims,
        "asks_onnxruntime": not arguments.emulate_optimiser,
    }

"""From flags to what is asked of a model."""

from argparse import Namespace
from typing import Any

from onnxmem.commands.training_options import recipe_from


def questions_of(arguments: Namespace) -> dict[str, Any]:
    """What the flags ask of the model: keywords of ``onnxmem.analyze``."""
    return {
        "batch": arguments.batch,
        "dims": dict(arguments.dims),
        "shapes": dict(arguments.shapes),
        "values": dict(arguments.values),
        "context": arguments.context,
        "train": arguments.train,
        "recipe": recipe_from(arguments),
        "budget_bytes": arguments.budget_bytes,
        "runtimes": tuple(dict.fromkeys(arguments.runtimes)),
        "graph": arguments.graph,
        "fixed_dims": arguments.fixed_dims,
        "cuda_context_bytes": arguments.cuda_context_bytes,
        "cuda_workspace_bytes": arguments.cuda_workspace_bytes,
        "expandable_segments": arguments.expandable_segments,
        "asks_onnxruntime": not arguments.emulate_optimiser,
    }

"""Training flags that leave open what they don't name: a file's word stands then."""

from argparse import ArgumentParser, Namespace
from dataclasses import fields
from typing import Any

from onnxmem.commands.training_options import add_training_options
from onnxmem.recipe import Recipe


def add_open_training_options(parser: ArgumentParser) -> None:
    """Add the flags of a training step, each ``None`` where it isn't given."""
    add_training_options(parser)
    parser.set_defaults(**dict.fromkeys(field.name for field in fields(Recipe)))


def named_fields(arguments: Namespace) -> dict[str, Any]:
    """The fields of a recipe that flags name, though it be their default."""
    given = {field.name: getattr(arguments, field.name) for field in fields(Recipe)}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }

"""The flags that say how a model is trained."""

from argparse import ArgumentParser, BooleanOptionalAction, Namespace, _ArgumentGroup
from dataclasses import fields
from typing import Any

from onnxmem.settings import (
    ATTENTIONS,
    LOSSES,
    OPTIMIZER_FORMS,
    OPTIMIZERS,
    PRECISIONS,
    SHARDINGS,
    TORCHES,
    ZERO_GRADS,
    Recipe,
)


def add_training_options(parser: ArgumentParser) -> None:
    """Add the flags of a training step; each is a field of ``Recipe``, ``None`` if not given."""
    group = parser.add_argument_group("training")
    group.add_argument("--train", action="store_true", help="work out a training step too")
    group.add_argument(
        "--torch",
        choices=TORCHES,
        default=Recipe().torch,
        metavar="RELEASE",
        help=f"of PyTorch: {', '.join(TORCHES)} (default: {Recipe().torch}); it also sets the "
        "defaults of --optimizer-form, --attention and --zero-grad",
    )
    _add_choices(group)
    group.add_argument("--weight-decay", action="store_true", help="the optimizer decays weights")
    group.add_argument(
        "--loss-output",
        dest="outputs",
        action="append",
        default=[],
        metavar="NAME",
        help="an output that a loss reads (repeatable; default: every floating one)",
    )
    group.add_argument(
        "--freeze",
        action="append",
        default=[],
        metavar="PATTERN",
        help="parameters that are not trained, as in 'encoder.*' (repeatable)",
    )
    group.add_argument(
        "--lora-rank", type=int, metavar="R", help="train low-rank adapters of linear layers alone"
    )
    group.add_argument(
        "--accumulate", type=int, default=1, metavar="K", help="passes before the optimizer steps"
    )
    group.add_argument(
        "--checkpoint",
        default="none",
        metavar="HOW",
        help="compute activations again: none, sqrt, every=K or best (default: none)",
    )
    group.add_argument(
        "--world", type=int, default=1, metavar="N", help="ranks that share the training"
    )
    _add_switches(group)
    parser.set_defaults(**dict.fromkeys(field.name for field in fields(Recipe)))


def _add_choices(group: _ArgumentGroup) -> None:
    defaults = Recipe()
    for name, choices in (
        ("optimizer", OPTIMIZERS),
        ("optimizer_form", OPTIMIZER_FORMS),
        ("precision", PRECISIONS),
        ("loss", LOSSES),
        ("attention", ATTENTIONS),
        ("zero_grad", ZERO_GRADS),
        ("shard", SHARDINGS),
    ):
        default = getattr(defaults, name)
        listed = f"{', '.join(choices)} (default: {default})"
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(flag, choices=choices, default=default, metavar="NAME", help=listed)


def _add_switches(group: _ArgumentGroup) -> None:
    for name, what in (
        ("first_step", "the first step, before the optimizer has state"),
        ("assume_dropout", "put back the Dropout that an export left out"),
    ):
        group.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=what)
    group.add_argument(
        "--in-place-activations",
        action=BooleanOptionalAction,
        help="activations write over their input where autograd allows it, or none does (default: "
        "those behind BatchNormalization that keep less then)",
    )
    group.add_argument(
        "--assume-batchnorm",
        action=BooleanOptionalAction,
        help="of BatchNormalization that an export folded away: put it back also where the file "
        "doesn't tell, or nowhere (default: where the file shows it)",
    )


def named_fields(arguments: Namespace) -> dict[str, Any]:
    """The fields of a recipe that flags name, though it be their default."""
    given = {field.name: getattr(arguments, field.name) for field in fields(Recipe)}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }


def recipe_from(arguments: Namespace) -> Recipe:
    """What the flags say of the training.

    :raises UsageError: a count or a way of checkpointing that is none.
    """
    return Recipe().with_fields(**named_fields(arguments))

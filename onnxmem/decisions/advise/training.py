"""Other ways of training one model: the optimizer, precision, checkpoints, shards, parts of it."""

import glob
from collections.abc import Iterator, Sequence
from itertools import groupby

from onnxmem.analysis.compute import compute
from onnxmem.decisions.advise.changes import with_recipe
from onnxmem.decisions.advise.figures import Subject
from onnxmem.decisions.advise.proposals import Idea, Price
from onnxmem.runtimes.torch.memory import CheckpointOption
from onnxmem.units import format_count

_OPTIMIZERS = ("adam8bit", "adafactor", "lion", "momentum", "sgd")
"""In the order of what they keep, the most first."""
_PRECISIONS = ("mixed-bf16", "bf16-master", "bf16")
_PRECISION_COSTS = {
    "mixed-bf16": "sums in 8 bits of fraction; weights stay float32; half the bytes moved",
    "bf16-master": "as mixed, and weights are kept in both widths",
    "bf16": "updates smaller than 1/256 of a weight are lost: it may not converge",
}
_SHARDS = {
    "zero1": "ranks exchange gradients, and the weights that each has stepped",
    "zero2": "as ZeRO-1, and each keeps its share of the gradients",
    "zero3": "weights are gathered for every layer, forward and backward: 1.5 x the traffic",
}
_WORLDS = (2, 4, 8)
_LORA_RANK = 8
_FEW = 2
_LISTED = 4


def training_ideas(subject: Subject) -> Iterator[Idea]:
    """Every change of the recipe that another setting does not rule out."""
    recipe = subject.question.settings.recipe
    yield from _optimizers(recipe.optimizer)
    if recipe.optimizer_form == "foreach":
        yield _of("optimizer_form", "single", Price.TIME, "a kernel a tensor in each step")
    if recipe.precision == "fp32":
        for name in _PRECISIONS:
            yield _of("precision", name, Price.ACCURACY, _PRECISION_COSTS[name])
    if not recipe.in_place_activations:
        yield Idea(
            id="in_place_activations",
            group="in_place_activations",
            what="--in-place-activations: ReLU(inplace=True) and its kind",
            price=Price.NOTHING,
            cost="a change of code; autograd refuses where the input is needed",
            change=with_recipe(in_place_activations=True),
            settings={"in_place_activations": True},
        )
    if recipe.checkpoint == "none":
        yield from _checkpoints(subject)
    if recipe.shard in {"none", "ddp"}:
        yield from _shards(recipe.world)
    if recipe.lora_rank is None and not recipe.freeze:
        yield from _parts(subject)


def _of(field: str, name: str, price: Price, cost: str) -> Idea:
    return Idea(
        id=f"{field}_{name}",
        group=field,
        what=f"--{field.replace('_', '-')} {name}",
        price=price,
        cost=cost,
        change=with_recipe(**{field: name}),
        settings={field: name},
    )


def _optimizers(now: str) -> Iterator[Idea]:
    for name in _OPTIMIZERS:
        if name != now:
            yield _of(
                "optimizer", name, Price.ACCURACY, f"converges otherwise than {now}: tune it anew"
            )


def _checkpoints(subject: Subject) -> Iterator[Idea]:
    """The best that there is, and the one of least FLOPs that saves half as much."""
    terms = with_recipe(checkpoint="best")(subject).terms()
    graph, training = terms.bound.graph, terms.training
    options = training.checkpoints if training else ()
    if len(options) < _FEW:
        return
    arithmetic = compute(graph)
    step_flops = (arithmetic.forward_flops or 0) + (arithmetic.backward_flops or 0)
    best, now = options[-1], options[0]
    half_bytes = (now.peak_bytes + best.peak_bytes) // 2
    cheap = next(option for option in options if option.peak_bytes <= half_bytes)
    for option in dict.fromkeys((best, cheap)):
        yield _checkpoint(option, step_flops, is_best=option is best)


def _checkpoint(option: CheckpointOption, step_flops: int, *, is_best: bool) -> Idea:
    """``best`` finds the best again; a schedule that keeps products has no flag of its own."""
    name = "best" if is_best else option.schedule
    has_flag = name in {"best", "sqrt"} or "," not in name
    share = f" (+{100 * option.extra_flops / step_flops:.0f} % of a step)" if step_flops else ""
    return Idea(
        id="checkpoint_best" if is_best else "checkpoint_cheap",
        group="checkpoint",
        what=f"--checkpoint {name}" + (f": {option.schedule}" if is_best else ""),
        price=Price.TIME,
        cost=f"+{format_count(option.extra_flops)} FLOPs, computed again{share}",
        change=with_recipe(checkpoint=name) if has_flag else None,
        settings={"checkpoint": name},
    )


def _shards(world: int) -> Iterator[Idea]:
    worlds = (world,) if world > 1 else _WORLDS
    for stage, cost in _SHARDS.items():
        for ranks in worlds if stage == "zero3" else worlds[-1:]:
            yield Idea(
                id=f"shard_{stage}_{ranks}",
                group="shard",
                what=f"--shard {stage} --world {ranks}: what one of {ranks} ranks holds",
                price=Price.DEVICES,
                cost=f"{ranks} devices; {cost}",
                change=with_recipe(shard=stage, world=ranks),
                settings={"shard": stage, "world": ranks},
            )


def _parts(subject: Subject) -> Iterator[Idea]:
    yield Idea(
        id="lora",
        group="parts",
        what=f"--lora-rank {_LORA_RANK}: train adapters of the linear layers alone",
        price=Price.ACCURACY,
        cost="for fine-tuning; the rest of the model stays as it is",
        change=with_recipe(lora_rank=_LORA_RANK),
        settings={"lora_rank": _LORA_RANK},
    )
    patterns = _all_but_the_last(subject.terms().parameters.trained)
    if patterns:
        flags = " ".join(f"--freeze '{pattern}'" for pattern in patterns[:_LISTED])
        more = len(patterns) - _LISTED
        flags += f" and {more} more" if more > 0 else ""
        yield Idea(
            id="freeze",
            group="parts",
            what=f"{flags}: train the last part alone",
            price=Price.ACCURACY,
            cost="for fine-tuning; the frozen part stays as it is",
            change=with_recipe(freeze=patterns),
            settings={"freeze": list(patterns)},
        )


def _all_but_the_last(names: Sequence[str]) -> tuple[str, ...]:
    """Patterns of every part but the last, by the first place at which dotted names part."""
    split = [name.split(".") for name in names]
    depth = next(
        (place for place in range(min(map(len, split), default=1) - 1) if _parts_at(split, place)),
        None,
    )
    if depth is None:
        return ()
    heads = [".".join(words[: depth + 1]) for words in split]
    parts = [head for head, _ in groupby(heads)]
    last = parts[-1]
    return tuple(f"{glob.escape(head)}.*" for head in dict.fromkeys(parts) if head != last)


def _parts_at(split: Sequence[Sequence[str]], place: int) -> bool:
    return len({tuple(words[: place + 1]) for words in split}) > 1

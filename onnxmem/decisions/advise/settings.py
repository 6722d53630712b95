"""Suggested settings: batch, image size, session options, training configuration, node order.

Each function yields the suggestions of one kind; ``proposals.evaluated`` computes their savings.
"""

import glob
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from shlex import quote
from typing import Any, Final

from onnxmem.analysis.compute import compute
from onnxmem.analysis.fitting.searching import MaxBatch
from onnxmem.analysis.request import StageResults
from onnxmem.decisions.advise.proposals import (
    Change,
    Objective,
    Proposal,
    Subject,
    Suggestion,
    Tradeoff,
    largest_batch,
    planned_process,
    with_options,
    with_recipe,
    with_shapes,
)
from onnxmem.errors import OnnxmemError
from onnxmem.model.binding import input_dims
from onnxmem.model.graph import DType, Graph
from onnxmem.runtimes.from_settings import Advice
from onnxmem.runtimes.onnxruntime.session_options import (
    LEVEL_NAMES,
    MALLOC_VARIABLES,
    Level,
    Strategy,
)
from onnxmem.runtimes.torch.memory import CheckpointOption
from onnxmem.runtimes.torch.network import adapted_nodes
from onnxmem.units import format_bytes, format_count

_BATCH_GROUP = "batch"
LARGEST_BATCH: Final = "largest_batch"
"""The id of the suggestion of the largest batch within a budget."""
_LEAST_PERCENT: Final = 1
"""A change of the load that saves less is not worth a word."""
SESSION_GROUP: Final = "session"
"""The options of a session; those of a combination are one suggestion."""
LOAD_GROUP: Final = "load"
"""How the weights are stored and the C library is set; each one alone or two together."""
_THRESHOLD_BYTES: Final = 128 << 10
"""What glibc starts with before it adapts (``DEFAULT_MMAP_THRESHOLD``)."""
LOAD_CHANGES: Final[Mapping[str, Mapping[str, Any]]] = {
    "external_data": {"weights": "external"},
    "malloc_thresholds": {"malloc_threshold_bytes": _THRESHOLD_BYTES},
    "external_thresholds": {"weights": "external", "malloc_threshold_bytes": _THRESHOLD_BYTES},
    "malloc_trim": {"trims_heap": True},
}
"""Options of a process by the id of the suggestion."""
_ACCUMULATED = (2, 4, 8)
"""Numbers of micro-batches: small ones, since they must divide the batch."""
_RANKS = (4, 5)
_MOST_CHANNELS = 4
_LEAST_SIDE = 16
"""Smaller images are not halved."""
_WORDS = {
    "enable_mem_pattern=False": ("pattern", "each tensor is allocated separately in every run"),
    "enable_mem_reuse=False": ("reuse", "none known"),
    "kSameAsRequested": ("growth", "more system allocations as the arena grows"),
    "arena shrinkage after each run": ("shrinkage", "each run allocates from the system again"),
    "disable_prepacking": ("prepacking", "weights are packed in every run: slower kernels"),
    "fixed dims": ("dims", "the session accepts only this shape"),
    "symbolic dims": ("dims", "the memory plan does not know the dims"),
    "ORT_DISABLE_ALL": ("off", "no fused nodes: slower"),
    "ORT_ENABLE_BASIC": ("basic", "fewer fused nodes: slower"),
    "ORT_ENABLE_EXTENDED": ("extended", "no NCHWc layout: slower convolutions on CPU"),
    "ORT_ENABLE_ALL": ("all", "the session takes longer to create"),
}
"""A change's word in an id, and its cost, by onnxruntime's name of the option."""
_FREE = frozenset({"enable_mem_reuse=False", "kSameAsRequested", "fixed dims"})
_OPTIMIZERS = ("adam8bit", "adafactor", "lion", "momentum", "sgd")
"""The largest state first."""
_PRECISIONS = ("mixed-bf16", "bf16-master", "bf16")
_LOSSY_PRECISION = "bf16"
"""Without float32 weights training may not converge."""
_PRECISION_COSTS = {
    "mixed-bf16": "activations have 8 bits of precision; weights stay float32",
    "bf16-master": "as mixed-bf16, with a bfloat16 and a float32 copy of the weights",
    "bf16": "updates below 1/256 of a weight are lost: training may not converge",
}
_SHARDS = {
    "zero1": "ranks exchange gradients and updated weights",
    "zero2": "as ZeRO-1, and each rank stores only its shard of the gradients",
    "zero3": "weights are gathered for each layer in forward and backward: 1.5 x the traffic",
}
_WORLDS = (2, 4, 8)
_LORA_RANK = 8
_FEW = 2
_LISTED = 4
_COST: Final = (
    "write the file once with onnxmem reorder; for runtimes that run nodes in file order, such as "
    "onnxruntime with ExecutionOrder.PRIORITY_BASED and graph optimizations disabled"
)
HALF = Suggestion(
    id="half_precision",
    group="half_precision",
    what="convert to float16 or bfloat16: weights, inputs and activations",
    tradeoff=Tradeoff.ACCURACY,
    cost="float16 overflows above 65,504, bfloat16 has 8 bits of precision; most CPU kernels still "
    "compute in float32",
    change=lambda subject: replace(subject, has_half_floats=True),
    settings={"precision": "float16"},
)


def batch_suggestions(
    subject: Subject, figure: Objective, budget_bytes: int | None
) -> Iterator[Suggestion]:
    """Half the batch, and the largest batch within a budget if that is smaller than requested."""
    batch = subject.results().bound.binding.batch
    if batch is None or batch == 1:
        return
    yield _fewer_samples(subject, batch, batch // 2, "batch")
    if budget_bytes is None:
        return
    # Half of the batch is suggested already.
    found = largest_batch(budget_bytes, figure, subject)
    if found is not None and found.number and found.number < batch and found.number != batch // 2:
        largest = _fewer_samples(subject, batch, found.number, LARGEST_BATCH)
        yield replace(largest, what=f"{largest.what}{_within_budget(found)}")


def _within_budget(found: MaxBatch) -> str:
    """What the largest batch takes of the budget, where an allocator has no more, and from which
    batch on less is free than the figure may be off by.
    """
    is_tight = found.comfortable is not None and found.comfortable != found.number
    tight = f", tight from {(found.comfortable or 0) + 1}" if is_tight else ""
    return f": takes {format_bytes(found.num_bytes)} of the budget{tight}"


def accumulation_suggestions(subject: Subject) -> Iterator[Suggestion]:
    """Gradient accumulation: the same samples in several micro-batches for one optimizer step."""
    results = subject.results()
    batch = results.bound.binding.batch
    recipe = subject.request.settings.recipe
    cost = "smaller kernels"
    if _normalizes_batches(results):
        cost += "; BatchNormalization averages over fewer samples"
    # Micro-batches that the user chose are left alone.
    for count in _ACCUMULATED if batch and recipe.accumulate == 1 else ():
        if batch is None or batch % count:
            continue
        micro = batch // count
        yield Suggestion(
            id=f"accumulate_{count}",
            group=_BATCH_GROUP,
            what=f"--accumulate {count} --batch {micro}: {count} micro-batches of {micro} for one "
            "step",
            tradeoff=Tradeoff.TIME,
            cost=cost,
            change=_accumulated(micro, count),
            settings={"batch": micro, "accumulate": count},
        )


def _normalizes_batches(results: StageResults) -> bool:
    """Whether a BatchNormalization is in the file, or may have been folded away by its export."""
    graph = results.bound.graph
    if any(node.op_type == "BatchNormalization" for node in graph.all_nodes()):
        return True
    folded = None if results.training is None else results.training.batchnorms
    return folded is not None and bool(folded.put_back or folded.left_out or folded.unknown)


def resolution_suggestions(subject: Subject) -> Iterator[Suggestion]:
    """Images of half the side, so that convolutions have a quarter of the outputs.

    An image is a float or uint8 input of rank 4 or 5 with 1 to 4 channels, on axis 1 (as ONNX's
    convolutions have them) or on the last axis. Whether the model accepts another size is left to
    the analysis: a classifier after a fixed flatten has no valid shapes then, which is a finding
    that the unchanged model lacks, and nothing is suggested.
    """
    results = subject.results()
    before = results.bound
    shapes = dict(_halved(before.graph))
    if not shapes:
        return
    change = with_shapes(shapes, _symbols(subject, shapes))
    try:
        after = change(subject).results()
    except OnnxmemError:
        return
    # A smaller image that raises a finding of its own no longer fits the network.
    known = {finding.code for finding in before.findings}
    if not after.is_whole or any(f.code not in known for f in after.bound.findings):
        return
    flops = flops_text(before.graph, after.bound.graph)
    yield Suggestion(
        id="resolution",
        group="resolution",
        what="halve the image size: " + ", ".join(map(shape_flag, shapes, shapes.values())),
        tradeoff=Tradeoff.ACCURACY,
        cost=f"details are lost: evaluate or train at this size{flops}",
        change=change,
        settings={"shapes": {name: list(dims) for name, dims in shapes.items()}},
        changes_training=True,
    )


def session_suggestions(runtime: str) -> Iterator[Suggestion]:
    """Session options, evaluated by the memory of the whole process or device."""
    grown: Strategy = "kSameAsRequested"
    changes = {
        "enable_mem_pattern=False": with_options(enable_mem_pattern=False),
        "kSameAsRequested": with_options(arena_extend_strategy=grown),
        "enable_mem_pattern=False, kSameAsRequested": with_options(
            enable_mem_pattern=False, arena_extend_strategy=grown
        ),
        "arena shrinkage after each run": with_options(shrinks_arena=True),
        "disable_prepacking": with_options(disable_prepacking=True),
    }
    for words, change in changes.items():
        if runtime == "ort-cpu" or words != "disable_prepacking":
            yield _named(tuple(words.split(", ")), change)


def load_suggestions() -> Iterator[Suggestion]:
    """What a load leaves behind on the CPU: copies of weights, and freed memory.

    The C library keeps most of what a load frees, unless its thresholds are fixed or it is told to
    return it. External weights are mapped instead of read, so that there is less to free.
    """
    variables = " ".join(f"{name}={_THRESHOLD_BYTES}" for name in MALLOC_VARIABLES)
    threshold = f"malloc thresholds of {format_bytes(_THRESHOLD_BYTES)}: {variables}"
    external = "weights in a file beside the model (onnx.save_model, save_as_external_data=True)"
    faults = "glibc only; memory that is allocated again has new pages"
    both, trim = f"{external}, and {threshold}", "malloc_trim(0) when the session is created"
    words = {
        "external_data": (external, "two files", Tradeoff.NOTHING),
        "malloc_thresholds": (threshold, faults, Tradeoff.TIME),
        "external_thresholds": (both, f"two files; {faults}", Tradeoff.TIME),
        "malloc_trim": (trim, "glibc only", Tradeoff.NOTHING),
    }
    for word, (what, cost, tradeoff) in words.items():
        yield Suggestion(
            id=word,
            group=LOAD_GROUP,
            what=what,
            tradeoff=tradeoff,
            cost=cost,
            change=with_options(**LOAD_CHANGES[word]),
            settings=LOAD_CHANGES[word],
        )


def load_proposals(subject: Subject) -> Iterator[Proposal]:
    """What each of ``load_suggestions`` saves of the process; none where that is unknown."""
    own = planned_process(subject)
    if own is None:
        return
    before_bytes = own.total_bytes
    for suggestion in load_suggestions():
        after_bytes = own.with_options(**suggestion.settings).total_bytes
        if 100 * (before_bytes - after_bytes) >= _LEAST_PERCENT * before_bytes:
            yield Proposal(
                suggestion=suggestion,
                figure=Objective.PROCESS,
                before_bytes=before_bytes,
                after_bytes=after_bytes,
                is_exact=True,
            )


def level_suggestions(level: Level) -> Iterator[Suggestion]:
    """The other levels of graph optimization, evaluated as ``session_suggestions`` are."""
    for other, name in LEVEL_NAMES.items():
        if other != level:
            yield replace(_named((name,), with_options(level=other)), group="level")


def resident_proposals(advice: Advice) -> Iterator[Proposal]:
    """What the best combination of options, and each option alone, saves in the arena."""
    if advice.is_partial:
        return
    own = advice.runtime.own
    best = advice.runtime.advice[0]
    for choice in (best, *advice.singles):
        # The best combination may be one option alone, which would be listed twice.
        if choice.changes and (choice is best or choice.changes != best.changes):
            suggestion = _named(choice.changes, lambda subject: subject)
            yield Proposal(
                suggestion=replace(suggestion, id="session_best") if choice is best else suggestion,
                figure=Objective.RESIDENT,
                before_bytes=own.resident_bytes,
                after_bytes=choice.resident_bytes,
                is_exact=True,
            )


def training_suggestions(subject: Subject) -> Iterator[Suggestion]:
    """Changes of the training configuration; a choice that the user made is left alone."""
    recipe = subject.request.settings.recipe
    yield from _optimizers(recipe.optimizer)
    if recipe.optimizer_form == "foreach":
        yield _recipe_suggestion(
            "optimizer_form", "single", Tradeoff.TIME, "one kernel per parameter in each step"
        )
    if recipe.precision == "fp32":
        for name in _PRECISIONS:
            yield _recipe_suggestion(
                "precision",
                name,
                Tradeoff.ACCURACY,
                _PRECISION_COSTS[name],
                changes_training=name == _LOSSY_PRECISION,
            )
    if not recipe.in_place_activations:
        yield Suggestion(
            id="in_place_activations",
            group="in_place_activations",
            what="--in-place-activations: ReLU(inplace=True) and the like",
            tradeoff=Tradeoff.NOTHING,
            cost="a code change; autograd raises an error if backward needs the input",
            change=with_recipe(in_place_activations=True),
            settings={"in_place_activations": True},
        )
    if recipe.checkpoint == "none":
        yield from _checkpoints(subject)
    if recipe.shard in {"none", "ddp"}:
        yield from _shards(recipe.world)
    if recipe.lora_rank is None and not recipe.freeze:
        yield from _parts(subject)


def order_suggestions(subject: Subject) -> Iterator[Suggestion]:
    """The best order that is found, unless another order than the file's was requested."""
    if subject.request.settings.order == "file":
        yield Suggestion(
            id="order",
            group="order",
            what="run the nodes in an order that needs less memory",
            tradeoff=Tradeoff.NOTHING,
            cost=_COST,
            change=_in_best_order,
            settings={"order": "best"},
        )


def in_place_proposal(subject: Subject) -> Iterator[Proposal]:
    """What buffer reuse saves: in-place operators and views.

    The inference figures already assume it; a runtime without it needs that much more.
    """
    results = subject.results()
    memory = results.activations
    if not results.is_whole or memory.peak_bytes is None or memory.in_place_peak_bytes is None:
        return
    suggestion = Suggestion(
        id="in_place",
        group="in_place",
        what="use a runtime with in-place operators and views, such as onnxruntime (the inference "
        "figures already assume it)",
        tradeoff=Tradeoff.NOTHING,
        cost="none",
    )
    yield Proposal(
        suggestion=suggestion,
        figure=Objective.PEAK,
        before_bytes=memory.peak_bytes,
        after_bytes=memory.in_place_peak_bytes,
        is_exact=True,
    )


def _fewer_samples(subject: Subject, batch: int, number: int, word: str) -> Suggestion:
    now, then = (each.results().bound.graph for each in (subject, subject.with_batch(number)))
    return Suggestion(
        id=word,
        group=_BATCH_GROUP,
        what=f"--batch {number} instead of {batch}",
        tradeoff=Tradeoff.SAMPLES,
        cost=f"{-(-batch // number)} runs for the same samples"
        + flops_text(now, then, batch / number),
        change=lambda subject: subject.with_batch(number),
        settings={"batch": number},
        changes_training=True,
    )


def _accumulated(micro: int, count: int) -> Change:
    return lambda subject: with_recipe(accumulate=count)(subject.with_batch(micro))


def _halved(graph: Graph) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in graph.inputs:
        tensor = graph.tensors[name]
        shape = tensor.shape
        is_image = tensor.dtype in {DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.UINT8}
        if not is_image or shape is None or None in shape or len(shape) not in _RANKS:
            continue
        dims = tuple(dim for dim in shape if dim is not None)
        # Few in axis 1 are channels, as PyTorch has them; else few in the last, as TensorFlow has
        # them.
        channels_first = dims[1] <= _MOST_CHANNELS
        if not channels_first and dims[-1] > _MOST_CHANNELS:
            continue
        first, last = (2, len(dims)) if channels_first else (1, len(dims) - 1)
        if min(dims[first:last]) >= _LEAST_SIDE:
            yield name, (*dims[:first], *(dim // 2 for dim in dims[first:last]), *dims[last:])


def _symbols(subject: Subject, shapes: dict[str, tuple[int, ...]]) -> frozenset[str]:
    values = subject.request.prepared.inputs
    dims = (dim for value in values if value.name in shapes for dim in input_dims(value) or ())
    return frozenset(dim for dim in dims if isinstance(dim, str))


def shape_flag(name: str, dims: tuple[int | str, ...]) -> str:
    """The flag that sets the shape of an input: ``--shape image:N,3,64,64``."""
    return "--shape " + quote(f"{name}:{','.join(map(str, dims))}")


def flops_text(before: Graph, after: Graph, runs: float = 1) -> str:
    """By how much the FLOPs of forward passes change; empty where they are unknown.

    ``runs``: how many passes of ``after``, whole or not, have the samples of one of ``before``.
    """
    now, then = compute(before).forward_flops, compute(after).forward_flops
    if not now or then is None:
        return ""
    percent = 100 * (runs * then / now - 1)
    return "; the same FLOPs" if runs > 1 and not round(percent) else f"; FLOPs {percent:+.0f} %"


def _named(words: tuple[str, ...], change: Change) -> Suggestion:
    known = [_WORDS.get(word, (word.split("=")[0], "see the table below")) for word in words]
    return Suggestion(
        id="_".join(("session", *(short for short, _ in known))),
        group=SESSION_GROUP,
        what="a session with " + ", ".join(words),
        tradeoff=Tradeoff.NOTHING if _FREE.issuperset(words) else Tradeoff.TIME,
        cost="; ".join(dict.fromkeys(cost for _, cost in known)),
        change=change,
        settings={"session": list(words)},
    )


def _recipe_suggestion(
    field: str, name: str, tradeoff: Tradeoff, cost: str, *, changes_training: bool = False
) -> Suggestion:
    return Suggestion(
        id=f"{field}_{name}",
        group=field,
        what=f"--{field.replace('_', '-')} {name}",
        tradeoff=tradeoff,
        cost=cost,
        change=with_recipe(**{field: name}),
        settings={field: name},
        changes_training=changes_training,
    )


def _optimizers(now: str) -> Iterator[Suggestion]:
    for name in _OPTIMIZERS:
        if name != now:
            yield _recipe_suggestion(
                "optimizer",
                name,
                Tradeoff.ACCURACY,
                f"converges differently from {now}: tune its hyperparameters",
                changes_training=True,
            )


def _checkpoints(subject: Subject) -> Iterator[Suggestion]:
    """The schedule with the lowest peak, and the cheapest one that saves at least half as much."""
    results = with_recipe(checkpoint="best")(subject).results()
    graph, training = results.bound.graph, results.training
    options = training.checkpoints if training else ()
    if len(options) < _FEW:
        return
    arithmetic = compute(graph)
    step_flops = (arithmetic.forward_flops or 0) + (arithmetic.backward_flops or 0)
    # Options are in the order of rising FLOPs and falling peaks; the first one has no checkpoints.
    best, now = options[-1], options[0]
    half_bytes = (now.peak_bytes + best.peak_bytes) // 2
    # The fewest FLOPs that save at least half of what the best saves.
    cheap = next(option for option in options if option.peak_bytes <= half_bytes)
    for option in dict.fromkeys((best, cheap)):
        yield _checkpoint(option, step_flops, is_best=option is best)


def _checkpoint(option: CheckpointOption, step_flops: int, *, is_best: bool) -> Suggestion:
    """A schedule as a flag if it has one: those that save matmul outputs have none."""
    name = "best" if is_best else option.schedule
    has_flag = name in {"best", "sqrt"} or "," not in name
    share = f" (+{100 * option.extra_flops / step_flops:.0f} % of a step)" if step_flops else ""
    return Suggestion(
        id="checkpoint_best" if is_best else "checkpoint_cheap",
        group="checkpoint",
        what=f"--checkpoint {name}" + (f": {option.schedule}" if is_best else ""),
        tradeoff=Tradeoff.TIME,
        cost=f"+{format_count(option.extra_flops)} FLOPs of recomputation{share}",
        change=with_recipe(checkpoint=name) if has_flag else None,
        settings={"checkpoint": name},
    )


def _shards(world: int) -> Iterator[Suggestion]:
    worlds = (world,) if world > 1 else _WORLDS
    for stage, cost in _SHARDS.items():
        # ZeRO-1 and 2 leave the weights on every rank, so only the largest world is worth a line.
        for ranks in worlds if stage == "zero3" else worlds[-1:]:
            yield Suggestion(
                id=f"shard_{stage}_{ranks}",
                group="shard",
                what=f"--shard {stage} --world {ranks}: the memory of one of {ranks} ranks",
                tradeoff=Tradeoff.DEVICES,
                cost=f"{ranks} devices; {cost}",
                change=with_recipe(shard=stage, world=ranks),
                settings={"shard": stage, "world": ranks},
            )


def _parts(subject: Subject) -> Iterator[Suggestion]:
    results = subject.results()
    if adapted_nodes(results.graph, results.parameters):
        yield Suggestion(
            id="lora",
            group="parts",
            what=f"--lora-rank {_LORA_RANK}: train only adapters of the linear layers",
            tradeoff=Tradeoff.ACCURACY,
            cost="for fine-tuning; the rest of the model does not change",
            change=with_recipe(lora_rank=_LORA_RANK),
            settings={"lora_rank": _LORA_RANK},
            changes_training=True,
        )
    patterns = _all_but_the_last(results.parameters.trained)
    if patterns:
        flags = " ".join(f"--freeze '{pattern}'" for pattern in patterns[:_LISTED])
        more = len(patterns) - _LISTED
        flags += f" and {more} more" if more > 0 else ""
        yield Suggestion(
            id="freeze",
            group="parts",
            what=f"{flags}: train only the last part",
            tradeoff=Tradeoff.ACCURACY,
            cost="for fine-tuning; the frozen part does not change",
            change=with_recipe(freeze=patterns),
            settings={"freeze": list(patterns)},
            changes_training=True,
        )


def _all_but_the_last(names: Sequence[str]) -> tuple[str, ...]:
    """Patterns for every part of the model but the last.

    ``names`` are in the order of the forward pass. Parts are told apart by the first component of
    the dotted names in which they differ: of ``model.0.weight`` and ``model.1.weight``, the second.
    """
    split = [name.split(".") for name in names]
    depth = next(
        (index for index in range(min(map(len, split), default=1) - 1) if _differs(split, index)),
        None,
    )
    if depth is None:
        return ()
    heads = [".".join(words[: depth + 1]) for words in split]
    parts = [head for head, _ in groupby(heads)]
    last = parts[-1]
    return tuple(f"{glob.escape(head)}.*" for head in dict.fromkeys(parts) if head != last)


def _differs(split: Sequence[Sequence[str]], index: int) -> bool:
    return len({tuple(words[: index + 1]) for words in split}) > 1


def _in_best_order(subject: Subject) -> Subject:
    settings = replace(subject.request.settings, order="best")
    return replace(subject, request=replace(subject.request, settings=settings))

"""The flags that commands share.

Nothing here is slow to import, so that ``--help`` is quick. ``parsing`` has the parser and the
values, ``chosen`` what parsed flags choose.
"""

from argparse import ArgumentParser, BooleanOptionalAction, _ArgumentGroup
from collections.abc import Callable
from dataclasses import fields
from typing import Final

from onnxmem.cli.parsing import (
    add_repeatable,
    add_size,
    dim,
    named_dim,
    named_shape,
    named_value,
    one_batch,
    seed,
)
from onnxmem.settings import (
    ATTENTIONS,
    BASES,
    CPUS,
    GRAPHS,
    LOSSES,
    OPTIMIZER_FORMS,
    OPTIMIZERS,
    ORDERS,
    PACKINGS,
    PRECISIONS,
    RECURRENTS,
    RUNTIMES,
    SHARDINGS,
    TORCHES,
    ZERO_GRADS,
    TrainingConfig,
)
from onnxmem.version import __version__

_VALUE_HELP: Final = (
    "what a small input holds, where shapes or a runtime follow from it (repeatable; "
    "lists with commas)"
)


def add_reserve(device: _ArgumentGroup) -> None:
    """Add what is kept free of a device's memory."""
    add_size(device, "--reserve", "memory to keep free", default=0)


def add_one_model(parser: ArgumentParser) -> _ArgumentGroup:
    """Add the one model of a command that takes no other."""
    model = parser.add_argument_group("model")
    model.add_argument("model", metavar="MODEL", help="path of an .onnx file")
    return model


def add_model_options(
    parser: ArgumentParser,
    dim_type: Callable[[str], tuple[str, int | None]] | None = None,
    *,
    num_models: str = "+",
) -> _ArgumentGroup:
    """Add the models and their inputs; ``dim_type`` reads what follows ``--dim``."""
    model = add_sized_models(parser, dim_type, num_models=num_models)
    add_values(model)
    return model


def add_sized_models(
    parser: ArgumentParser,
    dim_type: Callable[[str], tuple[str, int | None]] | None = None,
    *,
    num_models: str = "+",
) -> _ArgumentGroup:
    """Add the models and their sizes, without values of inputs, which concern runtimes alone."""
    model = parser.add_argument_group("model")
    model.add_argument("models", nargs=num_models, metavar="MODEL", help="path of an .onnx file")
    add_batch_and_dims(model, dim_type)
    add_shapes(model)
    return model


def add_batch_and_dims(
    model: _ArgumentGroup,
    dim_type: Callable[[str], tuple[str, int | None]] | None = None,
) -> None:
    """Add the batch and the numbers of symbolic dims; ``dim_type`` reads each of these."""
    model.add_argument("--batch", type=one_batch, metavar="N", help="samples at once")
    add_dims(model, dim_type)


def add_dims(
    parser: ArgumentParser | _ArgumentGroup,
    dim_type: Callable[[str], tuple[str, int | None]] | None = None,
) -> None:
    """Add the numbers of symbolic dims; ``dim_type`` reads each."""
    add_repeatable(
        parser,
        "--dim",
        "dims",
        ("NAME=N", "a number for a symbolic dim (repeatable)"),
        dim_type or named_dim,
    )


def add_shapes(parser: ArgumentParser | _ArgumentGroup) -> None:
    """Add whole shapes of inputs."""
    add_repeatable(
        parser,
        "--shape",
        "shapes",
        (
            "INPUT:1,3,224,224",
            "the whole shape of an input; a dim's name in the file leaves it free (repeatable)",
        ),
        named_shape,
    )


_MOST_HELP: Final = (
    "the most of a dim that the data decide, as boxes:0=100; LOOP:iterations=N of the iterations "
    "of a Loop, TENSOR=N of all elements of a tensor (repeatable)"
)


def add_most(parser: ArgumentParser | _ArgumentGroup) -> None:
    """Add the upper ends of dims that the data of a run decide."""
    add_repeatable(
        parser,
        "--max",
        "most",
        ("TENSOR:AXIS=N", _MOST_HELP),
        named_dim,
    )


def add_values(parser: ArgumentParser | _ArgumentGroup) -> None:
    """Add what small inputs hold."""
    add_repeatable(
        parser,
        "--value",
        "values",
        ("INPUT=16000", _VALUE_HELP),
        named_value,
    )


def add_context_option(parser: ArgumentParser) -> None:
    """Add the length of a language model's cache, for both of its steps."""
    add_context(
        parser.add_argument_group("language models"),
        "tokens that the cache holds: a decode step after N - 1, and a prefill of N",
    )


def add_context(group: _ArgumentGroup, text: str) -> None:
    """Add the length of a language model's cache."""
    group.add_argument("--context", type=dim, metavar="N", help=text)


def add_devices_file(parser: ArgumentParser | _ArgumentGroup) -> None:
    """Add the flag of a user's own devices."""
    parser.add_argument(
        "--devices", dest="devices_file", metavar="FILE", help="a TOML file of more devices"
    )


def add_result_options(parser: ArgumentParser) -> _ArgumentGroup:
    """Add the file that a result goes to; returns the group, for what one command alone writes."""
    output = parser.add_argument_group("output")
    output.add_argument("-o", "--output", metavar="FILE", help="write to a file")
    output.add_argument("--force", action="store_true", help="overwrite a file that exists")
    output.add_argument("-q", "--quiet", action="store_true", help="no messages on stderr")
    output.add_argument("-V", "--version", action="version", version=f"onnxmem {__version__}")
    return output


def add_json_option(output: _ArgumentGroup) -> None:
    """Add JSON as the other form of a result."""
    output.add_argument(
        "--json", action="store_true", help="write JSON instead of text, as -o FILE.json does"
    )


def add_text_result_options(parser: ArgumentParser) -> _ArgumentGroup:
    """Add the file and the forms of a result that is text in color, or JSON."""
    output = add_result_options(parser)
    add_json_option(output)
    add_color_option(output)
    return output


def add_color_option(output: ArgumentParser | _ArgumentGroup) -> None:
    """Add whether text is colored."""
    output.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="color the text; auto: on a terminal, unless NO_COLOR is set",
    )


def add_report_options(parser: ArgumentParser) -> None:
    """Add what a report holds, and how it is shown."""
    report = parser.add_argument_group("report")
    report.add_argument("--layers", action="store_true", help="add a row for every node")
    report.add_argument(
        "--strict", action="store_true", help="exit with 3 if anything is left out of a figure"
    )
    add_color_option(report)


def add_runtime_options(parser: ArgumentParser) -> None:
    """Add the runtimes, the graph that they run, and what is assumed of CUDA."""
    runtime = parser.add_argument_group("runtime")
    add_runtimes(runtime)
    runtime.add_argument(
        "--graph",
        choices=GRAPHS,
        help="graph that the figures are of (default: raw, and ort-all for a runtime)",
    )
    add_session_options(runtime)


def add_runtimes(runtime: _ArgumentGroup) -> None:
    """Add the runtimes, and whether onnxruntime is asked for the graph that it runs."""
    runtime.add_argument(
        "--runtime",
        dest="runtimes",
        choices=RUNTIMES,
        action="append",
        default=[],
        help="predict what onnxruntime takes, on CPU or CUDA (twice: side by side)",
    )
    add_emulation(runtime)


def add_compared_runtime(runtime: _ArgumentGroup) -> None:
    """Add the runtime whose process a device is compared with."""
    runtime.add_argument(
        "--runtime",
        choices=("none", *RUNTIMES),
        help="whose process counts (default or none: the tensors alone)",
    )


def add_emulation(group: _ArgumentGroup) -> None:
    """Add whether onnxruntime is asked for the graph that it runs."""
    group.add_argument(
        "--emulate-optimizer",
        action="store_true",
        help="do not ask onnxruntime for its graph even where it is installed",
    )


def add_memory_switches(session: _ArgumentGroup) -> None:
    """Add what a session of onnxruntime may leave out: memory patterns, and reuse of buffers."""
    session.add_argument("--no-mem-pattern", action="store_true", help="enable_mem_pattern=False")
    session.add_argument("--no-mem-reuse", action="store_true", help="enable_mem_reuse=False")


def add_arena_options(session: _ArgumentGroup) -> None:
    """Add how the arena of a session grows and shrinks, beside the memory switches."""
    from onnxmem.runtimes.onnxruntime.session_options import GROWTHS

    add_memory_switches(session)
    session.add_argument(
        "--arena-extend-strategy",
        choices=GROWTHS,
        default=GROWTHS[0],
        help=f"default: {GROWTHS[0]}",
    )
    session.add_argument(
        "--shared-arena",
        action="store_true",
        help="all sessions of the process have one arena: session.use_env_allocators (CPU)",
    )
    session.add_argument(
        "--shrink-arena",
        action="store_true",
        help="each run ends with memory.enable_memory_arena_shrinkage",
    )
    session.add_argument(
        "--threads",
        type=dim,
        default=1,
        metavar="N",
        help="intra_op_num_threads, up to 1024 (default: 1)",
    )
    session.add_argument(
        "--weights",
        choices=("inline", "external"),
        help="move them into the model file, or into a file beside it (default: as they are)",
    )
    session.add_argument(
        "--malloc-trim",
        action="store_true",
        help="the process calls malloc_trim(0) when the session is created",
    )
    add_size(
        session,
        "--malloc-threshold",
        "MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ in the process's environment, as in "
        "128KiB; at least 4KiB",
        dest="malloc_threshold_bytes",
    )


def add_requests(parser: ArgumentParser) -> None:
    """Add the requests of a server, and how many are served at once."""
    requests = parser.add_argument_group("requests")
    requests.add_argument(
        "--requests",
        metavar="FILE|RANGES",
        help="a CSV file whose header names the dims, a JSONL file with an object per request, or "
        "ranges to draw from, as in batch=1..8,seq=16..512:uniform; without it all are equal",
    )
    requests.add_argument(
        "--num-requests",
        type=dim,
        metavar="N",
        help="how many are drawn from ranges, or equal (default: 500)",
    )
    requests.add_argument(
        "--seed", type=seed, metavar="N", help="of what is drawn from ranges (default: 0)"
    )
    requests.add_argument(
        "--concurrency", type=dim, default=1, metavar="N", help="runs at once in each session"
    )
    requests.add_argument(
        "--sessions",
        type=dim,
        default=1,
        metavar="N",
        help="sessions in the process, each with its arena, which take requests in turn",
    )


def add_cuda_sizes(group: _ArgumentGroup) -> None:
    """Add what is taken on CUDA beside an allocator, in place of what is assumed."""
    for flag, what in (("context", "CUDA context"), ("workspace", "cuDNN workspace")):
        add_size(group, f"--cuda-{flag}", f"{what}, in place of what is assumed")


def add_session_options(runtime: _ArgumentGroup) -> None:
    """Add the settings of a session or an allocator, and what is assumed of CUDA."""
    runtime.add_argument(
        "--fixed-dims",
        action="store_true",
        help="open the session with numbers in place of symbolic dims",
    )
    runtime.add_argument(
        "--cpu",
        choices=CPUS,
        help="CPU that the session runs on (default: the device's where it is known, else native:"
        " this machine's)",
    )
    add_cuda_sizes(runtime)
    runtime.add_argument(
        "--expandable-segments",
        action="store_true",
        help="PyTorch's allocator on CUDA grows its segments, for a training step",
    )


def add_order_option(parser: ArgumentParser) -> None:
    """Add the order that activations are counted in."""
    order = parser.add_argument_group("order of execution")
    order.add_argument(
        "--order",
        choices=ORDERS,
        default="file",
        help="count activations in this order: the file's, onnxruntime's own, or the best found",
    )


def add_packing_option(parser: ArgumentParser) -> None:
    """Add how far a smaller packed block is searched for."""
    parser.add_argument_group("packing").add_argument(
        "--pack",
        choices=PACKINGS,
        help="how far a smaller packed block is searched for: quick takes milliseconds, best up to"
        " some seconds, with the same result each time (default: best for a page, else quick)",
    )


def add_training_options(parser: ArgumentParser) -> None:
    """Add the flags of a training step: fields of ``TrainingConfig``, ``None`` if not given."""
    group = parser.add_argument_group("training")
    group.add_argument("--train", action="store_true", help="a training step of PyTorch, too")
    group.add_argument(
        "--torch",
        choices=TORCHES,
        default=TrainingConfig().torch,
        metavar="RELEASE",
        help=f"of PyTorch: {', '.join(TORCHES)} (default: {TrainingConfig().torch}); the "
        "defaults of --optimizer-form, --attention and --zero-grad depend on it",
    )
    _add_choices(group)
    group.add_argument("--weight-decay", action="store_true", help="the optimizer decays weights")
    add_repeatable(
        group,
        "--loss-output",
        "outputs",
        ("NAME", "an output that a loss reads (repeatable; default: every floating one)"),
    )
    add_repeatable(
        group,
        "--freeze",
        "freeze",
        ("PATTERN", "parameters that are not trained, as in 'encoder.*' (repeatable)"),
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
        help="compute activations again: none, blocks (each repeated module), blocks=PATTERN, "
        "sqrt, every=K or best (default: none)",
    )
    group.add_argument(
        "--world", type=int, default=1, metavar="N", help="ranks that share the training"
    )
    add_size(
        group,
        "--cublas-workspace",
        "of each of PyTorch's two cuBLAS handles (default: PyTorch's, 8.1 MiB, from Hopper on "
        "32 MiB where the device is known)",
    )
    group.add_argument(
        "--gpu-threads",
        type=int,
        metavar="N",
        help="threads that the GPU runs at once, on which buffers of sums depend: multiprocessors "
        "x threads of each (default: those of the device, an H100's where none is named)",
    )
    _add_switches(group)
    parser.set_defaults(**dict.fromkeys(field.name for field in fields(TrainingConfig)))


def _add_choices(group: _ArgumentGroup) -> None:
    defaults = TrainingConfig()
    for name, choices in (
        ("optimizer", OPTIMIZERS),
        ("optimizer_form", OPTIMIZER_FORMS),
        ("precision", PRECISIONS),
        ("loss", LOSSES),
        ("attention", ATTENTIONS),
        ("recurrent", RECURRENTS),
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
        (
            "keep_outputs",
            (
                "the loop keeps a step's outputs, as 'out = model(x)' in its body does, until the "
                "next forward pass returns"
            ),
        ),
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


def add_verdict_options(group: ArgumentParser | _ArgumentGroup) -> None:
    """Add what a verdict compares, and which warnings it may disregard."""
    group.add_argument(
        "--basis",
        choices=BASES,
        help="what is compared with the memory: tensors, the sum of the tensors; process, all that "
        "the process takes, with its allocator and context (default: process with --train or "
        "--runtime, else tensors)",
    )
    add_repeatable(
        group, "--accept", "accepted", ("CODE", "give a verdict in spite of this warning")
    )

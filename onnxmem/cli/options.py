"""The flags that commands share: their parsers, what they set, and what they contradict.

Nothing here is slow to import, so that ``--help`` is quick. The functions that add flags come
first, then the settings that follow from them, then the refusal of flags that have no effect: most
likely another flag was forgotten.
"""

import re
from argparse import (
    SUPPRESS,
    Action,
    ArgumentParser,
    ArgumentTypeError,
    BooleanOptionalAction,
    HelpFormatter,
    Namespace,
    RawDescriptionHelpFormatter,
    _ArgumentGroup,
)
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, NoReturn

from onnxmem.cli.output import write_stdout
from onnxmem.errors import UsageError, nearest, shortened
from onnxmem.settings import (
    ATTENTIONS,
    BASES,
    CPUS,
    GRAPHS,
    LOSSES,
    NATIVE,
    OPTIMIZER_FORMS,
    OPTIMIZERS,
    ORDERS,
    PACKINGS,
    PRECISIONS,
    RUNTIMES,
    SHARDINGS,
    TORCHES,
    ZERO_GRADS,
    Settings,
    TrainingConfig,
    Values,
    parse_values,
)
from onnxmem.units import parse_size
from onnxmem.version import __version__

if TYPE_CHECKING:
    from onnxmem.analysis.fitting.assessing import FitRequest
    from onnxmem.decisions.devices import Catalog, Device
    from onnxmem.report.fit import ComparedMemory
    from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

_NUL: Final = "\0"
_UNKNOWN_FLAG: Final = re.compile(r"unrecognized arguments: (?:[^-]\S* )*(--?[^\s=]+)")
_INVALID_CHOICE: Final = re.compile(r"argument (\S+): invalid choice: '([^']*)'")
_MAX_DIGITS: Final = 18
"""Of a dim: larger numbers are no size of anything."""
_MOST_SECONDS: Final = 7 * 24 * 3600
_SESSION: Final = "a session: add --runtime ort-cpu, or --graph ort-all"
_CUDA: Final = "CUDA: add --runtime ort-cuda, or --train"
_FLAGS: Final = {"outputs": "--loss-output"}
_THIS_MACHINE: Final = "auto"
_VALUE_HELP: Final = (
    "what a small input holds, where shapes or a runtime follow from it (repeatable; "
    "lists with commas)"
)
_IS_GPU: Final = {"ort-cpu": False, "ort-cuda": True}


class Parser(ArgumentParser):
    """A parser whose faults are reported like any other, and whose ``--help`` is one screen."""

    def __init__(
        self,
        command: str,
        words: str,
        description: str,
        run: Callable[[Namespace], int],
        *,
        epilog: str | None = None,
    ) -> None:
        """``words`` is what its usage names after the command; an epilog keeps its lines."""
        prog = "onnxmem" if command == "analyze" else f"onnxmem {command}"
        super().__init__(
            prog=prog,
            usage=f"{prog} {words}",
            description=description,
            epilog=epilog,
            formatter_class=HelpFormatter if epilog is None else RawDescriptionHelpFormatter,
            add_help=False,
            allow_abbrev=False,
        )
        self.command = command
        self.set_defaults(run=run)
        help_ = self.add_argument_group("help")
        help_.add_argument("-h", "--help", action=_ShortHelp, help="the main options")
        help_.add_argument("--help-all", action="help", help="every option")

    def parse_command(self, words: Sequence[str]) -> Namespace:
        """Read a command line; what follows ``--`` is a name, however it begins.

        ``argparse`` takes the names of an intermixed line in a second pass, in which it has
        forgotten where ``--`` was. So they begin with a character that no argument of a process
        can hold until it has read them.
        """
        words = list(words)
        at = words.index("--") if "--" in words else len(words)
        names = [_NUL + word if word[:1] == "-" else word for word in words[at + 1 :]]
        arguments = self.parse_intermixed_args([*words[:at], *names])
        for key, value in vars(arguments).items():
            if isinstance(value, list):
                setattr(arguments, key, [_without_nul(each) for each in value])
            else:
                setattr(arguments, key, _without_nul(value))
        return arguments

    def _print_message(self, message: str, file: object = None) -> None:
        """Write help or a version, as any other result; faults go to ``error``."""
        del file
        write_stdout(message)

    def error(self, message: str) -> NoReturn:
        """Raise the fault, with the nearest flag or choice, and where to read on."""
        message = f"{message}; {self._nearest(message)}see {self.prog} --help"
        raise UsageError(message)

    def _nearest(self, message: str) -> str:
        """What a word that argparse refuses may be meant to be, with its punctuation."""
        refused = _UNKNOWN_FLAG.match(message)
        if refused is not None:
            return _suggestion(refused[1], [*self._option_string_actions])
        refused = _INVALID_CHOICE.match(message)
        if refused is None:
            return ""
        action = self._option_string_actions.get(refused[1].partition("/")[0])
        choices = None if action is None else action.choices
        return _suggestion(refused[2], [str(each) for each in choices or ()])


class _ShortHelp(Action):
    """Print one screen of help and exit."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - those of argparse
        super().__init__(nargs=0, default=SUPPRESS, **{**settings, "dest": SUPPRESS})

    def __call__(self, parser: ArgumentParser, *_: object) -> NoReturn:
        """Print it on stdout."""
        from onnxmem.cli.help import short_help
        from onnxmem.cli.output import write_stdout

        command = parser.command if isinstance(parser, Parser) else ""
        write_stdout(short_help(parser, command))
        parser.exit()


def _suggestion(word: str, known: Sequence[str]) -> str:
    hint = nearest(word, known).rstrip()
    return f"{hint}; " if hint else ""


def _without_nul(value: object) -> object:
    return value.removeprefix(_NUL) if isinstance(value, str) else value


def add_size(
    group: _ArgumentGroup,
    flag: str,
    text: str,
    *,
    dest: str | None = None,
    default: int | None = None,
) -> None:
    """Add a size in bytes; ``--budget`` sets ``budget_bytes``."""
    dest = dest or f"{flag.lstrip('-').replace('-', '_')}_bytes"
    group.add_argument(flag, dest=dest, type=size, default=default, metavar="SIZE", help=text)


def add_repeatable(
    group: ArgumentParser | _ArgumentGroup,
    flag: str,
    dest: str,
    shown: tuple[str, str],
    read: Callable[[str], object] = str,
) -> None:
    """Add a flag of which every use counts; ``shown`` is its metavar and its help."""
    metavar, text = shown
    group.add_argument(
        flag, dest=dest, type=read, action="append", default=[], metavar=metavar, help=text
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
    model.add_argument("--batch", type=dim, metavar="N", help="samples at once")
    add_dims(model, dim_type)
    add_shapes(model)
    return model


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
        ("INPUT:1,3,224,224", "the whole shape of an input (repeatable)"),
        named_shape,
    )


def add_most(parser: ArgumentParser | _ArgumentGroup) -> None:
    """Add the upper ends of dims that the data of a run decide."""
    add_repeatable(
        parser,
        "--max",
        "most",
        ("TENSOR:AXIS=N", "the most of a dim that the data decide, as boxes:0=100 (repeatable)"),
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


def seconds(text: str) -> float:
    """Read a time in seconds, of at most a week."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= _MOST_SECONDS:
        message = f"{text!r} is not a time: seconds, above 0 and up to {_MOST_SECONDS:,}"
        raise ArgumentTypeError(message)
    return number


def dim(text: str) -> int:
    """Read a positive number of at most 18 digits."""
    if not (text.isascii() and text.isdigit() and text.strip("0")):
        message = f"{text!r} is not a positive integer"
        raise ArgumentTypeError(message)
    if len(text) > _MAX_DIGITS:
        message = f"{text!r} is larger than any size"
        raise ArgumentTypeError(message)
    return int(text)


def named_dim(text: str) -> tuple[str, int]:
    """Read ``NAME=N``, split at the last equals sign."""
    name, equals, number = text.rpartition("=")
    if not (name and equals):
        message = f"{text!r} is not NAME=N, as in seq_len=512"
        raise ArgumentTypeError(message)
    return name, dim(number)


def named_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Split at the last colon: an input's name may hold others."""
    name, colon, dims = text.rpartition(":")
    if not (name and colon):
        message = f"{text!r} is not INPUT:1,3,224,224"
        raise ArgumentTypeError(message)
    return name, tuple(dim(each.strip()) for each in dims.split(",")) if dims else ()


def named_value(text: str) -> tuple[str, Values]:
    """Read ``INPUT=VALUE``, split at the last equals sign."""
    name, equals, value = text.rpartition("=")
    if not (name and equals):
        message = f"{text!r} is not INPUT=VALUE, as in sr=16000"
        raise ArgumentTypeError(message)
    try:
        return name, parse_values(value)
    except UsageError as fault:
        raise ArgumentTypeError(str(fault)) from None


def size(text: str) -> int:
    """Read a size in bytes."""
    try:
        return parse_size(text)
    except UsageError as fault:
        raise ArgumentTypeError(str(fault)) from None


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
        "--shrink-arena",
        action="store_true",
        help="each run ends with memory.enable_memory_arena_shrinkage",
    )
    session.add_argument(
        "--threads", type=dim, default=1, metavar="N", help="intra_op_num_threads (default: 1)"
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
        "128KiB",
        dest="malloc_threshold_bytes",
    )


def arena_options(arguments: Namespace, **others: Any) -> "SessionOptions":  # noqa: ANN401
    """The options of a session by the flags of ``add_arena_options``, and others by name."""
    from onnxmem.runtimes.onnxruntime import session_options

    return session_options.SessionOptions(
        enable_mem_pattern=not arguments.no_mem_pattern,
        enable_mem_reuse=not arguments.no_mem_reuse,
        arena_extend_strategy=arguments.arena_extend_strategy,
        shrinks_arena=arguments.shrink_arena,
        num_threads=arguments.threads,
        weights=arguments.weights,
        trims_heap=arguments.malloc_trim,
        malloc_threshold_bytes=arguments.malloc_threshold_bytes,
        **others,
    )


def add_requests(parser: ArgumentParser, *, is_required: bool = False) -> None:
    """Add the requests of a server, and how many are served at once."""
    requests = parser.add_argument_group("requests")
    requests.add_argument(
        "--requests",
        required=is_required,
        metavar="FILE|RANGES",
        help="a CSV file whose header names the dims, a JSONL file with an object per request, or "
        "ranges to draw from, as in batch=1..8,seq=16..512:uniform",
    )
    requests.add_argument(
        "--num-requests",
        type=dim,
        metavar="N",
        help="how many are drawn from ranges (default: 500)",
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


def seed(text: str) -> int:
    """A seed of what is drawn, as an argument."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        message = f"{text!r} is not a seed: an integer from 0 on"
        raise ArgumentTypeError(message)
    return int(text)


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

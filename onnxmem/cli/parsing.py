"""The parser of a command, and the values that flags take: counts, sizes, dims, shapes.

A value that cannot be read is a line that says what to write. Nothing here is slow to import, so
that ``--help`` is quick.
"""

import re
import shlex
from argparse import (
    SUPPRESS,
    Action,
    ArgumentParser,
    ArgumentTypeError,
    HelpFormatter,
    Namespace,
    RawDescriptionHelpFormatter,
    _ArgumentGroup,
)
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NoReturn

from onnxmem.cli.output import write_stdout
from onnxmem.errors import UsageError, nearest
from onnxmem.settings import Values, parse_values
from onnxmem.units import parse_size

_NUL: Final = "\0"
_UNKNOWN_FLAG: Final = re.compile(r"unrecognized arguments: (?:[^-]\S* )*(--?[^\s=]+)")
_QUOTED: Final = re.compile("'([^']+)'")
_INVALID_CHOICE: Final = re.compile(r"argument (\S+): invalid choice: '([^']*)'")
_LEFT_OVER: Final = re.compile(r"unrecognized arguments: (?:[^-\s=][^\s=]*=\d+\.\.)?\d+(?: |$)")
_NO_SIZE: Final = re.compile(r"argument --budget\S*: size '([A-Za-z][^']{0,40})'")
_NO_VALUE: Final = re.compile(r"argument (\S+): expected one argument")
_DEVICE: Final = ("--budget", "--device", "--budget-peak")
_CARDS: Final = ("--cards", "--world")
_SAME_FLAG: Final[Mapping[str, Sequence[str]]] = {
    word: flags
    for words, flags in (
        ("gpu card vram memory mem ram capacity budget target auto hardware device", _DEVICE),
        ("gpus cards num-gpus n-gpus ngpus num-cards world-size nproc", _CARDS),
        ("batches batch-size batchsize bs max-batch samples", ("--batch",)),
        ("dtype fp16 bf16 half amp mixed mixed-precision", ("--precision",)),
        ("seq seq-len seqlen sequence sequence-length", ("--dim",)),
        ("resolution image-size img-size imgsz input-shape input-size", ("--shape",)),
        ("fsdp ddp zero zero-stage deepspeed strategy", ("--shard",)),
        ("gradient-checkpointing recompute remat", ("--checkpoint",)),
        ("gradient-accumulation grad-accum accumulation", ("--accumulate",)),
        ("provider providers ep backend execution-provider", ("--runtime",)),
        ("sort sort-by order-by rank-by", ("--rank",)),
        ("price cost", ("--prices",)),
        ("plot chart page report", ("--html",)),
        ("training", ("--train",)),
    )
    for word in words.split()
}
"""What other tools call an option: the first of these that a command has is meant."""
_SAME_CHOICE: Final[Mapping[str, Mapping[str, str]]] = {
    flag: {word: choice for words, choice in same for word in words.split()}
    for flag, same in (
        (
            "--precision",
            (
                ("fp16 float16 half amp", "mixed-fp16"),
                ("float32 float single", "fp32"),
                ("bfloat16", "bf16"),
                ("mixed", "mixed-bf16"),
            ),
        ),
        ("--shard", (("fsdp fsdp2 zero zero-3 stage3", "zero3"),)),
        (
            "--rank",
            (
                ("cost cheap cheapest usd dollars", "price"),
                ("speed fast fastest performance", "bandwidth"),
                ("value perf-per-dollar time throughput", "samples-per-dollar"),
                ("vram size smallest", "memory"),
            ),
        ),
        ("--device", (("gpu", "cuda"),)),
        ("--measure", (("gpu", "cuda"),)),
        ("--runtime", (("cpu onnxruntime ort", "ort-cpu"), ("cuda gpu", "ort-cuda"))),
    )
}
"""What others call a choice of an option."""
_OTHER_FRAMEWORK: Final = frozenset("framework tensorflow tf keras".split())
_FRAMEWORKS: Final = frozenset("tensorflow tf keras".split())
_KERAS: Final = "onnxmem explain keras MODEL has the figure of TensorFlow; "
_MAX_DIGITS: Final = 18
"""Of a dim: larger numbers are no size of anything."""
_SEVERAL: Final = re.compile(r"\d{1,9}(?:(?:\.\.|-|,)\d{1,9})+(?::\d{1,9})?", re.ASCII)
_MOST_SECONDS: Final = 7 * 24 * 3600


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
        self.refused: dict[str, str] = {}
        """Flags of other commands, and why this one does not have them."""
        self.commands_with: Callable[[str], Sequence[str]] = lambda _: ()
        """The commands that have a flag, as they are called."""
        self.set_defaults(run=run)
        help_ = self.add_argument_group("help")
        help_.add_argument("-h", "--help", action=_ShortHelp, help="the main options")
        help_.add_argument("--help-all", action="help", help="every option")

    @property
    def flags(self) -> Collection[str]:
        """All that it has."""
        return self._option_string_actions.keys()

    def parse_command(self, words: Sequence[str]) -> Namespace:
        """Read a command line; what follows ``--`` is a name, however it begins.

        ``argparse`` takes the names of an intermixed line in a second pass, in which it has
        forgotten where ``--`` was. So they begin with a character that no argument of a process
        can hold until it has read them.
        """
        words = list(words)
        at = words.index("--") if "--" in words else len(words)
        # `parse_intermixed_args` reads a word with a dash as an option even behind `--`: a NUL,
        # which no argument of a process has, hides the dash.
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
        unknown = _UNKNOWN_FLAG.match(message)
        if unknown is not None and unknown[1] in self.refused:
            reason = f"{unknown[1]}: {self.refused[unknown[1]]}"
            raise UsageError(reason)
        message = f"{message}; {self._nearest(message)}see {self.prog} --help"
        raise UsageError(message)

    def _nearest(self, message: str) -> str:
        """What a word that argparse refuses may be meant to be, with its punctuation."""
        refused = _UNKNOWN_FLAG.match(message)
        if refused is not None:
            return self._nearest_flag(refused[1].lstrip("-").casefold())
        if _LEFT_OVER.match(message):
            return "a list has commas and no spaces, as in 1,8,32 or batch=1..8,seq=16..512; "
        device = _NO_SIZE.match(message)
        if device is not None:
            return f"of a device: onnxmem fit MODEL --device {shlex.quote(device[1])}; "
        refused = _INVALID_CHOICE.match(message)
        # argparse writes all names of an option, as in -o/--output.
        flag = (refused or _NO_VALUE.match(message) or ("", ""))[1].partition("/")[0]
        action = self._option_string_actions.get(flag)
        choices = [str(each) for each in (action and action.choices) or ()]
        if refused is None:
            return f"{flag} {' or '.join(choices)}; " if choices else ""
        word = refused[2].casefold()
        if flag == "--runtime" and word in _FRAMEWORKS:
            return _KERAS
        same = _SAME_CHOICE.get(flag, {}).get(word)
        return f"did you mean {same!r}?; " if same in choices else _suggestion(word, choices)

    def _nearest_flag(self, word: str) -> str:
        """The option that is meant by one that this command does not have, or who has it."""
        # Of several flags with one meaning, the first that this command has.
        same = next(filter(self._option_string_actions.get, _SAME_FLAG.get(word, ())), None)
        if same is not None:
            metavar = self._option_string_actions[same].metavar
            return f"did you mean '{same} {metavar}'?; " if metavar else f"did you mean {same!r}?; "
        if word in _OTHER_FRAMEWORK:
            return _KERAS
        flag = f"--{word}" if len(word) > 1 else f"-{word}"
        owners = self.commands_with(flag)
        if owners:
            return f"{', '.join(owners)} {'have' if len(owners) > 1 else 'has'} {flag}; "
        # Without dashes, which every flag has: they would make --budget similar to --quiet.
        flags = {flag.lstrip("-"): flag for flag in self._option_string_actions}
        hint = _suggestion(word, [*flags])
        return _QUOTED.sub(lambda found: repr(flags[found[1]]), hint)


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


def one_batch(text: str) -> int:
    """Read a batch; several are what ``sweep`` takes."""
    if _SEVERAL.fullmatch(text):
        message = f"{text!r} are several: onnxmem sweep MODEL --batch {text}"
        raise ArgumentTypeError(message)
    return dim(text)


def named_dim(text: str) -> tuple[str, int]:
    """Read ``NAME=N``, split at the last equals sign."""
    name, equals, number = text.rpartition("=")
    if not (name and equals):
        message = f"{text!r} is not NAME=N, as in seq_len=512"
        raise ArgumentTypeError(message)
    return name, dim(number)


def named_shape(text: str) -> tuple[str, tuple[int | str, ...]]:
    """Split at the last colon: an input's name may hold others.

    A dim that starts like a name is the name that the file has there.
    """
    name, colon, dims = text.rpartition(":")
    if not (name and colon):
        message = f"{text!r} is not INPUT:1,3,224,224"
        raise ArgumentTypeError(message)
    each_dim = (each.strip() for each in dims.split(",")) if dims else ()
    return name, tuple(each if each[:1].isidentifier() else dim(each) for each in each_dim)


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


def seed(text: str) -> int:
    """A seed of what is drawn, as an argument."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        message = f"{text!r} is not a seed: an integer from 0 on"
        raise ArgumentTypeError(message)
    return int(text)

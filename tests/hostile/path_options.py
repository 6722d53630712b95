"""Each option and argument that takes a path, from the parsers of the commands.

A command line is made for each, so that a new option is tested without a word here. ``_LINES`` has
those that need other words beside them, or that are read only with them.
"""

from argparse import Action
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from hostile.running import MODEL
from onnxmem.cli import COMMANDS

BRANCHES: Final = "branches.onnx"
"""A model that ``reorder`` improves."""
_PATHS: Final = ("FILE", "DIR", "MODEL", "PATH")
"""What a metavar holds if its option takes a path."""
_WRITTEN: Final = frozenset({"output", "html", "also", "save_observed"})
"""The destinations of options that name a result."""
_WORDS: Final[Mapping[str, str]] = {
    "annotate": "-o /dev/null",
    "check": "--budget-peak 1GiB",
    "export": "--format chrome",
    "fit": "--device 1GiB",
    "simulate": "--requests batch=1..4 --emulate-optimizer",
    "view": "--no-open --quiet -o /dev/null",
}
"""Without which a command would not work on a model."""
_LINES: Final[Mapping[str, str]] = {
    "advise --output": f"advise {MODEL} --emulate-optimizer -o {{}}",
    "analyze --accuracy": f"{MODEL} {MODEL} --html /dev/null --accuracy {{}}",
    "analyze --devices": f"{MODEL} {MODEL} --summary --device 1GiB --devices {{}}",
    "analyze --save-observed": f"{MODEL} --observe random --save-observed {{}}",
    "annotate --output": f"annotate {MODEL} -o {{}}",
    "check --also": f"check {MODEL} --budget-peak 1GiB --also sarif={{}}",
    "check --baseline": f"check {MODEL} --max-growth 5% --baseline {{}}",
    "check --config": f"check {MODEL} --config {{}}",
    "devices --devices": "devices --devices {}",
    "devices --output": "devices -o {}",
    "diff models": f"diff {{}} {MODEL}",
    "diff --html": f"diff {MODEL} {MODEL} --html {{}}",
    "diff --snapshot": f"diff {MODEL} --snapshot {{}}",
    "diff --output": f"diff {MODEL} {MODEL} -o {{}}",
    "explain words": "explain weights {}.onnx",
    "explain --output": "explain weights -o {}",
    "fit --devices": f"fit {MODEL} --which-device --devices {{}}",
    "fit --prices": f"fit {MODEL} --which-device --rank price --prices {{}}",
    "fit --save-observed": f"fit {MODEL} --device 1GiB --observe random --save-observed {{}}",
    "reorder --output": f"reorder {BRANCHES} -o {{}}",
    "simulate --requests": f"simulate {MODEL} --emulate-optimizer --requests {{}}",
    "sweep --devices": f"sweep {MODEL} --device 1GiB --devices {{}}",
    "view --accuracy": f"view {MODEL} {MODEL} --no-open -o /dev/null --accuracy {{}}",
    "view --save-observed": (
        f"view {MODEL} --no-open -o /dev/null --observe random --save-observed {{}}"
    ),
    "view --devices": f"view {MODEL} {MODEL} --no-open -o /dev/null --devices {{}}",
    "view --output": f"view {MODEL} --no-open -o {{}}",
}
MORE_READS: Final[Mapping[str, str]] = {
    "analyze models, rows": f"{MODEL} {{}} --format jsonl",
    "analyze models, cached": f"{MODEL} {{}} --format jsonl --cache rows",
    "analyze @list": "@{} --format jsonl",
    "check @list": "check @{} --budget-peak 1GiB",
    "diff models, the second": f"diff {MODEL} {{}}",
    "diff models, a report": f"diff {{}}.json {MODEL}",
}
"""Further ways in which an argument is read."""
MORE_WRITES: Final[Mapping[str, str]] = {
    "analyze --output, JSON": f"{MODEL} --json -o {{}}",
    "analyze --output, row by row": f"{MODEL} --format jsonl -o {{}}",
    "export --output, bytes": f"export {MODEL} --format torch-snapshot -o {{}}",
}
STDIN: Final[Mapping[str, str]] = {
    "analyze": f"{MODEL} - --format jsonl",
    "export": "export - --format chrome",
    "annotate": "annotate - -o /dev/null",
    "explain": "explain -",
}


@dataclass(frozen=True, slots=True)
class PathOption:
    """An option or argument, and a command line with ``{}`` in place of the path."""

    command: str
    name: str
    line: str
    is_written: bool

    @property
    def runs_onnxruntime(self) -> bool:
        """Whether the command runs a model before the path matters."""
        return self.command == "measure" and self.is_written


def path_options() -> tuple[PathOption, ...]:
    """All of them, in the order of the commands."""
    return tuple(option for command in COMMANDS for option in _of_command(command))


def reads() -> dict[str, str]:
    """The lines that read a path, by name."""
    own = {each.name: each.line for each in path_options() if not each.is_written}
    return own | dict(MORE_READS)


def writes() -> dict[str, str]:
    """The lines that write one, by name."""
    own = {
        each.name: each.line
        for each in path_options()
        if each.is_written and not each.runs_onnxruntime
    }
    return own | dict(MORE_WRITES)


def command_lines() -> dict[str, str]:
    """A line of each command, which succeeds."""
    plain = {
        "devices": "devices",
        "diff": f"diff {MODEL} {MODEL}",
        "explain": "explain weights",
        "schema": "schema",
    }
    lines = {command: f"{command} {MODEL} {_WORDS.get(command, '')}" for command in COMMANDS}
    return lines | plain


def stale_lines() -> set[str]:
    """Lines above of options that are gone."""
    return set(_LINES) - {each.name for each in path_options()}


def _of_command(command: str) -> Iterator[PathOption]:
    module = import_module(f"onnxmem.cli.{COMMANDS[command]}")
    for action in getattr(module, f"{command}_parser")()._actions:  # noqa: SLF001 - argparse has no other list
        if action.nargs != 0 and any(word in str(action.metavar or "") for word in _PATHS):
            name = f"{command} {_name(action)}"
            line = _LINES.get(name, _line(command, action))
            yield PathOption(command, name, line, action.dest in _WRITTEN)


def _line(command: str, action: Action) -> str:
    words = _WORDS.get(command, "")
    if not action.option_strings:
        return f"{command} {{}} {words}"
    model = "" if command == "devices" else MODEL
    return f"{command} {model} {words} {action.option_strings[-1]} {{}}"


def _name(action: Action) -> str:
    return action.option_strings[-1] if action.option_strings else action.dest

"""``--help`` is one screen of what most people need, ``--help-all`` has every flag."""

import re
import shlex
from argparse import SUPPRESS, Action
from importlib import import_module

import pytest
from paths import ROOT

from onnxmem.cli import COMMANDS, main
from onnxmem.cli.export import FORMATS
from onnxmem.cli.help import HELP
from onnxmem.cli.parsing import Parser

Capture = pytest.CaptureFixture[str]
FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][a-z-]*")
HELP_BLOCK = re.compile(r"```console\n\$ onnxmem [^\n]*--help.*?```", re.DOTALL)


def parser_of(command: str) -> Parser:
    module = import_module(f"onnxmem.cli.{COMMANDS[command]}")
    parser: Parser = getattr(module, f"{command}_parser")()
    return parser


def actions_of(parser: Parser) -> list[Action]:
    return parser._actions  # noqa: SLF001 - argparse lists them nowhere else


def flags_of(parser: Parser) -> set[str]:
    return {flag for action in actions_of(parser) for flag in action.option_strings}


def printed(words: list[str], capsys: Capture) -> str:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_help_is_one_screen_by_task_with_five_examples(capsys: Capture) -> None:
    text = printed(["--help"], capsys)
    assert 24 <= text.count("\n") <= 40
    assert len(HELP["analyze"].examples) == 5
    tasks = text.partition("commands by task:")[2].partition("main options:")[0]
    assert set(COMMANDS) - {"analyze"} <= set(re.findall(r"\w+", tasks))


def test_the_first_help_names_recorded_runs_and_both_formats_of_prices(capsys: Capture) -> None:
    assert "diff --snapshot" in printed(["--help"], capsys)
    prices = printed(["help", "fit"], capsys).partition("--prices FILE")[2].partition("--batch")[0]
    assert "TOML" in prices
    assert "CSV" in prices


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_is_at_most_a_screen(command: str, capsys: Capture) -> None:
    text = printed([command, "--help"], capsys)
    assert text.count("\n") <= 40
    assert max(map(len, text.splitlines())) <= 80
    assert text.index("examples:") < text.index("main options:") < text.index("--help-all")
    assert text == printed(["help", command], capsys) == printed([command, "-h"], capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_names_flags_that_it_has(command: str) -> None:
    named = {flag for words, _ in HELP[command].options for flag in FLAG.findall(words)}
    assert named <= flags_of(parser_of(command))
    assert named or command == "schema"


def test_the_help_of_export_names_every_format() -> None:
    texts = " ".join(text for _, text in HELP["export"].options)
    missing = set(FORMATS) - set(re.findall(r"[\w-]+", texts))
    assert not missing, "name it in HELP of onnxmem/cli/help.py"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_shown_by_a_document(command: str) -> None:
    """The pages' copies of ``--help-all`` do not count: they say what a flag is, not what for."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    texts = (HELP_BLOCK.sub("", page.read_text("utf-8")) for page in pages)
    shown = {flag for text in texts for flag in FLAG.findall(text)}
    flags = {frozenset(action.option_strings) for action in actions_of(parser_of(command))}
    assert [sorted(each) for each in flags if each and not each & shown] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_in_help_all(command: str, capsys: Capture) -> None:
    text = printed([command, "--help-all"], capsys)
    parser = parser_of(command)
    assert flags_of(parser) <= set(FLAG.findall(text))
    assert all(action.help not in {None, SUPPRESS} for action in actions_of(parser))


@pytest.mark.parametrize(
    "example", [example for found in HELP.values() for example, _ in found.examples]
)
def test_the_flags_of_an_example_are_those_of_its_command(example: str) -> None:
    words = shlex.split(example)[1:]
    command = words.pop(0) if words and words[0] in COMMANDS else "analyze"
    parser_of(command).parse_command(words)


def test_help_on_nothing_is_the_help_of_all(capsys: Capture) -> None:
    assert printed(["help"], capsys) == printed(["--help"], capsys)

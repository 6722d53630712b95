"""onnxmem beside its peers: whole-process time and peak memory on the same models, in turns.

Usage: python tools/benchmarks/peers.py [--rounds N] [--rivals NAMES] [--folder FOLDER] [MODEL ...]

Models and virtual environments, ours from this checkout, are made in the folder, some 1.5 GB.
Every tool runs in a process of its own, imports included; tools take turns, so that a busy machine
weighs on all of them alike. Medians of the rounds, and their ratios to onnxmem's. CPU time, user
and system, is the steadier figure. "imports" is an interpreter that imports onnx and networkx and
ends: what is left to gain. Linux alone.
"""

import argparse
import os
import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from peer_models import MAKERS, SET, made
from rivals import RIVALS, environment, own_environment
from scale import measured

OURS = "onnxmem"
_FLOOR = "imports"
_LIMIT_SECONDS: Final = 600
_LAST_WORDS: Final = 120

Figures = tuple[float, ...]
"""Wall seconds, CPU seconds, MiB."""


def medians(commands: Mapping[str, Sequence[str]], rounds: int) -> dict[str, Figures | str]:
    """Let the tools take turns; of one that fails, its last words."""
    turns: dict[str, list[Figures]] = {name: [] for name in commands}
    failed: dict[str, Figures | str] = {}
    for _ in range(rounds):
        for name in [name for name in commands if name not in failed]:
            try:
                turns[name].append(measured(_limited(commands[name])))
            except RuntimeError as error:
                failed[name] = _last_words(str(error))
    done = {name: rows for name, rows in turns.items() if name not in failed}
    return failed | {name: _median(rows) for name, rows in done.items()}


def _limited(command: Sequence[str]) -> list[str]:
    """The same, killed where it takes too long; what it took is counted to the outer process."""
    return [shutil.which("timeout") or "timeout", str(_LIMIT_SECONDS), *command]


def _median(rows: Sequence[Figures]) -> Figures:
    return tuple(statistics.median(column) for column in zip(*rows, strict=True))


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines[0].endswith("exit 124"):
        return f"over {_LIMIT_SECONDS} s"
    errors = [line for line in lines if "Error" in line]
    return (errors or lines)[-1][:_LAST_WORDS]


def commands_of(path: Path, ours: Path, pythons: Mapping[str, Path]) -> dict[str, Sequence[str]]:
    """What is run on one model, ours first."""
    commands: dict[str, Sequence[str]] = {OURS: [str(ours.parent / "onnxmem"), str(path)]}
    for name, python in pythons.items():
        commands[name] = [str(python), "-c", RIVALS[name].program, str(path)]
    commands[_FLOOR] = [str(ours), "-c", "import onnx, networkx"]
    return commands


def environments(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """The interpreters of the rivals that can be installed here."""
    found = {}
    for name, rival in ((name, RIVALS[name]) for name in names):
        try:
            found[name] = environment(rival, folder)
        except subprocess.CalledProcessError as error:
            print(f"{name}: left out, {rival.packages[0]} does not install: {error}")
    return found


def main() -> None:
    """Print a row for each model and tool, then the least ratios of each rival."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=[*SET], metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    default = Path.home() / ".cache" / "onnxmem-benchmarks"
    parser.add_argument("--folder", type=Path, default=default, metavar="FOLDER")
    parser.add_argument("--rivals", default=",".join(RIVALS), metavar="NAMES")
    asked = parser.parse_args()
    if unknown := set(asked.models) - set(MAKERS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(MAKERS)}")
    asked.folder.mkdir(parents=True, exist_ok=True)
    ours = own_environment(asked.folder)
    pythons = environments(asked.folder, asked.rivals.split(","))
    paths = {model: made(model, asked.folder) for model in asked.models}
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {asked.rounds} rounds")
    print(f"{'model':<13}{'MB':>5}  {'tool':<13}{'wall s':>8}{'CPU s':>8}{'MiB':>7}{'x ours':>12}")
    ratios: dict[str, list[Figures]] = {name: [] for name in pythons}
    for model, path in paths.items():
        commands = commands_of(path, ours, pythons)
        found = medians(commands, asked.rounds)
        for name in commands:
            _print_row(model, path, name, found[name], found[OURS])
        for name, rows in ratios.items():
            rows.extend(_ratios(found[name], found[OURS]))
    for name, rows in ratios.items():
        least = [min(column) for column in zip(*rows, strict=True)]
        print(f"least ratios of {name:<13}{_shown(least)}   on {len(rows)} of {len(paths)} models")


def _print_row(
    model: str, path: Path, name: str, found: Figures | str, ours: Figures | str
) -> None:
    size = f"{path.stat().st_size / 1e6:.0f}"
    start = f"{model:<13}{size:>5}  {name:<13}"
    if isinstance(found, str):
        print(f"{start} fails: {found}", flush=True)
        return
    figures = f"{found[0]:>8.2f}{found[1]:>8.2f}{found[2]:>7.0f}"
    ratios = "".join(_shown(row) for row in _ratios(found, ours) if name != OURS)
    print(f"{start}{figures}  {ratios}".rstrip(), flush=True)


def _ratios(found: Figures | str, ours: Figures | str) -> list[Figures]:
    """One row, or none where one of the two failed."""
    if isinstance(found, str) or isinstance(ours, str):
        return []
    return [tuple(theirs / mine for theirs, mine in zip(found, ours, strict=True))]


def _shown(ratios: Sequence[float]) -> str:
    return "".join(f"{ratio:>6.1f}" for ratio in ratios)


if __name__ == "__main__":
    main()

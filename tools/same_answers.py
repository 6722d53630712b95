"""Hold the JSON of two commits against each other, analysis by analysis.

``python tools/same_answers.py save OUT.jsonl [--package FOLDER] [--part K/N] [--only NAME]``
analyses every model of ``models/``, of onnx's backend suite, of ``tests/runtime_kinds`` and of
``tests/hostile`` at two batches: inference, a training step and onnxruntime on the CPU; it writes
a line for each. FOLDER is the checkout whose package is used (default: this one), so that two
commits analyse the same models; NAME leaves out all models whose names do not start with it.
``python tools/same_answers.py compare BEFORE.jsonl AFTER.jsonl`` counts the lines that are equal
of both files and prints each difference by its JSON key. It exits with 1 where there is one.

Two runs of one commit differ where onnxruntime orders nodes by addresses (``order_varies``): in
``peak_node`` and that finding of densenet121 and efficientnet_b0, whose ReorderOutputs have other
numbers in each process.
"""

import argparse
import contextlib
import io
import json
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
BATCHES: Final = (1, 7)
ASKED: Final[Mapping[str, Sequence[str]]] = {
    "run": ("--layers",),
    "train": ("--train",),
    "ort-cpu": ("--runtime", "ort-cpu"),
}
SECONDS: Final = 120
"""One analysis may take so long; it is written down as out of time then."""
_GIB: Final = 2**30


def model_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every model by name, written to ``folder`` where it is no file yet."""
    for path in sorted((ROOT / "models").glob("*.onnx")):
        yield f"models/{path.name}", path
    yield from _backend_suite(folder)
    from runtime_kinds import KINDS

    for number, kind in enumerate(KINDS):
        path = folder / f"kind-{number:03}.onnx"
        path.write_bytes(kind.make().SerializeToString())
        yield f"kinds/{kind.name}", path
    from hostile.running import LIGHT

    for file in LIGHT:
        path = folder / "hostile" / file.file_name
        path.parent.mkdir(exist_ok=True)
        file.write(path)
        yield f"hostile/{file.kind}/{file.name}", path


def _backend_suite(folder: Path) -> Iterator[tuple[str, Path]]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in ("node", "simple", "pytorch-converted", "pytorch-operator"):
            for case in load_model_tests(kind=kind):
                path = Path(str(case.model_dir)) / "model.onnx"
                if case.model is not None:
                    path = folder / f"{kind}-{case.name}.onnx"
                    path.write_bytes(case.model.SerializeToString())
                yield f"{kind}/{case.name}", path


def answer(path: Path, words: Sequence[str]) -> Any:  # noqa: ANN401 - whatever JSON holds
    """What the command line prints of one model, read back."""
    from onnxmem.__main__ import main

    out, err = io.StringIO(), io.StringIO()
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(path), "--json", *words])
    except TimeoutError:
        return {"out of time": SECONDS}
    except SystemExit as fault:
        code = fault.code
    finally:
        signal.alarm(0)
    # The path is another one in each checkout and each run.
    said, told = (text.getvalue().replace(str(path.parent), "") for text in (out, err))
    models = json.loads(said)["models"] if said else None
    return {"code": code, "models": models, "stderr": told}


def save(out: Path, part: tuple[int, int], only: str) -> None:
    """Analyse every model that falls to this part, and write a line for each analysis."""
    resource.setrlimit(resource.RLIMIT_AS, (6 * _GIB, 6 * _GIB))
    signal.signal(signal.SIGALRM, _out_of_time)
    number, parts = part
    # A folder of a fixed name, for paths are printed.
    folder = Path(tempfile.gettempdir()) / f"same_answers_{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with out.open("w") as file:
        for place, (name, path) in enumerate(model_files(folder)):
            if place % parts != number or not name.startswith(only):
                continue
            for batch in BATCHES:
                for asked, words in ASKED.items():
                    found = answer(path, [*words, "--batch", str(batch)])
                    file.write(json.dumps([f"{name} {asked} {batch}", found]) + "\n")
                    file.flush()


def _out_of_time(*_: object) -> None:
    raise TimeoutError


def compare(before: Path, after: Path) -> int:
    """Print how many lines are equal and what differs; 1 where something does."""
    one, other = (dict(map(json.loads, path.open())) for path in (before, after))
    keys: Counter[str] = Counter()
    examples: dict[str, str] = {}
    different = set()
    for name in sorted(one.keys() & other.keys()):
        found = set(_differences(one[name], other[name], ""))
        if found:
            different.add(name)
        for key, text in found:
            keys[key] += 1
            examples.setdefault(key, f"{name}: {text}")
    both = len(one.keys() & other.keys())
    print(
        f"{len(one)} analyses before, {len(other)} after; of {both} in both {len(different)} differ"
    )
    for key, count in keys.most_common():
        print(f"{count:6} {key}   e.g. {examples[key]}")
    return 1 if different else 0


def _differences(one: Any, other: Any, key: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    if isinstance(one, dict) and isinstance(other, dict):
        for name in one.keys() | other.keys():
            yield from _differences(one.get(name), other.get(name), f"{key}.{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for each, its in zip(one, other, strict=True):
            yield from _differences(each, its, f"{key}[]")
    elif one != other:
        yield key, f"{str(one)[:120]} -> {str(other)[:120]}"


def main(arguments: Sequence[str]) -> int:
    """Save or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    saving = commands.add_parser("save")
    saving.add_argument("out", type=Path)
    saving.add_argument("--package", type=Path, default=ROOT)
    saving.add_argument("--part", default="0/1")
    saving.add_argument("--only", default="")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    asked = parser.parse_args(arguments)
    if asked.command == "compare":
        return compare(asked.before, asked.after)
    sys.path[:0] = [str(asked.package.resolve()), str(ROOT / "tests")]
    number, parts = map(int, asked.part.split("/"))
    save(asked.out, (number, parts), asked.only)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

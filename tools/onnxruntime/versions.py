"""Which rules and figures differ between versions of onnxruntime: the first step on a release.

Usage: python tools/onnxruntime/versions.py VERSION... [--corpus FOLDER] [--environments FOLDER]

Makes a virtual environment for each version, runs in it the tests that compare rules with
onnxruntime's own graphs, shapes and allocations, and measures every kernel. Where the corpus of
``corpus.py`` is given, it also measures a part of it and compares the figures with those of the
newest verified version. It prints one table and writes ``tests/data/onnxruntime/versions.json``.
Environments and measurements are kept for the next call.

A case differs where its test fails, or is skipped because the rule is that of a later version;
a kernel where it takes or packs other bytes than in ``tests/data/onnxruntime_kernels.json.gz``.
Exit code 1: a version newer than the verified ones moved a rule or a figure.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import version_figures
from version_kernels import kernels
from version_rules import ROOT, environment, families

from onnxmem.runtimes.onnxruntime.memory import VERIFIED

TARGET: Final = ROOT / "tests" / "data" / "onnxruntime" / "versions.json"
ENVIRONMENTS: Final = Path.home() / ".cache" / "onnxmem-versions"
_WIDTH: Final = 100
_CELL_WIDTH: Final = 9
_NO_CASES: Final = {"compared": 0, "moved": (), "refused": ()}
Data = Mapping[str, Any]


def main() -> None:
    """Compare the versions, write what differs and print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument("--corpus", type=Path, metavar="FOLDER")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, metavar="FOLDER")
    asked = parser.parse_args()
    known = json.loads(TARGET.read_text()) if TARGET.exists() else {}
    versions = sorted(asked.versions, key=_numbers)
    pythons = {version: environment(asked.environments, version) for version in versions}
    rules = {}
    for version, python in pythons.items():
        print("rules of", version, flush=True)
        found = {**families(python), **kernels(python, asked.environments / f"{version}.json.gz")}
        rules[version] = {name: asdict(family) for name, family in found.items()}
    data = {**known, "rules": _joined(known.get("rules", {}), rules)}
    if asked.corpus:
        reference = _reference([*versions, *known.get("versions", ())])
        pythons.setdefault(reference, environment(asked.environments, reference))
        data |= _figures(asked.corpus, pythons, reference, known)
    data = {**data, "versions": list(data["rules"])}
    TARGET.write_text(json.dumps(data, indent=1) + "\n")
    print("\n".join((*_table(data, versions), *_first_differences(data, versions))))
    newer = (version for version in versions if _numbers(version) > _numbers(VERIFIED[-1]))
    sys.exit(any(_has_moved(data, version) for version in newer))


def _figures(folder: Path, pythons: Mapping[str, Path], reference: str, known: Data) -> Data:
    """The part of the data that says how figures differ from the reference's."""
    found = version_figures.measured(folder, pythons, reference)
    # Differences from another reference say nothing beside these.
    others = known.get("differences", {}) if known.get("reference") == reference else {}
    return {
        "reference": reference,
        "figures": version_figures.FIGURES,
        **asdict(found),
        "differences": _joined(others, found.differences),
    }


def _joined(known: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """By version; a new patch version takes the place of an older one."""
    minors = {_numbers(version) for version in found}
    kept = {name: each for name, each in known.items() if _numbers(name) not in minors}
    joined = {**kept, **found}
    return {version: joined[version] for version in sorted(joined, key=_numbers)}


def _reference(versions: Collection[str]) -> str:
    """The newest verified version of these."""
    verified = [each for each in versions if _numbers(each) in map(_numbers, VERIFIED)]
    return max(verified, key=_numbers)


def _numbers(version: str) -> tuple[int, ...]:
    """Major and minor version."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def _has_moved(data: Data, version: str) -> bool:
    families = data["rules"][version].values()
    has_moved = any(each["moved"] or each["refused"] for each in families)
    return has_moved or bool(data.get("differences", {}).get(version))


def _table(data: Data, versions: Sequence[str]) -> Iterator[str]:
    """A row for each family of rules, each test that differs, and each model that differs."""
    yield _row("cases that differ, of those compared", versions)
    for name in sorted({name for version in versions for name in data["rules"][version]}):
        families = [data["rules"][version].get(name, _NO_CASES) for version in versions]
        yield _row(name, [f"{len(each['moved'])}/{each['compared']}" for each in families])
        counts = [Counter(map(_test, each["moved"])) for each in families]
        for test in sorted({test for count in counts for test in count}):
            yield _row(f"  {test}", [str(count[test] or "") for count in counts])
        if any(each["refused"] for each in families):
            yield _row(
                "  (cases that do not run)", [str(len(each["refused"])) for each in families]
            )
    if "differences" in data:
        yield _row(f"corpus settings unlike {data['reference']}, of those compared", [""])
        yield _row("all models", [_settings(data, each, data["compared"]) for each in versions])
        for model in version_figures.MODELS:
            settings = [each for each in data["compared"] if each.split()[0] == model]
            cells = [_settings(data, version, settings) for version in versions]
            if any(not cell.startswith(("0/", "-")) for cell in cells):
                yield _row(model, cells)


def _row(name: str, cells: Sequence[str]) -> str:
    width = _WIDTH - _CELL_WIDTH * len(cells)
    return (
        f"{name[: width - 1]:{width}}" + "".join(f"{cell:>{_CELL_WIDTH}}" for cell in cells)
    ).rstrip()


def _test(case: str) -> str:
    """The test of a case, or the operator of a kernel's."""
    return re.split(r"\[|: ", case)[0].removeprefix("test_")


def _settings(data: Data, version: str, settings: Collection[str]) -> str:
    if version != data["reference"] and version not in data["differences"]:
        return "-"
    found = data["differences"].get(version, {})
    return f"{sum(setting in found for setting in settings)}/{len(settings)}"


def _first_differences(data: Data, versions: Sequence[str]) -> Iterator[str]:
    """Of each setting that differs: the first operator, and the figures."""
    for version in versions:
        for setting, figures in data.get("differences", {}).get(version, {}).items():
            steps = [each for each in figures.values() if isinstance(each, dict)]
            known = [each for each in steps if each.get("first_step") is not None]
            first = min(known, key=lambda each: each["first_step"], default=None)
            where = f"from {first['operator']}, step {first['first_step']}: " if first else ""
            yield f"{version} {setting}: {where}{', '.join(figures)}"[:_WIDTH]


if __name__ == "__main__":
    main()

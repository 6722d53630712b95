"""Which rules a version of onnxruntime has moved: the tests that compare with it, run in it."""

import os
import re
import subprocess
import tempfile
import venv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

ROOT: Final = Path(__file__).parents[2]
_TESTS: Final = ROOT / "tests" / "runtimes" / "onnxruntime"
_MARKERS: Final = "measure and not slow and not long and not browser"
_SOME_FAILED: Final = 1
"""pytest's exit code."""
_LATER_RULE: Final = re.compile(r"the rule is that of onnxruntime \S+ and later")
"""What ``tests/installed_runtime.py`` says of a case that a newer version has changed."""
_UNKNOWN_OPERATOR: Final = "is not a registered function/op"
"""What an onnxruntime that is too old for a case says."""
_FAMILIES: Final = {
    "casts_and_constants": "optimizer/constants",
    "fusions": "optimizer/fusions",
    "image_layouts": "optimizer/image_layouts",
    "optimizer": "optimizer/pipeline",
    "qdq": "optimizer/qdq",
    "reshape_fusions": "optimizer/reshapes",
    "rewrite_rules": "optimizer/rewrite_rules",
    "shape_inference": "optimizer/shape_inference",
    "transpose": "optimizer/transposes",
    "contents": "prepacking",
    "frames": "allocation/frames",
    "order": "allocation/order",
    "process": "process",
    "cpus": "cpu",
    "runtime_kinds": "ops",
    "runtime_shapes": "ops",
    "session_graph": "session_graph",
}
"""Where the rules of a test module are, by the start of its name."""


@dataclass(frozen=True, slots=True)
class Family:
    """The cases of one family of rules, as ``MODULE::TEST[CASE]``."""

    compared: int
    moved: Sequence[str]
    """Those that differ, among the compared."""
    refused: Sequence[str]
    """Those that have an operator which the version does not know; not among the compared."""


def environment(folder: Path, version: str) -> Path:
    """The Python of an environment with this onnxruntime and the project with its tests."""
    python = folder / version / "bin" / "python"
    if not python.exists() or _installed(python) != version:
        venv.create(folder / version, with_pip=True)
        # One command, so that pip resolves both together and downloads one onnxruntime.
        packages = ["-e", f"{ROOT}[measure,test]", f"onnxruntime=={version}"]
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)  # noqa: S603
    return python


def families(python: Path) -> Mapping[str, Family]:
    """Compare every rule with the onnxruntime of an environment.

    :raises subprocess.CalledProcessError: pytest itself failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "junit.xml")
        # A version that ends the process on a case ends xdist's worker: the case fails.
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-n", "1"]
        options += ["--max-worker-restart=1000", "-m", _MARKERS, f"--junitxml={report}"]
        files = [*sorted(_TESTS.glob("test_*.py")), ROOT / "tests/model/test_microsoft_shapes.py"]
        done = subprocess.run(  # noqa: S603 - our own tests
            [python, "-m", "pytest", *options, *files],
            cwd=ROOT,
            env={**os.environ, "ONNXMEM_TEST_UNVERIFIED": "1"},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode not in (0, _SOME_FAILED):
            done.check_returncode()
        cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 - pytest's own report
    return _by_family(cases)


def _installed(python: Path) -> str:
    code = "from importlib.metadata import version; print(version('onnxruntime'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip()


def _by_family(cases: Sequence[ET.Element]) -> Mapping[str, Family]:
    found: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        module = case.get("classname", "").rpartition(".")[2]
        found[_family(module)][_outcome(case)].append(f"{module}::{case.get('name')}")
    return {
        name: Family(
            compared=len(cases["same"]) + len(cases["moved"]),
            moved=sorted(cases["moved"]),
            refused=sorted(cases["refused"]),
        )
        for name, cases in sorted(found.items())
        if cases.keys() - {"skipped"}
    }


def _family(module: str) -> str:
    name = module.removeprefix("test_")
    return next((told for start, told in _FAMILIES.items() if name.startswith(start)), name)


def _outcome(case: ET.Element) -> str:
    """``same``, ``moved``, ``refused`` or ``skipped``."""
    skipped = case.find("skipped")
    if skipped is not None:
        return "moved" if _LATER_RULE.search(skipped.get("message", "")) else "skipped"
    failures = [*case.iter("failure"), *case.iter("error")]
    if any(_UNKNOWN_OPERATOR in f"{each.get('message')} {each.text}" for each in failures):
        return "refused"
    return "moved" if failures else "same"

"""The pre-commit hook and the GitHub Action: read as their hosts read them; their commands run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from models_on_disk import write_model
from paths import DATA, ROOT

from onnxmem.cli import main

SCHEMA = DATA / "schemas" / "github-actions.json"
HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: dict[str, dict[str, Any]] = {step["id"]: step for step in ACTION["runs"]["steps"]}
CONFIG = '[[budgets]]\npath = "net.onnx"\npeak = "{peak}"\n'

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="the action's shell is bash")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two models, one of them with a budget."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    for name in ("net.onnx", "-other model.onnx"):
        write_model(project / name)
    (project / "onnxmem.toml").write_text(CONFIG.format(peak="1MiB"))
    return project


# pre-commit.


def test_the_hook_is_as_pre_commit_wants_it() -> None:
    (hook,) = HOOKS
    assert {"id", "name", "entry", "language", "files"} <= set(hook)
    assert (hook["id"], hook["language"], hook["require_serial"]) == (
        "onnxmem-check",
        "python",
        True,
    )
    assert re.search(hook["files"], "models/edge/net.onnx")
    assert not re.search(hook["files"], "net.onnx.md")


@pytest.mark.parametrize(("peak", "code"), [("1MiB", 0), ("1KiB", 1)])
def test_the_hook_s_command_on_the_files_of_a_commit(folder: Path, peak: str, code: int) -> None:
    """pre-commit appends the files to entry and args."""
    (hook,) = HOOKS
    (folder / "onnxmem.toml").write_text(CONFIG.format(peak=peak))
    extra: list[str] = hook["args"]
    program, *words = [*shlex.split(hook["entry"]), *extra]
    assert program == "onnxmem"
    assert main([*words, "net.onnx", "./-other model.onnx"]) == code


# The action.


def test_the_action_is_as_github_wants_it() -> None:
    Draft7Validator(json.loads(SCHEMA.read_text())).validate(ACTION)
    assert ACTION["runs"]["using"] == "composite"


def test_no_input_is_pasted_into_a_script() -> None:
    for step in STEPS.values():
        assert "${{" not in step["run"]


def test_every_input_is_used_and_every_output_is_made() -> None:
    text = (ROOT / "action.yml").read_text()
    for name in ACTION["inputs"]:
        assert f"inputs.{name}" in text
    for name in ACTION["outputs"]:
        assert f"{name}=$" in STEPS["check"]["run"]


class Runner:
    """Runs steps as a workflow's runner does: bash, files for outputs, values for expressions."""

    def __init__(self, folder: Path, **inputs: str) -> None:
        self.temp = folder.parent / "temp"
        self.temp.mkdir(exist_ok=True)
        self.programs = folder.parent / "programs"
        self.programs.mkdir(exist_ok=True)
        self.inputs = {
            name: "" if str(each["default"]).startswith("${{") else str(each["default"])
            for name, each in ACTION["inputs"].items()
        } | {name.replace("_", "-"): value for name, value in inputs.items()}
        self.outputs: dict[str, str] = {}
        self.program("onnxmem", f'exec "{sys.executable}" -m onnxmem "$@"')

    def program(self, name: str, script: str) -> None:
        file = self.programs / name
        file.write_text(f"#!/bin/bash\n{script}\n")
        file.chmod(0o755)

    def run(self, name: str) -> subprocess.CompletedProcess[str]:
        step = STEPS[name]
        output, summary = self.temp / "output", self.temp / "summary"
        output.write_text("")
        summary.touch()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_PATH": str(self.temp / "path"),
            "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_REPOSITORY": "acme/models",
            **{key: self.value(text) for key, text in step["env"].items()},
        }
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        for line in output.read_text().splitlines():
            key, _, value = line.partition("=")
            self.outputs[key] = value
        return done

    def value(self, text: str) -> str:
        expression = text.removeprefix("${{").removesuffix("}}").strip()
        kind, _, name = expression.partition(".")
        if kind == "inputs":
            return self.inputs[name]
        if kind == "steps":
            return self.outputs[name.rpartition(".")[2]]
        return {"event.pull_request.number": "7", "action_path": str(ROOT)}[name]


@needs_bash
@pytest.mark.parametrize(
    ("peak", "inputs", "code"),
    [
        ("1MiB", {}, 0),
        ("1KiB", {}, 1),
        ("1KiB", {"args": "--budget-peak 1MiB --batch 2", "paths": "net.onnx"}, 0),
        ("1MiB", {"paths": "net.onnx\n-other model.onnx\n"}, 3),
        ("1MiB", {"config": "gone.toml"}, 2),
        ("1MiB", {"paths": "net.onnx; touch owned"}, 2),
        ("1MiB", {"args": "$(touch owned)"}, 2),
    ],
)
def test_the_action_s_check_and_verdict(
    folder: Path, peak: str, inputs: dict[str, str], code: int
) -> None:
    (folder / "onnxmem.toml").write_text(CONFIG.format(peak=peak))
    runner = Runner(folder, **inputs)
    done = runner.run("check")
    assert done.returncode == 0, done.stderr
    assert runner.outputs["exit-code"] == str(code)
    assert runner.run("verdict").returncode == code
    assert not (folder / "owned").exists()
    summary = (runner.temp / "summary").read_text()
    if "config" in inputs:
        assert summary == ""
    else:
        assert summary.startswith("<!-- onnxmem -->")
        assert Path(runner.outputs["sarif"]).exists()
        assert ("::error file=" in done.stdout) == (code != 0)


_GH = """
printf '%s\\n' "$*" >> "{log}"
case "$*" in
  *--paginate*) printf '%s' "{found}" ;;
  *) exit {code} ;;
esac
"""


@needs_bash
@pytest.mark.parametrize(
    ("found", "call"),
    [
        ("", "--method POST repos/acme/models/issues/7/comments"),
        ("11\n12\n", "--method PATCH repos/acme/models/issues/comments/11"),
    ],
)
def test_the_action_s_comment_is_written_again(folder: Path, found: str, call: str) -> None:
    runner = Runner(folder)
    log = runner.temp / "log"
    runner.program("gh", _GH.format(log=log, found=found, code=0))
    runner.run("check")
    done = runner.run("comment")
    assert (done.returncode, done.stdout) == (0, "")
    asked, written = log.read_text().splitlines()
    assert "<!-- onnxmem -->" in asked
    assert call in written
    assert written.endswith(f"--field body=@{runner.outputs['markdown']}")


@needs_bash
def test_a_comment_that_is_refused_costs_no_verdict(folder: Path) -> None:
    runner = Runner(folder)
    runner.program("gh", _GH.format(log=runner.temp / "log", found="", code=1))
    runner.run("check")
    done = runner.run("comment")
    assert (done.returncode, done.stdout) == (0, "::warning::onnxmem could not comment\n")


@needs_bash
def test_the_action_installs_its_own_source_with_the_python_named(folder: Path) -> None:
    runner = Runner(folder, python="snake")
    log = runner.temp / "log"
    snake = runner.programs / "snake"
    made = f'mkdir -p "$3/bin"; ln -sf "{snake}" "$3/bin/python"'
    runner.program("snake", f'echo "$@" >> "{log}"; {made}')
    done = runner.run("install")
    assert done.returncode == 0, done.stderr
    venv, installed = log.read_text().splitlines()
    assert venv == f"-m venv {runner.temp}/onnxmem"
    assert installed.startswith("-m pip install")
    assert installed.endswith(str(ROOT))
    assert (runner.temp / "path").read_text() == f"{runner.temp}/onnxmem/bin\n"

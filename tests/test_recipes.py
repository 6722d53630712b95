"""What the documentation gives to copy runs as it stands: trackers, workflows, the conda recipe."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from models_on_disk import write_model
from paths import DATA, MODELS, ROOT, environment

import onnxmem

GUIDES = ROOT / "docs" / "guides"
RELEASING = ROOT / "docs" / "releasing.md"
SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")
WORKFLOW = json.loads((DATA / "schemas" / "github-workflows.json").read_text())


def block(page: Path, marker: str) -> str:
    """The code after a marker."""
    found = re.search(rf"<!-- {marker} -->\n```\w+\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    assert found is not None, marker
    return found[1]


def steps(page: Path, marker: str, job: str) -> list[dict[str, Any]]:
    """The steps of a workflow's job that run a script."""
    # YAML 1.1 reads the key ``on`` as true, GitHub as a word.
    workflow = yaml.safe_load(block(page, marker).replace("\non:", '\n"on":'))
    Draft7Validator(WORKFLOW).validate(workflow)
    return [step for step in workflow["jobs"][job]["steps"] if "run" in step]


def run_python(code: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment() | variables,
        capture_output=True,
        text=True,
        check=False,
    )


# Experiment trackers.


@pytest.mark.slow
def test_mlflow_holds_every_figure(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    if find_spec("mlflow") is None:
        pytest.skip("no mlflow")
    (tmp_path / "models").symlink_to(MODELS)
    code = block(GUIDES / "trackers.md", "mlflow") + (
        "import json\n"
        "run = mlflow.last_active_run()\n"
        "document = mlflow.artifacts.load_dict(run.info.artifact_uri + '/onnxmem.json')\n"
        "print(json.dumps([run.data.metrics, run.data.params, document['total_bytes']]))\n"
    )
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    done = run_python(code, tmp_path, MLFLOW_TRACKING_URI=store)
    assert done.returncode == 0, done.stderr
    metrics, params, total_bytes = json.loads(done.stdout.splitlines()[-1])
    wanted = onnxmem.analyze(MODELS / "resnet50.train.onnx", batch=128, train=True)
    assert metrics == onnxmem.to_metrics(wanted)
    assert metrics["training.peak_bytes"] == 11_413_947_828
    assert (params["batch"], params["optimizer"]) == ("128", "adam")
    assert total_bytes == wanted.total_bytes


@pytest.mark.slow
def test_wandb_holds_every_figure(tmp_path: Path) -> None:
    if find_spec("wandb") is None:
        pytest.skip("no wandb")
    (tmp_path / "models").symlink_to(MODELS)
    code = block(GUIDES / "trackers.md", "wandb") + (
        "    import json\n"  # before the run ends
        "    summary = {name: run.summary[name] for name in onnxmem.to_metrics(analysis)}\n"
        "    print(json.dumps([summary, dict(run.config)]))\n"
    )
    done = run_python(code, tmp_path, WANDB_MODE="offline", WANDB_SILENT="true")
    assert done.returncode == 0, done.stderr
    summary, config = json.loads(done.stdout.splitlines()[-1])
    wanted = onnxmem.analyze(MODELS / "resnet50.train.onnx", batch=128, train=True)
    assert summary == onnxmem.to_metrics(wanted)
    assert (config["batch"], config["optimizer"]) == (128, "adam")
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))


def test_trackers_are_never_imported_by_the_package() -> None:
    for path in (ROOT / "onnxmem").rglob("*.py"):
        assert not re.search(r"^\s*(import|from) (mlflow|wandb)", path.read_text(), re.MULTILINE)


# The workflow that guards a pull request.


@pytest.mark.skipif(shutil.which("bash") is None, reason="a workflow's shell is bash")
@pytest.mark.parametrize("grows", [False, True])
def test_the_workflow_checks_the_models_of_a_pull_request(tmp_path: Path, *, grows: bool) -> None:
    check_out(tmp_path, head="alexnet.onnx" if grows else "mlp.onnx")
    install, *scripts = steps(GUIDES / "guard-in-ci.md", "workflow", "check")
    assert install["run"] == "pip install onnxmem"
    done = [run_step(step, tmp_path) for step in scripts]
    assert [each.returncode for each in done] == [0, int(grows)], [each.stderr for each in done]
    assert ("::error file=models/net.onnx" in done[-1].stdout) is grows


def check_out(folder: Path, head: str) -> None:
    """A repository of one model, as the base and the head of a pull request have it."""
    for checkout, model in (("base", "mlp.onnx"), ("head", head)):
        (folder / checkout / "models").mkdir(parents=True)
        shutil.copy(MODELS / model, folder / checkout / "models" / "net.onnx")


def run_step(step: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a step as the runner does, with the ``onnxmem`` of this environment."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    program = programs / "onnxmem"
    program.write_text(f'#!/bin/bash\nexec "{sys.executable}" -m onnxmem "$@"\n')
    program.chmod(0o755)
    words = [*SHELL, step["run"]]
    return subprocess.run(
        words,
        cwd=folder / step.get("working-directory", ""),
        env=environment() | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_model_that_the_base_lacks_is_unknown_to_the_workflow(tmp_path: Path) -> None:
    check_out(tmp_path, head="mlp.onnx")
    write_model(tmp_path / "head" / "models" / "added.onnx")
    _, *scripts = steps(GUIDES / "guard-in-ci.md", "workflow", "check")
    done = [run_step(step, tmp_path) for step in scripts]
    assert [each.returncode for each in done] == [0, 3]
    assert "baseline.json does not contain this model" in done[-1].stdout


# Releases.


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return found


def test_the_recipe_has_the_dependencies_of_the_project() -> None:
    recipe = yaml.safe_load(block(RELEASING, "recipe"))
    wanted = project()
    assert recipe["context"]["version"] == onnxmem.__version__
    assert f">={recipe['context']['python_min']}" == wanted["project"]["requires-python"]
    python, *dependencies = recipe["requirements"]["run"]
    assert python == "python >=${{ python_min }}"
    assert [each.replace(" ", "") for each in dependencies] == wanted["project"]["dependencies"]
    (backend,) = wanted["build-system"]["requires"]
    assert backend in [each.replace(" ", "") for each in recipe["requirements"]["host"]]
    (script,) = wanted["project"]["scripts"].items()
    assert recipe["build"]["python"]["entry_points"] == [" = ".join(script)]
    assert recipe["about"]["summary"] == wanted["project"]["description"]


def test_rattler_build_renders_the_recipe() -> None:
    rattler = pytest.importorskip("rattler_build")
    recipe = rattler.Stage0Recipe.from_yaml(block(RELEASING, "recipe"))
    (rendered,) = recipe.render(rattler.VariantConfig(), rattler.RenderConfig())
    assert rendered.recipe.package.version == onnxmem.__version__
    assert "python >=3.11" in rendered.recipe.requirements.run


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="a workflow's shell is bash")
def test_the_release_workflow_builds_what_pypi_accepts(tmp_path: Path) -> None:
    install, *scripts = steps(RELEASING, "release", "build")
    missing = [name for name in install["run"].split()[2:] if find_spec(name) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)}")
    checkout = tmp_path / "checkout"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "dist", ".*_cache", "__pycache__")
    shutil.copytree(ROOT, checkout, ignore=ignored, symlinks=True)
    variables = environment() | {
        "GITHUB_REF_NAME": f"v{onnxmem.__version__}",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    for step in scripts:
        words = [*SHELL, step["run"]]
        done = subprocess.run(
            words,
            cwd=checkout,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        if "connection" in done.stderr.lower():
            pytest.skip("no index of packages responds")
        assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((checkout / "dist").iterdir())) == 2


def test_only_the_job_that_publishes_may_ask_for_an_identity() -> None:
    workflow = yaml.safe_load(block(RELEASING, "release"))
    permissions = {name: job["permissions"] for name, job in workflow["jobs"].items()}
    assert workflow["permissions"] == {}
    assert permissions == {"build": {"contents": "read"}, "publish": {"id-token": "write"}}
    assert "secrets." not in block(RELEASING, "release")

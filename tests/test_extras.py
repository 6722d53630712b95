"""The extras resolve by plain pip, which tries releases one by one where ranges do not meet."""

import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from paths import ROOT

MOST_RELEASES: Final = 4
"""Releases of one package that pip may read; where ranges do not meet, it reads hundreds."""
CI: Final = "measure,test,remote,dask,test-services,model-explorer"
"""Those that ``.ci/run`` installs."""


@pytest.mark.slow
def test_extras_resolve_without_trying_many_releases(tmp_path: Path) -> None:
    python = tmp_path / "environment" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "environment"], check=True)
    done = subprocess.run(
        [python, "-m", "pip", "install", "--dry-run", f"{ROOT}[{CI}]"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    if "connection" in done.stderr.lower() or "No matching distribution" in done.stderr:
        pytest.skip("no index of packages responds")
    assert done.returncode == 0, done.stderr[-2000:]
    tried = releases_tried(done.stdout)
    assert {"numpy", "onnx"} <= set(tried)
    assert {name: count for name, count in tried.items() if count > MOST_RELEASES} == {}


def releases_tried(printed: str) -> Counter[str]:
    """How many releases of each package pip read, from the names of their files."""
    files = re.findall(r"(?:Downloading|Using cached|Processing) (?:\S*/)?(\S+?)-(\d\S*)", printed)
    return Counter(name for name, _ in set(files))


def test_ci_installs_the_listed_extras() -> None:
    assert f"'.[{CI}]'" in (ROOT / ".ci" / "run").read_text()


def test_packages_that_pin_botocore_have_version_ranges() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    wanted = tomllib.loads(text)["project"]["optional-dependencies"]["test-services"]
    names = {re.split(r"[^\w-]", each)[0]: each for each in wanted}
    for name in ("aiobotocore", "boto3", "s3fs", "moto"):
        assert ">=" in names[name]
        assert "<" in names[name]

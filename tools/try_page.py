"""Gather the page that runs onnxmem in a browser (``docs/try``), with all that it loads.

The folder can be put on any web server, and then loads nothing from elsewhere::

    python tools/try_page.py build/try
    python -m http.server --directory build/try

Pyodide is fetched with npm, wheels with pip, and the wheels that only Pyodide builds (numpy,
ml_dtypes) from its distribution, whose hashes stand in its lock file. ``--distribution FOLDER``
takes these from a folder instead, as built by hand: their hashes are not checked then.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PYODIDE: Final = "314.0.7"
"""The newest whose ABI onnx has wheels for."""
DISTRIBUTION: Final = f"https://cdn.jsdelivr.net/pyodide/v{PYODIDE}/full/"
RUNTIME: Final = (
    *("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm"),
    *("python_stdlib.zip", "pyodide-lock.json"),
)
BUILT_BY_PYODIDE: Final = ("numpy", "ml-dtypes")


def main() -> None:
    """Write the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the page goes; it must not exist")
    parser.add_argument(
        "--distribution", default=DISTRIBUTION, help="a URL that ends in /, or a folder"
    )
    words = parser.parse_args()
    if words.folder.exists():
        parser.error(f"{words.folder}: exists")
    try:
        gather(words.folder, words.distribution)
    except (OSError, ValueError, subprocess.CalledProcessError) as fault:
        shutil.rmtree(words.folder, ignore_errors=True)
        parser.exit(3, f"error: {fault}; --distribution FOLDER takes Pyodide's wheels from there\n")
    total = sum(each.stat().st_size for each in words.folder.rglob("*"))
    print(f"{words.folder}: {total / 2**20:.1f} MiB")


def gather(folder: Path, distribution: str = DISTRIBUTION) -> None:
    """Write the page and its packages into a new folder.

    :raises OSError: the folder exists, or something cannot be fetched.
    :raises subprocess.CalledProcessError: npm or pip failed.
    :raises ValueError: a fetched wheel is not the one of Pyodide's lock file.
    """
    shutil.copytree(ROOT / "docs" / "try", folder)
    packages = folder / "packages"
    packages.mkdir()
    with tempfile.TemporaryDirectory() as name:
        _fetch_runtime(packages, Path(name))
    lock = json.loads((packages / "pyodide-lock.json").read_text())
    for package in BUILT_BY_PYODIDE:
        _fetch_wheel(packages, lock["packages"][package], distribution)
    _fetch_others(packages, lock["info"])
    wheels = sorted(each.name for each in packages.glob("*.whl"))
    (packages / "packages.json").write_text(json.dumps({"packages": wheels}, indent=1))


def _fetch_runtime(packages: Path, folder: Path) -> None:
    words = ["npm", "pack", "--silent", f"pyodide@{PYODIDE}"]
    subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our words
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        for name in RUNTIME:
            held = archive.extractfile(f"package/{name}")
            if held is None:
                raise FileNotFoundError(name)
            (packages / name).write_bytes(held.read())


def _fetch_wheel(packages: Path, locked: dict[str, str], distribution: str) -> None:
    name = locked["file_name"]
    if "://" not in distribution:
        shutil.copy(Path(distribution) / name, packages / name)
        return
    with urllib.request.urlopen(distribution + name, timeout=60) as response:  # noqa: S310 - https
        content = response.read()
    if hashlib.sha256(content).hexdigest() != locked["sha256"]:
        message = f"{name}: not the file of Pyodide's lock file"
        raise ValueError(message)
    (packages / name).write_bytes(content)


def _fetch_others(packages: Path, info: dict[str, str]) -> None:
    """Wheels of onnxmem from this checkout and of what it needs, for the Python of Pyodide."""
    pip = [sys.executable, "-m", "pip"]
    places = ["--quiet", "--find-links", str(packages)]
    build = [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(packages), str(ROOT)]
    subprocess.run(build, check=True)  # noqa: S603 - our words
    wheel = next(packages.glob("onnxmem-*.whl"))
    platform = [
        *("--platform", f"pyemscripten_{info['abi_version']}_wasm32"),
        *("--python-version", ".".join(info["python"].split(".")[:2])),
        *("--implementation", "cp", "--only-binary", ":all:"),
        *(word for abi in ("cp314", "abi3", "none") for word in ("--abi", abi)),
    ]
    words = [*pip, "download", *places, *platform, "--dest", str(packages), str(wheel)]
    subprocess.run(words, check=True)  # noqa: S603 - our words


if __name__ == "__main__":
    main()

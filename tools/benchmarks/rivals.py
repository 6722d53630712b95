"""The tools that onnxmem is held beside: the packages of each, and the program that asks it.

onnxsim's ``ModelInfo`` has the liveness peak, weights included; its ``plan_activation_memory`` an
arena. onnx-tool's profile has bytes per layer and their sum. TVM has the sum of the storages that
its memory plan reuses, after the passes that its build runs before the plan.
"""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

_CHECKOUT: Final = Path(__file__).resolve().parents[2]
_ONNXSIM = ("onnxsim==0.8.1",)
_LOAD = "import sys, onnx; model = onnx.load(sys.argv[1])\n"
_TVM = """
from tvm.relax import transform
from tvm.relax.analysis import estimate_memory_usage
from tvm.relax.frontend.onnx import from_onnx
module = from_onnx(model)
for name in ("DecomposeOpsForInference", "LegalizeOps", "RewriteDataflowReshape", "ToNonDataflow",
             "RemovePurityChecking", "CallTIRRewrite", "StaticPlanBlockMemory"):
    module = getattr(transform, name)()(module)
print(estimate_memory_usage(module))
"""


@dataclass(frozen=True, slots=True)
class Rival:
    """A tool, and how it is asked for a model's memory."""

    packages: tuple[str, ...]
    program: str
    """Python; the model is its first argument."""


RIVALS: Final[Mapping[str, Rival]] = MappingProxyType(
    {
        "onnxsim info": Rival(
            _ONNXSIM,
            f"{_LOAD}from onnxsim.model_info import ModelInfo\n"
            "print(ModelInfo(model).memory_footprint)",
        ),
        "onnxsim plan": Rival(
            _ONNXSIM,
            f"{_LOAD}from onnxsim import plan_activation_memory\n"
            "print(plan_activation_memory(model).arena_bytes)",
        ),
        "onnx-tool": Rival(
            ("onnx-tool==1.0.1",), "import sys, onnx_tool; onnx_tool.model_profile(sys.argv[1])"
        ),
        "TVM": Rival(("apache-tvm==0.27.0.post1", "onnx", "numpy"), _LOAD + _TVM),
    }
)


def own_environment(folder: Path) -> Path:
    """The interpreter of an environment with this checkout installed, as users have it.

    An installed package is bytecode; a checkout may have to be compiled at each start.

    :raises subprocess.CalledProcessError: a package is not to be had here.
    """
    place = folder / "venv-onnxmem"
    python = place / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)  # noqa: S603
    install = [str(python), "-m", "pip", "install", "-q", str(_CHECKOUT)]
    subprocess.run(install, check=True)  # noqa: S603 - that environment's pip
    return python


def environment(rival: Rival, folder: Path) -> Path:
    """The interpreter of a rival's virtual environment, made where it is missing.

    :raises subprocess.CalledProcessError: a package is not to be had here.
    """
    place = folder / f"venv-{rival.packages[0]}"
    python = place / "bin" / "python"
    ready = place / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)  # noqa: S603
        install = [str(python), "-m", "pip", "install", "-q", *rival.packages]
        subprocess.run(install, check=True)  # noqa: S603 - that environment's pip
        ready.touch()
    return python

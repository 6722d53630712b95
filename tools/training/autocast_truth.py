"""Measure training steps under bfloat16 autocast, by the lists of the CPU and of CUDA.

PYTHONPATH=tools python tools/training/autocast_truth.py      # to tests/data/training_autocast.json

Without a GPU the CPU's lists are what can be measured as they are. CUDA's are put in their place:
what is on them, and not on the CPU's, is registered for the CPU's dispatch key as
aten/src/ATen/autocast_mode.h does it.
"""

# mypy: disable-error-code="no-untyped-call"

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from given import NETWORKS
from new import CASES
from settings import Network, Settings
from step import measure

ROWS = Path(__file__).parents[2] / "tests" / "data" / "training_autocast.json"

GIVEN = ("mlp", "resnet18", "tiny_transformer", "gpt2_small", "vit_tiny")
NEW = ("convnext", "diffusion_unet", "llama_like", "nano_gpt", "super_resolution", "swin_like")
TERMS = (
    *("weight_bytes", "gradient_bytes", "saved_activation_bytes", "forward_peak_bytes"),
    *("backward_peak_bytes", "optimizer_peak_bytes", "peak_bytes"),
)

_TO_FLOAT32 = (
    *("exp", "group_norm", "layer_norm", "log", "pow.Tensor_Scalar", "pow.Tensor_Tensor"),
    *("reciprocal", "rsqrt", "softplus", "softmax.int", "log_softmax.int"),
)
"""Softmax takes float32 as its result's type: of bfloat16 it makes a copy first all the same."""
_FLOAT32_RESULT = ("sum", "sum.dim_IntList")
_BELOW_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)  # noqa: SLF001


@contextmanager
def cuda_lists() -> Iterator[None]:
    """Cast inside as autocast does on CUDA, as far as the networks here go."""
    library = torch.library.Library("aten", "IMPL")
    for name in _TO_FLOAT32:
        library.impl(name, _casting(_overload(name)), "AutocastCPU")
    for name in _FLOAT32_RESULT:
        library.impl(name, _summing(_overload(name)), "AutocastCPU")
    library.impl("cat", torch.library.fallthrough_kernel, "AutocastCPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()  # noqa: SLF001  # the one way to take an override back


def _overload(name: str) -> Any:  # noqa: ANN401  # an OpOverload, which has no public type
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _casting(operator: Any) -> Callable[..., Any]:  # noqa: ANN401
    def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with torch._C._ExcludeDispatchKeyGuard(_BELOW_AUTOCAST):  # noqa: SLF001
            return operator(*map(_float32, args), **kwargs)

    return run


def _summing(operator: Any) -> Callable[..., Any]:  # noqa: ANN401
    def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with torch._C._ExcludeDispatchKeyGuard(_BELOW_AUTOCAST):  # noqa: SLF001
            return operator(*args, **(kwargs | {"dtype": torch.float32}))

    return run


def _float32(value: Any) -> Any:  # noqa: ANN401
    is_low = isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16
    return value.float() if is_low else value


def _rows(network: Network, folder: str, settings: Settings) -> Iterator[dict[str, Any]]:
    for lists in ("cpu", "cuda"):
        with cuda_lists() if lists == "cuda" else nullcontext():
            figures = measure(network, network.batches[0], settings)
        about = {"model": network.name, "folder": folder, "batch": network.batches[0]}
        about |= {"lists": lists, "loss": settings.loss or network.loss}
        yield about | {term: figures[term] for term in TERMS}


def _main() -> None:
    settings = Settings(optimizer="adam", autocast=True)
    rows: list[dict[str, Any]] = []
    for network in NETWORKS:
        if network.name in GIVEN:
            rows += _rows(network, "training", settings)
    for case in CASES:
        if case.network.name in NEW:
            rows += _rows(case.network, "training_new", replace(settings, attention="efficient"))
    chosen = next(network for network in NETWORKS if network.name == "tiny_transformer")
    rows += _rows(chosen, "training", replace(settings, loss="mse"))
    about = {"torch": torch.__version__, "optimizer": "adam", "type": "bfloat16"}
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    head = json.dumps(about)[:-1]
    ROWS.write_text(f'{head}, "rows": [\n  {lines}\n]}}\n')
    print(f"{len(rows)} rows to {ROWS}")


if __name__ == "__main__":
    _main()

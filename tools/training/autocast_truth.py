"""Measure training steps under bfloat16 autocast, by the lists of the CPU and of CUDA.

PYTHONPATH=tools python tools/training/autocast_truth.py      # to tests/data/training_autocast.json

Without a GPU the CPU's lists are what can be measured as they are. CUDA's are put in their place:
what is on them (``onnxmem.runtimes.torch.autocast_lists``), and not on the CPU's, is registered for
the CPU's dispatch key as aten/src/ATen/autocast_mode.h does it.
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
from torch.utils._pytree import tree_iter

from onnxmem.runtimes.torch.autocast_lists import AUTOCAST_LISTS, Policy

ROWS = Path(__file__).parents[2] / "tests" / "data" / "training_autocast.json"

GIVEN = ("mlp", "resnet18", "tiny_transformer", "gpt2_small", "vit_tiny")
NEW = ("convnext", "diffusion_unet", "llama_like", "nano_gpt", "super_resolution", "swin_like")
TERMS = (
    *("weight_bytes", "gradient_bytes", "saved_activation_bytes", "forward_peak_bytes"),
    *("backward_peak_bytes", "optimizer_peak_bytes", "peak_bytes"),
)

_HEADER = "aten/src/ATen/autocast_mode.h"
_KEY = "AutocastCPU"
_BELOW_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)  # noqa: SLF001
_Operator = Any  # an OpOverload, which has no public type
_Rule = Callable[[_Operator], Callable[..., Any]]


@contextmanager
def cuda_lists() -> Iterator[None]:
    """Cast inside as autocast does on CUDA."""
    library = torch.library.Library("aten", "IMPL")
    cache: dict[int, torch.Tensor] = {}
    rules: dict[Policy, _Rule] = {
        Policy.LOWER: _casting_to(torch.bfloat16, cache),
        Policy.FLOAT32: _casting_to(torch.float32),
        Policy.FLOAT32_RESULT: _in_float32,
        Policy.APPENDED_FLOAT32: _norm,
        Policy.PROMOTE: _promoting,
    }
    known = {row.name: row.policy for row in AUTOCAST_LISTS if row.source.startswith(_HEADER)}
    for name, policy in known.items():
        # What the CPU lowers too stays its own, which also keeps the casts of parameters.
        if policy is not Policy.LOWER or not _is_on_cpu(name):
            library.impl(name, rules[policy](_overload(name)), _KEY, allow_override=True)
    for name in _names_on_cpu() - known.keys():
        library.impl(name, torch.library.fallthrough_kernel, _KEY, allow_override=True)
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        cache.clear()
        clear()

    # `autocast.__exit__` looks it up there.
    torch.clear_autocast_cache = clear_both
    try:
        yield
    finally:
        torch.clear_autocast_cache = clear
        library._destroy()  # noqa: SLF001  # the one way to take an override back


def _overload(name: str) -> _Operator:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _is_on_cpu(name: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", _KEY)  # noqa: SLF001


def _names_on_cpu() -> set[str]:
    every = (name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names())  # noqa: SLF001
    return {name for name in every if "::" not in name and _is_on_cpu(name)}


def _casting_to(dtype: torch.dtype, cache: dict[int, torch.Tensor] | None = None) -> _Rule:
    """A rule that casts all operands; casts of parameters go to `cache`, if there is one."""

    def rule(operator: _Operator) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            with torch._C._ExcludeDispatchKeyGuard(_BELOW_AUTOCAST):  # noqa: SLF001
                kwargs = {name: _cast(value, dtype, cache) for name, value in kwargs.items()}
                return operator(*(_cast(value, dtype, cache) for value in args), **kwargs)

        return run

    return rule


def _in_float32(operator: _Operator) -> Callable[..., Any]:
    names = [argument.name for argument in operator._schema.arguments]  # noqa: SLF001
    place = names.index("dtype")

    def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        given = kwargs.pop("dtype", args[place] if len(args) > place else None)
        if given is None and args[0].is_floating_point():
            given = torch.float32
        with torch._C._ExcludeDispatchKeyGuard(_BELOW_AUTOCAST):  # noqa: SLF001
            return operator(*args[:place], **kwargs, dtype=given)

    return run


def _norm(operator: _Operator) -> Callable[..., Any]:
    overload = "ScalarOpt_dtype" if operator._overloadname == "Scalar" else "ScalarOpt_dim_dtype"  # noqa: SLF001
    with_type = getattr(torch.ops.aten.norm, overload)

    def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        defaults = (2,) if overload == "ScalarOpt_dtype" else (2, [], False)
        positional = (*args, *defaults[len(args) - 1 :])
        with torch._C._ExcludeDispatchKeyGuard(_BELOW_AUTOCAST):  # noqa: SLF001
            return with_type(*positional, **kwargs, dtype=torch.float32)

    return run


def _promoting(operator: _Operator) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        tensors = [each for each in tree_iter((args, kwargs)) if isinstance(each, torch.Tensor)]
        types = {each.dtype for each in tensors if each.is_floating_point()}
        widest = torch.float32 if torch.float32 in types else torch.bfloat16
        with torch._C._ExcludeDispatchKeyGuard(_BELOW_AUTOCAST):  # noqa: SLF001
            return operator(*(_cast(value, widest) for value in args), **kwargs)

    return run


def _cast(value: Any, dtype: torch.dtype, cache: dict[int, torch.Tensor] | None = None) -> Any:  # noqa: ANN401
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(each, dtype, cache) for each in value)
    is_other = isinstance(value, torch.Tensor) and value.dtype in {torch.bfloat16, torch.float32}
    if not is_other:
        return value
    # cached_cast of aten/src/ATen/autocast_mode.cpp
    is_parameter = value.is_leaf and value.requires_grad and not value._is_view()  # noqa: SLF001
    if cache is None or not is_parameter or value.dtype is not torch.float32:
        return value.to(dtype)
    if id(value) not in cache:
        cache[id(value)] = value.to(dtype)
    return cache[id(value)]


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
            rows += _rows(case.network, "training_new", replace(settings, attention="fused"))
    chosen = next(network for network in NETWORKS if network.name == "tiny_transformer")
    rows += _rows(chosen, "training", replace(settings, loss="mse"))
    about = {"command": "PYTHONPATH=tools python tools/training/autocast_truth.py"}
    about |= {"torch": torch.__version__, "optimizer": "adam", "type": "bfloat16"}
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    head = json.dumps(about)[:-1]
    ROWS.write_text(f'{head}, "rows": [\n  {lines}\n]}}\n')
    print(f"{len(rows)} rows to {ROWS}")


if __name__ == "__main__":
    _main()

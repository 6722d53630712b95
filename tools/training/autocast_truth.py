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
from torch.utils._pytree import tree_iter

ROWS = Path(__file__).parents[2] / "tests" / "data" / "training_autocast.json"

GIVEN = ("mlp", "resnet18", "tiny_transformer", "gpt2_small", "vit_tiny")
NEW = ("convnext", "diffusion_unet", "llama_like", "nano_gpt", "super_resolution", "swin_like")
TERMS = (
    *("weight_bytes", "gradient_bytes", "saved_activation_bytes", "forward_peak_bytes"),
    *("backward_peak_bytes", "optimizer_peak_bytes", "peak_bytes"),
)

_LOWER = (
    *("_convolution", "_convolution.deprecated", "conv1d", "conv2d", "conv3d", "conv_tbc"),
    *("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution"),
    *("prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear"),
    *("addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell"),
    *("_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
    *("_scaled_dot_product_flash_attention", "scaled_dot_product_attention"),
)
"""AT_FORALL_LOWER_PRECISION_FP of aten/src/ATen/autocast_mode.h."""
_TO_FLOAT32 = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p"),
    *("reciprocal", "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor"),
    *("pow.Scalar", "softplus", "layer_norm", "native_layer_norm", "group_norm", "rms_norm"),
    *("frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity"),
    *("poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d"),
    *("hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss"),
    *("margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss"),
    *("multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm"),
    *("logsumexp", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d"),
    *("_upsample_nearest_exact2d", "upsample_nearest3d", "_upsample_nearest_exact3d"),
    *("upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa"),
    *("upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa"),
)
"""AT_FORALL_FP32 of the same file."""
_FLOAT32_RESULT = (
    *("prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum"),
    *("linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord"),
    *("sum", "sum.dim_IntList"),
)
"""AT_FORALL_FP32_SET_OPT_DTYPE: float32 is their result's type unless the caller gives one, as
``cross_entropy_loss`` gives ``log_softmax`` that of the logits."""
_PROMOTED = (
    *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler"),
    *("index_put", "tensordot", "scatter_add"),
)
"""AT_FORALL_PROMOTE: all operands in the widest of their types."""
_NORMS = ("norm.Scalar", "norm.ScalarOpt_dim")
"""AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE: redispatched with float32 as the result's type."""
_KEY = "AutocastCPU"
_BELOW_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)  # noqa: SLF001
_Operator = Any  # an OpOverload, which has no public type


@contextmanager
def cuda_lists() -> Iterator[None]:
    """Cast inside as autocast does on CUDA."""
    library = torch.library.Library("aten", "IMPL")
    cache: dict[int, torch.Tensor] = {}
    rules: dict[str, Callable[[_Operator], Callable[..., Any]]] = {
        **{name: _casting_to(torch.float32) for name in _TO_FLOAT32},
        **dict.fromkeys(_FLOAT32_RESULT, _in_float32),
        **dict.fromkeys(_PROMOTED, _promoting),
        **dict.fromkeys(_NORMS, _norm),
        # What the CPU has too stays its own, which also keeps the casts of parameters.
        **{n: _casting_to(torch.bfloat16, cache) for n in _LOWER if not _is_on_cpu(n)},
    }
    for name, rule in rules.items():
        library.impl(name, rule(_overload(name)), _KEY, allow_override=True)
    known = {*rules, *_LOWER}
    for name in _names_on_cpu() - known:
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


def _casting_to(
    dtype: torch.dtype, cache: dict[int, torch.Tensor] | None = None
) -> Callable[[_Operator], Callable[..., Any]]:
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
    is_cached = value.is_leaf and value.requires_grad and value.dtype is torch.float32
    if cache is None or not is_cached:
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
            rows += _rows(case.network, "training_new", replace(settings, attention="efficient"))
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

"""Operators that CPU and GPU run differently, made to keep on the CPU what the GPU keeps."""

# mypy: disable-error-code="no-untyped-call"

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

ATTENTION_KINDS = ("math", "fused")
_HALF = frozenset({torch.float16, torch.bfloat16})
_HEAD_ALIGNMENT = 8
_RANK = 4
"""Of the operands of attention: batch, heads, rows, width."""
_FLAT = 2
"""Dims of a matrix."""


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Dropout with a mask of one byte an element (`native_dropout`), none where it does nothing.

    Source: `dropout` and `is_fused_kernel_acceptable` of aten/src/ATen/native/Dropout.cpp; on the
    CPU the mask there is a float.
    """
    if not train or p == 0 or tensor.numel() == 0:
        return tensor
    if p == 1:
        return tensor * torch.zeros_like(tensor)
    return torch.native_dropout(tensor, p, train)[0]


def _fused_attention(  # noqa: PLR0913, PLR0917  # the signature is aten's
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`scaled_dot_product_attention` as a GPU runs it: q, k, v, output, log-sum kept.

    Source: `_select_sdp_backend` and `scaled_dot_product_attention` of
    aten/src/ATen/native/transformers/attention.cpp; FlashAttention takes half floats and no mask,
    and alone takes fewer heads of keys and values than of queries, where they are asked for; no
    kernel takes operands of another rank than 4, or broadcasts heads (sdp_utils_cpp.h:
    check_tensor_shapes, check_batch_size_and_num_heads_dense). Real tensors have no such kernel on
    the CPU.
    """
    is_flash = attn_mask is None and query.dtype in _HALF
    has_rank = {query.dim(), key.dim(), value.dim()} == {_RANK}
    has_heads = has_rank and query.shape[:2] == key.shape[:2] == value.shape[:2]
    if not (has_heads or (has_rank and enable_gqa and is_flash)):
        weighed: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(
            *(query, key, value, attn_mask, dropout_p, is_causal),
            scale=scale,
            enable_gqa=enable_gqa,
        )[0]
        return weighed
    if is_flash:
        width = query.size(-1)
        scale = width**-0.5 if scale is None else scale
        query, key, value = (
            each if each.size(-1) % _HEAD_ALIGNMENT == 0 else _padded(each)
            for each in (query, key, value)
        )
        flashed: tuple[torch.Tensor, ...] = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )
        return flashed[0] if flashed[0].size(-1) == width else flashed[0][..., :width]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # The kernel takes no booleans: what is left out is minus infinity.
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(
            attn_mask.logical_not(), float("-inf")
        )
    if attn_mask is not None:
        shape = (query.size(0), query.size(1), query.size(-2), key.size(-2))
        attn_mask = attn_mask.expand(shape)
    outputs: tuple[torch.Tensor, ...] = torch.ops.aten._scaled_dot_product_efficient_attention(
        query,
        key,
        value,
        attn_mask,
        compute_log_sumexp=True,
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
    )
    return outputs[0]


def _padded(heads: torch.Tensor) -> torch.Tensor:
    """Heads of FlashAttention with a width of a multiple of 8 (`pad_last_dim`)."""
    return functional.pad(heads, (0, -heads.size(-1) % _HEAD_ALIGNMENT))


def _linear(
    data: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`linear`, whose bias is added in place where it is no part of the product.

    Source: `linear` of aten/src/ATen/native/Linear.cpp. It asks `isTensorSubclassLike`, which holds
    for every tensor while a mode is on, and would make another tensor of the sum.
    """
    if bias is None:
        return torch.matmul(data, weight.t())
    if data.dim() == _FLAT:
        return torch.addmm(bias, data, weight.t())
    if data.dim() == _FLAT + 1 and data.is_contiguous():
        # [b, s, in] as [b * s, in]: one product with the bias added in it.
        rows = data.reshape(-1, data.size(-1))
        return torch.addmm(bias, rows, weight.t()).view(*data.shape[:-1], weight.size(0))
    return torch.matmul(data, weight.t()).add_(bias)


class _RmsNorm(torch.autograd.Function):
    """`_fused_rms_norm` (aten/src/ATen/native/cuda/layer_norm_kernel.cu): x and rstd are kept."""

    @staticmethod
    def forward(
        ctx: Any,
        data: torch.Tensor,
        normalized_shape: list[int],
        weight: torch.Tensor | None,
    ) -> torch.Tensor:
        rows = data.shape[: data.dim() - len(normalized_shape)]
        kept = data.contiguous()
        rstd = data.new_empty((*rows, *[1] * len(normalized_shape)))
        ctx.save_for_backward(kept, rstd, weight)
        return torch.empty_like(kept)

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        data, _, weight = ctx.saved_tensors
        return (
            torch.empty_like(data, memory_format=torch.contiguous_format),
            None,
            None if weight is None else torch.empty_like(weight),
        )


def _rms_norm(
    data: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    if not isinstance(data, FakeTensor):  # values are needed, as the CPU computes them
        dims = tuple(range(-len(normalized_shape), 0))
        added = torch.finfo(data.dtype).eps if eps is None else eps
        scaled = data * torch.rsqrt(data.pow(2).mean(dims, keepdim=True) + added)
        return scaled if weight is None else (scaled * weight).type_as(data)
    normed: torch.Tensor = _RmsNorm.apply(data, normalized_shape, weight)
    return normed


@contextmanager
def cuda_like(attention: str) -> Iterator[None]:
    """Run dropout, RMS norms, attention and recurrent layers inside as a GPU does, as far as known.

    `attention`: "math" decomposes it into matrix products and softmax, as ONNX files write it,
    "fused" is the kernel that a GPU takes. Recurrent layers run gate by gate
    (the packed reserve of cuDNN has no public size).
    """
    library = torch.library.Library("aten", "IMPL")
    overrides: dict[str, Any] = {"dropout": _dropout, "linear": _linear, "rms_norm": _rms_norm}
    if attention == "fused":
        overrides["scaled_dot_product_attention"] = _fused_attention
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*(Overriding a previously|TF32 acceleration)")
        for name, function in overrides.items():
            library.impl(name, function, "CompositeImplicitAutograd", allow_override=True)
        try:
            with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
                yield
        finally:
            library._destroy()  # the one way to take an override back

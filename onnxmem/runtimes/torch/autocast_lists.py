"""What autocast casts: one row for each operator of PyTorch that it lists, by device and release.

``AUTOCAST_LISTS`` has the lists of ``torch.amp.autocast``, of CUDA and of the CPU. A row names an
operator as the dispatcher does (``pow.Tensor_Scalar``), and the operators of ONNX that exporters
write for it, with the framework's own for composites. ``lists_of`` returns the operators of ONNX
that have a policy. All others run in the type that their operands promote to. float64, integers and
booleans are never cast.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Final

from onnxmem.settings import TORCHES


class Policy(StrEnum):
    """How an operator's floating operands are cast: ``CastPolicy`` of autocast_mode.h."""

    LOWER = "lower_precision_fp"
    """To 16 bits."""
    FLOAT32 = "fp32"
    """To float32."""
    FLOAT32_RESULT = "fp32_set_opt_dtype"
    """They are not: float32 is the type of the result, unless the caller gives one."""
    APPENDED_FLOAT32 = "fp32_append_dtype"
    """As ``FLOAT32_RESULT``, where another overload takes the type."""
    PROMOTE = "promote"
    """To the widest type among them."""


Lists = Mapping[str, Policy]
"""Policies by operator of ONNX, or of the framework."""


@dataclass(frozen=True, slots=True)
class ListedOperator:
    """An operator of PyTorch on a list of autocast."""

    name: str
    """In the namespace ``aten`` unless it has another, with its overload."""
    policy: Policy
    device: str
    """``cuda`` or ``cpu``."""
    source: str
    """Where PyTorch lists it."""
    written_as: tuple[str, ...] = ()
    """The operators that exporters write for it. Empty for a composite, whose parts have rows of
    their own or none, and for what no exporter writes."""
    since: str = TORCHES[0]
    """The first release of ``TORCHES`` with that row."""


_SINCE: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("linalg_vector_norm", "logsumexp", "linalg_matrix_norm"), "2.0"),
        **dict.fromkeys(("linalg_matrix_norm.str_ord", "scaled_dot_product_attention"), "2.0"),
        **dict.fromkeys(("_scaled_dot_product_flash_attention", "mkldnn_rnn_layer"), "2.0"),
        **dict.fromkeys(("linalg_vecdot", "vdot", "_native_multi_head_attention"), "2.5"),
        **dict.fromkeys(("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"), "2.5"),
        **dict.fromkeys(("upsample_linear1d", "upsample_bilinear2d"), "2.5"),
        **dict.fromkeys(("upsample_trilinear3d", "upsample_bicubic2d"), "2.5"),
        **dict.fromkeys(("_upsample_nearest_exact1d", "_upsample_nearest_exact2d"), "2.5"),
        **dict.fromkeys(("_upsample_nearest_exact3d", "_upsample_bilinear2d_aa"), "2.5"),
        "_upsample_bicubic2d_aa": "2.5",
        **dict.fromkeys(("rms_norm", "_addmm_activation"), "latest"),
    }
)
"""What libtorch_cpu of 1.12.1, 2.0.1 or 2.5.1 does not register and the next one does."""

_Group = tuple[tuple[str, ...], str]
"""What exporters write, and the operators that they write it for."""


def _listed(policy: Policy, device: str, source: str, *groups: _Group) -> Iterator[ListedOperator]:
    for written_as, names in groups:
        for name in names.split():
            since = _SINCE.get(name, TORCHES[0])
            yield ListedOperator(name, policy, device, source, written_as, since)


_HEADER: Final = "aten/src/ATen/autocast_mode.h: "
_IMPL: Final = "aten/src/ATen/autocast_mode.cpp: "
_AUTOCAST_CPU: Final = f"{_IMPL}TORCH_LIBRARY_IMPL(aten, AutocastCPU, m)"
_LOSSES: Final = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
_ATTENTION: Final = ("Attention", "pad_last_dim", "scaled_dot_product_attention")

_CUDA: Final = (
    *_listed(
        *(Policy.LOWER, "cuda", f"{_HEADER}AT_FORALL_LOWER_PRECISION_FP"),
        (("Conv",), "_convolution _convolution.deprecated convolution conv1d conv2d conv3d"),
        (("Conv",), "conv_tbc"),
        (("ConvTranspose",), "conv_transpose1d conv_transpose2d.input conv_transpose3d.input"),
        (("PRelu",), "prelu"),
        (("MatMul",), "matmul mm mv bmm chain_matmul linalg_multi_dot linalg_vecdot"),
        (("Gemm", "MatMul", "linear"), "linear addmm addmv addr addbmm baddbmm"),
        (("Einsum", "einsum_operand"), "einsum"),
        (_ATTENTION, "scaled_dot_product_attention _scaled_dot_product_flash_attention"),
        ((), "_thnn_fused_lstm_cell _thnn_fused_gru_cell"),
        ((), "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"),
    ),
    *_listed(
        *(Policy.LOWER, "cuda", f"{_IMPL}TORCH_LIBRARY_IMPL(aten, Autocast, m)"),
        ((), "cudnn_convolution cudnn_convolution_transpose"),
    ),
    *_listed(
        *(Policy.FLOAT32, "cuda", f"{_HEADER}AT_FORALL_FP32"),
        (("Acos",), "acos"),
        (("Asin",), "asin"),
        (("Cosh",), "cosh"),
        (("Exp",), "exp expm1"),
        (("Log",), "log log10 log2 log1p"),
        (("Reciprocal",), "reciprocal"),
        (("rsqrt",), "rsqrt"),
        (("Sinh",), "sinh"),
        (("Tan",), "tan"),
        (("Pow", "square"), "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar"),
        (("Softplus",), "softplus"),
        (("LayerNormalization",), "layer_norm native_layer_norm"),
        (("RMSNormalization", "SimplifiedLayerNormalization"), "rms_norm"),
        (("GroupNormalization",), "group_norm"),
        (_LOSSES, "nll_loss nll_loss2d"),
        (("mse_loss",), "mse_loss"),
        (("ReduceLogSumExp",), "logsumexp"),
        (("Resize", "Upsample"), "upsample_nearest1d upsample_nearest2d upsample_nearest3d"),
        (("Resize", "Upsample"), "_upsample_nearest_exact1d _upsample_nearest_exact2d"),
        (("Resize", "Upsample"), "_upsample_nearest_exact3d upsample_linear1d"),
        (("Resize", "Upsample"), "upsample_bilinear2d _upsample_bilinear2d_aa"),
        (("Resize", "Upsample"), "upsample_trilinear3d upsample_bicubic2d"),
        (("Resize", "Upsample"), "_upsample_bicubic2d_aa"),
        ((), "erfinv frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity"),
        ((), "poisson_nll_loss cosine_embedding_loss hinge_embedding_loss kl_div l1_loss"),
        ((), "smooth_l1_loss huber_loss margin_ranking_loss multilabel_margin_loss"),
        ((), "soft_margin_loss triplet_margin_loss multi_margin_loss"),
        ((), "binary_cross_entropy_with_logits dist pdist cdist renorm"),
    ),
    *_listed(
        *(Policy.FLOAT32_RESULT, "cuda", f"{_HEADER}AT_FORALL_FP32_SET_OPT_DTYPE"),
        (("ReduceProd",), "prod prod.dim_int"),
        (("Softmax",), "softmax.int"),
        (("LogSoftmax",), "log_softmax.int"),
        (("CumProd",), "cumprod"),
        (("CumSum",), "cumsum"),
        (("ReduceL1", "ReduceL2"), "linalg_vector_norm"),
        ((), "linalg_matrix_norm linalg_matrix_norm.str_ord"),
        (("ReduceLogSum", "ReduceSum", "ReduceSumSquare"), "sum sum.dim_IntList"),
    ),
    *_listed(
        *(Policy.APPENDED_FLOAT32, "cuda", f"{_HEADER}AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE"),
        (("ReduceL1", "ReduceL2"), "norm.Scalar norm.ScalarOpt_dim"),
    ),
    *_listed(
        *(Policy.PROMOTE, "cuda", f"{_HEADER}AT_FORALL_PROMOTE"),
        (("GridSample",), "grid_sampler"),
        (("ScatterND",), "index_put"),
        (("ScatterElements",), "scatter_add"),
        ((), "addcdiv addcmul atan2 bilinear cross dot vdot tensordot"),
    ),
    # What autocast_mode.h does not name: operators of other libraries, and functions that divide by
    # the float32 result of a norm or a power.
    *_listed(
        *(Policy.LOWER, "cuda", "aten/src/ATen/native/cudnn/RNN.cpp: _cudnn_rnn_cast_reflatten"),
        (("GRU", "LSTM", "RNN", "_cudnn_rnn"), "_cudnn_rnn"),
    ),
    *_listed(
        # Its result is cast back, which is left out.
        *(Policy.FLOAT32, "cuda", "torchvision/csrc/ops/autocast/deform_conv2d_kernel.cpp"),
        (("DeformConv",), "torchvision::deform_conv2d"),
    ),
    *_listed(
        *(Policy.FLOAT32_RESULT, "cuda", "torch/nn/functional.py"),
        (("LpNormalization",), "torch::normalize"),
        (("LRN",), "torch::local_response_norm"),
    ),
)

_CPU: Final = (
    *_listed(
        *(Policy.LOWER, "cpu", _AUTOCAST_CPU),
        (("Conv",), "conv1d conv1d.padding conv2d conv2d.padding conv3d conv3d.padding"),
        (("Conv",), "_convolution.deprecated conv_tbc"),
        (("ConvTranspose",), "conv_transpose1d conv_transpose2d.input conv_transpose3d.input"),
        (("PRelu",), "prelu"),
        # `einsum` is not on this list, and calls `bmm`
        (("Einsum", "MatMul"), "bmm"),
        (("MatMul",), "matmul mm linalg_vecdot"),
        (("Gemm", "MatMul", "linear"), "linear addmm addbmm baddbmm"),
        (_ATTENTION, "scaled_dot_product_attention"),
        # Recurrent layers run gate by gate where the operands of a training step are float32
        ((), "_addmm_activation mkldnn_rnn_layer _native_multi_head_attention"),
    ),
    *_listed(
        *(Policy.FLOAT32, "cpu", _AUTOCAST_CPU),
        (("GridSample",), "grid_sampler grid_sampler_2d grid_sampler_3d"),
        (("ReduceProd",), "prod prod.dim_int"),
        (_LOSSES, "nll_loss nll_loss2d"),
        (("cross_entropy_loss",), "cross_entropy_loss"),
        (("mse_loss",), "mse_loss"),
        # Pools of volumes and pads, whose operators in ONNX are those of images and of zeros
        ((), "avg_pool3d max_pool3d adaptive_avg_pool3d adaptive_max_pool3d"),
        ((), "fractional_max_pool2d fractional_max_pool3d max_unpool2d max_unpool3d"),
        ((), "reflection_pad1d reflection_pad2d"),
        ((), "replication_pad1d replication_pad2d replication_pad3d"),
        ((), "binary_cross_entropy polar quantile quantile.scalar nanquantile"),
        ((), "nanquantile.scalar stft stft.center cdist _grid_sampler_2d_cpu_fallback trace"),
        ((), "view_as_complex cholesky cholesky_inverse cholesky_solve inverse lu_solve orgqr"),
        ((), "ormqr pinverse cosine_embedding_loss hinge_embedding_loss poisson_nll_loss"),
        ((), "smooth_l1_loss l1_loss huber_loss margin_ranking_loss soft_margin_loss"),
        ((), "triplet_margin_loss multi_margin_loss ctc_loss.IntList ctc_loss.Tensor kl_div"),
        ((), "multilabel_margin_loss multilabel_margin_loss_forward"),
        ((), "binary_cross_entropy_with_logits fft_fft fft_ifft fft_fft2 fft_ifft2 fft_fftn"),
        ((), "fft_ifftn fft_rfft fft_irfft fft_rfft2 fft_irfft2 fft_rfftn fft_irfftn fft_hfft"),
        ((), "fft_ihfft linalg_cond linalg_cond.p_str linalg_matrix_rank"),
        ((), "linalg_matrix_rank.tol_tensor linalg_matrix_rank.atol_rtol_tensor"),
        ((), "linalg_matrix_rank.atol_rtol_float linalg_solve linalg_cholesky linalg_svdvals"),
        ((), "linalg_eigvals linalg_eigvalsh linalg_inv linalg_householder_product"),
        ((), "linalg_tensorinv linalg_tensorsolve fake_quantize_per_tensor_affine geqrf"),
        ((), "_lu_with_info qr svd triangular_solve linalg_lstsq linalg_qr linalg_svd"),
        ((), "linalg_cholesky_ex linalg_inv_ex linalg_eig linalg_eigh"),
    ),
    *_listed(
        *(Policy.PROMOTE, "cpu", _AUTOCAST_CPU),
        (("Concat",), "cat"),
        ((), "stack index_copy"),
    ),
)
"""Serve to compare with steps that were measured without a GPU."""

AUTOCAST_LISTS: Final = (*_CUDA, *_CPU)

_SAME: Final = MappingProxyType({Policy.APPENDED_FLOAT32: Policy.FLOAT32_RESULT})


@cache
def lists_of(device: str, torch: str = "latest") -> Lists:
    """The policies of a device's autocast in a release of PyTorch."""
    release = TORCHES.index(torch)
    known = (row for row in AUTOCAST_LISTS if row.device == device)
    policies = {
        name: _SAME.get(row.policy, row.policy)
        for row in known
        if TORCHES.index(row.since) <= release
        for name in row.written_as
    }
    return MappingProxyType(policies)

"""The records of kernels, compared with the kernels that the installed onnxruntime registers.

``get_all_opkernel_def()`` lists every CPU kernel with its versions and types. It has no figures of
memory: those are compared in ``test_scratch`` and ``test_prepacking``.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest
from installed_runtime import require_since, require_verified

from onnxmem.runtimes.onnxruntime.kernels.registry import KERNELS, WITHOUT_KERNEL, kernel_of

Registrations = Mapping[tuple[str, str], Sequence[Any]]

GENERATION = (
    "runs whole subgraphs, and keeps their inputs, scores and caches in vectors and buffers"
)
STRINGS_OR_MAPS = "reads strings or maps, which lie outside the arena; not measured"
TREES = "keeps partial scores per thread; not measured"
DEVICE_COPY = "copies between devices; a session on the CPU has no such node"

WITHOUT_RECORD = {
    ("", "ImageScaler"): "an experimental operator of 2017, of opsets before 10; not measured",
    ("", "MemcpyFromHost"): DEVICE_COPY,
    ("", "MemcpyToHost"): DEVICE_COPY,
    ("ai.onnx.ml", "CastMap"): STRINGS_OR_MAPS,
    ("ai.onnx.ml", "CategoryMapper"): STRINGS_OR_MAPS,
    ("ai.onnx.ml", "DictVectorizer"): STRINGS_OR_MAPS,
    ("ai.onnx.ml", "SVMClassifier"): "keeps scores and votes per sample; not measured",
    ("ai.onnx.ml", "TreeEnsembleClassifier"): TREES,
    ("ai.onnx.ml", "TreeEnsembleRegressor"): TREES,
    ("ai.onnx.ml", "ZipMap"): STRINGS_OR_MAPS,
    ("com.microsoft", "AttnLSTM"): "an LSTM with attention, of many buffers; not measured",
    ("com.microsoft", "BeamSearch"): GENERATION,
    ("com.microsoft", "GreedySearch"): GENERATION,
    ("com.microsoft", "Sampling"): GENERATION,
    ("com.microsoft", "SparseToDenseMatMul"): "reads a sparse tensor; not measured",
    ("com.microsoft", "Tokenizer"): STRINGS_OR_MAPS,
    ("com.microsoft", "WhisperBeamSearch"): GENERATION,
}
"""Registered operators without a record, each with its reason. What their kernels take is unknown,
and reports count their uses."""

CUDA_ALONE = {("com.microsoft", "DecoderMaskedSelfAttention"), ("com.microsoft", "ShardedMoE")}


@cache
def registered() -> Registrations:
    """The CPU kernels of the installed onnxruntime, by domain and operator."""
    pytest.importorskip("onnxruntime")
    require_verified()
    require_since("1.32")
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

    kernels: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
    for kernel in get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider":
            kernels[kernel.domain, kernel.op_name].append(kernel)
    return dict(kernels)


def runs_in(dtype: str, kernel: Any) -> bool:  # noqa: ANN401 - onnxruntime's own record, without types
    """Whether a registration allows a type for an operand.

    Elements of sequences and optionals count only where no operand is a tensor: SplitToSequence
    may return sequences of types that it cannot split.
    """
    names = {name for types in kernel.type_constraints.values() for name in types}
    if "tensor(float)" in names:
        return f"tensor({dtype})" in names
    return any(f"tensor({dtype})" in name for name in names)


def test_every_registered_operator_has_a_record_or_a_reason_to_have_none() -> None:
    assert len(registered()) > 300
    assert set(registered()) - set(KERNELS) == set(WITHOUT_RECORD)


def test_every_record_is_of_a_registered_operator() -> None:
    assert set(KERNELS) - set(registered()) == CUDA_ALONE


def test_operators_without_a_kernel_are_not_registered() -> None:
    assert WITHOUT_KERNEL.isdisjoint(name for domain, name in registered() if not domain)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_versions_of_a_record_are_those_registered(dtype: str) -> None:
    wrong = []
    for (domain, op_type), kernels in registered().items():
        recorded = getattr(kernel_of(op_type, domain), dtype)
        # A type may have a registration of its own: a version runs in it if any covers both.
        for first in sorted({kernel.version_range[0] for kernel in kernels}):
            covering = [
                kernel
                for kernel in kernels
                if kernel.version_range[0] <= first <= kernel.version_range[1]
            ]
            is_registered = any(runs_in(dtype, kernel) for kernel in covering)
            if (domain, op_type) in KERNELS and is_registered != (first in recorded):
                wrong.append((op_type, first, is_registered))
    assert wrong == []

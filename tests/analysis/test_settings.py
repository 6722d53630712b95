"""What is asked makes sense, or is refused before anything is read."""

from collections.abc import Mapping

import pytest

from onnxmem import Settings, analyze
from onnxmem.errors import UsageError
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS
from onnxmem.runtimes.onnxruntime.session_options import LEVELS
from onnxmem.settings import BACKENDS, GRAPHS, OPTIMIZERS, PRECISIONS, RUNTIMES


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (
            {"optimizer": "nope"},
            (f"optimizer 'nope' is not known; choose one of {', '.join(OPTIMIZERS)}"),
        ),
        (
            {"precision": "fp7"},
            f"precision 'fp7' is not known; choose one of {', '.join(PRECISIONS)}",
        ),
        ({"loss": "l3"}, "loss 'l3' is not known; choose one of cross-entropy, mse, none"),
        ({"batch": "3"}, "'3' is not an integer; batches, dims and sizes are integers"),
        ({"batch": True}, "True is not an integer; batches, dims and sizes are integers"),
        ({"dims": {"N": 2.0}}, "2.0 is not an integer; batches, dims and sizes are integers"),
        (
            {"shapes": {"x": (1, 2.5)}},
            "2.5 is not an integer; batches, dims and sizes are integers",
        ),
        ({"budget_bytes": -1}, "the budget is -1 bytes, which is negative"),
        ({"budget_bytes": 2.5}, "2.5 is not an integer; batches, dims and sizes are integers"),
        ({"cuda_context_bytes": -7}, "the CUDA context is -7 bytes, which is negative"),
        ({"cuda_workspace_bytes": -7}, "the cuDNN workspace is -7 bytes, which is negative"),
        (
            {"cuda_context_bytes": "7"},
            "'7' is not an integer; batches, dims and sizes are integers",
        ),
        ({"runtimes": ("trt",)}, "runtime 'trt' is not known; choose one of ort-cpu, ort-cuda"),
        (
            {"runtimes": ("ort-cpu", "ort")},
            "runtime 'ort' is not known; choose one of ort-cpu, ort-cuda",
        ),
        (
            {"graph": "ort"},
            "graph 'ort' is not known; choose one of raw, ort-basic, ort-extended, ort-all",
        ),
        (
            {"graph": ""},
            "graph '' is not known; choose one of raw, ort-basic, ort-extended, ort-all",
        ),
        (
            {"cpu": "z80"},
            "cpu 'z80' is not known; choose one of native, avx512, avx2, arm64",
        ),
        (
            {"cpu": "avx2", "measure": "cpu"},
            "a measurement runs on this machine: omit cpu avx2",
        ),
        ({"measure": "tpu"}, "backend 'tpu' is not known; choose one of cpu, cuda"),
        ({"measure": ""}, "backend '' is not known; choose one of cpu, cuda"),
        *(
            (
                {"train": True, "graph": graph},
                f"a training step runs the graph of the file, not {graph}",
            )
            for graph in ("ort-basic", "ort-extended", "ort-all")
        ),
    ],
)
def test_an_invalid_request_is_rejected(asked: Mapping[str, object], text: str) -> None:
    with pytest.raises(UsageError) as refused:
        analyze("no such file", **asked)  # type: ignore[arg-type]
    assert str(refused.value) == text


@pytest.mark.parametrize(
    "asked",
    [
        {"train": True, "graph": "raw", "runtimes": RUNTIMES},
        {"train": True, "measure": "cpu"},
        {"runtimes": ("ort-cuda",), "cuda_context_bytes": 0, "cuda_workspace_bytes": 7},
        *({"graph": graph} for graph in GRAPHS),
        *({"measure": backend} for backend in BACKENDS),
    ],
)
def test_a_valid_request_is_accepted(asked: dict[str, object]) -> None:
    settings = Settings(**asked)  # type: ignore[arg-type]
    assert all(getattr(settings, name) == value for name, value in asked.items())


def test_settings_list_the_levels_and_runtimes_that_exist() -> None:
    assert tuple(LEVELS) == GRAPHS
    assert tuple(PROVIDERS) == RUNTIMES
    assert tuple(name.replace("ort-", "") for name in RUNTIMES) == BACKENDS

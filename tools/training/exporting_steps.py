"""A network in training mode as an ONNX file, by each exporter of torch, its weights left out."""

import io
import warnings
from collections.abc import Callable
from typing import Any

import onnx
import torch
from settings import Network
from stripping import drop_annotations, strip_weights
from torch import nn

SEED = 20_261_121

EXPORT_BATCH = 2


class ExportFailureError(Exception):
    """An exporter gave up; the message is its own, shortened."""


def export(
    network: Network,
    exporter: str,
    input_names: tuple[str, ...],
    opset: int,
    trained: bool,  # noqa: FBT001
) -> bytes:
    """The file of `network` by `exporter` (a key of `EXPORTERS`), the batch symbolic.

    `trained` draws every value anew, for networks as they are after training; exporters merge
    equal initializers. `opset` is the legacy exporter's alone.

    Raises:
        ExportFailureError: the exporter failed.

    """
    torch.manual_seed(SEED)
    module = network.build().train()
    if trained:
        draw_values(module)
    inputs = network.inputs(EXPORT_BATCH)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # both warn about their own internals
            model = EXPORTERS[exporter](module, inputs, input_names, opset)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        message = f"{type(error).__name__}: {lines[0][:200]}"
        raise ExportFailureError(message) from error
    drop_annotations(model)
    strip_weights(model, "absent.bin")
    data: bytes = model.SerializeToString()
    return data


def draw_values(module: nn.Module) -> None:
    """As after training: exporters merge equal weights and drop a bias of zeros."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-0.05, 0.05)
        for name, buffer in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.uniform_(0.5, 1.5)


def _legacy(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], names: tuple[str, ...], opset: int
) -> onnx.ModelProto:
    file = io.BytesIO()
    torch.onnx.export(
        module,
        inputs,
        file,  # type: ignore[arg-type]  # the stub knows paths alone
        input_names=list(names),
        output_names=["out"],
        dynamic_axes={name: {0: "batch"} for name in (*names, "out")},
        opset_version=opset,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        dynamo=False,
    )
    return onnx.load_from_string(file.getvalue())


def _dynamo(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], names: tuple[str, ...], _: int
) -> onnx.ModelProto:
    return _program(module, inputs, names, optimize=True)


def _dynamo_plain(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], names: tuple[str, ...], _: int
) -> onnx.ModelProto:
    return _program(module, inputs, names, optimize=False)


def _program(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], names: tuple[str, ...], *, optimize: bool
) -> onnx.ModelProto:
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        module,
        inputs,
        input_names=list(names),
        output_names=["out"],
        dynamic_shapes=tuple({0: batch} for _ in inputs),
        dynamo=True,
        optimize=optimize,
        verbose=False,
    )
    if program is None:
        message = "the exporter returned no program"
        raise RuntimeError(message)
    return program.model_proto


EXPORTERS: dict[str, Callable[..., Any]] = {
    "legacy": _legacy,
    "dynamo": _dynamo,
    "dynamo_plain": _dynamo_plain,
}

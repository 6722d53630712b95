"""A network in training mode as an ONNX file, by the script exporter, its weights left out."""

import io
import warnings
from collections.abc import Mapping

import onnx
import torch
from stripping import drop_annotations, strip_weights
from torch import nn


def training_file(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], names: list[str], dims: Mapping[int, str]
) -> bytes:
    """The file; `dims` are the symbolic ones of every input and of the output, by axis."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own internals
        torch.onnx.export(
            module.train(),
            inputs,
            file,  # type: ignore[arg-type]  # the stub knows paths alone
            input_names=names,
            output_names=["out"],
            dynamic_axes={name: dict(dims) for name in (*names, "out")},
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
            dynamo=False,
        )
    model = onnx.load_from_string(file.getvalue())
    drop_annotations(model)
    strip_weights(model, "absent.bin")
    data: bytes = model.SerializeToString()
    return data

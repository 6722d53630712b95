"""From a recipe to an ONNX model with its (random) weights."""

import io
import warnings
from typing import Any

import onnx
import torch
from torch import nn

from recipe import Recipe

SEED = 20_240_229
"""Of the weights and the inputs: the same file each time."""


def build_network(recipe: Recipe) -> nn.Module:
    """The network of `recipe` in the mode it is exported in, every value drawn anew.

    Fresh networks hold many equal vectors (ones, zeros), which exporters merge into one
    initializer; a trained network holds none.
    """
    torch.manual_seed(SEED)
    network = recipe.build()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.uniform_(-0.05, 0.05)
        for name, buffer in network.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.uniform_(0.5, 1.5)
    return network.train(recipe.training)


def export(recipe: Recipe) -> onnx.ModelProto:
    """The ONNX model of `recipe`, checked, all weights inside."""
    network = build_network(recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both exporters warn about their own internals
        model = _EXPORTERS[recipe.exporter](recipe, network)
    if recipe.rewrite is not None:
        model = recipe.rewrite(model)
    onnx.checker.check_model(model, full_check=True)
    return model


def _export_torchscript(recipe: Recipe, network: nn.Module) -> onnx.ModelProto:
    mode = torch.onnx.TrainingMode.TRAINING if recipe.training else torch.onnx.TrainingMode.EVAL
    inputs = recipe.inputs()
    file = io.BytesIO()
    torch.onnx.export(
        torch.jit.script(network) if recipe.script else network,
        tuple(inputs.values()),
        file,
        input_names=list(inputs),
        output_names=list(recipe.outputs),
        dynamic_axes={name: dict(axes) for name, axes in recipe.dims.items()},
        opset_version=recipe.opset,
        training=mode,
        do_constant_folding=not recipe.training,
        dynamo=False,
    )
    return onnx.load_from_string(file.getvalue())


def _export_dynamo(recipe: Recipe, network: nn.Module) -> onnx.ModelProto:
    inputs = recipe.inputs()
    symbols: dict[str, Any] = {}
    dynamic_shapes = tuple(
        {
            axis: symbols.setdefault(symbol, torch.export.Dim(symbol))
            for axis, symbol in recipe.dims.get(name, {}).items()
        }
        for name in inputs
    )
    program = torch.onnx.export(
        network,
        tuple(inputs.values()),
        input_names=list(inputs),
        output_names=list(recipe.outputs),
        dynamic_shapes=dynamic_shapes,
        opset_version=recipe.opset,
        dynamo=True,
        verbose=False,
    )
    if program is None:
        message = f"{recipe.name}: the exporter returned no program"
        raise RuntimeError(message)
    return program.model_proto


_EXPORTERS = {"torchscript": _export_torchscript, "dynamo": _export_dynamo}

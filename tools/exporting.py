"""From a recipe to an ONNX model with its (random) weights."""

import inspect
import io
import warnings
from typing import Any

import onnx
import torch
from recipe import Recipe
from torch import nn

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
    if recipe.quantization is not None:
        model = recipe.quantization.rewrite(model)
    onnx.checker.check_model(model, full_check=True)
    return model


def _export_torchscript(recipe: Recipe, network: nn.Module) -> onnx.ModelProto:
    mode = torch.onnx.TrainingMode.TRAINING if recipe.training else torch.onnx.TrainingMode.EVAL
    inputs = recipe.inputs()
    file = io.BytesIO()
    torch.onnx.export(
        torch.jit.script(network) if recipe.script else network,
        tuple(inputs.values()),
        file,  # type: ignore[arg-type]  # the stub knows paths alone
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
    program = torch.onnx.export(
        network,
        tuple(inputs.values()),
        input_names=list(inputs),
        output_names=list(recipe.outputs),
        dynamic_shapes=_dynamic_shapes(recipe, network),
        opset_version=recipe.opset,
        dynamo=True,
        verbose=False,
    )
    if program is None:
        message = f"{recipe.name}: the exporter returned no program"
        raise RuntimeError(message)
    model = program.model_proto
    _name_input_dims(recipe, model)
    return model


def _name_input_dims(recipe: Recipe, model: onnx.ModelProto) -> None:
    """Give the inputs the symbols of the recipe where torch made up one of its own."""
    for value in model.graph.input:
        for axis, symbol in recipe.dims.get(value.name, {}).items():
            value.type.tensor_type.shape.dim[axis].dim_param = symbol


def _dynamic_shapes(recipe: Recipe, network: nn.Module) -> dict[str, Any]:
    """The symbolic axes of each parameter of `forward`; sums of symbols are left to torch."""
    symbols = {
        symbol: torch.export.Dim(symbol) if symbol.isidentifier() else torch.export.Dim.DYNAMIC
        for symbol in recipe.bound_dims
    }
    axes = [
        {axis: symbols[symbol] for axis, symbol in recipe.dims.get(name, {}).items()}
        for name in recipe.inputs()
    ]
    return inspect.signature(network.forward).bind(*axes).arguments


_EXPORTERS = {"torchscript": _export_torchscript, "dynamo": _export_dynamo}

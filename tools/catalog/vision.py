"""Image classifiers, a segmentation network, and two blocks to compare."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import quantized
import torch
from architectures import (
    blocks,
    classic,
    convnext,
    densenet,
    efficientnet,
    encoders,
    inception,
    mobilenet,
    resnet,
    unet,
)
from recipe import Quantization, Recipe
from torch import Tensor


def _images(batch: int, side: int = 224) -> Callable[[], Mapping[str, Tensor]]:
    return lambda: {"image": torch.zeros(batch, 3, side, side)}


def _features() -> Mapping[str, Tensor]:
    return {"features": torch.zeros(2, blocks.IN_CHANNELS, 56, 56)}


def _batch_of(source: str, result: str, symbol: str = "batch") -> Mapping[str, Mapping[int, str]]:
    return {source: {0: symbol}, result: {0: symbol}}


MLP = Recipe(
    name="mlp",
    what="Perceptron with four hidden layers of 100",
    source="textbook",
    build=classic.mlp,
    inputs=lambda: {"features": torch.zeros(2, 1000)},
    dims=_batch_of("features", "logits"),
    published_parameters=131_410,
)
ALEXNET = Recipe(
    name="alexnet",
    what="AlexNet, one tower",
    source="Krizhevsky 2014, arXiv:1404.5997",
    build=classic.alexnet,
    inputs=_images(2),
    dims=_batch_of("image", "logits", "N"),
    opset=13,
    published_parameters=61_100_840,
)
VGG16 = Recipe(
    name="vgg16",
    what="VGG-16",
    source="Simonyan and Zisserman 2014, arXiv:1409.1556",
    build=classic.vgg16,
    inputs=_images(2),
    dims=_batch_of("image", "logits"),
    published_parameters=138_357_544,
)
RESNET50 = Recipe(
    name="resnet50",
    what="ResNet-50, stride in the 3x3 convolution",
    source="He et al. 2015, arXiv:1512.03385",
    build=resnet.resnet50,
    inputs=_images(2),
    dims=_batch_of("image", "logits"),
    published_parameters=25_557_032,
)
MOBILENET_V2 = Recipe(
    name="mobilenet_v2",
    what="MobileNetV2",
    source="Sandler et al. 2018, arXiv:1801.04381",
    build=mobilenet.mobilenet_v2,
    inputs=_images(2),
    dims=_batch_of("image", "logits"),
    exporter="dynamo",
    opset=20,
    published_parameters=3_504_872,
)
MOBILENET_V2_INT8 = replace(
    MOBILENET_V2,
    name="mobilenet_v2.int8",
    what="MobileNetV2, int8 weights and uint8 activations (QDQ)",
    exporter="torchscript",
    opset=17,
    quantization=Quantization(bits=8, block_size=None, rewrite=quantized.to_int8),
)
DENSENET121 = Recipe(
    name="densenet121",
    what="DenseNet-121",
    source="Huang et al. 2016, arXiv:1608.06993",
    build=densenet.densenet121,
    inputs=_images(1),
    published_parameters=7_978_856,
)
INCEPTION_V3 = Recipe(
    name="inception_v3",
    what="Inception v3 without its auxiliary classifier",
    source="Szegedy et al. 2015, arXiv:1512.00567",
    build=inception.inception_v3,
    inputs=_images(2, 299),
    exporter="dynamo",
    opset=18,
    published_parameters=23_834_568,
)
EFFICIENTNET_B0 = Recipe(
    name="efficientnet_b0",
    what="EfficientNet-B0",
    source="Tan and Le 2019, arXiv:1905.11946",
    build=efficientnet.efficientnet_b0,
    inputs=_images(2),
    dims=_batch_of("image", "logits"),
    opset=16,
    published_parameters=5_288_548,
)
CONVNEXT_TINY = Recipe(
    name="convnext_tiny",
    what="ConvNeXt-Tiny",
    source="Liu et al. 2022, arXiv:2201.03545",
    build=convnext.convnext_tiny,
    inputs=_images(2),
    dims=_batch_of("image", "logits", "batch_size"),
    exporter="dynamo",
    opset=20,
    published_parameters=28_589_128,
)
UNET = Recipe(
    name="unet",
    what="U-Net with padding and BatchNorm, two classes",
    source="Ronneberger et al. 2015, arXiv:1505.04597",
    build=unet.unet,
    inputs=_images(1, 128),
    outputs=("scores",),
    dims=_batch_of("image", "scores", "N"),
    opset=14,
)
VIT_TINY = Recipe(
    name="vit_tiny",
    what="ViT-Ti/16",
    source="Dosovitskiy et al. 2020, arXiv:2010.11929; transformers",
    build=encoders.vit_tiny,
    inputs=_images(2),
    dims=_batch_of("image", "logits"),
    exporter="dynamo",
    opset=20,
    licence="Apache-2.0",
    published_parameters=5_717_416,
)
PLAIN_CONV_BLOCK = Recipe(
    name="plain_conv_block",
    what="3x3 convolution, BatchNorm, ReLU",
    source="textbook",
    build=blocks.plain_conv_block,
    inputs=_features,
    outputs=("result",),
    dims=_batch_of("features", "result"),
)
DEPTHWISE_SEPARABLE_BLOCK = Recipe(
    name="depthwise_separable_block",
    what="The same in a depthwise and a pointwise convolution",
    source="Howard et al. 2017, arXiv:1704.04861",
    build=blocks.depthwise_separable_block,
    inputs=_features,
    outputs=("result",),
    dims=_batch_of("features", "result"),
)


def as_it_trains(recipe: Recipe) -> Recipe:
    """The recipe of the same network before any layer is folded or dropped."""
    return replace(
        recipe,
        name=f"{recipe.name}.train",
        what=f"{recipe.what}; as it trains",
        exporter="torchscript",
        opset=17,
        training=True,
    )


RECIPES = (
    MLP,
    ALEXNET,
    VGG16,
    RESNET50,
    as_it_trains(RESNET50),
    MOBILENET_V2,
    as_it_trains(MOBILENET_V2),
    MOBILENET_V2_INT8,
    DENSENET121,
    as_it_trains(replace(DENSENET121, inputs=_images(2))),
    INCEPTION_V3,
    EFFICIENTNET_B0,
    CONVNEXT_TINY,
    UNET,
    VIT_TINY,
    PLAIN_CONV_BLOCK,
    DEPTHWISE_SEPARABLE_BLOCK,
)

"""Image classifiers and a segmentation network."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from architectures import classic, mobilenet, resnet
from recipe import Recipe


def _image(batch: int, side: int = 224) -> Callable[[], Mapping[str, Tensor]]:
    return lambda: {"image": torch.zeros(batch, 3, side, side)}


def _symbolic(symbol: str = "batch", output: str = "logits") -> Mapping[str, Mapping[int, str]]:
    return {"image": {0: symbol}, output: {0: symbol}}


RECIPES = (
    Recipe(
        name="mlp",
        what="Perceptron, four hidden layers of 100",
        source="textbook",
        build=classic.mlp,
        inputs=lambda: {"features": torch.zeros(2, 1000)},
        dims={"features": {0: "batch"}, "logits": {0: "batch"}},
        published_parameters=131_410,
    ),
    Recipe(
        name="alexnet",
        what="AlexNet, one tower",
        source="Krizhevsky 2014, arXiv:1404.5997",
        build=classic.alexnet,
        inputs=_image(2),
        dims=_symbolic("N"),
        opset=13,
        published_parameters=61_100_840,
    ),
    Recipe(
        name="vgg16",
        what="VGG-16",
        source="Simonyan and Zisserman 2014, arXiv:1409.1556",
        build=classic.vgg16,
        inputs=_image(2),
        dims=_symbolic(),
        published_parameters=138_357_544,
    ),
    Recipe(
        name="resnet50",
        what="ResNet-50",
        source="He et al. 2015, arXiv:1512.03385",
        build=resnet.resnet50,
        inputs=_image(2),
        dims=_symbolic(),
        published_parameters=25_557_032,
    ),
    Recipe(
        name="resnet50.train",
        what="ResNet-50 as it trains",
        source="He et al. 2015, arXiv:1512.03385",
        build=resnet.resnet50,
        inputs=_image(2),
        dims=_symbolic(),
        training=True,
        published_parameters=25_557_032,
    ),
    Recipe(
        name="mobilenet_v2",
        what="MobileNetV2",
        source="Sandler et al. 2018, arXiv:1801.04381",
        build=mobilenet.mobilenet_v2,
        inputs=_image(2),
        dims=_symbolic(),
        exporter="dynamo",
        opset=20,
        published_parameters=3_504_872,
    ),
    Recipe(
        name="mobilenet_v2.train",
        what="MobileNetV2 as it trains",
        source="Sandler et al. 2018, arXiv:1801.04381",
        build=mobilenet.mobilenet_v2,
        inputs=_image(2),
        dims=_symbolic(),
        training=True,
        published_parameters=3_504_872,
    ),
)

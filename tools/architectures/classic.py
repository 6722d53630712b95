"""Plain chains of layers: a perceptron, AlexNet and VGG-16."""

import torch
from torch import Tensor, nn

VGG16_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and number of 3x3 convolutions of each stage (configuration D of the paper)."""


def mlp() -> nn.Module:
    """1000 features, four hidden layers of 100 with ReLU, 10 classes."""
    layers: list[nn.Module] = []
    features = 1000
    for _ in range(4):
        layers += [nn.Linear(features, 100), nn.ReLU()]
        features = 100
    return nn.Sequential(*layers, nn.Linear(features, 10))


class ImageClassifier(nn.Module):
    """Convolutional features pooled to `side` x `side`, then fully connected layers."""

    def __init__(self, features: nn.Module, side: int, classifier: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.avgpool = nn.AdaptiveAvgPool2d((side, side))
        self.classifier = classifier

    def forward(self, image: Tensor) -> Tensor:
        """Class scores: [N, 3, H, W] -> [N, 1000]."""
        scores: Tensor = self.classifier(torch.flatten(self.avgpool(self.features(image)), 1))
        return scores


def alexnet() -> nn.Module:
    """AlexNet in its one-tower form (64, 192, 384, 256, 256 channels)."""
    features = nn.Sequential(
        nn.Conv2d(3, 64, 11, stride=4, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2),
    )
    classifier = nn.Sequential(
        nn.Dropout(),
        nn.Linear(256 * 6 * 6, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Linear(4096, 1000),
    )
    return ImageClassifier(features, 6, classifier)


def vgg16() -> nn.Module:
    """VGG-16: 13 convolutions in five stages, three fully connected layers."""
    layers: list[nn.Module] = []
    channels = 3
    for width, repeats in VGG16_STAGES:
        for _ in range(repeats):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2, stride=2))
    classifier = nn.Sequential(
        nn.Linear(512 * 7 * 7, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 1000),
    )
    return ImageClassifier(nn.Sequential(*layers), 7, classifier)

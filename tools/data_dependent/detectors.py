"""Detectors: torchvision by torch's script exporter, YOLO by ultralytics.

Random weights. The last layers that score are scaled, so that random weights find objects.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from cases import Case, Input
from torch import nn
from torchvision.models import detection
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

SIZE: Final = 96
SEED: Final = 20_240_229
CLASSES: Final = 5
SCRIPT: Final = "torch.onnx.export(dynamo=False), opset 17"
PIXELS: Final = {"image": Input((3, SIZE, SIZE), 0.1, 2)}


def louder(module: nn.Module, names: tuple[str, ...], scale: float) -> nn.Module:
    """Scale the weights of the layers whose names contain one of these, and drop their biases."""
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if any(part in name for part in names):
                if weight.ndim > 1:
                    weight.mul_(scale)
                elif name.endswith("bias"):
                    weight.zero_()
    return module


def calibrate(backbone: nn.Module) -> None:
    """Let batch normalization see some noise, or nothing of an image reaches the last layers."""
    backbone.train()
    with torch.no_grad():
        for _ in range(20):
            backbone(torch.randn(2, 3, 2 * SIZE, 2 * SIZE))


def detector(
    build: Callable[..., nn.Module],
    scored: tuple[str, ...],
    scale: float = 30,
    **settings: Any,  # noqa: ANN401 - of any type
) -> Callable[[str], None]:
    """Exports one of torchvision's detectors."""

    def export(path: str) -> None:
        torch.manual_seed(SEED)
        module = louder(build(**settings), scored, scale)
        calibrate(module.backbone)
        module.eval()
        image = torch.rand(*PIXELS["image"].shape)
        torch.onnx.export(
            module, ([image],), path, dynamo=False, opset_version=17, input_names=["image"]
        )

    return export


def _small_backbone() -> nn.Module:
    return resnet_fpn_backbone(
        backbone_name="resnet18", weights=None, trainable_layers=5, returned_layers=[2, 3, 4]
    )


_SMALL: Final[Mapping[str, Any]] = {"min_size": SIZE, "max_size": SIZE, "num_classes": CLASSES}
_NO_WEIGHTS: Final[Mapping[str, Any]] = {"weights": None, "weights_backbone": None}
_ROI: Final[Mapping[str, Any]] = {
    "box_score_thresh": 0.1,
    "rpn_pre_nms_top_n_test": 100,
    "rpn_post_nms_top_n_test": 50,
    "box_detections_per_img": 20,
}


def _anchors() -> object:
    return detection.anchor_utils.AnchorGenerator(
        sizes=((16,), (32,), (64,), (128,)), aspect_ratios=((0.5, 1.0, 2.0),) * 4
    )


def _heads(num_classes: int) -> dict[str, nn.Module]:
    """Box heads of 64 channels, so that a hundred runs take a minute."""
    return {
        "box_head": detection.faster_rcnn.TwoMLPHead(256 * 7**2, 64),
        "box_predictor": detection.faster_rcnn.FastRCNNPredictor(64, num_classes),
    }


def _masks(num_classes: int, **settings: Any) -> nn.Module:  # noqa: ANN401 - of any type
    return detection.MaskRCNN(
        _small_backbone(),
        rpn_anchor_generator=_anchors(),
        mask_head=detection.mask_rcnn.MaskRCNNHeads(256, (32,), 1),
        mask_predictor=detection.mask_rcnn.MaskRCNNPredictor(32, 32, num_classes),
        **_heads(num_classes),
        **settings,
    )


def _keypoints(num_classes: int, **settings: Any) -> nn.Module:  # noqa: ANN401 - of any type
    return detection.KeypointRCNN(
        _small_backbone(),
        rpn_anchor_generator=_anchors(),
        keypoint_head=detection.keypoint_rcnn.KeypointRCNNHeads(256, (32, 32)),
        keypoint_predictor=detection.keypoint_rcnn.KeypointRCNNPredictor(32, 4),
        **_heads(num_classes),
        **settings,
    )


def _pyramid(kind: str) -> Callable[..., nn.Module]:
    """RetinaNet or FCOS on a small backbone."""

    def build(**settings: Any) -> nn.Module:  # noqa: ANN401 - of any type
        sizes = tuple((size,) for size in (16, 32, 64, 128))
        if kind == "FCOS":
            anchors = detection.anchor_utils.AnchorGenerator(sizes, ((1.0,),) * 4)
        else:
            anchors = detection.anchor_utils.AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * 4)
        return getattr(detection, kind)(  # type: ignore[no-any-return]  # one of two classes
            _small_backbone(), anchor_generator=anchors, **settings
        )

    return build


def yolo(config: str, **settings: Any) -> Callable[[str], None]:  # noqa: ANN401 - of any type
    """Exports a YOLO from its configuration, without weights, suppression in the graph."""

    def export(path: str) -> None:
        from ultralytics import YOLO

        torch.manual_seed(SEED)
        with tempfile.TemporaryDirectory() as folder:
            model = YOLO(config)
            louder(model.model, ("cv3.0.2", "cv3.1.2", "cv3.2.2"), 60)
            model.ckpt_path = str(Path(folder) / "model.pt")
            model.model.pt_path = model.ckpt_path
            found = model.export(format="onnx", nms=True, simplify=False, **settings)
            shutil.move(str(found), path)

    return export


CASES: Final = {
    "fasterrcnn_mobilenet": Case(
        detector(
            detection.fasterrcnn_mobilenet_v3_large_320_fpn,
            ("cls_score", "cls_logits"),
            **_NO_WEIGHTS,
            **_SMALL,
            **_ROI,
        ),
        SCRIPT,
        PIXELS,
    ),
    "maskrcnn": Case(
        detector(_masks, ("cls_score", "cls_logits"), **_SMALL, **_ROI), SCRIPT, PIXELS
    ),
    "keypointrcnn": Case(
        detector(_keypoints, ("cls_score", "cls_logits"), **{**_SMALL, "num_classes": 2}, **_ROI),
        SCRIPT,
        PIXELS,
    ),
    "retinanet": Case(
        detector(
            _pyramid("RetinaNet"),
            ("cls_logits",),
            300,
            **_SMALL,
            topk_candidates=100,
            detections_per_img=20,
        ),
        SCRIPT,
        PIXELS,
    ),
    "fcos": Case(
        detector(
            _pyramid("FCOS"),
            ("cls_logits", "bbox_ctrness"),
            300,
            **_SMALL,
            topk_candidates=100,
            detections_per_img=20,
        ),
        SCRIPT,
        PIXELS,
    ),
    "ssdlite": Case(
        detector(
            detection.ssdlite320_mobilenet_v3_large,
            ("classification_head",),
            30,
            **_NO_WEIGHTS,
            num_classes=CLASSES,
            topk_candidates=50,
            detections_per_img=30,
            score_thresh=0.21,
        ),
        SCRIPT,
        PIXELS,
    ),
    "yolov8": Case(
        yolo("yolov8n.yaml", imgsz=SIZE, conf=0.4, max_det=20),
        "ultralytics YOLO.export(format='onnx', nms=True)",
        {"images": Input((1, 3, SIZE, SIZE), 0.1, 2)},
    ),
    "yolo11_segment": Case(
        yolo("yolo11n-seg.yaml", imgsz=SIZE, conf=0.4, max_det=20),
        "ultralytics YOLO.export(format='onnx', nms=True)",
        {"images": Input((1, 3, SIZE, SIZE), 0.1, 2)},
    ),
}

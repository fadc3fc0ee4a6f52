"""Detection: boxes that are cropped and flipped with their images, and a Faster R-CNN.

    python examples/train_detection.py --data /data/voc    # which holds VOCdevkit/VOC2012

torchvision's VOC dataset, its v2 transforms on boxes (tv_tensors), and batches that are lists:
this is user code, in workers that make whole batches. torchvision opens the images with Pillow, and
they are decoded natively, as explain() shows.
"""

from __future__ import annotations

from typing import Any

import torch
from sample_boxes import voc_folder
from sample_images import parser_of
from torch import nn
from torchvision import datasets, models
from torchvision.datasets import wrap_dataset_for_transforms_v2
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign
from torchvision.transforms import v2

from fusionloader import FusionLoader

Sample = tuple[torch.Tensor, dict[str, Any]]


def augmentation() -> v2.Compose:
    """Returns the augmentation of SSD, on images and their boxes."""
    return v2.Compose(
        [
            v2.RandomPhotometricDistort(p=0.5),
            v2.RandomZoomOut(fill=(124, 116, 104), p=0.5),
            v2.RandomIoUCrop(),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.SanitizeBoundingBoxes(),
        ]
    )


def with_boxes(samples: list[Sample]) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
    """Collates images of different sizes, and of their targets what the model asks for."""
    kept = [(image, target) for image, target in samples if len(target["boxes"])]
    images = [image for image, _ in kept]
    return images, [{name: target[name] for name in ("boxes", "labels")} for _, target in kept]


def detector(classes: int) -> FasterRCNN:
    """Returns a Faster R-CNN that is small enough for a CPU."""
    backbone: Any = models.mobilenet_v3_small().features[:9]  # 48 channels, a 16th of the size
    backbone = nn.Sequential(backbone)
    backbone.out_channels = 48
    return FasterRCNN(
        backbone,
        classes,
        min_size=96,
        max_size=160,
        rpn_anchor_generator=AnchorGenerator(((16, 32, 64),), ((0.5, 1.0, 2.0),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], 5, 2),
        rpn_post_nms_top_n_train=100,
        box_batch_size_per_image=64,
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    voc = datasets.VOCDetection(voc_folder(options), image_set="train", transforms=augmentation())
    dataset = wrap_dataset_for_transforms_v2(voc, target_keys=("boxes", "labels"))
    loader: FusionLoader[Any] = FusionLoader(
        dataset,
        options.batch_size,
        shuffle=True,
        num_workers=options.workers,
        collate_fn=with_boxes,
    )
    model = detector(classes=21).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(options.epochs):
        for images, targets in loader:
            losses = model(
                [image.to(device) for image in images],
                [{name: part.to(device) for name, part in target.items()} for target in targets],
            )
            loss = sum(losses.values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    print(loader.explain())


if __name__ == "__main__":
    main()

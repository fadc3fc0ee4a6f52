"""Batches of images of one aspect ratio: less padding than batches of any images.

    python examples/bucketed_batches.py

Each batch is padded to its largest image, as detection models need it. The script compares the
padding with that of torch's random batches. Training stops in mid-epoch and resumes there.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from PIL import Image
from sample_images import data_folder, parser_of
from torch.utils.data import DataLoader, RandomSampler, default_collate
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.data.samplers import BucketSampler, image_sizes

BATCH = 8
SHAPES = [(160, 120), (120, 160), (200, 100), (120, 120), (240, 160)]


def write_shapes(images: Path, folder: Path) -> None:
    """Writes the images in several aspect ratios."""
    for number, path in enumerate(sorted(images.glob("*/*.jpg"))):
        target = folder / path.parent.name / path.name
        target.parent.mkdir(exist_ok=True)
        with Image.open(path) as image:
            image.resize(SHAPES[number * 7 % len(SHAPES)]).save(target)


def padded(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Returns images padded to the largest, their targets, and how many pixels they have."""
    images, targets = zip(*samples, strict=True)
    height, width = (max(image.shape[side] for image in images) for side in (1, 2))
    batch = torch.zeros(len(images), 3, height, width)
    for place, image in zip(batch, images, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    pixels = sum(image[0].numel() for image in images)
    return batch, default_collate(targets), pixels


def padding(batches: Any) -> float:
    """Returns the share of pixels that are padding."""
    filled = total = 0
    for images, _, pixels in batches:
        filled += pixels
        total += images.numel() // 3
    return 1 - filled / total


def main() -> None:
    parser = parser_of(__doc__)
    images = data_folder(parser.parse_args())
    with TemporaryDirectory() as folder:
        write_shapes(images, Path(folder))
        train(ImageFolder(folder, transforms.ToTensor()))


def train(dataset: ImageFolder) -> None:
    """Stands for a training: goes through epochs, and resumes in the middle of one."""
    sizes = image_sizes(dataset)  # from headers; save them with numpy.save() for large folders

    def new_loader() -> FusionLoader[Any]:
        sampler = BucketSampler(sizes, batch_size=BATCH, buckets=6)
        return FusionLoader(dataset, batch_sampler=sampler, num_workers=2, collate_fn=padded)

    random: DataLoader[Any] = DataLoader(
        dataset, BATCH, sampler=RandomSampler(dataset), collate_fn=padded
    )
    with new_loader() as loader:
        print(f"padding: {padding(random):.0%} in random batches, {padding(loader):.0%} in buckets")
        loader.set_epoch(1)
        iterator = iter(loader)
        begun = [next(iterator)[1] for _ in range(len(loader) // 2)]
        state = loader.state_dict()
        expected = [targets for _, targets, _ in iterator]
    with new_loader() as resumed:
        resumed.load_state_dict(state)
        found = [targets for _, targets, _ in resumed]
    same = len(found) == len(expected) and all(map(torch.equal, found, expected))
    print(f"{len(begun)} batches before the checkpoint, {len(found)} after it, the same: {same}")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

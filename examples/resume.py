"""Stops in the middle of an epoch, saves a checkpoint, and continues with the next batch.

    python examples/resume.py

The batches after the resumption are those of an uninterrupted run, bit for bit. Delivered samples
are not read again.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from sample_images import data_folder, parser_of
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader


def new_loader(folder: Path) -> FusionLoader[Any]:
    dataset = ImageFolder(
        str(folder), transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()])
    )
    return FusionLoader(
        dataset,
        batch_size=16,
        shuffle=True,
        num_workers=2,
        seed=0,
        generator=torch.Generator().manual_seed(0),
    )


def train(loader: FusionLoader[Any], steps: int | None = None) -> list[torch.Tensor]:
    """Stands for a training: goes through the epoch, or ``steps`` batches of it."""
    seen = []
    for step, (images, _) in enumerate(loader):
        seen.append(images.clone())
        if steps is not None and step + 1 == steps:
            break
    return seen


def main() -> None:
    parser = parser_of(__doc__)
    folder = data_folder(parser.parse_args())
    with new_loader(folder) as loader:
        whole_epoch = train(loader)

    with TemporaryDirectory() as place:
        checkpoint = Path(place, "checkpoint.pt")
        with new_loader(folder) as loader:
            before = train(loader, steps=max(len(loader) // 2, 1))
            # Beside these two a checkpoint holds the model's and the optimizer's state.
            torch.save({"loader": loader.state_dict(), "step": len(before)}, checkpoint)

        saved = torch.load(checkpoint)
        with new_loader(folder) as loader:
            loader.load_state_dict(saved["loader"])
            after = train(loader)

    print(f"{len(before)} batches before the checkpoint, {len(after)} after it")
    same = len(before) + len(after) == len(whole_epoch) and all(
        torch.equal(ours, theirs) for ours, theirs in zip(before + after, whole_epoch, strict=True)
    )
    print("the same batches as in an uninterrupted epoch:", same)
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

"""WebDataset shards: an ``IterableDataset``, whose workers make whole batches.

    python examples/train_webdataset.py

Each worker reads its own shards, so there should be at least as many shards as workers.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import webdataset
from sample_images import data_folder, parser_of
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader


def write_shards(images: ImageFolder, folder: Path, per_shard: int) -> list[str]:
    """Puts the files of an image folder into tar files, as they are."""
    paths = []
    for start in range(0, len(images), per_shard):
        path = folder / f"{start // per_shard:06}.tar"
        with webdataset.TarWriter(str(path)) as shard:
            for number, (file, target) in enumerate(images.samples[start : start + per_shard]):
                key = f"{start + number:08}"
                shard.write({"__key__": key, "jpg": Path(file).read_bytes(), "cls": target})
        paths.append(str(path))
    return paths


def dataset_of(shards: list[str]) -> Any:
    steps = [transforms.RandomResizedCrop(32), transforms.ToTensor()]
    whole = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(100)
    return whole.decode("pil").to_tuple("jpg", "cls").map_tuple(transforms.Compose(steps), int)


def main() -> None:
    parser = parser_of(__doc__)
    options = parser.parse_args()
    images = ImageFolder(str(data_folder(options)))
    with TemporaryDirectory() as folder:
        shards = write_shards(images, Path(folder), per_shard=max(1, len(images) // 8))
        loader: FusionLoader[Any] = FusionLoader(
            dataset_of(shards), 16, num_workers=2, persistent_workers=True
        )
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, len(images.classes)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with loader:
            for epoch in range(2):
                samples = 0
                for pictures, targets in loader:
                    loss = nn.functional.cross_entropy(model(pictures), targets)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    samples += len(targets)
                print(f"epoch {epoch + 1}: loss {loss.item():.3f}, {samples} samples")
            print(loader.explain())


if __name__ == "__main__":
    main()

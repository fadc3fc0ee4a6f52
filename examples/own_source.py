"""A source of one's own: JPEGs one after the other in large files, read and decoded natively."""

from __future__ import annotations

import argparse
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from sample_images import image_folder
from torch import nn
from torchvision import transforms

from fusionloader import FusionLoader
from fusionloader.sources import ByteRanges, EncodedImages

HEADER = struct.Struct("<II")  # of a record: label, and bytes of the JPEG that follows


class Records(EncodedImages):
    """Images in files of records: ``label, nbytes, JPEG, label, nbytes, JPEG, ...``."""

    def __init__(
        self, files: Sequence[Path], transform: Callable[[Any], Any] | None = None
    ) -> None:
        columns: list[tuple[int, int, int]] = []
        labels: list[int] = []
        for number, path in enumerate(files):
            with open(path, "rb") as file:
                while header := file.read(HEADER.size):
                    label, nbytes = HEADER.unpack(header)
                    columns.append((number, file.tell(), nbytes))
                    labels.append(label)
                    file.seek(nbytes, 1)
        ranges = ByteRanges(files, *zip(*columns, strict=True))
        super().__init__(ranges, labels, transform=transform, names=RecordNames())


class RecordNames:
    """What messages call a sample: ``train-1.rec: record at byte 4096``."""

    def name(self, file: str, offset: int, item: int) -> str:
        return f"{Path(file).name}: record at byte {offset - HEADER.size}"


def write_records(images: int, files: int) -> list[Path]:
    """Writes the sample images to files of records, in turn."""
    folder = image_folder(images)
    parts = [bytearray() for _ in range(files)]
    for number, path in enumerate(sorted(folder.glob("*/*.jpg"))):
        data, label = path.read_bytes(), int(path.parent.name.removeprefix("class"))
        parts[number % files] += HEADER.pack(label, len(data)) + data
    paths = [folder.with_name(f"{folder.name}-{number}.rec") for number in range(files)]
    for path, part in zip(paths, parts, strict=True):
        path.write_bytes(part)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=200, help="images to make (200)")
    options = parser.parse_args()
    steps = [transforms.RandomResizedCrop(32), transforms.ToTensor()]
    records = Records(write_records(options.images, files=3), transforms.Compose(steps))
    loader: FusionLoader[Any] = FusionLoader(records, 16, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        loss = torch.zeros(())
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    print(loader.explain())


if __name__ == "__main__":
    main()

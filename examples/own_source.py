"""Your own source: JPEGs in large files of records, read and decoded natively.

python examples/own_source.py
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from sample_images import data_folder, parser_of
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.data.sources import ByteRanges, EncodedImages

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


def write_records(images: ImageFolder, folder: Path, files: int) -> list[Path]:
    """Writes the images to files of records, in turn."""
    parts = [bytearray() for _ in range(files)]
    for number, (path, label) in enumerate(images.samples):
        data = Path(path).read_bytes()
        parts[number % files] += HEADER.pack(label, len(data)) + data
    paths = [folder / f"{number}.rec" for number in range(files)]
    for path, part in zip(paths, parts, strict=True):
        path.write_bytes(part)
    return paths


def main() -> None:
    parser = parser_of(__doc__)
    options = parser.parse_args()
    steps = [transforms.RandomResizedCrop(32), transforms.ToTensor()]
    images = ImageFolder(data_folder(options))
    with TemporaryDirectory() as folder:
        paths = write_records(images, Path(folder), files=3)
        train(Records(paths, transforms.Compose(steps)), len(images.classes))


def train(records: Records, classes: int) -> None:
    loader: FusionLoader[Any] = FusionLoader(records, 16, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, classes))
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

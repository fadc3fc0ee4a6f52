"""Parquet files, unpacked once for all jobs of the machine.

python examples/shards_parquet.py
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sample_images import data_folder, parser_of
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.data.sources import ParquetImages

TRAIN = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])


def write(images: ImageFolder, folder: str, rows: int) -> None:
    """Writes files of so many rows."""
    for first in range(0, len(images), rows):
        samples = images.samples[first : first + rows]
        data = [Path(path).read_bytes() for path, _ in samples]
        table = pa.table({"image": data, "label": [target for _, target in samples]})
        pq.write_table(table, f"{folder}/{first:06}.parquet")


def main() -> None:
    parser = parser_of(__doc__)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        write(ImageFolder(str(data_folder(options))), folder, 50)
        for time_of in ("first", "second"):
            started = time.perf_counter()
            images = ParquetImages(
                f"{folder}/*.parquet", transform=TRAIN, unpack_to=f"{folder}/unpacked"
            )
            print(f"opened the {time_of} time in {time.perf_counter() - started:.3f} s")
        loader: FusionLoader[Any] = FusionLoader(images, 10, shuffle=True, num_workers=2)
        print(f"{sum(len(targets) for _, targets in loader)} samples, such as {images.name(0)}")


if __name__ == "__main__":
    main()

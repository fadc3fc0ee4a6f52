"""How long does it take to unpack Parquet files once, and how fast are epochs then?

Against the same files in a folder, both shuffled. The files are written as ``datasets`` and Spark
write them by default: without compression, and with snappy.
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torchvision.datasets import ImageFolder

from benchmarks.breadth import contender
from benchmarks.study import compare, parser_of, publish, ratio_rows
from fusionloader import FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.report import announce
from fusionloader.cli.measure.workloads import pil_dataset
from fusionloader.data.sources import ParquetImages

_ROWS = 500  # of a file


def write(images: ImageFolder, folder: Path, compression: str) -> int:
    """Writes the files of a folder to Parquet files; returns their bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    for first in range(0, len(images.samples), _ROWS):
        samples = images.samples[first : first + _ROWS]
        data = [Path(path).read_bytes() for path, _ in samples]
        table = pa.table({"image": data, "label": [target for _, target in samples]})
        path = folder / f"{first:08}.parquet"
        pq.write_table(table, path, compression=compression, row_group_size=100)
    return sum(path.stat().st_size for path in folder.iterdir())


def unpacked(folder: Path, transform: Any, times: dict[str, dict[str, float]]) -> ParquetImages:
    """Returns the images; adds the seconds that opening takes, first and again, to ``times``."""
    taken = []
    for _ in range(2):
        started = time.perf_counter()
        images = ParquetImages(
            folder / "*.parquet", transform=transform, unpack_to=folder / "unpacked"
        )
        taken.append(time.perf_counter() - started)
    nbytes = int(images.byte_ranges().nbytes.sum())
    times[folder.name] = {
        "first_seconds": taken[0],
        "again_seconds": taken[1],
        "megabytes": nbytes / 1e6,
        "megabytes_per_second": nbytes / 1e6 / taken[0],
    }
    return images


def main() -> None:
    parser = parser_of(__doc__.splitlines()[0] if __doc__ else None, rounds=5)
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    images = pil_dataset(setting.folder(), "default")
    contenders = [contender("folder", FusionLoader, images, options)]
    times: dict[str, dict[str, float]] = {}
    with TemporaryDirectory() as root:
        for compression in ("none", "snappy"):
            folder = Path(root, compression)
            write(images, folder, compression)
            found = unpacked(folder, images.transform, times)
            contenders.append(contender(f"parquet, {compression}", FusionLoader, found, options))
        told = compare(contenders, options)
    for compression, taken in times.items():
        announce(f"unpacking {compression}: {taken['megabytes_per_second']:,.0f} MB/s")
    header = ("read from", "images/s", "x folder", "CPU s / 1,000")
    publish(options, header, ratio_rows(told), contenders=told, unpacking=times, corpus=corpus)


if __name__ == "__main__":
    main()

"""How fast are shuffled tar archives, against a folder and ``webdataset``, and indexing them?

``--gigabytes`` of archives, with holes for the images, are indexed for the second figure.
"""

from __future__ import annotations

import io
import tarfile
import time
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from benchmarks.breadth import contender
from benchmarks.study import compare, parser_of, publish, ratio_rows
from fusionloader import FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.report import announce
from fusionloader.cli.measure.workloads import pil_dataset
from fusionloader.data.sources import TarFolder

_SAMPLES = 250  # of an archive
_IMAGE_BYTES = 110_000  # of those with holes, as ImageNet has on average
_MOST_SAMPLES = 20_000  # of those, which have several names so that they need little room


def write(images: ImageFolder, folder: Path) -> list[str]:
    """Writes the files of a folder to archives, with the class beside each image."""
    paths = []
    for first in range(0, len(images.samples), _SAMPLES):
        path = folder / f"train-{first // _SAMPLES:04}.tar"
        paths.append(str(path))
        with tarfile.open(path, "w") as archive:
            for number, (name, target) in enumerate(
                images.samples[first : first + _SAMPLES], first
            ):
                parts = {"jpg": Path(name).read_bytes(), "cls": b"%d" % target}
                for kind, data in parts.items():
                    header = tarfile.TarInfo(f"{number:08}.{kind}")
                    header.size = len(data)
                    archive.addfile(header, io.BytesIO(data))
    return paths


def write_holes(folder: Path, gigabytes: float) -> int:
    """Writes an archive of headers and classes, with holes for images, under several names.

    Returns the bytes of all of them.
    """
    samples = min(_MOST_SAMPLES, int(gigabytes * 1e9 / _IMAGE_BYTES))
    first = folder / "holes-0000.tar"
    with open(first, "wb") as archive:
        for sample in range(samples):
            for kind, data, nbytes in (("jpg", b"", _IMAGE_BYTES), ("cls", b"17", 2)):
                header = tarfile.TarInfo(f"{sample:08}.{kind}")
                header.size = nbytes
                archive.write(header.tobuf(tarfile.USTAR_FORMAT) + data)
                archive.seek(-(-nbytes // 512) * 512 - len(data), io.SEEK_CUR)
        archive.write(bytes(1024))
        nbytes = archive.tell()
    names = max(1, round(gigabytes * 1e9 / nbytes))
    for number in range(1, names):
        (folder / f"holes-{number:04}.tar").hardlink_to(first)
    return names * nbytes


def indexing(gigabytes: float) -> dict[str, float]:
    """Returns the seconds to index archives, and to open them again."""
    with TemporaryDirectory() as root:
        nbytes = write_holes(Path(root), gigabytes)
        taken = []
        for _ in range(2):
            started = time.perf_counter()
            samples = len(TarFolder(root))
            taken.append(time.perf_counter() - started)
    return {
        "bytes": nbytes,
        "samples": samples,
        "first_seconds": taken[0],
        "again_seconds": taken[1],
    }


def web_dataset(paths: list[str], transform: Any) -> Any:
    """Returns the archives as webdataset's documentation reads them."""
    import webdataset

    whole = webdataset.WebDataset(paths, shardshuffle=100).shuffle(1000).decode("pil")
    return whole.to_tuple("jpg", "cls").map_tuple(transform, None)


def contenders_of(images: ImageFolder, folder: Path, options: Namespace) -> list[Any]:
    """Returns what is compared."""
    paths = write(images, folder)
    found = TarFolder(paths, transform=images.transform)
    stream = web_dataset(paths, images.transform)
    return [
        contender("folder", FusionLoader, images, options),
        contender("TarFolder", FusionLoader, found, options),
        contender("webdataset + torch", DataLoader, stream, options),
    ]


def main() -> None:
    parser = parser_of(__doc__.splitlines()[0] if __doc__ else None, rounds=5)
    parser.add_argument("--gigabytes", type=float, default=100, help="to index (100)")
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    images = pil_dataset(setting.folder(), "default")
    with TemporaryDirectory() as root:
        contenders = contenders_of(images, Path(root), options)
        told = compare(contenders, options)
    taken = indexing(options.gigabytes)
    announce(f"indexing {taken['bytes'] / 1e9:.0f} GB: {taken['first_seconds']:.1f} s")
    header = ("read from", "images/s", "x folder", "CPU s / 1,000")
    publish(options, header, ratio_rows(told), contenders=told, indexing=taken, corpus=corpus)


if __name__ == "__main__":
    main()

"""Images in LMDB; MDS and LitData folders are opened in the same way.

python examples/shards_folders.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lmdb
from sample_images import data_folder, parser_of
from torch.utils.data import Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.data.sources import LMDBImages

TRAIN = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])


def write(images: ImageFolder, folder: str) -> None:
    with lmdb.open(folder, map_size=1 << 30) as made, made.begin(write=True) as transaction:
        for number, (path, target) in enumerate(images.samples):
            transaction.put(b"image-%09d" % number, Path(path).read_bytes())
            transaction.put(b"label-%09d" % number, b"%d" % target)


def main() -> None:
    parser = parser_of(__doc__)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        write(ImageFolder(str(data_folder(options))), folder)
        # MDSImages(folder) and LitDataImages(folder) stand for folders of those.
        images = LMDBImages(folder, image="image-*", target="label-*", transform=TRAIN)
        half = Subset(images, range(len(images) // 2))
        loader: FusionLoader[Any] = FusionLoader(half, 10, shuffle=True, num_workers=2)
        print(f"{sum(len(targets) for _, targets in loader)} of {len(images)} samples")
        print(f"the last one is {images.name(len(images) - 1)}")


if __name__ == "__main__":
    main()

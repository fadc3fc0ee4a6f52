"""WebDataset's tar archives, shuffled, and resumed in the middle of an epoch.

python examples/shards_tar.py
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sample_images import data_folder, parser_of
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.data.sources import TarFolder

TRAIN = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])


def write(images: ImageFolder, folder: str, samples: int) -> None:
    """Writes archives of so many samples, each an image and the name of its class."""
    for first in range(0, len(images), samples):
        with tarfile.open(f"{folder}/train-{first // samples:03}.tar", "w") as archive:
            for number, (path, target) in enumerate(images.samples[first : first + samples]):
                parts = {"jpg": Path(path).read_bytes(), "cls": images.classes[target].encode()}
                for kind, data in parts.items():
                    member = tarfile.TarInfo(f"{number:06}.{kind}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))


def main() -> None:
    parser = parser_of(__doc__)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        write(ImageFolder(str(data_folder(options))), folder, 25)
        images = TarFolder(f"{folder}/train-*.tar", transform=TRAIN)
        print(f"{len(images)} samples of the classes {', '.join(images.classes or [])}")
        loader: FusionLoader[Any] = FusionLoader(images, 10, shuffle=True, num_workers=2)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        resumed: FusionLoader[Any] = FusionLoader(images, 10, shuffle=True, num_workers=2)
        resumed.load_state_dict(state)
        print(f"resumed: {sum(len(targets) for _, targets in resumed)} samples were left")
        print(loader.explain())


if __name__ == "__main__":
    main()

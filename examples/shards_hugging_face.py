"""A Hugging Face dataset, decoded and transformed natively from its Arrow files.

python examples/shards_hugging_face.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from datasets import ClassLabel, Dataset, Features, Image, load_from_disk
from sample_images import data_folder, parser_of
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.data.sources import from_hugging_face

TRAIN = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])


def write(images: ImageFolder, folder: str) -> None:
    columns = {
        "photo": [{"bytes": Path(path).read_bytes(), "path": None} for path, _ in images.samples],
        "label": images.targets,
    }
    features = Features({"photo": Image(), "label": ClassLabel(names=images.classes)})
    Dataset.from_dict(columns, features=features).save_to_disk(folder)


def main() -> None:
    parser = parser_of(__doc__)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        write(ImageFolder(str(data_folder(options))), folder)
        rows = load_from_disk(folder).shuffle(seed=0).select(range(options.images // 2))
        images = from_hugging_face(rows, TRAIN, image="photo")
        loader: FusionLoader[Any] = FusionLoader(images, 10, shuffle=True, num_workers=2)
        for epoch in range(2):
            print(f"epoch {epoch + 1}: {sum(len(targets) for _, targets in loader)} samples")
        print(loader.explain())


if __name__ == "__main__":
    main()

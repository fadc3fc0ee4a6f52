"""How fast is a Hugging Face dataset with the same transforms, read four ways?

By ``datasets`` and torch's loader; the same dataset in FusionLoader, as it is; its images by
``from_hugging_face``; and the same files in a folder.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from benchmarks.breadth import contender
from benchmarks.study import compare, parser_of, publish, ratio_rows
from fusionloader import FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.workloads import pil_dataset
from fusionloader.data.sources import from_hugging_face


def rows_of(images: ImageFolder, folder: Path) -> Any:
    """Returns a ``datasets.Dataset`` on disk with the bytes of the files."""
    import datasets

    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=images.classes)}
    )

    def rows() -> Any:
        for path, target in images.samples:
            yield {"image": {"bytes": Path(path).read_bytes(), "path": None}, "label": target}

    made = datasets.Dataset.from_generator(rows, features=features, cache_dir=str(folder / "made"))
    made.save_to_disk(str(folder / "rows"))
    return datasets.load_from_disk(str(folder / "rows"))


def main() -> None:
    parser = parser_of(__doc__.splitlines()[0] if __doc__ else None, rounds=5)
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    images = pil_dataset(setting.folder(), "default")

    def transformed(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        pictures = [images.transform(image.convert("RGB")) for image in rows["image"]]
        return {"image": pictures, "label": rows["label"]}

    with TemporaryDirectory() as root:
        rows = rows_of(images, Path(root))
        whole = rows.with_transform(transformed)
        ranges = from_hugging_face(rows, images.transform)
        contenders = [
            contender("datasets + torch", DataLoader, whole, options),
            contender("datasets + fusionloader", FusionLoader, whole, options),
            contender("from_hugging_face", FusionLoader, ranges, options),
            contender("folder", FusionLoader, images, options),
        ]
        told = compare(contenders, options)
    header = ("read by", "images/s", "x", "CPU s / 1,000")
    publish(options, header, ratio_rows(told, 2), contenders=told, corpus=corpus)


if __name__ == "__main__":
    main()

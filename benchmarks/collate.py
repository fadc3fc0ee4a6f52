"""What do collate functions that people write leave of the speed? JPEG files, both loaders.

Beside the cost of a batch alone (``whole_batches.py``) these samples have to be read, decoded and
augmented. MixUp is measured twice: in ``collate_fn``, and in the training loop, which leaves the
samples to native workers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from benchmarks.study import compare, parser_of, publish
from fusionloader import FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.contenders import close_loader
from fusionloader.cli.measure.protocol import Contender, Running
from fusionloader.cli.measure.report import announce
from fusionloader.cli.measure.workloads import pil_dataset

ORDER_SEED = 3
_DETECTION = v2.Compose(
    [v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
)


class Kind(NamedTuple):
    """A dataset, its ``collate_fn``, and what the training loop does with a batch."""

    dataset: Dataset[Any]
    collate_fn: Callable[[list[Any]], Any] | None
    in_loop: Callable[[Any], Any] = lambda batch: batch


class Boxes(Dataset[Any]):
    """Images of their own sizes with boxes, as for torchvision's detectors."""

    def __init__(self, files: ImageFolder) -> None:
        self.paths = [path for path, _ in files.samples]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = _DETECTION(Image.open(self.paths[index]).convert("RGB"))
        count = 1 + index % 5
        return image, {"boxes": torch.ones(count, 4), "labels": torch.ones(count, dtype=torch.long)}


class Rows(Dataset[Any]):
    """Dictionaries, as models of transformers take them."""

    def __init__(self, images: ImageFolder) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        pixels, label = self.images[index]
        return {"pixel_values": pixels, "labels": label}


def _lists(samples: list[Any]) -> Any:
    return tuple(zip(*samples, strict=True))


def kinds(folder: Path) -> dict[str, Kind]:
    """Returns the kinds by name, on an image folder."""
    from timm.data import create_transform
    from timm.data.loader import fast_collate
    from transformers import default_data_collator

    images = pil_dataset(folder, "default")
    mix = v2.MixUp(num_classes=len(images.classes))
    timm = create_transform(224, is_training=True, use_prefetcher=True)
    return {
        "stacked": Kind(images, lambda samples: default_collate(samples)),
        "MixUp": Kind(images, lambda samples: mix(*default_collate(samples))),
        "MixUp in the loop": Kind(images, None, lambda batch: mix(*batch)),
        "timm": Kind(ImageFolder(str(folder), timm), fast_collate),
        "detection": Kind(Boxes(images), _lists),
        "transformers": Kind(Rows(images), default_data_collator),
    }


def contender(name: str, loader_type: Any, kind: Kind, options: Any) -> Contender:
    """Returns a loader over data of a kind as a contender."""

    def start() -> Running:
        loader = loader_type(
            kind.dataset,
            options.batch_size,
            shuffle=True,
            num_workers=options.workers,
            collate_fn=kind.collate_fn,
            persistent_workers=True,
            drop_last=True,
            generator=torch.Generator().manual_seed(ORDER_SEED),
        )

        def batches() -> Any:
            for batch in loader:
                kind.in_loop(batch)
                yield options.batch_size

        return Running(batches, lambda: close_loader(loader))

    return Contender(name, name, start)


def main() -> None:
    parser = parser_of(__doc__.splitlines()[0] if __doc__ else None, rounds=5)
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of kinds")
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    made, rows, figures = kinds(setting.folder()), [], {}
    for name in options.only or made:
        types = {"torch": DataLoader, "fusionloader": FusionLoader}
        loaders = [contender(*each, made[name], options) for each in types.items()]
        announce(f"---- {name}")
        told = compare(loaders, options)
        figures[name] = told
        cpu = [each["cpu_seconds_per_1000"] for each in told]
        rows.append((name, f"{told[1]['ratio']:.2f}", *(f"{each:.2f}" for each in cpu)))
    header = ("kind", "x", "torch ms/sample", "ms/sample")  # of processor time
    publish(options, header, rows, kinds=figures, corpus=corpus)


if __name__ == "__main__":
    main()

"""What does a batch of a custom collate_fn cost? torch's loader and ours.

The samples take next to nothing to make: what is measured is how batches come about and cross.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from benchmarks.study import compare, parser_of, publish
from fusionloader import FusionLoader
from fusionloader.cli.measure.contenders import close_loader
from fusionloader.cli.measure.protocol import Contender, Running
from fusionloader.cli.measure.report import announce


class Made(Dataset[Any]):
    """A dataset whose samples a function makes of their indices."""

    def __init__(self, make: Callable[[int], Any], length: int) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Kind(NamedTuple):
    """Samples, how many of them make a batch, and how."""

    make: Callable[[int], Any]
    length: int
    batch_size: int
    collate_fn: Callable[[list[Any]], Any]


def _text(index: int) -> Any:
    return torch.arange(20 + index % 100), index


def _padded(samples: list[Any]) -> Any:
    texts, labels = zip(*samples, strict=True)
    return pad_sequence(texts, batch_first=True), torch.tensor(labels)


def _detection(index: int) -> Any:
    count = 3 + index % 5
    target = {
        "boxes": torch.rand(count, 4),
        "labels": torch.ones(count, dtype=torch.int64),
        "area": torch.rand(count),
        "iscrowd": torch.zeros(count),
        "image_id": torch.tensor(index),
        "masks": torch.zeros(count, 16, 16, dtype=torch.uint8),
    }
    return torch.rand(3, 64, 64), target


def _lists(samples: list[Any]) -> Any:
    return tuple(zip(*samples, strict=True))


def _table(index: int) -> Any:
    return {"a": float(index), "b": [index] * 3}


def _columns(samples: list[Any]) -> Any:
    return torch.tensor([each["a"] for each in samples]), torch.tensor(
        [each["b"] for each in samples]
    )


def _image(index: int) -> Any:
    return torch.full((3, 160, 160), float(index)), index


def _stacked(samples: list[Any]) -> Any:
    images, labels = zip(*samples, strict=True)
    return torch.stack(images), torch.tensor(labels)


KINDS = {
    "text": Kind(_text, 6000, 32, _padded),
    "detection": Kind(_detection, 1600, 16, _lists),
    "tabular": Kind(_table, 20000, 16, _columns),
    "images": Kind(_image, 1200, 32, _stacked),
    "strings": Kind(lambda index: "x" * 65536, 1600, 16, list),
}
"""Texts of varying length that are padded; images with boxes, as lists of tensors; numbers; images
that are stacked; 1 MB of strings a batch."""


def contender(name: str, loader_type: Any, kind: Kind, workers: int) -> Contender:
    """Returns a loader over data of a kind as a contender."""

    def start() -> Running:
        loader = loader_type(
            Made(kind.make, kind.length),
            kind.batch_size,
            num_workers=workers,
            collate_fn=kind.collate_fn,
            persistent_workers=True,
        )
        return Running(lambda: (kind.batch_size for _ in loader), lambda: close_loader(loader))

    return Contender(name, name, start)


def main() -> None:
    parser = parser_of(__doc__.splitlines()[0] if __doc__ else None, rounds=7)
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of kinds")
    options = parser.parse_args()
    rows, figures = [], {}
    for name in options.only or KINDS:
        kind = KINDS[name]
        types = {"torch": DataLoader, "fusionloader": FusionLoader}
        loaders = [contender(*each, kind, options.workers) for each in types.items()]
        announce(f"---- {name}")
        told = compare(loaders, options)
        figures[name] = told
        batch = (each["cpu_seconds_per_1000"] * 1000 * kind.batch_size for each in told)
        rows.append((name, f"{told[1]['ratio']:.2f}", *(f"{us:,.0f}" for us in batch)))
    publish(options, ("kind", "x", "torch us/batch", "us/batch"), rows, kinds=figures)


if __name__ == "__main__":
    main()

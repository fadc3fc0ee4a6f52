"""What the code of pages speaks of and does not make itself.

``common()`` is for all pages, ``of_page()`` for what one of them needs besides. They return names
for the page's namespace, and write files to the current folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from support.images import eval_transform, photo, train_transform
from support.s3_server import s3_with
from support.tar_shards import image_shards

Names = dict[str, Any]
IMAGES = 24


def common() -> Names:
    """An image folder of two classes, and what is usually made of one."""
    import torch
    from torchvision.datasets import ImageFolder

    root = _folder(Path("photos"))
    transform = train_transform()
    dataset = ImageFolder(str(root), transform)
    jpeg = (root / "class0" / "000.jpg").read_bytes()
    return {
        "root": str(root),
        "transform": transform,
        "other_transform": eval_transform(),
        "dataset": dataset,
        "train_set": dataset,
        "val_set": dataset,
        "paths": [path for path, _ in dataset.samples],
        "targets": dataset.targets,
        "jpeg": jpeg,
        "content": jpeg,
        "list_of_jpegs": [Path(path).read_bytes() for path, _ in dataset.samples],
        "model": torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2)),
        "train_one_epoch": _train_one_epoch,
        "epochs": 2,
        "step": 0,
        "rank": 0,
    }


def _folder(root: Path) -> Path:
    generator = np.random.default_rng(0)
    for number in range(IMAGES):
        folder = root / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        photo(generator, 96, 72).save(folder / f"{number:03}.jpg", quality=90)
    return root


def _train_one_epoch(loader: Any) -> None:
    for _ in loader:
        pass


def of_page(page: str, names: Names, until_the_end: ExitStack) -> Names:
    """What one page needs; ``names`` are the common ones."""
    if page == "docs/guide/streams.md":
        until_the_end.enter_context(_bucket())
    return _PAGES.get(page, lambda names: {})(names)


def _decoders(names: Names) -> Names:
    import own_decoder

    return vars(own_decoder)


def _inference(names: Names) -> Names:
    return {"transform": eval_transform()}


def _iterable_pipelines(names: Names) -> Names:
    return {"shards": _tar_shards(count=8)}


def _samplers(names: Names) -> Names:
    from torch.utils.data import Subset

    _tar_shards(count=147)
    dataset = names["dataset"]
    return {
        "lengths": [5 + 7 * number % 90 for number in range(len(dataset))],
        "photos": Subset(dataset, range(16)),
        "scans": Subset(dataset, range(16, len(dataset))),
    }


def _shards(names: Names) -> Names:
    _tar_shards(count=147)
    return {}


def _sources(names: Names) -> Names:
    import own_source

    offsets, sizes = [], []
    contents = [Path(path).read_bytes() for path in names["paths"]]
    for shard in range(2):
        offset = 0
        for content in contents[shard::2]:
            offsets.append(offset)
            sizes.append(len(content))
            offset += len(content)
        Path(f"train-{shard}.bin").write_bytes(b"".join(contents[shard::2]))
    half = len(contents) // 2
    columns = {"file": [0] * half + [1] * half, "offset": offsets, "nbytes": sizes}
    return {**vars(own_source), **columns}


@contextmanager
def _bucket() -> Iterator[None]:
    """The page's bucket, in a server on the loopback device."""
    shards = {Path(path).name: Path(path).read_bytes() for path in _tar_shards(count=147)}
    with s3_with(shards, bucket="bucket") as server:
        os.environ.update(server.environment)
        yield


def _transforms(names: Names) -> Names:
    return {"image": photo(np.random.default_rng(0), 640, 480)}


def _where_it_runs(names: Names) -> Names:
    return {"save_a_checkpoint": lambda number, frame: None}


def _validation(names: Names) -> Names:
    def train(model: Any, loader: Any) -> None:
        for images, _ in loader:
            model(images)

    return {"train": train}


_PAGES: dict[str, Callable[[Names], Names]] = {
    "docs/scale/gpu_decoders.md": _decoders,
    "docs/guide/inference.md": _inference,
    "docs/guide/iterable_pipelines.md": _iterable_pipelines,
    "docs/guide/samplers.md": _samplers,
    "docs/guide/shards.md": _shards,
    "docs/guide/sources.md": _sources,
    "docs/guide/transforms.md": _transforms,
    "docs/scale/validation.md": _validation,
    "docs/guide/where_it_runs.md": _where_it_runs,
}


def _tar_shards(count: int) -> list[str]:
    """Archives ``train-000.tar``, ... of an image and a target each."""
    paths = []
    for name, content in image_shards([1] * count).items():
        Path(name).write_bytes(content)
        paths.append(name)
    return paths

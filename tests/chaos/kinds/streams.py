"""Images in tar archives behind URLs, which a process reads ahead."""

from __future__ import annotations

from pathlib import Path

from support.images import train_transform
from support.tar_shards import image_shards

from chaos.kinds.image_plans import epochs_of
from chaos.kinds.setting import BATCH, EpochKind, Epochs, Part, Setting, order_of
from fusionloader import FusionLoader
from fusionloader.data.sources import TarStream

_COUNTS = (20, 3, 17)


def _shards(setting: Setting) -> Epochs:
    folder = Path(setting.folder) / "shards"
    folder.mkdir(exist_ok=True)
    for name, data in image_shards(_COUNTS).items():
        (folder / name).write_bytes(data)
    url = f"file://{folder}/train-{{000..002}}.tar"
    dataset = TarStream(url, transform=train_transform(), retries=1)
    order = order_of(len(dataset))
    workers = 0 if setting.plain else 2
    options = {"num_workers": workers, "seed": 5, "in_order": setting.in_order}
    return epochs_of(Part(FusionLoader(dataset, BATCH, sampler=order, **options), order))


KINDS = (EpochKind("tar shards behind URLs", _shards, in_suite=True, needs=("fsspec",)),)

"""Several training processes: ranks that share workers, jobs that share their preparation."""

from __future__ import annotations

import torch.distributed
from support.images import train_transform
from support.waiting import PATIENCE

from chaos.kinds.image_plans import epochs_of, images_of, part_of
from chaos.kinds.setting import EpochKind, Epochs, Setting


def _rank(setting: Setting) -> Epochs:
    number = setting.rank
    dataset = images_of(setting, train_transform(160))  # so large that a rank waits for workers
    if setting.plain:
        return epochs_of(part_of(dataset, setting, number, num_workers=1, global_manager="off"))
    torch.distributed.init_process_group("gloo")
    made = epochs_of(part_of(dataset, setting, number, num_workers=1, timeout=PATIENCE))

    def close() -> None:
        made.close()
        torch.distributed.destroy_process_group()

    return Epochs(made.parts, close)


def job(setting: Setting) -> Epochs:
    share = None if setting.plain else f"chaos-{setting.word}"
    options = {"num_workers": 1, "share": share, "prefetch_factor": 4}
    return epochs_of(part_of(images_of(setting), setting, 0, **options))


KINDS = (
    EpochKind("ranks", _rank, processes=2, leaves=1),  # gloo's pipe
    EpochKind("jobs that share preparation", job, processes=2),
)

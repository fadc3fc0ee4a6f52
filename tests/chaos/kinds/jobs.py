"""Several training processes: ranks that share workers, jobs that share their preparation."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.distributed
from support.images import train_transform
from support.waiting import PATIENCE
from torchvision import transforms

from chaos.kinds.image_plans import Tail, epochs_of, images_of, part_of
from chaos.kinds.setting import EpochKind, Epochs, Setting
from chaos.kinds.user_code import Collate, noise_part

_SIZE = 160  # so large that a rank waits for workers


def _rank_of(setting: Setting, transform: Any, **options: Any) -> Epochs:
    number = setting.rank
    part = partial(part_of, images_of(setting, transform), setting, number, **options)
    if setting.plain:
        return epochs_of(part(num_workers=1, global_manager="off"))
    torch.distributed.init_process_group("gloo")
    made = epochs_of(part(num_workers=1, timeout=PATIENCE, global_manager="all"))

    def close() -> None:
        made.close()
        torch.distributed.destroy_process_group()

    return Epochs(made.parts, close)


def _rank(setting: Setting) -> Epochs:
    return _rank_of(setting, train_transform(_SIZE))


def _rank_in_python(setting: Setting) -> Epochs:
    steps = [train_transform(_SIZE), Tail(setting.folder)]
    return _rank_of(setting, transforms.Compose(steps))


def _rank_of_whole_batches(setting: Setting) -> Epochs:
    collate = Collate(setting.folder)
    return _rank_of(setting, train_transform(_SIZE), collate_fn=collate)


def job(setting: Setting) -> Epochs:
    return epochs_of(part_of(images_of(setting), setting, 0, **_shared(setting)))


def _job_of_user_code(setting: Setting) -> Epochs:
    return epochs_of(noise_part(setting, worker_init_fn=None, **_shared(setting)))


def _job_of_whole_batches(setting: Setting) -> Epochs:
    collate = Collate(setting.folder)
    options = {"worker_init_fn": None, "collate_fn": collate, **_shared(setting)}
    return epochs_of(noise_part(setting, **options))


def _shared(setting: Setting) -> dict[str, Any]:
    share = None if setting.plain else f"chaos-{setting.word}"
    return {"num_workers": 1, "share": share, "prefetch_factor": 4}


_RANKS: dict[str, Any] = {
    "processes": 2,
    "ranks": True,
    "made_by": "samples by borrowed workers",
    "leaves": 1,  # gloo's pipe
}
_JOBS: dict[str, Any] = {"processes": 2, "made_by": "batches by jobs together"}

KINDS = (
    EpochKind("ranks", _rank, **_RANKS),
    EpochKind("ranks with Python workers", _rank_in_python, **_RANKS),
    EpochKind("ranks with whole batches", _rank_of_whole_batches, **_RANKS),
    EpochKind("jobs that share preparation", job, **_JOBS),
    EpochKind("jobs that share user code", _job_of_user_code, **_JOBS),
    EpochKind("jobs that share whole batches", _job_of_whole_batches, **_JOBS),
)

"""A GPU worker on its decoder's CPU backend beside CPU workers."""

from __future__ import annotations

from torchvision import transforms

from chaos.kinds.image_plans import epochs_of, helped, images_of, part_of
from chaos.kinds.setting import EpochKind, Epochs, Setting
from fusionloader import GpuWorker


def _worker(setting: Setting) -> Epochs:
    worker = GpuWorker(device="cpu", sharing="spatial", decoder="torchvision")
    # Of which the decoders of both ends make the same pixels.
    crop = transforms.Compose([transforms.CenterCrop(24), transforms.PILToTensor()])
    options = {"gpu_worker": None if setting.plain else worker, "persistent_workers": True}
    made = epochs_of(part_of(images_of(setting, crop), setting, **options))
    return made if setting.plain else helped(made, lambda stats: stats.gpu_worker["samples"])


KINDS = (EpochKind("GPU worker", _worker, in_suite=True, made_by="samples by GPU workers"),)

"""timm: ``create_loader`` with timm's arguments, which returns FusionLoaders."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from timm.data import ImageDataset
from timm.data import loader as timm_loader
from timm.data.readers.reader_image_folder import ReaderImageFolder
from torch.utils.data import IterableDataset, default_collate
from torchvision.datasets import DatasetFolder
from torchvision.datasets.folder import default_loader

from fusionloader.addons.integrations.rebuild import EXTRA_ARGUMENTS, fusion_of
from fusionloader.options.loader_options import WorkerPool

__all__ = ["create_loader"]

# ``device`` is timm's as well.
_EXTRA = tuple(name for name in EXTRA_ARGUMENTS if name != "device")


def create_loader(*arguments: Any, **keywords: Any) -> Any:
    """Returns the result of ``timm.data.create_loader``, with a FusionLoader inside.

    It takes timm's arguments and those that FusionLoader has beyond DataLoader's. With
    ``use_prefetcher`` timm normalises and erases on the device, and collates in every worker.
    FusionLoader's workers do both while they write a sample. The prefetcher is therefore used only
    for a custom ``collate_fn`` (mixup), augmentation splits and scheduled sizes.

    Raises:
        ValueError: an argument of ``FusionLoader`` is wrong, for example if ``num_workers`` is not
            the pool's.
    """
    # Its endless sampler is counted by its class alone, and persistent workers do what it is for.
    keywords.pop("use_multi_epochs_loader", None)
    options = {name: keywords.pop(name) for name in _EXTRA if name in keywords}
    if isinstance(pool := options.get("pool"), WorkerPool):
        bound = inspect.signature(timm_loader.create_loader).bind(*arguments, **keywords)
        if "num_workers" not in bound.arguments:  # timm's default is a number, too
            keywords["num_workers"] = pool.num_workers
    if _direct(keywords):
        device = keywords.pop("device", torch.device("cuda"))
        dtype = keywords.pop("img_dtype", torch.float32)
        created = timm_loader.create_loader(*arguments, **keywords | {"use_prefetcher": False})
        if dtype != torch.float32:
            _convert_to(created.dataset, dtype)
        if not isinstance(created.dataset, IterableDataset):  # a stream replaces no sample
            options = {"on_error": "substitute"} | options  # as timm takes the next image
        changes = {"device": device, "collate_fn": default_collate, "worker_init_fn": None}
        if _is_folder(created.dataset):
            changes["dataset"] = FolderOfTimm(created.dataset)
        return fusion_of(created, **changes, **options)
    created = timm_loader.create_loader(*arguments, **keywords)
    if isinstance(created, timm_loader.PrefetchLoader):
        created.loader = fusion_of(created.loader, **options)
        return created
    return fusion_of(created, **options)


class FolderOfTimm(DatasetFolder):  # type: ignore[misc]
    """The files of timm's reader as a ``DatasetFolder``, which is compiled."""

    def __init__(self, images: ImageDataset) -> None:
        self._images = images
        self.root = images.reader.root
        self.loader = default_loader
        self.samples = images.reader.samples
        self.targets = [target for _, target in self.samples]
        self.class_to_idx = images.reader.class_to_idx
        self.classes = list(self.class_to_idx)
        self.transform = images.transform
        self.target_transform = images.target_transform

    def __getattr__(self, name: str) -> Any:
        if name == "_images":  # not set yet: the object is being unpickled
            raise AttributeError(name)
        return getattr(self._images, name)


def _is_folder(dataset: Any) -> bool:
    if type(dataset) is not ImageDataset or type(dataset.reader) is not ReaderImageFolder:
        return False
    plain = dataset.input_img_mode == "RGB" and not dataset.load_bytes
    return plain and dataset.additional_features is None


def _direct(keywords: dict[str, Any]) -> bool:
    needs_prefetcher = ("collate_fn", "input_size_choices", "num_aug_splits", "fp16", "re_split")
    return keywords.get("use_prefetcher", True) and not any(
        keywords.get(name) for name in needs_prefetcher
    )


def _convert_to(dataset: Any, dtype: torch.dtype) -> None:
    if isinstance(dataset, IterableDataset):
        raise ValueError(f"img_dtype = {dtype} of a stream needs collate_fn = timm's fast_collate")
    from torchvision.transforms import v2

    dataset.transform.transforms.append(v2.ToDtype(dtype))

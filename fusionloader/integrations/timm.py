"""timm: ``create_loader`` with timm's arguments, that returns FusionLoaders."""

from __future__ import annotations

from typing import Any

import torch
from timm.data import loader as timm_loader
from torch.utils.data import IterableDataset, default_collate

from fusionloader.integrations.rebuild import fusion_of

# FusionLoader's own arguments that make sense here; ``device`` is timm's.
_OWN = ("tiny_batch_size", "gpu_worker", "seed", "decode", "on_error", "augment_per")


def create_loader(*arguments: Any, **keywords: Any) -> Any:
    """Returns what ``timm.data.create_loader`` would, made of a FusionLoader.

    All arguments are timm's, and FusionLoader's own beside them. With ``use_prefetcher`` timm
    leaves normalisation and erasing to the device, and collates in every worker; workers of
    FusionLoader do both while they write a sample, so that the prefetcher is left out unless
    something needs it: a ``collate_fn`` of one's own (mixup), augmentation splits, scheduled sizes.
    """
    options = {name: keywords.pop(name) for name in _OWN if name in keywords}
    if _direct(keywords):
        device = keywords.pop("device", torch.device("cuda"))
        dtype = keywords.pop("img_dtype", torch.float32)
        created = timm_loader.create_loader(*arguments, **keywords | {"use_prefetcher": False})
        if dtype != torch.float32:
            _convert_to(created.dataset, dtype)
        changes = {"device": device, "collate_fn": default_collate}
        return fusion_of(created, **changes, **options)
    created = timm_loader.create_loader(*arguments, **keywords)
    if isinstance(created, timm_loader.PrefetchLoader):
        created.loader = fusion_of(created.loader, **options)
        return created
    return fusion_of(created, **options)


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

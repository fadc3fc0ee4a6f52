"""The contenders of a workload, each set up as its own documentation advises."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from fusionloader.cli.measure.protocol import Contender, Running
from fusionloader.cli.measure.workloads import (
    FULL_SIZE,
    IMAGE_WORKLOADS,
    IN_MEMORY,
    pil_dataset,
    tensor_dataset,
)
from fusionloader.options.aliases import AnyDataset, AnyLoader, Batch
from fusionloader.options.cache_settings import DecodedCache

ORDER_SEED = 11


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings that all contenders share.

    ``root`` is the folder of images, ``None`` for workloads in memory. ``samples`` overrides the
    length of an epoch in memory.
    """

    workload: str
    workers: int
    batch_size: int
    root: Path | None = None
    start_method: str | None = None
    samples: int | None = None

    def folder(self) -> Path:
        """Returns the folder of images, one sub-folder per class."""
        if self.root is None:
            raise ValueError(f"the workload {self.workload!r} needs a folder of images")
        return self.root


def contenders_for(setting: Setting, names: Sequence[str] | None = None) -> list[Contender]:
    """Returns the contenders of a workload in order, the baseline first.

    ``names`` selects some of them; by default all that are installed and no variants.
    """
    if setting.workload in IMAGE_WORKLOADS:
        known, usual = _image_contenders(setting)
    else:
        known, usual = _memory_contenders(setting)
    if names is None:
        return [contender for contender in known if contender.name in usual]
    unknown = set(names) - {contender.name for contender in known}
    if unknown:
        raise ValueError(
            f"no contender {', '.join(sorted(unknown))} on {setting.workload}; "
            f"there are: {', '.join(contender.name for contender in known)}"
        )
    return [contender for contender in known if contender.name in names]


def dali_is_installed() -> bool:
    """Whether nvidia.dali can be imported."""
    return (
        importlib.util.find_spec("nvidia") is not None
        and importlib.util.find_spec("nvidia.dali") is not None
    )


def _image_contenders(setting: Setting) -> tuple[list[Contender], set[str]]:
    root, workload = setting.folder(), setting.workload
    known = [
        Contender(
            "torch-pil",
            "torch DataLoader, torchvision v1 transforms on PIL images",
            lambda: start_loader(DataLoader, pil_dataset(root, workload), setting),
        ),
        Contender(
            "torch-v2",
            "torch DataLoader, torchvision's decoder and v2 transforms on uint8 tensors",
            lambda: start_loader(DataLoader, tensor_dataset(root, workload), setting),
        ),
        _fusion("fusionloader", lambda: pil_dataset(root, workload), setting),
        _fusion("fusionloader-fast", lambda: pil_dataset(root, workload), setting, decode="fast"),
        _fusion(
            "fusionloader-index", lambda: pil_dataset(root, workload), setting, jpeg_index="auto"
        ),
        _fusion(
            "fusionloader-cache",
            lambda: pil_dataset(root, workload),
            setting,
            cache=DecodedCache("8GiB"),
        ),
    ]
    usual = {"torch-pil", "torch-v2", "fusionloader", "limit-decode"}
    if dali_is_installed() and workload != FULL_SIZE:  # its policies take images of one size
        usual.add("dali-cpu")
        known.append(Contender("dali-cpu", "DALI, CPU backend", lambda: _start_dali(setting)))
    known.append(
        Contender(
            "limit-decode",
            "limit: whole images decoded by Pillow's libjpeg-turbo in as many processes",
            lambda: _start_limit(setting),
            limit=True,
        )
    )
    return known, usual


def _memory_contenders(setting: Setting) -> tuple[list[Contender], set[str]]:
    kind = IN_MEMORY[setting.workload]
    samples = setting.samples or kind.samples

    def dataset() -> AnyDataset:
        return kind.dataset(samples)

    known = [
        Contender(
            "torch",
            "torch DataLoader, default collate",
            lambda: start_loader(DataLoader, dataset(), setting),
        ),
        _fusion("fusionloader", dataset, setting),
    ]
    return known, {contender.name for contender in known}


def _fusion(
    name: str, dataset: Callable[[], AnyDataset], setting: Setting, **extra: Any
) -> Contender:
    def start() -> Running:
        from fusionloader import FusionLoader

        return start_loader(FusionLoader, dataset(), setting, **extra)

    options = "".join(f", {key}={value!r}" for key, value in extra.items())
    return Contender(name, f"FusionLoader in DataLoader's place{options}", start)


def start_loader(
    kind: type[AnyLoader], dataset: AnyDataset, setting: Setting, **extra: Any
) -> Running:
    """Starts a DataLoader of the given class over ``dataset``, with persistent workers if any."""
    some = setting.workers > 0
    loader = kind(
        dataset,
        batch_size=setting.batch_size,
        shuffle=True,
        num_workers=setting.workers,
        persistent_workers=some,
        multiprocessing_context=setting.start_method if some else None,
        generator=torch.Generator().manual_seed(ORDER_SEED),
        **extra,
    )

    def epoch() -> Iterator[int]:
        for batch in loader:
            yield batch_length(batch)

    def close() -> None:
        close_loader(loader)

    return Running(epoch, close)


def batch_length(batch: Batch) -> int:
    """Returns the number of samples of a collated batch: the length of its first tensor."""
    if isinstance(batch, torch.Tensor):
        return len(batch)
    first = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return batch_length(first)


def close_loader(loader: AnyLoader) -> None:
    """Ends a loader's workers now; for torch's loader this needs a private attribute."""
    closing = getattr(loader, "close", None)
    if closing is not None:
        closing()
    else:
        loader._iterator = None


def _start_dali(setting: Setting) -> Running:
    from fusionloader.cli.measure.dali import start_dali

    return start_dali(setting.folder(), setting.workload, setting.batch_size, setting.workers)


def _start_limit(setting: Setting) -> Running:
    from fusionloader.cli.measure.decode_limit import start_decode_limit

    paths = sorted(setting.folder().glob("*/*.[jJ][pP]*[gG]"))
    if not paths:
        raise ValueError(f"no JPEG files in the sub-folders of {setting.folder()}")
    return start_decode_limit(paths, max(1, setting.workers))

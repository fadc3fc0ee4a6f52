"""Folders of corrupt files through a worker of the loader, and what Pillow makes of the same."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
from PIL import Image
from support.waiting import PATIENCE
from torchvision import transforms as v1
from torchvision.datasets.folder import DatasetFolder, default_loader

from fusionloader import FusionLoader
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.executors.replay import replay
from fusionloader.transforms.plan.transforms import compile_transform

SIDE = 24
SEED = 6
# A loader keeps the messages of so many bad samples.
MOST_FILES = 100
_BAD = re.compile(r"Caught (\w+) in .*\nSample: index (\d+) ")
_PLANS = (
    v1.Compose([v1.RandomResizedCrop(SIDE), v1.ToTensor()]),
    v1.Compose([v1.Resize((SIDE, SIDE)), v1.ToTensor()]),
)
# Longer sides are refused (docs/guide/decoding.md).
_LONGEST_SIDE = 1 << 20
_MOST_BYTES = 1 << 30
# Pillow's decoder of WebP has four images of 4 bytes a pixel at a time.
_BYTES_OF_PIXEL = 17
Outcome = torch.Tensor | str


@dataclass(frozen=True, slots=True)
class PillowsView:
    """What Pillow makes of a file: pixels or the name of its exception, and the image's size."""

    outcome: Outcome
    pixels: int


@dataclass(slots=True)
class Epoch:
    """What became of each file, and what the worker needed.

    Attributes:
        outcomes: pixels, or the name of the exception's class, by the file's number.
        native: how many were decoded without Pillow.
        peak_bytes: of the worker's memory, its share of shared memory with it.
        longest_seconds: of the worker's processor time between two files that were delivered.
    """

    outcomes: dict[int, Outcome] = field(default_factory=dict)
    native: int = 0
    peak_bytes: int = 0
    longest_seconds: float = 0.0


def written(folder: Path, files: list[bytes], suffix: str) -> list[Path]:
    """Writes each file to a class of its own, which is its number."""
    paths = []
    for number, data in enumerate(files):
        paths.append(folder / f"{number:04}" / f"file{suffix}")
        paths[-1].parent.mkdir(parents=True)
        paths[-1].write_bytes(data)
    return paths


def read_by_loader(folder: Path, suffix: str, plan: int) -> Epoch:
    """Reads a folder as ``written`` makes it with one worker, of which nothing may be left over."""
    dataset = DatasetFolder(str(folder), default_loader, (suffix,), _PLANS[plan])
    assert len(dataset) <= MOST_FILES
    epoch = Epoch()
    loader = FusionLoader(
        dataset,
        num_workers=1,
        persistent_workers=True,  # so that it can be asked afterwards
        seed=SEED,
        on_error="skip",
        timeout=PATIENCE,
        multiprocessing_context="spawn",  # without this process's memory
    )
    assert "python" not in loader.explain()
    with loader:
        iterator = iter(loader)
        worker = psutil.Process(iterator._workers[0].pid)
        seconds = _processor_seconds(worker)
        for images, targets in iterator:
            epoch.outcomes[int(targets[0])] = images[0].clone()
            before, seconds = seconds, _processor_seconds(worker)
            epoch.longest_seconds = max(epoch.longest_seconds, seconds - before)
        rest = _processor_seconds(worker) - seconds
        epoch.longest_seconds = max(epoch.longest_seconds, rest)
        epoch.peak_bytes = _peak_bytes(worker.pid)
        stats = loader.stats()
    assert stats.worker_restarts == 0
    for text in stats.errors:
        found = _BAD.match(text)
        assert found is not None, text
        epoch.outcomes[int(found[2])] = found[1]
    epoch.native = len(dataset) - stats.skipped - stats.pillow_samples
    return epoch


def read_by_pillow(path: Path, number: int, plan: int) -> PillowsView:
    """What torchvision makes of a file, with the parameters that the loader's worker drew."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = default_loader(str(path))
        except Exception as error:
            return PillowsView(type(error).__name__, _pixels_of(path))
    pixels = image.width * image.height
    if max(image.size) > _LONGEST_SIDE:
        return PillowsView("ValueError", pixels)
    executor = make_executor(compile_transform(_PLANS[plan]).plan)
    operations = executor.draw(SEED, 0, number, 0, *image.size)
    return PillowsView(v1.ToTensor()(replay(image, operations)), pixels)


def allowed_bytes(views: list[PillowsView]) -> int:
    """What a worker may take for files: 1 GB, or what Pillow may need for the largest one."""
    return max(_MOST_BYTES, _BYTES_OF_PIXEL * max(view.pixels for view in views))


def _pixels_of(path: Path) -> int:
    """The size that a damaged file's header says, 0 where Pillow does not go by it."""
    try:
        with Image.open(path) as image:
            return image.width * image.height
    except Exception:
        return 0


def _processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024

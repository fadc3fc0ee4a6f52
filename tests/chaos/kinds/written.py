"""Loaders of which something is written to a disk while they are iterated."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from support.images import train_transform
from support.tar_shards import image_shards
from support.waiting import PATIENCE

from chaos.kinds.image_plans import epochs_of, images_of, part_of
from chaos.kinds.setting import BATCH, DISK, EpochKind, Epochs, Part, Setting, order_of
from fusionloader import Cache, FusionLoader
from fusionloader.data.sources import TarFolder, TarStream
from fusionloader.observe.trace.files import read_timeline

_COUNTS = (20, 3, 17)
_TRACED = 20  # batches of an epoch
_SAVES = 3  # batches from one saved state to the next
_RESUMES = 7  # batches from one resumption to the next


class Anew:
    """A loader that is made for each epoch, as by a job that begins again."""

    def __init__(self, make: Callable[[int], FusionLoader]) -> None:
        """``make`` is given the number of the epoch."""
        self._make, self._epoch = make, 0
        self._loader: FusionLoader | None = None

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        self.close()
        self._loader = self._make(self._epoch)
        self._loader.set_epoch(self._epoch)
        return iter(self._loader)

    def close(self) -> None:
        loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()


def _emptied(folder: Path, epoch: int) -> Path:
    """Makes a folder, and empties it before every other epoch."""
    if epoch % 2 == 0:
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _disk(setting: Setting) -> Epochs:
    """A cache too small for all images: what does not fit is read again."""

    def make(epoch: int) -> FusionLoader:
        folder = _emptied(Path(setting.written), epoch)
        cache = None if setting.plain else Cache("192KiB", tiers=("encoded",), path=str(folder))
        return part_of(images_of(setting), setting, 0, 1, cache=cache).loader

    part = part_of(images_of(setting), setting, 0, 1)
    return epochs_of(Part(Anew(make), part.order, part.paths))


def _indexes(setting: Setting) -> Epochs:
    """Archives that are indexed again: at URLs, and beside local ones."""
    at_urls, here = (Path(setting.written) / name for name in ("at_urls", "here"))
    for folder in (at_urls, here):
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in image_shards(_COUNTS).items():
            (folder / name).write_bytes(data)

    def make(dataset: Any, number: int) -> FusionLoader:
        order = order_of(len(dataset), number, 1)
        options = {"num_workers": 1, "seed": 5, "in_order": setting.in_order}
        return FusionLoader(dataset, BATCH, sampler=order, **options)

    def remote(epoch: int) -> FusionLoader:
        _emptied(Path(setting.written) / "fusionloader" / "tar-indexes", epoch)
        url = f"file://{at_urls}/train-{{000..002}}.tar"
        return make(TarStream(url, transform=train_transform(), retries=1), 0)

    def local(epoch: int) -> FusionLoader:
        _emptied(Path(setting.written) / "fusionloader" / "indexes", epoch)
        for index in here.glob("*index") if epoch % 2 == 0 else ():
            index.unlink()
        return make(TarFolder(str(here), transform=train_transform()), 1)

    count = sum(_COUNTS)
    parts = [Part(Anew(each), order_of(count, n, 1)) for n, each in enumerate((remote, local))]
    return epochs_of(*parts)


class Losses(logging.Handler):
    """Whether loaders have said that a trace is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False
        logging.getLogger("fusionloader.trace").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.found |= record.getMessage().startswith("the trace is lost")


class Traced:
    """A loader of which the first batches of each epoch are traced.

    The trace can be read afterwards, unless the loader has said that it is lost.
    """

    def __init__(self, loader: FusionLoader, folder: Path) -> None:
        self._loader, self._folder = loader, folder
        self._losses, self._trace = Losses(), None
        self.close = loader.close

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)
        self._path = self._folder / f"trace-{epoch}.json"

    def __iter__(self) -> Traced:
        self._batches = None
        self._loader.close()  # ends the trace of an epoch that was left
        self._look()
        self._losses.found = False
        with contextlib.suppress(OSError):  # the disk takes no more files
            self._trace = self._loader.trace(self._path, _TRACED)
        self._batches = iter(self._loader)
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except Exception:
            raise
        except BaseException:
            self._trace = None  # it may have come while the trace was written
            raise
        if self._trace is not None and not self._trace.is_on:
            self._look()
        return batch

    def _look(self) -> None:
        trace, self._trace = self._trace, None
        if trace is not None and not self._losses.found:
            read_timeline(trace.path)


def _traced(setting: Setting) -> Epochs:
    part = part_of(images_of(setting), setting)
    if setting.plain:
        return epochs_of(part)
    folder = Path(setting.written)
    folder.mkdir(parents=True, exist_ok=True)
    return epochs_of(Part(Traced(part.loader, folder), part.order, part.paths))


class Resumed:
    """A loader that is made again and again, and goes on from the newest state that was saved.

    A state is written as a checkpoint should be: to another name, which is renamed. Where the disk
    is full, the state before stays the newest one.
    """

    def __init__(self, make: Callable[[], FusionLoader], file: Path) -> None:
        self._make, self._file = make, file
        self._loader: FusionLoader | None = None
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Resumed:
        self.close()
        self._loader = self._make()
        self._loader.set_epoch(self._epoch)
        self._batches = iter(self._loader)
        self._taken = self._saved_at = self._resumed_at = 0
        self._last: Any = None
        self._has_state = False
        return self

    def __next__(self) -> Any:
        if self._taken % _RESUMES == 0 and self._resumed_at != self._taken and self._has_state:
            self._batches = None
            self._resumed_at = self._taken
        if self._batches is None:
            self._batches = self._resumed()
        if self._taken % _SAVES == 0 and self._saved_at != self._taken:
            self._save()
            self._saved_at = self._taken
        batch = next(self._batches)
        self._last, self._taken = batch, self._taken + 1
        return batch

    def _save(self) -> None:
        assert self._loader is not None
        text, other = json.dumps(self._loader.state_dict()), self._file.with_suffix(".new")
        try:
            other.write_text(text)
            other.replace(self._file)
            self._has_state = True
        except OSError:
            other.unlink(missing_ok=True)

    def _resumed(self) -> Iterator[Any]:
        """Returns an iterator of another loader, behind the last batch that training has had."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self.close()
            self._loader = self._make()
            self._loader.load_state_dict(json.loads(self._file.read_text()))
            batches = iter(self._loader)
            try:
                while not _are_same(next(batches), self._last):
                    pass
                return batches
            except OSError:  # of a fault that strikes one of the batches that training has had
                if time.monotonic() > deadline:
                    raise

    def close(self) -> None:
        self._batches = None
        loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()


def _are_same(batch: Any, other: Any) -> bool:
    return all(torch.equal(one, two) for one, two in zip(batch, other, strict=True))


def _resumed(setting: Setting) -> Epochs:
    part = part_of(images_of(setting), setting)
    if setting.plain:
        return epochs_of(part)
    folder = Path(setting.written)
    folder.mkdir(parents=True, exist_ok=True)
    resumed = Resumed(lambda: part_of(images_of(setting), setting).loader, folder / "state.json")
    return epochs_of(Part(resumed, part.order, part.paths))


_DISK = frozenset({DISK})
KINDS = (
    EpochKind("cache on disk", _disk, subject_to=_DISK),
    EpochKind("indexes of shards", _indexes, subject_to=_DISK, needs=("fsspec",)),
    EpochKind("trace", _traced, subject_to=_DISK),
    EpochKind("saved states", _resumed, subject_to=_DISK, any_order=False),
)

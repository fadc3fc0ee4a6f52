"""``stats()`` in another thread, as exporters call it, whatever becomes of training meanwhile."""

import gc
import json
import threading
from contextlib import contextmanager

import pytest
from PIL import Image
from support.images import train_transform
from torch.utils.data import Dataset, default_collate
from torchvision.datasets import ImageFolder
from torchvision.transforms.functional import to_tensor

from fusionloader import FusionLoader

GROWING = (
    *("epochs", "batches", "samples", "worker_restarts", "worker_seconds", "read_bytes"),
    *("wait_seconds", "skipped"),
)


class Photos(Dataset):
    """User code that opens image files, which are deferred; every eighth one is damaged."""

    def __init__(self, folder):
        self.paths = [path for path, _ in ImageFolder(folder).samples]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        if index % 8 == 0:
            raise OSError("damaged")
        return to_tensor(Image.open(self.paths[index]).convert("RGB").resize((32, 32)))


@contextmanager
def watched(loader):
    """Calls ``stats()`` in a thread, all the time; no counter may ever decrease."""
    ended, wrong, calls = threading.Event(), [], []

    def watch():
        before = None
        while not ended.is_set():
            try:
                told = loader.stats()
                json.dumps(told.as_dict())
                wrong.extend(decreased(before, told))
                before = told
                calls.append(1)
            except BaseException as error:
                wrong.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield calls
    finally:
        ended.set()
        thread.join()
    assert not wrong, wrong[:3]
    assert calls


def counters(told):
    yield from ((name, getattr(told, name)) for name in GROWING)
    yield "files", told.deferred_images["files"]
    for worker in told.workers:
        yield f"samples of {worker.number}", worker.samples
        yield f"seconds of {worker.number}", worker.busy_seconds


def decreased(before, told):
    values = dict(counters(told))
    earlier = dict(counters(before)) if before is not None else {}
    return [f"{name}: {earlier[name]}, {values[name]}" for name in earlier if name in values
            and values[name] < earlier[name]]  # fmt: skip


def loader_of(kind, folder):
    options = {"num_workers": 2, "seed": 1}
    if kind == "plan":
        return FusionLoader(ImageFolder(folder, train_transform()), 4, **options)
    if kind == "persistent":
        dataset = ImageFolder(folder, train_transform())
        return FusionLoader(dataset, 4, persistent_workers=True, **options)
    if kind == "own":
        return FusionLoader(Photos(folder), 4, on_error="skip", **options)
    dataset = ImageFolder(folder, train_transform())
    if kind == "whole":
        return FusionLoader(dataset, 4, collate_fn=collate, **options)
    return FusionLoader(dataset, 4, seed=1)


def collate(samples):
    return default_collate(samples)


def kill_one(iterator):
    workers = getattr(iterator, "_workers", ())
    if workers:
        workers[0].kill()


@pytest.mark.parametrize("kind", ["plan", "persistent", "own", "whole", "in process"])
@pytest.mark.few(1)
def test_counters_only_grow_through_epochs_breaks_kills_and_ends(kind, image_folder):
    with loader_of(kind, str(image_folder)) as loader, watched(loader):
        list(loader)
        iterator = iter(loader)
        next(iterator)
        kill_one(iterator)
        list(iterator)
        for _ in loader:  # dropped in the middle of the epoch
            break
        loader.close()
        one, other = iter(loader), iter(loader)
        next(one), next(other)
        del one, iterator
        gc.collect()
        list(other)


def test_an_iterator_that_was_dropped_still_counts(train_set):
    loader = FusionLoader(train_set, 4, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    made = loader.stats().worker_seconds
    del iterator
    gc.collect()
    assert loader.stats().worker_seconds >= made > 0
    assert sum(worker.samples for worker in loader.stats().workers) >= 4


def test_workers_of_all_epochs_are_counted_under_their_numbers(train_set):
    loader = FusionLoader(train_set, 4, num_workers=2)
    for _ in range(3):
        list(loader)
    workers = loader.stats().workers
    assert sum(worker.samples for worker in workers) == 3 * len(train_set)
    assert sum(worker.busy_seconds for worker in workers) == pytest.approx(
        loader.stats().worker_seconds
    )

"""What ``stats()`` tells of loaders of every kind, during epochs and after them."""

import json
import os
import time

import pytest
import torch
from PIL import Image
from support.images import train_transform
from support.waiting import wait_until
from torch.utils.data import Dataset, IterableDataset, default_collate
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import DecodedCache, FusionLoader, LoaderStats

COUNT = 40
LAST = [transforms.RandomResizedCrop(32), transforms.ToTensor()]


class Photos(Dataset):
    """A user's own dataset of image files."""

    def __init__(self, folder):
        self.paths = [path for path, _ in ImageFolder(folder).samples]
        self.transform = transforms.Compose(LAST)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB"))


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def collate(samples):
    return default_collate(samples)


def loader_of(kind, folder):
    options = {"batch_size": 8, "num_workers": 2, "seed": 1}
    if kind == "plan":
        return FusionLoader(ImageFolder(folder, train_transform()), **options)
    if kind == "in process":
        return FusionLoader(ImageFolder(folder, train_transform()), 8, seed=1)
    if kind == "tail":
        tail = transforms.Compose([*LAST, lambda image: image + 1])
        return FusionLoader(ImageFolder(folder, tail), **options)
    if kind == "whole":
        return FusionLoader(Photos(folder), collate_fn=collate, **options)
    if kind == "single":
        return FusionLoader(Photos(folder), 8, collate_fn=collate)
    return FusionLoader(Photos(folder), **options)


STAGES = {
    "plan": {"read", "decode", "augment", "other"},
    "in process": {"read", "decode", "augment", "other"},
    "tail": {"read", "decode", "python", "write"},
    "own": {"read", "decode", "python", "write"},
    "whole": {"read", "decode", "python"},
    "single": {"read", "decode", "python"},
}


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.few(2)
def test_stages_and_samples_are_counted_whatever_makes_them(kind, image_folder):
    loader = loader_of(kind, str(image_folder))
    for _ in range(2):
        list(loader)
    told = loader.stats()
    assert (told.epochs, told.batches, told.samples) == (2, 2 * COUNT // 8, 2 * COUNT)
    assert {stage.name for stage in told.stages} - {"augment"} == STAGES[kind] - {"augment"}
    stored = sum(os.path.getsize(path) for path, _ in ImageFolder(str(image_folder)).samples)
    assert told.read_bytes == 2 * stored
    assert {stage.samples for stage in told.stages} == {2 * COUNT}
    workers = max(loader.num_workers, 1)
    for stage in told.stages:
        assert stage.capacity == pytest.approx(workers * stage.samples / stage.seconds)
    seconds = sum(stage.seconds for stage in told.stages)
    assert told.capacity == pytest.approx(workers * 2 * COUNT / seconds)
    assert told.worker_seconds > 0


def test_everything_is_there_while_an_epoch_runs(image_folder):
    loader = loader_of("plan", str(image_folder))
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    # One of them may have made all of that before the other has begun.
    wait_until(lambda: len(loader.stats().workers) == 2)
    told = loader.stats()
    assert told.batches == 3 and told.samples == 24
    assert sum(worker.samples for worker in told.workers) >= 24
    assert [worker.number for worker in told.workers] == [0, 1]
    assert {worker.kind for worker in told.workers} == {"native"}
    assert [worker.pid for worker in told.workers] == [p.pid for p in iterator._workers]
    assert all(0 <= worker.busy_share <= 1 for worker in told.workers)
    assert told.slots >= 3 and told.in_flight <= 4
    assert told.capacity > 0
    list(iterator)
    assert loader.stats().samples == COUNT
    assert loader.stats().workers[0].pid == told.workers[0].pid  # as they were at the end


class SlowPhotos(Photos):
    def __getitem__(self, index):
        time.sleep(0.01)
        return super().__getitem__(index)


def test_the_share_of_waiting_follows_the_training(image_folder):
    dataset = SlowPhotos(str(image_folder))
    loader = FusionLoader(dataset, 4)  # every sample is made while training waits
    list(loader)
    slow = FusionLoader(dataset, 4, num_workers=2)
    for _ in slow:
        time.sleep(0.1)
    assert loader.stats().wait_share > 0.7 > slow.stats().wait_share
    assert slow.stats().wait_seconds >= slow.stats().waits.seconds


def test_hits_of_the_cache_are_counted(image_folder):
    dataset = ImageFolder(str(image_folder), train_transform())
    loaders = [
        FusionLoader(data, 8, num_workers=2, cache=DecodedCache("64MiB"))
        for data in (dataset, Photos(str(image_folder)))
    ]
    for loader in loaders:
        list(loader)
        before = loader.stats().cache_hits
        list(loader)
        assert (before, loader.stats().cache_hits) == (0, COUNT)


def test_samples_of_iterable_datasets_are_counted():
    loader = FusionLoader(Numbers(), 4, num_workers=2)
    delivered = sum(len(batch) for batch in loader)
    assert loader.stats().samples == delivered == 20
    assert sum(stage.samples for stage in loader.stats().stages) == 20


def test_memory_of_whole_batches_is_counted(image_folder):
    loader = loader_of("whole", str(image_folder))
    batches = list(loader)
    told = loader.stats()
    assert told.slots >= 2
    assert told.shared_memory_bytes >= 2 * batches[0].nbytes


def test_workers_that_were_replaced_are_told_by_number(image_folder):
    loader = loader_of("plan", str(image_folder))
    iterator = iter(loader)
    next(iterator)
    iterator._workers[1].kill()
    list(iterator)
    while not loader.stats().worker_restarts:  # it may have been done with its work
        iterator = iter(loader)
        iterator._workers[1].kill()
        list(iterator)
    assert loader.stats().worker_restarts == 1


def test_a_snapshot_is_typed_and_plain(image_folder):
    loader = loader_of("own", str(image_folder))
    list(loader)
    told = loader.stats()
    assert isinstance(told, LoaderStats)
    with pytest.raises(AttributeError):
        told.batches = 3
    plain = json.loads(json.dumps(told.as_dict()))
    assert plain["waits"]["share"] == told.wait_share == plain["wait_share"]
    assert plain["deferred_images"]["files"] == COUNT
    assert plain["workers"][0]["kind"] == "python"


def test_a_wait_without_bound_is_json(image_folder):
    loader = loader_of("own", str(image_folder))
    loader._state.statistics.waits.add(1e9, 0.0)
    plain = json.dumps(loader.stats().as_dict(), allow_nan=False)
    assert json.loads(plain)["waits"]["histogram"] == [[None, 1]]


def test_scalars_are_numbers_by_name(image_folder):
    loader = loader_of("own", str(image_folder))
    empty = loader.stats().scalars()
    assert "fusionloader/wait_share" not in empty and empty["fusionloader/batches"] == 0
    list(loader)
    told, scalars = loader.stats(), loader.stats().scalars(prefix="data/")
    assert all(type(value) in (int, float) for value in scalars.values())
    assert scalars["data/wait_share"] == told.wait_share
    assert scalars["data/wait/p95"] == told.waits.p95
    decode = next(stage for stage in told.stages if stage.name == "decode")
    assert scalars["data/capacity/decode"] == decode.capacity
    assert "data/worker/python/1/busy_share" in scalars


def test_the_rank_is_that_of_the_job(image_folder, monkeypatch):
    loader = loader_of("own", str(image_folder))
    assert loader.stats().rank == 0
    monkeypatch.setenv("RANK", "3")
    assert loader.stats().rank == 3


def test_a_batch_is_a_batch_of_any_size():
    loader = FusionLoader(list(range(7)), batch_size=None, num_workers=2)
    assert sorted(loader) == list(range(7))
    assert loader.stats().samples == 7
    assert torch.is_tensor(next(iter(FusionLoader(list(range(7)), 2))))


def test_printed_they_are_some_lines(train_set):
    loader = FusionLoader(train_set, 4, num_workers=2)
    assert "Nothing has been measured yet." in str(loader.stats())
    assert len(list(loader)) == len(loader)
    lines = str(loader.stats()).splitlines()
    assert lines[0] == f"{len(train_set)} samples in {len(loader)} batches, 1 whole epochs"
    assert 4 <= len(lines) <= 10 and all(len(line) < 120 for line in lines)
    assert any(line.startswith("2 workers could make") for line in lines)

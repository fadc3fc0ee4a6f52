"""Shards that are not what they were when they were indexed, through real workers."""

import os

import pytest
import torch
from support import warm_start
from support.batches import same_batches
from support.notes import said
from support.shards import shards_of
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from fusionloader import Cache, FusionLoader
from fusionloader.data.sources import ShardChanged

OF_SHARD_1 = range(1, 40, 3)


@pytest.fixture
def ranges_set(eval_set, tmp_path):
    return shards_of(eval_set, tmp_path)


def shard(dataset):
    return dataset.byte_ranges().files[1]


def remove(path):
    os.unlink(path)


def replace(path):
    """By a file of the same size and time, as a copy would be."""
    info = os.stat(path)
    with open(f"{path}.new", "wb") as file:
        file.write(bytes(info.st_size))
    os.replace(f"{path}.new", path)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns - 1_000_000_000))


def truncate(path):
    os.truncate(path, 100)


def write_into(path):
    with open(path, "r+b") as file:
        file.write(b"x")
    os.utime(path, ns=(1, 1))


CHANGES = [(remove, "is gone"), (replace, "modified"), (truncate, "100 bytes"), (write_into, "mod")]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("change", "why"), CHANGES)
def test_a_shard_that_changes_within_an_epoch_is_named(ranges_set, change, why, workers):
    options = {"prefetch_factor": 1} if workers else {}
    iterator = iter(FusionLoader(ranges_set, 2, num_workers=workers, **options))
    next(iterator)  # its workers have the shard open
    change(shard(ranges_set))
    with pytest.raises(ShardChanged) as caught:
        list(iterator)
    text = said(caught.value)
    assert shard(ranges_set) in text and why in text and "index it again" in text
    assert "train-1.bin: class" in text


@pytest.mark.parametrize(("change", "why"), CHANGES[:1])
def test_torch_gets_the_same_error(ranges_set, change, why):
    change(shard(ranges_set))
    with pytest.raises(ShardChanged, match=f"{why}; the sample is train-1.bin: class.*index it"):
        list(DataLoader(ranges_set, 2))


@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_an_epoch_goes_on_without_the_samples_of_a_shard(ranges_set, on_error, caplog):
    expected = list(DataLoader(ranges_set, 1))
    os.unlink(shard(ranges_set))
    found = list(FusionLoader(ranges_set, 1, num_workers=2, on_error=on_error))
    assert "index 1 (train-1.bin: class0/002.jpg)" in caplog.text
    kept = [index for index in range(40) if index not in OF_SHARD_1]
    if on_error == "skip":
        assert same_batches(found, [expected[index] for index in kept])
    else:
        assert all(same_batches([found[index]], [expected[index]]) for index in kept)
        others = [found[index] for index in OF_SHARD_1]
        good = [expected[index] for index in kept]
        assert all(any(same_batches([one], [two]) for two in good) for one in others)


def test_what_is_cached_of_a_shard_that_changed_is_not_used(ranges_set):
    cache = Cache("64MiB", tiers=("encoded",))
    loader = FusionLoader(ranges_set, 2, num_workers=1, cache=cache)
    list(loader)
    os.utime(shard(ranges_set), ns=(1, 1))
    with pytest.raises(ShardChanged, match="modified"):
        list(loader)


def test_a_shard_that_is_put_back_is_read_again(ranges_set):
    expected = list(DataLoader(ranges_set, 4))
    loader = FusionLoader(ranges_set, 4, num_workers=1, persistent_workers=True, on_error="skip")
    hidden = f"{shard(ranges_set)}.hidden"
    os.rename(shard(ranges_set), hidden)
    assert sum(len(targets) for _, targets in loader) == 40 - len(OF_SHARD_1)
    os.rename(hidden, shard(ranges_set))
    assert same_batches(list(loader), expected)


SCRIPT = """
import pathlib, resource, sys
from support.images import eval_transform
from support.shards import shards_of
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder
from fusionloader import FusionLoader

folder = ImageFolder(sys.argv[1], eval_transform())
folder.samples = folder.samples * 10
dataset = shards_of(folder, pathlib.Path(sys.argv[2]), count=400)
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]), int(sys.argv[3])))
images = [image for batch, _ in FusionLoader(dataset, 20, num_workers=2) for image in batch]
assert len(images) == 400 and all(bool((images[i] == images[i % 40]).all()) for i in range(400))
print("read")
"""


@pytest.mark.matrix
@pytest.mark.parametrize("limit", [64])
def test_more_shards_than_descriptors_are_read(image_folder, tmp_path, limit):
    here = os.path.dirname(os.path.dirname(__file__))
    ended = warm_start.completed(
        *("-c", SCRIPT, image_folder, tmp_path, str(limit)), env={**os.environ, "PYTHONPATH": here}
    )
    assert ended.stdout == "read\n", ended.stderr


def test_a_damaged_sample_is_the_error_of_pillow_and_named(image_folder, eval_set, tmp_path):
    dataset = shards_of(eval_set, tmp_path)
    where = dataset.byte_ranges().at(10)
    with open(where.file, "r+b") as file:
        file.seek(where.offset)
        file.write(b"nonsense")
    indexed = dataset.byte_ranges()
    again = type(indexed)(indexed.files, indexed.file, indexed.offset, indexed.nbytes)
    damaged = type(dataset)(
        again, dataset.targets, transform=eval_set.transform, names=dataset.names
    )
    with pytest.raises(OSError) as caught:
        list(FusionLoader(damaged, 4, num_workers=1))
    text = said(caught.value)
    key = os.path.relpath(eval_set.samples[10][0], image_folder)
    assert f"index 10 (train-1.bin: {key})" in text


def test_a_subset_names_samples_as_the_dataset_does(eval_set, tmp_path):
    dataset = shards_of(eval_set, tmp_path, names=Numbered())
    os.unlink(shard(dataset))
    for indices in ([4, 1], [7]):
        with pytest.raises(ShardChanged) as caught:
            list(FusionLoader(torch.utils.data.Subset(dataset, indices), 1, num_workers=1))
        text = said(caught.value)
        assert f"index 0 (number {indices[0]})" in text


class Numbered:
    def name(self, file, offset, item):
        return f"number {item}"


def test_samples_that_cannot_be_read_at_all_are_no_folder_either(tmp_path, image_folder):
    folder = ImageFolder(str(image_folder))
    path = tmp_path / "pipe"
    os.mkfifo(path)
    dataset = shards_of(folder, tmp_path, count=1)
    ranges = dataset.byte_ranges()
    with pytest.raises(ValueError, match="no regular file"):
        type(ranges)([path], ranges.file, ranges.offset, ranges.nbytes)

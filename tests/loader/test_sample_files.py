"""Datasets that name the file of a sample: workers keep to theirs, and batches are the same."""

import multiprocessing
import os
import random
import re
import signal
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from support.batches import same_batches
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset
from torchvision import transforms

from fusionloader import FusionLoader
from fusionloader.data.sources import OpenFiles

FILES = 7
ODD = {11: "raises", 26: "raises", 33: "text"}


class Clips(Dataset):
    """Frames of files; a sample draws, and its image is deferred and large enough for a row."""

    def __init__(self, length=60, odd=None):
        self.length, self.odd = length, odd or {}
        self.augment = transforms.Compose([transforms.RandomCrop(112), transforms.ToTensor()])

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        number = index[0] if isinstance(index, tuple) else index
        odd = self.odd.get(number)
        if odd == "raises":
            raise ValueError(f"sample {number} is bad")
        levels = np.random.default_rng(number).integers(0, 256, (120, 130, 3), np.uint8)
        return {
            "image": self.augment(Image.fromarray(levels)),
            "noise": torch.rand(4),
            "label": number,
            "weight": random.random(),
            "name": f"frame {number}" * (200 if odd == "text" else 1),
        }


class NamedClips(Clips):
    def sample_file(self, index):
        number = index[0] if isinstance(index, tuple) else index
        return f"{number * 5 % FILES}.mp4"


DATASETS = {
    "a dataset": lambda kind: kind(),
    "a subset": lambda kind: Subset(kind(90), range(20, 80)),
    "a concatenation of which a part has no files": lambda kind: ConcatDataset(
        [kind(30), Clips(30)]
    ),
    "a sample that does not fit its row": lambda kind: kind(odd={33: "text"}),
}


def loader_of(dataset, **options):
    options = {"num_workers": 2, "tiny_batch_size": 3, "shuffle": True} | options
    if "batch_sampler" not in options:
        options = {"batch_size": 16} | options
    return FusionLoader(dataset, generator=torch.Generator().manual_seed(5), **options)


@pytest.mark.few(1)
@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
def test_batches_are_those_of_a_dataset_that_names_no_files(dataset):
    named, plain = loader_of(dataset(NamedClips)), loader_of(dataset(Clips))
    assert same_batches(named, plain)
    assert same_batches(named, plain)  # once the layout is known


def test_indices_of_any_type_find_their_samples():
    batches = [[(number, "a") for number in order] for order in ([5, 3, 9, 40], [1, 2, 8, 30])]
    options = {"batch_sampler": batches, "shuffle": False, "tiny_batch_size": 1}
    assert same_batches(loader_of(NamedClips(), **options), loader_of(Clips(), **options))


@pytest.mark.few(2)
@pytest.mark.parametrize("on_error", ["raise", "skip", "substitute"])
def test_bad_samples_are_reported_as_without_files(on_error):
    def found(kind):
        loader = loader_of(kind(odd=ODD), on_error=on_error)
        iterator, batches, errors = iter(loader), [], []
        while True:
            try:
                batches.append(next(iterator))
            except StopIteration:
                break
            except ValueError as error:
                errors.append(str(error).splitlines()[-1])
        texts = "\n".join(loader.stats().errors)
        return batches, errors, sorted(re.findall("^Sample: .*", texts, re.MULTILINE))

    (batches, *named), (others, *plain) = found(NamedClips), found(Clips)
    assert named == plain
    assert same_batches(batches, others)


class Table(Clips):
    """Samples that are found by a table, which does not have all that are asked for."""

    table = list(range(60))

    def __getitem__(self, index):
        return super().__getitem__(self.table[index])


class NamedTable(Table):
    def sample_file(self, index):
        return self.table[index] % FILES


class Listed(Clips):
    def sample_file(self, index):
        return [index % FILES]


def test_an_index_that_is_not_there_is_a_bad_sample_of_its_batch(caplog):
    batches = [[5, 3, 9, 40], [1, 2, 99, 30], [7, 8, 6, 4]]
    options = {"batch_sampler": batches, "shuffle": False, "on_error": "raise"}

    def found(kind):
        iterator = iter(loader_of(kind(), **options))
        first = next(iterator)
        with pytest.raises(IndexError, match="list index out of range"):
            next(iterator)
        return [first, *iterator]

    assert same_batches(found(NamedTable), found(Table))
    assert "sample_file(99) has failed, and the sample belongs to no file: Index" in caplog.text


def test_files_that_cannot_be_hashed_are_warned_of_once(caplog):
    assert same_batches(loader_of(Listed()), loader_of(Clips()))
    assert caplog.text.count("TypeError: unhashable type: 'list'") == 1


class Deadly(Clips):
    """A sample that ends its worker, and is made before all others, and one that is bad."""

    def __getitem__(self, index):
        if index == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)

    def sample_file(self, index):
        return -index


def test_of_what_fails_the_first_of_the_batch_is_reported():
    dataset, batches = Deadly(odd={2: "raises"}), [[1, 2, 3, 4, 5, 6, 7, 8]]
    options = {"batch_sampler": batches, "shuffle": False, "tiny_batch_size": 1}
    with pytest.raises(ValueError, match="sample 2 is bad"):
        next(iter(loader_of(dataset, **options)))


class Killing(NamedClips):
    """Kills its worker at a sample, once."""

    def __init__(self, at):
        super().__init__()
        self.at, self.killed = at, multiprocessing.Value("i", 0)

    def __getitem__(self, index):
        if index in self.at:
            with self.killed:
                is_first, self.killed.value = self.killed.value < 2, self.killed.value + 1
            if is_first:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_killed_worker_changes_no_batch():
    dataset = Killing({8, 50})
    assert same_batches(loader_of(dataset), loader_of(Clips()))
    assert dataset.killed.value >= 2


class Met(Dataset):
    """Samples that are made two at a time, one in each worker, and say who has made them."""

    def __init__(self, files, count=2):
        self.files, self.barrier = files, multiprocessing.Barrier(count)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        self.barrier.wait(60)
        return index, os.getpid()

    def sample_file(self, index):
        return self.files[index]


def test_samples_of_one_file_are_made_by_one_worker():
    files = [number * 3 % 8 for number in range(64)]
    loader = loader_of(Met(files), batch_size=8, shuffle=False, tiny_batch_size=1)
    makers = {}
    for indices, pids in loader:
        for index, pid in zip(indices.tolist(), pids.tolist(), strict=True):
            makers.setdefault(files[index], set()).add(pid)
    assert [len(makers[file]) for file in range(8)] == [1] * 8
    assert len(set().union(*makers.values())) == 2


class Reading(Dataset):
    def __init__(self, paths):
        self.paths, self.files = paths, OpenFiles(partial(open, mode="rb"), most=2)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        file = self.files[self.sample_file(index)]
        file.seek(0)
        return int(file.read()) * 100 + index

    def sample_file(self, index):
        return self.paths[index % len(self.paths)]


@pytest.mark.parametrize("options", [{}, {"collate_fn": torch.tensor}], ids=["rows", "whole"])
def test_files_that_workers_keep_open_are_counted(tmp_path, options):
    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths:
        path.write_text(path.name)
    dataset = Reading(paths)
    assert dataset[7] == 207  # the training process has a file open, which workers do not use
    loader = loader_of(dataset, shuffle=False, multiprocessing_context="fork", **options)
    assert [int(n) for batch in loader for n in batch] == [n % 5 * 100 + n for n in range(40)]
    stats = loader.stats()
    assert stats.files_opened >= 5
    assert stats.files_opened + stats.files_reused == 40
    assert f"{stats.files_opened:,} files opened (OpenFiles)" in str(stats)


class ReadingAll(IterableDataset):
    def __init__(self, paths):
        self.reading = Reading(paths)

    def __iter__(self):
        return iter([self.reading[index] for index in range(40)])


def test_files_that_a_stream_keeps_open_are_counted(tmp_path):
    (tmp_path / "3").write_text("3")
    loader = FusionLoader(ReadingAll([tmp_path / "3"]), 8, num_workers=1)
    assert [int(n) for batch in loader for n in batch] == list(range(300, 340))
    stats = loader.stats()
    assert (stats.files_opened, stats.files_reused) == (1, 39)


SAID = "each worker begins with files of its own, and helps with others' (sample_file)"
NOT = "workers do not keep to files of their own (sample_file): "
EXPLAINED = {
    "two workers": ({}, SAID),
    "one worker": ({"num_workers": 1}, f"{NOT}there is one worker"),
    "a collate function": ({"collate_fn": list}, f"{NOT}batches are made whole"),
}


@pytest.mark.parametrize(("options", "line"), EXPLAINED.values(), ids=EXPLAINED)
def test_explain_says_whether_workers_keep_to_files(options, line):
    assert line in loader_of(NamedClips(), **options).explain().splitlines()
    assert "sample_file" not in loader_of(Clips(), **options).explain()


def test_without_workers_files_have_no_part():
    assert "sample_file" not in loader_of(NamedClips(), num_workers=0).explain()

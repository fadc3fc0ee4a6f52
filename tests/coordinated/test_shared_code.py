"""Jobs that share what user code makes: own datasets, collate functions and samplers."""

import os
import random
import resource
import signal

import numpy as np
import pytest
import torch
from jobs import OPTIONS, all_rest, alone, coordinators, digest, epoch, left, make_loader, together
from support.datasets import Random
from support.waiting import wait_until
from torch.utils.data import Dataset, default_collate

from fusionloader import FusionLoader
from fusionloader.sharing.jobs.address import coordinator_address


class Noisy(Dataset):
    """Images with noise from all three generators; a batch of them does not fit a message."""

    def __init__(self, size=40, level=1.0):
        self.size, self.level = size, level

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        index = index[0] if isinstance(index, tuple) else index
        noise = torch.rand(3, 24, 24) + random.random() + np.random.rand()
        return noise * self.level + index, index


class Failing(Noisy):
    def __getitem__(self, index):
        if index == 5:
            raise KeyError("no such sample")
        return super().__getitem__(index)


class Lists(Noisy):
    """Makes whole lists of samples."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Uneven(Noisy):
    """Samples of other shapes, which only its collate function makes one of."""

    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return image[:, : 8 + index % 16], target


class Pairs:
    """A sampler of indices that are no integers."""

    def __len__(self):
        return 40

    def __iter__(self):
        return iter([(index * 7 % 40, "of a pair") for index in range(40)])


def flipped(samples):
    images, targets = default_collate(samples)
    return images + torch.rand(1), targets


def padded(samples):
    rows = max(image.shape[1] for image, _ in samples)
    images = torch.zeros(len(samples), 3, rows, 24)
    for image, (sample, _) in zip(images, samples, strict=True):
        image[:, : sample.shape[1]] = sample
    return images, torch.tensor([target for _, target in samples])


class Views(Noisy):
    """Views of tensors in shared memory."""

    def __init__(self):
        super().__init__()
        self.rows = torch.arange(40 * 2048.0).reshape(40, 2048).share_memory_()

    def __getitem__(self, index):
        return self.rows[index], torch.tensor([index])


def first(samples):
    return samples[0]


def last_is_large(samples):
    return torch.zeros(1 << 24 if samples[0][1] == 36 else 1 << 16, dtype=torch.uint8)


def named(samples):
    return [*default_collate(samples), [f"{number} of a batch" for number in range(8192)]]


def texts(samples):
    """Adds texts that go with a message, a few of which fill a socket's buffer."""
    return [*default_collate(samples), [f"{number:1000}" for number in range(25)]]


CODE = {
    "an own dataset": (Noisy(), {}),
    "a collate function": (Noisy(), {"collate_fn": flipped}),
    "lists of samples": (Lists(), {}),
    "samples of other shapes": (Uneven(), {"collate_fn": padded}),
    "indices that are no integers": (Noisy(), {"sampler": Pairs()}),
    "views of shared memory": (Views(), {"collate_fn": first}),
}


@pytest.mark.parametrize("name", CODE)
@pytest.mark.few(2)
def test_jobs_with_user_code_have_the_batches_that_they_would_make_alone(group, name):
    dataset, options = CODE[name]
    jobs = group(2, dataset=dataset, **options)
    for expected in alone(dataset, epochs=2, **options):
        assert epoch(jobs) == [expected] * 2
    stats = [job.ask("stats") for job in jobs]
    assert left(jobs) == []
    if all(each.alone_batches == 0 for each in stats):
        assert sum(each.made_here for each in stats) == 2 * len(dataset)


def test_tensors_in_memory_are_shared(group):
    dataset = torch.utils.data.TensorDataset(torch.rand(40, 3, 8, 8), torch.arange(40))
    jobs = group(2, dataset=dataset)
    (expected,) = alone(dataset)
    assert epoch(jobs) == [expected] * 2


def test_batches_may_be_of_any_type(word):
    dataset = Random()
    options = {"collate_fn": list, "shuffle": False}
    loaders = [make_loader(dataset, share, options) for share in (None, word)]
    expected, found = (list(loader) for loader in loaders)
    assert repr(found) == repr(expected)
    loaders[1].close()


@pytest.mark.parametrize("collate", [default_collate, named], ids=["tensors", "long pickles"])
@pytest.mark.few(1)
def test_a_job_may_keep_all_batches_of_user_code(word, collate):
    expected = make_loader(Noisy(), None, {"collate_fn": collate})
    loader = make_loader(Noisy(), word, {"collate_fn": collate})
    for _ in range(2):
        kept = list(loader)
        assert list(map(digest, kept)) == list(map(digest, expected))
    del kept
    loader.close()


class Counted(Noisy):
    """Appends a byte to a file for each sample that is made."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def __getitem__(self, index):
        with self.path.open("ab") as file:
            file.write(b".")
        return super().__getitem__(index)


def test_a_job_that_reads_no_messages_for_long_has_all_batches_later(word, tmp_path):
    options = {"collate_fn": texts, "sampler": [index * 7 % 40 for index in range(160)]}
    options["prefetch_factor"] = 16
    dataset = Counted(tmp_path / "made")
    (expected,) = alone(dataset, **options)
    before = dataset.path.stat().st_size
    loader = make_loader(dataset, word, options)
    iterator = iter(loader)
    found = [digest(next(iterator))]
    wait_until(lambda: dataset.path.stat().st_size >= before + 16 * 4)  # all that are submitted
    found += map(digest, iterator)
    assert found == expected
    assert loader.stats().shared_prep.why_alone == ""
    loader.close()


def test_a_job_goes_on_alone_when_there_is_no_memory_for_a_batch(word):
    options = {"collate_fn": last_is_large, "shuffle": False, "prefetch_factor": 2}
    loader = make_loader(Noisy(), word, options)
    iterator = iter(loader)
    sizes = [len(next(iterator))]
    (pid,) = {each.pid for each in coordinators(coordinator_address(word))}
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 23, most))
    sizes += map(len, iterator)
    assert sizes == [1 << 16] * 9 + [1 << 24]
    assert "shared memory" in loader.stats().shared_prep.why_alone
    loader.close()


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_errors_of_user_code_are_for_every_job_what_they_are_alone(group, on_error):
    options = {"on_error": on_error, "shuffle": False}
    jobs = group(2, dataset=Failing(), **options)
    if on_error == "skip":
        assert all_rest(jobs) == alone(Failing(), **options) * 2
        return
    together(jobs, 1)
    for job in jobs:
        with pytest.raises(KeyError, match="no such sample"):
            job.take(1)


@pytest.mark.parametrize(
    ("signals", "taken"),
    [((signal.SIGKILL,) * 3, 8), ((signal.SIGSTOP, signal.SIGCONT), 12)],
    ids=["killed", "stopped"],
)
def test_workers_of_user_code_that_die_or_stop_lose_no_batch(group, signals, taken):
    options = {"sampler": [index * 7 % 40 for index in range(160)], "prefetch_factor": 2}
    jobs = group(2, dataset=Noisy(), **options)
    (expected,) = alone(Noisy(), **options)
    found = together(jobs, 1)
    for number in signals:
        if number != signal.SIGCONT:  # which is for those that were stopped
            struck = jobs if number == signal.SIGKILL else jobs[:1]
            workers = [worker for job in struck for worker in job.ask("workers")]
        for worker in workers:
            os.kill(worker, number)
        for job in jobs:
            job.tell("take", taken)
        for batches, job in zip(found, jobs, strict=True):
            batches += job.answer()
    for batches, more in zip(found, all_rest(jobs), strict=True):
        batches += more
    assert found == [expected] * 2


DIFFERENT = {
    "an attribute": (Noisy(level=2.0), {}, "dataset is Noisy of 40 samples, .* here and Noisy of"),
    "the class": (Lists(), {}, "dataset is Lists of 40 samples"),
    "collate_fn": (Noisy(), {"collate_fn": flipped}, "collate_fn is flipped, .* and default_coll"),
}


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.few(2)
def test_a_job_with_other_code_is_refused(group, name):
    dataset, options, message = DIFFERENT[name]
    first, other = group(dataset=Noisy()), group(dataset=dataset, **options)
    first.take(1)
    with pytest.raises(ValueError, match=message):
        other.take(1)


def test_a_dataset_that_cannot_be_compared_is_refused():
    dataset = Noisy()
    dataset.file = open(os.devnull)  # noqa: SIM115
    with (
        dataset.file,
        pytest.raises(ValueError, match=r"cannot be compared between jobs: .*pickle"),
    ):
        iter(FusionLoader(dataset, share="x", **OPTIONS))

"""Workers that go through a dataset on their own: torch's batches, also where one is replaced."""

import multiprocessing
import os
import random
import signal
from collections import UserDict, UserString

import pytest
import torch
from support.batches import same_batches
from support.waiting import PATIENCE, gone, wait_until
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from fusionloader import FusionLoader


class Parts(IterableDataset):
    """Draws, and numbers of which the first worker has fewer than the others."""

    def numbers(self):
        info = get_worker_info()
        return range(info.id, 41 - 20 * (info.id == 0), info.num_workers)

    def __iter__(self):
        return (torch.cat([torch.rand(2), torch.tensor([float(n)])]) for n in self.numbers())


class KnowsItsPlace(Parts):
    place = 0

    def __iter__(self):
        begun, self.place = self.place, 0
        for place, number in enumerate(self.numbers(), start=1):
            if place > begun:
                self.place = place
                yield torch.tensor([random.random(), torch.rand(()), float(number)])
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class IteratorKnowsItsPlace(Parts):
    def __iter__(self):
        return Place(self.numbers())


class Place:
    def __init__(self, numbers):
        self.numbers, self.place = numbers, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.place == len(self.numbers):
            raise StopIteration
        self.place += 1
        return torch.tensor([torch.rand(()), float(self.numbers[self.place - 1])])

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class Counting(Dataset):
    """Each worker counts the samples that it has made."""

    made = 0

    def __len__(self):
        return 42

    def __getitem__(self, index):
        self.made += 1
        return torch.tensor([index, self.made, get_worker_info().id]), torch.rand(())

    def state_dict(self):
        return {"made": self.made}

    def load_state_dict(self, state):
        self.made = state["made"]


WITH_STATE = [KnowsItsPlace, IteratorKnowsItsPlace, Counting]


@pytest.mark.parametrize("dataset", [Parts, *WITH_STATE])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"drop_last": True}, {"batch_size": None}, {"persistent_workers": True}],
    ids=lambda options: next(iter(options), "batches"),
)
@pytest.mark.few(3)
def test_batches_are_torchs_in_every_epoch(dataset, workers, options):
    found = []
    for loader_class in (DataLoader, FusionLoader):
        loader = loader_class(dataset(), num_workers=workers, **({"batch_size": 4} | options))
        for epoch in range(2):
            torch.manual_seed(epoch)
            found.append(list(loader))
    assert same_batches(found[0], found[2]) and same_batches(found[1], found[3])


class AsksItsLoader:
    """Methods of MosaicML's and LitData's datasets, which only their own loaders can call."""

    def state_dict(self, num_samples, from_beginning):
        raise AssertionError

    def load_state_dict(self, state):
        raise AssertionError


class StreamAsksItsLoader(AsksItsLoader, Parts):
    pass


class MapAsksItsLoader(AsksItsLoader, Dataset):
    def __len__(self):
        return 42

    def __getitem__(self, index):
        return torch.tensor(index)


@pytest.mark.parametrize("dataset", [StreamAsksItsLoader, MapAsksItsLoader])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_that_only_another_loader_can_ask_for_is_none(dataset, workers, monkeypatch):
    if workers == 0:
        monkeypatch.setattr(Parts, "numbers", lambda self: range(41))
    torch.manual_seed(0)
    expected = list(DataLoader(dataset(), 4, num_workers=workers))
    torch.manual_seed(0)
    loader = FusionLoader(dataset(), 4, num_workers=workers)
    found = iter(loader)
    first = next(found)
    state = loader.state_dict()
    assert same_batches([first, *found], expected)
    resumed = FusionLoader(dataset(), 4, num_workers=workers)
    resumed.load_state_dict(state)
    assert len(list(resumed)) == len(expected) - 1


class NeitherTrueNorFalse(UserDict):
    def __bool__(self):
        raise RuntimeError("as that of a TensorDict")


class Letters(IterableDataset):
    def __iter__(self):
        return map(UserString, "abc")


def undecided(samples):
    return NeitherTrueNorFalse(samples=torch.tensor([ord(str(each)) for each in samples]))


@pytest.mark.parametrize("collate_fn", [undecided, list])
def test_a_batch_may_be_of_containers_that_cannot_be_counted(collate_fn):
    options = {"num_workers": 1, "collate_fn": collate_fn, "timeout": PATIENCE}
    expected, found = (
        list(loader_class(Letters(), 2, **options)) for loader_class in (DataLoader, FusionLoader)
    )
    assert same_batches([*map(plain, found)], [*map(plain, expected)])


def plain(batch):
    return dict(batch) if isinstance(batch, UserDict) else [str(each) for each in batch]


class ItsOwnIterator(IterableDataset):
    def __iter__(self):
        self.left = list(range(21))
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        return self.left.pop()


@pytest.mark.few(2)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [4, None])
def test_iter_is_called_once_an_epoch(workers, batch_size):
    datasets = [ItsOwnIterator() for _ in range(2)]
    loaders = [
        loader_class(dataset, batch_size, num_workers=workers)
        for loader_class, dataset in zip((DataLoader, FusionLoader), datasets, strict=True)
    ]
    for _ in range(2):
        expected, found = map(list, loaders)
        assert len(found) == len(expected) and same_batches(found, expected)


def loader_of(dataset, **options):
    torch.manual_seed(7)
    return FusionLoader(dataset, 4, num_workers=2, timeout=PATIENCE, **options)


def kill(iterator, worker):
    process = iterator._workers[worker]
    process.kill()
    process.join(5)


@pytest.mark.usefixtures("any_may_die")
@pytest.mark.parametrize("dataset", WITH_STATE)
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"in_order": False}])
@pytest.mark.few(2)
def test_nothing_is_lost_or_doubled_where_workers_die(dataset, options):
    generator = random.Random(3)
    undisturbed = loader_of(dataset(), **options)
    expected = [*undisturbed, *undisturbed]
    loader, found = loader_of(dataset(), **options), []
    for _ in range(2):
        iterator = iter(loader)
        begun = set()
        if dataset is not IteratorKnowsItsPlace:  # of which nobody knows before it has begun
            kill(iterator, 0)
            begun = {0, 1}
        for batch in iterator:
            found.append(batch)
            if dataset is IteratorKnowsItsPlace:
                begun.add(int(batch[0][-1]) % 2)
            worker = generator.randrange(2)
            if worker in begun and generator.random() < 0.5:
                kill(iterator, worker)
    if options.get("in_order") is False:
        if dataset is Counting:  # whose numbers depend on who was free for a mini-batch
            expected, found = ([batch[0][:, 0] for batch in each] for each in (expected, found))
        expected, found = (sorted(each, key=str) for each in (expected, found))
    assert same_batches(expected, found)
    assert sum(worker.restarts for worker in loader.stats().workers) > 2
    loader.close()


class SecondWaits(IterableDataset):
    def __init__(self, may_go_on):
        self.may_go_on = may_go_on

    def __iter__(self):
        info = get_worker_info()
        if info.id == 1:
            assert self.may_go_on.wait(PATIENCE)
        yield from (torch.tensor([info.id, number]) for number in range(10))


def test_out_of_order_a_worker_that_waits_keeps_no_other_waiting():
    may_go_on = multiprocessing.Event()
    loader = FusionLoader(SecondWaits(may_go_on), None, num_workers=2, in_order=False)
    iterator = iter(loader)
    # Of two that are complete when training looks, either may come first.
    found = sorted(next(iterator).tolist() for _ in range(10))
    assert found == [[0, number] for number in range(10)]
    may_go_on.set()
    found = sorted(batch.tolist() for batch in iterator)
    assert found == [[1, number] for number in range(10)]


@pytest.mark.few(1)
@pytest.mark.usefixtures("any_may_die")
@pytest.mark.parametrize("batch_size", [4, None])
def test_a_worker_whose_part_has_ended_gives_nothing_once_more(batch_size):
    for dataset in (Parts(), KnowsItsPlace()):
        loader = loader_of(dataset) if batch_size else FusionLoader(dataset, None, num_workers=2)
        expected, found = list(loader), []
        iterator = iter(loader)
        for batch in iterator:
            found.append(batch)
            if len(found) == len(expected) - 1:  # the first worker has ended long ago
                kill(iterator, 0)
        assert len(found) == len(expected)


@pytest.mark.usefixtures("any_may_die")
def test_the_error_names_a_worker_in_whose_place_nobody_can_go_on():
    iterator = iter(loader_of(Parts()))
    next(iterator)
    pid = iterator._workers[0].pid
    os.kill(pid, signal.SIGKILL)
    told = rf"worker \(pid\(s\) {pid}\) exited unexpectedly: worker 0 is killed by signal: Killed"
    for _ in range(2):  # it is not forgotten
        with pytest.raises(RuntimeError, match=told):
            list(iterator)


class DiesAtSix(KnowsItsPlace):
    def __iter__(self):
        for sample in super().__iter__():
            if sample[2] == 6:
                os.kill(os.getpid(), signal.SIGKILL)
            yield sample


def test_three_deaths_at_a_mini_batch_are_an_error_that_names_it():
    iterator = iter(loader_of(DiesAtSix()))
    with pytest.raises(RuntimeError, match=r"3 workers died on the same samples.*: mini-batch 0\b"):
        next(iterator)
    assert next(iterator)[:, 2].tolist() == [1, 3, 5, 7]


def test_a_pass_that_was_left_is_begun_again_by_the_same_workers():
    loader = loader_of(Parts(), persistent_workers=True)
    first = [batch[:, 2].tolist() for batch in loader]
    workers = [process.pid for process in loader._iterator._workers]
    next(iter(loader))
    assert [batch[:, 2].tolist() for batch in loader] == first
    assert [process.pid for process in loader._iterator._workers] == workers
    loader.close()
    wait_until(lambda: all(map(gone, workers)), "workers are left")


def test_workers_are_counted(tmp_path):
    loader = loader_of(KnowsItsPlace())
    samples = sum(len(batch) for batch in loader)
    stats = loader.stats()
    assert stats.samples == samples == sum(worker.samples for worker in stats.workers)
    assert {worker.kind for worker in stats.workers} == {"python"}


class RaisesAtSix(Place):
    def __next__(self):
        sample = super().__next__()
        if sample[1] == 6:
            raise ValueError("no six")
        return sample


class Raising(Parts):
    def __iter__(self):
        return RaisesAtSix(self.numbers())


def test_an_error_costs_the_samples_that_torch_loses_by_it():
    found = []
    for loader_class in (DataLoader, FusionLoader):
        iterator = iter(loader_class(Raising(), 4, num_workers=2))
        with pytest.raises(ValueError, match="Caught ValueError in DataLoader worker process 0"):
            next(iterator)
        found.append([batch[:, 1].tolist() for batch in iterator])
    assert found[0] == found[1]

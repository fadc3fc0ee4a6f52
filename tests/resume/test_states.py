"""``state_dict()``: its content, states that are refused, and states of samplers and datasets."""

import contextlib
import itertools
import json
import pickle
import signal
import sys

import pytest
import torch
from support.batches import same_batches
from support.datasets import Counting, Nested, Numbers, Stream
from support.raised_at import CALLS, Steps, needs_returns
from torch.utils.data import Dataset, IterableDataset, RandomSampler, Sampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from fusionloader import FusionLoader
from fusionloader.data.epochs.epochs import Epochs
from fusionloader.engine.iterators import single_process


class CountingIterator:
    def __init__(self, size):
        self.size, self.position = size, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.position == self.size:
            raise StopIteration
        self.position += 1
        return self.size - self.position

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class OfIterator(Sampler):
    """A sampler whose iterator has the state."""

    def __init__(self, size=24):
        self.size = size

    def __iter__(self):
        return CountingIterator(self.size)

    def __len__(self):
        return self.size


class Batches(Counting):
    """A batch sampler with a state."""

    def __iter__(self):
        for index in super().__iter__():
            yield [index, 0]


def resumed(make, taken, epochs=0):
    """The batches after ``taken`` ones of epoch ``epochs``, without interruption and resumed."""
    loader = make()
    for _ in range(epochs):
        list(loader)
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    expected = list(iterator)
    again = make()
    again.load_state_dict(state)
    return expected, list(again), list(loader), list(again)


SAMPLERS = {
    "a sampler": lambda: {"sampler": Counting()},
    "its iterator": lambda: {"sampler": OfIterator()},
    "a batch sampler": lambda: {"batch_sampler": Batches()},
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("taken", [0, 1, 4])
@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.few(4)
def test_stateful_samplers_go_on_where_they_were(workers, kind, taken, epochs):
    def make():
        arguments = SAMPLERS[kind]()
        if "sampler" in arguments:
            arguments["batch_size"] = 5
        return FusionLoader(Numbers(), num_workers=workers, seed=1, **arguments)

    expected, found, next_epoch, next_found = resumed(make, taken, epochs)
    assert len(expected) > 0
    assert same_batches(expected, found)
    assert same_batches(next_epoch, next_found)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_after_an_epoch_stateful_samplers_begin_the_next(kind):
    def make():
        return FusionLoader(Numbers(), seed=1, **SAMPLERS[kind]())

    loader = make()
    list(loader)
    state = loader.state_dict()
    again = make()
    again.load_state_dict(state)
    assert same_batches(list(loader), again)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("taken", [0, 1, 3, 7])
@pytest.mark.few(1)
def test_streams_go_on_in_every_worker_without_reading_again(taken, persistent):
    def make():
        return FusionLoader(
            Stream([3, 17, 9]), 2, num_workers=3, persistent_workers=persistent, seed=1
        )

    expected, found, *_ = resumed(make, taken)
    positions = [batch[:, :2] for batch in expected]
    assert same_batches(positions, [batch[:, :2] for batch in found])
    if taken == 7:
        assert max(int(batch[:, 2].max()) for batch in found) < 17


def test_a_stream_goes_on_in_this_process():
    expected, found, *_ = resumed(lambda: FusionLoader(Stream([20]), 3), 2)
    assert same_batches([b[:, :2] for b in expected], [b[:, :2] for b in found])


@pytest.mark.parametrize("kind", ["handler", "Ctrl-C in the dataset", "Ctrl-C", "no memory"])
def test_a_state_within_next_is_that_before_its_mini_batch(kind, monkeypatch):
    saved, read = [], []

    class Signalling(Stream):
        def __iter__(self):
            for sample in super().__iter__():
                read.append(sample)
                if len(read) == 8 and kind.endswith(("handler", "dataset")):
                    signal.raise_signal(signal.SIGUSR1)
                yield sample

    def collate(samples):
        if len(read) == 9 and kind == "Ctrl-C":
            raise KeyboardInterrupt
        return torch.stack(samples)

    def to_device(batch, device):
        if len(read) == 9 and kind == "no memory":
            raise MemoryError
        return batch

    def handler(number, frame):
        if kind == "handler":
            saved.append(loader.state_dict())
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr(single_process, "to_device", to_device)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        loader = FusionLoader(Signalling([20]), 3, collate_fn=collate)
        iterator = iter(loader)
        taken = [next(iterator), next(iterator)]
        with contextlib.suppress(KeyboardInterrupt, MemoryError):
            next(iterator)
            assert kind == "handler"
    finally:
        signal.signal(signal.SIGUSR1, before)
    again = FusionLoader(Signalling([20]), 3)
    again.load_state_dict(saved[0] if saved else loader.state_dict())
    assert torch.cat([*taken, *again])[:, 1].tolist() == list(range(1, 21))


class TakenUpLate(IterableDataset):
    """A dataset that takes up a state with the first sample of its next pass."""

    def __init__(self):
        self.position, self.start = 0, None

    def __iter__(self):
        self.position, self.start = self.start or 0, None
        while self.position < 12:
            self.position += 1
            yield self.position - 1
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.start = state["position"]


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("resumed_at", [0, 2])
def test_a_state_of_a_first_batch_is_that_of_the_epoch_s_start(resumed_at, epochs, within):
    saving, saved = [], []

    def collate(samples):
        if saving:
            saved.append(saving.pop().state_dict())
        return samples

    def loaded(state):
        loader = FusionLoader(TakenUpLate(), 4, collate_fn=collate)
        loader.load_state_dict(state)
        return loader

    loader = FusionLoader(TakenUpLate(), 4, collate_fn=collate)
    for _ in range(epochs):
        assert sum(loader, []) == list(range(12))
    taken = sum(itertools.islice(loader, resumed_at), [])
    if resumed_at:
        loader = loaded(loader.state_dict())
    iterator = iter(loader)
    if within:
        saving.append(loader)
        next(iterator)
    else:
        saved.append(loader.state_dict())
    assert taken + sum(loaded(saved[0]), []) == list(range(12))


class Remembering(Numbers):
    """A sampler whose state is that of the global generator."""

    def __getitem__(self, index):
        return str(index)

    def state_dict(self):
        return {"generator": torch.get_rng_state()}

    def load_state_dict(self, state):
        torch.set_rng_state(state["generator"])


@pytest.mark.parametrize("taken", [1, 3, 6, 7, 12, "one epoch", "two epochs"])
def test_a_state_of_the_global_generator_goes_on_as_if_nothing_had_been(taken):
    def batches_of(loader, epochs=3):
        for _ in range(epochs):
            yield from loader

    torch.manual_seed(0)
    expected = list(itertools.islice(batches_of(FusionLoader(Remembering(), 4, True)), 18))
    torch.manual_seed(0)
    loader = FusionLoader(Remembering(), 4, True)
    epochs = {"one epoch": 1, "two epochs": 2}
    if taken in epochs:  # to the end: the last batch has been asked for, and there was none
        begun = list(batches_of(loader, epochs[taken]))
    else:
        begun = list(itertools.islice(batches_of(loader), taken))
    state = loader.state_dict()
    torch.manual_seed(1)
    resumed = FusionLoader(Remembering(), 4, True)
    resumed.load_state_dict(state)
    assert begun + list(itertools.islice(batches_of(resumed), 18 - len(begun))) == expected


def test_a_stream_is_not_taken_on_by_another_number_of_workers():
    loader = FusionLoader(Stream([9, 9]), 2, num_workers=2)
    next(iter(loader))
    with pytest.raises(ValueError, match="num_workers = 2.*IterableDataset"):
        FusionLoader(Stream([9, 9]), 2).load_state_dict(loader.state_dict())


def test_the_generator_of_a_sampler_of_ones_own_is_resumed():
    def make():
        generator = torch.Generator().manual_seed(3)
        sampler = RandomSampler(Numbers(), generator=generator)
        return FusionLoader(Numbers(), 5, sampler=sampler)

    loader = make()
    list(loader)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    expected = list(iterator)
    again = make()
    again.load_state_dict(state)
    assert same_batches(expected, again)


def test_loading_changes_nothing_that_is_saved_next():
    loader = FusionLoader(Nested(), 4, shuffle=True, num_workers=2)
    next(iter(loader))
    state = loader.state_dict()
    again = FusionLoader(Nested(), 4, shuffle=True)
    again.load_state_dict(state)
    assert again.state_dict() == state


def test_setting_the_epoch_after_iter_does_not_lose_a_resumed_place():
    def make():
        sampler = DistributedSampler(Numbers(), 1, 0)
        return FusionLoader(Numbers(), 5, sampler=sampler, num_workers=2), sampler

    loader, sampler = make()
    sampler.set_epoch(3)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    expected = list(iterator)
    again, sampler = make()
    again.load_state_dict(state)
    iterator = iter(again)
    sampler.set_epoch(3)
    assert same_batches(expected, list(iterator))


def distributed(ranks, batch_size=4):
    return FusionLoader(Numbers(), batch_size, sampler=DistributedSampler(Numbers(), ranks, 0))


class Others(Numbers):
    pass


@pytest.mark.parametrize(
    "other, told",
    [
        (FusionLoader(Numbers(25), 4), "dataset_size"),
        (FusionLoader(Others(), 4), "dataset_type = 'Numbers'.*'Others'"),
        (FusionLoader(Numbers(), 8), "batch_size = 4.*8"),
        (FusionLoader(Numbers(), 4, drop_last=True), "drop_last"),
        (distributed(4), "world_size = 1.*4"),
    ],
    ids=["size", "type", "batch size", "drop_last", "world size"],
)
def test_a_state_of_something_else_is_refused_by_name(other, told):
    with pytest.raises(ValueError, match=told):
        other.load_state_dict(FusionLoader(Numbers(), 4).state_dict())


@pytest.mark.parametrize("ranks", ["same", "reshard"])
def test_a_state_that_lacks_anything_is_refused_by_name(ranks):
    loader = FusionLoader(Numbers(), 4, num_workers=1)
    next(iter(loader))
    state = loader.state_dict()
    for name in state.keys() - {"version"}:
        damaged = {other: value for other, value in state.items() if other != name}
        with pytest.raises(ValueError, match=f"lacks {name}"):
            loader.load_state_dict(damaged, ranks=ranks)
    loader.load_state_dict(state, ranks=ranks)
    assert len(list(loader)) == 5


def test_a_state_of_other_files_is_refused(train_set):
    state = FusionLoader(train_set, 4).state_dict()
    train_set.samples = [(f"{path}x", target) for path, target in train_set.samples]
    with pytest.raises(ValueError, match="dataset_files"):
        FusionLoader(train_set, 4).load_state_dict(state)


def test_a_moved_folder_is_the_same_dataset(train_set):
    state = FusionLoader(train_set, 4).state_dict()
    train_set.samples = [(f"/elsewhere{path}", target) for path, target in train_set.samples]
    FusionLoader(train_set, 4).load_state_dict(state)


class Unsized(Numbers):
    def __len__(self):
        raise ValueError("it is not known how many there are")


class UnsizedStream(IterableDataset):
    __len__ = Unsized.__len__

    def __iter__(self):
        return iter(range(24))


class Faulty(IterableDataset):
    """Its iterators raise once, and go on."""

    def __iter__(self):
        def read(number):
            if number == 4:
                raise ValueError("bad record")
            return number

        return map(read, range(12))


def taken(iterator, count):
    """Batches, and where one failed its error's class."""
    found = []
    for _ in range(count):
        try:
            found.append(next(iterator).tolist())
        except (ValueError, StopIteration) as error:
            found.append(type(error))
    return found


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("before", [1, 3, 4])
def test_a_stream_that_has_failed_goes_on_behind_its_error(workers, before):
    loader, again = (FusionLoader(Faulty(), 2, num_workers=workers) for _ in range(2))
    iterator = iter(loader)
    failed = ValueError in taken(iterator, before)
    again.load_state_dict(loader.state_dict())
    resumed = iter(again)
    assert not failed or taken(resumed, 1) == [ValueError]  # it is raised again, and not counted
    assert again.state_dict()["delivered"] == before
    assert taken(resumed, 6) == taken(iterator, 6)
    assert again.state_dict() == loader.state_dict()


@pytest.mark.parametrize("kind", [Unsized, UnsizedStream])
def test_a_dataset_that_refuses_its_length_has_a_state(kind):
    def make():
        sampler = Counting() if kind is Unsized else None
        return FusionLoader(kind(), 4, sampler=sampler, num_workers=1)

    loader, again = make(), make()
    iterator = iter(loader)
    next(iterator)
    again.load_state_dict(loader.state_dict())
    found = [batch for batch in again]  # list() asks for the length
    assert len(found) == 5 and same_batches(found, iterator)


class Folder(Dataset):
    """As large as an ImageFolder of a tenth of ImageNet."""

    def __init__(self):
        self.samples = [(f"/data/n{i % 1000:08}/{i % 1000:08}_{i}.JPEG", 0) for i in range(130_000)]
        self.read = 0

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        self.read += 1
        return torch.tensor(index)


def calls_in(function):
    """The number of calls of Python functions, which does not depend on the machine."""
    count = 0

    def called(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_a_state_of_a_large_dataset_is_made_and_resumed_with_little_work():
    dataset = Folder()
    loader = FusionLoader(dataset, 256, shuffle=True)
    iterator = iter(loader)
    next(iterator)
    assert calls_in(loader.state_dict) < 200
    state = loader.state_dict()
    assert len(json.dumps(state)) < 10_000
    assert len(pickle.dumps(state)) < 10_000
    state["delivered"] = len(loader) // 2
    again = FusionLoader(dataset, 256, shuffle=True)
    dataset.read = 0

    def resume():
        again.load_state_dict(state)
        next(iter(again))

    # Two samplers pass each index that was delivered, which is half of them; nobody reads it.
    assert calls_in(resume) < len(dataset) + 20_000
    assert dataset.read == 256


def test_the_argument_of_torchdatas_loader_is_taken_and_changes_nothing():
    loader = FusionLoader(range(8), 2, snapshot_every_n_steps=3)
    assert loader.snapshot_every_n_steps == 3
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1]
    other = FusionLoader(range(8), 2, snapshot_every_n_steps=3)
    other.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in other] == [[2, 3], [4, 5], [6, 7]]


@needs_returns
@pytest.mark.parametrize("taken", [4, 12], ids=["within an epoch", "between epochs"])
def test_a_loaded_state_outlives_an_exception_in_iter(taken):
    def make():
        return FusionLoader(TensorDataset(torch.arange(24)), 2, sampler=Counting(24))

    first = make()
    iterator = iter(first)
    list(itertools.islice(iterator, taken))
    if taken == 12:
        list(iterator)
    state = first.state_dict()
    rest = [batch for (batch,) in (iterator if taken < 12 else first)]

    def interrupted(position):
        loader = make()
        loader.load_state_dict(state)
        steps = Steps("data/epochs", events=(*CALLS, "c_return"))
        with contextlib.suppress(KeyboardInterrupt):
            steps.raise_at(position, KeyboardInterrupt(), lambda: iter(loader))
        return steps, loader

    for position in itertools.count():
        steps, loader = interrupted(position)
        if steps.place is None:
            break
        assert same_batches(rest, [batch for (batch,) in loader]), steps.place
    assert position > 10


def test_an_iterator_whose_next_epoch_was_interrupted_goes_on_with_it(monkeypatch):
    """And not with the epoch before, which was resumed."""

    def make():
        dataset = TensorDataset(torch.arange(12))
        return FusionLoader(dataset, 2, num_workers=1, persistent_workers=True)

    first = make()
    taken = list(itertools.islice(first, 3))
    loader = make()
    loader.load_state_dict(first.state_dict())
    iterator = iter(loader)
    rest = list(iterator)
    assert torch.cat([batch for (batch,) in taken + rest]).tolist() == list(range(12))
    with monkeypatch.context() as patch:
        patch.setattr(Epochs, "start", interrupted_start)
        with pytest.raises(KeyboardInterrupt):
            iter(loader)
    assert torch.cat([batch for (batch,) in iterator]).tolist() == list(range(12))


def interrupted_start(epochs, options, base_seed):
    raise KeyboardInterrupt

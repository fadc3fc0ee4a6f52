"""Threads that share an iterator: each batch and each error comes once, and states count all."""

import contextlib
import functools
import itertools
import os
import signal
import sys
import threading
from collections import Counter

import pytest
import torch
from support.waiting import wait_until
from torch.utils.data import ConcatDataset, IterableDataset, Sampler, TensorDataset, get_worker_info
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Resize, ToTensor

from fusionloader import FusionLoader
from fusionloader.engine.iterators import in_process, single_process, slot_iterator

MODULES = (in_process, single_process, slot_iterator)


@contextlib.contextmanager
def frequent_switches():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def in_threads(action, count=3):
    threads = [threading.Thread(target=action) for _ in range(count)]
    with frequent_switches():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class Numbers(IterableDataset):
    def __iter__(self):
        return iter([(number,) for number in range(1000)])


class Positioned(IterableDataset):
    """Of which each worker has a part, and knows where it is."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        info = get_worker_info()
        while self.position < 500:
            self.position += 1
            yield (info.id + (self.position - 1) * info.num_workers,)

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        *[("tensors", 0), ("tensors", 2), ("plan", 0), ("own", 0), ("own", 1)],
        *[("stream", 0), ("stream", 1), ("positioned", 2)],
    ],
)
def test_a_state_counts_what_threads_have_taken(kind, workers, image_folder):
    numbers, small = torch.arange(1000), Compose([Resize((2, 2)), ToTensor()])
    datasets = {
        "tensors": TensorDataset(numbers),
        "plan": ConcatDataset([ImageFolder(str(image_folder), small)] * 3),
        "own": [(number,) for number in numbers.tolist()],
        "stream": Numbers(),
        "positioned": Positioned(),
    }
    loader = FusionLoader(datasets[kind], 2, num_workers=workers)
    iterator, taken = iter(loader), []

    def take(count=None):
        for batch in itertools.islice(iterator, count):
            taken.append(batch[0].flatten().tolist())

    in_threads(lambda: take(10))
    state = loader.state_dict()
    assert state["delivered"] == len(taken) == 30
    again = FusionLoader(datasets[kind], 2, num_workers=workers)
    again.load_state_dict(state)
    rest = [batch[0].flatten().tolist() for batch in again]
    assert sorted(taken + rest) == sorted(batch[0].flatten().tolist() for batch in loader)
    in_threads(take)
    assert sorted(taken) == sorted(batch[0].flatten().tolist() for batch in loader)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(24))


EVERY_KIND = pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (list(range(24)), {}),
        (list(range(24)), {"on_error": "skip"}),
        (list(range(24)), {"num_workers": 1}),
        (TensorDataset(torch.arange(24)), {}),
        (Stream(), {}),
        (Stream(), {"num_workers": 1}),
    ],
)


@EVERY_KIND
def test_a_batch_is_delivered_though_its_thread_calls_no_more(dataset, options, monkeypatch):
    """Of a thread whose call an exception has left."""
    iterator = iter(FusionLoader(dataset, 4, **options))
    left, found = [MemoryError("of the device")], []

    def to_device(batch, device):
        if left:
            raise left.pop()
        return batch

    for module in MODULES:
        monkeypatch.setattr(module, "to_device", to_device)

    def take():
        with pytest.raises(MemoryError):
            next(iterator)
        found.append("failed")

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert found == ["failed"]
    numbers = [batch[0] if isinstance(batch, list) else batch for batch in iterator]
    assert torch.cat(numbers).tolist() == list(range(24))


@EVERY_KIND
def test_batches_that_fail_at_first_come_once(dataset, options, monkeypatch):
    """The thread whose call has failed may go on with another batch, also as the epoch ends."""
    failed = set()

    def to_device(batch, device):
        first = int((batch[0] if isinstance(batch, list) else batch)[0])
        if first not in failed:
            failed.add(first)
            raise MemoryError("of the device")
        return batch

    for module in MODULES:
        monkeypatch.setattr(module, "to_device", to_device)
    loader = FusionLoader(dataset, 2, **options)
    for _ in range(20):
        failed.clear()
        iterator, taken = iter(loader), []

        def take(iterator=iterator, taken=taken):
            while True:
                with contextlib.suppress(MemoryError):
                    batch = next(iterator, None)
                    if batch is None:
                        return
                    taken += (batch[0] if isinstance(batch, list) else batch).tolist()

        in_threads(take)
        assert sorted(taken) == list(range(24))
    loader.close()


class Failing(list):
    def __getitem__(self, index):
        if index % 14 == 4:
            raise ValueError(f"bad record {index}")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_each_error_of_a_batch_comes_once(workers):
    loader = FusionLoader(Failing(range(300)), 2, num_workers=workers)
    expected = Counter(n if n % 14 != 4 else "bad record" for n in range(0, 300, 2))
    for _ in range(10):
        iterator, taken = iter(loader), []

        def take(iterator=iterator, taken=taken):
            while True:
                try:
                    taken.append(int(next(iterator)[0]))
                except StopIteration:
                    return
                except ValueError:
                    taken.append("bad record")

        in_threads(take, 2)
        assert Counter(taken) == expected
    loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_that_a_thread_is_to_return_is_missing_in_a_state(workers, monkeypatch):
    loader = FusionLoader(Stream(), 4, num_workers=workers)
    iterator, failing, saved = iter(loader), threading.Event(), threading.Event()
    slow = []

    def to_device(batch, device):
        if threading.get_ident() in slow:
            raise MemoryError("of the device")
        return batch

    def leave(*arguments, **named):  # this thread is not given the processor for a while
        if threading.get_ident() in slow:
            failing.set()
            saved.wait()

    for module in MODULES:
        monkeypatch.setattr(module, "to_device", to_device)
    if workers:
        monkeypatch.setattr(slot_iterator, "note_what_follows", leave)

    def take():
        slow.append(threading.get_ident())
        with pytest.raises(MemoryError):
            next(iterator)
        failing.set()

    thread = threading.Thread(target=take)
    thread.start()
    failing.wait()
    taken = next(iterator).tolist()
    state = loader.state_dict()
    saved.set()
    thread.join()
    monkeypatch.undo()
    again = FusionLoader(Stream(), 4, num_workers=workers)
    again.load_state_dict(state)
    assert sorted(taken + torch.cat(list(again)).tolist()) == list(range(24))
    loader.close()


class Signalling(list):
    """Of which one sample is interrupted by a signal, once."""

    def __getitem__(self, index):
        if index == 4 and len(self) == 9:
            self.pop()
            signal.raise_signal(signal.SIGUSR1)
        return super().__getitem__(index)


@pytest.mark.parametrize("options", [{}, {"on_error": "skip"}])
def test_next_within_next_is_refused(options):
    dataset = Signalling(range(9))
    iterator = iter(FusionLoader(dataset, 2, sampler=range(8), **options))
    before = signal.signal(signal.SIGUSR1, lambda number, frame: next(iterator))
    try:
        taken = [next(iterator), next(iterator)]
        with pytest.raises(RuntimeError, match=r"next\(\) was called within next\(\)"):
            next(iterator)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert torch.cat([*taken, *iterator]).tolist() == list(range(8))


class Gate:
    """An iterator's turn: a signal comes as its first holder leaves, then another thread runs.

    If the holder's call has failed, no signal comes.
    """

    def __init__(self, turn, then):
        self.turn, self.then = turn, then

    @property
    def lock(self):
        lock, then, self.then = self.turn.lock, self.then, None
        return lock if then is None else self.left(lock, then)

    @contextlib.contextmanager
    def left(self, lock, then):
        try:
            with lock:
                yield
                signal.raise_signal(signal.SIGUSR1)
        finally:
            in_threads(then, 1)


@EVERY_KIND
def test_a_refused_call_leaves_the_batch_to_the_call_that_it_is_in(dataset, options):
    iterator, taken, refused = iter(FusionLoader(dataset, 4, **options)), [], []

    def take():
        batch = next(iterator)
        taken.extend((batch[0] if isinstance(batch, list) else batch).tolist())

    def nested(number, frame):
        try:
            next(iterator)
        except RuntimeError as error:
            refused.append(str(error))

    before = signal.signal(signal.SIGUSR1, nested)
    iterator._turn = Gate(iterator._turn, take)
    try:
        for _ in range(5):
            take()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(refused) == 1
    assert sorted(taken) == list(range(24))


class Part(Positioned):
    """Of a single reader."""

    def __iter__(self):
        while self.position < 24:
            self.position += 1
            yield self.position - 1


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (list(range(24)), {}),
        (list(range(24)), {"num_workers": 1}),
        (Stream(), {"num_workers": 1}),
        (Part(), {}),
        (Part(), {"num_workers": 1}),
    ],
)
def test_a_failed_call_leaves_its_batch_before_another_begins(dataset, options, monkeypatch):
    loader = FusionLoader(dataset, 4, **options)
    iterator, taken = iter(loader), []
    iterator._turn = Gate(iterator._turn, lambda: taken.extend(next(iterator).tolist()))
    with monkeypatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "to_device", no_memory)
        iterator._turn.then = functools.partial(after, patch, iterator._turn.then)
        with pytest.raises(MemoryError):
            next(iterator)
    assert taken == [0, 1, 2, 3]
    state = loader.state_dict()
    assert torch.cat(list(iterator)).tolist() == list(range(4, 24))
    again = FusionLoader(dataset, 4, **options)
    again.load_state_dict(state)
    assert torch.cat(list(again)).tolist() == list(range(4, 24))


def no_memory(batch, device):
    raise MemoryError("of the device")


def after(patch, then):
    patch.undo()
    then()


class Dying(Part):
    """Whose first worker dies in the third batch, once another thread has returned the second."""

    def __init__(self, folder):
        super().__init__()
        self.returned, self.died = folder / "returned", folder / "died"

    def __iter__(self):
        for sample in super().__iter__():
            if sample == 8 and not self.died.exists():
                wait_until(self.returned.exists)
                self.died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield sample


def test_a_replaced_worker_goes_on_behind_the_newest_batch_that_was_returned(tmp_path):
    dataset = Dying(tmp_path)
    iterator, taken = iter(FusionLoader(dataset, 4, num_workers=1)), []

    def others():
        taken.extend(next(iterator).tolist())
        dataset.returned.touch()
        taken.extend(next(iterator).tolist())

    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    iterator._turn = Gate(iterator._turn, others)
    try:
        taken.extend(next(iterator).tolist())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert dataset.died.exists()
    assert sorted([*taken, *torch.cat(list(iterator)).tolist()]) == list(range(24))


class Counted(Sampler):
    """A sampler that knows how many indices it has drawn."""

    def __init__(self):
        self.drawn = 0

    def __len__(self):
        return 3000

    def __iter__(self):
        while self.drawn < 3000:
            self.drawn += 1
            yield self.drawn - 1

    def state_dict(self):
        return {"drawn": self.drawn}

    def load_state_dict(self, state):
        self.drawn = state["drawn"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_is_whole_if_another_thread_saves_it(workers):
    loader, states = FusionLoader(range(3000), 2, sampler=Counted(), num_workers=workers), []
    iterator, ended = iter(loader), threading.Event()

    def save():
        while not ended.is_set():
            states.append(loader.state_dict())

    saving = threading.Thread(target=save)
    with frequent_switches():
        saving.start()
        taken = torch.cat(list(iterator)).tolist()
        ended.set()
        saving.join()
    assert taken == list(range(3000))
    counts = [
        (state["sampler"]["sampler"]["drawn"], 2 * state["delivered"])
        for state in states
        if not state["finished"]
    ]
    assert all(drawn == delivered for drawn, delivered in counts)

"""An error of ``next()`` says whether iteration can go on, and it goes on so."""

import os
import resource
import signal
import sys
import time

import pytest
import torch
from support.batches import next_in_time
from support.limits import limited
from support.notes import HAS_NOTES, said
from support.waiting import PATIENCE, Flag
from torch.utils.data import Dataset, IterableDataset

from fusionloader import FusionLoader
from fusionloader.system.shm.objects import SharedMemoryExhausted

NEXT = "goes on with the mini-batch after this one"
AGAIN = "the next call of next() tries again"


class Numbers(Dataset):
    """Of which sample 5 may be none, for a worker or for good."""

    def __init__(self, fifth=None):
        self.fifth = fifth

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 5 and self.fifth is not None:
            self.fifth()
        return torch.full((1 << 12,), float(index))


def raises():
    raise LookupError("bad")


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


def firsts(batches):
    return [int(batch[0, 0]) for batch in batches]


@pytest.mark.parametrize(
    ("fifth", "options"),
    [
        (raises, {"num_workers": 0}),
        (raises, {"num_workers": 1}),
        (raises, {"num_workers": 1, "collate_fn": torch.stack}),
        (dies, {"num_workers": 1}),
    ],
    ids=["no workers", "rows", "whole batches", "three deaths"],
)
def test_after_the_error_of_a_sample_the_next_mini_batch_follows(fifth, options):
    iterator = iter(FusionLoader(Numbers(fifth), 4, **options))
    batches = [next(iterator)]
    with pytest.raises((LookupError, RuntimeError)) as raised:
        next(iterator)
    assert NEXT in said(raised.value) or not HAS_NOTES
    assert firsts([*batches, *iterator]) == [0, *range(8, 64, 4)]


def short_of_memory(iterator, flag):
    with limited(resource.RLIMIT_FSIZE, 1 << 12), pytest.raises(SharedMemoryExhausted) as raised:
        next(iterator)
    return raised.value, AGAIN


def short_of_files(iterator, flag):
    (process,) = iterator._workers
    process.kill()
    process.join(PATIENCE)
    time.sleep(0.03)  # deaths are looked for every 0.02 s
    with limited(resource.RLIMIT_NOFILE, 3), pytest.raises(OSError) as raised:
        next(iterator)
    return raised.value, AGAIN


def too_late(iterator, flag):
    with pytest.raises(RuntimeError, match="timed out") as raised:
        next(iterator)
    flag.set()
    return raised.value, "The next call of next() waits again"


@pytest.mark.parametrize("trouble", [short_of_memory, short_of_files, too_late])
def test_after_an_error_of_no_sample_the_next_call_tries_again(tmp_path, trouble):
    flag = Flag(tmp_path / "flag")
    fifth = flag.wait if trouble is too_late else None
    timeout = 1 if trouble is too_late else 0
    iterator = iter(FusionLoader(Numbers(fifth), 4, num_workers=1, timeout=timeout))
    batches = [] if trouble is short_of_memory else [next_in_time(iterator)]
    error, text = trouble(iterator, flag)
    assert text in said(error) or not HAS_NOTES
    while len(batches) < 16:
        batches.append(next_in_time(iterator))
    assert firsts(batches) == list(range(0, 64, 4))


def test_three_workers_that_cannot_begin_are_the_end():
    iterator = iter(FusionLoader(Numbers(), 4, num_workers=1, worker_init_fn=lambda worker: dies()))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="three in a row.*None is started any more"):
            next(iterator)


class Preempted(Exception):
    """Raised by a handler of training's."""


def preempt(number, frame):
    raise Preempted


def preempt_once(number, frame):
    """A second signal would end the process."""
    signal.signal(number, signal.SIG_DFL)
    raise Preempted


class Preempting:
    def __call__(self, *given):
        signal.signal(given[0], signal.SIG_IGN)
        raise Preempted


@pytest.fixture(params=[preempt, preempt_once, Preempting()])
def preempted_once(request):
    """A function that a signal for training interrupts at its first call."""
    left = [signal.SIGUSR1]

    def interrupted():
        if left:
            signal.raise_signal(left.pop())

    before = signal.signal(signal.SIGUSR1, request.param)
    yield interrupted
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("options", [{}, {"on_error": "skip"}, {"on_error": "substitute"}])
def test_an_error_of_trainings_handler_is_not_that_of_a_sample(preempted_once, options):
    loader = FusionLoader(Numbers(preempted_once), 2, **options)
    iterator, taken = iter(loader), []
    with pytest.raises(Preempted):
        while True:
            taken += firsts([next(iterator)])
    assert loader.state_dict()["delivered"] == len(taken) == 2
    assert taken + firsts(iterator) == [*range(0, 64, 2)]


@pytest.mark.parametrize("options", [{}, {"on_error": "skip"}])
def test_an_error_of_trainings_handler_while_samples_are_collated(preempted_once, options):
    def collate(samples):
        preempted_once()
        return torch.stack(samples)

    iterator = iter(FusionLoader(Numbers(), 2, collate_fn=collate, **options))
    with pytest.raises(Preempted):
        next(iterator)
    assert firsts(iterator) == [*range(0, 64, 2)]


@pytest.fixture
def children_preempt():
    """As torch's own handler of SIGCHLD raises when a worker of another loader has died."""
    before = signal.signal(signal.SIGCHLD, preempt)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("children_preempt")
@pytest.mark.parametrize("options", [{}, {"on_error": "skip"}])
def test_an_error_that_is_raised_from_that_of_a_handler_is_not_that_of_a_sample(options):
    left = [signal.SIGCHLD]

    def read():
        try:
            if left:
                signal.raise_signal(left.pop())
        except Preempted as error:
            raise LookupError from error

    iterator, taken = iter(FusionLoader(Numbers(read), 2, **options)), []
    with pytest.raises(LookupError):
        while True:
            taken += firsts([next(iterator)])
    assert taken + firsts(iterator) == [*range(0, 64, 2)]


class Unequal(LookupError):
    def __eq__(self, other):
        return self.args == other.code

    __hash__ = LookupError.__hash__


def test_errors_are_not_compared_by_user_code():
    def read():
        try:
            raise KeyError("no record")
        except KeyError as error:
            raise Unequal("no sample") from error

    iterator = iter(FusionLoader(Numbers(read), 2))
    taken = firsts([next(iterator), next(iterator)])
    with pytest.raises(Unequal):
        next(iterator)
    assert taken + firsts(iterator) == [0, 2, *range(6, 64, 2)]


def locate(frame, context=1):
    raise LookupError("no source")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_function_with_a_frame_is_that_of_the_sample(workers):
    dataset = Numbers(lambda: locate(sys._getframe()))
    loader = FusionLoader(dataset, 2, on_error="skip", num_workers=workers)
    assert len(list(loader)) == 32
    assert loader.stats().skipped == 1


class Unpickled(list):
    def __setstate__(self, state):
        limit = signal.signal(signal.SIGALRM, preempt)
        try:
            if state == 4 and not seen:
                seen.append(state)
                signal.raise_signal(signal.SIGALRM)
        finally:
            signal.signal(signal.SIGALRM, limit)

    def __reduce__(self):
        return Unpickled, (list(self),), self[0]


seen = []


def test_an_error_of_any_handler_while_a_batch_is_received_loses_none():
    """Training makes no sample there, whose time a timer could limit."""
    seen.clear()
    iterator = iter(FusionLoader(range(8), 2, num_workers=1, collate_fn=Unpickled))
    taken = [next(iterator), next(iterator)]
    with pytest.raises(Preempted):
        next(iterator)
    assert [*taken, *iterator] == [[0, 1], [2, 3], [4, 5], [6, 7]]


class Interrupted(ValueError):
    """Of which a signal for training interrupts the constructor, in training alone."""

    def __init__(self, *given):
        super().__init__(*given)
        if interrupts and torch.utils.data.get_worker_info() is None:
            interrupts.pop()()


def raise_interrupted():
    raise Interrupted


interrupts = []


def test_an_error_of_a_handler_while_a_sample_s_error_is_made_is_raised(preempted_once):
    iterator = iter(FusionLoader(Numbers(raise_interrupted), 2, num_workers=1))
    taken = [next(iterator), next(iterator)]
    interrupts.append(preempted_once)
    with pytest.raises(Preempted):
        next(iterator)
    with pytest.raises(Interrupted):
        next(iterator)
    assert firsts([*taken, *iterator]) == [n for n in range(0, 64, 2) if n != 4]


class Keeping(Numbers):
    def __getitem__(self, index):
        self.variables = locals()
        raise ValueError("no sample")


def test_an_error_leaves_the_variables_of_user_code_as_they_are():
    dataset = Keeping(lambda: None)
    with pytest.raises(ValueError, match="no sample"):
        next(iter(FusionLoader(dataset, 2)))
    assert dataset.variables["index"] == 0


class Streamed(IterableDataset):
    def __init__(self, fifth):
        self.fifth = fifth

    def __iter__(self):
        for number in range(8):
            if number == 5:
                self.fifth()
            yield number


def test_a_stream_that_trainings_handler_has_left_does_not_seem_to_end(preempted_once):
    iterator = iter(FusionLoader(Streamed(preempted_once), 2))
    with pytest.raises(Preempted):
        list(iterator)
    with pytest.raises(RuntimeError, match="was left by Preempted"):
        next(iterator)

"""Exceptions at any step of shared preparation in a job: each batch comes once, and is right."""

import errno
import functools
import os
import random
import signal

import pytest
import torch
from jobs import alone, digest, make_loader
from support.raised_at import CALLS, Steps
from torch.utils.data import Dataset

from fusionloader.transforms.executors.layout import Layout

EPOCHS = 6
OPTIONS = {"prefetch_factor": 3, "sampler": [n * 7 % 40 for n in range(48)]}
ERRORS = {
    "KeyboardInterrupt": KeyboardInterrupt,
    "MemoryError": MemoryError,
    "EMFILE": lambda: OSError(errno.EMFILE, "Too many open files"),
}
MOST_STEPS = {"iter": 400, "next": 200}  # nearly all that there are


class Noise(Dataset):
    """Samples of user code, in batches that do not fit a message."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.rand(3, 64, 64) + index, index


class Interrupted:
    """Runs actions of a job, in each of which an exception may be raised, until they succeed."""

    def __init__(self, error, seed):
        self._make, self._random = ERRORS[error], random.Random(seed)
        self.places = []

    def run(self, action, steps):
        """Has one exception raised; the action is tried again after that."""
        error = self._make()
        traced = Steps("sharing/jobs", events=(*CALLS, "c_return"))
        try:
            return traced.raise_at(self._random.randrange(steps), error, action)
        except type(error) as raised:
            assert raised is error, "another error than the one that was raised here"
            self.places.append(traced.place)
        return action()

    def chance(self):
        return self._random.random() < 0.2


def begun(loader, epoch):
    loader.set_epoch(epoch)  # one whose start was interrupted has counted
    return iter(loader)


# An exception in a callback of the interpreter, as before a fork, cannot reach training.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("made_by", ["plan", "code"])
@pytest.mark.parametrize(
    "error",
    ["EMFILE", *(pytest.param(e, marks=pytest.mark.matrix) for e in ERRORS if e != "EMFILE")],
)
def test_an_exception_at_any_step_loses_no_batch(word, train_set, error, made_by):
    dataset = train_set if made_by == "plan" else Noise(48)
    expected = alone(dataset, EPOCHS, **OPTIONS)
    interrupted = Interrupted(error, seed=ord(error[0]))
    loader = make_loader(dataset, word, OPTIONS)
    try:
        for epoch in range(EPOCHS):
            begin = functools.partial(begun, loader, epoch)
            iterator = interrupted.run(begin, MOST_STEPS["iter"]) if epoch % 3 == 0 else begin()
            found = []
            take = functools.partial(next, iterator, None)
            while batch := interrupted.run(take, MOST_STEPS["next"]):
                found.append(digest(batch))
                batch[0].zero_()
                if iterator._workers and interrupted.chance():
                    os.kill(iterator._workers[0].pid, signal.SIGKILL)
            assert found == expected[epoch], interrupted.places[-5:]
    finally:
        loader.close()
    assert len(interrupted.places) >= EPOCHS // 2  # others were caught within


def test_a_batch_that_could_not_be_made_comes_with_the_next_call(word, train_set, monkeypatch):
    expected = alone(train_set, **OPTIONS)[0]
    loader = make_loader(train_set, word, OPTIONS)
    batch, errors = Layout.batch, [MemoryError()]

    def failing_once(*arguments):
        if errors:
            raise errors.pop()
        return batch(*arguments)

    iterator = iter(loader)
    found = [digest(next(iterator))]
    monkeypatch.setattr(Layout, "batch", failing_once)
    with pytest.raises(MemoryError):  # the job has taken the mini-batch from the group
        next(iterator)
    found += [digest(batch) for batch in iterator]
    shared = loader.stats().shared_prep
    loader.close()
    assert found == expected
    assert shared.alone_batches == len(expected)  # none is counted twice

"""An exception at any step of the training process inside ``next()`` loses no batch."""

import contextlib
import errno
import gc
import itertools
import os
import random
import re
import signal
import sys

import pytest
import torch
from chaos.epoch_process import opened
from support.batches import same_batches
from support.campaigns import SEED
from support.notes import HAS_NOTES, said
from support.raised_at import CALLS, Steps, needs_returns, sampled
from support.waiting import gone, wait_until
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fusionloader import FusionLoader, WorkerPool

BATCHES = 24


class Numbers(Dataset):
    def __len__(self):
        return 4 * BATCHES

    def __getitem__(self, index):
        return torch.full((8,), float(index)), index


class Wrapped(Dataset):
    """User code that opens images."""

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index]


class Some(Numbers):
    """Of which every seventh cannot be made, and every fifth has another shape."""

    def __getitem__(self, index):
        if index % 7 == 3:
            raise ValueError(f"no sample {index}")
        return torch.full((8,), float(index)), "x" * (1000 if index % 5 == 4 else 3)


def no_memory():
    return MemoryError("planted")


def no_descriptors():
    return OSError(errno.EMFILE, "planted")


def interrupt():
    return KeyboardInterrupt("planted")


class Positioned(IterableDataset):
    """Numbers of which each worker has a part, and knows where it is."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        own = range(info.id, 4 * BATCHES, info.num_workers)
        while self.position < len(own):
            self.position += 1
            yield Numbers()[own[self.position - 1]]
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class Counted(IterableDataset):
    def __iter__(self):
        return map(Numbers().__getitem__, range(4 * BATCHES))


class WithState(Numbers):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


# What an iterator says that cannot go on.
ENDS = (
    "while the epoch was begun, and this iterator cannot go on|draws no more batches|lost a sample"
)
ERRORS = [no_memory, no_descriptors, interrupt]


def plan(images):
    return {"dataset": images, "batch_sampler": [[n % 40, n % 7] for n in range(BATCHES)]}


def of_one_length(samples):
    return torch.stack([sample[0] for sample in samples]), [sample[1] for sample in samples]


WHOLE = {"collate_fn": of_one_length, "on_error": "skip"}

KINDS = {
    "plan": plan,
    "rows": lambda images: {"dataset": Numbers(), "batch_size": 4},
    "left out and spilled": lambda images: {"dataset": Some(), "batch_size": 4, "on_error": "skip"},
    "whole batches": lambda images: {"dataset": Some(), "batch_size": 4} | WHOLE,
    "out of order": lambda images: {"dataset": Numbers(), "batch_size": 4, "in_order": False},
    "one ahead": lambda images: {"dataset": Numbers(), "batch_size": 4, "prefetch_factor": 1},
    "stream": lambda images: {"dataset": Positioned(), "batch_size": 4},
    "dataset with a state": lambda images: {"dataset": WithState(), "batch_size": 4},
    "plan without workers": lambda images: plan(images) | {"num_workers": 0},
    "own code without workers": lambda images: {
        "dataset": Numbers(),
        "batch_size": 4,
        "num_workers": 0,
    },
    "deferred images without workers": lambda images: {
        "dataset": Wrapped(images),
        "batch_sampler": [[n % 40, n % 7] for n in range(BATCHES)],
        "num_workers": 0,
    },
    "tensors without workers": lambda images: {
        "dataset": TensorDataset(torch.arange(4.0 * BATCHES), torch.arange(4 * BATCHES)),
        "batch_size": 4,
        "num_workers": 0,
    },
    "stream without workers": lambda images: {
        "dataset": Counted(),
        "batch_size": 4,
        "num_workers": 0,
    },
    "pool": lambda images: {"dataset": Numbers(), "batch_size": 4, "pool": WorkerPool(1)},
}
# The others by `make matrix`; workers of plans and of pools by chaos, too.
KILLED = {"rows", "whole batches", "stream"}


def planted(error):
    return "planted" in str(error)


def driven(loader, generator, most, trouble, errors):
    """Takes all batches, with an exception at some step of each second call.

    Returns them, with ``None`` for those whose own error it was: without workers samples are made
    within ``next()``, and their errors have a note. And where exceptions came, and why the iterator
    did not go on.
    """
    iterator, batches, places = iter(loader), [], []
    for call in itertools.count():
        if trouble and generator.random() < 0.2:
            trouble(iterator)
        steps = Steps(events=(*CALLS, "c_return"))
        position = generator.randrange(most) if call % 2 else -1
        error = generator.choice(errors)()
        try:
            batches.append(steps.raise_at(position, error, lambda: next(iterator)))
        except StopIteration:
            return batches, places, ""
        except (KeyboardInterrupt, MemoryError, OSError) as raised:
            assert planted(raised), steps.place
            places.append(steps.place)
            if "goes on with" in said(raised):
                batches.append(None)
            state = loader.state_dict()
            if not state["finished"]:
                assert state["delivered"] + len(state["ahead"]) == len(batches), steps.place
        except RuntimeError as raised:
            if not re.search(ENDS, str(raised)):
                raise AssertionError(steps.place) from raised
            return batches, places, str(raised)


def kill_one(iterator):
    for process in iterator._workers[:1]:
        process.kill()
        process.join(5)


@pytest.mark.usefixtures("any_may_die")
@pytest.mark.parametrize(
    ("kind", "trouble"),
    [
        pytest.param(
            kind,
            trouble,
            id=f"{kind}, {'kills' if trouble else 'no kills'}",
            marks=pytest.mark.matrix if trouble and kind not in KILLED else [],
        )
        for kind in KINDS
        for trouble in ([None] if "without" in kind else [None, kill_one])
    ],
)
def test_an_exception_at_any_step_of_next_loses_no_batch(eval_set, kind, trouble):
    arguments = {"num_workers": 2, "seed": 1} | KINDS[kind](eval_set)
    if "pool" in arguments:
        del arguments["num_workers"]
    # As in torch, an error of a stream leaves out the samples that were drawn for its mini-batch.
    # Elsewhere only a note tells whether an error ended its mini-batch.
    unsaid = kind == "stream without workers" or "workers" in kind and not HAS_NOTES
    errors = [interrupt] if unsaid else ERRORS
    generator = random.Random(SEED)
    loader = FusionLoader(**arguments)
    expected = list(loader)
    raised, whole = set(), 0
    for epoch in range(60):
        if epoch >= 4 and whole > 0 and len(raised) >= 10:
            break
        most = (20, 60, 200, 500)[epoch % 4]
        batches, places, why = driven(loader, generator, most, trouble, errors)
        raised.update(places)
        whole += not why
        if kind == "out of order":
            in_order = sorted(expected, key=lambda batch: int(batch[1][0]))
            numbers = [int(batch[1][0]) // 4 for batch in batches]
            assert same_batches([in_order[number] for number in numbers], batches)
            assert len(set(numbers)) == len(numbers) == BATCHES or why
        else:
            assert why or len(batches) == len(expected)
            pairs = [pair for pair in zip(expected, batches, strict=False) if pair[1] is not None]
            assert same_batches(*zip(*pairs, strict=True))
    loader.close()
    assert len(raised) >= 10
    assert whole > 0, why


class Faulty(IterableDataset):
    def __iter__(self):
        return map(Some().__getitem__, range(8))


@pytest.mark.parametrize(
    ("options", "under", "positions"),
    [
        *[
            ({"num_workers": 1} | options, under, positions)
            for options in ({}, {"collate_fn": of_one_length})
            for under, positions in (
                ("workers/sample_errors.py", range(10)),
                ("engine/iterators", range(1, 40, 4)),
            )
        ],
        ({"num_workers": 0}, "engine/iterators", range(60)),
        ({"dataset": Faulty(), "collate_fn": of_one_length}, "engine/iterators", range(60)),
    ],
)
def test_an_exception_at_any_step_loses_no_error_of_a_sample(options, under, positions):
    loader = FusionLoader(**{"dataset": Some(), "batch_size": 4} | options)
    places = set()
    for position in positions:
        iterator = iter(loader)
        steps = Steps(under, events=(*CALLS, "c_return"))
        try:
            steps.raise_at(position, interrupt(), lambda it=iterator: next(it))
        except KeyboardInterrupt:
            places.add(steps.place)
            with pytest.raises((ValueError, RuntimeError), match=f"no sample 3|{ENDS}") as found:
                next(iterator)
            if found.type is RuntimeError:
                assert "left by ValueError" not in str(found.value), steps.place
                continue
        except ValueError:
            pass
        assert int(next(iterator)[0][0, 0]) == 4, steps.place
    assert len(places) >= 5
    loader.close()


@pytest.mark.parametrize("kind", ["one ahead", "left out and spilled", "whole batches"])
def test_an_exception_behind_any_call_that_receives_messages_loses_none(kind):
    """Where the result of the call is lost: Python raises KeyboardInterrupt there."""
    loader = FusionLoader(**KINDS[kind](None), num_workers=1, seed=1)
    expected, batches, raised = list(loader), [], 0
    iterator = iter(loader)
    for call in itertools.count():
        steps = Steps("workers/messages.py", events=("c_return",))
        try:
            batches.append(steps.raise_at(call % 12, interrupt(), lambda: next(iterator)))
        except StopIteration:
            break
        except KeyboardInterrupt:
            raised += 1
    assert same_batches(expected, batches)
    assert raised > BATCHES // 4


class Large(Numbers):
    def __getitem__(self, index):
        return torch.full((4096,), float(index)), index


@needs_returns
@pytest.mark.parametrize("called", [".view", ".lease"])
@pytest.mark.parametrize("collate", [None, of_one_length], ids=["rows", "whole batches"])
def test_an_exception_behind_a_call_that_leases_memory_loses_no_batch(collate, called):
    """Where the result of the call is lost, and with it the only reference to the memory."""
    loader = FusionLoader(Large(), 4, num_workers=1, collate_fn=collate)
    batches, raised = [], 0
    iterator = iter(loader)
    for call in itertools.count():
        steps = Steps(events=("return",), called=called)
        try:
            position = call // 2 % 2 if call % 2 else -1
            batches.append(steps.raise_at(position, interrupt(), lambda: next(iterator)))
        except StopIteration:
            break
        except KeyboardInterrupt:
            raised += 1
    assert [batch[0][:, 0].tolist() for batch in batches] == [
        [4.0 * n, 4 * n + 1, 4 * n + 2, 4 * n + 3] for n in range(BATCHES)
    ]
    assert raised  # few of whole batches: a worker has only so many slots for kept ones


class Killing(Numbers):
    def __getitem__(self, index):
        if index == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@needs_returns
@pytest.mark.few(1)
@pytest.mark.parametrize("death", range(3))
def test_samples_that_kill_are_named_after_an_exception_behind_a_death(death):
    loader = FusionLoader(Killing(), 4, num_workers=2)
    iterator, batches, errors = iter(loader), [], []
    steps = Steps(events=("c_return",), called="take_back")
    steps.arm(death, interrupt())
    sys.setprofile(profile := steps.profile)
    try:
        for _ in range(BATCHES + 1):
            try:
                batches.append(next(iterator))
            except (KeyboardInterrupt, RuntimeError) as error:
                errors.append((type(error), str(error)))
    finally:
        sys.setprofile(None)
        del profile
    assert [error for error, _ in errors] == [KeyboardInterrupt, RuntimeError]
    assert "workers died on the same samples" in errors[1][1]
    assert "index 9" in errors[1][1]
    assert [int(batch[1][0]) for batch in batches] == [
        n for n in range(0, 4 * BATCHES, 4) if n != 8
    ]
    loader.close()


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["plan", "rows", "whole batches"])
def test_an_exception_at_any_step_of_the_start_leaves_no_descriptor(eval_set, kind, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # pytest's keeps what it gets
    loader = FusionLoader(**{"num_workers": 1} | KINDS[kind](eval_set))

    def left():
        gc.collect()
        return opened() - before

    count = Steps("engine/manager").count(lambda: iter(loader))
    gc.collect()
    before = opened()
    for position in sampled(count, 8, SEED):
        steps = Steps("engine/manager")
        with contextlib.suppress(KeyboardInterrupt):
            steps.raise_at(position, KeyboardInterrupt(), lambda: iter(loader))
        wait_until(lambda: not left(), f"descriptors are left: {steps.place}")


def test_an_exception_at_any_step_of_the_end_leaves_no_worker():
    loader = FusionLoader(Numbers(), 4, num_workers=2)

    def begun():
        iterator = iter(loader)
        next(iterator)
        return iterator

    count = Steps(events=(*CALLS, "c_return")).count(begun()._shutdown_workers)
    for position in [*range(1, 11, 2), *sampled(count, 5, SEED)]:
        steps = Steps(events=(*CALLS, "c_return"))
        iterator = begun()
        pids = [worker.pid for worker in iterator._workers]
        with contextlib.suppress(KeyboardInterrupt):
            steps.raise_at(position, KeyboardInterrupt(), iterator._shutdown_workers)
        del iterator
        gc.collect()
        wait_until(lambda pids=pids: all(map(gone, pids)), f"workers are left: {steps.place}")

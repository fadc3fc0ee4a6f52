"""An exception at any step of the training process inside ``next()`` loses no batch."""

import errno
import itertools
import random

import pytest
import torch
from support.batches import same_batches
from support.campaigns import SEED
from support.raised_at import CALLS, Steps
from torch.utils.data import Dataset

from fusionloader import FusionLoader, WorkerPool

BATCHES = 40


class Numbers(Dataset):
    def __len__(self):
        return 4 * BATCHES

    def __getitem__(self, index):
        return torch.full((8,), float(index)), index


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


ERRORS = [no_memory, no_descriptors, interrupt]


def plan(images):
    return {"dataset": images, "batch_sampler": [[n % 40, n % 7] for n in range(BATCHES)]}


KINDS = {
    "plan": plan,
    "rows": lambda images: {"dataset": Numbers(), "batch_size": 4},
    "left out and spilled": lambda images: {
        "dataset": Some(),
        "batch_size": 4,
        "on_error": "skip",
    },
    "out of order": lambda images: {"dataset": Numbers(), "batch_size": 4, "in_order": False},
    "one ahead": lambda images: {"dataset": Numbers(), "batch_size": 4, "prefetch_factor": 1},
    "pool": lambda images: {"dataset": Numbers(), "batch_size": 4, "pool": WorkerPool(1)},
}


def planted(error):
    return "planted" in str(error)


def driven(iterator, generator, most, trouble):
    """Takes all batches, with an exception at some step of each second call.

    Returns them, and why the iterator did not go on.
    """
    batches = []
    for call in itertools.count():
        if trouble and generator.random() < 0.2:
            trouble(iterator)
        steps = Steps(events=(*CALLS, "c_return"))
        position = generator.randrange(most) if call % 2 else -1
        error = generator.choice(ERRORS)()
        try:
            batches.append(steps.raise_at(position, error, lambda: next(iterator)))
        except StopIteration:
            return batches, ""
        except (KeyboardInterrupt, MemoryError, OSError) as raised:
            assert planted(raised), steps.place
        except RuntimeError as raised:
            if "cannot go on" not in str(raised) and "no more batches" not in str(raised):
                raise AssertionError(steps.place) from raised
            return batches, str(raised)


def kill_one(iterator):
    for process in iterator._workers[:1]:
        process.kill()
        process.join(5)


@pytest.mark.usefixtures("any_may_die")
@pytest.mark.parametrize("trouble", [None, kill_one], ids=["", "with kills"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_at_any_step_of_next_loses_no_batch(eval_set, kind, trouble):
    arguments = KINDS[kind](eval_set) | {"seed": 1}
    if "pool" not in arguments:
        arguments["num_workers"] = 2
    generator = random.Random(SEED)
    loader = FusionLoader(**arguments)
    expected = list(loader)
    for most in (20, 60, 200, 500):
        batches, why = driven(iter(loader), generator, most, trouble)
        if kind == "out of order":
            assert not why
            batches, count = sorted(batches, key=lambda b: int(b[1][0])), len(expected)
            in_order = sorted(expected, key=lambda b: int(b[1][0]))
            assert same_batches(in_order, batches) or (why and len(batches) < count)
        elif why:
            assert same_batches(expected[: len(batches)], batches)
        else:
            assert same_batches(expected, batches)
    loader.close()

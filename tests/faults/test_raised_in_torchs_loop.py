"""An exception at a step of ``next()`` loses no batch in torch's own loop, or ends the iterator."""

import contextlib

import pytest
import torch
from support.batches import same_batches
from support.campaigns import SEED
from support.raised_at import CALLS, Steps, sampled
from support.waiting import PATIENCE
from torch.utils.data import Dataset, IterableDataset

from fusionloader import FusionLoader

TAKEN = 3  # batches, before one is interrupted


class Numbers(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.full((8,), float(index)), index


class Stream(IterableDataset):
    def __iter__(self):
        return (Numbers()[index] for index in range(40))


class WithState(Numbers):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


KINDS = {
    "with a state": {"dataset": WithState()},
    "out of order": {"dataset": WithState(), "in_order": False},
    "stream": {"dataset": Stream()},
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_at_any_step_loses_no_batch_without_a_word(kind):
    # A batch that is lost may be waited for.
    loader = FusionLoader(batch_size=4, num_workers=1, timeout=PATIENCE / 4, **KINDS[kind])
    steps = Steps(events=(*CALLS, "c_return"))
    iterator = iter(loader)
    expected = [next(iterator) for _ in range(TAKEN)]
    count = steps.count(lambda: expected.append(next(iterator)))
    expected += list(iterator)
    for position in sampled(count, 5, SEED):
        assert_nothing_is_lost(iter(loader), expected, position)


def assert_nothing_is_lost(iterator, expected, position):
    steps = Steps(events=(*CALLS, "c_return"))
    batches = [next(iterator) for _ in range(TAKEN)]
    with contextlib.suppress(KeyboardInterrupt):
        batches.append(steps.raise_at(position, KeyboardInterrupt(), lambda: next(iterator)))
    try:
        for batch in iterator:
            batches.append(batch)
    except RuntimeError as refusal:
        assert "cannot go on" in str(refusal), steps.place
        expected = expected[: len(batches)]
    assert same_batches(expected, batches), steps.place

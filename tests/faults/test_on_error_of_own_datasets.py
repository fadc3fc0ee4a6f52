"""``on_error`` with datasets of one's own: obeyed, or refused where it cannot be."""

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from fusionloader import FusionLoader


class Numbers(Dataset):
    """Samples 3 and 6 are bad."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index in (3, 6):
            raise ValueError(f"sample {index} is bad")
        return torch.tensor(index)


class Texts(Numbers):
    """What these are made of is known when the first one is there."""

    def __getitem__(self, index):
        return f"sample {index}"


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(8))


def with_state(**options):
    dataset = Numbers()
    dataset.state_dict = dict
    dataset.load_state_dict = len
    return FusionLoader(dataset, 4, **options)


WHOLE = {
    "a custom collate_fn": lambda **options: FusionLoader(Numbers(), 4, collate_fn=list, **options),
    "batch_size=None": lambda **options: FusionLoader(Numbers(), None, **options),
    "an IterableDataset": lambda **options: FusionLoader(Stream(), 4, **options),
    "a dataset with a state_dict": with_state,
}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_bad_samples_are_left_out_or_replaced(num_workers):
    options = {"num_workers": num_workers, "seed": 1}
    skipping = FusionLoader(Numbers(), 4, on_error="skip", **options)
    assert [batch.tolist() for batch in skipping] == [[0, 1, 2], [4, 5, 7]]
    assert skipping.stats().skipped == 2
    replacing = FusionLoader(Numbers(), 4, on_error="substitute", **options)
    first, second = (batch.tolist() for batch in replacing)
    assert (first[:3], second[:2], second[3]) == ([0, 1, 2], [4, 5], 7)
    assert not {first[3], second[2]} & {3, 6}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("why", WHOLE)
def test_whole_batches_refuse_what_they_cannot_do(why, num_workers):
    loader = WHOLE[why](num_workers=num_workers, on_error="skip")
    with pytest.raises(ValueError, match=f"on_error='skip' .*whole batches: .*{why}"):
        iter(loader)


def test_samples_that_are_no_arrays_refuse_it_when_that_is_known():
    with pytest.raises(ValueError, match="on_error='substitute' .*whole batches"):
        list(FusionLoader(Texts(), 4, num_workers=2, on_error="substitute"))

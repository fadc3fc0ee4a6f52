"""``on_error`` with datasets of one's own: obeyed, or refused where it cannot be."""

import io

import pytest
import torch
from PIL import Image
from support.images import eval_transform
from torch.utils.data import Dataset, IterableDataset

from fusionloader import FusionLoader

STREAM = io.BytesIO()
Image.new("RGB", (80, 60)).save(STREAM, "JPEG")
JPEG = STREAM.getvalue()


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


class Lists(Numbers):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


REFUSE = {
    "__getitems__": lambda **options: FusionLoader(Lists(), 4, **options),
    "an IterableDataset": lambda **options: FusionLoader(Stream(), 4, **options),
    "a dataset with a state_dict": with_state,
}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_bad_samples_are_left_out_or_replaced(num_workers):
    options = {"num_workers": num_workers, "seed": 1}
    skipping = FusionLoader(Numbers(), 4, on_error="skip", **options)
    assert [batch.tolist() for batch in skipping] == [[0, 1, 2], [4, 5, 7]]
    assert skipping.stats().skipped == 2
    assert "index 3" in skipping.stats().errors[0]
    replacing = FusionLoader(Numbers(), 4, on_error="substitute", **options)
    first, second = (batch.tolist() for batch in replacing)
    alone = FusionLoader(Numbers(), 4, on_error="substitute", **(options | {"num_workers": 1}))
    assert [batch.tolist() for batch in alone] == [first, second]
    assert (first[:3], second[:2], second[3]) == ([0, 1, 2], [4, 5], 7)
    assert not {first[3], second[2]} & {3, 6}


def tensors(samples):
    return [torch.as_tensor(each) for each in samples]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_collate_fn_does_not_see_those_that_are_left_out(num_workers):
    options = {"num_workers": num_workers, "seed": 1, "on_error": "skip"}
    loader = FusionLoader(Numbers(), 2, collate_fn=tensors, **options)
    assert [list(map(int, batch)) for batch in loader] == [[0, 1], [2], [4, 5], [7]]
    assert loader.stats().skipped == 2
    without_batches = FusionLoader(Numbers(), None, **options)
    assert list(map(int, without_batches)) == [0, 1, 2, 4, 5, 7]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("why", REFUSE)
def test_what_makes_no_single_samples_refuses_it(why, num_workers):
    loader = REFUSE[why](num_workers=num_workers, on_error="skip")
    with pytest.raises(ValueError, match=f"on_error='skip' .*has none: .*{why}"):
        iter(loader)


def test_samples_that_are_no_arrays_are_left_out_as_well():
    loader = FusionLoader(Texts(), 4, num_workers=2, on_error="skip")
    assert [len(batch) for batch in loader] == [4, 4]


class Encoded(Dataset):
    """Images that a plan makes, whatever ``__getitems__`` would."""

    transform = staticmethod(eval_transform())

    def __len__(self):
        return 4

    def read_encoded(self, index):
        return b"no image" if index == 2 else JPEG, index

    def __getitems__(self, indices):
        raise AssertionError(indices)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_plan_leaves_samples_out_of_a_dataset_that_could_make_lists(num_workers):
    loader = FusionLoader(Encoded(), 4, num_workers=num_workers, on_error="skip")
    ((_, targets),) = loader
    assert targets.tolist() == [0, 1, 3]


def test_explain_says_that_samples_of_a_collate_fn_are_made_here():
    loader = FusionLoader(Numbers(), 2, collate_fn=tensors, on_error="skip")
    assert loader.explain().startswith("in the training process, because num_workers=0")
    loader = FusionLoader(Numbers(), 2, collate_fn=tensors)
    assert loader.explain().startswith("whole batches in torch's own loop")


class SaysNothing(Exception):
    def __str__(self):
        raise AttributeError("a part of the message was never set")

    __repr__ = __str__


class Index(int):
    def __repr__(self):
        raise AttributeError("no index has a name")


class Mute(Dataset):
    """Neither its errors nor its length can be put in words."""

    def __len__(self):
        raise RuntimeError("it has no length")

    def __getitem__(self, index):
        if index == 1:
            raise SaysNothing
        return int(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_and_indices_that_have_no_text_are_handled_like_others(workers, caplog):
    options = {"batch_sampler": [[Index(0), Index(1)], [Index(2), Index(3)]]}
    options |= {"num_workers": workers}
    ours = iter(FusionLoader(Mute(), **options))
    with pytest.raises(SaysNothing):
        next(ours)
    assert next(ours).tolist() == [2, 3]
    skipping = list(FusionLoader(Mute(), **options, on_error="skip"))
    assert "was left out: SaysNothing" in caplog.text
    assert [batch.tolist() for batch in skipping] == [[0], [2, 3]]

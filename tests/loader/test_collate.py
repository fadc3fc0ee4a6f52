"""The ways of collating that torch offers are honoured, on every path."""

import threading

import numpy as np
import pytest
import torch
from support.batches import equal, same_batches
from support.images import eval_transform
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data._utils import collate
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fusionloader import FusionLoader
from fusionloader.engine.delivery import first_calls
from fusionloader.system import processes


def halved(batch, *, collate_fn_map=None):
    return torch.stack(batch) / 2


@pytest.mark.few(2)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["folder", "tensors"])
def test_a_replaced_collate_function_is_used(monkeypatch, image_folder, workers, kind):
    dataset = TensorDataset(torch.arange(6.0))
    if kind == "folder":
        dataset = ImageFolder(str(image_folder), eval_transform())
    ours = FusionLoader(dataset, 3, num_workers=workers)
    plain = list(ours)
    monkeypatch.setitem(collate.default_collate_fn_map, torch.Tensor, halved)
    assert same_batches(DataLoader(dataset, 3), ours)
    assert not equal(plain, list(ours))


@pytest.mark.parametrize("key", [torch.Tensor, np.ndarray, int, str])
def test_a_replaced_collate_function_is_not_called_before_there_are_samples(monkeypatch, key):
    errors = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    monkeypatch.setattr(first_calls, "_is_done", False)
    own = collate.default_collate_fn_map | {key: lambda batch, **_: errors.append(batch)}
    monkeypatch.setattr(collate, "default_collate_fn_map", own)
    with processes.starting():
        first_calls.call_once()
    assert first_calls._is_done and not errors


def first_only(batch):
    return batch[0]


def test_a_replaced_default_collate_is_used(monkeypatch):
    monkeypatch.setattr(collate, "default_collate", first_only)
    dataset = TensorDataset(torch.arange(6.0))
    assert same_batches(DataLoader(dataset, 3), FusionLoader(dataset, 3, num_workers=2))


class Mixed(Dataset):
    """Each second sample is of another type."""

    def __init__(self, *samples):
        self.samples = samples

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.zeros(64), self.samples[index % 2]


@pytest.mark.parametrize(
    "samples",
    [
        (np.zeros(4, np.float32), np.full(4, 0.1)),
        (np.full(4, 0.1), np.zeros(4, np.float32)),
        (torch.ones(2, dtype=torch.int32), torch.tensor([1 << 40, 2])),
        (torch.ones(2, dtype=torch.int64), torch.tensor([0.5, 2])),
        (torch.ones(2), torch.ones(2, requires_grad=True)),
        (torch.ones(2, dtype=torch.bool), torch.tensor([3, 0])),
    ],
    ids=str,
)
def test_types_that_differ_in_a_batch_become_those_of_workers(samples):
    def result(kind):
        try:
            return [batch[1] for batch in kind(Mixed(*samples), 4, num_workers=1)]
        except (RuntimeError, TypeError) as error:
            return type(error)

    ours, theirs = result(FusionLoader), result(DataLoader)
    assert ours is theirs or (equal(ours, theirs) and ours[0].dtype == theirs[0].dtype)


class Darker:
    """A transform of the user's, which torchvision's types go through as they are."""

    def __call__(self, image):
        return tv_tensors.wrap(image // 2, like=image)


@pytest.mark.parametrize("workers", [0, 2])
def test_images_of_torchvisions_type_are_written_row_by_row(image_folder, workers):
    steps = [v2.ToImage(), v2.Resize(40), v2.CenterCrop(32), Darker()]
    dataset = ImageFolder(str(image_folder), v2.Compose(steps))
    assert type(dataset[0][0]) is tv_tensors.Image
    ours = FusionLoader(dataset, 8, num_workers=workers)
    batches = list(ours)
    assert "whole batches" not in ours.explain()
    assert all(type(images) is torch.Tensor for images, _ in batches)
    theirs = FusionLoader(dataset, 8, num_workers=0)
    assert same_batches(theirs, batches)
    assert all(type(images) is torch.Tensor for images, _ in DataLoader(dataset, 8))


def test_the_hint_of_a_key_error_is_on_lines_of_its_own():
    ours = FusionLoader([{"a": 1}, {"b": 2}], 2, num_workers=1)
    with pytest.raises(KeyError, match="index 1 is {'b': int}") as raised:
        next(iter(ours))
    assert "\\n" not in str(raised.value)

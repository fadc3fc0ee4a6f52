"""A dataset, its transform or the ways of collating may change: what was learnt is learnt again."""

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from support.batches import same_batches
from support.images import eval_transform
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.data.sources.fingerprint import Fingerprint
from fusionloader.route import route

WHOLE = "whole batches: "


class Named(Dataset):
    """Samples have a name beside the number unless that is asked not to be."""

    def __init__(self):
        self.names = True
        self.epoch = 0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return (f"sample {index}", index) if self.names else index


def test_samples_that_lose_their_strings_are_written_row_by_row_again():
    dataset = Named()
    loader = FusionLoader(dataset, 4, num_workers=1)
    assert same_batches(DataLoader(dataset, 4), loader)
    assert WHOLE in loader.explain()
    dataset.epoch = 1  # a counter is no change
    assert WHOLE in loader.explain()
    dataset.names = False
    assert WHOLE not in loader.explain()
    assert same_batches(DataLoader(dataset, 4), loader)
    assert WHOLE not in loader.explain()


def test_a_transform_that_was_replaced_gets_another_chance(image_folder):
    dataset = ImageFolder(str(image_folder), v1.Compose([v1.ToTensor(), _name]))
    loader = FusionLoader(Subset(dataset, range(6)), 2, num_workers=1)
    assert same_batches(DataLoader(loader.dataset, 2), loader)
    assert WHOLE in loader.explain()
    dataset.transform.transforms[:] = eval_transform().transforms
    assert WHOLE not in loader.explain()
    assert same_batches(DataLoader(loader.dataset, 2), loader)


def _name(image):
    return str(image.dtype)


@pytest.mark.parametrize(
    "change",
    [
        lambda transform: setattr(transform.transforms[0], "size", 7),
        lambda transform: setattr(transform.transforms[0], "size", [7]),
        lambda transform: transform.transforms.pop(),
        lambda transform: transform.transforms.reverse(),
        lambda transform: setattr(transform.transforms[1], "p", 0.25),
        lambda transform: setattr(transform.transforms[1], "forward", torch.neg),
    ],
)
def test_a_fingerprint_notices_a_change_in_a_transform(change):
    class Holder:
        transform = None

    holder = Holder()
    holder.transform = v1.Compose([v1.Resize(5), v1.RandomHorizontalFlip()])
    before = Fingerprint(holder)
    assert before == Fingerprint(holder)
    change(holder.transform)
    assert before != Fingerprint(holder)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_is_compiled_once_for_an_iterator(monkeypatch, eval_set, workers):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return original(*arguments)

    original = route.compile_dataset
    loader = FusionLoader(eval_set, 8, num_workers=workers)
    monkeypatch.setattr(route, "compile_dataset", counted)
    next(iter(loader))
    assert len(calls) == 1


class Unspeakable:
    def __call__(self, image):
        return v1.functional.to_tensor(image.resize((4, 4)))

    def __repr__(self):
        raise AttributeError("set in a fit() that was not called")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_whose_repr_raises_is_named_by_its_class(image_folder, workers):
    dataset = ImageFolder(str(image_folder), v1.Compose([v1.Resize(40), Unspeakable()]))
    loader = FusionLoader(dataset, 8, num_workers=workers)
    assert same_batches(DataLoader(dataset, 8), loader)
    assert "Unspeakable" in loader.explain()


class Loaded(Exception):
    """Code of a dataset's attribute has run where nobody asked for it."""


def _loads(*_):
    raise Loaded


class LazyList(list):
    __iter__ = __len__ = _loads


class LazyDict(dict):
    values = __len__ = __iter__ = _loads


class Slotted:
    __slots__ = ()
    __getattr__ = _loads


class Delegating:
    __getattr__ = _loads


class OtherClass:
    __class__ = property(_loads)


class Shadowed:
    __dict__ = property(_loads)


LAZY = {
    "proxy": lambda: pytest.importorskip("wrapt").LazyObjectProxy(_loads),
    **{kind.__name__: kind for kind in (LazyList, LazyDict, Slotted, Delegating, OtherClass)},
    "Shadowed": Shadowed,
}


class Holding(Dataset):
    def __init__(self, held):
        self.held = held

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", LAZY)
def test_what_a_dataset_loads_lazily_is_not_loaded_by_looking_at_it(kind, workers):
    dataset = Holding(LAZY[kind]())
    loader = FusionLoader(dataset, 4, num_workers=workers)
    loader.explain()
    for _ in range(2):
        assert same_batches(DataLoader(dataset, 4), loader)


@pytest.mark.parametrize("make", [lambda: torch.zeros(9), lambda: np.zeros(9)])
def test_arrays_that_a_dataset_gives_up_are_freed(make):
    dataset = Holding(make())
    with FusionLoader(dataset, 4, num_workers=1, persistent_workers=True) as loader:
        list(loader)
        held, dataset.held = weakref.ref(dataset.held), make()
        list(loader)
        assert held() is None


def _with_samples(root, make):
    dataset = ImageFolder(str(root), eval_transform())
    dataset.samples = make(dataset.samples)
    return dataset


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "make",
    [
        lambda samples: [(Path(path), target) for path, target in samples],
        lambda samples: [(path.encode(), target) for path, target in samples],
        lambda samples: np.array(samples, dtype=object),
        tuple,
    ],
)
def test_samples_of_a_folder_may_be_of_other_types(image_folder, make, workers):
    dataset = _with_samples(image_folder, make)
    ours = FusionLoader(dataset, 8, num_workers=workers, worker_init_fn=int)
    assert same_batches(DataLoader(dataset, 8), ours)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_index_that_a_subset_does_not_have_is_an_error_of_its_batch(eval_set, workers):
    dataset = Subset(eval_set, [1, 99, 2])
    ours = iter(FusionLoader(dataset, 1, num_workers=workers))
    expected = next(iter(DataLoader(dataset, 1)))
    assert torch.equal(next(ours)[0], expected[0])
    with pytest.raises(IndexError):
        next(ours)
    assert next(ours)[1].tolist() == [eval_set.targets[2]]


class Around(Dataset):
    def __init__(self, inner, transform=None):
        self.inner, self.transform = inner, transform

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        image, target = self.inner[index]
        if self.transform:
            image = self.transform(image)
        return image, target


class Tested:
    """Loads something where it is asked whether it is true."""

    __bool__ = _loads


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("make", [Holding, lambda eval_set: Around(eval_set)])
def test_a_dataset_is_freed_with_its_loader(eval_set, make, workers):
    dataset = make(eval_set)
    loader = FusionLoader(dataset, 8, num_workers=workers)
    gc.disable()
    try:
        list(loader)
        freed = weakref.ref(dataset)
        del dataset, loader
        assert freed() is None
    finally:
        gc.enable()


def test_an_attribute_that_a_dataset_tests_is_not_tested_before_it(eval_set):
    loader = FusionLoader(Around(eval_set, Tested()), 8, num_workers=1)
    assert "python" in loader.explain()
    with pytest.raises(Loaded):
        list(loader)

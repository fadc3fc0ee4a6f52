"""Classes around a dataset of images: those that read a sample and transform it are compiled."""

import pickle
import random

import pytest
import torch
from support.batches import same_batches
from support.images import eval_transform
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, random_split
from torchvision import transforms as v1
from torchvision.datasets import MNIST, ImageFolder

from fusionloader import FusionLoader
from fusionloader.data.sources.datasets import compile_dataset
from fusionloader.data.sources.plan_source import make_source
from fusionloader.transforms.executors.python import SampleKey


class Transformed(Dataset):
    def __init__(self, subset, transform=None):
        self.subset, self.transform = subset, transform

    def __len__(self):
        return len(self.subset)

    def __getitem__(self, index):
        image, target = self.subset[index]
        return self.transform(image), target


class WithIf(Transformed):
    def __getitem__(self, index):
        x, y = self.subset[index]
        if self.transform:
            x = self.transform(x)
        return x, y


class ByPlace(Transformed):
    def __getitem__(self, i):
        sample = self.subset[i]
        return (self.transform(sample[0]), sample[1])


class Chosen(Dataset):
    def __init__(self, dataset, indices, transform):
        self.dataset, self.indices, self.transform = dataset, indices, transform

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, i):
        image, target = self.dataset[self.indices[i]]
        return self.transform(image), target


class As(Transformed):
    def __getitem__(self, index):
        return self.subset[index]


def images(image_folder, transform=None):
    return ImageFolder(str(image_folder), transform)


def split(dataset):
    return random_split(dataset, [0.5, 0.5], torch.Generator().manual_seed(1))


def compiled_datasets(image_folder):
    """Yields names, and datasets whose samples are made by one plan."""
    plain, size = images(image_folder), v1.Resize((36, 36))
    first, second = split(plain)
    steps = eval_transform()
    yield "folder", Transformed(plain, steps)
    yield "split", Transformed(first, steps)
    yield "if", WithIf(second, steps)
    yield "if none", WithIf(images(image_folder, steps))
    yield "by place", ByPlace(first, steps)
    yield "chosen", Chosen(plain, [3, -1, 5, 3], steps)
    yield "subset of it", Subset(Transformed(first, steps), [1, 0, -1])
    yield "one in another", Transformed(WithIf(first, size), v1.ToTensor())
    yield "inner transform", Transformed(Subset(images(image_folder, size), [2, 4]), v1.ToTensor())
    yield "as it is", As(images(image_folder, steps))
    yield "joined", ConcatDataset([Transformed(first, steps), Transformed(second, steps)])
    digits = FakeDigits(v1.ToTensor())
    yield "in memory", Transformed(Subset(FakeDigits(), [4, 0, -1]), v1.ToTensor())
    yield "in memory twice", ConcatDataset([digits, Subset(digits, [1, -1]), digits])


class FakeDigits(MNIST):
    def __init__(self, transform=None):
        self.data = torch.arange(5 * 28 * 28).reshape(5, 28, 28).to(torch.uint8)
        self.targets = torch.arange(5)
        self.transform, self.target_transform = transform, None


def test_batches_are_data_loaders(image_folder):
    for name, dataset in compiled_datasets(image_folder):
        loader = FusionLoader(dataset, 3, num_workers=0)
        assert "native" in loader.explain(), name
        assert "python" not in loader.explain(), name
        assert same_batches(DataLoader(dataset, 3), loader), name
        assert "native workers" in repr(FusionLoader(dataset, 3, num_workers=1)), name


def test_native_workers_make_the_batches(image_folder):
    dataset = WithIf(split(images(image_folder))[1], eval_transform())
    assert same_batches(DataLoader(dataset, 3), FusionLoader(dataset, 3, num_workers=1))


def test_a_source_of_parts_can_be_sent_to_a_process(image_folder):
    first, second = split(images(image_folder))
    dataset = ConcatDataset([WithIf(first, eval_transform()), Chosen(second, [2, -1], step())])
    source = pickle.loads(pickle.dumps(make_source(dataset, compile_dataset(dataset))))
    for index in range(len(dataset)):
        image, target = source.load(SampleKey(index, 0, 0, index, 0))
        expected, label = dataset[index]
        assert torch.equal(image, expected)
        assert target == label


def step():
    return v1.Compose([v1.Resize((32, 32)), v1.ToTensor()])


def joined_datasets(image_folder):
    """Yields names, and datasets whose parts have a plan each."""
    first, second = split(images(image_folder))
    steps = eval_transform()
    tail = v1.Compose([step(), v1.Lambda(torch.neg)])
    folder = images(image_folder, steps)
    yield "splits", ConcatDataset([Transformed(first, steps), Transformed(second, step())])
    yield "a tail", ConcatDataset([Transformed(first, steps), Transformed(second, tail)])
    other = ImageFolder(str(image_folder), step(), target_transform=float)
    yield "folders", ConcatDataset([folder, Subset(other, [5, -2]), folder])
    mixed = ConcatDataset([folder, Transformed(second, step())])
    yield "a split of them", split(mixed)[1]
    grey = v1.Compose([v1.Grayscale(), step()])
    yield "other sources", ConcatDataset([Transformed(first, grey), FakeDigits(step())])


@pytest.mark.few(1)
@pytest.mark.parametrize("workers", [0, 1])
def test_parts_may_have_a_plan_each(image_folder, workers):
    for name, dataset in joined_datasets(image_folder):
        loader = FusionLoader(dataset, 3, num_workers=workers)
        assert "ImageFolder" in loader.explain(), name
        assert same_batches(DataLoader(dataset, 3), loader), name


class Converting(Transformed):
    def __getitem__(self, index):
        image, target = self.subset[index]
        return self.transform(image.convert("RGB")), target


class Sometimes(Transformed):
    def __getitem__(self, index):
        image, target = self.subset[index]
        return self.transform(image) if random.random() < 2 else image, target


class Named(Transformed):
    def __getitem__(self, index):
        image, target = self.subset[index]
        return {"image": self.transform(image), "target": target}


class Next(Transformed):
    def __getitem__(self, index):
        image, target = self.subset[index - 1]
        return self.transform(image), target


class Odd(Transformed):
    def __getitem__(self, index):
        image, target = self.subset[index]
        return (self.transform(image), target) if target != 1 else (self.transform(image), 7)


class Pair(Transformed):
    def __getitem__(self, index):
        image, target = self.subset[index]
        other, _ = self.subset[index]
        return self.transform(image), target


class Logged(Transformed):
    def __init__(self, *given):
        super().__init__(*given)
        self.log = []

    def __getitem__(self, index):
        self.log.append(index)
        image, target = self.subset[index]
        return self.transform(image), target


class Careful(Transformed):
    def __getitem__(self, index):
        try:
            image, target = self.subset[index]
        except OSError:
            image, target = self.subset[0]
        return self.transform(image), target


class Listed(Transformed):
    def __getitems__(self, indices):
        return [self[index] for index in reversed(indices)]


class Flagged(Transformed):
    flags = [True] * 100

    def __getitem__(self, index):
        image, target = self.subset[index]
        return self.transform(image), target if self.flags[index] else -1


OTHERS = [Converting, Sometimes, Named, Next, Odd, Pair, Logged, Careful, Flagged]


@pytest.mark.parametrize("kind", OTHERS)
def test_what_does_anything_else_runs_as_it_is(image_folder, kind):
    dataset = kind(split(images(image_folder))[0], eval_transform())
    loader = FusionLoader(dataset, 3, num_workers=0)
    assert "native would be Subset(ImageFolder(..., transform=...), ...)" in loader.explain()
    assert same_batches(DataLoader(dataset, 3), loader)
    assert len(getattr(dataset, "log", [])) in (0, 2 * len(dataset))


def test_a_list_of_indices_that_the_class_takes_is_given_to_it(image_folder):
    dataset = Listed(images(image_folder), eval_transform())
    loader = FusionLoader(dataset, 3, num_workers=0)
    assert "__getitems__ of Listed makes whole mini-batches" in loader.explain()
    assert same_batches(DataLoader(dataset, 3), loader)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Converting, "__getitem__ uses convert of its image"),
        (Sometimes, "__getitem__ uses random"),
        (Careful, "__getitem__ catches exceptions"),
        (Named, "__getitem__ does not return the transformed image and its target"),
    ],
)
def test_explain_says_why_and_what_would_be_native(image_folder, kind, why):
    dataset = kind(images(image_folder), eval_transform())
    said = f"{kind.__name__}: python ({why}; native would be ImageFolder(..., transform=...))"
    assert said in FusionLoader(dataset, 3).explain()


def test_a_change_between_epochs_is_noticed(image_folder):
    first, second = split(images(image_folder))
    dataset = WithIf(first, eval_transform())
    loader = FusionLoader(dataset, 3, num_workers=1)
    for attribute, value in (("transform", step()), ("subset", second)):
        assert same_batches(DataLoader(dataset, 3), loader)
        setattr(dataset, attribute, value)
    assert same_batches(DataLoader(dataset, 3), loader)


def test_a_change_within_an_epoch_is_noticed_without_workers(image_folder):
    dataset = WithIf(images(image_folder), eval_transform())
    found = []
    for loader in (DataLoader(dataset, 3), FusionLoader(dataset, 3)):
        dataset.transform = eval_transform()
        batches = iter(loader)
        first = next(batches)
        dataset.transform = step()
        found.append([first, next(batches)])
    assert same_batches(*found)


def test_a_bad_sample_is_named_by_its_place_and_file(tmp_path, image_folder):
    broken = tmp_path / "a" / "broken.jpg"
    broken.parent.mkdir()
    broken.write_bytes(b"no image")
    bad = Transformed(ImageFolder(str(tmp_path)), step())
    for good in (step(), bad.transform):
        dataset = ConcatDataset([Transformed(images(image_folder), good), bad])
        with pytest.raises(Exception, match=rf"index {len(dataset) - 1} \({broken}\)"):
            list(FusionLoader(dataset, 2, sampler=[0, len(dataset) - 1], num_workers=1))

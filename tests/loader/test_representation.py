"""How a loader shows itself: in a line, and in a notebook."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from support.images import train_transform
from torch.utils.data import BatchSampler, Dataset, IterableDataset, SequentialSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader


class Odd(Dataset):
    """Its length is an error, and its repr, too."""

    def __len__(self):
        raise RuntimeError("no length")

    def __repr__(self):
        raise RuntimeError("no repr")

    def __getitem__(self, index):
        return torch.zeros(1)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


def lambda_transform():
    return transforms.Compose([transforms.ToTensor(), lambda image: image])


@pytest.mark.parametrize(
    "transform, options, way",
    [
        (train_transform, {"num_workers": 2}, "num_workers=2, native workers"),
        (lambda_transform, {"num_workers": 2}, "num_workers=2, Python workers"),
        (train_transform, {"num_workers": 1, "collate_fn": len}, "num_workers=1, whole batches"),
        (train_transform, {}, "num_workers=0, in process"),
    ],
)
def test_a_line_says_what_is_loaded_and_how(transform, options, way, image_folder):
    loader = FusionLoader(ImageFolder(str(image_folder), transform()), 8, **options)
    assert repr(loader) == f"<FusionLoader of ImageFolder (40 samples): batch_size=8, {way}>"


def test_the_wait_is_said_once_it_is_known(train_set):
    loader = FusionLoader(train_set, 8)
    assert "waits" not in repr(loader) and "Nothing has been measured" in loader._repr_html_()
    list(loader)
    share = loader.stats().wait_share
    assert repr(loader).endswith(f"in process, training waits {share:.0%}>")
    assert f"Training waits {share:.1%} of its time" in loader._repr_html_()


def test_batch_samplers_and_subclasses_are_named():
    class Mine(FusionLoader):
        pass

    sampler = BatchSampler(SequentialSampler(range(4)), 2, False)
    shown = repr(Mine(list(range(4)), batch_sampler=sampler))
    assert shown.startswith("<Mine of list (4 samples): batch_sampler=BatchSampler, ")
    assert repr(FusionLoader(list(range(4)), batch_size=None)).count("batch_size=None") == 1


@pytest.mark.parametrize("dataset", [Odd(), Stream()], ids=["odd", "stream"])
def test_datasets_without_a_length_are_named(dataset):
    loader = FusionLoader(dataset, 2, sampler=None if isinstance(dataset, Stream) else [1, 2])
    assert f"<FusionLoader of {type(dataset).__name__}: batch_size=2" in repr(loader)
    assert type(dataset).__name__ in loader._repr_html_()


def test_it_never_raises():
    made = FusionLoader.__new__(FusionLoader)  # as an error in the constructor leaves it
    assert "FusionLoader object at" in repr(made)
    assert made._repr_html_() is None


def test_a_notebook_shows_stages_and_explains(train_set):
    loader = FusionLoader(train_set, 8, num_workers=2)
    list(loader)
    page = ElementTree.fromstring(loader._repr_html_())
    reported = loader.stats()
    rows = [[cell.text for cell in row] for row in page.iter("tr")][1:]
    assert [row[:2] for row in rows] == [[s.name, f"{s.capacity:,.0f}"] for s in reported.stages]
    *explained, waits = loader.explain().splitlines()
    assert page.find("details/pre").text == "\n".join(explained)
    assert _without_shares(waits) in _without_shares("".join(page.itertext()))
    assert "color" not in loader._repr_html_()  # the notebook's are light or dark


def _without_shares(text):
    """Two reports are of two moments, in which workers' threads may still end."""
    return re.sub(r"[\d.]+%", "%", text)


def test_names_of_the_user_are_escaped():
    odd = type("<script>", (Dataset,), {"__len__": lambda self: 1, "__getitem__": None})
    shown = FusionLoader(odd(), 1)._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown

"""Transforms that raise or give uneven samples: the error names the sample and what to do."""

import pytest
import torch
from support.notes import HAS_NOTES, said
from torch.utils.data import Dataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader


class Fails:
    """Raises on the images that are wider than they are high."""

    def __call__(self, image):
        if image.width > image.height:
            raise ZeroDivisionError("a bug of the user's")
        return image

    def __repr__(self):
        return "Fails()"


def folder(root, *steps):
    return ImageFolder(str(root), v1.Compose([*steps, v1.ToTensor()]))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_that_raises_is_named_with_the_sample(image_folder, workers):
    loader = FusionLoader(folder(image_folder, Fails()), 1, num_workers=workers)
    with pytest.raises(ZeroDivisionError) as caught:
        list(loader)
    text = said(caught.value)
    assert "Sample: index" in text and ".jpg" in text or not (workers or HAS_NOTES)
    assert "Transform: Fails()" in text or not HAS_NOTES


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_is_left_out_is_logged_with_its_error(image_folder, workers, caplog):
    dataset = folder(image_folder, Fails())
    list(FusionLoader(dataset, 1, num_workers=workers, on_error="skip"))
    logged = [text for text in caplog.messages if "left out" in text]
    assert logged and all(text.endswith("Error: a bug of the user's") for text in logged)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", [[v1.Resize(30)], [v1.Lambda(lambda image: image)]], ids=str)
def test_sizes_that_differ_are_an_error_that_names_them(image_folder, workers, steps):
    loader = FusionLoader(folder(image_folder, *steps), 8, num_workers=workers)
    with pytest.raises(RuntimeError, match="equal size") as caught:
        list(loader)
    text = str(caught.value)
    assert "index 0 (" in text and "float32 3 x " in text and "collate_fn" in text


class Sometimes:
    """A dataset whose samples change their type."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.zeros(2) if index < 10 else torch.zeros(3)


def test_a_dataset_whose_samples_change_their_type_is_an_error():
    batches = iter(FusionLoader(Sometimes(), 4, num_workers=2))
    assert next(batches).shape == (4, 2)
    with pytest.raises(
        RuntimeError, match=r"(?s)equal size.*index 8.*float32 2.*index 10.*float32 3"
    ):
        list(batches)


class Key(str):
    """A key that cannot be compared."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        raise ArithmeticError("keys are not compared")


class Hard(Dataset):
    """Sample 5 can be neither written to the rows of the others nor sent."""

    def __init__(self, bad):
        self.bad = bad

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.bad if index == 5 else {"x": index}


@pytest.mark.parametrize(
    ("bad", "text"),
    [((lambda: None), "pickle"), ({Key("x"): 5}, "keys are not compared")],
    ids=["unpicklable", "incomparable"],
)
def test_a_sample_that_can_be_neither_written_nor_sent_is_named(bad, text):
    batches = iter(FusionLoader(Hard(bad), 4, num_workers=1))
    assert next(batches)["x"].tolist() == [0, 1, 2, 3]
    with pytest.raises(Exception, match=f"(?s)Sample: index 5\n.*{text}"):
        next(batches)


class Noted(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            error = ValueError("it is bad")
            error.add_note("Transform: <function at 0x1>")
            raise error
        return index


@pytest.mark.skipif(not HAS_NOTES, reason="errors have no notes")
def test_the_log_has_the_error_of_a_sample_and_not_its_notes(caplog):
    loader = FusionLoader(Noted(), 4, num_workers=1, on_error="skip")
    assert sum(map(len, loader)) == 7
    assert "Sample: index 5 was left out: ValueError: it is bad" in caplog.messages

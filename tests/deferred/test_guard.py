"""A bug in what stands in for a library's function does not end training: the library does it."""

import functools
import io
import logging
import random
import signal

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from support import encoded_images
from support.batches import equal
from support.images import NORMALIZE, photo
from support.seeding import ListsSeededByIndex
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.transforms import functional, v2

from fusionloader import FusionLoader
from fusionloader.data.deferred import activity, core, counts, guard, methods, source
from fusionloader.data.deferred.composed import compose, recorders, steps, trials
from fusionloader.data.deferred.rows import memory
from fusionloader.data.deferred.scope import deferring

SIZE = 60, 50


class Planted(Exception):
    """A bug."""


ENCODED = encoded_images.encoded(photo(np.random.default_rng(3), *SIZE), quality=90)


def rgb():
    return Image.open(io.BytesIO(ENCODED)).convert("RGB")


STEPS = [
    transforms.Compose(
        [
            transforms.RandomHorizontalFlip(),
            transforms.RandomResizedCrop(24),
            transforms.ColorJitter(0.4, 0.4, 0.4, 0.1),
            transforms.ToTensor(),
            transforms.Normalize(*NORMALIZE),
        ]
    ),
    v2.Compose(
        [
            v2.RandomHorizontalFlip(),
            lambda image: image.rotate(random.randint(0, 9)),
            v2.RandomResizedCrop(24),
            v2.RandAugment(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    ),
]


def uses():
    """What user code does to images, and the states of the generators afterwards."""
    torch.manual_seed(3), random.seed(3)
    image = rgb()
    made = [
        np.asarray(image),
        image.tobytes(),
        np.asarray(image.crop((1, 2, 30, 40)).resize((20, 20))),
        np.asarray(image.filter(ImageFilter.GaussianBlur(1.5)).transpose(0)),
        np.asarray(ImageOps.solarize(ImageOps.autocontrast(image), 99)),
        np.asarray(ImageEnhance.Contrast(image).enhance(0.5)),
        np.asarray(functional.adjust_hue(image, 0.1).convert("L")),
        functional.to_tensor(image),
        functional.pil_to_tensor(image.copy()),
        rgb().getpixel((3, 4)),
        *(each(rgb()) for each in STEPS for _ in range(2)),
    ]
    return made, random.getstate(), torch.get_rng_state()


PLANTS = {
    "an operation": (core.DeferredCore, "then"),
    "an image": (methods, "like"),
    "a file": (source.EncodedSource, "__init__"),
    "pixels": (source.EncodedSource, "run"),
    "a tensor": (core.DeferredCore, "tensor"),
    "a list": (compose, "RecordedSteps"),
    "a list that may have changed": (steps.RecordedSteps, "are"),
    "a list's end": (steps, "_tensor"),
    "draws of a transform": (recorders.TransformRecorder, "record"),
    "a conversion": (steps.RecordedSteps, "_converted"),
}


@pytest.fixture(autouse=True)
def _as_in_a_worker(monkeypatch):
    counts.take()
    monkeypatch.setattr(activity, "_everywhere", True)
    monkeypatch.setattr(recorders, "is_alone", lambda: True)  # pytest has other threads
    monkeypatch.setattr(compose, "_LEAST_CALLS", 1)
    monkeypatch.setattr(compose, "_known", type(compose._known)())


@pytest.fixture
def as_in_training(monkeypatch):
    monkeypatch.delenv(guard._STRICT)


def plant(monkeypatch, owner, name):
    """Has a function fail for all images but those that recorders are tried with."""
    right = getattr(owner, name)

    def wrong(*arguments, **named):
        if any(getattr(each, "size", SIZE) in trials._SIZES for each in arguments):
            return right(*arguments, **named)
        raise Planted("planted")

    monkeypatch.setattr(owner, name, wrong)


@pytest.mark.parametrize("where", PLANTS)
def test_the_library_does_what_a_bug_prevents_and_draws_the_same(
    where, monkeypatch, as_in_training
):
    expected = uses()
    plant(monkeypatch, *PLANTS[where])
    with deferring():
        assert equal(uses(), expected)
    failed = counts.take().failed
    assert failed
    assert all(
        "Planted: planted (fusionloader/data/deferred/" in error for error in failed.values()
    )


@pytest.mark.parametrize("where", PLANTS)
def test_a_strict_program_gets_the_error(where, monkeypatch):
    plant(monkeypatch, *PLANTS[where])
    with deferring(), pytest.raises(Planted):
        uses()


class Files(Dataset):
    def __init__(self, steps):
        self.steps = steps

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return self.steps(rgb())


@pytest.mark.few(1)
@pytest.mark.parametrize("workers", [0, 2])
def test_training_goes_on_and_is_told_once(workers, monkeypatch, as_in_training, caplog):
    plant(monkeypatch, recorders.TransformRecorder, "record")
    monkeypatch.setattr(memory.BatchRows, "stacked", lambda rows, tensors: 1 / 0)
    batches = []
    for kind in (DataLoader, FusionLoader):
        torch.manual_seed(5)
        loader = kind(ListsSeededByIndex(Files(STEPS[0])), 4, num_workers=workers)
        with caplog.at_level(logging.WARNING, "fusionloader.loader"):
            batches.append([list(loader) for _ in range(2)])
    assert equal(*batches)
    logged = [each.getMessage() for each in caplog.records if "has failed in place of" in each.msg]
    of_lists = [text for text in logged if "torchvision.transforms.Compose" in text]
    assert len(of_lists) == 1
    assert "Planted: planted (fusionloader/data/deferred/composed/steps.py:" in of_lists[0]
    assert "report this line" in of_lists[0]
    assert len(logged) == (2 if workers else 1)  # workers alone make batches in rows
    assert "failed in torchvision.transforms.Compose: Planted" in loader.explain()
    assert "torchvision.transforms.Compose" in loader.stats().deferred_images["failed"]


def test_the_librarys_errors_are_raised_as_they_are(monkeypatch, as_in_training):
    def outcome():
        image = rgb()
        with pytest.raises(Exception) as raised:  # noqa: PT011
            image.resize((-1, 4))
        return raised.type, str(raised.value), raised.value.__context__

    expected = outcome()
    plant(monkeypatch, core.DeferredCore, "then")
    with deferring():
        assert outcome() == expected
    assert not counts.take().failed


class Late(Exception):
    """Raised by a handler."""


class Handler:
    def __call__(self, number, frame):
        raise Late


@pytest.mark.parametrize(
    "handler",
    [
        Handler(),
        Handler().__call__,
        lambda *_: 1 / 0,
        functools.partial(Handler.__call__, Handler()),
    ],
)
def test_an_error_of_a_signals_handler_ends_the_operation(handler, monkeypatch):
    """As of a limit of time for a sample."""

    def interrupted(source):
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        attempt = guard.guarded(interrupted, len)
        with pytest.raises((Late, ZeroDivisionError)):
            attempt([1, 2])
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_file_that_fails_once_is_not_read_twice(monkeypatch, as_in_training):
    """Pillow raises for the first load of a damaged file, and not for the second one."""
    image = Image.open(io.BytesIO(ENCODED[: len(ENCODED) // 2]))
    with deferring(), pytest.raises(OSError, match="truncated"):
        image.crop((0, 0, 9, 9))

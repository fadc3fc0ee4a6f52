"""Pillow and torchvision are as they were when the training process's fetch returns."""

import functools
import importlib
import logging
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from deferred.uses import rgb
from PIL import Image, ImageEnhance, ImageFile, ImageOps
from support import warm_start
from support.images import photo
from torchvision import transforms
from torchvision.transforms import functional, v2

from fusionloader.data.deferred import canvas, opening, patches
from fusionloader.data.deferred.core import Blank, DeferredCore
from fusionloader.data.deferred.scope import deferring
from fusionloader.data.deferred.unparsed import UNPARSED

OWNERS = [
    Image.Image,
    ImageFile.ImageFile,
    ImageEnhance.Color,
    ImageEnhance._Enhance,
    ImageOps,
    functional,
    transforms.Compose,
    v2.Compose,
    v2.functional,
]
_pillows_open = Image.open


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "photo.jpg"
    photo(np.random.default_rng(1), 60, 50).save(file)
    return str(file)


def surface():
    return [dict(vars(owner)) for owner in OWNERS]


def test_nothing_is_left_of_it(path):
    before = surface()
    with deferring():
        assert surface() != before
        image = rgb(path)
        assert type(image._im) is DeferredCore
        with deferring():  # a loader inside a dataset
            pass
        assert type(rgb(path)._im) is DeferredCore
    assert surface() == before
    assert type(image._im) is not DeferredCore
    assert np.array_equal(np.asarray(image), np.asarray(rgb(path)))


def test_nothing_is_left_of_it_after_an_error(path):
    before = surface()
    with pytest.raises(KeyError), deferring():
        raise KeyError
    assert surface() == before


def test_other_threads_have_pillows_images(path):
    inside, seen = threading.Event(), threading.Event()
    found = []

    def other():
        inside.wait()
        image = rgb(path)
        found.append(type(image._im))
        image.crop((0, 0, 9, 9)).resize((5, 5)).load()
        seen.set()

    thread = threading.Thread(target=other)
    thread.start()
    with deferring():
        image = rgb(path)
        inside.set()
        assert seen.wait(60)
        assert type(image._im) is DeferredCore
    thread.join()
    assert found == [type(rgb(path)._im)]


def test_an_image_may_be_used_in_many_threads_at_once(path):
    expected = np.asarray(rgb(path).crop((3, 3, 40, 40)))
    with deferring():
        image = rgb(path)
        crops, start = [], threading.Barrier(4)

        def use():
            start.wait()
            crops.append(np.asarray(image.crop((3, 3, 40, 40))))
            image.getpixel((0, 0))

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(crops) == 4
    assert all(np.array_equal(crop, expected) for crop in crops)


def test_what_the_program_replaces_meanwhile_stays(path, monkeypatch):
    original = Image.Image.crop

    def crop(self, box=None):
        return original(self, box)

    with deferring():
        monkeypatch.setattr(Image.Image, "crop", crop)
    assert Image.Image.crop is crop


def test_a_transform_is_compiled_while_images_are_deferred():
    from fusionloader.transforms.plan.transforms import compile_transform

    steps = transforms.Compose([transforms.Resize(9), transforms.ToTensor()])
    with deferring():
        assert compile_transform(steps).tail is None


SCRIPT = """
import io, logging, sys
logging.basicConfig(format="%(message)s")
import numpy as np, PIL
from PIL import Image
{change}
from fusionloader.data.deferred.scope import deferring
file = io.BytesIO()
Image.new("RGB", (9, 9)).save(file, "JPEG")
before = dict(vars(Image.Image))
for _ in range(2):
    with deferring():
        assert type(Image.open(file).convert("RGB")._im).__name__ == "ImagingCore"
        assert dict(vars(Image.Image)) == before
"""


@pytest.mark.parametrize(
    "change, why",
    [
        ('PIL.__version__ = "14.0.0"', "Pillow 14.0.0 is not one of 11 to 13"),
        ("del Image.Image.__array_interface__", "Image has no __array_interface__"),
        (
            "Image.Image.resize = lambda self, size: self.copy()",
            "resize of Image was replaced by the program",
        ),
        ("Image.open = lambda file, old=Image.open: old(file)", "open of PIL.Image was replaced"),
    ],
)
@pytest.mark.few(1)
def test_what_is_not_as_expected_leaves_pillow_alone_and_is_said_once(change, why):
    done = warm_start.completed("-c", textwrap.dedent(SCRIPT.format(change=change)))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("images are not deferred") == 1
    assert why in done.stderr


def test_a_function_that_opens_images_with_pillows_is_called_as_before(caplog, path, monkeypatch):
    """As ultralytics, which registers a format of a package when Pillow knows none."""
    opened, pillows = [], _pillows_open

    def open_image(file):
        opened.append(file)
        return _pillows_open(file)

    monkeypatch.setattr(patches, "_made", functools.cache(patches._made.__wrapped__))
    monkeypatch.setattr(Image, "open", open_image)
    monkeypatch.setattr(opening._Attempts, "made", 0)  # files of other tests may not be worth it
    with deferring():
        assert type(rgb(path)._im) is DeferredCore
        assert UNPARSED in vars(Image.open(path))
    assert (opened, caplog.text) == ([path, path], "")
    assert Image.open is open_image and _pillows_open is pillows


def test_what_is_left_of_another_library_is_said(caplog, path, monkeypatch):
    kernels = v2.functional._utils._KERNEL_REGISTRY[v2.functional.adjust_hue]
    monkeypatch.setattr(patches, "_made", functools.cache(patches._made.__wrapped__))
    monkeypatch.setitem(kernels, Image.Image, lambda image, hue_factor: image)
    with caplog.at_level(logging.WARNING), deferring():
        assert type(rgb(path).crop((1, 1, 9, 9))._im) is DeferredCore
    assert "images are deferred, but functions of torchvision.transforms.v2 run" in caplog.text
    assert "images are not deferred" not in caplog.text


def test_without_images_no_library_of_images_is_imported():
    code = """
import sys
from fusionloader.data.deferred import patches
from fusionloader.data.deferred.scope import defer_in_worker, deferring
patches.install()
defer_in_worker()
with deferring():
    pass
assert not {"PIL", "torchvision"} & set(sys.modules), sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_table_holds_for_this_pillow(caplog):
    for module in patches._MODULES:
        importlib.import_module(module)
    with caplog.at_level(logging.WARNING), deferring():
        assert all(patches._made(module) for module in patches._MODULES)
    assert not caplog.records


def test_what_other_threads_make_of_an_image_is_pillows_afterwards(path):
    expected = np.asarray(rgb(path).crop((1, 1, 9, 9)))
    made = []
    with deferring():
        image = rgb(path)
        thread = threading.Thread(target=lambda: made.append(image.crop((1, 1, 9, 9))))
        thread.start()
        thread.join()
        assert type(made[0]._im) is DeferredCore
    assert type(made[0]._im) is not DeferredCore
    assert np.array_equal(np.asarray(made[0]), expected)


def test_another_thread_may_draw_on_a_canvas_meanwhile(path, monkeypatch):
    """It does so here between two lines of the replaced functions."""
    fill, find = Blank.pixels, canvas.deferred_core

    def drawn(blank):
        pixels = fill(blank)
        image._im = fill(blank)
        image.putpixel((0, 0), (9, 9, 9))
        return pixels

    def drawn_before(other):
        if other is photograph:
            image.putpixel((1, 0), (8, 8, 8))
        return find(other)

    with deferring():
        image, photograph = Image.new("RGB", (70, 60)), rgb(path)
        with monkeypatch.context() as patched:
            patched.setattr(Blank, "pixels", drawn)
            image.load()
        assert image.getpixel((0, 0)) == (9, 9, 9)
        image = Image.new("RGB", (70, 60))
        monkeypatch.setattr(canvas, "deferred_core", drawn_before)
        image.paste(photograph, (0, 5))
        assert image.getpixel((1, 0)) == (8, 8, 8)
        assert np.array_equal(np.asarray(image)[5:55, :60], np.asarray(photograph))


def test_an_enhancer_may_outlive_the_fetch(path):
    expected = np.asarray(ImageEnhance.Contrast(rgb(path)).enhance(0.3))
    with deferring():
        enhancers = [ImageEnhance.Contrast(rgb(path)) for _ in range(2)]
        enhancers[0].enhance(2.0)
    for enhancer in enhancers:
        assert np.array_equal(np.asarray(enhancer.enhance(0.3)), expected)

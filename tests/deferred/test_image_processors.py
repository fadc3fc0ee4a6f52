"""Image processors of transformers: the tensors that they make of images that are not deferred."""

import io
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image
from support.batches import same_batches
from support.images import photo
from torch.utils.data import Dataset

from fusionloader import FusionLoader
from fusionloader.data.deferred.counts import counts, uncounted
from fusionloader.data.deferred.scope import deferring

transformers = pytest.importorskip("transformers")
backends = pytest.importorskip("transformers.image_processing_backends")
image_processors = pytest.importorskip("fusionloader.data.deferred.image_processors")

KINDS = ("Bit", "CLIP", "DeiT", "OwlViT", "Siglip", "ViT")
SIZES = ((90, 70), (41, 160), (224, 224), (640, 31))
OPTIONS = {
    "as it is": {},
    "a list": {"return_tensors": None},
    "without resize": {"do_resize": False, "do_center_crop": True, "crop_size": 150},
    "bicubic": {"resample": 3, "size": {"height": 50, "width": 300}},
    "shorter edge": {"size": {"shortest_edge": 100}, "do_center_crop": False},
    "edges": {"size": {"shortest_edge": 60, "longest_edge": 90}, "do_center_crop": False},
    "within": {"size": {"max_height": 50, "max_width": 90}, "do_center_crop": False},
    "levels": {"do_rescale": False, "do_normalize": False},
    "rescaled": {"do_normalize": False, "rescale_factor": 1 / 128},
    "an odd crop": {"do_center_crop": True, "crop_size": {"height": 301, "width": 55}},
}


@pytest.fixture(scope="module")
def files():
    generator = np.random.default_rng(2)
    made = [io.BytesIO() for _ in SIZES]
    for file, (width, height) in zip(made, SIZES, strict=True):
        photo(generator, width, height).save(file, "JPEG", quality=90)
    return [file.getvalue() for file in made]


def processed(processor, content, mode="RGB", **options):
    image = Image.open(io.BytesIO(content)).convert(mode)
    made = processor(image, **{"return_tensors": "pt", **options})
    return list(made["pixel_values"])


def deferred(processor, files, **options):
    """What it makes of deferred images, and how many tensors were made natively."""
    with deferring(), uncounted():
        before = counts().results["tensor"]
        found = [processed(processor, content, **options) for content in files]
        assert not counts().failed
        return found, counts().results["tensor"] - before


def assert_same(processor, files, natively=True, **options):
    expected = [processed(processor, content, **options) for content in files]
    found, made = deferred(processor, files, **options)
    for ours, theirs in zip(found, expected, strict=True):
        for mine, wanted in zip(ours, theirs, strict=True):
            assert torch.equal(mine, wanted) and mine.dtype == wanted.dtype
            assert mine.stride() == wanted.stride()
    assert made == (len(files) if natively else 0)


@pytest.mark.parametrize(
    ("kind", "name"),
    [*((kind, "as it is") for kind in KINDS), *product(("CLIP", "ViT"), OPTIONS)],
)
def test_the_tensors_are_those_of_transformers(kind, name, files):
    options = OPTIONS[name]
    processor = getattr(transformers, f"{kind}ImageProcessor")()
    try:
        expected = [processed(processor, content, **options) for content in files]
    except (ValueError, RuntimeError) as error:  # a size that it does not know, or too small
        with deferring(), pytest.raises(type(error)):
            for content in files:
                processed(processor, content, **options)
        return
    assert expected
    assert_same(processor, files, **options)


@pytest.mark.parametrize("kind", ["CLIP", "ViT"])
def test_several_images_make_one_batch(kind, files):
    processor = getattr(transformers, f"{kind}ImageProcessor")()

    def batch():
        images = [Image.open(io.BytesIO(content)).convert("RGB") for content in files]
        return processor(images, return_tensors="pt")["pixel_values"]

    expected = batch()
    with deferring():
        assert torch.equal(batch(), expected)


class OwnResize(backends.TorchvisionBackend):
    """A processor with a step of its own."""

    do_resize, do_rescale, do_normalize = True, True, False
    size, resample, rescale_factor = {"height": 32, "width": 32}, 2, 1 / 255

    def resize(self, image, size, **kwargs):
        return super().resize(image, size, **kwargs).flip(-1)


def of_an_instance():
    processor = transformers.ViTImageProcessor()
    processor.rescale_and_normalize = lambda images, *_, **__: images.float() + 1
    return processor


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (OwnResize, {}),
        (of_an_instance, {}),
        (transformers.DetrImageProcessor, {}),
        (transformers.ViTImageProcessor, {"resample": 0}),
        (transformers.ViTImageProcessor, {"mode": "L", "do_normalize": False}),
        (
            transformers.ViTImageProcessor,
            {"do_pad": True, "pad_size": {"height": 300, "width": 300}},
        ),
        (transformers.ViTImageProcessor, {"return_tensors": "np"}),
    ],
    ids=["class", "instance", "DETR", "nearest", "gray", "pad", "numpy"],
)
def test_what_is_not_known_is_left_to_transformers(make, options, files):
    processor = make()
    expected = [processed(processor, content, **options) for content in files]
    found, natively = deferred(processor, files, **options)
    assert natively == 0
    assert all(map(np.array_equal, map(np.stack, found), map(np.stack, expected)))


def small(**options):
    return transformers.ViTImageProcessor(size=96, **options)


def with_other_sizes(files):
    """A processor of the same configuration as one whose size the program changes in place."""
    processor = small()
    deferred(processor, files)
    processor.size["height"] = processor.size["width"] = 48
    deferred(processor, files)
    return small()


def with_a_float(files):
    deferred(small(do_normalize=False, rescale_factor=1), files)
    return small(do_normalize=False, rescale_factor=1.0)


class Louder(transformers.ViTImageProcessor):
    """A table that depends on the object."""

    gain = 1.0

    def _fuse_mean_std_and_rescale_factor(self, **options):
        mean, std, rescale = super()._fuse_mean_std_and_rescale_factor(**options)
        return mean * self.gain, std, rescale


def with_a_table_of_its_own(files):
    deferred(Louder(), files)
    made = Louder()
    made.gain = 3.0
    return made


@pytest.mark.parametrize("make", [with_other_sizes, with_a_float, with_a_table_of_its_own])
def test_one_configuration_is_not_taken_for_another(make, files):
    processor = make(files)
    expected = [processed(processor, content) for content in files]
    found, _ = deferred(processor, files)
    for (mine,), (wanted,) in zip(found, expected, strict=True):
        assert mine.dtype == wanted.dtype and torch.equal(mine, wanted)


def test_what_the_program_replaces_later_is_noticed(files, monkeypatch):
    processor = small(do_normalize=False)
    deferred(processor, files)
    monkeypatch.setattr(
        backends.TorchvisionBackend, "rescale", lambda self, image, scale: image + 1
    )
    assert_same(processor, files, natively=False)


def test_the_type_of_floats_is_noticed(files):
    processor = small(do_normalize=False)
    deferred(processor, files)
    torch.set_default_dtype(torch.float64)
    try:
        assert_same(processor, files, natively=False)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"size": {"longest_edge": 9}}, ValueError),
        ({"size": {"shortest_edge": 1}}, RuntimeError),
        ({"image_mean": [0.1, 0.2], "image_std": [0.1, 0.2]}, RuntimeError),
        ({"image_mean": [[0.1]], "image_std": [[0.2]]}, Exception),
    ],
)
def test_errors_are_those_of_transformers(options, error, files):
    processor = transformers.ViTImageProcessor()
    for _ in range(2):
        with deferring(), pytest.raises(error):
            for content in files:
                processed(processor, content, **options)
        assert not counts().failed


def test_another_size_is_no_other_configuration(files, monkeypatch):
    tried = []
    holds = image_processors._holds
    monkeypatch.setattr(image_processors, "_recipes", {})
    monkeypatch.setattr(image_processors, "_holds", lambda *given: tried.append(1) or holds(*given))
    processor = transformers.ViTImageProcessor()
    for side in range(40, 60):
        assert_same(processor, files[:1], size={"height": side, "width": 2 * side})
    assert len(tried) == 1


def test_the_batch_of_an_image_is_no_view(files):
    with deferring():
        image = Image.open(io.BytesIO(files[0])).convert("RGB")
        made = transformers.ViTImageProcessor()(image, return_tensors="pt")["pixel_values"]
    assert not made._is_view()
    assert made.detach_() is made


class Processed(Dataset):
    def __init__(self, files):
        self.files, self.processor = files, transformers.ViTImageProcessor()

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        (pixels,) = processed(self.processor, self.files[index])
        return {"pixel_values": pixels, "label": index}


def test_batches_of_a_loader(files):
    dataset = Processed(files * 5)
    expected = list(torch.utils.data.DataLoader(dataset, 4))
    with FusionLoader(dataset, 4, num_workers=1, persistent_workers=True) as loader:
        for _ in range(2):
            assert same_batches(list(loader), expected)
        told = loader.stats().deferred_images
    assert told["results"]["tensor"] == 40 and not told["failed"]

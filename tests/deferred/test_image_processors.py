"""Image processors of transformers: the tensors that they make of images that are not deferred."""

import copy
import functools
import io
import sys
from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.batches import same_batches
from support.campaigns import examples
from support.images import photo
from torch.utils.data import Dataset
from torchvision.transforms.v2 import functional

from fusionloader import FusionLoader
from fusionloader.data.deferred import image_processors
from fusionloader.data.deferred.core import DeferredCore, wrap_pixels
from fusionloader.data.deferred.counts import counts, uncounted
from fusionloader.data.deferred.scope import deferring

transformers = pytest.importorskip("transformers")
backends = pytest.importorskip("transformers.image_processing_backends")

# Earlier releases use torchvision's tensors of images, which lie in memory as images do, and which
# are made natively for code of the program, too.
IS_CONTIGUOUS = image_processors._gives_contiguous()
needs_contiguous = pytest.mark.skipif(not IS_CONTIGUOUS, reason="an earlier transformers")

KINDS = ("Bit", "CLIP", "DeiT", "OwlViT", "Siglip", "ViT")
# Processors with steps of their own, and options for small results.
OWN_STEPS = {
    "ConvNext": {"size": {"shortest_edge": 60}},
    "DINOv3ViT": {"size": {"height": 48, "width": 64}},
    "Detr": {"size": {"shortest_edge": 60, "longest_edge": 100}},
    "EfficientNet": {"size": {"height": 60, "width": 60}},
    "Idefics3": {"size": {"longest_edge": 128}, "max_image_size": {"longest_edge": 64}},
    "LlavaNext": {
        "size": {"shortest_edge": 32},
        "crop_size": 32,
        "image_grid_pinpoints": [[32, 64], [64, 32], [64, 64]],
    },
    "LlavaOnevision": {"size": 32, "image_grid_pinpoints": [[32, 64], [64, 64]]},
    "MobileViT": {"size": {"shortest_edge": 60}, "crop_size": 48},
    "Pixtral": {"size": {"longest_edge": 96}},
    "Qwen2VL": {"size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 16}},
    "RTDetr": {"size": {"height": 64, "width": 48}},
    "Segformer": {"size": {"height": 64, "width": 48}},
    "Siglip2": {"max_num_patches": 16},
    "Yolos": {"size": {"shortest_edge": 60, "longest_edge": 100}},
}
SIZES = ((90, 70), (41, 160), (224, 224), (640, 31))
OPTIONS = {
    "as it is": {},
    "a list": {"return_tensors": None},
    "a list of levels": {"return_tensors": None, "do_rescale": False, "do_normalize": False},
    "without resize": {"do_resize": False, "do_center_crop": True, "crop_size": 150},
    "bicubic": {"resample": 3, "size": {"height": 50, "width": 300}},
    "nearest": {"resample": 0, "size": {"height": 50, "width": 300}},
    "shorter edge": {"size": {"shortest_edge": 100}, "do_center_crop": False},
    "edges": {"size": {"shortest_edge": 60, "longest_edge": 90}, "do_center_crop": False},
    "within": {"size": {"max_height": 50, "max_width": 90}, "do_center_crop": False},
    "levels": {"do_rescale": False, "do_normalize": False},
    "rescaled": {"do_normalize": False, "rescale_factor": 1 / 128},
    "an odd crop": {"do_center_crop": True, "crop_size": {"height": 301, "width": 55}},
    "padded": {"do_pad": True, "pad_size": {"height": 700, "width": 700}},
    "numpy": {"return_tensors": "np"},
}


@pytest.fixture(scope="module")
def files():
    generator = np.random.default_rng(2)
    made = [io.BytesIO() for _ in SIZES]
    for file, (width, height) in zip(made, SIZES, strict=True):
        photo(generator, width, height).save(file, "JPEG", quality=90)
    return [file.getvalue() for file in made]


def processor_of(kind, **options):
    return getattr(transformers, f"{kind}ImageProcessor")(**options)


def images(files, mode="RGB"):
    return [Image.open(io.BytesIO(content)).convert(mode) for content in files]


def made_natively(make):
    """What is made of deferred images, and the number of images that were made natively."""
    with deferring(), uncounted():
        made = make()
        assert not counts().failed
        return made, counts().results["tensor"]


def assert_equal(found, expected):
    """Including types, strides and the keys' order."""
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype and found.stride() == expected.stride()
        assert torch.equal(found, expected)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype and np.array_equal(found, expected)
    elif isinstance(expected, Mapping):
        assert list(found) == list(expected)
        for name in expected:
            assert_equal(found[name], expected[name])
    elif isinstance(expected, (list, tuple)):
        for ours, theirs in zip(found, expected, strict=True):
            assert_equal(ours, theirs)
    else:
        assert found == expected


def assert_same(processor, files, natively=True, mode="RGB", **options):
    def one_by_one():
        options.setdefault("return_tensors", "pt")
        return [processor(image, **options) for image in images(files, mode)]

    expected = one_by_one()
    for _ in range(2):  # by the processor's code, and again where that is not needed
        found, made = made_natively(one_by_one)
        assert_equal(found, expected)
        assert made == (len(files) if natively or not IS_CONTIGUOUS else 0)


@pytest.mark.parametrize(
    ("kind", "name"), [*((kind, "as it is") for kind in KINDS), *product(("CLIP", "ViT"), OPTIONS)]
)
def test_the_tensors_are_those_of_transformers(kind, name, files):
    assert_same(processor_of(kind), files, **OPTIONS[name])


@pytest.mark.parametrize("kind", OWN_STEPS)
def test_processors_with_steps_of_their_own(kind, files):
    processor = processor_of(kind, **OWN_STEPS[kind])

    def make(**options):
        return processor(images(files[:3]), **options)

    for options in 2 * ({"return_tensors": "pt"}, {"disable_grouping": False}):
        found, natively = made_natively(lambda given=options: make(**given))
        assert_equal(found, make(**options))
        assert natively >= 3


@pytest.fixture(scope="module")
def photos():
    generator = np.random.default_rng(5)
    return {size: photo(generator, *size) for size in product((20, 61, 88), (33, 64))}


PATCHING = {
    "Qwen2VL": {"patch_size": (2, 4, 7), "temporal_patch_size": (1, 2, 3), "merge_size": (1, 2)},
    "Glm4v": {"patch_size": (4, 7), "temporal_patch_size": (2,), "merge_size": (1, 2)},
    "Siglip2": {"patch_size": (4, 8), "max_num_patches": (12, 60)},
}


@pytest.mark.properties
@settings(max_examples=examples(25, 500), deadline=None)
@given(data=st.data())
def test_patches_are_written_natively_and_are_those_of_transformers(data, photos):
    kind = data.draw(st.sampled_from(list(PATCHING)))
    options = {name: data.draw(st.sampled_from(all)) for name, all in PATCHING[kind].items()}
    if kind != "Siglip2":
        options["size"] = {"shortest_edge": 56 * 56, "longest_edge": 100 * 100}
    for name in ("do_normalize", "do_rescale", "do_resize"):
        if name != "do_resize" and data.draw(st.integers(0, 3)) == 0:
            options[name] = False
    sizes = data.draw(st.lists(st.sampled_from(list(photos)), min_size=1, max_size=4))
    processor = processor_of(kind, **options)
    grouped = data.draw(st.booleans())

    def make():
        given_images = [wrap_pixels(np.asarray(photos[size]), {}) for size in sizes]
        return processor(given_images, return_tensors="pt", disable_grouping=not grouped)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DeferredCore, "pixels", lambda core: pytest.fail("not natively"))
        found, natively = made_natively(make)
    expected = processor(
        [photos[size] for size in sizes], return_tensors="pt", disable_grouping=not grouped
    )
    assert_equal(found, expected)
    assert natively == len(sizes)


def test_images_of_one_size_are_made_together(files):
    processor = processor_of("ViT")

    def make():
        return processor(images(files[:1] * 3), return_tensors="pt", disable_grouping=False)

    found, natively = made_natively(make)
    assert_equal(found, make())
    assert natively == 3


@pytest.mark.parametrize("kind", ["Detr", "RTDetr"])
def test_annotations_are_those_of_transformers(kind, files):
    processor = processor_of(kind, **OWN_STEPS[kind])
    box = {"bbox": [3.0, 5.0, 20.0, 17.5], "category_id": 2, "area": 350.0, "iscrowd": 0}
    outline = [[3.0, 5.0, 23.0, 5.0, 23.0, 22.5]]
    annotations = [
        {"image_id": number, "annotations": [{**box, "segmentation": outline}]}
        for number in range(3)
    ]

    def make():
        return processor(images(files[:3]), annotations=annotations, return_tensors="pt")

    found, natively = made_natively(make)
    assert_equal(found, make())
    assert natively == 3


def test_maps_of_segments_are_those_of_transformers(files):
    processor = processor_of("Segformer", **OWN_STEPS["Segformer"])
    maps = [image.convert("L").point(lambda level: level // 9) for image in images(files)]

    def make():
        return processor(images(files), segmentation_maps=maps, return_tensors="pt")

    found, natively = made_natively(make)
    assert_equal(found, make())
    assert natively == len(files)


def test_gray_files_become_rgb(files):
    gray = io.BytesIO()
    images(files, "L")[0].save(gray, "JPEG")
    processor = processor_of("CLIP")

    def make():
        return processor(Image.open(gray), return_tensors="pt")

    found, natively = made_natively(make)
    assert_equal(found, make())
    assert natively == 1


class OwnResize(backends.TorchvisionBackend):
    """A processor with a step of its own."""

    do_resize, do_rescale, do_normalize = True, True, False
    size, resample, rescale_factor = {"height": 32, "width": 32}, 2, 1 / 255

    def resize(self, image, size, **kwargs):
        return super().resize(image, size, **kwargs).flip(-1)


def with_a_step_of_its_own():
    processor = transformers.ViTImageProcessor()
    processor.rescale_and_normalize = lambda images, *_, **__: images.float() + 1
    return processor


class Renamed(transformers.ViTImageProcessor):
    """A processor with other defaults, and the steps of transformers."""

    size = {"height": 20, "width": 30}

    def __call__(self, image, **options):
        return super().__call__(image, **options)


@pytest.mark.parametrize(
    ("make", "natively", "options"),
    [
        (OwnResize, False, {}),
        (with_a_step_of_its_own, False, {}),
        (Renamed, True, {}),
        (transformers.ViTImageProcessor, False, {"mode": "L", "do_normalize": False}),
    ],
    ids=["class", "instance", "renamed", "gray"],
)
def test_tensors_are_not_given_to_steps_of_the_program(make, natively, options, files):
    assert_same(make(), files, natively, **options)


def test_what_the_program_replaces_is_called(files, monkeypatch):
    monkeypatch.setattr(
        backends.TorchvisionBackend, "rescale", lambda self, image, scale: image[:, [2, 0, 1]] + 1
    )
    assert_same(transformers.ViTImageProcessor(size=96, do_normalize=False), files)


def test_what_replaces_the_way_through_a_processor_gets_plain_tensors(files, monkeypatch):
    original = backends.TorchvisionBackend._preprocess

    @functools.wraps(original)
    def turned(self, images, *arguments, **options):
        for image in images:
            image.transpose_(1, 2)
        return original(self, images, *arguments, **options)

    monkeypatch.setattr(backends.TorchvisionBackend, "_preprocess", turned)
    assert_same(transformers.ViTImageProcessor(size=96), files, natively=False)


def test_a_step_that_a_class_gets_later_is_called_with_plain_tensors(files):
    class Later(transformers.ViTImageProcessor):
        pass

    assert_same(Later(size=96), files)
    Later.rescale = lambda self, image, scale: image[:, [2, 0, 1]] + 1
    assert_same(Later(size=96, do_normalize=False), files, natively=False)


def test_an_interrupted_processor_leaves_nothing_behind(files):
    processor = transformers.ViTImageProcessor(size=96)
    kept = []

    def interrupt(frame, event, argument):
        if frame.f_code.co_name == "_recording" and event == "return" and not kept:
            kept.append(KeyboardInterrupt())
            raise kept[0]

    with deferring(), pytest.raises(KeyboardInterrupt):
        sys.setprofile(interrupt)
        try:
            processor(images(files)[0], return_tensors="pt")
        finally:
            sys.setprofile(None)
    assert kept and not image_processors._running.processor


def test_sizes_that_are_changed_in_place_are_noticed(files):
    processor = transformers.ViTImageProcessor(size=96)
    assert_same(processor, files)
    processor.size["height"] = processor.size["width"] = 48
    assert_same(processor, files)


def test_the_type_of_floats_is_noticed(files):
    processor = transformers.ViTImageProcessor(size=96, do_normalize=False)
    assert_same(processor, files)
    torch.set_default_dtype(torch.float64)
    try:
        assert_same(processor, files)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"size": {"longest_edge": 9}}, ValueError),
        pytest.param({"size": {"shortest_edge": 1}}, RuntimeError, marks=needs_contiguous),
        ({"image_mean": [0.1, 0.2], "image_std": [0.1, 0.2]}, RuntimeError),
        ({"image_mean": [[0.1]], "image_std": [[0.2]]}, Exception),
        ({"resample": 99}, Exception),
        ({"unknown": 1}, TypeError),
    ],
)
def test_errors_are_those_of_transformers(options, error, files):
    processor = transformers.ViTImageProcessor()

    def make():
        for image in images(files):
            processor(image, return_tensors="pt", **options)

    with pytest.raises(error) as expected:
        make()
    with deferring(), uncounted():
        with pytest.raises(error) as found:
            make()
        assert not counts().failed
    assert type(found.value) is type(expected.value) and str(found.value) == str(expected.value)


def test_the_batch_of_an_image_is_no_view(files):
    with deferring():
        made = transformers.ViTImageProcessor()(images(files)[0], return_tensors="pt")
    pixels = made["pixel_values"]
    assert type(pixels) is torch.Tensor and not pixels._is_view()
    assert pixels.detach_() is pixels


STEPS = {
    "in place": lambda images: images.float().mul_(2),
    "a slice in place": lambda images: images.__setitem__((..., 0), 9),
    "in place of an image": lambda images: images[0].add_(3),
    "normalized in place": lambda images: normalized(images.to(torch.float32)),
    "an image normalized in place": lambda images: normalized(images.to(torch.float32)[0]),
    "a stack of one": lambda images: torch.stack([images[0]]).add_(1),
    "from C++": lambda images: torch.zeros(images.shape).copy_(images),
    "an array": lambda images: np.asarray(images)[..., 0],
    "a copy": copy.deepcopy,
    "in a file": lambda images: torch.load(io.BytesIO(saved(images))),
    "padded": lambda images: functional.pad(images, [1, 2, 3, 4], fill=[7, 8, 9]),
    "padded by a fraction": lambda images: functional.pad(images, [1, 2, 3, 4], fill=7.5),
    "cropped": lambda images: functional.crop(images, -3, 5, 40, 30),
    "a crop in place": lambda images: (functional.crop(images, 3, 5, 20, 9).add_(1), images),
    "a changed image cropped": lambda images: (
        images.add_(1),
        functional.resize(functional.crop(images, 3, 5, 20, 9), [30, 30]),
    ),
    "converted otherwise": lambda images: images.to("cpu", torch.float16).to(dtype=torch.float64),
    "stacked otherwise": lambda images: torch.stack(tensors=[images, images], dim=-1),
    "floats resized": lambda images: functional.resize(images * 0.5, [20, 30]),
    "not antialiased": lambda images: functional.resize(images, [20, 30], antialias=False),
    "flipped": functional.horizontal_flip,
    "turned": lambda images: images.permute(0, 2, 3, 1),
    "turned in place": lambda images: images.permute(0, 2, 3, 1).add_(1),
    "of another shape": lambda images: images.view(2, 3, -1),
    "copied to another shape": lambda images: images.transpose(1, 3).reshape(-1, 12),
    "copied by the pixel": lambda images: images.to(torch.float32).movedim(1, -1).contiguous(),
    "every other row": lambda images: (images[:, :, ::2] * 3).reshape(2, -1),
    "patches": lambda images: patches(images.to(torch.float32)),
    "patches in place": lambda images: (patches(images).add_(1), images),
    "patches of a changed image": lambda images: patches(images.mul_(2)),
    "patches of an image": lambda images: patches(images[1:]),
    "patches of patches": lambda images: patches(images).permute(1, 0, 2).reshape(8, -1),
    "a slice of patches": lambda images: patches(images)[1, 2:5],
    "joined patches": lambda images: torch.cat([*patches(images), patches(images)[0]]),
    "joined images": lambda images: torch.cat([images, images[:1]]),
    "joined otherwise": lambda images: torch.cat([images, images], dim=-1),
    "joined in place": lambda images: (torch.cat([images, images]).add_(1), images),
    "images and others joined": lambda images: torch.cat([images, torch.zeros(1, 3, 32, 32)]),
    "a crop viewed": lambda images: functional.crop(images, 3, 5, 20, 9).permute(1, 0, 2, 3),
    "a crop copied": lambda images: (
        functional.crop(images, 3, 5, 20, 9).contiguous().add_(1),
        images,
    ),
    "a crop indexed": lambda images: functional.crop(images, 3, 5, 20, 9)[1].unsqueeze(0).add_(1),
    "joined crops": lambda images: torch.cat([functional.crop(images, 3, 5, 20, 9)] * 2),
    "a bad shape": lambda images: raised(lambda: images.reshape(7, -1)),
    "a bad index": lambda images: raised(lambda: images[5]),
    "joined badly": lambda images: raised(lambda: torch.cat([images, images[0]])),
    "iterated": list,
    "compared": lambda images: images == images[0],
}


def patches(images):
    """Patches of 8 x 8 pixels, twice each: as in Qwen-VL's processors."""
    parted = images.reshape(len(images), 3, 2, 2, 8, 2, 2, 8).permute(0, 2, 5, 3, 6, 1, 4, 7)
    repeated = parted.unsqueeze(6).expand(-1, -1, -1, -1, -1, -1, 2, -1, -1)
    return repeated.reshape(len(images), 16, 3 * 2 * 64)


def raised(call):
    with pytest.raises((RuntimeError, IndexError)) as error:
        call()
    return f"{type(error.value).__name__}: {error.value}"


def normalized(images):
    made = functional.normalize(images, [1.0, 2.0, 3.0], [4.0, 5.0, 6.0], inplace=True)
    return made, images, images[..., 0]


def saved(images):
    file = io.BytesIO()
    torch.save(images, file)
    return file.getvalue()


@pytest.mark.parametrize("name", STEPS)
def test_any_step_gets_the_same_tensors(name, files, monkeypatch):
    """In place of steps of transformers: what it does there, another release may do."""
    seen = []

    def rescale_and_normalize(self, images, *arguments):
        made = STEPS[name](images)
        seen[:] = [images, made]
        seen[:] = copy.deepcopy([images * 1, made, images + 0])
        return images

    monkeypatch.setattr(backends.TorchvisionBackend, "rescale_and_normalize", rescale_and_normalize)
    processor = transformers.ViTImageProcessor(size=32)

    def make():
        made = processor(images(files[:1] * 2), return_tensors="pt", disable_grouping=False)
        return made["pixel_values"], list(seen)

    found, natively = made_natively(make)
    assert_equal(found, make())
    assert natively > 0


class Processed(Dataset):
    def __init__(self, files):
        self.files, self.processor = files, transformers.ViTImageProcessor()

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        (image,) = images(self.files[index : index + 1])
        return {**self.processor(image, return_tensors="pt"), "label": index}


def test_batches_of_a_loader(files):
    dataset = Processed(files * 5)
    expected = list(torch.utils.data.DataLoader(dataset, 4))
    with FusionLoader(dataset, 4, num_workers=1, persistent_workers=True) as loader:
        for _ in range(2):
            assert same_batches(list(loader), expected)
        told, lines = loader.stats().deferred_images, loader.explain()
    assert told["results"]["tensor"] == 40 and not told["failed"]
    assert sum(told["processed"].values()) == 40
    assert told["processed"]["replayed"] > told["processed"].get("run", 0)  # to learn, if need be
    assert f"calls of image processors: replayed {told['processed']['replayed']}" in lines


class Opened(Dataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return Image.open(io.BytesIO(self.files[index])).convert("RGB")


def test_batches_of_a_processor_that_collates(files):
    processor = processor_of("Qwen2VL", **OWN_STEPS["Qwen2VL"])

    def collate(images):
        return processor(images, return_tensors="pt")

    dataset = Opened(files[:3] * 4)
    expected = list(torch.utils.data.DataLoader(dataset, 4, collate_fn=collate))
    with FusionLoader(dataset, 4, num_workers=1, collate_fn=collate) as loader:
        assert_equal(list(loader), expected)
        told = loader.stats().deferred_images
    assert told["results"]["tensor"] == 12 and not told["failed"]

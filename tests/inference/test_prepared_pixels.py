"""What is prepared is what torchvision makes, and what a loader of the same plan delivers."""

import asyncio
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.encoded_images import encoded, expected
from support.images import NORMALIZE, eval_transform, train_transform
from torchvision import transforms as v1
from torchvision.transforms import v2

from fusionloader import FusionLoader
from fusionloader.addons.inference import BadImage, Preprocessor

TRANSFORMS = {
    "v1": eval_transform(),
    "v1 bicubic": v1.Compose(
        [v1.Resize((36, 50), v1.InterpolationMode.BICUBIC), v1.ToTensor(), v1.Normalize(*NORMALIZE)]
    ),
    "v2": v2.Compose(
        [
            v2.Resize(40),
            v2.CenterCrop(32),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(*NORMALIZE),
        ]
    ),
    "v2 of bytes": v2.Compose([v2.Resize((24, 24)), v2.Compose([v2.ToImage()])]),
    "v1 in grey": v1.Compose([v1.Grayscale(), v1.Resize((30, 20)), v1.ToTensor()]),
}
ODD = {
    "L": ("L", "JPEG", {}),
    "CMYK": ("CMYK", "JPEG", {}),
    "progressive": ("RGB", "JPEG", {"progressive": True}),
    "LA": ("LA", "PNG", {}),
    "P": ("P", "PNG", {}),
    "I;16": ("I;16", "PNG", {}),
    "RGBA": ("RGBA", "PNG", {}),
    "WebP": ("RGB", "WEBP", {"lossless": True}),
    "TIFF": ("RGB", "TIFF", {}),
    "GIF": ("P", "GIF", {}),
}


def odd(picture, name):
    mode, format, options = ODD[name]
    if mode == "I;16":
        grey = np.asarray(picture.convert("L")).astype(np.uint16) * 200
        return encoded(Image.fromarray(grey), format)
    return encoded(picture.convert(mode), format, **options)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_lists_and_single_images_have_torchvisions_pixels(make, jpegs, name):
    transform = TRANSFORMS[name]
    prepare = make(transform)
    wanted = torch.stack([expected(transform, image) for image in jpegs])
    assert torch.equal(prepare(jpegs), wanted)
    futures = [prepare.submit(image) for image in jpegs]
    assert all(map(torch.equal, [future.result() for future in futures], wanted))

    async def ask():
        return await asyncio.gather(*map(prepare.asubmit, jpegs))

    assert all(map(torch.equal, asyncio.run(ask()), wanted))


PROCESSORS = {
    "CLIP": {"size": {"shortest_edge": 40}, "crop_size": 32},
    "CLIP in one size": {
        "size": {"height": 41, "width": 60},
        "crop_size": {"height": 30, "width": 33},
    },
    "ConvNext": {"size": {"shortest_edge": 48}},
    "RTDetr": {"size": {"height": 40, "width": 56}},
    "Siglip": {"size": {"height": 32, "width": 32}, "do_normalize": False},
    "ViT": {"size": 32, "do_rescale": False, "do_normalize": False},
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", PROCESSORS)
def test_image_processors_have_the_pixels_of_transformers(make, jpegs, name):
    transformers = pytest.importorskip("transformers")
    kind = name.split()[0]
    processor = getattr(transformers, f"{kind}ImageProcessor")(**PROCESSORS[name])
    images = [Image.open(io.BytesIO(content)).convert("RGB") for content in jpegs]
    wanted = processor(images, return_tensors="pt")["pixel_values"]
    prepared = make(processor)(jpegs)
    assert prepared.dtype == wanted.dtype and torch.equal(prepared, wanted)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Qwen2VL", {}),  # patches
        ("Detr", {}),  # and a mask
        ("ViT", {"resample": 0}),  # not recorded
        ("CLIP", {"size": {"shortest_edge": 40}, "do_center_crop": False}),  # of several sizes
        # Other images than these would be resized to their longest edge.
        ("CLIP", {"size": {"shortest_edge": 30, "longest_edge": 700}, "crop_size": 30}),
    ],
)
def test_image_processors_that_do_more_are_refused(kind, options):
    transformers = pytest.importorskip("transformers")
    processor = getattr(transformers, f"{kind}ImageProcessor")(**options)
    with pytest.raises(ValueError, match="does more|differ in size"):
        Preprocessor(processor, num_workers=1)


def test_images_of_any_mode_and_format_are_converted_as_by_torchvision(make, picture):
    prepare, transform = make(), eval_transform()
    images = [odd(picture, name) for name in ODD]
    wanted = torch.stack([expected(transform, image) for image in images])
    assert torch.equal(prepare(images), wanted)
    assert prepare.stats().pillow_images > 0


def test_random_draws_are_those_of_a_loader_with_the_same_seed(make, train_set):
    paths = [path for path, _ in train_set.samples]
    images = [Path(path).read_bytes() for path in paths]
    loader = FusionLoader(train_set, len(train_set), num_workers=1, seed=-3)
    prepare = make(train_transform(), seed=-3)
    for epoch in range(2):
        wanted, _ = next(iter(loader))
        assert torch.equal(prepare(images, keys=range(len(images)), epoch=epoch), wanted)
        assert torch.equal(prepare.submit(images[7], key=7, epoch=epoch).result(), wanted[7])


def test_keys_are_running_numbers_unless_they_are_given(make, jpegs):
    prepare = make(train_transform(), seed=1)
    first, second = prepare.submit(jpegs[0]).result(), prepare.submit(jpegs[0]).result()
    assert not torch.equal(first, second)
    again = prepare([jpegs[0], jpegs[0]], keys=[1, 0])
    assert torch.equal(again[1], first) and torch.equal(again[0], second)


def test_fast_decoding_is_that_of_the_loader(make, eval_set, jpegs):
    images = [Path(path).read_bytes() for path, _ in eval_set.samples]
    wanted, _ = next(iter(FusionLoader(eval_set, len(images), num_workers=1, decode="fast")))
    assert torch.equal(make(decode="fast")(images), wanted)


def failure_of_loader(folder, image):
    """What a loader raises for a file of these bytes."""
    from torchvision.datasets import ImageFolder

    (folder / "class").mkdir()
    (folder / "class" / "bad.jpg").write_bytes(image)
    dataset = ImageFolder(str(folder), eval_transform())
    with pytest.raises(Exception) as caught:
        list(FusionLoader(dataset, 1, num_workers=1))
    return caught.value


@pytest.mark.few(2)
@pytest.mark.parametrize("fault", ["empty", "truncated", "no image", "cut PNG"])
def test_a_bad_image_has_the_error_that_a_loader_has(make, jpegs, picture, tmp_path, fault):
    image = {
        "empty": b"",
        "truncated": jpegs[0][: len(jpegs[0]) // 2],
        "no image": b"<html>404</html>",
        "cut PNG": encoded(picture, "PNG")[:-40],
    }[fault]
    theirs = failure_of_loader(tmp_path, image)
    error = make().submit(image, key=11).exception()
    assert isinstance(error, BadImage) and isinstance(error, type(theirs))
    assert (error.key, error.place) == (11, None)
    said = str(theirs).splitlines()[-1].partition("<")[0]
    assert said in str(error) and "key 11" in str(error)


def test_any_buffer_is_an_image_and_may_be_changed_afterwards(make, jpegs):
    prepare, wanted = make(), expected(eval_transform(), jpegs[0])
    buffer = bytearray(jpegs[0])
    future = prepare.submit(buffer)
    buffer[:] = bytes(len(buffer))
    assert torch.equal(future.result(), wanted)
    assert torch.equal(prepare([memoryview(jpegs[0])])[0], wanted)
    assert torch.equal(prepare.submit(np.frombuffer(jpegs[0], np.uint8)).result(), wanted)


def test_delivered_tensors_are_the_callers(make, jpegs):
    prepare = make(max_batch=4)
    wanted = [expected(eval_transform(), image) for image in jpegs]
    kept = [prepare.submit(image).result() for image in jpegs]
    kept[0].zero_()
    prepare(jpegs)
    assert all(map(torch.equal, kept[1:], wanted[1:]))
    prepare.close()
    assert all(map(torch.equal, kept[1:], wanted[1:]))

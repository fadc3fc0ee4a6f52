"""Random chains of Pillow's and torchvision's operations: deferred, and by Pillow."""

import io
import random

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from support import encoded_images
from support.images import photo
from torchvision import transforms
from torchvision.transforms import InterpolationMode, functional, v2

from fusionloader.data.deferred.scope import deferring


def _encoded(width, height, mode, **options):
    image = photo(np.random.default_rng(width), width, height).convert(mode)
    return encoded_images.encoded(image, **options)


FILES = [
    _encoded(64, 48, "RGB", quality=90),
    _encoded(37, 53, "RGB", quality=80, subsampling=0),
    _encoded(50, 41, "RGB", progressive=True),
    _encoded(45, 39, "L"),
    _encoded(33, 20, "CMYK"),
]
FACTORS = st.sampled_from([0.0, 0.3, 1.0, 1.7])
SIDES = st.integers(1, 70)
COLORS = st.tuples(*[st.integers(0, 255)] * 3)
SMOOTH = st.sampled_from([InterpolationMode.NEAREST, InterpolationMode.BILINEAR])


def _random(transform):
    """A transform that draws its own parameters."""
    return st.just(transform)


def _crop(left, top, width, height):
    return lambda image: image.crop((left, top, left + width, top + height))


def _affine(angle, shift, scale, mode, fill):
    def apply(image):
        color = fill if image.mode == "RGB" else fill[:1]
        return functional.affine(image, angle, [shift, 1], scale, [3, 2], mode, list(color))

    return apply


def _enhance(kind, factor):
    return lambda image: kind(image).enhance(factor)


def _pasted(x, y):
    def apply(image):
        image.paste(7, (x, y, x + 4, y + 3))
        return image

    return apply


def _letterbox(width, height, mode, color, centering):
    def apply(image):
        side = max(width, height)
        color_of_mode = color if mode == "RGB" else color[0]
        canvas = Image.new(mode, (side, height), color_of_mode)
        canvas.paste(ImageOps.contain(image, (width, height)), (side - width, centering))
        return canvas

    return apply


def _thumbnail(width, height, filter, gap):
    def apply(image):
        image.thumbnail((width, height), filter, gap)
        return image

    return apply


def _part(box, size, filter, gap):
    def apply(image):
        width, height = image.size
        left, right = sorted((box[0] * width, box[2] * width))
        upper, lower = sorted((box[1] * height, box[3] * height))
        part = left, upper, right, lower
        return image.resize(size, filter, part, gap)

    return apply


def _reordered(order):
    def apply(image):
        bands = image.split()
        return Image.merge("RGB", [bands[number % len(bands)] for number in order])

    return apply


def _tables(scale, offset, by_band):
    def apply(image):
        count = 256 * len(image.getbands())
        levels = [(place + offset) % (256 + by_band) * scale for place in range(count)]
        return image.point(levels)

    return apply


PARTS = st.sampled_from([0, 0.1, 0.25, 1 / 3, 0.7, 0.95, 1])
FILTERS = st.sampled_from([0, 1, 2, 3, 4, 5])
GAPS = st.sampled_from([None, 1.0, 1.1, 2, 3.0, 0.5])
FITTING = st.sampled_from([ImageOps.contain, ImageOps.cover, ImageOps.fit, ImageOps.pad])
OPERATIONS = st.one_of(
    st.builds(
        lambda fit, width, height, filter: lambda image: fit(image, (width, height), filter),
        FITTING,
        SIDES,
        SIDES,
        FILTERS,
    ),
    st.builds(
        lambda width, height, bleed, x, y: (
            lambda image: ImageOps.fit(image, (width, height), bleed=bleed, centering=(x, y))
        ),
        SIDES,
        SIDES,
        st.sampled_from([0, 0.1, 0.3]),
        PARTS,
        PARTS,
    ),
    st.builds(
        lambda width, height, color, x: (
            lambda image: ImageOps.pad(
                image, (width, height), color=color if image.mode == "RGB" else 7, centering=(x, x)
            )
        ),
        SIDES,
        SIDES,
        COLORS,
        PARTS,
    ),
    st.builds(
        _letterbox, SIDES, SIDES, st.sampled_from(["RGB", "L"]), COLORS, st.integers(-20, 20)
    ),
    st.builds(_thumbnail, SIDES, SIDES, FILTERS, GAPS),
    st.builds(_part, st.tuples(*[PARTS] * 4), st.tuples(SIDES, SIDES), FILTERS, GAPS),
    st.builds(
        lambda x, y: lambda image: image.reduce((x, y)), st.integers(1, 6), st.integers(1, 6)
    ),
    st.builds(_reordered, st.tuples(*[st.integers(0, 2)] * 3)),
    st.builds(_tables, st.sampled_from([0.5, 1, 2, -1]), st.integers(0, 300), st.integers(0, 1)),
    st.builds(
        lambda gamma: lambda image: functional.adjust_gamma(image, gamma, 1.1),
        st.sampled_from([0.4, 1, 2.2]),
    ),
    st.sampled_from([lambda image: image.point(lambda level: 255 - level), lambda image: image]),
    st.builds(lambda turn: lambda image: image.transpose(turn), st.integers(0, 6)),
    st.builds(lambda number: lambda image: image.getchannel(number), st.sampled_from([0, 1, "R"])),
    st.builds(_crop, st.integers(-9, 40), st.integers(-9, 40), SIDES, SIDES),
    st.builds(
        lambda width, height, filter: lambda image: image.resize((width, height), filter),
        SIDES,
        SIDES,
        st.sampled_from([0, 1, 2, 3, 4, 5, None]),
    ),
    st.sampled_from([ImageOps.mirror, ImageOps.flip, ImageOps.grayscale]),
    st.sampled_from([ImageOps.invert, ImageOps.autocontrast, ImageOps.equalize]),
    st.builds(
        _enhance,
        st.sampled_from(
            [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color]
            + [ImageEnhance.Sharpness]
        ),
        FACTORS,
    ),
    st.builds(lambda bits: lambda image: ImageOps.posterize(image, bits), st.integers(1, 8)),
    st.builds(lambda level: lambda image: ImageOps.solarize(image, level), st.integers(0, 256)),
    st.builds(lambda hue: lambda image: functional.adjust_hue(image, hue), st.floats(-0.5, 0.5)),
    st.builds(
        lambda radius: lambda image: image.filter(ImageFilter.GaussianBlur(radius)),
        st.sampled_from([0, 0.4, 1, 2.5]),
    ),
    st.builds(
        lambda angle, expand: lambda image: image.rotate(angle, expand=expand),
        st.sampled_from([0, 33, 90, 180, -270]),
        st.booleans(),
    ),
    st.builds(
        _affine,
        st.integers(-90, 90),
        st.integers(-9, 9),
        st.sampled_from([0.7, 1.3]),
        SMOOTH,
        COLORS,
    ),
    st.builds(
        lambda sides, mode: lambda image: functional.pad(image, list(sides), 0, mode),
        st.tuples(*[st.integers(0, 6)] * 4),
        st.sampled_from(["constant", "edge", "reflect", "symmetric"]),
    ),
    st.builds(lambda mode: lambda image: image.convert(mode), st.sampled_from(["RGB", "L"])),
    st.sampled_from([lambda image: image.copy(), lambda image: image.transpose(4)]),
    st.builds(_pasted, st.integers(-2, 9), st.integers(-2, 9)),
    _random(transforms.RandomResizedCrop(24)),
    _random(transforms.ColorJitter(0.4, 0.4, 0.4, 0.2)),
    _random(transforms.RandomPerspective(0.4, 1.0)),
    _random(transforms.RandAugment()),
    _random(v2.RandomPhotometricDistort()),
    _random(v2.RandomAffine(30, (0.2, 0.2), (0.7, 1.4), 12)),
    _random(v2.TrivialAugmentWide()),
)
ENDS = st.sampled_from(
    [
        np.asarray,
        functional.to_tensor,
        functional.pil_to_tensor,
        v2.functional.to_image,
        lambda image: image,
        lambda image: image.getpixel((0, 0)),
        transforms.Compose([transforms.Grayscale(), transforms.ToTensor()]),
        transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.4], [0.3])]),
        v2.Compose([v2.Resize(20), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]),
    ]
)


def made(file, chain, end, seed):
    """Returns what comes out, and all attributes of the images on the way."""
    random.seed(seed), torch.manual_seed(seed)
    reported = []
    try:
        image = Image.open(io.BytesIO(file))
        image.info["note"] = seed
        for operation in chain:
            image = operation(image)
            reported.append((image.size, image.mode, dict(image.info), type(image), image.readonly))
        value = end(image)
    except Exception as error:
        value = type(error), str(error)
    return value, reported, random.getstate(), torch.get_rng_state()


def comparable(value):
    if isinstance(value, Image.Image):
        return "image", value.mode, value.size, value.tobytes()
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return type(value), value.dtype, tuple(value.shape), np.asarray(value).tobytes()
    return value


@settings(max_examples=150, deadline=None)
@given(
    file=st.sampled_from(FILES),
    chain=st.lists(OPERATIONS, min_size=1, max_size=8),
    end=ENDS,
    seed=st.integers(0, 99),
)
def test_a_chain_gives_the_same_in_every_respect(file, chain, end, seed):
    value, reported, python, torchs = made(file, chain, end, seed)
    with deferring():
        other, other_told, other_python, other_torchs = made(file, chain, end, seed)
        during = comparable(other)
    assert other_told == reported
    assert during == comparable(value)
    assert comparable(other) == during
    assert other_python == python
    assert torch.equal(other_torchs, torchs)

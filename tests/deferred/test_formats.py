"""What Pillow says of a file, and where it raises, is the same when it is deferred."""

import io
import math
import random
import zlib

import numpy as np
import pytest
from fuzz.damaged_files import damaged
from PIL import Image, ImageFile, PngImagePlugin
from support.encoded_images import encoded
from support.images import photo
from support.png_files import chunk, with_checksums
from support.webp_files import shortened

from fusionloader.data.deferred import counts
from fusionloader.data.deferred.core import DeferredCore
from fusionloader.data.deferred.scope import deferring


def translucent(width, height, seed=0):
    image = photo(np.random.default_rng(seed), width, height)
    image.putalpha(image.convert("L").rotate(90))
    return image


def small(kind, alpha=False):
    image = translucent(20, 14)
    options = {"exif": Image.Exif()} if kind == "WEBP" else {}
    return encoded(image if alpha else image.convert("RGB"), kind, **options)


def reported(image):
    """What Pillow says of an image, without its pixels."""
    return (
        image.mode,
        image.size,
        dict(image.info),
        dict(getattr(image, "text", {})),
        getattr(image, "private_chunks", None),
        getattr(image, "n_frames", None),
        getattr(image, "is_animated", None),
        image.fp is None,
        image.tile,
        image.readonly,
        image.palette,
        dict(image.getexif()),
        image.tell(),
    )


def story(content, steps):
    """How far the steps get with a file, what they give, and the exception at their end."""
    results = []
    try:
        image = Image.open(io.BytesIO(content))
        for step in steps:
            results.append(step(image))
    except Exception as raised:
        results.append((type(raised), str(raised).partition(" at 0x")[0]))
    return results


LOADED = (
    lambda image: image.load() is None,
    reported,
    lambda image: image.convert("RGB").tobytes(),
    lambda image: image.convert("L").tobytes(),
    lambda image: image.convert().tobytes(),
    lambda image: image.copy().tobytes(),
    lambda image: image.resize((9, 7)).tobytes(),
    lambda image: image.crop((-2, 3, 9, 20)).tobytes(),
    lambda image: image.transpose(Image.Transpose.ROTATE_180).tobytes(),
    lambda image: image.convert("RGBA").tobytes(),
    lambda image: np.asarray(image).tobytes(),
    lambda image: image.tobytes(),
    lambda image: image.getpixel((3, 2)),
    lambda image: (image.seek(0), image.load() is None),
    reported,
)


def assert_same_story(content, steps=LOADED):
    expected = story(content, steps)
    with deferring():
        found = story(content, steps)
    assert found == expected
    return expected


def png_with(*chunks, behind=()):
    """A PNG with chunks in front of its pixels and behind them."""
    content = small("PNG")
    start, end = content.index(b"IDAT") - 4, content.index(b"IEND") - 4

    front = b"".join(chunk(*each) for each in chunks)
    back = b"".join(chunk(*each) for each in behind)
    return content[:start] + front + content[start:end] + back + content[end:]


TOLD = [
    (b"tEXt", b"Title\0a picture"),
    (b"zTXt", b"Author\0\0" + zlib.compress(b"somebody")),
    (b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0<x/>"),
    (b"tIME", b"\x07\xe8\1\1\1\1\1"),
    (b"gAMA", b"\0\0\xb1\x8f"),
    (b"prVt", b"private"),
]


def deferred(content):
    with deferring():
        image = Image.open(io.BytesIO(content))
        image.load()
        return type(image._im) is DeferredCore


@pytest.mark.parametrize("alpha", [False, True])
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_whole_files_are_deferred_and_all_is_as_pillow_has_it(kind, alpha):
    assert deferred(small(kind, alpha))
    assert_same_story(small(kind, alpha))
    assert_same_story(small(kind, alpha), LOADED[1:])


def test_the_chunks_behind_the_pixels_of_a_png_are_read():
    content = png_with(*TOLD, behind=TOLD)
    assert deferred(content)
    info = assert_same_story(content)[1][2]
    assert info["Title"] == "a picture" and info["xmp"] == b"<x/>"
    only_behind = png_with(behind=TOLD)
    assert deferred(only_behind)
    assert assert_same_story(only_behind)[1][3]["Author"] == "somebody"


def test_many_data_chunks_of_a_png_are_passed_over(monkeypatch):
    monkeypatch.setattr(ImageFile, "MAXBLOCK", 64)
    content = encoded(
        photo(np.random.default_rng(1), 40, 30), "PNG", pnginfo=PngImagePlugin.PngInfo()
    )
    assert content.count(b"IDAT") > 5
    monkeypatch.undo()
    assert deferred(content)
    assert_same_story(content)


@pytest.mark.parametrize("alpha", [False, True])
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_a_file_cut_anywhere_raises_where_it_does_without(kind, alpha):
    content = small(kind, alpha)
    for length in range(len(content)):
        assert_same_story(content[:length], LOADED[:3])


@pytest.mark.parametrize("lossless", [False, True])
def test_a_webp_that_ends_early_raises_when_it_is_loaded(lossless):
    content = encoded(translucent(60, 50).convert("RGB"), "WEBP", lossless=lossless)
    if not lossless:
        content = shortened(content)
        assert assert_same_story(content) == [(OSError, "failed to read next frame")]
    assert_same_story(content)


def changed(kind, generator):
    """A PNG or WebP of which some bits are others."""
    originals = [small(kind), small(kind, alpha=True)]
    if kind == "PNG":
        originals.append(png_with(*TOLD, behind=TOLD))
    content = bytearray(generator.choice(originals))
    for _ in range(generator.randint(1, 3)):
        end = 80 if generator.random() < 0.5 else len(content)
        content[generator.randrange(8, end)] ^= 1 << generator.randrange(8)
    if kind == "PNG" and generator.random() < 0.5:
        return with_checksums(bytes(content))
    return bytes(content)


def count_pixels(content):
    """Those that a file says it has; none if it cannot be opened."""
    try:
        return math.prod(Image.open(io.BytesIO(content)).size)
    except Exception:
        return 0


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_whatever_changes_the_story_is_pillow_s(kind):
    generator, ends = random.Random(4), []
    counts.take()
    for _ in range(1200):
        content = damaged(generator) if kind == "JPEG" else changed(kind, generator)
        pixels = count_pixels(content)
        if pixels < 1 << 18:  # Pillow takes long for larger ones
            told = assert_same_story(content, (*LOADED[:3], *LOADED[7:8]))
            ends.append(len(told) if pixels else 0)
    assert counts.take().files > 20
    # Where it is opened, where it is loaded, and not at all.
    assert min(ends.count(end) for end in (0, 1, 4)) > 10


def test_a_buffer_that_is_used_again_changes_no_open_webp():
    first, second = small("WEBP"), encoded(translucent(20, 14, 1).convert("RGB"), "WEBP")
    expected = Image.open(io.BytesIO(first)).convert("RGB").tobytes()
    with deferring():
        file = io.BytesIO(first)
        image = Image.open(file)
        file.seek(0)
        file.truncate()
        file.write(second)
        assert image.convert("RGB").tobytes() == expected


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_what_is_left_to_pillow_is_named(kind):
    image = photo(np.random.default_rng(1), 20, 10)
    counts.take()
    with deferring():
        animated = encoded(image, kind, save_all=True, append_images=[translucent(20, 10)])
        Image.open(io.BytesIO(animated)).load()
        broken = bytearray(small(kind))
        if kind == "PNG":
            broken[-9] ^= 1  # in a checksum that Pillow does not read
        else:
            broken = shortened(encoded(image, kind))
        story(bytes(broken), LOADED[:1])
    left = counts.take().left
    assert left["animated"] == 1
    assert left["damaged, or of a kind that the native decoder does not know"] == 1


def test_nothing_but_convert_is_recorded_of_an_image_with_alpha():
    counts.take()
    with deferring():
        image = Image.open(io.BytesIO(small("PNG", alpha=True)))
        np.asarray(image.convert("RGB").resize((8, 8)))
        taken = counts.take()
        assert taken.recorded == {"resize": 1} and not taken.ended
        image.resize((8, 8))
        assert counts.take().ended


def test_the_file_is_closed_after_loading(tmp_path):
    for kind in ("PNG", "WEBP"):
        path = tmp_path / f"image.{kind.lower()}"
        path.write_bytes(small(kind))
        with deferring():
            image = Image.open(path)
            file = image.fp
            image.load()
            assert file.closed and image.fp is None

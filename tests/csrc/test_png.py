"""PNG files have Pillow's pixels, or are left to it."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from native_samples import SIMD_LEVELS, photo, pillow_pixels, plan_for_size
from PIL import Image
from support.png_files import chunk, data_chunks, file_of, filtered, header, png, with_checksums

from fusionloader._native import RunStatus
from fusionloader.transforms.executors.native import make_executor, sized_executor

EXECUTORS = {simd: make_executor(plan_for_size(0, 0), simd=simd) for simd in SIMD_LEVELS}
IMAGES = arrays.arrays(
    np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 40), st.sampled_from([1, 3, 4]))
)
BLACK = (0, 0, 0)


def decoded(encoded, simd=None):
    """Height x width x 4, or ``None`` where the file is left to Pillow."""
    executor = EXECUTORS[simd] if simd else sized_executor(3, 0, 0)
    size = executor.image_size(encoded)
    if size is None:
        return None
    out = np.full((size[1], size[0], 4), 77, np.uint8)
    return out if executor.decode(encoded, out) is RunStatus.OK else None


def saved(image, **options):
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def assert_is_pillow_s(encoded, simd=None):
    found = decoded(encoded, simd)
    assert found is not None
    np.testing.assert_array_equal(found[..., :3], pillow_pixels(encoded))
    with Image.open(io.BytesIO(encoded)) as image:
        if image.mode == "RGBA":
            np.testing.assert_array_equal(found, np.asarray(image))


@pytest.mark.parametrize("simd", SIMD_LEVELS)
@given(
    pixels=IMAGES,
    filters=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    split=st.sampled_from([None, 1, 7, 100]),
)
def test_every_filter_is_undone(simd, pixels, filters, split):
    encoded = png(pixels, filters, split=split)
    found = decoded(encoded, simd)
    if pixels.shape[2] == 4:
        np.testing.assert_array_equal(found, pixels)
    else:
        np.testing.assert_array_equal(found[..., :3], np.broadcast_to(pixels, found[..., :3].shape))
    np.testing.assert_array_equal(found[..., :3], pillow_pixels(encoded))


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
@pytest.mark.parametrize("options", [{}, {"compress_level": 0}, {"optimize": True}], ids=str)
def test_pillow_s_own_files_have_its_pixels(mode, options):
    for seed, size in enumerate([(1, 1), (2, 300), (301, 2), (64, 64), (401, 302)]):
        assert_is_pillow_s(saved(photo(*size, seed).convert(mode), **options))


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
@pytest.mark.parametrize("simd", SIMD_LEVELS)
def test_windows_have_the_pixels_of_the_whole(mode, simd):
    rng = np.random.default_rng(2)
    image = photo(90, 70, 4)
    if mode == "RGBA":
        image.putalpha(photo(90, 70, 5, colorful=False))
    encoded = saved(image.convert(mode))
    whole = pillow_pixels(encoded)
    for _ in range(40):
        x, y = int(rng.integers(90)), int(rng.integers(70))
        width, height = int(rng.integers(1, 91 - x)), int(rng.integers(1, 71 - y))
        executor = make_executor(plan_for_size(height, width), simd=simd)
        out = np.zeros((height, width, 3), np.uint8)
        status = executor.run_with(encoded, [("crop", x, y, width, height, BLACK)], out)
        assert status is RunStatus.OK
        np.testing.assert_array_equal(out, whole[y : y + height, x : x + width])


def test_what_tells_about_the_image_may_stand_on_both_sides_of_its_pixels():
    pixels = np.asarray(photo(20, 10, 0))
    profile = (b"iCCP", b"a name\0\0" + zlib.compress(bytes(3000)))
    texts = [
        (b"tEXt", b"Comment\0of a person"),
        (b"zTXt", b"Comment\0\0" + zlib.compress(b"of a person")),
        (b"iTXt", b"Comment\0\0\0en\0\0of a person"),
        (b"tIME", bytes(7)),
        (b"pHYs", bytes(9)),
        (b"gAMA", struct.pack(">I", 45455)),
        (b"sRGB", b"\0"),
        (b"cHRM", bytes(32)),
        (b"eXIf", b"MM\0*\0\0\0\x08\0\0\0\0\0\0"),
        (b"prVt", b"something of one's own"),
    ]
    assert_is_pillow_s(png(pixels, before=[profile, *texts], behind=texts))
    assert_is_pillow_s(png(pixels) + b"behind the end")


def _streams():
    pixels = np.asarray(photo(20, 10, 1))
    rows = filtered(pixels, [4])
    packed = zlib.compress(rows)
    yield "wrong checksum of the stream", packed[:-1] + bytes([packed[-1] ^ 1])
    yield "no checksum of the stream", packed[:-4]
    yield "a row too few", zlib.compress(rows[: -(20 * 3 + 1)])
    yield "a byte too many", zlib.compress(rows + b"\0")
    yield "something behind the stream", packed + b"\0"
    yield "another filter", zlib.compress(b"\x05" + rows[1:])
    yield "nothing", zlib.compress(b"")
    yield "not a stream", b"not a stream"
    yield "a dictionary", bytes([0x78, 0xBB]) + packed[2:]
    small = zlib.compressobj(9, zlib.DEFLATED, 9)
    yield "a small window", small.compress(filtered(pixels, [0])) + small.flush()


def _files():
    image = photo(20, 10, 1)
    pixels = np.asarray(image)
    whole = png(pixels)
    for name, stream in _streams():
        yield name, png(pixels, stream=stream)
    first, second = data_chunks(zlib.compress(filtered(pixels, [0])), 300)[:2]
    ihdr, iend, text = header(20, 10, 2), (b"IEND", b""), (b"tEXt", b"a\0b")
    yield "a chunk between the pixels", file_of(ihdr, first, text, second, iend)
    yield "no pixels", file_of(ihdr, iend)
    yield "an empty chunk", png(pixels, before=[(b"IDAT", b"")])
    yield "two headers", png(pixels, before=[header(20, 10, 2)])
    yield "no end", whole[:-12]
    yield "no header", file_of(*data_chunks(zlib.compress(filtered(pixels, [0]))), iend)
    yield (
        "a wrong checksum",
        whole.replace(chunk(b"IEND", b""), chunk(b"tEXt", b"a\0b", 5) + chunk(b"IEND", b"")),
    )
    yield "an unknown chunk that matters", png(pixels, before=[(b"ABCD", b"")])
    yield "transparent color", png(pixels, before=[(b"tRNS", bytes(6))])
    yield "a short gamma", png(pixels, before=[(b"gAMA", b"1")])
    bomb = b"a\0\0" + zlib.compress(bytes(2 << 20))
    for kind in (b"iCCP", b"zTXt"):
        yield f"too much in {kind.decode()}", png(pixels, before=[(kind, bomb)])
    compressed = b"a\0\1\0\0\0" + zlib.compress(b"text")
    yield "compressed international text", png(pixels, before=[(b"iTXt", compressed)])
    yield "long texts", png(pixels, before=[(b"tEXt", b"a\0" + bytes(2 << 20))])
    yield "two bytes a sample", saved(Image.fromarray(pixels[..., 0].astype(np.uint16) << 8))
    yield "one bit", saved(image.convert("1"))
    yield "four bits", saved(image.quantize(9), bits=4)
    yield "grey with alpha", saved(image.convert("LA"))
    yield "animated", saved(image, save_all=True, append_images=[photo(20, 10, 2)])
    yield "transparent colors", saved(image.quantize(9), transparency=bytes(range(9)))
    yield "no palette", png(pixels[..., :1], color_type=3)
    few = np.arange(30, dtype=np.uint8).reshape(5, 6, 1)
    yield "more colors than the palette", png(few, color_type=3, before=[(b"PLTE", bytes(87))])
    interlaced = file_of(header(1, 1, 0, interlaced=1), (b"IDAT", zlib.compress(b"\0a")), iend)
    yield "interlaced", interlaced
    yield "no columns", file_of(header(0, 10, 2), (b"IDAT", zlib.compress(bytes(10))), iend)
    yield "100 million pixels", file_of(header(10_000, 10_000, 2), first, iend)
    yield "fewer bytes than there must be", file_of(header(9000, 9000, 2), first, iend)


FILES = dict(_files())


@pytest.mark.parametrize("name", FILES)
def test_what_is_not_plain_and_whole_is_left_to_pillow(name):
    assert decoded(FILES[name]) is None
    # and the decoder is as good as before
    assert_is_pillow_s(saved(photo(20, 10, 3)))


def test_a_color_that_the_palette_lacks_may_stand_beyond_the_window():
    few = np.arange(30, dtype=np.uint8).reshape(5, 6, 1)
    encoded = png(few, color_type=3, before=[(b"PLTE", bytes(range(87)))])
    executor = make_executor(plan_for_size(4, 6))
    out = np.zeros((4, 6, 3), np.uint8)
    assert executor.run_with(encoded, [("crop", 0, 0, 6, 4, BLACK)], out) is RunStatus.OK
    np.testing.assert_array_equal(out, pillow_pixels(encoded)[:4])


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
def test_a_file_cut_anywhere_is_left_to_pillow(mode):
    encoded = saved(photo(30, 20, 3).convert(mode))
    assert decoded(encoded) is not None
    for length in range(len(encoded)):
        assert decoded(encoded[:length]) is None


@pytest.mark.parametrize("repaired", [False, True])
@pytest.mark.parametrize("samples", [1, 3, 4])
def test_whatever_bytes_change_the_pixels_are_pillow_s_or_left_to_it(samples, repaired):
    rng = np.random.default_rng(6)
    pixels = np.asarray(photo(30, 20, 4).convert("RGBA"))[..., :samples]
    original = png(pixels, split=200, before=[(b"tEXt", b"a\0b")], behind=[(b"tIME", bytes(7))])
    accepted = 0
    for _ in range(1500):
        changed = bytearray(original)
        for _ in range(rng.integers(1, 4)):
            # Half of the time in what is not the stream, where every bit means something.
            end = 80 if rng.integers(2) else len(changed)
            changed[rng.integers(8, end)] ^= 1 << rng.integers(8)
        encoded = with_checksums(bytes(changed)) if repaired else bytes(changed)
        found = decoded(encoded)
        if found is not None:
            accepted += 1
            np.testing.assert_array_equal(found[..., :3], pillow_pixels(encoded))
    assert (accepted > 50) is repaired  # texts and the like


def test_a_stream_whose_checksum_is_right_is_whatever_it_inflates_to():
    rng = np.random.default_rng(7)
    for _ in range(300):
        width, height = (int(side) for side in rng.integers(1, 30, 2))
        rows = bytearray(rng.integers(0, 256, (3 * width + 1) * height, np.uint8).tobytes())
        for y in range(height):
            rows[y * (3 * width + 1)] = int(rng.integers(0, 5))
        encoded = png(np.zeros((height, width, 3), np.uint8), stream=zlib.compress(bytes(rows)))
        assert_is_pillow_s(encoded)

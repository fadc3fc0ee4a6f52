"""A plain JPEG file is read once and parsed on request; all of it is as Pillow has it."""

import copy
import gc
import io
import os
import pickle
import random
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from fuzz.damaged_files import damaged
from PIL import Image, ImageFile, ImageOps, JpegImagePlugin
from support import encoded_images
from support.images import photo

from fusionloader.data.deferred import opening, unparsed
from fusionloader.data.deferred.scope import deferring

pytestmark = [
    pytest.mark.skipif(not unparsed.is_expected(), reason="this Pillow opens all files itself"),
    pytest.mark.filterwarnings("ignore"),
]

OPENED = (
    lambda path: Image.open(path),
    lambda path: Image.open(Path(path)),
    lambda path: Image.open(io.BytesIO(Path(path).read_bytes())),
    lambda path: Image.open(open(path, "rb")),  # noqa: SIM115
)


def encoded(**options):
    return encoded_images.encoded(photo(np.random.default_rng(3), 40, 30), **options)


def segment(marker, body):
    return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body


def exif(little, entries, behind=b"", following=0):
    order = "<" if little else ">"
    body = struct.pack(order + "2sHLH", b"II" if little else b"MM", 42, 8, len(entries))
    for entry in entries:
        body += struct.pack(order + "HHLL", *entry)
    return b"Exif\0\0" + body + struct.pack(order + "L", following) + behind


def random_exif(generator):
    little = generator.random() < 0.5
    entries = []
    for tag in generator.sample(
        [0x10F, 0x112, 0x11A, 0x11B, 0x128, 0x8769], generator.randint(0, 6)
    ):
        if tag == 0x128 and generator.random() < 0.8:
            unit = generator.choice((1, 2, 3))
            entries.append((tag, 3, 1, unit if little else unit << 16))
        else:
            kind = generator.choice((2, 3, 4, 5, 5, 5, 7, 12, 13, 99))
            at = generator.choice((0, 30, 50, 70, 90, 4000, 1 << 31))
            entries.append((tag, kind, generator.choice((1, 1, 1, 0, 2, 9, 1 << 30)), at))
    behind = struct.pack(
        "<8L" if little else ">8L", *(generator.choice((0, 1, 72)) for _ in range(8))
    )
    return exif(little, entries, behind, generator.choice((0, 0, 40)))


def photoshop(generator):
    body = b"Photoshop 3.0\0"
    for _ in range(generator.randint(0, 3)):
        name = bytes(generator.randrange(5))
        data = bytes(generator.randrange(20))
        body += b"8BIM" + generator.choice((b"\3\xed", b"\4\4")) + bytes([len(name)]) + name
        body += (
            bytes(len(name) + 1 & 1) + struct.pack(">L", len(data)) + data + bytes(len(data) & 1)
        )
    return body


def jfif(generator):
    return b"JFIF\0\1" + bytes([generator.randrange(3), generator.randrange(4), 0, 72, 0, 72, 0, 0])


def profile(generator):
    count = generator.choice((1, 2))
    return b"ICC_PROFILE\0" + bytes([generator.choice((1, 2)), count]) + b"profile"


SEGMENTS = (
    (0xE0, jfif),
    (0xE0, lambda generator: b"AVI1\0"),
    (0xE1, random_exif),
    (0xE1, random_exif),
    (0xE1, lambda generator: b'http://ns.adobe.com/xap/1.0/\0<tiff:Orientation="6">'),
    (0xE2, profile),
    (0xE2, lambda generator: b"FPXR\0" + bytes(3)),
    (0xE2, lambda generator: b"MPF\0II*\0" + bytes(9)),
    (0xED, photoshop),
    (0xED, photoshop),
    (0xEE, lambda generator: b"Adobe\0\x64\0\0\0\0" + bytes([generator.randrange(3)])),
    (0xFE, lambda generator: b"a comment"),
    (0xE7, lambda generator: b""),
)


def with_segments(generator):
    """A file with other segments in front of its frame, of which some are cut off or changed."""
    content = encoded(progressive=generator.random() < 0.3)
    at = 20 if generator.random() < 0.7 else 2  # behind JFIF's segment, or in its place
    rest = content[20:]
    made = b""
    for marker, make in generator.sample(SEGMENTS, generator.randint(0, 4)):
        body = make(generator)
        if generator.random() < 0.2:
            body = body[: generator.randrange(len(body) + 1)]
        elif generator.random() < 0.1 and body:
            changed = bytearray(body)
            changed[generator.randrange(len(body))] = generator.randrange(256)
            body = bytes(changed)
        made += segment(marker, body)
    return content[:at] + made + rest


NAMES = ("info", "app", "applist", "quantization", "layers", "layer", "bits", "icclist", "tile")
NAMES += ("decoderconfig", "filename", "custom_mimetype", "decodermaxblock", "readonly", "palette")
NAMES += ("_exif_offset", "_min_frame", "format", "text", "n_frames", "_exclusive_fp", "mode")
MISSING = "no such attribute"


def position(image):
    return None if image.fp is None else image.fp.tell()


LOOKS = (
    *(lambda image, name=name: str(getattr(image, name, MISSING)) for name in NAMES),
    position,
    lambda image: str(dict(image.getexif())),
    lambda image: str(image._getmp()),
    lambda image: image.convert("RGB").info,
    lambda image: image.convert("RGB").crop((1, 1, 9, 9)).info,
    lambda image: image.convert("L").resize((5, 5)).info,
    lambda image: image.copy().info,
    lambda image: image.load() is None,
    lambda image: image.convert("RGB").tobytes(),
    lambda image: str(image.draft("L", (10, 10))).partition(" at 0x")[0],
    lambda image: image.info.update(note=1),
    lambda image: ImageOps.exif_transpose(image).size,
    lambda image: pickle.loads(pickle.dumps(image)).info,
    lambda image: copy.copy(image).layers,
    lambda image: np.asarray(image, np.uint8).tolist(),
    lambda image: image.thumbnail((9, 9)),
    lambda image: image.__exit__(None, None, None),
    lambda image: image.close(),
    lambda image: image.verify(),
)


def story(opened, path, looks):
    """What each look at an image gives, and the warnings and the error meanwhile."""
    results = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            image = opened(path)
            results.append((type(image), image.size, list(map(str, warned))))
            for look in looks:
                results.append((look(image), len(warned)))
        except Exception as error:
            results.append((type(error), str(error).partition(" at 0x")[0], len(warned)))
    return results


def assert_same_story(opened, path, looks):
    expected = story(opened, path, looks)
    with deferring():
        found = story(opened, path, looks)
    assert found == expected


@pytest.fixture(autouse=True)
def _no_attempts(monkeypatch):
    for name in ("made", "refused"):
        monkeypatch.setattr(opening._Attempts, name, 0)


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "photo.jpg"
    file.write_bytes(encoded())
    return str(file)


def is_unparsed(opened, path):
    with deferring():
        return unparsed.UNPARSED in vars(opened(path))


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["segments", "damaged"])
def test_whatever_a_file_says_and_whatever_is_asked_first(path, kind, monkeypatch):
    monkeypatch.setattr(opening._Attempts, "FIRST", 1 << 30)
    generator, seen = random.Random(8), []
    for _ in range(700):
        content = with_segments(generator) if kind == "segments" else damaged(generator)
        Path(path).write_bytes(content)
        opened = generator.choice(OPENED)
        looks = [generator.choice(LOOKS) for _ in range(generator.randint(1, 5))]
        assert_same_story(opened, path, looks)
        try:
            seen.append(is_unparsed(opened, path))
        except Exception:
            seen.append(False)
    assert seen.count(True) > 150 and seen.count(False) > 150


@pytest.mark.parametrize("opened", OPENED)
def test_pixels_are_made_without_parsing(path, opened):
    with deferring():
        image = opened(path)
        rgb = image.convert("RGB")
        np.asarray(rgb.crop((1, 1, 30, 20)).resize((9, 9)))
        assert "quantization" not in vars(image) and "info" not in vars(rgb)
        assert image.fp is None and image.tile == []
        assert rgb.crop((1, 1, 9, 9)).info["jfif"]


@pytest.mark.parametrize("opened", OPENED)
def test_what_outlives_the_fetch_is_a_whole_image(path, opened):
    expected = opened(path)
    with deferring():
        image, rgb = opened(path), opened(path).convert("RGB")
    assert set(vars(image)) == set(vars(expected))
    assert image.info == rgb.info == expected.info and image.fp.tell() == expected.fp.tell()
    assert image.tobytes() == rgb.tobytes() == expected.tobytes()


def test_files_are_closed(path):
    def count():
        return len(os.listdir("/proc/self/fd"))

    before = count()
    with deferring():
        for use in (
            lambda image: None,
            lambda image: image.load(),
            lambda image: image.convert("RGB"),
            lambda image: image.fp.read(3),
            lambda image: image.info,
            lambda image: image.close(),
        ):
            use(Image.open(path))
            gc.collect()
            assert count() == before
        with Image.open(path) as image:
            file = image.fp
            assert not file.closed and file.name == path and count() == before + 1
        assert file.closed and count() == before
        kept = Image.open(open(path, "rb")).convert("RGB")  # noqa: SIM115
        gc.collect()
        assert count() == before and kept.size


def test_a_file_that_is_removed_before_it_is_used(path):
    expected = Image.open(path).tobytes()
    with deferring():
        image = Image.open(path)
        os.unlink(path)
        assert image.fp.read(2) and image.tobytes() == expected


def test_a_buffer_of_the_program_that_changes(path):
    other = encoded(quality=20)

    def changed(path):
        file = io.BytesIO(Path(path).read_bytes())
        image = Image.open(file)
        file.seek(0)
        file.truncate()
        file.write(other)
        return image

    def closed(path):
        with open(path, "rb") as file:
            return Image.open(file)

    for opened in (changed, closed):
        assert_same_story(opened, path, [lambda image: image.convert("RGB").tobytes()])


def test_attributes_that_the_program_sets_are_kept(path):
    def opened(path):
        image = Image.open(path)
        image.info = {"mine": 1}
        image.note = "mine"
        return image

    assert_same_story(
        opened,
        path,
        [lambda image: (image.info, image.note, image.layers), lambda image: image.convert().info],
    )


def test_truncated_files_are_left_to_pillow_where_they_are_allowed(path, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert_same_story(Image.open, path, [lambda image: image.convert("RGB").tobytes()])


def test_large_images_are_left_to_pillow(path, monkeypatch):
    for most in (1000, 100):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        assert_same_story(Image.open, path, LOOKS[:3])


def test_another_class_for_jpeg_is_used(path):
    class Mine(JpegImagePlugin.JpegImageFile):
        pass

    original = Image.OPEN["JPEG"]
    Image.register_open("JPEG", Mine, original[1])
    try:
        with deferring():
            assert type(Image.open(path)) is Mine
    finally:
        Image.OPEN["JPEG"] = original


def test_files_are_left_to_pillow_if_most_are_of_another_kind(path):
    good, cmyk = Path(path).read_bytes(), io.BytesIO()
    Image.new("CMYK", (9, 9)).save(cmyk, "JPEG")
    Path(path).write_bytes(cmyk.getvalue())
    with deferring():
        for _ in range(opening._Attempts.FIRST):
            Image.open(path)
        assert opening._Attempts.refused == opening._Attempts.made
    Path(path).write_bytes(good)
    assert not is_unparsed(Image.open, path)

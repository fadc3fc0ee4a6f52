"""What user code does with a deferred image gives what it gives with Pillow's, errors too."""

import random
import warnings

import numpy as np
import pytest
import torch
from deferred.uses import NEARLY, USES
from PIL import Image
from support.batches import equal
from support.encoded_images import encoded
from support.images import photo
from support.webp_files import shortened

from fusionloader.data.deferred import counts
from fusionloader.data.deferred.scope import deferring


def marked(content, marker):
    """A file with a marker in the middle of its pixels."""
    place = len(content) * 2 // 3
    return content[:place] + marker + content[place + len(marker) :]


def _files():
    image = photo(np.random.default_rng(5), 90, 70)
    exif = Image.Exif()
    exif[0x0112] = 6
    baseline = encoded(image, quality=90, exif=exif)
    translucent = image.copy()
    translucent.putalpha(image.convert("L"))
    png = encoded(image, "PNG", exif=exif)
    webp = encoded(image, "WEBP", quality=80, exif=exif)
    corrupt = bytearray(baseline)
    corrupt[len(corrupt) * 2 // 3] ^= 0x5A
    progressive = encoded(image, progressive=True)
    corrupt_progressive = bytearray(progressive)
    corrupt_progressive[len(progressive) * 2 // 3] ^= 0x5A
    last_scan = progressive.rindex(b"\xff\xc4")
    return {
        "baseline": baseline,
        "full chroma": encoded(image, quality=95, subsampling=0),
        "progressive": progressive,
        "progressive, grey": encoded(image.convert("L"), progressive=True),
        "restarts": encoded(image, restart_marker_blocks=3),
        "grey": encoded(image.convert("L")),
        "cmyk": encoded(image.convert("CMYK")),
        "png": png,
        "png, grey": encoded(image.convert("L"), "PNG"),
        "png with alpha": encoded(translucent, "PNG"),
        "png of two frames": encoded(image, "PNG", save_all=True, append_images=[translucent]),
        "png, cut off": png[: len(png) // 2],
        "png, changed": png[: len(png) // 2] + b"~" + png[len(png) // 2 + 1 :],
        "palette": encoded(image.quantize(32), "PNG"),
        "webp": webp,
        "webp without loss": encoded(image, "WEBP", lossless=True),
        "webp with alpha": encoded(translucent, "WEBP", quality=70),
        "webp of two frames": encoded(image, "WEBP", save_all=True, append_images=[translucent]),
        "webp, cut off": webp[: len(webp) // 2],
        "webp, ending early": shortened(encoded(image, "WEBP", quality=80)),
        "cut off": baseline[: len(baseline) * 2 // 3],
        "cut off, progressive": progressive[:1500],
        "corrupt": bytes(corrupt),
        "corrupt, progressive": bytes(corrupt_progressive),
        "without the last scan": progressive[:last_scan] + b"\xff\xd9",
        "number of lines": baseline[:2] + b"\xff\xdc\0\4\0\7" + baseline[2:],
        "stray marker": marked(baseline, b"\xff\xd8"),
        "stray scan": marked(baseline, b"\xff\xda\x00\x08"),
        "stray table, progressive": marked(progressive, b"\xff\xc4\x00\x05"),
        "with more behind": baseline + b"\0" * 50,
        "no image": b"not an image",
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    paths = {}
    for name, content in _files().items():
        paths[name] = str(folder / f"{name}.jpg")
        (folder / f"{name}.jpg").write_bytes(content)
    return paths


def outcome(use, path):
    """Returns the value or the exception, and the states of the generators after it."""
    random.seed(3), torch.manual_seed(3), np.random.seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value, error = use(path), None
        except Exception as raised:
            value, error = None, (type(raised), str(raised).partition(" at 0x")[0])
    return value, error, random.getstate(), torch.get_rng_state()


@pytest.mark.parametrize("use", USES)
@pytest.mark.few(24)
def test_the_result_or_the_error_is_pillows(files, use):
    for name, path in files.items():
        expected, error, *states = outcome(USES[use], path)
        with deferring():
            found, found_error, *found_states = outcome(USES[use], path)
            assert found_error == error, name
            assert equal(found, expected), name
            assert equal(found_states, states), name
        assert equal(found, expected), f"{name}, after the fetch"


@pytest.mark.parametrize("use", NEARLY)
def test_what_depends_on_the_processor_is_a_level_off_at_most(files, use):
    for name in ("baseline", "grey", "progressive"):
        expected = NEARLY[use](files[name])
        with deferring():
            found = NEARLY[use](files[name])
        assert (found.int() - expected.int()).abs().max() <= 1


def test_what_can_be_recorded_is(files):
    counts.take()
    uses = ["steps: train", "steps: v2", "steps: jitter", "steps: policies", "two crops", "fit"]
    uses += ["steps: letterbox", "padded", "thumbnail", "thumbnail of the file, whole", "exif"]
    uses += ["resize with a box", "resize with a gap", "reduce", "gamma", "point", "solarize_add"]
    uses += ["split and merge", "a channel", "gray to three channels", "letterbox", "transpose"]
    with deferring():
        for use in uses:
            USES[use](files["baseline"])
    counted = counts.take()
    assert counted.files == len(uses)
    assert not counted.ended, counted.ended
    assert not counted.left, counted.left
    assert {"crop", "resize", "reduce", "lookup", "channels"} <= set(counted.recorded)


def test_what_ended_it_is_named(files):
    counts.take()
    with deferring():
        USES["steps: custom"](files["baseline"])
        USES["statistics"](files["baseline"])
        USES["draft"](files["baseline"])
    counted = counts.take()
    assert {"Image.putpixel", "ImageStat.__init__"} <= set(counted.ended)
    assert counted.left == {"decoded at a draft's size": 1}
    text = "\n".join(counted.explain())
    assert "left to the library: decoded at a draft's size 1" in text
    assert "Image.putpixel 1" in text


NEVER_REFUSED = ("baseline", "full chroma", "grey", "progressive", "progressive, grey", "restarts")
NEVER_REFUSED += ("corrupt", "corrupt, progressive", "without the last scan")


@pytest.mark.parametrize("name", NEVER_REFUSED)
def test_a_file_that_cannot_be_refused_is_not_decoded_when_it_is_loaded(files, name):
    with deferring():
        image = Image.open(files[name])
        image.load()
        assert image._im.source._whole is None


def test_a_file_that_may_be_refused_is(files):
    with deferring():
        image = Image.open(files["number of lines"])
        image.load()
        assert image._im.source._whole is not None

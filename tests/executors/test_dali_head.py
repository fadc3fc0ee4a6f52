"""The head: windows of files as the native executor decodes them; a bad file fails alone."""

import io

import dali_or_skip  # noqa: F401
import numpy as np
import pytest
from PIL import Image
from support import encoded_images
from support.dali_arrays import array_interface
from support.dali_runs import decode

from fusionloader.cli.dead_leaves import paint
from fusionloader.transforms.executors.dali.head import DaliHead
from fusionloader.transforms.executors.dali.prebuilt import Prebuilt
from fusionloader.transforms.executors.decoders.head_steps import (
    HeadCannot,
    HeadStep,
    split_head,
    split_window,
)
from fusionloader.transforms.executors.device_errors import DecodeFailed

WIDTH, HEIGHT = 90, 70
PICTURE = Image.fromarray(paint(5, WIDTH, HEIGHT, np.random.default_rng(8)))
BLACK = (0, 0, 0)


def encoded(image=PICTURE, format="JPEG", **options):
    return encoded_images.encoded(image, format, **options)


WHOLE = (0, 0, WIDTH, HEIGHT)
WHOLE_STEP = HeadStep(WHOLE, HEIGHT, WIDTH)


@pytest.fixture(scope="module")
def head():
    return DaliHead(None, 8)


def decoded(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_windows_are_pillows_pixels_of_the_file(head, mode):
    data = encoded(PICTURE.convert(mode))
    windows = [WHOLE, (7, 5, 33, 41), (WIDTH - 1, HEIGHT - 1, 1, 1), (3, 0, 80, 9)] * 2
    results = decode(head, [data] * 8, windows)
    for (x, y, width, height), result in zip(windows, results, strict=True):
        assert np.array_equal(result.image, decoded(data)[y : y + height, x : x + width])


def test_good_files_take_one_run_and_one_pipeline(head, monkeypatch):
    """A group that DALI refuses is decoded in parts, each with a new pipeline."""
    runs, start = [], Prebuilt.start
    monkeypatch.setattr(
        Prebuilt, "start", lambda self, **given: runs.append(1) or start(self, **given)
    )
    assert all(result.image is not None for result in decode(head, [encoded()] * 8, [WHOLE] * 8))
    assert len(runs) == 1


def test_a_group_that_is_refused_without_a_bad_file_is_told(head, monkeypatch, caplog):
    start = Prebuilt.start

    def refuse_groups(self, encoded, **windows):
        if len(encoded) > 1:
            raise RuntimeError("encountered:\nstrided data")
        return start(self, encoded=encoded, **windows)

    monkeypatch.setattr(Prebuilt, "start", refuse_groups)
    for _ in range(2):
        results = decode(head, [encoded()] * 4, [WHOLE] * 4)
        assert all(result.image is not None for result in results)
    told = "DALI decodes in parts what it refuses as a group, which is slow: strided data"
    assert caplog.messages == [told]


def test_images_are_shown_as_the_stand_ins_of_other_tests_show_theirs(head):
    (result,) = decode(head, [encoded()], [WHOLE])
    shown = result.image.__array_interface__
    assert shown == array_interface(shown["data"][0], (HEIGHT, WIDTH, 3), 3)


def test_bad_files_fall_back_alone_and_say_why(head):
    good = encoded()
    files = {
        "not a whole JPEG": b"no image",
        "JPEG file of": encoded(format="PNG"),
        "color channels": encoded(PICTURE.convert("CMYK")),
    }
    results = decode(head, [good, *files.values(), good], [WHOLE] * 5)
    for reason, result in zip(files, results[1:-1], strict=True):
        assert result.image is None
        assert reason in result.reason
    assert all(np.array_equal(results[place].image, decoded(good)) for place in (0, -1))


def test_a_file_that_only_the_decoder_finds_bad_is_found_by_halving(head, monkeypatch):
    good = encoded()
    monkeypatch.setattr(head, "_headers", _Trusting())
    results = decode(head, [good, good, good[:-300], good], [WHOLE] * 4)
    assert [result.image is None for result in results] == [False, False, True, False]
    assert isinstance(results[2].reason, DecodeFailed)
    assert np.array_equal(decode(head, [good], [WHOLE])[0].image, decoded(good))


def test_on_a_lost_device_no_file_is_blamed(head, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("CUDA runtime API error cudaErrorIllegalAddress (700)")

    monkeypatch.setattr(Prebuilt, "outputs", fail)
    with pytest.raises(RuntimeError, match="IllegalAddress"):
        decode(head, [encoded()] * 4, [WHOLE] * 4)


class _Trusting:
    def image_size(self, file):
        return WIDTH, HEIGHT


def test_a_window_that_is_not_possible_is_told(head):
    (result,) = decode(head, [encoded()], [(80, 0, 11, 5)])
    assert result.image is None
    assert "window" in result.reason


def test_the_head_takes_the_first_operations_of_a_sample():
    drawn = [
        ("crop", 3, 4, 50, 40, BLACK),
        ("resize", 20, 30, "bicubic"),
        ("hflip",),
        ("vflip",),
        ("vflip",),
        ("invert",),
        ("hflip",),
    ]
    step, rest = split_head(drawn, WIDTH, HEIGHT)
    assert step == HeadStep((3, 4, 50, 40), 30, 20, "bicubic", hflip=True)
    assert rest == [("invert",), ("hflip",)]
    assert split_head([], WIDTH, HEIGHT) == (WHOLE_STEP, [])
    window = HeadStep((3, 4, 50, 40), 40, 50)
    assert split_window(drawn, WIDTH, HEIGHT) == (window, drawn[1:])
    beyond = [("crop", 60, 4, 50, 40, BLACK), *drawn[1:]]
    assert split_window(beyond, WIDTH, HEIGHT) == (WHOLE_STEP, beyond)


@pytest.mark.parametrize(
    "operation", [("crop", -1, 0, 9, 9, BLACK), ("resize", 5, 5, "box")], ids=lambda given: given[0]
)
def test_what_the_head_cannot_do_is_named(operation):
    with pytest.raises(HeadCannot, match=operation[0]):
        split_head([operation], WIDTH, HEIGHT)

"""Damaged files: no crash, and never other pixels than Pillow's under the name of success."""

from __future__ import annotations

import io

import numpy as np
import pytest
from native_samples import apply, jpeg, photo, pixel_plan
from PIL import Image, UnidentifiedImageError

from fusionloader._native import RunStatus
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import RandomResizedCrop

PLAN = pixel_plan(
    RandomResizedCrop(16, 16, (0.05, 1), (0.5, 2), ("bilinear",)), height=16, width=16
)
FILES = {
    "plain": {"subsampling": 2},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_blocks": 2, "subsampling": 1},
}


def run(executor, encoded, index):
    out = np.zeros((16, 16, 3), np.uint8)
    return executor.run(encoded, 3, 0, index, 0, out), out


def pillow_window(encoded, executor, index):
    """Pillow's result for the same parameters; None where it raises."""
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            parameters = executor.draw(3, 0, index, 0, *image.size)
            return np.asarray(apply(image.convert("RGB"), parameters))
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError):
        return None


@pytest.mark.parametrize("kind", FILES)
def test_a_piece_missing_from_the_middle_is_noticed_or_decoded_as_pillow_does(kind):
    rng = np.random.default_rng(9)
    encoded = jpeg(photo(60, 45, 5), **FILES[kind])
    executor = make_executor(PLAN)
    for index in range(300):
        begin = int(rng.integers(2, len(encoded) - 2))
        end = int(rng.integers(begin + 1, len(encoded) - 1))
        damaged = encoded[:begin] + encoded[end:]
        status, out = run(executor, damaged, index)
        expected = pillow_window(damaged, executor, index) if status is RunStatus.OK else None
        if expected is not None:
            np.testing.assert_array_equal(out, expected, err_msg=f"piece {begin}:{end}")


@pytest.mark.parametrize("marker", [0xDB, 0xC4])
def test_a_file_without_a_table_does_not_get_the_one_of_the_file_before(marker):
    # Other tables than the usual ones, which libjpeg takes where a Huffman table is missing.
    encoded = jpeg(photo(60, 45, 6), quality=40, optimize=True)
    at = encoded.index(bytes([0xFF, marker]))
    end = at + 2 + int.from_bytes(encoded[at + 2 : at + 4], "big")
    executor = make_executor(PLAN)
    assert run(executor, encoded, 0)[0] is RunStatus.OK
    lacking = encoded[:at] + encoded[end:]
    status, out = run(executor, lacking, 0)
    expected = pillow_window(lacking, executor, 0)
    assert status is RunStatus.NEEDS_PILLOW or np.array_equal(out, expected)


def test_a_progressive_file_without_its_last_scans_is_left_to_pillow():
    encoded = jpeg(photo(60, 45, 7), progressive=True)
    scans = [at for at in range(len(encoded)) if encoded[at : at + 2] == b"\xff\xda"]
    executor = make_executor(PLAN)
    assert run(executor, encoded, 0)[0] is RunStatus.OK
    for at in scans[1:]:
        assert run(executor, encoded[:at] + b"\xff\xd9", 0)[0] is RunStatus.NEEDS_PILLOW

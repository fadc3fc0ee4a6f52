"""Every operation keeps to its row of docs/how/fidelity.md."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.fidelity import page
from benchmarks.fidelity.cases import images, operation_of, rows
from benchmarks.fidelity.decoding import conversion, exact_decode, fast_decode
from benchmarks.fidelity.differences import against_pillow
from benchmarks.fidelity.perspective import compare_coefficients, corners, torchvision_coefficients
from fusionloader._native import testing
from fusionloader.transforms.executors.replay import OPERATIONS

PAGE = (Path(__file__).parents[2] / "docs" / "how/fidelity.md").read_text()
IMAGES = images()
WRITTEN = page.figures(PAGE, page.PILLOW_TITLE)


def test_every_operation_has_a_row_and_every_row_an_operation():
    assert set(WRITTEN) == set(rows())
    assert {operation_of(row) for row in WRITTEN} == set(OPERATIONS)


@pytest.mark.parametrize("row", rows())
def test_an_operation_differs_no_more_than_its_row_says(row):
    _, most, mean = WRITTEN[row]
    # Every third case: another number than that of the images' and the parameters' divisors.
    difference = against_pillow(row, IMAGES, every=3)
    assert difference.cases > 0
    assert difference.most <= float(most)
    assert difference.mean <= 4 * float(mean)


@pytest.mark.parametrize("row", rows())
def test_no_operation_is_further_than_a_level_from_torchvision(row):
    assert float(WRITTEN[row][1]) <= (1 if row == "blur" else 0)


def test_decoding_keeps_to_its_rows():
    for kind, difference in exact_decode(IMAGES).items():
        assert difference.most <= float(page.figures(PAGE, page.DECODE_TITLE)[kind][1])
    fast = page.figures(PAGE[PAGE.index('`decode="fast"` against') :], "")
    measured = fast_decode(IMAGES)
    assert set(fast) == set(measured)
    for size, difference in measured.items():
        assert difference.most <= float(fast[size][1])


def test_conversions_keep_to_their_rows():
    written = page.figures(PAGE, page.CONVERT_TITLE)
    measured = conversion(IMAGES)
    assert set(written) == set(measured)
    for name, difference in measured.items():
        assert [f"{difference.most:g}", str(difference.different)] == written[name][1:] == ["0"] * 2


def test_perspective_coefficients_are_those_of_least_squares_but_for_rounded_zeros():
    found = compare_coefficients(3000, seed=1)
    assert found.most_ulps <= 1
    assert found.share_of_real_differences <= 0.001
    assert found.most_in_zeros < 1e-9


def test_many_coefficients_at_once_are_those_of_torchvision_one_by_one():
    from torchvision.transforms.functional import _get_perspective_coeffs

    start, end = corners(100, np.random.default_rng(3))
    together = torchvision_coefficients(start, end)
    for place in range(100):
        alone = _get_perspective_coeffs(start[place].tolist(), end[place].tolist())
        assert together[place].tolist() == alone


def test_corners_on_a_line_are_refused():
    square = [[0, 0], [9, 0], [9, 9], [0, 9]]
    with pytest.raises(ValueError, match="on one line"):
        testing.perspective_coefficients(square, [[0, 0], [3, 3], [5, 5], [9, 9]])

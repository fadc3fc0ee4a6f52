"""The coefficients of perspective transforms against those that torchvision solves for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fusionloader._native import testing

# Coefficients smaller than this are zeros with rounding errors.
ZERO = 1e-10
VISIBLE = 1e-3  # pixels
_AT_ONCE = 20_000


@dataclass
class Coefficients:
    """How many sets of coefficients there were, and in how many one differs."""

    sets: int = 0
    singular: int = 0
    different: int = 0
    different_in_zeros_alone: int = 0
    most_ulps: int = 0
    most_in_zeros: float = 0.0
    visible: int = 0  # where a corner shows another point, by more than VISIBLE

    @property
    def share_of_real_differences(self) -> float:
        """The part of the sets in which a coefficient that is not zero differs."""
        return (self.different - self.different_in_zeros_alone) / max(self.sets, 1)


def compare_coefficients(sets: int, seed: int = 0) -> Coefficients:
    """Corners as ``RandomPerspective`` draws them, for images and distortions of all sizes."""
    rng = np.random.default_rng(seed)
    found = Coefficients()
    for begin in range(0, sets, _AT_ONCE):
        start, end = corners(min(_AT_ONCE, sets - begin), rng)
        _compare(start, end, found)
    return found


def corners(
    count: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Corners of images and where they go, distributed as ``RandomPerspective.get_params``'s."""
    width, height = rng.integers(2, 1200, count), rng.integers(2, 1200, count)
    distortion = rng.choice([0.1, 0.3, 0.5, 0.8, 1.0], count)
    reach_x = (distortion * (width // 2)).astype(np.int64) + 1
    reach_y = (distortion * (height // 2)).astype(np.int64) + 1
    zero = np.zeros(count, np.int64)
    right, bottom = width - 1, height - 1
    start = _points(zero, zero, right, zero, right, bottom, zero, bottom)
    end = _points(
        rng.integers(0, reach_x),
        rng.integers(0, reach_y),
        width - reach_x + rng.integers(0, reach_x),
        rng.integers(0, reach_y),
        width - reach_x + rng.integers(0, reach_x),
        height - reach_y + rng.integers(0, reach_y),
        rng.integers(0, reach_x),
        height - reach_y + rng.integers(0, reach_y),
    )
    return start, end


def torchvision_coefficients(
    start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Torchvision's ``_get_perspective_coeffs`` of many corners at once."""
    count = len(start)
    matrices = np.zeros((count, 8, 8))
    for corner in range(4):
        to, source = end[:, corner], start[:, corner]
        for axis in range(2):
            row = matrices[:, 2 * corner + axis]
            row[:, 3 * axis : 3 * axis + 2] = to
            row[:, 3 * axis + 2] = 1
            row[:, 6:] = -source[:, axis : axis + 1] * to
    sides = torch.from_numpy(start.reshape(count, 8).astype(np.float64))
    solved = torch.linalg.lstsq(torch.from_numpy(matrices), sides, driver="gels").solution
    rounded: npt.NDArray[np.float32] = solved.to(torch.float32).numpy()
    return rounded


def _compare(start: npt.NDArray[np.int64], end: npt.NDArray[np.int64], found: Coefficients) -> None:
    degenerate = _three_on_a_line(end)
    found.singular += int(np.count_nonzero(degenerate))
    start, end = start[~degenerate], end[~degenerate]
    kept, rows = [], []
    for place, (before, after) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        try:
            rows.append(testing.perspective_coefficients(before, after))
            kept.append(place)
        except ValueError:  # torch's solver raises too
            found.singular += 1
    ours = np.array(rows, np.float32)
    theirs = torchvision_coefficients(start[kept], end[kept])
    differ, zero = ours != theirs, np.minimum(np.abs(ours), np.abs(theirs)) < ZERO
    real = differ & ~zero
    # Of images of a few pixels a corner may be at infinity.
    with np.errstate(invalid="ignore", divide="ignore"):
        moved = np.abs(_shown(ours, end[kept]) - _shown(theirs, end[kept]))
    found.visible += int((moved > VISIBLE).any(axis=(0, 2)).sum())
    found.sets += len(kept)
    found.different += int(differ.any(axis=1).sum())
    found.different_in_zeros_alone += int((differ.any(axis=1) & ~real.any(axis=1)).sum())
    ulps = np.abs(_ordered(ours) - _ordered(theirs))
    found.most_ulps = max(found.most_ulps, int(ulps[real].max(initial=0)))
    found.most_in_zeros = max(
        found.most_in_zeros, float(np.abs(ours - theirs)[zero].max(initial=0))
    )


def _three_on_a_line(points: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which sets have no transform: rounding decides whether solvers find that out, or what."""
    found = np.zeros(len(points), np.bool_)
    for triple in combinations(range(4), 3):
        first, second, third = (points[:, corner] for corner in triple)
        to, on = second - first, third - first
        found |= to[:, 0] * on[:, 1] == to[:, 1] * on[:, 0]
    return found


def _shown(
    coefficients: npt.NDArray[np.float32], points: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """The points of the image that points of the result show."""
    a, b, c, d, e, f, g, h = coefficients.astype(np.float64).T[:, :, None]
    x, y = points[..., 0], points[..., 1]
    scale = g * x + h * y + 1
    shown: npt.NDArray[np.float64] = np.stack(
        [(a * x + b * y + c) / scale, (d * x + e * y + f) / scale]
    )
    return shown


def _ordered(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """The place of each float32 among all of them."""
    bits = values.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def _points(*numbers: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.stack(numbers, axis=1).reshape(-1, 4, 2)

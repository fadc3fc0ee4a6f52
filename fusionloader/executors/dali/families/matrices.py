"""Matrices of warps as Pillow computes them, for warps that work in float32."""

from __future__ import annotations

import math

# x' = a x + b y + c, y' = d x + e y + f: the point of the image that a point of the result shows.
Matrix = tuple[float, ...]
Point = tuple[float, float]

_ONE = 1 << 16


def rotation(angle: float, centre: Point) -> Matrix:
    """Pillow's matrix of a rotation by ``angle`` degrees about ``centre``."""
    turn = -math.radians(angle % 360.0)
    cosine, sine = round(math.cos(turn), 15), round(math.sin(turn), 15)
    x, y = centre
    return (
        cosine,
        sine,
        cosine * -x + sine * -y + x,
        -sine,
        cosine,
        -sine * -x + cosine * -y + y,
    )


def quarter_turns(angle: float) -> int | None:
    """How many right angles a rotation is, ``None`` if it is not a whole number of them."""
    turn = angle % 360.0
    return int(turn // 90) if turn % 90 == 0 else None


def moves_whole_pixels(matrix: Matrix) -> bool:
    """Whether an image is only moved, by whole pixels: all filters then do the same."""
    a, b, c, d, e, f = matrix
    return (a, b, d, e) == (1, 0, 0, 1) and c == math.floor(c) and f == math.floor(f)


def fixed_point(matrix: Matrix, height: int, width: int) -> Matrix:
    """The matrix rounded as Pillow's nearest warp does, where it does: to 16.16 fixed point.

    Half of the last place is added to every coordinate, which changes no pixel in fixed point and
    keeps points on an edge between two pixels on their side of it in float32.
    """
    a, b, c, d, e, f = matrix
    if (b == 0 and d == 0) or not _fits(matrix, height, width):
        return matrix  # Pillow scales, or computes in double precision
    across, down = _rounded_line(a, b, c), _rounded_line(d, e, f)
    return (*across, *down)


def _rounded_line(step_x: float, step_y: float, offset: float) -> Matrix:
    first = math.floor((offset + step_x * 0.5 + step_y * 0.5) * _ONE + 0.5)
    by_x, by_y = math.floor(step_x * _ONE + 0.5), math.floor(step_y * _ONE + 0.5)
    # That of pixel (0, 0), from whose middle a warp by matrix starts.
    origin = first + 0.5 - 0.5 * (by_x + by_y)
    return (by_x / _ONE, by_y / _ONE, origin / _ONE)


def _fits(matrix: Matrix, height: int, width: int) -> bool:
    a, b, c, d, e, f = matrix
    corners = [(x, y) for x in (0, width) for y in (0, height)]
    return all(
        abs(x * a + y * b + c) < 1 << 15 and abs(x * d + y * e + f) < 1 << 15 for x, y in corners
    )

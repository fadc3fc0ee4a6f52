"""Families that read pixels at other places: warps, filters and rectangles."""

from __future__ import annotations

import numpy as np
from nvidia.dali import fn, types

from fusionloader.executors.dali.families.pixels import blended
from fusionloader.executors.dali.task import Backend, Node

_ROWS_AND_COLUMNS = [0, 1]
# Pillow's ImageFilter.SMOOTH.
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
# A sum of products in float32 may be this much less than Pillow's in double precision.
_ROUNDING = 2.0**-14


def warp(backend: Backend, images: Node, matrix: Node) -> Node:
    """The nearest pixel; black outside."""
    return fn.warp_affine(
        images,
        matrix=matrix,
        inverse_map=True,
        interp_type=types.INTERP_NN,
        fill_value=0,
    )


def filled_warp(backend: Backend, images: Node, matrix: Node, fill: Node) -> Node:
    """The nearest pixel; a color of each sample's own outside.

    DALI's fill is one number of the pipeline: with the color's bits flipped in all pixels, before
    and after, its 0 is that color.
    """
    color = backend.operand(fill)
    return warp(backend, images ^ color, matrix) ^ color


def bilinear_warp(backend: Backend, images: Node, matrix: Node, fill: Node) -> Node:
    """Blends four pixels, repeats the border, and cuts off, as Pillow does."""
    exact = fn.warp_affine(
        images,
        matrix=matrix,
        inverse_map=True,
        interp_type=types.INTERP_LINEAR,
        dtype=types.FLOAT,
    )
    levels = fn.cast(exact - (0.5 - _ROUNDING), dtype=types.UINT8)
    white = images[:, :, 0:1] | types.Constant(255, dtype=types.UINT8)
    inside = warp(backend, white, matrix)
    color = backend.operand(fill)
    return ((levels ^ color) & inside) ^ color


def sharpness(backend: Backend, images: Node, factor: Node, inner: Node) -> Node:
    """A blend from the smoothed image; the outermost pixels, which Pillow does not smooth, stay.

    The smooth levels are rounded: no sum comes near a tie, since 13 is odd.
    """
    smooth = fn.filter(images, backend.operand(types.Constant(_SMOOTH)), mode="valid")
    sharp = blended(backend, fn.cast(smooth, dtype=types.INT16), images[1:-1, 1:-1], factor)
    whole = fn.slice(
        sharp,
        start=[-1, -1],
        shape=inner + 2,
        axes=_ROWS_AND_COLUMNS,
        out_of_bounds_policy="pad",
    )
    begin = types.Constant([1.0, 1.0], dtype=types.FLOAT, device="cpu")
    size = fn.cast(inner, dtype=types.FLOAT)
    border = fn.erase(images, anchor=begin, shape=size, axes=_ROWS_AND_COLUMNS)
    return whole | border


def blur(backend: Backend, images: Node, window: Node, sigma: Node) -> Node:
    """A Gaussian over rows and columns one after the other, within a level of torchvision's."""
    return fn.gaussian_blur(images, window_size=window, sigma=sigma)


def cutout(backend: Backend, images: Node, corner: Node, size: Node, fill: Node) -> Node:
    """A rectangle of one color."""
    return fn.erase(images, anchor=corner, shape=size, fill_value=fill, axes=_ROWS_AND_COLUMNS)

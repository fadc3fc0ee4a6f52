"""Families that change levels: what a pixel becomes depends on it and on the image's levels."""

from __future__ import annotations

from nvidia.dali import fn, math, types

from fusionloader.executors.dali.families.pixels import (
    blended,
    cut_off,
    grey_levels,
    in_all_channels,
)
from fusionloader.executors.dali.task import Backend, Node

_PER_CHANNEL = [0, 1]


def brightness(backend: Backend, images: Node, factor: Node) -> Node:
    """A blend from black."""
    if backend.on_gpu:
        return cut_off(backend, images * backend.operand(factor))
    # The operator multiplies, subtracts half a level and rounds in one go: see cut_off.
    return fn.brightness(images, brightness=factor, brightness_shift=-0.5 / 255)


def contrast(backend: Backend, images: Node, factor: Node) -> Node:
    """A blend from the rounded mean of the grey levels."""
    mean = fn.reductions.mean(grey_levels(backend, images))
    centre = fn.cast(math.floor(mean + 0.5), dtype=types.INT16)
    return blended(backend, centre, images, factor)


def saturation(backend: Backend, images: Node, factor: Node) -> Node:
    """A blend from the grey levels."""
    grey = in_all_channels(backend, grey_levels(backend, images))
    return blended(backend, fn.cast(grey, dtype=types.INT16), images, factor)


def bits(backend: Backend, images: Node, add: Node, mask: Node, inverted_from: Node) -> Node:
    """Adds to levels below 128, keeps the bits of a mask, inverts levels from a threshold on."""
    dark = images < types.Constant(128, dtype=types.UINT8)
    brighter = fn.cast(images + dark * backend.operand(add), dtype=types.UINT8)
    white = types.Constant(255, dtype=types.UINT8)
    flipped = (images >= backend.operand(inverted_from)) * white
    return (brighter & backend.operand(mask)) ^ flipped


def autocontrast(backend: Backend, images: Node) -> Node:
    """Stretches each channel to 0-255, in the double precision of Pillow's Python code.

    In exact fractions some levels would be one more: Pillow cuts off what is a hair below.
    """
    least = _double(fn.reductions.min(images, axes=_PER_CHANNEL))
    most = _double(fn.reductions.max(images, axes=_PER_CHANNEL))
    flat = _double(most == least)
    scale = (_number(255.0) - flat * _number(254.0)) / (most - least + flat)
    offset = -least * scale * (_number(1.0) - flat)
    stretched = images * scale + offset
    if backend.on_gpu:
        return fn.cast(math.floor(stretched), dtype=types.UINT8)
    return fn.cast(stretched - _number(0.5), dtype=types.UINT8)


def equalize(backend: Backend, images: Node, pixels: Node) -> Node:
    """Pillow's equalize within one level; DALI's own is off by up to 23.

    DALI counts the pixels of a level and those below, Pillow those below alone. On the inverted
    image DALI counts those above, of which those below are the rest; its scale then leaves the
    highest level out, as Pillow's does. Pillow's scale is a whole number of pixels per level, which
    is corrected for. What stays is that levels are rounded twice.
    """
    white = types.Constant(255, dtype=types.UINT8)
    stretched = fn.equalize(images ^ white) ^ white
    highest = fn.reductions.max(images, axes=_PER_CHANNEL)
    of_highest = fn.cast(images == highest, dtype=types.INT32)
    below = backend.operand(pixels) - fn.reductions.sum(of_highest, axes=_PER_CHANNEL)
    step = below // 255
    exact_step = fn.cast(below, dtype=types.FLOAT) / 255.0
    scale = exact_step / fn.cast(math.max(step, 1), dtype=types.FLOAT)
    scaled = fn.cast(stretched * scale, dtype=types.UINT8)
    # Pillow leaves a channel alone in which fewer than 255 pixels are below the highest level.
    changed = (step > 0) * white
    return ((scaled ^ images) & changed) ^ images


def _double(node: Node) -> Node:
    return fn.cast(node, dtype=types.FLOAT64)


def _number(value: float) -> Node:
    return types.Constant(value, dtype=types.FLOAT64)
